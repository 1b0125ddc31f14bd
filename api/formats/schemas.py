"""The types of columns as a program writes them down for a format."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.state.values.type_sources import type_of_hint

__all__ = ["schema_of"]

DECIMAL = pa.decimal128(38, 18)
"""What ``Decimal`` means for the text of a file, where every value has its own scale."""


def schema_of(types: pa.Schema | Mapping[str, Any] | None) -> pa.Schema | None:
    """Turn what people write for column types into a schema.

    Args:
        types: A schema, or a mapping from column to an Arrow type, its name (``"int64"``) or a Python type; None stays
            None.

    Raises:
        ConfigurationError: If a type is none of these.
    """
    if types is None or isinstance(types, pa.Schema):
        return types
    return pa.schema([pa.field(name, _arrow_type(name, kind)) for name, kind in types.items()])


def _arrow_type(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if kind is Decimal:
        return DECIMAL
    try:
        if isinstance(kind, str):
            return pa.type_for_alias(kind)
        found = type_of_hint(kind)
        if found.is_certain and found.arrow_type is not None:
            return found.arrow_type
    except (ValueError, TypeError) as error:
        raise ConfigurationError(_message(name, kind)) from error
    raise ConfigurationError(_message(name, kind))


def _message(name: str, kind: Any) -> str:
    return f"the type of column {name!r} must be an arrow type, its name or a python type; got {kind!r}"
