"""Windows in SQL: functions of a table that put rows into windows, and group windows as they were written once.

Source: Flink's documentation ("Windowing table-valued functions", "Group Window Aggregation").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.plan.table_nodes import WindowKind, WindowSpec

from .expressions import interval_ms
from .parsing.errors import SqlError, SqlText
from .parsing.sql_types import sql_name
from .relations import Builder, Relation
from .scope import Scope, ScopeColumn

__all__ = ["is_window_function", "legacy_window", "require_time", "window_arguments", "window_of", "windowed"]

_NAMES = {
    WindowKind.TUMBLE: ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    WindowKind.HOP: ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    WindowKind.CUMULATE: ("DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"),
    WindowKind.SESSION: ("DATA", "TIMECOL", "GAP"),
}


def is_window_function(tree: Any) -> bool:
    """Return whether it is TUMBLE(TABLE t, ...) or its like."""
    return isinstance(tree, exp.Anonymous) and str(tree.name).upper() in WindowKind.__members__


def window_arguments(tree: exp.Anonymous) -> tuple[WindowKind, dict[str, Any]]:
    """Return the kind of windows and the arguments by their names.

    Raises:
        SqlError: If one is missing, or there are too many.
    """
    kind = WindowKind[str(tree.name).upper()]
    names = _NAMES[kind]
    given: dict[str, Any] = {}
    for i, argument in enumerate(tree.expressions):
        if isinstance(argument, exp.Kwarg):
            name, value = argument.this.name, argument.expression
        elif i < len(names):
            name, value = names[i], argument
        else:
            message = f"{kind.value} has {len(names)} arguments"
            raise SqlError(message, hint=f"they are {', '.join(names)}")
        if name not in names or name in given:
            message = f"{kind.value} has no argument {name}" if name not in names else f"{name} is given twice"
            raise SqlError(message, hint=f"its arguments are {', '.join(names)}")
        given[name] = value
    missing = [name for name in names if name not in given and name != "OFFSET"]
    if missing:
        message = f"{kind.value} needs {', '.join(missing)}"
        raise SqlError(message, hint=f"its arguments are {', '.join(names)}")
    return kind, given


def window_of(kind: WindowKind, given: dict[str, Any], scope: Scope, text: SqlText) -> WindowSpec:
    """Return the windows that a function's arguments say."""
    column = _descriptor(given["TIMECOL"], scope, text)
    with text.at(given["TIMECOL"]):
        require_time(column)
    partition = given["DATA"].args.get("partition") if isinstance(given["DATA"], exp.Table) else None
    keys = () if partition is None else tuple(scope.find([one.name])[0].column for one in partition.expressions)
    lengths: dict[str, int] = {}
    for name in ("SIZE", "SLIDE", "STEP", "GAP", "OFFSET"):
        if name in given:
            with text.at(given[name]):
                lengths[name] = interval_ms(given[name])
    return _checked(kind, column.column, lengths, keys, text, given)


def _descriptor(tree: Any, scope: Scope, text: SqlText) -> ScopeColumn:
    if not isinstance(tree, exp.Anonymous) or str(tree.name) != "DESCRIPTOR" or len(tree.expressions) != 1:
        message = "the time column is named by DESCRIPTOR(column)"
        raise text.error(message, tree)
    with text.at(tree):
        return scope.find([tree.expressions[0].name])[0]


def require_time(column: ScopeColumn) -> None:
    """See that windows can go by a column.

    Raises:
        SqlError: If it is neither the event time of its rows nor their processing time.
    """
    if not pa.types.is_timestamp(column.kind):
        message = f"windows need a time; {column.name!r} is {sql_name(column.kind)}"
        raise SqlError(message)
    if not column.is_event_time and not column.is_processing_time:
        message = f"{column.name!r} is not the event time of its rows"
        raise SqlError(message, hint=f"declare it in CREATE TABLE: WATERMARK FOR {column.name} AS {column.name} - "
                       "INTERVAL '5' SECOND; expressions over it are no event time")  # fmt: skip


def windowed(builder: Builder, relation: Relation, window: WindowSpec) -> Relation:
    """Return rows with the windows that they fall in, by event time or by the clock."""
    time = next(one for one in relation.scope.columns if one.column == window.time_column)
    if not time.is_processing_time:
        return builder.windowed_relation(relation, window)
    relation, clock = builder.stamped(relation, sets_time=True)
    # A row shows the time that has put it into its window.
    columns = [
        replace(one, column=clock.column) if one.column == time.column else one for one in relation.scope.columns
    ]
    return builder.windowed_relation(Relation(relation.node, Scope(columns)), replace(window, time_column=clock.column))


def _checked(
    kind: WindowKind, column: str, lengths: dict[str, int], keys: tuple[str, ...], text: SqlText, given: dict[str, Any]
) -> WindowSpec:
    for name, length in lengths.items():
        if length <= 0 and name != "OFFSET":
            message = f"{name} must be longer than nothing; got {length} ms"
            raise text.error(message, given.get(name))
    size = lengths.get("SIZE", lengths.get("GAP", 0))
    step = lengths.get("SLIDE", lengths.get("STEP", size))
    if kind is WindowKind.CUMULATE and size % step:
        message = f"the size of CUMULATE windows is a multiple of their step; got {size} ms and {step} ms"
        raise text.error(message, given.get("SIZE"))
    return WindowSpec(kind, column, size, step, lengths.get("OFFSET", 0) % step, keys)


def legacy_window(tree: exp.Anonymous, column: ScopeColumn, text: SqlText, keys: tuple[str, ...]) -> WindowSpec:
    """Return the windows of ``TUMBLE(t, INTERVAL ...)``, ``HOP(t, slide, size)``, ``SESSION(t, gap)`` in GROUP BY.

    Args:
        tree: The call.
        column: What its first argument names.
        text: Of the statement.
        keys: The other columns of GROUP BY, which sessions are apart by.
    """
    kind = WindowKind[str(tree.name).upper()]
    names = {WindowKind.TUMBLE: ("SIZE",), WindowKind.HOP: ("SLIDE", "SIZE"), WindowKind.SESSION: ("GAP",)}[kind]
    given = dict(zip(names, tree.expressions[1:], strict=False))
    if len(tree.expressions) != 1 + len(names):
        message = f"{kind.value} in GROUP BY takes a time and {' and '.join(names).lower()}"
        raise text.error(message, tree)
    with text.at(tree.expressions[0]):
        require_time(column)
    lengths = {}
    for name, argument in given.items():
        with text.at(argument):
            lengths[name] = interval_ms(argument)
    return _checked(kind, column.column, lengths, keys if kind is WindowKind.SESSION else (), text, given)
