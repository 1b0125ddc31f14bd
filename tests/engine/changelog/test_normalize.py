"""The latest row of each key, told as upserts and deletions, as changes that take rows back.

Families: oracle (a dictionary), property (random types, upserts, cuts, restores at other parallelisms and under another
time to live, all backends), example (row kinds, nets, errors).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import BACKENDS, KEYS, KINDS, RUNS, Running, batch_of, chosen_backend, cut, random_value, schema_of
from expiry_oracles import ByKey

from headrace.engine.changelog import latest_rows
from headrace.engine.changelog.normalize import ChangelogNormalize
from headrace.engine.columns.records import RowKind
from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.tables import run_log
from headrace.state.keyed.stored_names import StoredNames

INS, UB, UA, D = RowKind
TTLS = [0, 0, 3, 10, 40]


class Latest(ByKey):
    """A dictionary: what goes out is net for each batch, and nothing where a row expires."""

    def feed(self, changes, now):
        self.expire(now)
        last = {self.key_of(row): (kind, row) for kind, row in changes if kind != UB}
        for key, (kind, row) in last.items():
            if key in self.parts:
                self.take(self.parts.pop(key)[1])
            if kind != D:
                self.give(row)
                self.parts[key] = [now, row]


def upserts(rng, kinds, num_keys, num):
    """Rows of few keys, deletions without anything but the key, and what there was before, which does not count."""
    for _ in range(num):
        key = tuple(random_value(rng, kind, nulls=0) for kind in kinds[:num_keys])
        what = rng.choice([INS, UA, UA, UB, D])
        nulls = 1 if what == D and rng.random() < 0.8 else 0.15
        yield what, (*key, *(random_value(rng, kind, nulls) for kind in kinds[num_keys:]))


def run_normalize(seed, backend, monkeypatch):
    rng = random.Random(seed)
    backend = chosen_backend(backend, rng, monkeypatch)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(latest_rows, "_MIN_DEAD", rng.choice([0, 5]))
    num_keys = rng.randint(1, 2)
    kinds = [*rng.choices(KEYS, k=num_keys), *rng.choices(list(KINDS), k=rng.randint(0, 3))]
    schema, names = schema_of(kinds), [f"c{index}" for index in range(num_keys)]

    def make(ttl):
        operator = ChangelogNormalize(names, input_schema=schema, ttl_ms=ttl)
        operator.stored = StoredNames()  # so that a later one may have a time to live, or none
        return operator

    model, now = Latest(rng.choice(TTLS), num_keys), 1_000
    running = Running(make(model.ttls[0]), [names], rng.randint(1, 3), backend)
    for _ in range(14):
        for part in cut(rng, list(upserts(rng, kinds, num_keys, rng.randint(1, 12)))):
            now += rng.choice([0, 0, 1, 2, 5, 20])
            for subtask in running.harness.subtasks:
                subtask.now_ms = now
            running.feed(batch_of(part, schema))
            model.feed(part, now)
            assert running.out.rows == model.out
        if rng.random() < 0.3:
            ttls = model.ttls if rng.random() < 0.7 else [rng.choice(TTLS)]
            running.harness._operator = make(ttls[0])
            running.restore(rng.randint(1, 3))
            model.restore(ttls, now)
    running.close()


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_is_the_latest_row_of_each_key(seed, backend, monkeypatch):
    run_normalize(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 6))
def test_latest_rows_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_normalize(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
        monkeypatch.undo()


# ------------------------------------------------------------------------------------------------------------ row kinds
SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.string())])


def started(**options):
    running = Running(ChangelogNormalize(["k"], input_schema=SCHEMA, **options), [["k"]])
    running.give = lambda *changes: running.feed(batch_of(changes, SCHEMA))[0]
    return running


def test_rows_replace_one_another():
    running = started()
    assert running.give((INS, (1, "a")), (INS, (2, "b"))) == [(INS, (1, "a")), (INS, (2, "b"))]
    assert running.give((INS, (3, "a"))) == [(UB, (1, "a")), (UA, (3, "a"))]
    assert running.give((D, (None, "a")), (D, (None, "nobody"))) == [(D, (3, "a"))]
    assert running.give((D, (None, "a"))) == []
    assert running.give((UA, (4, "a"))) == [(INS, (4, "a"))]


def test_of_a_batch_the_last_row_counts_and_what_is_told_twice_gives_nothing():
    running = started()
    assert running.give((INS, (1, "a")), (D, (None, "a")), (INS, (2, "a"))) == [(INS, (2, "a"))]
    assert running.give((INS, (7, "a")), (INS, (2, "a"))) == []
    assert running.give((INS, (7, "a")), (UB, (7, "a"))) == [(UB, (2, "a")), (UA, (7, "a"))]


def test_with_a_time_to_live_what_is_written_is_heard_of():
    running = started(ttl_ms=10)
    assert running.give((INS, (1, "a"))) == [(INS, (1, "a"))]
    assert running.give((INS, (1, "a"))) == [(UB, (1, "a")), (UA, (1, "a"))]


def test_rows_have_keys():
    with pytest.raises(TypeMismatchError, match="column 'k' of the PRIMARY KEY is null"):
        started().give((INS, (1, None)))
    with pytest.raises(ProgramError, match="column 'key' is not in the records"):
        ChangelogNormalize(["key"], input_schema=SCHEMA)
