"""Joins that read one input by one key become one operator, which keeps the rows of that input once for all of them.

A join keeps its inputs whole. Where a statement, or a set of statements, joins one table with several others by the
same columns, each join has that table's rows, their keys and the exchange in front of them for itself. Rows of state
belong to one operator, as its checkpoint and its key groups do; so it is the joins that are put together
(`headrace.engine.multi_joins`), and each keeps a result of its own.

Inner, left, right, semi and anti joins are put together, and joins of many inputs. Two joins of which one reads the
result of the other stay apart, since an operator cannot wait for itself: for those that go by one key there is
`headrace.engine.optimizer.chains`. So do full joins, and those whose rows have a time to live.

Source: the shared arrangements of differential dataflow (McSherry et al., VLDB 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...functions.keys import KeySelector
from ...multi_joins.join_step import JoinChain, JoinStep
from ...plan.plan import GroupKey, Node, Select, Ship, ShipKind, walk
from ...plan.table_nodes import JoinResult, MultiJoin, SharedJoins, TableJoin
from ..growth import ttls_of
from ..rewriting import noted, rewritten
from ..stream_traits import renamed_below

__all__ = ["SHARING", "share_rows_of_joins"]

Roots = tuple[Node, ...]
Columns = tuple[str, ...]
Slot = tuple[int, Columns]
"""An input, by what of it is the same object, and the columns of its key in an order."""

SHARING = "table.optimizer.shared-join-state.enabled"


@dataclass(frozen=True)
class _Side:
    """What a join reads: the rows of a node, some under other names.

    Attributes:
        node: Whose they are.
        key: The columns of the key there.
        names: What the join's columns are called there.
    """

    node: Node
    key: Columns
    names: dict[str, str]

    def in_order(self, order: Sequence[int]) -> Slot:
        """The input, with the parts of the key in an order."""
        return id(self.node), tuple(self.key[at] for at in order)


@dataclass(frozen=True, eq=False)
class _Join:
    """A join that may be put together with others.

    Attributes:
        node: The join.
        sides: What it reads, in the order of joining.
        steps: How.
        projection: Input, column of the join, name in the result.
    """

    node: Node
    sides: tuple[_Side, ...]
    steps: tuple[JoinStep, ...]
    projection: tuple[tuple[int, str, str], ...]

    def chain(self, inputs: tuple[int, ...]) -> JoinChain:
        """The same over the inputs of an operator."""
        steps = tuple(replace(one, columns=self._below(one.columns)) for one in self.steps)
        return JoinChain(inputs, steps, self._below(self.projection))

    def _below(self, columns: tuple[tuple[int, str, str], ...]) -> tuple[tuple[int, str, str], ...]:
        return tuple((at, self.sides[at].names[column], name) for at, column, name in columns)


@dataclass(eq=False)
class _Bundle:
    """Joins that become one operator.

    Attributes:
        joins: The joins, and which of the inputs each reads.
        inputs: Node and key, of each input.
    """

    joins: list[tuple[_Join, tuple[int, ...]]] = field(default_factory=list)
    inputs: list[tuple[Node, Columns]] = field(default_factory=list)

    def add(self, join: _Join, order: Sequence[int]) -> None:
        """Add a join whose keys have their parts in an order; a table that it joins with itself is there twice."""
        numbers: list[int] = []
        for side in join.sides:
            _, key = side.in_order(order)
            same = (i for i, one in enumerate(self.inputs) if one == (side.node, key) and i not in numbers)
            number = next(same, len(self.inputs))
            if number == len(self.inputs):
                self.inputs.append((side.node, key))
            numbers.append(number)
        self.joins.append((join, tuple(numbers)))

    def order_of(self, join: _Join) -> list[int] | None:
        """The order of the key's parts in which a join has an input in common with these; None if in none."""
        for side in join.sides:
            for node, key in self.inputs:
                if node is side.node and sorted(key) == sorted(side.key):
                    left = list(range(len(key)))
                    return [left.pop(next(i for i, at in enumerate(left) if side.key[at] == name)) for name in key]
        return None


def share_rows_of_joins(roots: Roots, new_id: Callable[[], int], *, is_enabled: bool) -> Roots:
    """Make one operator of joins that have an input in common.

    Args:
        roots: The plan.
        new_id: Numbers the nodes that are added.
        is_enabled: Whether to do it; else only joins that would gain by it are told.
    """
    found = [one for node in walk(*roots) if (one := _join_of(node)) is not None]
    # Rows are not kept by a column that is twice in a key.
    joins = [one for one in found if all(side.key and len(set(side.key)) == len(side.key) for side in one.sides)]
    bundles = [one for one in _bundles_of(joins) if len(one.joins) > 1]
    if not bundles:
        return roots
    if not is_enabled:
        said = {id(join.node): _would_be_shared(join, bundle) for bundle in bundles for join, _ in bundle.joins}
        return _with_notes(roots, said)
    return _put_together(roots, bundles, new_id)


# --------------------------------------------------------------------------------------------------------------- joins


def _join_of(node: Node) -> _Join | None:
    """What a node joins; None if it is no join that may be put together with others."""
    if isinstance(node, MultiJoin):
        keys = [key.names or () for key in node.keys]
        sides = tuple(_side(one, key) for one, key in zip(node.inputs, keys, strict=True))
        return _Join(node, sides, node.steps, node.projection)
    if not isinstance(node, TableJoin) or node.how == "full" or any(ttls_of(node)):
        return None
    sides = _side(node.inputs[0], node.left_key.names or ()), _side(node.inputs[1], node.right_key.names or ())
    projection, how = node.projection, node.how
    if how == "right":
        sides, how = sides[::-1], "left"
        projection = tuple((1 - side, column, name) for side, column, name in projection)
    columns: tuple[tuple[int, str, str], ...] = ()
    if node.condition is not None:
        used = node.condition.columns_used()
        columns = tuple(entry for entry in projection if entry[2] in used) or projection[:1]
    step = JoinStep(how, (), node.condition, columns)
    given = projection if step.gives_pairs else tuple(entry for entry in projection if entry[0] == 0)
    return _Join(node, sides, (step,), given)


def _side(node: Node, key: Columns) -> _Side:
    """An input, below what only gives its columns other names."""
    assert node.schema is not None
    names = {name: name for name in node.schema.names}
    while isinstance(node, Select):
        below = {name: renamed_below(node, column) for name, column in names.items()}
        if any(column is None for column in below.values()):
            break
        node, names = node.inputs[0], {name: str(column) for name, column in below.items()}
    return _Side(node, tuple(names[name] for name in key), names)


# ------------------------------------------------------------------------------------------------------------- bundles


def _bundles_of(joins: Sequence[_Join]) -> list[_Bundle]:
    """Put joins together, each with all that have an input in common with what it is put together with."""
    by_input: dict[Slot, list[_Join]] = {}
    for join in joins:
        for side in join.sides:
            by_input.setdefault((id(side.node), tuple(sorted(side.key))), []).append(join)
    bundle_of: dict[int, _Bundle] = {}
    bundles = []
    for join in joins:
        if id(join.node) in bundle_of:
            continue
        bundle = _Bundle()
        bundles.append(bundle)
        waiting = [join]
        while waiting:
            one = waiting.pop(0)
            order = list(range(len(one.sides[0].key))) if not bundle.joins else bundle.order_of(one)
            if id(one.node) in bundle_of or order is None or _waits_for_itself(bundle, one, bundle_of):
                continue
            bundle.add(one, order)
            bundle_of[id(one.node)] = bundle
            for side in one.sides:
                waiting += by_input[id(side.node), tuple(sorted(side.key))]
    return bundles


def _waits_for_itself(bundle: _Bundle, join: _Join, bundle_of: dict[int, _Bundle]) -> bool:
    """Whether an operator of these joins and one more would read what it gives, maybe by way of other operators."""
    if not bundle.joins:
        return False
    own = {id(join.node), *(id(one.node) for one, _ in bundle.joins)}
    stack = [side.node for one in (join, *(one for one, _ in bundle.joins)) for side in one.sides]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in own:
            return True
        if id(node) not in seen:
            seen.add(id(node))
            stack += node.parents
            if id(node) in bundle_of:
                stack += [side.node for one, _ in bundle_of[id(node)].joins for side in one.sides]
    return False


# -------------------------------------------------------------------------------------------------------- what is said


def _shared(bundle: _Bundle) -> Iterator[tuple[Node, Columns, int]]:
    """The inputs that several joins read, and how many do."""
    for number, (node, key) in enumerate(bundle.inputs):
        times = sum(number in numbers for _, numbers in bundle.joins)
        if times > 1:
            yield node, key, times


def _would_be_shared(join: _Join, bundle: _Bundle) -> str:
    own = {id(side.node) for side in join.sides}
    texts = [
        f"{node.name} by {', '.join(key)}, as {times - 1} more"
        for node, key, times in _shared(bundle)
        if id(node) in own
    ]
    return f"keeps the rows of {'; and of '.join(texts)}: SET '{SHARING}' = 'true' keeps them once"


def _with_notes(roots: Roots, said: dict[int, str]) -> Roots:
    """Say something of nodes, which others are made of then: by their ids, which stay."""
    by_id = {node.id: said[id(node)] for node in walk(*roots) if id(node) in said}
    return rewritten(roots, lambda node: noted(node, by_id[node.id]) if node.id in by_id else node)


# -------------------------------------------------------------------------------------------------------- the operators


def _put_together(roots: Roots, bundles: Iterable[_Bundle], new_id: Callable[[], int]) -> Roots:
    """The plan with one node for each bundle, and in place of each join what it gives."""
    numbers = {id(join.node): (bundle, i) for bundle in bundles for i, (join, _) in enumerate(bundle.joins)}
    made: dict[int, Node] = {}
    nodes: dict[int, SharedJoins] = {}

    def below(node: Node) -> Iterable[Node]:
        """What must have been made before: of a join all that its bundle reads."""
        if id(node) in numbers:
            return [one for one, _ in numbers[id(node)][0].inputs]
        return node.parents

    def made_of(node: Node) -> Node:
        if id(node) not in numbers:
            return node.with_parents(tuple(made[id(one)] for one in node.parents))
        bundle, number = numbers[id(node)]
        if id(bundle) not in nodes:
            nodes[id(bundle)] = _node_of(bundle, [made[id(one)] for one, _ in bundle.inputs], new_id())
        return JoinResult(
            id=node.id, name=node.name, inputs=(nodes[id(bundle)],), schema=node.schema, notes=node.notes, number=number
        )

    stack = list(roots)
    while stack:
        node = stack[-1]
        missing = [one for one in below(node) if id(one) not in made]
        if missing and id(node) not in made:
            stack += missing
            continue
        stack.pop()
        if id(node) not in made:
            made[id(node)] = made_of(node)
    return tuple(made[id(root)] for root in roots)


def _node_of(bundle: _Bundle, inputs: Sequence[Node], number: int) -> SharedJoins:
    keys = tuple(GroupKey(KeySelector.of_field(*names), names, names) for _, names in bundle.inputs)
    chains = tuple(join.chain(numbers) for join, numbers in bundle.joins)
    notes = tuple(
        f"keeps the rows of {node.name} by {', '.join(key)} once, for {times} joins"
        for node, key, times in _shared(bundle)
    )
    return SharedJoins(
        id=number, name=f"{len(chains)} joins of {len(inputs)} inputs", inputs=tuple(inputs), schema=None,
        ships=tuple(Ship(ShipKind.HASH, one) for one in keys), keys=keys, chains=chains, notes=notes,
    )  # fmt: skip
