"""One row of each key, or an error: against counts of rows by key.

Families: oracle, property (random changelogs, cuts, restores at other parallelisms, both backends).
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from campaigns import campaign
from changelog_kit import Running, chosen_backend, multiset

from headrace.engine.changelog.one_row import OneRow
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import ConflictingRowsError

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def changes_of(rng, rows, num, num_keys):
    """Changes, and the rows that there are behind them; few keys have two rows."""
    made = []
    for _ in range(num):
        if rows and rng.random() < 0.5:
            made.append((RowKind.DELETE, rows.pop(rng.randrange(len(rows)))))
        else:
            row = (rng.randrange(num_keys), rng.randrange(3))
            rows.append(row)
            made.append((RowKind.INSERT, row))
    return made


def batch_of(changes):
    columns = pa.RecordBatch.from_pylist([{"k": k, "v": v} for _, (k, v) in changes], SCHEMA)
    return Batch.of_columns(columns, None, np.array([kind for kind, _ in changes], np.int8))


@pytest.mark.parametrize("backend", ["heap", "rocksdb", campaign("rocksdb without room")])
def test_conflicts_are_those_that_are_there_at_a_barrier(backend, monkeypatch):
    seen = Counter()
    for seed in range(12 if backend == "heap" else 6):
        rng = random.Random(seed)
        chosen = chosen_backend(backend, rng, monkeypatch)
        running = Running(OneRow(["k"], input_schema=SCHEMA), [["k"]], rng.choice([1, 3]), chosen)
        rows = []
        for _ in range(12):
            crowded_between = False
            for _ in range(rng.randrange(1, 4)):
                changes = changes_of(rng, rows, rng.randrange(1, 6), 60)
                running.feed(batch_of(changes))
                crowded_between |= max(Counter(k for k, _ in rows).values(), default=0) > 1
            crowded = {k for k, num in Counter(k for k, _ in rows).items() if num > 1}
            seen["between"] += crowded_between and not crowded
            if crowded:
                with pytest.raises(ConflictingRowsError) as caught:
                    running.restore(rng.choice([1, 2, 3]))
                assert any(f"{{'k': {k}}}" in str(caught.value) for k in crowded)
                seen["conflicts"] += 1
                break
            running.restore(rng.choice([1, 2, 3]))
            assert running.out.rows == multiset(rows)
            seen["sound"] += 1
        running.close()
    assert min(seen["conflicts"], seen["sound"], seen["between"]) > 0
