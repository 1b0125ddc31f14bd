"""Chains of nodes that become one node: unions of unions, and joins of joins.

SQL writes ``a UNION ALL b UNION ALL c`` as two unions, and a hundred of them would be a hundred operators, with rows
that go through all of those above their own.

In a chain of inner and left joins each join keeps what the ones before it come to. Where the inputs have one key in
common, one operator keeps the rows of each input once, and nothing of what is between. A common key is columns of every
input that the conditions say are equal, which all inputs are keyed by. What else is equal becomes part of the condition
of its join. It does not matter in which order inputs are said to be equal: ``a.k = b.k`` and ``b.k = c.k`` is a common
key, too; where the row of ``b`` is missing, there is none of ``c``.

What stands between joins may leave columns out and give them other names. What others read, too, stays a node of its
own; so do joins by event time, and those whose rows have a time to live, which forget rows.

Source: Calcite's ``UnionMergeRule``; Flink's ``JoinToMultiJoinRule``, ``AttributeBasedJoinKeyExtractor``; FLIP-516.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from ..columns.conditionals import when
from ..columns.expressions import Expression, col, lit
from ..functions.keys import KeySelector
from ..multi_joins.join_step import JoinStep
from ..plan.plan import FORWARD, GroupKey, Node, Select, Ship, ShipKind, Union
from ..plan.table_nodes import MultiJoin, TableJoin
from .growth import ttls_of
from .join_filters import all_of
from .rewriting import noted, readers_of, rewritten
from .stream_traits import renamed_below

__all__ = ["find_multi_joins", "merge_unions"]

Roots = tuple[Node, ...]
Column = tuple[int, str]
"""An input of the chain, and a column of it."""

NOTE = "keeps the rows of each input once, and nothing of what is between"


def merge_unions(roots: Roots, _parallelism: int | None) -> Roots:
    """Make one union of those that only another union reads, with the same columns."""
    readers = readers_of(roots)
    asked_for = {root.id for root in roots}

    def merged(node: Node) -> Node:
        if not isinstance(node, Union):
            return node
        inputs: list[Node] = []
        for one in node.inputs:
            below = one
            while _is_as_below(below) and is_read_once(below):
                below = below.inputs[0]
            is_merged = isinstance(below, Union) and is_read_once(below) and below.schema == node.schema
            inputs += below.inputs if is_merged else (one,)
        if len(inputs) == len(node.inputs):
            return node
        return replace(node, inputs=tuple(inputs), ships=(FORWARD,) * len(inputs))

    def is_read_once(node: Node) -> bool:
        return len(readers[node.id]) == 1 and node.id not in asked_for

    return rewritten(roots, merged)


def _is_as_below(node: Node) -> bool:
    """Whether a projection gives the columns of its input as they are."""
    if not isinstance(node, Select) or node.schema is None or node.inputs[0].schema is None:
        return False
    is_same = node.schema.equals(node.inputs[0].schema)
    return is_same and all(value.structure == ("col", name) for name, value in node.columns.items())


# ---------------------------------------------------------------------------------------------------------------- joins


@dataclass(frozen=True)
class _Link:
    """How an input is joined with those before it.

    Attributes:
        how: ``inner`` or ``left``.
        equal: Columns of those before and of the input that are equal.
        condition: What else is true.
        columns: What it reads: input, column there, name in the condition.
    """

    how: str
    equal: tuple[tuple[Column, str], ...]
    condition: Expression | None
    columns: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True)
class _Chain:
    """A chain of joins.

    Attributes:
        inputs: What is joined.
        links: How all but the first are.
        names: Of the chain's columns, where they are from.
        hinted: Whether a hint asks for one operator.
    """

    inputs: tuple[Node, ...]
    links: tuple[_Link, ...]
    names: dict[str, Column]
    hinted: bool


def find_multi_joins(roots: Roots, _parallelism: int | None, *, is_enabled: bool) -> Roots:
    """Make one join of chains of joins.

    Args:
        roots: The plan.
        is_enabled: Whether without a hint, too.
    """
    readers, asked_for = readers_of(roots), {root.id for root in roots}
    chains: dict[int, _Chain] = {}

    def is_read_once(node: Node) -> bool:
        return len(readers[node.id]) == 1 and node.id not in asked_for

    def visit(node: Node) -> Node:
        if not isinstance(node, TableJoin) or node.how not in ("inner", "left"):
            return node
        if any(ttls_of(node)):
            is_asked_for = is_enabled or node.hinted_multi
            return noted(node, "stays a join of two inputs, as its rows have a time to live") if is_asked_for else node
        below = _chain_below(node.inputs[0], chains, is_read_once)
        chain = None if below is None else _extended(below, node)
        made = None
        if chain is not None and (is_enabled or chain.hinted):
            made = _made(node, chain)
        if made is None or chain is None:
            begun = _begun(node)
            if begun is not None:
                chains[node.id] = begun
            return node
        chains[node.id] = chain
        return made

    return rewritten(roots, visit)


def _begun(node: TableJoin) -> _Chain | None:
    """The chain of one join; None if its condition reads no column, so that it is of no input."""
    names = {name: (0, name) for name in (node.inputs[0].schema or pa.schema([])).names}
    return _extended(_Chain(node.inputs[:1], (), names, node.hinted_multi), node)


def _chain_below(node: Node, chains: dict[int, _Chain], is_read_once: Callable[[Node], bool]) -> _Chain | None:
    """The chain of joins that rows come from, under the names that its columns have here."""
    path: list[Select] = []
    while isinstance(node, Select) and is_read_once(node):
        path.append(node)
        node = node.inputs[0]
    chain = chains.get(node.id)
    if chain is None or not is_read_once(node):
        return None
    names = chain.names
    for one in reversed(path):
        assert one.schema is not None
        below = {name: renamed_below(one, name) for name in one.schema.names}
        if any(column is None or column not in names for column in below.values()):
            return None  # something is computed between the joins
        names = {name: names[str(column)] for name, column in below.items()}
    return replace(chain, names=names)


def _extended(chain: _Chain, node: TableJoin) -> _Chain | None:
    """A chain with one more join."""
    number = len(chain.inputs)
    pairs = list(zip(node.left_key.names or (), node.right_key.names or (), strict=True))
    if any(left not in chain.names for left, _ in pairs):
        return None
    names = {
        name: (number, column) if side else chain.names[column]
        for side, column, name in node.projection
        if side or column in chain.names
    }
    if len(names) < len(node.projection):
        return None
    used = frozenset() if node.condition is None else node.condition.columns_used()
    if node.condition is not None and not used:
        return None
    link = _Link(
        node.how, tuple((chain.names[left], right) for left, right in pairs), node.condition,
        tuple((*names[name], name) for name in sorted(used)),
    )  # fmt: skip
    return _Chain((*chain.inputs, node.inputs[1]), (*chain.links, link), names, chain.hinted and node.hinted_multi)


# ------------------------------------------------------------------------------------------------------ the common key


def _common_key(chain: _Chain) -> list[tuple[str, ...]] | None:
    """By input the columns of a key that all inputs have; None if they have none in common."""
    classes: list[dict[int, str]] = []
    by_column: dict[Column, int] = {}
    for number, link in enumerate(chain.links, 1):
        for left, right in link.equal:
            known = by_column.get(left)
            if known is None and left[0] == 0:
                known = by_column[left] = len(classes)
                classes.append({0: left[1]})
            if known is not None and number not in classes[known] and (number, right) not in by_column:
                classes[known][number] = right
                by_column[number, right] = known
    common = [one for one in classes if len(one) == len(chain.inputs)]
    if not common:
        return None
    return [tuple(one[number] for one in common) for number in range(len(chain.inputs))]


def _made(node: TableJoin, chain: _Chain) -> Node | None:
    """One join of all inputs; None if that cannot be."""
    keys = _common_key(chain)
    if keys is None:
        return None
    steps = []
    for number, link in enumerate(chain.links, 1):
        step = _step(chain, keys, number, link)
        if step is None:
            return None
        steps.append(step)
    grouped = tuple(GroupKey(KeySelector.of_field(*names), names, names) for names in keys)
    how = " and ".join(dict.fromkeys(link.how for link in chain.links))
    return MultiJoin(
        id=node.id, name=f"{how} join of {len(chain.inputs)} inputs", inputs=chain.inputs, schema=node.schema,
        ships=tuple(Ship(ShipKind.HASH, one) for one in grouped), keys=grouped, steps=tuple(steps),
        projection=tuple((*chain.names[name], name) for _, _, name in node.projection), notes=(*node.notes, NOTE),
    )  # fmt: skip


def _step(chain: _Chain, keys: list[tuple[str, ...]], number: int, link: _Link) -> JoinStep | None:
    """How an input is joined by the common key; None if what else is equal cannot be said by a condition."""
    needs: set[int] = set()
    rest: list[tuple[Column, str]] = []
    left_over = list(keys[number])
    for left, right in link.equal:
        if (
            right in left_over
            and left[1] in keys[left[0]]
            and keys[left[0]].index(left[1]) == keys[number].index(right)
        ):
            left_over.remove(right)
            needs.add(left[0])
        else:
            rest.append((left, right))
    if left_over:
        return None
    needs = {at for at in needs if at and _may_be_missing(chain, at)}
    condition, columns = link.condition, link.columns
    schema = chain.inputs[number].schema
    assert schema is not None
    if any(not _is_plainly_equal(schema.field(right).type) for _, right in rest):
        return None
    if rest:
        named = [(left, (number, right), f"$left{i}", f"$right{i}") for i, (left, right) in enumerate(rest)]
        equal = all_of([col(one) == col(two) for _, _, one, two in named])
        condition = equal if condition is None else when(equal).then(condition).otherwise(lit(False))
        columns = (*columns, *(entry for left, right, one, two in named for entry in ((*left, one), (*right, two))))
    return JoinStep(link.how, tuple(sorted(needs)), condition, columns)


def _may_be_missing(chain: _Chain, at: int) -> bool:
    return chain.links[at - 1].how == "left"


def _is_plainly_equal(kind: pa.DataType) -> bool:
    """Whether values that are equal as keys are equal for a condition: not so of NaN, and of rows."""
    kinds = pa.types
    return not (kinds.is_floating(kind) or kinds.is_nested(kind) or kinds.is_dictionary(kind) or kinds.is_null(kind))
