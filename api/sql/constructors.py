"""What SQL writes with brackets and words of its own: arrays, maps, rows, JSON, OVERLAPS.

Source: Flink's documentation ("Value Construction Functions", "JSON Functions", "Temporal Functions").
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from .functions import json_functions as json
from .functions import operators as sql
from .functions.aggregates import AggregateFunction
from .functions.arrays import array_of, element_at
from .functions.contract import Typed, constant
from .functions.maps import map_of, value_of
from .functions.rows import as_row
from .parsing.errors import SqlError
from .parsing.sql_types import arrow_type

__all__ = [
    "CONSTRUCTORS",
    "JSON_AGGREGATES",
    "array",
    "between",
    "bracket",
    "is_json",
    "json_aggregate",
    "overlaps",
    "row",
]

Bind = Callable[[Any], Typed]
"""Makes the expression of a tree."""


def array(bind: Bind, tree: exp.Array) -> Typed:
    """ARRAY[x, ...]."""
    return array_of([bind(one) for one in tree.expressions])


def bracket(bind: Bind, tree: exp.Bracket) -> Typed:
    """MAP[key, value, ...], array[place], map[key]."""
    inner = tree.this
    if isinstance(inner, exp.Column) and inner.name.upper() == "MAP" and not inner.table and not inner.this.quoted:
        return map_of([bind(one) for one in tree.expressions])
    value, place = bind(inner), bind(tree.expressions[0])
    return value_of(value, place) if pa.types.is_map(value.kind) else element_at(value, place)


def row(bind: Bind, tree: Any) -> Typed:
    """ROW(x, ...) and (x, y, ...)."""
    return as_row(*(bind(one) for one in tree.expressions))


def between(bind: Bind, tree: exp.Between) -> Typed:
    """BETWEEN; SYMMETRIC takes its bounds in either order."""
    value, low, high = bind(tree.this), bind(tree.args["low"]), bind(tree.args["high"])
    found = _within(value, low, high)
    return sql.either(found, _within(value, high, low)) if tree.args.get("symmetric") else found


def _within(value: Typed, low: Typed, high: Typed) -> Typed:
    return sql.both(sql.compare("greater_equal", value, low), sql.compare("less_equal", value, high))


def overlaps(bind: Bind, tree: exp.Overlaps) -> Typed:
    """(time, time or interval) OVERLAPS (time, time or interval)."""
    (one, end), (other, other_end) = (_period(bind, side) for side in (tree.this, tree.expression))
    least = _extreme("less_equal", one, end), _extreme("less_equal", other, other_end)
    most = _extreme("greater_equal", one, end), _extreme("greater_equal", other, other_end)
    return sql.both(sql.compare("greater_equal", most[0], least[1]), sql.compare("greater_equal", most[1], least[0]))


def _period(bind: Bind, tree: Any) -> tuple[Typed, Typed]:
    if not isinstance(tree, exp.Tuple) or len(tree.expressions) != 2:
        message = "OVERLAPS compares two pairs of a time and another one, or an interval"
        raise SqlError(message, hint="write (t1, t2) OVERLAPS (t3, INTERVAL '1' HOUR)")
    start, end = (bind(one) for one in tree.expressions)
    return start, sql.add(start, end) if pa.types.is_duration(end.kind) else end


def _extreme(function: str, one: Typed, other: Typed) -> Typed:
    return sql.case([sql.compare(function, one, other)], [one, other])


# -- JSON --------------------------------------------------------------------------------------------------------------


def is_json(bind: Bind, tree: exp.Is) -> Typed:
    """IS JSON [VALUE | SCALAR | ARRAY | OBJECT]."""
    return json.is_json(bind(tree.this), str(tree.expression.this or "VALUE").upper())


def _split(tree: exp.Anonymous) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, and its clauses by their words."""
    clauses = {one.this.name: one.expression for one in tree.expressions if isinstance(one, exp.Kwarg)}
    entries = clauses.pop("ENTRY", None) is not None
    arguments = [
        one.expression if isinstance(one, exp.Kwarg) else one
        for one in tree.expressions
        if not isinstance(one, exp.Kwarg) or (entries and one.this.name == "ENTRY")
    ]
    return arguments, clauses


def _allowed(name: str, clauses: dict[str, Any], *words: str) -> None:
    for word in clauses:
        if word not in words:
            message = f"{name} takes no {word}"
            raise SqlError(message)


def _two(name: str, arguments: list[Any], bind: Bind) -> list[Typed]:
    if len(arguments) != 2 or any(isinstance(one, exp.Tuple) for one in arguments):
        message = f"{name} takes a text and a path"
        raise SqlError(message)
    return [bind(one) for one in arguments]


def _json_exists(bind: Bind, tree: exp.Anonymous) -> Typed:
    arguments, clauses = _split(tree)
    _allowed("JSON_EXISTS", clauses, "ON ERROR")
    word = clauses.get("ON ERROR")
    value, path = _two("JSON_EXISTS", arguments, bind)
    return json.json_exists(value, path, "FALSE" if word is None else word.name)


def _json_value(bind: Bind, tree: exp.Anonymous) -> Typed:
    arguments, clauses = _split(tree)
    _allowed("JSON_VALUE", clauses, "RETURNING", "ON EMPTY", "ON ERROR")
    value, path = _two("JSON_VALUE", arguments, bind)
    kind = arrow_type(clauses["RETURNING"]) if "RETURNING" in clauses else pa.string()
    return json.json_value(value, path, kind, *(_otherwise(bind, clauses.get(f"ON {one}")) for one in _WHEN))


_WHEN = ("EMPTY", "ERROR")


def _otherwise(bind: Bind, tree: Any) -> Typed | str:
    return "NULL" if tree is None else tree.name if isinstance(tree, exp.Var) else bind(tree)


def _json_query(bind: Bind, tree: exp.Anonymous) -> Typed:
    arguments, clauses = _split(tree)
    _allowed("JSON_QUERY", clauses, "RETURNING", "WRAPPER", "ON EMPTY", "ON ERROR")
    value, path = _two("JSON_QUERY", arguments, bind)
    kind = arrow_type(clauses["RETURNING"]) if "RETURNING" in clauses else pa.string()
    words = [clauses[one].name if one in clauses else "NULL" for one in ("ON EMPTY", "ON ERROR")]
    return json.json_query(value, path, kind, clauses["WRAPPER"].name if "WRAPPER" in clauses else "WITHOUT", *words)


def _skips_nulls(name: str, clauses: dict[str, Any], default: str) -> bool:
    _allowed(name, clauses, "ON NULL")
    return (clauses["ON NULL"].name if "ON NULL" in clauses else default) == "ABSENT"


def _is_json_call(tree: Any) -> bool:
    return isinstance(tree, exp.Anonymous) and str(tree.name).upper() in ("JSON_OBJECT", "JSON_ARRAY", "JSON")


def _json_object(bind: Bind, tree: exp.Anonymous) -> Typed:
    arguments, clauses = _split(tree)
    skips = _skips_nulls("JSON_OBJECT", clauses, "NULL")
    entries = []
    for one in arguments:
        if not isinstance(one, exp.Tuple):
            message = "JSON_OBJECT takes entries"
            raise SqlError(message, hint="write JSON_OBJECT('name' VALUE x)")
        key, value = one.expressions
        entries.append(
            (str(constant(bind(key), "the name of an entry")), _json_part(bind, value), _is_json_call(value))
        )
    return json.json_object(entries, skips_nulls=skips)


def _json_array(bind: Bind, tree: exp.Anonymous) -> Typed:
    arguments, clauses = _split(tree)
    skips = _skips_nulls("JSON_ARRAY", clauses, "ABSENT")
    values = [(_json_part(bind, one), _is_json_call(one)) for one in arguments]
    return json.json_array(values, skips_nulls=skips)


JSON_AGGREGATES = ("JSON_OBJECTAGG", "JSON_ARRAYAGG")
"""Aggregate functions with words between their arguments."""


def json_aggregate(
    bind: Bind, function: AggregateFunction, tree: exp.Anonymous
) -> tuple[AggregateFunction, list[Typed]]:
    """Return one of `JSON_AGGREGATES` as the words of a call say, and its arguments."""
    arguments, clauses = _split(tree)
    is_object = function.name == "JSON_OBJECTAGG"
    skips = _skips_nulls(function.name, clauses, "NULL" if is_object else "ABSENT")
    if len(arguments) != 1 or isinstance(arguments[0], exp.Tuple) != is_object:
        message = f"{function.name} takes {'a name and a value' if is_object else 'a value'}"
        raise SqlError(message, hint=f"the call is {function.usage}")
    *name, value = arguments[0].expressions if is_object else arguments
    made = functools.partial(function.bind, skips_nulls=skips, is_json=_is_json_call(value))
    return replace(function, bind=made), [*map(bind, name), _json_part(bind, value)]


def _json_part(bind: Bind, tree: Any) -> Typed:
    if isinstance(tree, exp.Anonymous) and str(tree.name).upper() == "JSON":
        return json.json_itself(bind(tree.expressions[0]))
    return bind(tree)


def _json(bind: Bind, tree: exp.Anonymous) -> Typed:
    message = "JSON(text) stands in JSON_OBJECT and JSON_ARRAY"
    raise SqlError(message)


CONSTRUCTORS: dict[str, Callable[[Bind, Any], Typed]] = {
    "JSON": _json,
    "JSON_ARRAY": _json_array,
    "JSON_EXISTS": _json_exists,
    "JSON_OBJECT": _json_object,
    "JSON_QUERY": _json_query,
    "JSON_VALUE": _json_value,
    "ROW": row,
}
"""Calls whose arguments are more than values, by their names."""
