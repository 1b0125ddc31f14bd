"""The first rows of partitions, over changes.

Families: oracle (a sorted list for each partition), property (random types, orders, changelogs, cuts, restores at other
parallelisms, both backends), example (row kinds, nets, errors).
"""

from __future__ import annotations

import random
import subprocess
import sys

import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import (
    BACKENDS,
    KEYS,
    KINDS,
    ORDERED,
    RUNS,
    Changelog,
    Running,
    batch_of,
    chosen_backend,
    cut,
    multiset,
)
from changelog_oracles import first_rows
from operator_harness import OperatorHarness

from headrace.engine.changelog import rank_state
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import ProgramError, TypeMismatchError, UserFunctionError
from headrace.engine.tables import row_store, run_log
from headrace.engine.tables.row_store import RowStore

INS, UB, UA, D = RowKind


def run_rank(seed, backend, monkeypatch=None):
    rng = random.Random(seed)
    if monkeypatch is not None:
        backend = chosen_backend(backend, rng, monkeypatch)
        monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
        monkeypatch.setattr(row_store, "_MIN_DEAD", rng.choice([0, 5]))
        monkeypatch.setattr(rank_state, "_MIN_DEAD", rng.choice([0, 5]))
        monkeypatch.setattr(RowStore, "hash_bits", rng.choice([1, -1]))
    takes_back, num_keys, num_orders = rng.random() < 0.6, rng.randint(0, 2), rng.randint(0, 2)
    kinds = [*rng.choices(KEYS, k=num_keys), *rng.choices(ORDERED, k=num_orders)]
    kinds += [*rng.choices(list(KINDS), k=rng.randint(0, 2)), "int"]
    orders = [
        (num_keys + index, rng.random() < 0.5, rng.choice([None, None, True, False])) for index in range(num_orders)
    ]
    offset, limit = rng.choice([0, 0, 0, 1, 3]), rng.choice([1, 1, 2, 3, 10])
    numbered, ties_keep_last = rng.random() < 0.5, rng.random() < 0.3
    changelog, fed = Changelog(rng, kinds, takes_back=takes_back), Changelog(rng, kinds)
    names = [f"c{index}" for index in range(num_keys)]
    operator = Rank(
        names,
        [(f"c{column}", ascending, nulls) for column, ascending, nulls in orders],
        input_schema=changelog.schema,
        offset=offset,
        limit=limit,
        number="number" if numbered else None,
        takes_back=takes_back,
        ties_keep_last=ties_keep_last,
    )
    running = Running(operator, [names], rng.randint(1, 3) if num_keys else 1, backend)
    for _ in range(14):
        for part in cut(rng, changelog.changes(rng.randint(1, 12))):
            for kind, row in part:
                if kind in (INS, UA):
                    fed.live.append(row)
                else:
                    fed._forget(row)
            running.feed(batch_of(part, changelog.schema))
            wanted = first_rows(
                fed.live,
                num_keys,
                orders,
                offset=offset,
                limit=limit,
                numbered=numbered,
                ties_keep_last=ties_keep_last,
            )
            assert running.out.rows == multiset(wanted)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3) if num_keys else 1)
    running.close()


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_are_the_first_of_what_remains(seed, backend, monkeypatch):
    run_rank(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_ranks_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_rank(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
        monkeypatch.undo()


# ------------------------------------------------------------------------------------------------------------ row kinds
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.string())])


def started(orders=(("v", False, None),), **options):
    options = {"limit": 2, "takes_back": True} | options
    running = Running(Rank(("k",), orders, input_schema=SCHEMA, **options), [["k"]])
    running.give = lambda *changes: running.feed(batch_of(changes, SCHEMA))[0]
    return running


def test_numbered_places_are_updated():
    running = started(number="n")
    assert running.give((INS, ("a", 1, "p"))) == [(INS, ("a", 1, "p", 1))]
    assert running.give((INS, ("a", 3, "q"))) == [
        (UB, ("a", 1, "p", 1)),
        (UA, ("a", 3, "q", 1)),
        (INS, ("a", 1, "p", 2)),
    ]
    assert running.give((INS, ("a", 0, "r"))) == []
    assert running.give((D, ("a", 3, "q"))) == [
        (UB, ("a", 3, "q", 1)),
        (UA, ("a", 1, "p", 1)),
        (UB, ("a", 1, "p", 2)),
        (UA, ("a", 0, "r", 2)),
    ]
    assert running.give((D, ("a", 1, "p")), (D, ("a", 0, "r"))) == [(D, ("a", 1, "p", 1)), (D, ("a", 0, "r", 2))]


def test_rows_without_numbers_leave_and_come():
    running = started()
    assert running.give((INS, ("a", 1, "p")), (INS, ("a", 3, "q"))) == [(INS, ("a", 3, "q")), (INS, ("a", 1, "p"))]
    assert running.give((INS, ("a", 2, "r"))) == [(D, ("a", 1, "p")), (INS, ("a", 2, "r"))]
    assert running.give((UB, ("a", 3, "q")), (UA, ("a", 0, "q"))) == [(D, ("a", 3, "q")), (INS, ("a", 1, "p"))]


def test_what_only_changes_places_gives_nothing_without_numbers():
    running = started()
    running.give((INS, ("a", 1, "p")), (INS, ("a", 3, "q")))
    assert running.give((D, ("a", 3, "q")), (INS, ("a", 3, "q"))) == []
    assert running.give((D, ("a", 3, "q")), (INS, ("a", 3, "q")), (INS, ("a", 9, "z")), (D, ("a", 9, "z"))) == []


def test_deduplication():
    first = started((("v", True, None),), limit=1, takes_back=False)
    assert first.give((INS, ("a", 2, "p")), (INS, ("a", 2, "q"))) == [(INS, ("a", 2, "p"))]
    assert first.give((INS, ("a", 3, "r")), (INS, ("a", 2, "s"))) == []
    assert first.give((INS, ("a", 1, "t"))) == [(UB, ("a", 2, "p")), (UA, ("a", 1, "t"))]
    last = started((("v", False, None),), limit=1, takes_back=False, ties_keep_last=True)
    assert last.give((INS, ("a", 2, "p")), (INS, ("a", 2, "q"))) == [(INS, ("a", 2, "q"))]
    assert last.give((INS, ("a", 2, "r"))) == [(UB, ("a", 2, "q")), (UA, ("a", 2, "r"))]
    arrival = started((), limit=1, takes_back=False, ties_keep_last=True)
    assert arrival.give((INS, ("a", 2, "p")), (INS, ("a", 1, "q"))) == [(INS, ("a", 1, "q"))]


def test_insert_only_inputs_keep_the_first_rows_alone():
    running = started(limit=3, takes_back=False)
    for start in range(0, 20_000, 1_000):
        running.give(*((INS, (str(number % 10), number % 977, "x")) for number in range(start, start + 1_000)))
    state = running.harness.subtasks[0].operator._state
    assert state._store.num_live == 30
    assert state._store.size < 2_000
    running.restore(1)
    assert running.harness.subtasks[0].operator._state._store.num_live == 30


def test_rows_and_partitions_that_are_gone_are_forgotten():
    running = started()
    for start in range(0, 20_000, 2_000):
        rows = [(str(key), key, "x") for key in range(start, start + 2_000)]
        running.give(*((INS, row) for row in rows))
        running.give(*((D, row) for row in rows))
    state = running.harness.subtasks[0].operator._state
    assert state._store.size < 6_000
    assert len(state._index) < 6_000
    assert not running.out.rows


# --------------------------------------------------------------------------------------------------------------- errors
def test_what_was_not_there_cannot_be_taken_back():
    running = started()
    running.give((INS, ("a", 1, "p")))
    with pytest.raises(UserFunctionError, match="takes back what is not there") as error:
        running.give((D, ("a", 1, "q")))
    assert error.value.context["operator"] == "op"
    with pytest.raises(TypeMismatchError, match="insert-only"):
        started(takes_back=False).give((D, ("a", 1, "q")))


def test_programs_that_mean_nothing():
    for options, message in (
        ({"limit": 0}, "a limit is at least 1"),
        ({"offset": -1}, "an offset at least 0"),
        ({"number": "v"}, "column 'v' is there already"),
        ({"orders": (("y", True, None),)}, "order by: column 'y'"),
    ):
        with pytest.raises(ProgramError, match=message):
            started(**options)
    with pytest.raises(ProgramError, match="works in one subtask"):
        OperatorHarness(Rank((), (), input_schema=SCHEMA, limit=1, takes_back=True), parallelism=3)


def test_no_process_imports_compilers_before_an_operator_is_opened():
    code = "import sys, headrace.engine.changelog.rank; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dictionaries_are_taken_by_their_values():
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("k", kind), ("v", kind)])
    operator = Rank(["k"], [("v", True, None)], input_schema=schema, limit=1, takes_back=True)
    running = Running(operator, [["k"]])
    for keys, values in ((["a", "b"], ["x", "y"]), (["b", "a"], ["x", "z"])):
        columns = [pa.array(keys).dictionary_encode(), pa.array(values).dictionary_encode()]
        running.feed(Batch.of_columns(pa.RecordBatch.from_arrays(columns, schema=schema)))
        running.restore(2)
    assert running.out.rows == multiset([("a", "x"), ("b", "x")])
    assert operator.output_schema() == pa.schema([("k", pa.string()), ("v", pa.string())])
