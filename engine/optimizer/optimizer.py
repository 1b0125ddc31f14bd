"""The optimiser: rewrites a plan so that less is moved, sorted, read and computed; the result is the same plan's.

`RULES` are applied in order, each to the whole plan. A rule takes and gives roots; it changes a node by replacing it
under the same id and leaves a note on it, which ``explain`` shows. What a rule must keep: the records (and their order,
where the plan promises one), the plan's rule that broken records fail only where they are looked at, and that an input
which is read twice is one node.

Expressions, join orders and the physical operators of columns are left to what runs the plan (on Spark: Catalyst).

Source: Flink's ``Optimizer``, ``PropertyDataSet`` reuse, ``CombineGroup`` insertion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ..columns.conditionals import when
from ..columns.expressions import Expression, lit
from ..partitions import drivers
from ..plan.plan import (
    BROADCAST,
    FORWARD,
    Aggregation,
    CombineGroup,
    Distinct,
    ExtremeBy,
    FileSource,
    FilterColumns,
    First,
    GroupKey,
    Iteration,
    IterationInput,
    Join,
    JoinHint,
    KeyMatch,
    Node,
    Order,
    Project,
    Reduce,
    ReduceGroup,
    Repartition,
    Select,
    SemiJoin,
    ShipKind,
    Sort,
    SortPartition,
    TableSource,
    Union,
    dependents_on,
    record_shape,
    walk,
)
from .properties import Known, known_of, most_records, num_partitions
from .rewriting import noted, readers_of, rewritten

__all__ = ["RULES", "Rule", "optimize"]

Roots = tuple[Node, ...]


@dataclass(frozen=True)
class Rule:
    """One way to make a plan better.

    Attributes:
        name: For people.
        apply: Takes the roots and the default parallelism, gives new roots.
    """

    name: str
    apply: Callable[[Roots, int | None], Roots]


def optimize(sinks: Roots, parallelism: int | None = None, rules: tuple[Rule, ...] | None = None) -> Roots:
    """Rewrite a plan.

    Args:
        sinks: The roots of the plan as it was written.
        parallelism: Partitions of what does not say; None for the executor's default.
        rules: Those that are applied; None for all.

    Returns:
        New roots with the same ids, in the same order.
    """
    for rule in RULES if rules is None else rules:
        sinks = rule.apply(sinks, parallelism)
    return sinks


# --------------------------------------------------------------------------------------------------- filters to sources


def push_filters(roots: Roots, _parallelism: int | None) -> Roots:
    """Move conditions over columns towards sources, past what does not change the columns they read; into files.

    A condition that fails for a record must not meet more records than it did: it is moved only past nodes that give
    a record for each record, and behind an earlier condition it is looked at only where that one is true.

    A filter that moves leaves its place, and all who read it, to the node that it went under. Who reads that node is
    known again in the next pass only, so filters behind it wait: they may not be the only ones there.
    """
    while True:
        readers = readers_of(roots)
        passed: set[int] = set()

        def visit(node: Node, readers: dict[int, list[Node]] = readers, passed: set[int] = passed) -> Node:
            if not isinstance(node, FilterColumns):
                return node
            below = node.inputs[0]
            if below.id in passed or len(readers[below.id]) > 1:
                return node
            moved = _filter_below(node, below)
            if moved is None:
                return node
            passed.add(below.id)
            return moved

        roots = rewritten(roots, visit)
        if not passed:
            return roots


def _filter_below(node: FilterColumns, below: Node) -> Node | None:
    """The node below with the condition in or under it; None if it has to stay where it is."""
    used = node.condition.columns_used()
    if isinstance(below, FileSource):
        if not used <= set(below.file_schema.names):
            return None
        before = below.condition
        both: Expression = node.condition
        if before is not None:
            both = when(before).then(node.condition).otherwise(lit(False))
        return noted(replace(below, condition=both), f"reads only records with {node.condition!r}")
    is_passed = (
        isinstance(below, (Repartition, Sort, SortPartition))
        or (isinstance(below, Project) and record_shape(below.schema) == "dict")
        or (isinstance(below, Select) and used <= _taken_over(below))
    )
    if not is_passed or below.schema is None or below.broadcasts:
        return None
    source = below.inputs[0]
    if record_shape(source.schema) == "object":
        return None
    under = replace(node, inputs=(source,), schema=source.schema)
    return noted(below.with_parents((under,)), f"behind filter {node.condition!r}")


def _taken_over(node: Select) -> set[str]:
    same = {name for name, value in node.columns.items() if value.structure == ("col", name)}
    if node.keep and node.inputs[0].schema is not None:
        same |= set(node.inputs[0].schema.names) - set(node.columns)
    return same


# --------------------------------------------------------------------------------------------------- columns to sources


def prune_columns(roots: Roots, _parallelism: int | None) -> Roots:
    """Read only those columns of files and tables that somebody uses."""
    wanted: dict[int, frozenset[str] | None] = {}
    for node in reversed(list(walk(*roots))):
        own = wanted.get(node.id, frozenset()) if node.id in wanted else None
        for index, parent in enumerate(node.inputs):
            _want(wanted, parent, _needed(node, index, own))
        for _name, parent in node.broadcasts:
            _want(wanted, parent, None)
        for root in node.step_roots:
            _want(wanted, root, None)

    def visit(node: Node) -> Node:
        columns = wanted.get(node.id)
        if isinstance(node, (FileSource, TableSource)) and columns is not None and node.schema is not None:
            kept = [name for name in node.schema.names if name in columns]
            if record_shape(node.schema) == "dict" and 0 < len(kept) < len(node.schema):
                return _pruned(node, kept)
        if isinstance(node, Join) and columns is not None and node.schema is not None:
            return _narrowed(node, columns)
        if node.inputs and node.schema is not None and node.inputs[0].schema is not None:
            schema = node.inputs[0].schema
            if _passes_on(node) and len(schema) < len(node.schema):
                return replace(node, schema=schema)
            if isinstance(node, Select) and node.keep:
                # Fields that are kept, as far as they still come.
                there = {*schema.names, *node.columns}
                if not there >= set(node.schema.names):
                    return replace(node, schema=_fields_of(node.schema, there))
        return node

    return rewritten(roots, visit)


def _want(wanted: dict[int, frozenset[str] | None], node: Node, columns: frozenset[str] | None) -> None:
    if node.id in wanted:
        known = wanted[node.id]
        wanted[node.id] = None if known is None or columns is None else known | columns
    else:
        wanted[node.id] = columns


def _fields_of(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    wanted = set(names)
    return pa.schema([field for field in schema if field.name in wanted], schema.metadata)


def _narrowed(node: Join, wanted: frozenset[str]) -> Node:
    """The join with those fields of its projection that somebody uses."""
    if node.function is not None or node.projection is None or node.is_tuple or node.schema is None:
        return node
    projection = tuple(part for part in node.projection if part[2] in wanted)
    if not projection or len(projection) == len(node.projection):
        return node
    schema = _fields_of(node.schema, (name for _side, _field, name in projection))
    return noted(replace(node, projection=projection, schema=schema), f"gives only {', '.join(schema.names)}")


def _pruned(node: FileSource | TableSource, kept: list[str]) -> Node:
    assert node.schema is not None
    schema = pa.schema([node.schema.field(name) for name in kept], node.schema.metadata)
    note = f"reads only columns {', '.join(kept)}"
    if isinstance(node, TableSource):
        return noted(replace(node, schema=schema, table=node.table.select(kept)), note)
    return noted(replace(node, schema=schema, columns=tuple(kept)), note)


def _passes_on(node: Node) -> bool:
    """Whether the records are those of the input, so that fewer fields there are fewer fields here."""
    kinds = (FilterColumns, Repartition, Sort, SortPartition, First, Distinct, ExtremeBy, SemiJoin)
    return isinstance(node, kinds) and not (isinstance(node, Distinct) and node.key is None)


def _needed(node: Node, index: int, own: frozenset[str] | None) -> frozenset[str] | None:
    """The fields of an input that a node needs if ``own`` are wanted of itself; None for all."""
    if isinstance(node, Select):
        used: frozenset[str] = frozenset().union(*(value.columns_used() for value in node.columns.values()))
        if not node.keep:
            return used
        return None if own is None else used | (own - set(node.columns))
    if isinstance(node, Project):
        names = [field for field in node.fields if isinstance(field, str)]
        return frozenset(names) if len(names) == len(node.fields) else None
    if isinstance(node, Aggregation):
        arguments = [spec.argument.columns_used() for spec in node.aggregates.values() if spec.argument is not None]
        return _with_key(node.key, frozenset().union(*arguments))
    if isinstance(node, Join) and node.function is None and node.projection is not None:
        given = node.projection
        if own is not None and node.schema is not None and not node.is_tuple:
            given = tuple(part for part in given if part[2] in own) or given
        fields = [field for side, field, _name in given if side == index]
        if any(not isinstance(field, str) for field in fields):
            return None
        return _with_key(node.right_key if index else node.left_key, frozenset(map(str, fields)))
    if isinstance(node, SemiJoin):
        # Of the second input nothing but its keys is looked at.
        return _with_key(node.right_key, frozenset()) if index else _with_key(node.left_key, own)
    if own is None or not _passes_on(node):
        return None
    if isinstance(node, FilterColumns):
        return own | node.condition.columns_used()
    if isinstance(node, Repartition):
        ship = node.ships[0]
        return _with_key(ship.key, _with_orders(ship.orders, own))
    if isinstance(node, (Sort, SortPartition)):
        return _with_orders(node.orders, own)
    if isinstance(node, First):
        return _with_key(node.key, _with_orders(node.orders, own))
    if isinstance(node, ExtremeBy):
        if any(not isinstance(field, str) for field in node.fields):
            return None
        return _with_key(node.key, own | set(map(str, node.fields)))
    return _with_key(node.key, own) if isinstance(node, Distinct) else None


def _with_key(key: GroupKey | None, fields: frozenset[str] | None) -> frozenset[str] | None:
    if key is None or fields is None:
        return fields
    return None if key.names is None else fields | set(key.names)


def _with_orders(orders: tuple[Order, ...], fields: frozenset[str] | None) -> frozenset[str] | None:
    columns = [order.column for order in orders]
    if fields is None or None in columns:
        return None
    return fields | {column for column in columns if column is not None}


# ----------------------------------------------------------------------------------------------------- useless movement


def drop_useless_moves(roots: Roots, _parallelism: int | None) -> Roots:
    """Leave out a repartitioning whose records are moved again at once, and a sort whose first records are enough."""
    readers = readers_of(roots)

    def visit(node: Node) -> Node:
        inputs = list(node.inputs)
        notes: list[str] = []
        for index, ship in enumerate(node.ships[: len(inputs)]):
            while (
                ship.kind is not ShipKind.FORWARD
                and isinstance(inputs[index], Repartition)
                and len(readers[inputs[index].id]) == 1
                and inputs[index].ships[0].kind is not ShipKind.CUSTOM
            ):
                notes.append(f"without {inputs[index].name!r} before it, as records are moved again")
                inputs[index] = inputs[index].inputs[0]
        if isinstance(node, First) and node.orders and isinstance(inputs[0], Sort) and len(readers[inputs[0].id]) == 1:
            notes.append("without sorting all records: the first ones are enough")
            inputs[0] = inputs[0].inputs[0]
        if not notes:
            return node
        moved = node.with_parents((*inputs, *(parent for _name, parent in node.broadcasts)))
        return replace(moved, notes=(*moved.notes, *notes))

    return rewritten(roots, visit)


# ----------------------------------------------------------------------------------------------------------- broadcasts


_SMALL_RECORDS = 10_000
"""An input of at most so many records is sent everywhere rather than moving the other one."""


def choose_broadcasts(roots: Roots, _parallelism: int | None) -> Roots:
    """Send the small input of a join everywhere, where the program says so or the plan shows that it is small."""
    bounds: dict[int, int | None] = {}

    def visit(node: Node) -> Node:
        bounds[node.id] = most_records(node, [bounds.get(parent.id) for parent in node.inputs])
        if not isinstance(node, (Join, SemiJoin)) or any(ship.kind is not ShipKind.HASH for ship in node.ships):
            return node
        if any(isinstance(parent, IterationInput) and parent.role == "solution" for parent in node.inputs):
            return node  # looked up in its index, where it lies
        side: int | None = None
        reason = "as the program says"
        if isinstance(node, SemiJoin):
            may, hint = (False, True), JoinHint.OPTIMIZER_CHOOSES
        else:
            may, hint = (node.how in ("inner", "right"), node.how in ("inner", "left")), node.hint
        if hint in (JoinHint.BROADCAST_HASH_FIRST, JoinHint.BROADCAST_HASH_SECOND):
            side = 0 if hint is JoinHint.BROADCAST_HASH_FIRST else 1
        elif hint is JoinHint.OPTIMIZER_CHOOSES:
            sizes = [bounds.get(parent.id) for parent in node.inputs]
            for candidate in (1, 0):
                own, other = sizes[candidate], sizes[1 - candidate]
                is_small = own is not None and own <= _SMALL_RECORDS and (other is None or other >= 10 * own)
                if side is None and may[candidate] and is_small:
                    side, reason = candidate, f"at most {own} records"
        if side is None or not may[side]:
            return node
        ships = (BROADCAST, FORWARD) if side == 0 else (FORWARD, BROADCAST)
        which = "second" if side else "first"
        return noted(replace(node, ships=ships), f"the {which} input is sent everywhere: {reason}")

    return rewritten(roots, visit)


# --------------------------------------------------------------------------------------------------- shuffles and sorts


def reuse_partitioning(roots: Roots, parallelism: int | None) -> Roots:
    """Leave records where they are if those that belong together are together already."""

    def count_of(number: int | None) -> int | None:
        return parallelism if number is None else number

    known: dict[int, Known] = {}

    def visit(node: Node) -> Node:
        # Of the placeholders of iterations, which are not visited, nothing is known.
        inputs = [known.get(parent.id, Known()) for parent in node.inputs]
        changed = without_shuffle(node, inputs)
        known[node.id] = known_of(changed, inputs)
        return changed

    def without_shuffle(node: Node, inputs: list[Known]) -> Node:
        if not node.ships or isinstance(node, Iteration):
            return node
        count = num_partitions(node, inputs)
        if isinstance(node, KeyMatch):
            return _without_shuffles_of_two(node, inputs, count_of)
        ship = node.ships[0]
        if ship.kind is ShipKind.HASH and ship.key is not None:
            before = inputs[0]
            is_together = before.brings_together(ship.key) and not isinstance(node, Repartition)
            is_exact = before.is_hashed_by(ship.key)
            if (is_together or is_exact) and count_of(before.count) == count_of(count):
                return noted(replace(node, ships=(FORWARD,)), f"no shuffle: input is {before.ship!r} already")
        if ship.kind is ShipKind.RANGE and isinstance(node, Sort):
            before = inputs[0]
            if before.ship is not None and before.ship.kind is ShipKind.RANGE:
                is_same = _same_orders(before.ship.orders, node.orders)
                if is_same and count_of(before.count) == count_of(count):
                    return noted(replace(node, ships=(FORWARD,)), f"no shuffle: input is {before.ship!r} already")
        return node

    return rewritten(roots, visit)


def _same_orders(one: tuple[Order, ...], other: tuple[Order, ...]) -> bool:
    if len(one) != len(other):
        return False
    return all(_same_order(a, b) for a, b in zip(one, other, strict=True))


def _same_order(one: Order, other: Order) -> bool:
    same_field = one.field is other.field if callable(one.field) else one.column == other.column and bool(one.column)
    return same_field and one.ascending == other.ascending


def _without_shuffles_of_two(node: KeyMatch, inputs: list[Known], count_of: Callable[[int | None], int | None]) -> Node:
    """Spare two inputs their shuffles if both go by the very same hash: key fields of one type, as many partitions."""
    if any(ship.kind is not ShipKind.HASH for ship in node.ships):
        return node
    if any(isinstance(parent, IterationInput) and parent.role == "solution" for parent in node.inputs):
        return node
    keys = (node.left_key, node.right_key)
    types = [_key_types(parent.schema, key) for parent, key in zip(node.inputs, keys, strict=True)]
    if types[0] is None or types[0] != types[1]:
        return node
    count = count_of(node.parallelism)
    stays = [
        known.is_hashed_by(key) and count_of(known.count) == count for known, key in zip(inputs, keys, strict=True)
    ]
    if not any(stays):
        return node
    ships = tuple(FORWARD if stay else ship for stay, ship in zip(stays, node.ships, strict=True))
    which = "both inputs" if all(stays) else "the first input" if stays[0] else "the second input"
    return noted(replace(node, ships=ships), f"no shuffle of {which}: partitioned by the key already")


def _key_types(schema: pa.Schema | None, key: GroupKey) -> list[pa.DataType] | None:
    if schema is None or key.names is None:
        return None
    return [schema.field(name).type for name in key.names]


def reuse_order(roots: Roots, _parallelism: int | None) -> Roots:
    """Do not sort what comes in order."""
    known: dict[int, Known] = {}

    def visit(node: Node) -> Node:
        inputs = [known.get(parent.id, Known()) for parent in node.inputs]
        known[node.id] = known_of(node, inputs)
        return without_sort(node, inputs)

    def without_sort(node: Node, inputs: list[Known]) -> Node:
        if node.is_sorted or not node.ships or node.ships[0].kind is not ShipKind.FORWARD:
            return node
        if not isinstance(node, (Sort, SortPartition, ReduceGroup, CombineGroup)):
            return node
        before = inputs[0].orders
        if not before:
            return node
        if isinstance(node, (Sort, SortPartition)):
            is_enough = len(before) >= len(node.orders) and _same_orders(before[: len(node.orders)], node.orders)
        else:
            is_enough = _is_grouped(before, node.key, node.orders)
        if not is_enough:
            return node
        return noted(replace(node, is_sorted=True), f"no sort: input is sorted by {', '.join(map(repr, before))}")

    return rewritten(roots, visit)


def _is_grouped(before: tuple[Order, ...], key: GroupKey | None, orders: tuple[Order, ...]) -> bool:
    """Whether groups come one after the other, each in the order asked for."""
    if key is None or key.names is None:
        return False
    width = len(set(key.names))
    if {order.column for order in before[:width]} != set(key.names) or len(before) < width + len(orders):
        return False
    return _same_orders(before[width : width + len(orders)], orders)


# ------------------------------------------------------------------------------------------------------------ combiners


def add_combiners(roots: Roots, _parallelism: int | None) -> Roots:
    """Combine groups in each partition before their records are moved."""

    def visit(node: Node) -> Node:
        if node.combine or not isinstance(node, (Aggregation, Distinct, ExtremeBy, First, Reduce, ReduceGroup)):
            return node
        if node.ships[0].kind not in (ShipKind.HASH, ShipKind.GATHER) or not drivers.can_combine(node):
            return node
        return noted(drivers.with_combiner(node), "combined before it is moved")

    return rewritten(roots, visit)


# -------------------------------------------------------------------------------------------------------------- sharing


def mark_shared(roots: Roots, _parallelism: int | None) -> Roots:
    """Compute once what several nodes read, or what every superstep of an iteration reads."""
    readers = readers_of(roots)
    constant: set[int] = set()
    for node in walk(*roots):
        if not isinstance(node, Iteration):
            continue
        changing = dependents_on(node.placeholders, *node.step_roots)
        for inner in walk(*node.step_roots):
            if inner.id in changing:
                constant.update(parent.id for parent in inner.parents if parent.id not in changing)
        constant.update(root.id for root in node.step_roots if root.id not in changing)

    def visit(node: Node) -> Node:
        if node.id in constant:
            return noted(replace(node, is_shared=True), "computed once for all supersteps")
        if len(readers.get(node.id, ())) > 1:
            return noted(replace(node, is_shared=True), f"computed once for {len(readers[node.id])} readers")
        return node

    return rewritten(roots, visit)


def flatten_unions(roots: Roots, _parallelism: int | None) -> Roots:
    """Make one union of unions of unions."""
    readers = readers_of(roots)

    def visit(node: Node) -> Node:
        if not isinstance(node, Union):
            return node
        inputs: list[Node] = []
        for parent in node.inputs:
            is_own = isinstance(parent, Union) and len(readers[parent.id]) == 1
            inputs += parent.inputs if is_own else (parent,)
        if len(inputs) == len(node.inputs):
            return node
        changes: dict[str, Any] = {"inputs": tuple(inputs), "ships": (FORWARD,) * len(inputs)}
        return replace(node, **changes)

    return rewritten(roots, visit)


RULES: tuple[Rule, ...] = (
    Rule("flatten unions", flatten_unions),
    Rule("push filters into sources", push_filters),
    Rule("read only the columns that are used", prune_columns),
    Rule("leave out useless moves", drop_useless_moves),
    Rule("broadcast small inputs", choose_broadcasts),
    Rule("no shuffle where records are together", reuse_partitioning),
    Rule("no sort where records are in order", reuse_order),
    Rule("combine before shuffles", add_combiners),
    Rule("compute shared inputs once", mark_shared),
)
"""In the order in which they are applied: what moves nodes comes before what relies on where they are."""
