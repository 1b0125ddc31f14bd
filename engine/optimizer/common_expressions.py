"""What several expressions of a step compute is computed once: ``LOWER(name)`` in five branches, a pattern that WHERE
looks for and SELECT gives.

A projection in front makes a column of it, which all others read. It must be computed for every record somewhere
already: what stands only in branches of ``CASE`` stays there, as it may fail for records that do not reach it. So does
what stands only on the right of AND and OR, but for what fails for no record.

Source: Flink's ``ExprReuse`` of generated code, Spark's ``EquivalentExpressions``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ..columns.conditionals import Case
from ..columns.expressions import Call, Expression, col
from ..plan.plan import FORWARD, FilterColumns, Node, Select
from .rewriting import noted, readers_of, rewritten
from .shared_plans import content_of

__all__ = ["compute_once"]

_NAME = "$common"

_FOR_ALL_TEXTS = frozenset(("LOWER", "UPPER", "lower", "upper"))
"""Functions that no text makes fail."""


def compute_once(roots: tuple[Node, ...], _parallelism: int | None, *, new_id: Callable[[], int]) -> tuple[Node, ...]:
    """Compute what is costly and stands twice in a projection, or in it and the condition below, once."""
    readers = readers_of(roots)

    def visit(node: Node) -> Node:
        if not isinstance(node, Select):
            return node
        below = node.inputs[0]
        if isinstance(below, FilterColumns) and len(readers[below.id]) == 1 and not node.keep:
            return _with_condition(node, below, new_id)
        return _alone(node, new_id)

    return rewritten(roots, visit)


def _alone(node: Select, new_id: Callable[[], int]) -> Node:
    source = node.inputs[0]
    common = _common(node.columns.values(), (), source)
    if not common or node.keep:
        return node
    return replace(node, inputs=(_made(source, common, new_id),), columns=_read(node.columns, common))


def _with_condition(node: Select, condition: FilterColumns, new_id: Callable[[], int]) -> Node:
    """What the condition computes for all records is there for those that pass, too."""
    common = _common((condition.condition,), node.columns.values(), condition.inputs[0])
    if not common:
        return _alone(node, new_id)
    asked, columns = _replaced(condition.condition, common), _read(node.columns, common)
    read = frozenset[str]().union(*(value.columns_used() for value in (asked, *columns.values())))
    source = _made(condition.inputs[0], common, new_id, read)
    passed = replace(condition, inputs=(source,), schema=source.schema, condition=asked)
    return _alone(replace(node, inputs=(passed,), columns=columns), new_id)


def _made(
    source: Node,
    common: Mapping[Hashable, tuple[str, Expression]],
    new_id: Callable[[], int],
    read: frozenset[str] | None = None,
) -> Node:
    """The records with what is common behind; only those of their columns that are read, if that is said."""
    assert source.schema is not None
    columns = dict(common.values())
    name = f"compute {', '.join(map(repr, columns.values()))}"
    passed = [field for field in source.schema if read is None or field.name in read]
    fields = [pa.field(name, value.output_type(source.schema)) for name, value in columns.items()]
    if read is not None:
        columns = {field.name: col(field.name) for field in passed} | columns
    made = Select(
        id=new_id(), name=name, inputs=(source,), ships=(FORWARD,), schema=pa.schema([*passed, *fields]),
        columns=columns, keep=read is None,
    )  # fmt: skip
    return noted(made, "computed once")


def _read(
    columns: Mapping[str, Expression], common: Mapping[Hashable, tuple[str, Expression]]
) -> dict[str, Expression]:
    return {name: _replaced(value, common) for name, value in columns.items()}


def _replaced(value: Expression, common: Mapping[Hashable, tuple[str, Expression]]) -> Expression:
    """The expression with columns for what is common in it."""
    if value.is_costly and (found := common.get(content_of(value))) is not None:
        return col(found[0])
    children = tuple(_replaced(one, common) for one in value.children)
    is_same = all(new is old for new, old in zip(children, value.children, strict=True))
    return value if is_same else value.with_children(children)


@dataclass
class _Found:
    """Something costly: how often it stands somewhere, and whether that is for every record."""

    value: Expression
    times: int = 0
    is_for_all: bool = field(default=False)


def _common(
    first: Iterable[Expression], others: Iterable[Expression], source: Node
) -> dict[Hashable, tuple[str, Expression]]:
    """What is computed for every record of a source in the first expressions, and once more in these or the others;
    the largest parts only, by content: what they are called from now on, and what they are.
    """
    found: dict[Hashable, _Found] = {}
    for is_first, values in ((True, first), (False, others)):
        for value in values:
            for one, is_for_all in _parts(value, is_for_all=is_first):
                entry = found.setdefault(content_of(one), _Found(one))
                entry.times += 1
                entry.is_for_all |= is_for_all
    common = {key: entry for key, entry in found.items() if entry.times > 1 and entry.is_for_all}
    inner = {content_of(one) for entry in common.values() for child in entry.value.children for one, _ in _parts(child)}
    largest = {key: entry.value for key, entry in common.items() if key not in inner}
    assert source.schema is not None
    free = itertools.count(sum(name.startswith(_NAME) for name in source.schema.names))
    return {key: (f"{_NAME}{number}", value) for number, (key, value) in zip(free, largest.items(), strict=False)}


def _parts(
    value: Expression, *, is_for_all: bool = True, is_guarded: bool = False
) -> Iterator[tuple[Expression, bool]]:
    """The costly parts of an expression, and whether each is computed for every record, or might be.

    Args:
        value: The expression.
        is_for_all: Whether it is not in a branch.
        is_guarded: Whether records that it fails for may not reach it.
    """
    if value.is_costly and value.columns_used():
        yield value, is_for_all and not (is_guarded and _may_fail(value))
    is_case = isinstance(value, Case)
    guards = isinstance(value, Call) and value.function in ("and", "or")
    for number, child in enumerate(value.children):
        yield from _parts(
            child,
            is_for_all=is_for_all and (number == 0 or not is_case),
            is_guarded=is_guarded or (number > 0 and guards),
        )


def _may_fail(value: Expression) -> bool:
    kind = value.structure[0]
    if kind in ("col", "lit"):
        return False
    return str(kind).removeprefix("sql.") not in _FOR_ALL_TEXTS or any(map(_may_fail, value.children))
