"""Tables of bounded data, in nodes of data sets.

A join with a condition becomes a join and a filter, windows become columns, the first rows of groups places in them.
For a join by time rows and versions come into one set of columns, so that the versions of a row can be found among the
rows before it: both become a struct of the columns that the join gives, beside the key and the time. A row has no
version in it, and a version no row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..columns.conditionals import when
from ..columns.expressions import Expression, col, lit
from ..errors import ProgramError
from ..frames.frame_calls import lag, output_type, row_number
from ..functions.aggregates import built_in as aggregates
from ..functions.keys import KeySelector
from ..operators.column_operators import SelectColumns
from ..operators.expanding import ExpandBatch
from ..plan.plan import (
    BROADCAST,
    FORWARD,
    GATHER,
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
    WindowKind,
    WindowRows,
)
from .window_rows import WindowsOfBatch, as_times, milliseconds_of

__all__ = ["BoundedTables"]


class BoundedTables:
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
        sides = [_BesideEachOther(node, side) for side in (0, 1)]
        inputs = [
            self._node(MapBatches, name, (rows,), side.schema, function=side)
            for name, rows, side in zip(("rows", "versions"), node.inputs, sides, strict=True)
        ]
        rows = self._node(Union, "rows and versions", tuple(inputs), sides[0].schema)
        keys = _keys_of(len(node.left_key.names or ()))
        rows = self._over(rows, keys, (Order(_TIME),), {_FOUND: aggregates.last(_VERSION)}, node.name)
        condition = col(_ROW).is_not_null()
        if node.how == "inner":
            condition = condition & col(_FOUND).is_not_null()
        rows = self._node(FilterColumns, node.name, (rows,), rows.schema, condition=condition)
        columns = {name: col((_ROW, _FOUND)[side]).field(_field_of(column)) for side, column, name in node.projection}
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


_TIME, _ROW, _VERSION, _FOUND = "$time", "$row", "$version", "$found"


_KEY = "$key"


def _keys_of(num_keys: int) -> tuple[str, ...]:
    """Return the names of the key's columns."""
    return tuple(f"{_KEY}{i}" for i in range(num_keys))


def _field_of(column: str) -> str:
    """Return what a column is called in the struct of its side."""
    return f"f.{column}"


class _BesideEachOther:
    """Makes that of a batch of one side. Versions without a key are none, and rows without a time.

    Args:
        node: The join.
        side: Of which input.
    """

    def __init__(self, node: TemporalJoin, side: int) -> None:
        left, right = (one.schema for one in node.inputs)
        assert left is not None
        assert right is not None
        self._side = side
        self._keys = (node.left_key.names, node.right_key.names)[side] or ()
        self._time = node.times[side]
        self._structs = [_struct_of(node, place, schema) for place, schema in enumerate((left, right))]
        kinds = [left.field(key).type for key in node.left_key.names or ()]
        time = pa.timestamp("ns", left.field(node.times[0]).type.tz)
        self.schema = pa.schema([
            *zip(_keys_of(len(kinds)), kinds, strict=True), (_TIME, time), (_ROW, self._structs[0]),
            (_VERSION, self._structs[1]),
        ])  # fmt: skip

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same rows as structs."""
        names = [self._time] if self._side == 0 else [self._time, *self._keys]
        is_whole = np.ones(batch.num_rows, np.bool_)
        for name in names:
            is_whole &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        batch = batch if is_whole.all() else batch.filter(pa.array(is_whole))
        own = self._structs[self._side]
        made = pa.StructArray.from_arrays(
            [batch.column(field.name.partition(".")[2]) for field in own], fields=list(own)
        )
        other = pa.nulls(batch.num_rows, self._structs[1 - self._side])
        arrays = [batch.column(key) for key in self._keys]
        arrays.append(batch.column(self._time).cast(self.schema.field(_TIME).type))
        arrays += [made, other] if self._side == 0 else [other, made]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _struct_of(node: TemporalJoin, side: int, schema: pa.Schema) -> pa.DataType:
    """The columns that the join gives of one side; one at least."""
    names: Sequence[str] = sorted({column for at, column, _ in node.projection if at == side}) or [node.times[side]]
    return pa.struct([pa.field(_field_of(name), schema.field(name).type) for name in names])
