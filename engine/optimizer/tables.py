"""Rules for plans of table programs: for streams, and for bounded data.

What only tables have (`headrace.engine.plan.table_nodes`) is said for bounded data in nodes of data sets, so that every
executor of those runs it: a join with a condition becomes a join and a filter, windows become columns, the first rows
of groups places in them. For streams it is the other way round: what SQL says by places becomes a Top-N, and groups by
the borders of windows become aggregation in windows, which ends with each window.

Source: Flink's ``FlinkLogicalRankRule``, ``PullUpWindowTableFunctionIntoWindowAggregateRule``.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..columns.conditionals import when
from ..columns.expressions import Call, Expression, col, lit
from ..errors import ProgramError
from ..frames.calls import Place, lag, output_type, row_number
from ..functions.aggregates import built_in as aggregates
from ..functions.keys import KeySelector
from ..operators.columnar import SelectColumns
from ..operators.expanding import ExpandBatch
from ..plan.plan import (
    BROADCAST,
    FORWARD,
    GATHER,
    Aggregation,
    ConditionJoin,
    FilterColumns,
    GroupKey,
    Join,
    MapBatches,
    Node,
    Order,
    OverGroups,
    Select,
    SemiJoin,
    Ship,
    ShipKind,
    Sort,
    Union,
    walk,
)
from ..plan.table_nodes import (
    EventTime,
    Expand,
    LookupJoin,
    ProcessingTime,
    Scan,
    TableJoin,
    TemporalJoin,
    TopN,
    WindowAggregation,
    WindowKind,
    WindowRows,
    WindowSpec,
)
from .bounded_joins import find_bounded_joins
from .chains import find_multi_joins, merge_unions
from .common_expressions import compute_once
from .join_filters import conditions_into_joins, conditions_of, filters_below_joins
from .optimizer import Roots, Rule, push_filters
from .rewriting import noted, readers_of, rewritten
from .sharing import share_sub_plans
from .source_times import watermarks_into_sources
from .stream_traits import renamed_below
from .table_columns import fields_before_conditions, prune_table_columns
from .temporal_rows import FOUND, ROW, TIME, VERSION, BesideEachOther, field_of, keys_of
from .window_rows import WindowsOfBatch, as_times, milliseconds_of

__all__ = ["as_data_sets", "as_streams"]


# --------------------------------------------------------------------------------------------------------- for streams


def find_top_n(roots: Roots, _parallelism: int | None) -> Roots:
    """Make a Top-N of a filter on a row's place in its group: ``WHERE row_number <= 10``."""
    return rewritten(roots, lambda node: _top_n(node) if isinstance(node, FilterColumns) else node)


def _top_n(node: FilterColumns) -> Node:
    over, path = _below(node.inputs[0])
    if not isinstance(over, OverGroups) or len(over.columns) != 1 or not over.orders:
        return node
    (number, spec), = over.columns.items()  # fmt: skip
    if not isinstance(spec, Place) or spec.name != row_number().name:
        return node
    name = _name_above(number, path)
    conditions = conditions_of(node.condition)
    limits = [limit for one in conditions if (limit := _limit(one, name)) is not None]
    if name is None or not limits:
        return node
    rest = [one for one in conditions if _limit(one, name) is None]
    orders, latest_first = _orders_of_arrival(over)
    by = ", ".join(map(repr, orders)) or ("last arrival" if latest_first else "arrival")
    top: Node = TopN(
        id=over.id, name=f"first {min(limits)} by {by}", inputs=over.inputs, schema=over.schema, ships=over.ships,
        key=over.key, orders=orders, limit=min(limits), number=number, latest_first=latest_first,
    )  # fmt: skip
    for above in reversed(path):
        top = above.with_parents((top,))
    if not rest:
        return top
    return replace(node, inputs=(top,), condition=_all(rest))


def _orders_of_arrival(over: OverGroups) -> tuple[tuple[Order, ...], bool]:
    """What rows go by, and whether of equal ones the last to come is first.

    An order by the clock alone is that in which they come: no time is needed for it. Where OVER is between, they come
    as it gives them, and go by their times; those of one millisecond still as they come.
    """
    name = over.orders[0].column if len(over.orders) == 1 else None
    clock, path = _below(over.inputs[0], (Select, OverGroups))
    for node in path:
        name = renamed_below(node, name) if isinstance(node, Select) and name is not None else name
    if not isinstance(clock, ProcessingTime) or not clock.sets_time or name != clock.column:
        return over.orders, False
    is_arrival = not any(isinstance(one, OverGroups) for one in path)
    return () if is_arrival else over.orders, not over.orders[0].ascending


def _below(node: Node, kinds: tuple[type[Node], ...] = (Select,)) -> tuple[Node, list[Node]]:
    """The first node below that is none of some kinds, and those above it, the highest first."""
    path: list[Node] = []
    while isinstance(node, kinds):
        path.append(node)
        node = node.inputs[0]
    return node, path


def _name_above(name: str, path: list[Node]) -> str | None:
    """What a column is called above some projections; None if it does not come through as it is."""
    for node in reversed(path):
        if isinstance(node, Expand):
            continue
        assert isinstance(node, Select)
        found = [new for new, value in node.columns.items() if value.structure == ("col", name)]
        if not found:
            if node.keep and name not in node.columns:
                continue
            return None
        name = found[0]
    return name


def _limit(condition: Expression, name: str | None) -> int | None:
    """The last place that a condition lets through; None if it is about something else."""
    if not isinstance(condition, Call) or len(condition.arguments) != 2:
        return None
    left, right = condition.arguments
    function = condition.function
    if right.structure == ("col", name):
        left, right = right, left
        function = {
            "greater_equal": "less_equal", "greater": "less", "less_equal": "greater_equal", "less": "greater"
        }.get(function, function)  # fmt: skip
    if left.structure != ("col", name) or right.structure[0] != "lit":
        return None
    number = getattr(right, "scalar", pa.scalar(None)).as_py()
    if not isinstance(number, int) or function not in ("less_equal", "less", "equal"):
        return None
    if function == "equal":
        return 1 if number == 1 else None
    last = number if function == "less_equal" else number - 1
    return last if last >= 1 else None


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


def _all(conditions: list[Expression]) -> Expression:
    return functools.reduce(lambda one, other: one & other, conditions)


def find_window_aggregation(roots: Roots, _parallelism: int | None) -> Roots:
    """Make an aggregation in windows of groups by the borders of windows."""
    return rewritten(roots, lambda node: _window_aggregation(node) if isinstance(node, Aggregation) else node)


def _window_aggregation(node: Aggregation) -> Node:
    rows, path = _below(node.inputs[0], (Select, Expand))
    if not isinstance(rows, WindowRows) or node.key is None or node.key.names is None:
        return node
    names = [_name_above(name, path) for name in rows.names]
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
    return {_name_above(name, path) for name in window.partition} == set(keys)


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


def drop_places(roots: Roots, _parallelism: int | None) -> Roots:
    """Leave out a row's place among the first of its group where nobody reads it: a place changes often."""
    read: dict[int, set[str]] = {}
    for node in walk(*roots):
        for parent in node.inputs:
            read.setdefault(parent.id, set()).update(_columns_read(node, parent))
    by_root = {root.id for root in roots}

    def visit(node: Node) -> Node:
        is_read = node.id in by_root or not isinstance(node, TopN) or node.number in read.get(node.id, ())
        if is_read or not isinstance(node, TopN) or node.number is None or node.schema is None:
            return node
        schema = pa.schema([field for field in node.schema if field.name != node.number])
        return noted(replace(node, number=None, schema=schema), "gives no places: nobody reads them")

    return rewritten(roots, visit)


def _columns_read(node: Node, parent: Node) -> set[str]:
    """The columns of an input that a node reads or passes on."""
    if isinstance(node, Select) and not node.keep:
        return set().union(*(value.columns_used() for value in node.columns.values()))
    return set() if parent.schema is None else set(parent.schema.names)


def as_streams(new_id: Callable[[], int], *, shares: bool = True, multi_joins: bool = False) -> tuple[Rule, ...]:
    """What is done to a plan before streams are made of it, in this order.

    Args:
        new_id: Numbers the nodes that are added.
        shares: Whether equal sub-plans become one.
        multi_joins: Whether chains of joins become one, also where no hint says so.
    """
    return (
        Rule("unions of unions", merge_unions),
        _filters(new_id),
        Rule("filters below windows", filters_below_windows),
        Rule("filters below windows to sources", push_filters),
        Rule("first rows of groups", find_top_n),
        Rule("aggregation in windows", find_window_aggregation),
        Rule("joins of rows near in time", find_bounded_joins),
        *_sharing(shares=shares),
        Rule("conditions of pairs into joins", conditions_into_joins),
        Rule("no places that nobody reads", drop_places),
        Rule("only columns that are read", prune_table_columns),
        Rule("fields before conditions", functools.partial(fields_before_conditions, new_id=new_id)),
        Rule("one join of many", functools.partial(find_multi_joins, is_enabled=multi_joins)),
        Rule("nothing costly computed twice", functools.partial(compute_once, new_id=new_id)),
        Rule("watermarks to sources", watermarks_into_sources),
    )


def _sharing(*, shares: bool) -> tuple[Rule, ...]:
    """Before columns are left out: what is read of one place by several is all that they read."""
    return (Rule("equal sub-plans", share_sub_plans),) if shares else ()


def _filters(new_id: Callable[[], int]) -> Rule:
    """Conditions towards sources, past joins of joins."""

    def apply(roots: Roots, parallelism: int | None) -> Roots:
        while True:
            roots = push_filters(roots, parallelism)
            roots, has_moved = filters_below_joins(roots, new_id)
            if not has_moved:
                return roots

    return Rule("filters to sources", apply)


# ----------------------------------------------------------------------------------------------------- for bounded data


def as_data_sets(
    new_id: Callable[[], int], source: Callable[[Scan], Node], now_ms: Callable[[], int], *, shares: bool = True
) -> tuple[Rule, ...]:
    """Say everything in nodes of data sets.

    Args:
        new_id: Numbers the nodes that are added.
        source: Makes the rows of a table.
        now_ms: The clock: processing time is one moment for all rows of a query.
        shares: Whether equal sub-plans become one.
    """
    lowering = _Bounded(new_id, source, now_ms)

    def apply(roots: Roots, _parallelism: int | None) -> Roots:
        return rewritten(roots, lowering.of)

    return (
        _filters(new_id),
        *_sharing(shares=shares),
        Rule("only columns that are read", prune_table_columns),
        Rule("tables as data sets", apply),
    )


class _Bounded:
    """Says nodes of tables in those of data sets."""

    def __init__(self, new_id: Callable[[], int], source: Callable[[Scan], Node], now_ms: Callable[[], int]) -> None:
        self._new_id = new_id
        self._source = source
        self._now_ms = now_ms

    def of(self, node: Node) -> Node:
        """Return the same in nodes of data sets."""
        if isinstance(node, Scan):
            return self._source(node)
        if isinstance(node, EventTime):
            return node.inputs[0]
        if isinstance(node, ProcessingTime):
            return self._processing_time(node)
        if isinstance(node, TableJoin):
            return self._join(node)
        if isinstance(node, LookupJoin):
            return self._lookup(node)
        if isinstance(node, TemporalJoin):
            return self._temporal(node)
        if isinstance(node, TopN):
            return self._top(node)
        if isinstance(node, Expand):
            function = ExpandBatch(node.expansion)
            return self._node(MapBatches, node.name, node.inputs, node.schema, function=function)
        return self._windows(node) if isinstance(node, WindowRows) else node

    def _node(self, kind: type[Node], name: str, inputs: tuple[Node, ...], schema: Any, **more: Any) -> Node:
        ships = more.pop("ships", (FORWARD,) * len(inputs))
        return kind(id=self._new_id(), name=name, inputs=inputs, schema=schema, ships=ships, **more)

    def _processing_time(self, node: ProcessingTime) -> Node:
        if node.sets_time:
            message = "windows and OVER by processing time have no meaning in batch mode: all rows are there at once"
            raise ProgramError(message, hint="go by a column of time, or run the query in streaming mode")
        assert node.schema is not None
        now = lit(
            dt.datetime.fromtimestamp(self._now_ms() / 1000, dt.timezone.utc), node.schema.field(node.column).type
        )
        return self._computed(node.inputs[0], {node.column: now}, node.name)

    def _selected(self, node: Node, schema: pa.Schema) -> Node:
        columns = {name: col(name) for name in schema.names}
        return self._node(Select, f"select {', '.join(columns)}", (node,), schema, columns=columns)

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _join(self, node: TableJoin) -> Node:
        if node.how in ("semi", "anti") and node.condition is None:
            left = node.inputs[0].schema
            assert left is not None
            assert node.schema is not None
            # The rows of the left input, whole: columns that are keys alone are taken off behind it.
            found: Node = SemiJoin(
                id=node.id, name=node.name, inputs=node.inputs, schema=left, ships=node.ships,
                left_key=node.left_key, right_key=node.right_key, is_anti=node.how == "anti",
            )  # fmt: skip
            return found if left.names == node.schema.names else self._selected(found, node.schema)
        if node.condition is None or node.how == "inner":
            joined: Node = Join(
                id=node.id, name=node.name, inputs=node.inputs, schema=node.schema, ships=node.ships,
                left_key=node.left_key, right_key=node.right_key, how=node.how, projection=node.projection,
            )  # fmt: skip
            if node.condition is None:
                return joined
            return self._node(FilterColumns, "where", (joined,), node.schema, condition=node.condition)
        return self._full(node) if node.how == "full" else self._conditional(node)

    def _full(self, node: TableJoin) -> Node:
        """The left join, and with nulls in front the right rows without a partner."""
        assert node.schema is not None
        left = self._conditional(replace(node, how="left"))
        own = [part for part in node.projection if part[0] == 1]
        assert node.right_key.names is not None
        own = own or [(1, node.right_key.names[0], "$lonely")]
        right_schema = node.inputs[1].schema
        assert right_schema is not None
        lonely: TableJoin = replace(
            node, how="anti", inputs=node.inputs[::-1], ships=node.ships[::-1], left_key=node.right_key,
            right_key=node.left_key, projection=tuple(
                (1 - side, column, name) for side, column, name in dict.fromkeys([*node.projection, *own])
            ),
            schema=pa.schema([pa.field(name, right_schema.field(column).type) for _, column, name in own]),
        )  # fmt: skip
        right = self._conditional(replace(lonely, id=self._new_id()))
        given = {name for _, _, name in own}
        columns = {
            field.name: col(field.name) if field.name in given else lit(None, field.type) for field in node.schema
        }
        padded = self._node(Select, "with nulls", (right,), node.schema, columns=columns)
        return self._node(Union, node.name, (left, padded), node.schema)

    def _conditional(self, node: TableJoin) -> Node:
        """An outer join whose condition is more than equal keys: every pair is looked at."""
        assert node.left_key.names is not None
        assert node.right_key.names is not None
        sides = (1, 0) if node.how == "right" else (0, 1)
        keys = [
            (f"$left{i}", f"$right{i}", left, right)
            for i, (left, right) in enumerate(zip(node.left_key.names, node.right_key.names, strict=True))
        ]
        condition = node.condition
        assert condition is not None
        projection = [(sides.index(side), column, name) for side, column, name in node.projection]
        for left_name, right_name, left, right in keys:
            projection += [(sides.index(0), left, left_name), (sides.index(1), right, right_name)]
            condition = condition & (col(left_name) == col(right_name))
        inputs = tuple(node.inputs[side] for side in sides)
        types = [one.schema for one in inputs]
        how = "left" if node.how == "right" else node.how
        is_half = how in ("semi", "anti")
        fields = []
        for side, column, name in projection:
            schema = types[side]
            assert schema is not None
            fields.append(pa.field(name, schema.field(column).type))
        joined = ConditionJoin(
            id=node.id, name=node.name, inputs=inputs, schema=types[0] if is_half else pa.schema(fields),
            ships=(FORWARD, BROADCAST), condition=condition, projection=tuple(projection), how=how,
        )  # fmt: skip
        assert node.schema is not None
        if not is_half:
            return self._selected(joined, node.schema)
        # The rows of the left input come whole, under their own names.
        columns = {name: col(column) for side, column, name in node.projection if side == 0}
        return self._node(Select, "matched", (joined,), node.schema, columns=columns)

    def _lookup(self, node: LookupJoin) -> Node:
        """The table is read once: all rows come at one moment."""
        ships = (Ship(ShipKind.HASH, node.left_key), Ship(ShipKind.HASH, node.right_key))
        joined = self._node(
            TableJoin, node.name, node.inputs, node.schema, ships=ships, left_key=node.left_key,
            right_key=node.right_key, how=node.how, projection=node.projection, condition=node.condition,
        )  # fmt: skip
        assert isinstance(joined, TableJoin)
        return self._join(joined)

    def _temporal(self, node: TemporalJoin) -> Node:
        """The rows among the versions of their keys, by time: the last version until a row is its own."""
        sides = [BesideEachOther(node, side) for side in (0, 1)]
        inputs = [
            self._node(MapBatches, name, (rows,), side.schema, function=side)
            for name, rows, side in zip(("rows", "versions"), node.inputs, sides, strict=True)
        ]
        rows = self._node(Union, "rows and versions", tuple(inputs), sides[0].schema)
        keys = keys_of(len(node.left_key.names or ()))
        rows = self._over(rows, keys, (Order(TIME),), {FOUND: aggregates.last(VERSION)}, node.name)
        condition = col(ROW).is_not_null()
        if node.how == "inner":
            condition = condition & col(FOUND).is_not_null()
        rows = self._node(FilterColumns, node.name, (rows,), rows.schema, condition=condition)
        columns = {name: col((ROW, FOUND)[side]).field(field_of(column)) for side, column, name in node.projection}
        joined = self._node(Select, node.name, (rows,), node.schema, columns=columns)
        if node.condition is None:
            return joined
        if node.how == "inner":
            return self._node(FilterColumns, node.name, (joined,), node.schema, condition=node.condition)
        assert node.schema is not None
        kinds = {name: node.schema.field(name).type for side, _, name in node.projection if side}
        versions = {
            name: when(node.condition).then(col(name)).otherwise(lit(None, kind)) for name, kind in kinds.items()
        }
        rest = {name: col(name) for name in node.schema.names if name not in versions}
        columns = {name: {**versions, **rest}[name] for name in node.schema.names}
        return self._node(Select, node.name, (joined,), node.schema, columns=columns)

    # -- first rows ----------------------------------------------------------------------------------------------------

    def _top(self, node: TopN) -> Node:
        assert node.schema is not None
        number, rows, orders = node.number or "$place", node.inputs[0], node.orders
        if not orders:
            rows, orders = self._computed(rows, {"$order": lit(0, pa.int32())}), (Order("$order"),)
        assert rows.schema is not None
        schema = pa.schema([*rows.schema, pa.field(number, pa.int64())])
        over = self._node(
            OverGroups, node.name, (rows,), schema, ships=node.ships, key=node.key, orders=orders,
            columns={number: row_number()},
        )  # fmt: skip
        condition = col(number) <= node.limit
        if node.offset:
            condition = condition & (col(number) > node.offset)
        kept = self._node(FilterColumns, f"first {node.limit}", (over,), schema, condition=condition)
        chosen = self._selected(kept, node.schema)
        if node.key is not None or not node.orders:
            return chosen
        ship = Ship(ShipKind.RANGE, orders=node.orders)
        return self._node(Sort, "order by", (chosen,), node.schema, ships=(ship,), orders=node.orders)

    # -- windows -------------------------------------------------------------------------------------------------------

    def _windows(self, node: WindowRows) -> Node:
        if node.window.kind is WindowKind.SESSION:
            return self._sessions(node)
        assert node.schema is not None
        function = WindowsOfBatch(node.window, node.names, node.schema)
        return self._node(MapBatches, node.name, node.inputs, node.schema, function=function)

    def _sessions(self, node: WindowRows) -> Node:
        """Sessions by the time between a row and the one before it: what is needed is found over groups."""
        assert node.schema is not None
        time, keys = node.window.time_column, node.window.partition
        in_order = (Order(time),)
        rows = self._node(FilterColumns, "with a time", node.inputs, node.inputs[0].schema,
                          condition=col(time).is_not_null())  # fmt: skip
        rows = self._over(rows, keys, in_order, {_BEFORE: lag(time)})
        since = col(time).to_epoch_ms() - col(_BEFORE).to_epoch_ms()
        rows = self._computed(rows, {_NEW: (since > node.window.size_ms).cast("int64")})
        rows = self._over(rows, keys, in_order, {_NUMBER: aggregates.sum(_NEW)})
        rows = self._computed(rows, {_NUMBER: col(_NUMBER).fill_null(0)})
        rows = self._over(rows, (*keys, _NUMBER), (), {_FIRST: aggregates.min(time), _LAST: aggregates.max(time)})
        function = _SessionBorders(node.window.size_ms, node.names, node.schema)
        return self._node(MapBatches, node.name, (rows,), node.schema, function=function)

    def _over(
        self, rows: Node, keys: tuple[str, ...], orders: tuple[Order, ...], columns: dict[str, Any],
        name: str = "sessions",
    ) -> Node:  # fmt: skip
        """The rows with columns over their groups."""
        assert rows.schema is not None
        key = None if not keys else GroupKey(KeySelector.of_field(*keys), keys, keys)
        fields = [pa.field(column, output_type(spec, rows.schema)) for column, spec in columns.items()]
        return self._node(
            OverGroups, name, (rows,), pa.schema([*rows.schema, *fields]),
            ships=(GATHER if key is None else Ship(ShipKind.HASH, key),), key=key, orders=orders, columns=columns,
        )  # fmt: skip

    def _computed(self, rows: Node, columns: dict[str, Expression], name: str = "sessions") -> Node:
        """The rows with computed columns, in place of those of the same name."""
        assert rows.schema is not None
        schema = SelectColumns(columns, keep=True).output_schema(rows.schema)
        return self._node(Select, name, (rows,), schema, columns=columns, keep=True)


_BEFORE, _NEW, _NUMBER, _FIRST, _LAST = "$before", "$new", "$number", "$first", "$last"


class _SessionBorders:
    """Makes the columns of a session of its first and last time."""

    def __init__(self, gap_ms: int, names: tuple[str, str, str], schema: pa.Schema) -> None:
        self._gap_ms = gap_ms
        self._names = names
        self._schema = schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        kind = self._schema.field(self._names[0]).type
        first, last = (milliseconds_of(batch.column(name)) for name in (_FIRST, _LAST))
        end = last + self._gap_ms
        borders = {name: as_times(one, kind) for name, one in zip(self._names, (first, end, end - 1), strict=True)}
        arrays = [
            borders.get(field.name) if field.name in borders else batch.column(field.name) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
