"""Joins, co-groups and cross products.

Records that have types, and keys made of fields of one type on both sides, are joined by Spark: it streams, spills,
broadcasts and adapts. A projection of the pairs is Spark's too; a function gets the pairs in Python. All else, keys by
functions or records without a type, is shipped by the hash of the key into one DataFrame with a column that says which
input a record is of, and joined partition by partition by the plan's own functions.

Invariant: a null, or a part of a key that is null, matches nothing in a join and is a key like any other in a co-group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.engine.plan.plan import (
    CoGroup,
    ConditionJoin,
    Cross,
    GroupKey,
    Join,
    JoinHint,
    Node,
    SemiJoin,
    Ship,
    ShipKind,
)

from .catalyst import spark_type
from .columns import Layout, column_name
from .python_workers import JoinedSides
from .relations import Job, Relation, Scope, native_keys

__all__ = ["co_group", "condition_join", "cross", "join", "semi_join"]

WithBroadcasts = Callable[..., tuple[Relation, Any]]

_HINTS = {
    JoinHint.BROADCAST_HASH_FIRST: (0, "broadcast"),
    JoinHint.BROADCAST_HASH_SECOND: (1, "broadcast"),
    JoinHint.REPARTITION_HASH_FIRST: (0, "shuffle_hash"),
    JoinHint.REPARTITION_HASH_SECOND: (1, "shuffle_hash"),
    JoinHint.REPARTITION_SORT_MERGE: (0, "merge"),
}
"""Which side gets which hint of Spark's."""

_HOW = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer"}


def join(node: Join, job: Job, scope: Scope, sides: Sequence[Relation], with_broadcasts: WithBroadcasts) -> Relation:
    """Return the relation of a join."""
    left, right = sides
    keys = _common_keys(left, right, node.left_key, node.right_key)
    if keys is None:
        return _python_join(node, job, scope, sides, with_broadcasts)
    frames = _prefixed(job, left, right)
    hinted = _hinted(node, frames, (left.num_rows, right.num_rows))
    condition = None
    for a, b in zip(*keys, strict=True):
        equal = hinted[0][f"l{a[1:]}"] == hinted[1][f"r{b[1:]}"]
        condition = equal if condition is None else condition & equal
    return _paired(
        node, job, scope, (left, right), hinted[0].join(hinted[1], condition, _HOW[node.how]), with_broadcasts
    )


def semi_join(
    node: SemiJoin, job: Job, scope: Scope, sides: Sequence[Relation], with_broadcasts: WithBroadcasts
) -> Relation:
    """Return the relation of a semi or anti join: records of the first input, as they are."""
    from pyspark.sql import functions as sf

    left, right = sides
    keys = _common_keys(left, right, node.left_key, node.right_key)
    if keys is None:
        return _python_join(node, job, scope, sides, with_broadcasts)
    plain, others = job.flushed(left), job.flushed(right)
    asked = others.df.select(*(sf.col(name).alias(f"k{i}") for i, name in enumerate(keys[1])))
    is_small = right.num_rows is not None and right.num_rows <= SMALL_ROWS
    if is_small or node.ships[1].kind is ShipKind.BROADCAST:
        asked = asked.hint("broadcast")
    condition = None
    for i, name in enumerate(keys[0]):
        equal = plain.df[name] == asked[f"k{i}"]
        condition = equal if condition is None else condition & equal
    df = plain.df.join(asked, condition, "left_anti" if node.is_anti else "left_semi")
    return replace(plain, df=df, partitions=None, is_exact=False)


def condition_join(
    node: ConditionJoin, job: Job, scope: Scope, sides: Sequence[Relation], with_broadcasts: WithBroadcasts
) -> Relation:
    """Return the relation of a join by a condition, which Arrow evaluates: the second input goes to every subtask."""
    return _beside_broadcast(node, job, scope, sides, 1, with_broadcasts)


def cross(node: Cross, job: Job, scope: Scope, sides: Sequence[Relation], with_broadcasts: WithBroadcasts) -> Relation:
    """Return the relation of a cross product."""
    from pyspark.sql import functions as sf

    left, right = sides
    if left.schema is not None and right.schema is not None:
        frames = list(_prefixed(job, left, right))
        for i, ship in enumerate(node.ships):
            if ship.kind is ShipKind.BROADCAST:
                frames[i] = sf.broadcast(frames[i])
        return _paired(node, job, scope, (left, right), frames[0].crossJoin(frames[1]), with_broadcasts)
    broadcast = 0 if node.ships[0].kind is ShipKind.BROADCAST else 1
    return _beside_broadcast(node, job, scope, sides, broadcast, with_broadcasts)


def co_group(
    node: CoGroup, job: Job, scope: Scope, sides: Sequence[Relation], with_broadcasts: WithBroadcasts
) -> Relation:
    """Return the relation of a co-group."""
    ships = [Ship(ShipKind.HASH, key) for key in (node.left_key, node.right_key)]
    merged = job.merged(sides[0], sides[1], ships, node.parallelism)
    return _stepped(node, merged, job, scope, with_broadcasts)


def _common_keys(
    left: Relation, right: Relation, left_key: GroupKey, right_key: GroupKey
) -> tuple[list[str], list[str]] | None:
    """Spark's columns of the keys of both sides, if Spark compares them as we do."""
    keys = native_keys(left, left_key), native_keys(right, right_key)
    if keys[0] is None or keys[1] is None or len(keys[0]) != len(keys[1]):
        return None
    types = [
        [side.layout.physical.field(name).type for name in names] for side, names in ((left, keys[0]), (right, keys[1]))
    ]
    return (keys[0], keys[1]) if types[0] == types[1] else None


def _prefixed(job: Job, left: Relation, right: Relation) -> tuple[Any, Any]:
    """Both DataFrames with columns that cannot be confused, and one that is null where a side is missing."""
    from pyspark.sql import functions as sf

    frames = []
    for letter, relation in zip("lr", (left, right), strict=True):
        plain = job.flushed(relation)
        columns = [sf.col(name).alias(f"{letter}{name[1:]}") for name in plain.layout.names]
        frames.append(plain.df.select(*columns, sf.lit(True).alias(f"{letter}_there")))
    return frames[0], frames[1]


SMALL_ROWS = 100_000
"""A side known to have at most so many records is broadcast; Spark cannot estimate what Python functions give."""


def _hinted(node: Join, frames: tuple[Any, Any], sizes: tuple[int | None, int | None]) -> list[Any]:
    hinted = list(frames)
    side, hint = _HINTS.get(node.hint, (0, None))
    if hint is None:
        for i, ship in enumerate(node.ships):
            if ship.kind is ShipKind.BROADCAST:
                side, hint = i, "broadcast"
    if hint is None:
        known = [(size, i) for i, size in enumerate(sizes) if size is not None and size <= SMALL_ROWS]
        known = [(size, i) for size, i in known if node.how not in (("left", "full"), ("right", "full"))[i]]
        if known:
            side, hint = min(known)[1], "broadcast"
    # Spark does not broadcast a side whose unmatched records are asked for; the hint would only warn.
    if hint == "broadcast" and node.how in (("left", "full"), ("right", "full"))[side]:
        hint = None
    if hint is not None:
        hinted[side] = hinted[side].hint(hint)
    return hinted


def _paired(
    node: Join | Cross,
    job: Job,
    scope: Scope,
    sides: tuple[Relation, Relation],
    joined: Any,
    with_broadcasts: WithBroadcasts,
) -> Relation:
    """The output of pairs that Spark has found."""
    from pyspark.sql import functions as sf

    layouts = [side.layout for side in sides]
    if node.function is None and node.projection is not None and node.schema is not None:
        output = Layout(node.schema)
        columns = []
        for i, (side, name, _new) in enumerate(node.projection):
            field = name if isinstance(name, str) else f"f{name}"
            source = str(layouts[side].column(field))
            have, want = layouts[side].physical.field(source).type, output.physical.field(i).type
            column = sf.col(f"{'lr'[side]}{source[1:]}")
            columns.append((column if have == want else column.cast(spark_type(want))).alias(column_name(i)))
        return job.relation(joined.select(*columns), output, node.schema, is_exact=False)
    names = [f"{letter}{name[1:]}" for letter, layout in zip("lr", layouts, strict=True) for name in layout.names]
    df = joined.select(*names, "l_there", "r_there")
    return _stepped(node, Relation(df, None, JoinedSides(*layouts), is_exact=False), job, scope, with_broadcasts)


def _stepped(node: Node, relation: Relation, job: Job, scope: Scope, with_broadcasts: WithBroadcasts) -> Relation:
    step = job.step(node, relation, scope)
    relation, step = with_broadcasts(node, relation, step, job, scope)
    return replace(relation, steps=(step,), schema=node.schema)


def _python_join(
    node: Join | SemiJoin, job: Job, scope: Scope, sides: Sequence[Relation], with_broadcasts: WithBroadcasts
) -> Relation:
    for i, ship in enumerate(node.ships):
        if ship.kind is ShipKind.BROADCAST:
            return _beside_broadcast(node, job, scope, sides, i, with_broadcasts)
    ships = [Ship(ShipKind.HASH, key) for key in (node.left_key, node.right_key)]
    merged = job.merged(sides[0], sides[1], ships, node.parallelism)
    return _stepped(node, merged, job, scope, with_broadcasts)


def _beside_broadcast(
    node: Join | SemiJoin | ConditionJoin | Cross,
    job: Job,
    scope: Scope,
    sides: Sequence[Relation],
    broadcast: int,
    with_broadcasts: WithBroadcasts,
) -> Relation:
    """One input stays where it is; the other goes whole to every subtask."""
    table = job.broadcast(job.collected(sides[broadcast]), scope)
    stays = job.flushed(sides[1 - broadcast])
    number = len(stays.broadcasts)
    relation = replace(
        stays,
        broadcasts=(*stays.broadcasts, table),
        broadcast_input=(broadcast, number, sides[broadcast].schema),
    )
    return _stepped(node, relation, job, scope, with_broadcasts)
