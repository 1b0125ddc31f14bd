"""Formats of messages by the names that SQL gives them: ``'format' = 'json'``.

Source: Flink's documentation ("Formats").
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from headrace.engine.errors import ConfigurationError

from ...formats.avro_messages import AvroMessages
from ...formats.change_messages import DebeziumMessages
from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ...formats.protobuf_messages import ProtobufMessages
from ...formats.schema_registry import SchemaRegistry
from .contract import Options

__all__ = ["FORMATS", "KIND_COLUMN", "OF_CHANGES", "format_named", "format_of", "on_error_of", "raw_format"]

FORMATS = ("json", "csv", "raw", "avro", "avro-confluent", "protobuf", "protobuf-confluent")
OF_CHANGES = "debezium-json"
KIND_COLUMN = "$op"
"""The column in which changes on their way out say what they are."""


def format_of(
    options: Options, schema: pa.Schema, option: str, subject: str | None, formats: tuple[str, ...] = FORMATS
) -> MessageFormat:
    """Return the format that an option names, for messages of a table's columns.

    Args:
        options: Of the table.
        schema: The columns.
        option: The name of the option.
        subject: Of the schema registry, if none is named.
        formats: What may be chosen.

    Raises:
        ConfigurationError: If it is none of these, or not for such columns.
    """
    return format_named(options.choice(option, formats), options, schema, option, subject)


def format_named(name: str, options: Options, schema: pa.Schema, option: str, subject: str | None) -> MessageFormat:
    """As `format_of`, where the option has been taken already: its value is ``name``."""
    if name == "avro":
        return AvroMessages(schema)
    if name == "avro-confluent":
        return AvroMessages(schema, _registry_of(options, option.replace("format", name), subject))
    if name in ("protobuf", "protobuf-confluent"):
        prefix = option.replace("format", name)
        kind = options.need(f"{prefix}.message-class-name")
        reads_defaults = options.take(f"{prefix}.read-default-values", Options.boolean, default=False)
        registry = _registry_of(options, prefix, subject) if name == "protobuf-confluent" else None
        return ProtobufMessages(kind, schema, registry, reads_defaults=reads_defaults)
    if name == OF_CHANGES:
        has_schema = options.take(f"{OF_CHANGES}.schema-include", Options.boolean, default=False)
        return DebeziumMessages(schema, has_schema=has_schema, kind_column=KIND_COLUMN)
    if name == "json":
        return JsonMessages(schema)
    if name == "csv":
        of_key = "key." if option.startswith("key.") else ""
        return CsvMessages(schema, options.take(f"{of_key}csv.field-delimiter", str, ","))
    return raw_format(schema, "format 'raw'")


def on_error_of(options: Options, format_name: str = "json") -> Literal["fail", "skip"]:
    """Return what is to become of messages that cannot be decoded."""
    skips = options.take(f"{format_name}.ignore-parse-errors", Options.boolean, default=False)
    return "skip" if skips else "fail"


def _registry_of(options: Options, prefix: str, subject: str | None) -> SchemaRegistry:
    properties = options.take_all(f"{prefix}.properties.")
    user = options.take(f"{prefix}.basic-auth.user-info")
    if user is not None:
        properties |= {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": user}
    return SchemaRegistry(options.need(f"{prefix}.url"), options.take(f"{prefix}.subject", str, subject), properties)


def raw_format(schema: pa.Schema, what: str) -> MessageFormat:
    """Of one column that is a message as it is."""
    if len(schema) != 1 or not (pa.types.is_string(schema.field(0).type) or pa.types.is_binary(schema.field(0).type)):
        message = f"{what} is for one column, STRING or BYTES"
        raise ConfigurationError(message)
    (column,) = schema.names
    return TextMessages(column=column) if pa.types.is_string(schema.field(0).type) else BytesMessages(column)
