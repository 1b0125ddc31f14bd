"""Operators over changes in whole programs, on the local actors: records in, changes through, a table out.

Family: oracle (plain loops over the rows that remain).
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from changelog_kit import AsChanges, Changelog, FromChanges, batch_of, multiset
from changelog_oracles import aggregated, first_rows, joined

from headrace import StreamExecutionEnvironment
from headrace.engine.changelog.final_table import apply_changes
from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.records import RowKind
from headrace.engine.errors import JobFailedError, TypeMismatchError
from headrace.engine.functions.aggregates import built_in as f

NUM_CHANGES = 3_000


def drawn(seed, kinds=("text", "int", "float")):
    """Records of a changelog, its schema, and the rows that remain."""
    changelog = Changelog(random.Random(seed), kinds)
    records = [
        {"change": int(kind), **dict(zip(changelog.schema.names, row, strict=True))}
        for kind, row in changelog.changes(NUM_CHANGES)
    ]
    return records, changelog.schema, changelog.live


def stream_of(env, records, schema):
    return env.from_collection(records).transform("changes", AsChanges(schema)).set_parallelism(1)


def final_rows(stream, schema):
    """What the changes of a stream come to."""
    with stream.transform("kinds", FromChanges(), keep_parallelism=True).execute_and_collect() as records:
        changes = [(RowKind(row.pop("change")), tuple(row.values())) for row in records]
    # Subtasks are collected side by side: what one has taken back may come before what another has added.
    order = np.argsort([kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE) for kind, _ in changes], kind="stable")
    table = apply_changes([batch_of([changes[place] for place in order], schema)], schema)
    return multiset(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_groups(parallelism):
    records, schema, live = drawn(1)
    aggregates = {"n": f.count(), "s": f.sum("c1"), "least": f.min("c1"), "d": f.count_distinct("c2")}
    group = GroupAggregate(["c0"], aggregates, input_schema=schema, takes_back=True)
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        stream = stream_of(env, records, schema).key_by("c0").transform("group", group)
        wanted = aggregated(live, 1, [("count", None), ("sum", 1), ("min", 1), ("count_distinct", 2)])
        assert final_rows(stream, group.output_schema()) == multiset(wanted)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.sampled(4)
def test_joins_of_groups(parallelism):
    """The result of one operator over changes is the input of the next."""
    (left, schema, left_rows), (right, _, right_rows) = drawn(2), drawn(3)
    groups = [GroupAggregate(["c0"], {"n": f.count()}, input_schema=schema, takes_back=True) for _ in range(2)]
    grouped = groups[0].output_schema()
    projection = [(side, name, f"{name}{side}") for side in (0, 1) for name in grouped.names]
    join = ChangelogJoin(["c0"], ["c0"], "full", left_schema=grouped, right_schema=grouped, projection=projection)
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        first, second = (
            stream_of(env, records, schema).key_by("c0").transform("group", group).key_by("c0")
            for records, group in zip((left, right), groups, strict=True)
        )
        stream = first.transform("join", join, others=[second])
        counts = [aggregated(rows, 1, [("count", None)]) for rows in (left_rows, right_rows)]
        wanted = joined(*counts, "full", 1, (2, 2), lambda one, other: True)
        assert final_rows(stream, join.output_schema()) == multiset(wanted)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_first_rows_of_all_groups(parallelism):
    records, schema, live = drawn(4, ("int", "text", "int"))
    group = GroupAggregate(["c0", "c1"], {"s": f.sum("c2")}, input_schema=schema, takes_back=True)
    orders = [("s", False, None), ("c0", True, None), ("c1", True, None)]
    rank = Rank([], orders, input_schema=group.output_schema(), limit=5, number="place", takes_back=True)
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        stream = stream_of(env, records, schema).key_by("c0", "c1").transform("group", group)
        stream = stream.global_().transform("rank", rank).force_non_parallel()
        sums = aggregated(live, 2, [("sum", 2)])
        wanted = first_rows(sums, 0, [(2, False, None), (0, True, None), (1, True, None)], limit=5, numbered=True)
        assert final_rows(stream, rank.output_schema()) == multiset(wanted)


def test_what_is_no_operator_over_changes_refuses_them():
    schema = pa.schema([("v", pa.int64())])
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        stream = stream_of(env, [{"change": 3, "v": 1}], schema).map(lambda row: row)
        with pytest.raises(JobFailedError) as error:
            list(stream.execute_and_collect())
        assert isinstance(error.value.__cause__, TypeMismatchError)
