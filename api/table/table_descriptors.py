"""Tables described by Python instead of CREATE TABLE, and types by names instead of texts.

A descriptor is written as the statement that it stands for, and goes its way: so there is one meaning of columns,
watermarks, keys and options. A type is the text that SQL has for it.

Source: PyFlink's ``TableDescriptor``, ``FormatDescriptor``, ``Schema``, ``DataTypes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ProgramError

from ..sql.parsing.sql_types import parse_type, sql_name
from .expressions.expression import Expression
from .expressions.rendering import Rendering, quoted

__all__ = [
    "DataType",
    "DataTypes",
    "EnvironmentSettings",
    "FormatDescriptor",
    "Schema",
    "TableDescriptor",
    "fields_of",
    "literal",
]


class DataType(str):
    """A type as SQL writes it: ``BIGINT``, ``ROW<a INT>``, ``STRING NOT NULL``."""

    __slots__ = ()

    def not_null(self) -> DataType:
        """Return the type whose values are never NULL."""
        return self if self.endswith(_NOT_NULL) else DataType(self + _NOT_NULL)

    def nullable(self) -> DataType:
        """Return the type whose values may be NULL."""
        return DataType(self.removesuffix(_NOT_NULL))


_NOT_NULL = " NOT NULL"


def _type(text: str, nullable: bool = True) -> DataType:
    return DataType(text if nullable else text + _NOT_NULL)


def _sized(name: str, size: int, nullable: bool) -> DataType:
    return _type(f"{name}({size})", nullable)


def fields_of(kind: str | pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the fields of a ROW type, with their types.

    Raises:
        ProgramError: If it is another type.
    """
    parsed = parse_type(kind.removesuffix(_NOT_NULL) if isinstance(kind, str) else kind)
    if not pa.types.is_struct(parsed):
        message = f"columns are those of a ROW type; got {kind}"
        raise ProgramError(message)
    return [(one.name, one.type) for one in parsed]


class EnvironmentSettings:
    """How a table environment runs its queries; made by `in_streaming_mode` or `in_batch_mode`.

    Args:
        mode: ``streaming`` or ``batch``.
        **options: Those of `headrace.table.environment.TableEnvironment.create`.
    """

    def __init__(self, mode: str = "streaming", **options: Any) -> None:
        self.mode = mode
        self.options = options

    @staticmethod
    def in_streaming_mode() -> EnvironmentSettings:
        """Return those of queries over streams."""
        return EnvironmentSettings("streaming")

    @staticmethod
    def in_batch_mode() -> EnvironmentSettings:
        """Return those of queries over what ends."""
        return EnvironmentSettings("batch")

    def is_streaming_mode(self) -> bool:
        """Return whether queries run over streams."""
        return self.mode == "streaming"


class DataTypes:
    """Types of columns, under PyFlink's names. ``nullable=False`` adds ``NOT NULL``."""

    @staticmethod
    def STRING(nullable: bool = True) -> DataType:
        """Return ``STRING``."""
        return _type("STRING", nullable)

    @staticmethod
    def CHAR(length: int, nullable: bool = True) -> DataType:
        """Return ``CHAR(length)``."""
        return _sized("CHAR", length, nullable)

    @staticmethod
    def VARCHAR(length: int, nullable: bool = True) -> DataType:
        """Return ``VARCHAR(length)``."""
        return _sized("VARCHAR", length, nullable)

    @staticmethod
    def BOOLEAN(nullable: bool = True) -> DataType:
        """Return ``BOOLEAN``."""
        return _type("BOOLEAN", nullable)

    @staticmethod
    def BYTES(nullable: bool = True) -> DataType:
        """Return ``BYTES``."""
        return _type("BYTES", nullable)

    @staticmethod
    def BINARY(length: int, nullable: bool = True) -> DataType:
        """Return ``BINARY(length)``."""
        return _sized("BINARY", length, nullable)

    @staticmethod
    def VARBINARY(length: int, nullable: bool = True) -> DataType:
        """Return ``VARBINARY(length)``."""
        return _sized("VARBINARY", length, nullable)

    @staticmethod
    def DECIMAL(precision: int, scale: int, nullable: bool = True) -> DataType:
        """Return ``DECIMAL(precision, scale)``."""
        return _type(f"DECIMAL({precision}, {scale})", nullable)

    @staticmethod
    def TINYINT(nullable: bool = True) -> DataType:
        """Return ``TINYINT``."""
        return _type("TINYINT", nullable)

    @staticmethod
    def SMALLINT(nullable: bool = True) -> DataType:
        """Return ``SMALLINT``."""
        return _type("SMALLINT", nullable)

    @staticmethod
    def INT(nullable: bool = True) -> DataType:
        """Return ``INT``."""
        return _type("INT", nullable)

    @staticmethod
    def BIGINT(nullable: bool = True) -> DataType:
        """Return ``BIGINT``."""
        return _type("BIGINT", nullable)

    @staticmethod
    def FLOAT(nullable: bool = True) -> DataType:
        """Return ``FLOAT``."""
        return _type("FLOAT", nullable)

    @staticmethod
    def DOUBLE(nullable: bool = True) -> DataType:
        """Return ``DOUBLE``."""
        return _type("DOUBLE", nullable)

    @staticmethod
    def DATE(nullable: bool = True) -> DataType:
        """Return ``DATE``."""
        return _type("DATE", nullable)

    @staticmethod
    def TIME(precision: int = 0, nullable: bool = True) -> DataType:
        """Return ``TIME(precision)``."""
        return _sized("TIME", precision, nullable)

    @staticmethod
    def TIMESTAMP(precision: int = 6, nullable: bool = True) -> DataType:
        """Return ``TIMESTAMP(precision)``."""
        return _sized("TIMESTAMP", precision, nullable)

    @staticmethod
    def TIMESTAMP_LTZ(precision: int = 6, nullable: bool = True) -> DataType:
        """Return ``TIMESTAMP_LTZ(precision)``."""
        return _sized("TIMESTAMP_LTZ", precision, nullable)

    TIMESTAMP_WITH_LOCAL_TIME_ZONE = TIMESTAMP_LTZ

    @staticmethod
    def ARRAY(element_type: Any, nullable: bool = True) -> DataType:
        """Return ``ARRAY<element>``."""
        return _type(f"ARRAY<{_text_of(element_type)}>", nullable)

    @staticmethod
    def MULTISET(element_type: Any, nullable: bool = True) -> DataType:
        """Return ``MULTISET<element>``."""
        return _type(f"MULTISET<{_text_of(element_type)}>", nullable)

    @staticmethod
    def MAP(key_type: Any, value_type: Any, nullable: bool = True) -> DataType:
        """Return ``MAP<key, value>``."""
        return _type(f"MAP<{_text_of(key_type)}, {_text_of(value_type)}>", nullable)

    @staticmethod
    def ROW(row_fields: Sequence[tuple[str, Any]] = (), nullable: bool = True) -> DataType:
        """Return a ROW of fields, each made by `FIELD`."""
        fields = ", ".join(f"{quoted(name)} {_text_of(kind)}" for name, kind in row_fields)
        return _type(f"ROW<{fields}>", nullable)

    @staticmethod
    def FIELD(name: str, data_type: Any) -> tuple[str, Any]:
        """Return a field of a ROW."""
        return name, data_type


def _text_of(kind: Any) -> str:
    """A type as a text of SQL, checked."""
    text = sql_name(kind) if isinstance(kind, pa.DataType) else str(kind)
    parse_type(text.removesuffix(_NOT_NULL))
    return text


def _expression_text(given: str | Expression) -> str:
    return given.without_name(Rendering()) if isinstance(given, Expression) else given


def literal(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Schema:
    """Columns of a table, its watermark and its primary key; made by `new_builder`.

    Attributes:
        columns: As CREATE TABLE has them, with the watermark and the key behind them.
    """

    columns: tuple[str, ...] = ()

    @staticmethod
    def new_builder() -> SchemaBuilder:
        """Return what makes one, column by column."""
        return SchemaBuilder()


class SchemaBuilder:
    """Makes a `Schema`."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def column(self, column_name: str, data_type: Any) -> SchemaBuilder:
        """Add a column that is in the data."""
        return self._with(f"{quoted(column_name)} {_text_of(data_type)}")

    def column_by_expression(self, column_name: str, expr: str | Expression) -> SchemaBuilder:
        """Add a column that is computed of others."""
        return self._with(f"{quoted(column_name)} AS {_expression_text(expr)}")

    def column_by_metadata(
        self, column_name: str, data_type: Any, metadata_key: str | None = None, is_virtual: bool = False
    ) -> SchemaBuilder:
        """Add a column that the connector tells of a record; virtual ones are not written."""
        source = "" if metadata_key is None else f" FROM {literal(metadata_key)}"
        end = " VIRTUAL" if is_virtual else ""
        return self._with(f"{quoted(column_name)} {_text_of(data_type)} METADATA{source}{end}")

    def watermark(self, column_name: str, watermark_expr: str | Expression) -> SchemaBuilder:
        """Say which column is event time, and how far behind it the watermark is."""
        return self._with(f"WATERMARK FOR {quoted(column_name)} AS {_expression_text(watermark_expr)}")

    def primary_key(self, *column_names: str) -> SchemaBuilder:
        """Say which columns are the primary key; it is not enforced."""
        return self._with(f"PRIMARY KEY ({', '.join(map(quoted, column_names))}) NOT ENFORCED")

    def from_fields(self, field_names: Sequence[str], field_data_types: Sequence[Any]) -> SchemaBuilder:
        """Add several columns that are in the data."""
        for name, kind in zip(field_names, field_data_types, strict=True):
            self.column(name, kind)
        return self

    def from_schema(self, schema: Schema) -> SchemaBuilder:
        """Add all that another schema has."""
        self._columns += schema.columns
        return self

    def build(self) -> Schema:
        """Return the schema."""
        return Schema(tuple(self._columns))

    def _with(self, column: str) -> SchemaBuilder:
        self._columns.append(column)
        return self


@dataclass(frozen=True)
class FormatDescriptor:
    """A format with its options; made by `for_format`.

    Attributes:
        format: Its name.
        options: Its options, without the name in front.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def for_format(format: str) -> FormatDescriptor:  # noqa: A002 - PyFlink's name
        """Begin a format."""
        return FormatDescriptor(format)

    def option(self, key: str, value: Any) -> FormatDescriptor:
        """Return it with an option."""
        return replace(self, options={**self.options, key: _option(value)})

    def build(self) -> FormatDescriptor:
        """Return the format."""
        return self


@dataclass(frozen=True)
class TableDescriptor:
    """A table that CREATE TABLE would make; made by `for_connector`. Each method returns another descriptor.

    Attributes:
        options: Those of WITH.
        columns: Those of its schema.
        partition_keys: Columns of PARTITIONED BY.
        told: Its comment.
    """

    options: Mapping[str, str]
    columns: tuple[str, ...] = ()
    partition_keys: tuple[str, ...] = ()
    told: str | None = None

    @staticmethod
    def for_connector(connector: str) -> TableDescriptor:
        """Begin a table with a connector."""
        return TableDescriptor({"connector": connector})

    def schema(self, schema: Schema) -> TableDescriptor:
        """Return it with those columns."""
        return replace(self, columns=schema.columns)

    def option(self, key: str, value: Any) -> TableDescriptor:
        """Return it with an option."""
        return replace(self, options={**self.options, key: _option(value)})

    def format(self, format: str | FormatDescriptor, format_option: str = "format") -> TableDescriptor:  # noqa: A002
        """Return it with a format, and its options."""
        given = FormatDescriptor(format) if isinstance(format, str) else format
        prefix = format_option.removesuffix("format") + given.format
        own = {f"{prefix}.{key}": value for key, value in given.options.items()}
        return replace(self, options={**self.options, format_option: given.format, **own})

    def partitioned_by(self, *partition_keys: str) -> TableDescriptor:
        """Return it with columns that PARTITIONED BY names."""
        return replace(self, partition_keys=partition_keys)

    def comment(self, comment: str) -> TableDescriptor:
        """Return it with a comment."""
        return replace(self, told=comment)

    def build(self) -> TableDescriptor:
        """Return the descriptor."""
        return self

    def statement(self, name: str, words: str = "") -> str:
        """Return the statement that creates the table.

        Args:
            name: The table's, as SQL writes it.
            words: Between CREATE and TABLE, or behind it: ``TEMPORARY``, ``IF NOT EXISTS``.

        Raises:
            ProgramError: If it has no columns.
        """
        if not self.columns:
            message = f"table {name} has no columns"
            raise ProgramError(message, hint="TableDescriptor.for_connector(...).schema(Schema.new_builder()...)")
        begin = "TEMPORARY TABLE" if words == "TEMPORARY" else f"TABLE {words}".strip()
        comment = "" if self.told is None else f" COMMENT {literal(self.told)}"
        keys = f" PARTITIONED BY ({_names(self.partition_keys)})" if self.partition_keys else ""
        options = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in self.options.items())
        return f"CREATE {begin} {name} ({', '.join(self.columns)}){comment}{keys} WITH ({options})"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
