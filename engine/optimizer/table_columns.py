"""Only columns that somebody reads: from the roots of a table program down to its tables, fields of rows included.

What is not read is not taken from files, not sent to other subtasks and not kept in state. A column that nobody reads
is not computed, so it cannot fail.

Source: Flink's ``PushProjectIntoTableSourceScanRule``, ``ProjectJoinTransposeRule``, ``NestedProjectionUtil``; Spark's
``NestedColumnAliasing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from ..columns.expressions import Call, Expression, col
from ..frames.frame_calls import value_of
from ..plan.plan import (
    FORWARD,
    Aggregation,
    FilterColumns,
    GroupKey,
    Node,
    Order,
    OverGroups,
    Select,
    Sort,
    TableSource,
    walk,
)
from ..plan.table_nodes import (
    EventTime,
    Expand,
    IntervalJoin,
    ProcessingTime,
    ProjectedJoin,
    Scan,
    TemporalJoin,
    TopN,
    WindowAggregation,
    WindowRows,
)
from .rewriting import noted, readers_of, rewritten

__all__ = ["fields_before_conditions", "prune_table_columns"]

Roots = tuple[Node, ...]
Path = tuple[str, ...]
"""A column, or a field in it: ``("bid", "price")``."""
Paths = frozenset[Path]


def prune_table_columns(roots: Roots, _parallelism: int | None) -> Roots:
    """Leave out columns, and fields of tables, that nobody reads."""
    wanted: dict[int, Paths] = {root.id: _all(root) for root in roots}
    for node in reversed(list(walk(*roots))):
        for index, parent in enumerate(node.inputs):
            needed = _needed(node, index, wanted.get(node.id, frozenset()))
            wanted[parent.id] = wanted.get(parent.id, frozenset()) | needed
    return rewritten(roots, lambda node: _narrowed(node, wanted.get(node.id, frozenset())))


def _all(node: Node) -> Paths:
    return frozenset((name,) for name in (node.schema.names if node.schema is not None else ()))


def _columns(names: Iterable[str | None]) -> Paths:
    return frozenset((name,) for name in names if name is not None)


def _of_key(key: GroupKey | None) -> Paths:
    return frozenset() if key is None else _columns(key.names or ())


def _of_orders(orders: Iterable[Order]) -> Paths:
    return _columns(order.column for order in orders)


def _read_by(expressions: Iterable[Expression]) -> Paths:
    """The columns and fields that expressions read."""
    found: set[Path] = set()
    for one in expressions:
        path = _path(one)
        if path is not None:
            found.add(path)
        else:
            found |= _read_by(one.children)
    return frozenset(found)


def _path(expression: Expression) -> Path | None:
    """The column, or the field of one, that an expression is; None if it computes something."""
    if expression.structure[0] == "col":
        return (str(expression.structure[1]),)
    if isinstance(expression, Call) and expression.function == "field":
        inner = _path(expression.arguments[0])
        return None if inner is None else (*inner, str(dict(expression.options)["name"]))
    return None


def _chosen(node: Select, own: Paths) -> dict[str, Expression]:
    """The computed columns that somebody reads; one at least, as rows without columns have no number."""
    names = {path[0] for path in own}
    chosen = {name: value for name, value in node.columns.items() if name in names}
    if chosen or node.keep:
        return chosen
    first = next(iter(node.columns))
    return {first: node.columns[first]}


def _needed(node: Node, index: int, own: Paths) -> Paths:
    """What a node reads of an input if ``own`` is read of itself."""
    if isinstance(node, Select):
        chosen = _chosen(node, own)
        passed = frozenset(path for path in own if path[0] not in node.columns) if node.keep else frozenset()
        # A column that is passed on under another name is read as far as it is read there.
        read: set[Path] = set()
        for name, value in chosen.items():
            path = _path(value)
            below = [one[1:] for one in own if one[0] == name]
            read |= _read_by([value]) if path is None or not below else {(*path, *rest) for rest in below}
        return passed | read
    if isinstance(node, FilterColumns):
        return own | _read_by([node.condition])
    if isinstance(node, Aggregation):
        return _of_key(node.key) | _read_by(
            one.argument for one in node.aggregates.values() if one.argument is not None
        )
    if isinstance(node, Sort):
        return own | _of_orders(node.orders)
    if isinstance(node, EventTime):
        return own | {(node.column,)}
    if isinstance(node, ProcessingTime):
        return frozenset(path for path in own if path[0] != node.column)
    if isinstance(node, Expand):
        made = set(node.expansion.fields.names)
        return frozenset(path for path in own if path[0] not in made) | _read_by(node.expansion.arguments)
    if isinstance(node, TopN):
        passed = frozenset(path for path in own if path[0] != node.number)
        return passed | _of_key(node.key) | _of_orders(node.orders)
    if isinstance(node, OverGroups):
        passed = frozenset(path for path in own if path[0] not in node.columns)
        values = (value_of(one) for one in node.columns.values())
        read_by = _read_by(value for value in values if value is not None)
        return passed | _of_key(node.key) | _of_orders(node.orders) | read_by
    if isinstance(node, WindowRows):
        passed = frozenset(path for path in own if path[0] not in node.names)
        return passed | _columns([node.window.time_column, *node.window.partition])
    if isinstance(node, WindowAggregation):
        read_by = _read_by(one.argument for one in node.aggregates.values() if one.argument is not None)
        return _of_key(node.key) | read_by | {(node.window.time_column,)}
    if isinstance(node, ProjectedJoin):
        taken = [column for side, column, _ in _parts_of(node, own) if side == index]
        if isinstance(node, (TemporalJoin, IntervalJoin)):
            taken.append(node.times[index])
        return _columns(taken) | _of_key(node.right_key if index else node.left_key)
    return _all(node.inputs[index])


def _parts_of(node: ProjectedJoin, own: Paths) -> list[tuple[int, str, str]]:
    """The columns of a join's pairs that somebody reads, its condition included; one at least that it gives."""
    read = own if node.condition is None else own | _read_by([node.condition])
    names = {path[0] for path in read}
    kept = [part for part in node.projection if part[2] in names]
    is_half = node.how in ("semi", "anti")
    if not any(side == 0 or not is_half for side, _, _ in kept):
        # Rows without columns have no number.
        kept = [next(part for part in node.projection if part[0] == 0), *kept]
    return kept


def _narrowed(node: Node, own: Paths) -> Node:
    """The node with those columns that are read, of what still comes."""
    if node.schema is None:
        return node
    if isinstance(node, Scan):
        return _scan(node, own)
    if isinstance(node, TableSource):
        kept = [name for name in node.schema.names if (name,) in own] or node.schema.names[:1]
        return node if len(kept) == len(node.schema) else replace(
            node, table=node.table.select(kept), schema=_fields(node.schema, kept)
        )  # fmt: skip
    if not node.inputs or node.inputs[0].schema is None:
        return node
    there = node.inputs[0].schema
    if isinstance(node, Select):
        chosen = _chosen(node, own)
        if not chosen:
            return node.inputs[0]
        kept = [field for field in there if node.keep and field.name not in chosen]
        fields = [node.schema.field(name) for name in chosen]
        return replace(node, columns=chosen, schema=pa.schema([*kept, *fields]))
    if isinstance(node, (FilterColumns, Sort, EventTime)):
        return replace(node, schema=there)
    if isinstance(node, ProcessingTime):
        if (node.column,) not in own:
            return node.inputs[0]
        return replace(node, schema=pa.schema([*there, node.schema.field(node.column)]))
    if isinstance(node, Expand):
        return replace(node, schema=pa.schema([*there, *node.expansion.fields]))
    if isinstance(node, TopN):
        number = [] if node.number is None else [node.schema.field(node.number)]
        return replace(node, schema=pa.schema([*there, *number]))
    if isinstance(node, OverGroups):
        return replace(node, schema=pa.schema([*there, *(node.schema.field(name) for name in node.columns)]))
    if isinstance(node, WindowRows):
        return replace(node, schema=pa.schema([*there, *(node.schema.field(name) for name in node.names)]))
    return _join(node, own) if isinstance(node, ProjectedJoin) else node


def _join(node: ProjectedJoin, own: Paths) -> Node:
    assert node.schema is not None
    kept = _parts_of(node, own)
    is_half = node.how in ("semi", "anti")
    given = {name for side, _, name in kept if side == 0 or not is_half}
    return replace(node, projection=tuple(kept), schema=_fields(node.schema, given))


def _fields(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    wanted = set(names)
    return pa.schema([field for field in schema if field.name in wanted])


def _scan(node: Scan, own: Paths) -> Node:
    assert node.schema is not None
    by_column: dict[str, set[Path]] = {}
    for path in own:
        by_column.setdefault(path[0], set()).add(path[1:])
    fields = [
        pa.field(field.name, _narrow_type(field.type, by_column[field.name]))
        for field in node.schema
        if field.name in by_column
    ] or [node.schema.field(0)]
    schema = pa.schema(fields)
    if schema.equals(node.schema):
        return node
    return noted(replace(node, schema=schema), f"reads only {', '.join(_shown(field) for field in schema)}")


def _narrow_type(kind: pa.DataType, below: set[Path]) -> pa.DataType:
    """A row's type with those fields that are read; the whole of everything else."""
    if () in below or not pa.types.is_struct(kind):
        return kind
    names = {path[0] for path in below}
    return pa.struct([field for field in kind if field.name in names])


def _shown(field: pa.Field) -> str:
    if not pa.types.is_struct(field.type):
        return str(field.name)
    return f"{field.name}({', '.join(one.name for one in field.type)})"


def fields_before_conditions(
    roots: tuple[Node, ...], _parallelism: int | None, *, new_id: Callable[[], int]
) -> tuple[Node, ...]:
    """Make columns of the fields of rows in front of a condition, where the projection behind it reads fields.

    A condition copies the records that pass: rows with all their fields, which is slower than columns side by side. To
    take a field out copies nothing.
    """
    readers = readers_of(roots)

    def visit(node: Node) -> Node:
        if not isinstance(node, Select) or node.keep:
            return node
        condition = node.inputs[0]
        if not isinstance(condition, FilterColumns) or len(readers[condition.id]) > 1:
            return node
        source = condition.inputs[0]
        if source.schema is None:
            return node
        read: dict[Path, Expression] = {}
        for value in (condition.condition, *node.columns.values()):
            _find_paths(value, read)
        if not any(len(path) > 1 for path in read):
            return node
        names = _names_of(read)
        columns = {names[path]: value for path, value in read.items()}
        schema = pa.schema([pa.field(name, value.output_type(source.schema)) for name, value in columns.items()])
        fields = Select(
            id=new_id(), name=f"select {', '.join(columns)}", inputs=(source,), ships=(FORWARD,), schema=schema,
            columns=columns,
        )  # fmt: skip
        asked = replace(condition, inputs=(fields,), schema=schema, condition=_renamed(condition.condition, names))
        chosen = {name: _renamed(value, names) for name, value in node.columns.items()}
        return replace(node, inputs=(asked,), columns=chosen)

    return rewritten(roots, visit)


def _find_paths(value: Expression, found: dict[Path, Expression]) -> None:
    path = _path(value)
    if path is not None:
        found[path] = value
    else:
        for child in value.children:
            _find_paths(child, found)


def _names_of(paths: dict[Path, Expression]) -> dict[Path, str]:
    """A name for each: its own ones with points between, and a number where that is another's, too."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        name = plain = ".".join(path)
        number = 0
        while name in taken:
            number += 1
            name = f"{plain}#{number}"
        taken.add(name)
        names[path] = name
    return names


def _renamed(value: Expression, names: dict[Path, str]) -> Expression:
    """The expression with columns for its paths."""
    path = _path(value)
    if path is not None:
        return col(names[path])
    children = tuple(_renamed(one, names) for one in value.children)
    return value.with_children(children) if children else value
