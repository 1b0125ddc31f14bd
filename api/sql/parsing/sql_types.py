"""SQL's types and Arrow's: what a column declared as ``BIGINT`` is made of, and what a column is called to people.

Source: Flink's documentation ("Data Types"); precision and scale as there.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import ParseError

from .errors import SqlError

__all__ = ["arrow_type", "parse_type", "sql_name", "text_length"]

_PLAIN: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "NULL": pa.null(),
}

_TIMESTAMPS = {
    "TIMESTAMP": None,
    "TIMESTAMPNTZ": None,
    "TIMESTAMPLTZ": "UTC",
}

_DEFAULT_DECIMAL = (10, 0)
_DEFAULT_FRACTION = 6


def arrow_type(declared: exp.DataType) -> pa.DataType:
    """Return the Arrow type of a declared one.

    Raises:
        SqlError: If there is no such type, or its precision is out of range.
    """
    name = declared.this.value if hasattr(declared.this, "value") else str(declared.this)
    parameters = [int(one.this.this) for one in declared.expressions if isinstance(one, exp.DataTypeParam)]
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "DECIMAL":
        precision, scale = ([*parameters, 0])[:2] if parameters else _DEFAULT_DECIMAL
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            message = f"DECIMAL has 1 to 38 digits, and no more behind the point; got ({precision}, {scale})"
            raise SqlError(message)
        return pa.decimal128(precision, scale)
    if name in _TIMESTAMPS:
        return pa.timestamp(_unit(parameters), _TIMESTAMPS[name])
    if name == "TIME":
        return pa.time32("ms")
    if name == "ARRAY":
        return pa.list_(_inner(declared, 0))
    if name == "MAP":
        return pa.map_(_inner(declared, 0), _inner(declared, 1))
    if name == "STRUCT":
        return pa.struct([pa.field(*_row_field(one)) for one in declared.expressions])
    message = f"type {declared.sql()} is not supported"
    raise SqlError(message, hint="BOOLEAN, TINYINT to BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BYTES, DATE, TIME, "
                   "TIMESTAMP, TIMESTAMP_LTZ, ARRAY, MAP and ROW are")  # fmt: skip


def text_length(declared: exp.DataType) -> int | None:
    """Return how many characters a declared CHAR or VARCHAR has; None for other types, and where it is not said."""
    name = declared.this.value if hasattr(declared.this, "value") else str(declared.this)
    given = [int(one.this.this) for one in declared.expressions if isinstance(one, exp.DataTypeParam)]
    return given[0] if given and name in ("CHAR", "VARCHAR") else None


def parse_type(given: Any) -> pa.DataType:
    """Return the type that a text of SQL names; an Arrow type itself.

    Raises:
        SqlError: If there is no such type.
    """
    if isinstance(given, pa.DataType):
        return given
    from .dialect import Flink

    try:
        declared = exp.DataType.build(given, dialect=Flink)
    except (ParseError, ValueError, AttributeError):
        declared = None
    if declared is None or declared.this == exp.DataType.Type.USERDEFINED:
        message = f"there is no type {given!r}"
        raise SqlError(message, hint="name one as in SQL, such as 'BIGINT' or 'ARRAY<STRING>', or give an Arrow type")
    return arrow_type(declared)


def _unit(parameters: list[int]) -> str:
    digits = parameters[0] if parameters else _DEFAULT_FRACTION
    if not 0 <= digits <= 9:
        message = f"a time has 0 to 9 digits of a second; got {digits}"
        raise SqlError(message)
    return ("s", "ms", "us", "ns")[(digits + 2) // 3]


def _inner(declared: exp.DataType, index: int) -> pa.DataType:
    kinds = [one for one in declared.expressions if isinstance(one, exp.DataType)]
    if index >= len(kinds):
        message = f"{declared.sql()} does not say what it is made of"
        raise SqlError(message, hint="write ARRAY<INT>, MAP<STRING, INT>")
    return arrow_type(kinds[index])


def _row_field(field: Any) -> tuple[str, pa.DataType]:
    if not isinstance(field, exp.ColumnDef) or field.kind is None:
        message = f"a field of a ROW has a name and a type; got {field.sql()}"
        raise SqlError(message, hint="write ROW<id BIGINT, name STRING>")
    return field.name, arrow_type(field.kind)


_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
    pa.null(): "NULL",
}


def sql_name(kind: pa.DataType) -> str:
    """Return what a type is called in SQL; Arrow's own name where SQL has none."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        return f"TIMESTAMP{'' if kind.tz is None else '_LTZ'}({digits})"
    if pa.types.is_time(kind):
        return "TIME(3)"
    if pa.types.is_map(kind):
        return f"MAP<{sql_name(kind.key_type)}, {sql_name(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{sql_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"ROW<{', '.join(f'`{field.name}` {sql_name(field.type)}' for field in kind)}>"
    return str(kind)
