"""UNION, INTERSECT, EXCEPT: rows of two queries, compared as wholes, in which nulls are equal.

INTERSECT and EXCEPT count how often each row is on either side. Of these counts follows whether, and with ALL how
often, it is in the result; over changes the counts go up and down, and the result follows.

Source: SQL:2016; Flink's ``RewriteIntersectAllRule``, ``RewriteMinusAllRule``.
"""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.conditionals import if_else
from headrace.engine.columns.expressions import Expression, col, lit
from headrace.engine.functions.aggregates.built_in import sum as sum_of
from headrace.engine.operators.expanding import Repeat
from headrace.engine.plan.plan import Node

from .functions.coercion import cast_to, common_type
from .functions.contract import Typed, literal_of
from .parsing.errors import SqlError
from .relations import Builder, Relation, unique_names
from .scope import Scope, ScopeColumn

__all__ = ["set_operation"]


def set_operation(builder: Builder, tree: exp.SetOperation, sides: list[Relation]) -> Relation:
    """Return the rows of a set operation; the columns have the names of the left side.

    Raises:
        SqlError: If the sides have not as many columns, or no types in common.
    """
    word = type(tree).__name__.upper()
    widths = [len(side.scope.columns) for side in sides]
    if widths[0] != widths[1]:
        message = f"{word} needs as many columns on both sides; there are {widths[0]} and {widths[1]}"
        raise SqlError(message)
    pairs = list(zip(*(side.scope.columns for side in sides), strict=True))
    kinds = [common_type([one.value.kind for one in pair]) for pair in pairs]
    is_untyped = [pa.types.is_null(kind) for kind in kinds]
    kinds = [pa.int32() if pa.types.is_null(kind) else kind for kind in kinds]
    names = [one.name for one in sides[0].scope.columns]
    columns = unique_names(names)
    chosen = [
        {column: cast_to(one.value, kind) for column, one, kind in zip(columns, side.scope.columns, kinds, strict=True)}
        for side in sides
    ]
    is_all = not tree.args.get("distinct", True)
    if isinstance(tree, exp.Union):
        node = builder.united([builder.selected(side.node, own) for side, own in zip(sides, chosen, strict=True)])
        node = node if is_all else builder.distinct(node)
    else:
        node = _counted(builder, sides, chosen, is_intersect=isinstance(tree, exp.Intersect), is_all=is_all)
    keeps_time = isinstance(tree, exp.Union) and is_all
    scope = Scope(
        ScopeColumn(
            None,
            name,
            column,
            kind,
            keeps_time and all(one.is_event_time for one in pair),
            is_untyped=unknown,
            is_processing_time=keeps_time and all(one.is_processing_time for one in pair),
        )
        for name, column, kind, pair, unknown in zip(names, columns, kinds, pairs, is_untyped, strict=True)
    )
    return Relation(node, scope)


def _counted(
    builder: Builder, sides: list[Relation], chosen: list[dict[str, Typed]], *, is_intersect: bool, is_all: bool
) -> Node:
    """Each row that is in the result by how often it is on the left and on the right."""
    columns = list(chosen[0])
    left, right, times = unique_names(["$left", "$right", "$times"], columns)
    marked = [
        builder.selected(side.node, {**own, left: literal_of(1 - i, pa.int64()), right: literal_of(i, pa.int64())})
        for i, (side, own) in enumerate(zip(sides, chosen, strict=True))
    ]
    counted = builder.aggregated(builder.united(marked), columns, {left: sum_of(left), right: sum_of(right)})
    rows = {name: Typed(col(name), value.kind) for name, value in chosen[0].items()}
    how_often = _times(col(left), col(right), is_intersect=is_intersect, is_all=is_all)
    if not is_all:
        return builder.selected(builder.filtered(counted, how_often > 0), rows)
    numbered = builder.selected(counted, {**rows, times: Typed(how_often, pa.int64())})
    return builder.selected(builder.expanded(numbered, Repeat(col(times))), rows)


def _times(left: Expression, right: Expression, *, is_intersect: bool, is_all: bool) -> Expression:
    """How often a row is in the result; above 0 if it is there at all."""
    if is_intersect:
        return if_else(left < right, left, right)
    return left - right if is_all else if_else(right > 0, lit(0, pa.int64()), left)
