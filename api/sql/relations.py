"""A query under way: the plan that has been made so far, and what its columns are called.

Source: Calcite's ``RelBuilder``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.frames.frame_calls import Frame
from headrace.engine.functions.aggregates.built_in import count
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.functions.keys import KeySelector
from headrace.engine.operators.arrival import PROCESSING_TIME
from headrace.engine.operators.expanding import Expansion
from headrace.engine.plan.match_nodes import MatchRecognize
from headrace.engine.plan.plan import (
    FORWARD,
    GATHER,
    Aggregation,
    Distinct,
    FilterColumns,
    GroupKey,
    Node,
    Order,
    OverGroups,
    Select,
    Ship,
    ShipKind,
    Sort,
    TableSource,
    Union,
)
from headrace.engine.plan.table_nodes import (
    EventTime,
    Expand,
    ProcessingTime,
    Scan,
    TableJoin,
    TopN,
    WindowRows,
    WindowSpec,
)

from .functions.contract import Typed
from .parsing.errors import SqlError
from .parsing.sql_types import sql_name
from .scope import Scope, ScopeColumn

__all__ = ["Builder", "Relation", "group_key", "unique_names"]

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class Relation:
    """Rows, and what their columns are called.

    Attributes:
        node: What makes them.
        scope: Its columns; those of the plan that are not among them are helpers.
    """

    node: Node
    scope: Scope


def group_key(columns: Sequence[str]) -> GroupKey | None:
    """Return the key of some columns; None for no columns: all rows are one group."""
    if not columns:
        return None
    selector = KeySelector.of_field(*columns)
    return GroupKey(selector, tuple(columns), tuple(columns))


def _keyed(schema: pa.Schema, columns: Sequence[str]) -> GroupKey | None:
    """The key of some columns of rows, if they can be told apart by them."""
    for name in columns:
        if _has_elements(schema.field(name).type):
            message = f"rows cannot be grouped or joined by a value of type {sql_name(schema.field(name).type)}"
            raise SqlError(message, hint="CAST it to STRING, or go by its elements")
    return group_key(columns)


def _ordered(schema: pa.Schema, orders: Sequence[Order]) -> tuple[Order, ...]:
    for one in orders:
        kind = schema.field(one.column).type if one.column is not None else pa.null()
        if pa.types.is_nested(kind):
            message = f"rows have no order by a value of type {sql_name(kind)}"
            raise SqlError(message, hint="go by its parts")
    return tuple(orders)


def _has_elements(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_elements(one.type) for one in kind)
    return bool(pa.types.is_nested(kind))


def unique_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return names of which none comes twice: the second ``a`` is ``a0``, as in Flink."""
    seen = set(taken)
    result = []
    for name in names:
        candidates = itertools.chain([name], (f"{name}{i}" for i in itertools.count()))
        found = next(candidate for candidate in candidates if candidate not in seen)
        seen.add(found)
        result.append(found)
    return result


def _kinds_of_borders(time: pa.DataType) -> tuple[pa.DataType, pa.DataType, pa.DataType]:
    """The types of a window's start, end and time: the first two have no zone, whatever its time has."""
    border = pa.timestamp(time.unit)
    return border, border, time


def _ship(key: GroupKey | None) -> Ship:
    return GATHER if key is None else Ship(ShipKind.HASH, key)


class Builder:
    """Makes the nodes of a plan.

    Args:
        new_id: Numbers them.
    """

    def __init__(self, new_id: Callable[[], int]) -> None:
        self._new_id = new_id

    def _node(self, kind: type[Node], name: str, inputs: Sequence[Node], schema: pa.Schema, **more: Any) -> Node:
        ships = more.pop("ships", (FORWARD,) * len(inputs))
        return kind(id=self._new_id(), name=name, inputs=tuple(inputs), schema=schema, ships=ships, **more)

    def placeholder(self, kind: type[N], schema: pa.Schema, **parts: Any) -> N:
        """Return a node that stands for rows that are not known yet."""
        made = self._node(kind, "rows around", (), schema, **parts)
        assert isinstance(made, kind)
        return made

    def scan(self, name: str, table: Any, schema: pa.Schema) -> Node:
        """Return the rows of a table, as its connector gives them; of upserts, what they make of it."""
        rows = self._node(Scan, f"scan {name}", (), schema, table=table)
        if not table.gives_upserts:
            return rows
        found = self.one_of_key(rows, table.primary_key, latest_first=True)
        assert isinstance(found, TopN)
        return replace(found, name=f"last row of each {', '.join(table.primary_key)}, of upserts", of_upserts=True)

    def event_time(self, node: Node, column: str, delay_ms: int) -> Node:
        """Return the same rows with an event time."""
        assert node.schema is not None
        return self._node(EventTime, f"event time {column}", (node,), node.schema, column=column, delay_ms=delay_ms)

    def stamped(self, relation: Relation, *, sets_time: bool = False) -> tuple[Relation, ScopeColumn]:
        """Return the same rows with the clock's time, which no name means, and the column that it is.

        Args:
            relation: The rows.
            sets_time: Whether it is the rows' event time from here on.
        """
        assert relation.node.schema is not None
        name = unique_names(["$proctime"], relation.node.schema.names)[0]
        schema = relation.node.schema.append(pa.field(name, PROCESSING_TIME))
        node = self._node(ProcessingTime, "processing time", (relation.node,), schema, column=name, sets_time=sets_time)
        scope = relation.scope.without_time() if sets_time else relation.scope
        return Relation(node, scope), ScopeColumn(None, name, name, PROCESSING_TIME, is_processing_time=True)

    def filtered(self, node: Node, condition: Expression) -> Node:
        """Return the rows for which a condition is true."""
        assert node.schema is not None
        return self._node(FilterColumns, f"where {condition!r}", (node,), node.schema, condition=condition)

    def selected(self, node: Node, columns: Mapping[str, Typed]) -> Node:
        """Return rows of computed columns."""
        schema = pa.schema([pa.field(name, value.kind) for name, value in columns.items()])
        expressions = {name: value.expression for name, value in columns.items()}
        return self._node(Select, f"select {', '.join(columns)}", (node,), schema, columns=expressions)

    def extended(self, node: Node, columns: Mapping[str, Typed]) -> Node:
        """Return the same rows with further columns behind; themselves if there are none."""
        if not columns:
            return node
        assert node.schema is not None
        schema = pa.schema([*node.schema, *(pa.field(name, value.kind) for name, value in columns.items())])
        expressions = {name: value.expression for name, value in columns.items()}
        return self._node(Select, f"compute {', '.join(columns)}", (node,), schema, columns=expressions, keep=True)

    def aggregated(self, node: Node, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Node:
        """Return a row for each group: its keys, then its aggregates; without any their number, which nobody reads."""
        assert node.schema is not None
        aggregates = dict(aggregates) or {"$count": count()}
        fields = [node.schema.field(name) for name in keys]
        fields += [pa.field(name, one.output_type(node.schema)) for name, one in aggregates.items()]
        outputs = (*(("key", i) for i in range(len(keys))), *(("aggregate", name) for name in aggregates))
        key = _keyed(node.schema, keys)
        title = f"group by {', '.join(keys) or 'nothing'}: {', '.join(map(repr, aggregates.values()))}"
        return self._node(
            Aggregation, title, (node,), pa.schema(fields), ships=(_ship(key),),
            key=key, aggregates=dict(aggregates), outputs=outputs, field_names=(*keys, *aggregates),
        )  # fmt: skip

    def distinct(self, node: Node) -> Node:
        """Return each row once."""
        assert node.schema is not None
        key = _keyed(node.schema, node.schema.names)
        return self._node(Distinct, "distinct", (node,), node.schema, ships=(_ship(key),), key=key)

    def expanded(self, node: Node, expansion: Expansion) -> Node:
        """Return each row so often as an expansion says, with its columns behind."""
        assert node.schema is not None
        schema = pa.schema([*node.schema, *expansion.fields])
        return self._node(Expand, f"expand {expansion!r}", (node,), schema, expansion=expansion)

    def windowed(self, node: Node, window: WindowSpec, names: tuple[str, str, str]) -> Node:
        """Return rows with the windows that they fall in."""
        assert node.schema is not None
        kinds = _kinds_of_borders(node.schema.field(window.time_column).type)
        schema = pa.schema([*node.schema, *(pa.field(name, kind) for name, kind in zip(names, kinds, strict=True))])
        title = f"{window.kind.value.lower()} {window.time_column}"
        return self._node(WindowRows, title, (node,), schema, window=window, names=names)

    def windowed_relation(self, relation: Relation, window: WindowSpec) -> Relation:
        """As `windowed`, with the columns of windows in the scope."""
        assert relation.node.schema is not None
        names = unique_names(["window_start", "window_end", "window_time"], relation.node.schema.names)
        node = self.windowed(relation.node, window, (names[0], names[1], names[2]))
        kept = (replace(one, is_event_time=False, window=None) for one in relation.scope.columns)
        kinds = _kinds_of_borders(relation.node.schema.field(window.time_column).type)
        borders = (
            ScopeColumn(None, f"window_{which}", name, kind, is_event_time=which == "time", window=which)
            for which, name, kind in zip(("start", "end", "time"), names, kinds, strict=True)
        )
        return Relation(node, Scope((*kept, *borders)))

    def constant(self, table: pa.Table) -> Node:
        """Return rows that are at hand."""
        return self._node(TableSource, "values", (), table.schema, table=table)

    def over(self, node: Node, keys: Sequence[str], orders: Sequence[Order], columns: Mapping[str, Any],
             kinds: Mapping[str, pa.DataType], frame: Frame | None) -> Node:  # fmt: skip
        """Return rows with what their groups come to."""
        assert node.schema is not None
        schema = pa.schema([*node.schema, *(pa.field(name, kinds[name]) for name in columns)])
        key = _keyed(node.schema, keys)
        return self._node(
            OverGroups, f"over {', '.join(columns)}", (node,), schema, ships=(_ship(key),),
            key=key, orders=_ordered(node.schema, orders), columns=dict(columns), frame=frame,
        )  # fmt: skip

    def top(self, node: Node, orders: Sequence[Order], limit: int, offset: int, keys: Sequence[str] = ()) -> Node:
        """Return the first rows in an order, of each group of equal keys."""
        assert node.schema is not None
        key = _keyed(node.schema, keys)
        title = f"first {limit - offset} by {', '.join(map(repr, orders)) or 'arrival'}"
        return self._node(
            TopN, title, (node,), node.schema, ships=(_ship(key),), key=key,
            orders=_ordered(node.schema, orders), limit=limit, offset=offset,
        )  # fmt: skip

    def noted(self, node: Node, notes: Sequence[str]) -> Node:
        """Return rows as they are; the plan says something of them."""
        assert node.schema is not None
        made = self.selected(node, {name: Typed(col(name), node.schema.field(name).type) for name in node.schema.names})
        return replace(made, notes=(*made.notes, *notes))

    def one_of_key(self, node: Node, key: Sequence[str], *, latest_first: bool, refuses_others: bool = False) -> Node:
        """Return one row of each key, by arrival: the last one, the first or the only one; for ON CONFLICT."""
        found = self.top(node, (), 1, 0, key)
        assert isinstance(found, TopN)
        which = "only" if refuses_others else "last" if latest_first else "first"
        title = f"{which} row of each {', '.join(key)}, as ON CONFLICT says"
        return replace(found, name=title, latest_first=latest_first, refuses_others=refuses_others)

    def sorted(self, node: Node, orders: Sequence[Order]) -> Node:
        """Return rows in an order."""
        assert node.schema is not None
        ship = Ship(ShipKind.RANGE, orders=tuple(orders))
        title = f"order by {', '.join(map(repr, orders))}"
        return self._node(Sort, title, (node,), node.schema, ships=(ship,), orders=_ordered(node.schema, orders))

    def matched(self, node: Node, keys: Sequence[str], schema: pa.Schema, *, name: str, **parts: Any) -> Node:
        """Return a row for each match of a pattern in the rows of a key."""
        assert node.schema is not None
        key = _keyed(node.schema, keys)
        return self._node(MatchRecognize, name, (node,), schema, ships=(_ship(key),), key=key, **parts)

    def united(self, nodes: Sequence[Node]) -> Node:
        """Return the rows of all; their schemas are equal."""
        assert nodes[0].schema is not None
        return self._node(Union, "union all", nodes, nodes[0].schema)

    def joined(
        self, left: Relation, right: Relation, keys: Sequence[tuple[Typed, Typed]], how: str,
        condition: Callable[[Scope], Typed | None],
    ) -> Relation:  # fmt: skip
        """Return pairs of rows.

        Args:
            left: The first input.
            right: The second.
            keys: What is equal: of the left row, and of the right one, in the same types.
            how: As of `TableJoin`.
            condition: What else is true, over the scope of both.
        """
        left_node, left_keys = self.with_keys(left, [one for one, _ in keys])
        right_node, right_keys = self.with_keys(right, [other for _, other in keys])
        sides = (left.scope, right.scope)
        pairs = [(side, one) for side, scope in enumerate(sides) for one in scope.columns]
        names = unique_names(one.column for _, one in pairs)
        both = Scope(
            replace(
                one,
                column=name,
                is_event_time=one.is_event_time and how == "inner",
                is_processing_time=one.is_processing_time and how == "inner",
            )
            for (_, one), name in zip(pairs, names, strict=True)
        )
        found = condition(both)
        projection = tuple((side, one.column, name) for (side, one), name in zip(pairs, names, strict=True))
        is_half = how in ("semi", "anti")
        given = [one for (side, _), one in zip(pairs, both.columns, strict=True) if side == 0 or not is_half]
        assert left_node.schema is not None
        assert right_node.schema is not None
        keyed = (_keyed(left_node.schema, left_keys), _keyed(right_node.schema, right_keys))
        node = self._node(
            TableJoin, f"{how} join", (left_node, right_node), Scope(given).schema,
            ships=tuple(map(_ship, keyed)), left_key=keyed[0], right_key=keyed[1], how=how,
            projection=projection, condition=None if found is None else found.expression,
        )  # fmt: skip
        return Relation(node, Scope(given))

    def with_keys(self, relation: Relation, keys: Sequence[Typed]) -> tuple[Node, list[str]]:
        """Return the rows with computed values as columns, and what those are called; columns stay what they are."""
        named = {one.column: one.kind for one in relation.scope.columns}
        names: list[str] = []
        computed: dict[str, Typed] = {}
        taken = set() if relation.node.schema is None else set(relation.node.schema.names)
        for key in keys:
            structure = key.expression.structure
            if structure[0] == "col" and named.get(structure[1]) == key.kind and structure[1] not in names:
                names.append(structure[1])
                continue
            name = unique_names([f"$key{len(names)}"], taken)[0]
            taken.add(name)
            computed[name] = key
            names.append(name)
        return self.extended(relation.node, computed), names


def renamed(relation: Relation, names: Sequence[str]) -> dict[str, Typed]:
    """Return the columns of a relation under other names, to be selected."""
    return {name: Typed(col(one.column), one.kind) for name, one in zip(names, relation.scope.columns, strict=True)}


def plain(columns: Iterable[ScopeColumn]) -> dict[str, Typed]:
    """Return columns as they are, to be selected."""
    return {one.column: Typed(col(one.column), one.kind) for one in columns}
