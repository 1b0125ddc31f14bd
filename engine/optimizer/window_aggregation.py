"""Aggregation in windows on streams: groups by the borders of windows end with each window.

Conditions over rows go below their windows first, so that what is above windows is their aggregation.

Source: Flink's ``PullUpWindowTableFunctionIntoWindowAggregateRule``.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..columns.expressions import Expression, col
from ..errors import ProgramError
from ..functions.keys import KeySelector
from ..plan.plan import Aggregation, FilterColumns, GroupKey, Node, Select
from ..plan.table_nodes import Expand, WindowAggregation, WindowKind, WindowRows, WindowSpec
from .optimizer import Roots
from .rewriting import name_above, nodes_below, noted, readers_of, rewritten

__all__ = ["filters_below_windows", "find_window_aggregation"]


def filters_below_windows(roots: Roots, _parallelism: int | None) -> Roots:
    """Move conditions over the rows themselves below the windows that the rows are put into.

    What is above windows then is their aggregation again, as in Flink. On a stream all rows have a time, so a condition
    meets no more of them. Sessions are made of rows: only the columns that keep them apart can be asked before.
    """
    while True:
        readers = readers_of(roots)
        passed: set[int] = set()  # as in `push_filters`: who reads them is known again in the next pass

        def visit(node: Node, readers: dict[int, list[Node]] = readers, passed: set[int] = passed) -> Node:
            windows = node.inputs[0] if isinstance(node, FilterColumns) else None
            if not isinstance(node, FilterColumns) or not isinstance(windows, WindowRows):
                return node
            if windows.id in passed or len(readers[windows.id]) > 1 or not _is_of_rows(node.condition, windows):
                return node
            passed.add(windows.id)
            source = windows.inputs[0]
            under = replace(node, inputs=(source,), schema=source.schema)
            return noted(windows.with_parents((under,)), f"behind filter {node.condition!r}")

        roots = rewritten(roots, visit)
        if not passed:
            return roots


def _is_of_rows(condition: Expression, rows: WindowRows) -> bool:
    window, used = rows.window, condition.columns_used()
    if window.kind is WindowKind.SESSION:
        return used <= set(window.partition)
    # Between windows that do not touch there are rows in none.
    return not used & set(rows.names) and (window.kind is not WindowKind.HOP or window.step_ms <= window.size_ms)


def find_window_aggregation(roots: Roots, _parallelism: int | None) -> Roots:
    """Make an aggregation in windows of groups by the borders of windows."""
    return rewritten(roots, lambda node: _window_aggregation(node) if isinstance(node, Aggregation) else node)


def _window_aggregation(node: Aggregation) -> Node:
    rows, path = nodes_below(node.inputs[0], (Select, Expand))
    if not isinstance(rows, WindowRows) or node.key is None or node.key.names is None:
        return node
    names = [name_above(name, path) for name in rows.names]
    start, end, time = (name if name in node.key.names else None for name in names)
    if start is None or end is None:
        return node
    keys = tuple(name for name in node.key.names if name not in (start, end, time))
    borders = set(rows.names)
    for one in reversed(path):
        borders = _passed_on(one, borders) if isinstance(one, Select) else borders
    # A border under a second name is no column of the rows below the windows.
    if borders & set(keys) or _computes(path, set(rows.names)):
        return node
    arguments = [one.argument.columns_used() for one in node.aggregates.values() if one.argument is not None]
    if any(used & {start, end, time} for used in arguments) or not _same_partition(rows.window, keys, path):
        return node
    source, below = _without_windows(rows, path)
    key = None if not keys else GroupKey(KeySelector.of_field(*keys), keys, keys)
    window = replace(rows.window, partition=())
    return WindowAggregation(
        id=node.id, name=f"{rows.name}: {node.name}", inputs=(source,), schema=node.schema, ships=node.ships,
        key=key, window=window, aggregates=node.aggregates, names=(start, end, time), notes=below,
    )  # fmt: skip


def _computes(path: list[Node], names: set[str]) -> bool:
    """Whether a projection computes with the columns of windows, under whatever names they have there."""
    for node in reversed(path):
        if isinstance(node, Expand):
            if any(value.columns_used() & names for value in node.expansion.arguments):
                return True
            continue
        assert isinstance(node, Select)
        if any(value.structure[0] != "col" and value.columns_used() & names for value in node.columns.values()):
            return True
        names = _passed_on(node, names)
    return False


def _passed_on(node: Select, names: set[str]) -> set[str]:
    """What columns are called above a projection."""
    new = {name for name, value in node.columns.items() if value.structure[0] == "col" and value.structure[1] in names}
    return new | (names - set(node.columns)) if node.keep else new


def _same_partition(window: WindowSpec, keys: tuple[str, ...], path: list[Node]) -> bool:
    """Whether sessions are apart by the keys of the groups; other windows are the same for all."""
    if window.kind is not WindowKind.SESSION:
        return True
    return {name_above(name, path) for name in window.partition} == set(keys)


def _without_windows(rows: WindowRows, path: list[Node]) -> tuple[Node, tuple[str, ...]]:
    """The rows below the windows with the projections above, but for the columns of windows; the time stays."""
    node = rows.inputs[0]
    time = rows.window.time_column
    names = set(rows.names)
    for one in reversed(path):
        if isinstance(one, Expand):
            assert node.schema is not None
            node = replace(one, inputs=(node,), schema=pa.schema([*node.schema, *one.expansion.fields]))
            continue
        assert isinstance(one, Select)
        columns = {name: value for name, value in one.columns.items() if not value.columns_used() & names}
        names = _passed_on(one, names)
        if not one.keep and columns.get(time, col(time)).structure != ("col", time):
            message = f"the event time {time!r} is computed anew below a window"
            raise ProgramError(message, hint="give the computed column another name")
        if not one.keep:
            columns = {time: col(time), **columns}
        if not columns:
            continue
        assert node.schema is not None
        assert one.schema is not None
        fields = [pa.field(name, value.output_type(node.schema)) for name, value in columns.items()]
        kept = [field for field in node.schema if one.keep and field.name not in columns]
        node = replace(one, inputs=(node,), columns=columns, schema=pa.schema([*kept, *fields]))
    return node, ()
