"""Which columns of a table's plan tell its rows apart: each of their values is in one row at a time.

Source: Flink's ``FlinkRelMdUpsertKeys``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..columns.expressions import Call, Expression
from ..plan.plan import Aggregation, Distinct, FilterColumns, GroupKey, Node, OverGroups, Select, Sort
from ..plan.table_nodes import EventTime, JoinResult, ProcessingTime, TableJoin, TopN, WindowAggregation
from .rewriting import once_per_node

__all__ = ["upsert_keys"]

Keys = tuple[tuple[str, ...], ...]


@once_per_node
def upsert_keys(node: Node) -> Keys:
    """Return the sets of columns of which each has a value in one row of a node's table at a time."""
    if isinstance(node, Aggregation):
        return ((),) if node.key is None else ((node.key.names or ()),) if node.key.names else ()
    if isinstance(node, Distinct) and node.schema is not None:
        return (tuple(node.schema.names),)
    if isinstance(node, TopN):
        keys = () if node.key is None else node.key.names or ()
        own = ((keys,) if node.limit - node.offset == 1 else ()) + (((*keys, node.number),) if node.number else ())
        return own + tuple(key for key in upsert_keys(node.inputs[0]) if key not in own)
    if isinstance(node, WindowAggregation):
        keys = () if node.key is None else node.key.names or ()
        borders = [name for name in node.names[:2] if name is not None]
        return ((*keys, borders[-1]),) if borders else ()
    if isinstance(node, (FilterColumns, Sort, EventTime, ProcessingTime, OverGroups)):
        return upsert_keys(node.inputs[0])
    if isinstance(node, Select):
        return _renamed(node)
    if isinstance(node, TableJoin):
        return _joined_keys(node.how, node.inputs, (node.left_key, node.right_key), node.projection)
    if isinstance(node, JoinResult):
        return _keys_of_result(node)
    return ()


def _renamed(node: Select) -> Keys:
    names = _renamings(node)
    below = upsert_keys(node.inputs[0])
    return tuple(tuple(names[name] for name in key) for key in below if all(name in names for name in key))


def _keys_of_result(node: JoinResult) -> Keys:
    """As of the join of two inputs that it stands for."""
    chain = node.chain
    if len(chain.steps) > 1:
        return ()
    keys = tuple(node.joins.keys[at] for at in chain.inputs)
    return _joined_keys(chain.steps[0].how, node.sides, keys, chain.projection)


def _joined_keys(
    how: str, inputs: Sequence[Node], keys: Sequence[GroupKey], projection: Sequence[tuple[int, str, str]]
) -> Keys:
    """A row of one side is there once if it meets at most one row of the other; else both sides' keys say which."""
    sides = [{column: name for side, column, name in projection if side == index} for index in range(len(inputs))]
    if how in ("semi", "anti"):
        return tuple(_named(key, sides[0]) for key in upsert_keys(inputs[0]) if set(key) <= set(sides[0]))
    if how != "inner":
        return ()  # a side that is missing is null, and null is no key
    left, right = (upsert_keys(one) for one in inputs)
    found = []
    if any(set(key) <= set(keys[1].names or ()) for key in right):
        found += [_named(key, sides[0]) for key in left if set(key) <= set(sides[0])]
    if any(set(key) <= set(keys[0].names or ()) for key in left):
        found += [_named(key, sides[1]) for key in right if set(key) <= set(sides[1])]
    if not found:
        found = [
            _named(one, sides[0]) + _named(other, sides[1])
            for one in left for other in right if set(one) <= set(sides[0]) and set(other) <= set(sides[1])
        ]  # fmt: skip
    return tuple(found)


def _named(key: tuple[str, ...], names: dict[str, str]) -> tuple[str, ...]:
    return tuple(names[name] for name in key)


def _renamings(node: Select) -> dict[str, str]:
    """Return what columns are called behind a node that keeps them as they are."""
    schema = node.inputs[0].schema
    plain = {new: _column_of(value, schema) for new, value in node.columns.items()}
    names = {column: new for new, column in plain.items() if column is not None}
    if node.keep and schema is not None:
        names = {**{name: name for name in schema.names if name not in node.columns}, **names}
    return names


def _column_of(value: Expression, schema: pa.Schema | None) -> str | None:
    """The column whose values tell apart what these do: itself, or as a wider integer; None for others."""
    if value.structure[0] == "col":
        return str(value.structure[1])
    if not isinstance(value, Call) or value.function != "cast" or schema is None:
        return None
    below, kind = _column_of(value.arguments[0], None), dict(value.options)["to"]
    if below is None:
        return None
    own = schema.field(below).type
    is_wider = pa.types.is_signed_integer(own) and pa.types.is_signed_integer(kind) and kind.bit_width >= own.bit_width
    return below if is_wider or own == kind else None
