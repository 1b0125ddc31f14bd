"""Functions of maps. Of several entries with one key the last counts.

Source: Flink's documentation ("Collection Functions").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.kernels import Value

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .arrays import distinct_key, is_array
from .coercion import cast_to, common_type, is_text, list_like, together
from .contract import Function, KernelCall, Typed, made, require, row_by_row

__all__ = ["FUNCTIONS", "map_of", "value_of"]

_TEXTS = pa.map_(pa.string(), pa.string())
_NO_NULL_KEY = "a NULL key is an error"


def _map(value: Typed) -> Typed:
    if not pa.types.is_map(value.kind):
        message = f"expected a map; got {sql_name(value.kind)}"
        raise SqlError(message)
    return value


def _rows(name: str, function: Any, kind: pa.DataType, *operands: Typed, sees_nulls: bool = False) -> Typed:
    kernel = row_by_row(function, kind, sees_nulls=sees_nulls)
    return Typed(KernelCall(name, kernel, tuple(one.expression for one in operands), kind), kind)


def _entries(keys: Sequence[Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    found: dict[Any, tuple[Any, Any]] = {}
    for key, value in zip(keys, values, strict=True):
        if key is None:
            message = "the key of a map cannot be NULL"
            raise ValueError(message)
        found[distinct_key(key)] = (key, value)
    return list(found.values())


def map_of(values: Sequence[Typed]) -> Typed:
    """MAP[key, value, ...]: keys and values in their common types.

    Raises:
        SqlError: If a value is missing, or types do not fit.
    """
    if not values or len(values) % 2:
        message = "a map has a value for each key"
        raise SqlError(message, hint="write MAP['a', 1, 'b', 2]")
    keys, items = together(values[::2]), together(values[1::2])
    kind = pa.map_(keys[0].kind, items[0].kind)
    return _rows("MAP", _of_entries, kind, *keys, *items, sees_nulls=True)


def _of_entries(*given: Any) -> list[tuple[Any, Any]]:
    half = len(given) // 2
    return _entries(given[:half], given[half:])


def value_of(value: Typed, key: Typed) -> Typed:
    """``map[key]``: null where there is no such key."""
    found = _map(value)
    wanted = cast_to(key, common_type([found.kind.key_type, key.kind]))
    return _rows("VALUE_OF", _looked_up, found.kind.item_type, found, wanted)


def _looked_up(entries: list[tuple[Any, Any]], key: Any) -> Any:
    wanted = distinct_key(key)
    return next((value for one, value in entries if distinct_key(one) == wanted), None)


def _keys(value: Value) -> pa.Array:
    return list_like(value, value.keys)


def _values(value: Value) -> pa.Array:
    return list_like(value, value.items)


def _pairs(value: Value) -> pa.Array:
    return list_like(value, pa.StructArray.from_arrays([value.keys, value.items], names=["key", "value"]))


def _part(name: str, kernel: Any, meaning: str) -> Function:
    def bind(value: Typed) -> Typed:
        kind = _map(value).kind
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        made_of = {"MAP_KEYS": kind.key_type, "MAP_VALUES": kind.item_type, "MAP_ENTRIES": pair}[name]
        return Typed(KernelCall(name, kernel, (value.expression,), pa.list_(made_of)), pa.list_(made_of))

    return Function(name, f"{name}(map)", bind, 1, 1, meaning)


def _from_arrays(keys: Typed, values: Typed) -> Typed:
    for one in (keys, values):
        require(one, is_array, "an array")
    kind = pa.map_(keys.kind.value_type, values.kind.value_type)
    return _rows("MAP_FROM_ARRAYS", _of_two, kind, keys, values)


def _of_two(keys: list[Any], values: list[Any]) -> list[tuple[Any, Any]]:
    if len(keys) != len(values):
        message = f"there are {len(keys)} keys and {len(values)} values"
        raise ValueError(message)
    return _entries(keys, values)


def _union(*maps: Typed) -> Typed:
    kinds = [_map(one).kind for one in maps]
    kind = pa.map_(common_type([one.key_type for one in kinds]), common_type([one.item_type for one in kinds]))
    return _rows("MAP_UNION", _merged, kind, *(cast_to(one, kind) for one in maps))


def _merged(*maps: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    pairs = [pair for entries in maps for pair in entries]
    return _entries([key for key, _ in pairs], [value for _, value in pairs])


def _str_to_map(value: Typed, *delimiters: Typed) -> Typed:
    named = dict(zip(("between", "within"), delimiters, strict=False))
    text = cast_to(require(value, is_text, "a text"), pa.string())
    return made("STR_TO_MAP", row_by_row(_parsed, _TEXTS), _TEXTS, text, **named)


def _parsed(text: str, between: str = ",", within: str = "=") -> list[tuple[str, str | None]]:
    pairs = [re.split(within, part, maxsplit=1) for part in re.split(between, text)] if text else []
    return _entries([pair[0] for pair in pairs], [pair[1] if len(pair) > 1 else None for pair in pairs])


FUNCTIONS = (
    _part("MAP_KEYS", _keys, "The keys as an array."),
    _part("MAP_VALUES", _values, "The values as an array, in the order of the keys."),
    _part("MAP_ENTRIES", _pairs, "The entries as an array of rows of key and value."),
    Function("MAP_FROM_ARRAYS", "MAP_FROM_ARRAYS(keys, values)", _from_arrays, 2, 2,
             "A map of keys and values, of which there are as many.", _NO_NULL_KEY),
    Function("MAP_UNION", "MAP_UNION(map, ...)", _union, 1, None,
             "The entries of all; the last map that has a key gives its value."),
    Function("STR_TO_MAP", "STR_TO_MAP(text[, between[, within]])", _str_to_map, 1, 3,
             "A map out of a text such as 'a=1,b=2'; both delimiters are regular expressions."),
)  # fmt: skip
