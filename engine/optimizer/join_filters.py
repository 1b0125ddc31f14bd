"""Conditions behind a join that are about one of its inputs go below it: what it would drop is not sent, nor kept.

Below a join a condition meets rows that find no partner. One that fails for a row must not meet more rows than it did,
so only conditions that no row can make fail are moved: comparisons of columns and constants of one kind (a cast of a
constant is one, if it does not fail), and what is made of them by AND, OR and NOT. What remains of a condition stays
behind the join.

* Of an inner join both inputs may be asked before; of a left, semi or anti join the left one, of a right join the
  right one: a row of it that the condition drops is in no row of the result, joined or not.
* A row that is taken back is equal to the one that came, so both pass, or neither.

Source: Flink's ``FilterJoinRule``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from ..columns.conditionals import when
from ..columns.expressions import Call, Expression, lit
from ..errors import HeadraceError
from ..plan.plan import FilterColumns, Node
from ..plan.table_nodes import TableJoin
from .rewriting import noted, readers_of, rewritten

__all__ = ["all_of", "conditions_into_joins", "conditions_of", "filters_below_joins"]

Roots = tuple[Node, ...]
_ASKED = {"inner": (0, 1), "left": (0,), "semi": (0,), "anti": (0,), "right": (1,), "full": ()}
"""By the kind of a join: the inputs whose rows may be dropped before it if they would be behind it."""

_ONE_ROW = pa.record_batch({"$": pa.array([True])})
_LOGICAL = ("and", "or", "not")
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def filters_below_joins(roots: Roots, new_id: Callable[[], int]) -> tuple[Roots, bool]:
    """Move conditions below the joins that are next to them, or behind other conditions.

    Once a filter has gone below a join, who reads that join is known again in the next pass only.

    Args:
        roots: The plan.
        new_id: Numbers the filters that are added.

    Returns:
        The plan, and whether anything has moved.
    """
    readers = readers_of(roots)
    passed: set[int] = set()

    def visit(node: Node) -> Node:
        if not isinstance(node, FilterColumns):
            return node
        below, between = node.inputs[0], []
        while isinstance(below, FilterColumns) and len(readers.get(below.id, ())) == 1:
            between.append(below)
            below = below.inputs[0]
        if not isinstance(below, TableJoin) or below.id in passed or len(readers[below.id]) > 1:
            return node
        moved = _moved(node, below, between, new_id)
        if moved is None:
            return node
        passed.add(below.id)
        return moved

    return rewritten(roots, visit), bool(passed)


def conditions_into_joins(roots: Roots, _parallelism: int | None) -> Roots:
    """Let inner joins ask the conditions next behind them: no row is made of pairs for which they are not true.

    A join looks at the columns of a condition alone, before it makes the others.
    """
    readers = readers_of(roots)

    def visit(node: Node) -> Node:
        join = node.inputs[0] if isinstance(node, FilterColumns) else None
        if not isinstance(join, TableJoin) or join.how != "inner" or len(readers[join.id]) > 1:
            return node
        assert isinstance(node, FilterColumns)
        condition = node.condition
        if join.condition is not None:
            condition = when(join.condition).then(condition).otherwise(lit(False))
        return noted(replace(join, condition=condition), f"only pairs with {node.condition!r}")

    return rewritten(roots, visit)


def conditions_of(condition: Expression) -> list[Expression]:
    """Return the conditions of which one is made by AND."""
    if isinstance(condition, Call) and condition.function == "and":
        return [part for one in condition.arguments for part in conditions_of(one)]
    return [condition]


def all_of(conditions: Sequence[Expression]) -> Expression:
    """Return the condition that others make by AND."""
    return functools.reduce(lambda one, other: one & other, conditions)


def _moved(
    node: FilterColumns, join: TableJoin, between: list[FilterColumns], new_id: Callable[[], int]
) -> Node | None:
    """The join with conditions in front of it, and what remains behind; None if nothing moves."""
    inputs, rest, notes = list(join.inputs), [], []
    by_side: dict[int, list[Expression]] = {}
    for part in conditions_of(node.condition):
        side = _side_of(part, join)
        if side is None:
            rest.append(part)
        else:
            by_side.setdefault(side, []).append(part)
    if not by_side:
        return None
    for side, parts in by_side.items():
        source, condition = inputs[side], all_of(parts)
        inputs[side] = FilterColumns(
            id=new_id(), name=f"where {condition!r}", inputs=(source,), schema=source.schema, ships=node.ships,
            condition=condition,
        )  # fmt: skip
        notes.append(f"behind filter {condition!r}")
    below: Node = join.with_parents(tuple(inputs))
    for note in notes:
        below = noted(below, note)
    for one in reversed(between):
        below = one.with_parents((below,))
    if not rest:
        return below
    left = all_of(rest)
    return replace(node, inputs=(below,), condition=left, name=f"where {left!r}")


def _side_of(part: Expression, join: TableJoin) -> int | None:
    """The input that a condition is about and may be asked of before; None if it has to stay behind the join."""
    used = part.columns_used()
    for side in _ASKED[join.how]:
        schema = join.inputs[side].schema
        assert schema is not None
        own = {name for at, column, name in join.projection if at == side and column == name}
        if used and used <= own and _cannot_fail(part, schema):
            return side
    return None


def _cannot_fail(condition: Expression, schema: pa.Schema) -> bool:
    if not isinstance(condition, Call):
        return condition.structure[0] in ("col", "lit") and pa.types.is_boolean(condition.output_type(schema))
    if condition.function in _LOGICAL:
        return all(_cannot_fail(one, schema) for one in condition.arguments)
    if not all(map(_is_value, condition.arguments)):
        return False
    if condition.function in ("is_null", "is_not_null"):
        return True
    kinds = [one.output_type(schema) for one in condition.arguments]
    return condition.function in _COMPARISONS and (_all_signed(kinds) or all(kind == kinds[0] for kind in kinds))


def _is_value(part: Expression) -> bool:
    """Whether it is a column or a constant, maybe a cast of one: whether that fails is known at once."""
    kind = part.structure[0]
    if kind != "cast":
        return kind in ("col", "lit")
    if any(one.structure[0] != "lit" for one in part.children):
        return False
    try:
        part.evaluate(_ONE_ROW)
    except (HeadraceError, pa.ArrowException):
        return False
    return True


def _all_signed(kinds: list[pa.DataType]) -> bool:
    return all(pa.types.is_signed_integer(kind) for kind in kinds)
