"""Operators that give all their rows once more, to somebody who has not seen them.

Families: oracle (what is out must be the table again, and go on as one), property (changelogs, restores at other
parallelisms, both backends, with and without room).
"""

from __future__ import annotations

import random

import pytest
from changelog_kit import RUNS, Applied, Changelog, Running, batch_of, chosen_backend, cut, multiset
from changelog_oracles import first_rows

from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import RowKind
from headrace.engine.functions.aggregates import built_in


def first_of(rows):
    return multiset(first_rows(rows, 1, [(1, True, None)], offset=1, limit=2, numbered=True, ties_keep_last=False))


def groups_of(rows):
    found = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    values = {key: [one for one in given if one is not None] for key, given in found.items()}
    return multiset(
        (key, len(given), sum(values[key]) if values[key] else None, min(values[key], default=None))
        for key, given in found.items()
    )


def ends(running, how):
    """Have the rows given; by a batch nothing is done here."""
    for subtask in running.harness.subtasks:
        if how == "clock":
            subtask.advance_clock(subtask.now_ms)
        elif how == "barrier":
            subtask.operator.prepare_snapshot(1)
        elif how == "end":
            subtask.operator.finish()
    running.collect()


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_all_rows_come_once_more_and_once(seed, backend, monkeypatch):
    rng = random.Random(seed)
    backend = chosen_backend(backend, rng, monkeypatch)
    changelog = Changelog(rng, ["text", "int"])
    if rng.random() < 0.5:
        operator = Rank(
            ["c0"], [("c1", True, None)], input_schema=changelog.schema, offset=1, limit=2, number="n", takes_back=True
        )
        table = first_of
    else:
        aggregates = {"n": built_in.count(), "s": built_in.sum(col("c1")), "m": built_in.min(col("c1"))}
        operator = GroupAggregate(["c0"], aggregates, input_schema=changelog.schema, takes_back=True)
        table = groups_of
    running = Running(operator, [["c0"]], rng.randint(1, 3), backend)
    fed = Changelog(rng, ["text", "int"])
    for number in range(8):
        for part in cut(rng, changelog.changes(rng.randint(1, 12))):
            for kind, row in part:
                if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                    fed.live.append(row)
                else:
                    fed._forget(row)
            running.feed(batch_of(part, changelog.schema))
        assert running.out.rows == table(fed.live)
        running.restore(rng.randint(1, 3))  # the same reader: nothing comes again
        ends(running, "clock")
        assert running.out.rows == table(fed.live)
        operator.replays = str(number)
        running.restore(rng.randint(1, 3))
        running.out = Applied()  # another one, which has seen nothing
        how = rng.choice(["clock", "barrier", "end", "batch"])
        ends(running, how)
        if how == "batch":
            ends(running, "clock")
        assert running.out.rows == table(fed.live)
    running.close()
