"""OVER over changes.

Families: oracle (plain loops over sorted lists), property (random types, orders, frames, changelogs, cuts, restores at
other parallelisms, both backends), example (row kinds, errors).
"""

from __future__ import annotations

import random

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
from changelog_oracles import over

from headrace.engine.changelog import partition_rows
from headrace.engine.changelog.over_changes import ChangingOver
from headrace.engine.columns.records import RowKind
from headrace.engine.errors import ProgramError, TypeMismatchError, UserFunctionError
from headrace.engine.frames.frame_calls import (
    Frame,
    cume_dist,
    dense_rank,
    lag,
    lead,
    ntile,
    percent_rank,
    rank,
    row_number,
)
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.tables import row_store, run_log
from headrace.engine.tables.row_store import RowStore

INS, UB, UA, D = RowKind
MAKERS = {"row_number": row_number, "rank": rank, "dense_rank": dense_rank, "ntile": ntile,
          "percent_rank": percent_rank, "cume_dist": cume_dist, "lag": lag, "lead": lead, "count": f.count,
          "sum": f.sum, "avg": f.avg, "min": f.min, "max": f.max, "count_distinct": f.count_distinct, "first": f.first,
          "last": f.last}  # fmt: skip
PLACES = ["row_number", "rank", "dense_rank", "ntile", "percent_rank", "cume_dist"]
OF_NUMBERS = ["int", "small", "float", "decimal"]


def draw_spec(rng, column, kind):
    """A name with a column."""
    names = ["count", "first", "last", "lag", "lead"]
    names += ["count_distinct"] if kind != "list" else []
    names += ["sum", "sum", "avg"] if kind in OF_NUMBERS else []
    names += ["min", "max"] if kind in ORDERED else []
    name = rng.choice(names)
    return (name, column, rng.randint(0, 3)) if name in ("lag", "lead") else (name, column)


def draw_frame(rng, num_orders, kind):
    """A frame, and the same for the oracle."""
    low, high = rng.choice([(None, 0), (-2, 0), (0, 0), (-3, -1), (1, 2), (-1, 1), (None, None), (0, None), (None, 2)])
    what = rng.choice(["none", "rows", "range"])
    if what == "none" or not num_orders:
        return None, None
    if what == "rows":
        return Frame(low, high), ("rows", low, high)
    if num_orders > 1 or kind not in ("int", "small"):
        return None, None
    return Frame(low, high, is_range=True), ("range", low, high)


def run_over(seed, backend, monkeypatch):
    rng = random.Random(seed)
    backend = chosen_backend(backend, rng, monkeypatch)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    for module in (row_store, partition_rows):
        monkeypatch.setattr(module, "_MIN_DEAD", rng.choice([0, 5]))
    monkeypatch.setattr(RowStore, "hash_bits", rng.choice([1, -1]))
    num_keys, num_orders = rng.randint(0, 2), rng.randint(0, 2)
    others = rng.choices(list(KINDS), k=rng.randint(1, 2))
    kinds = [*rng.choices(KEYS, k=num_keys), *rng.choices(ORDERED, k=num_orders), *others]
    orders = [
        (num_keys + index, rng.random() < 0.5, rng.choice([None, None, True, False])) for index in range(num_orders)
    ]
    frame, plain_frame = draw_frame(rng, num_orders, kinds[num_keys] if num_orders else None)
    if frame is not None and frame.is_range:
        orders = [(column, ascending, None) for column, ascending, _ in orders]
    specs = [draw_spec(rng, num_keys + num_orders + index, kind) for index, kind in enumerate(others)]
    place = rng.choice([*PLACES, *["count"] * len(PLACES)])
    specs += [(place, None, rng.randint(1, 5))] if place == "ntile" else [(place, None)]
    changelog, fed = Changelog(rng, kinds, takes_back=rng.random() < 0.7), Changelog(rng, kinds)
    names = [f"c{index}" for index in range(num_keys)]
    operator = ChangingOver(
        names,
        [(f"c{column}", ascending, nulls) for column, ascending, nulls in orders],
        {
            f"o{index}": MAKERS[name](*([] if column is None else [f"c{column}"]), *rest)
            for index, (name, column, *rest) in enumerate(specs)
        },
        input_schema=changelog.schema,
        frame=frame,
    )
    running = Running(operator, [names], rng.randint(1, 3) if num_keys else 1, backend)
    for _ in range(10):
        for part in cut(rng, changelog.changes(rng.randint(1, 12))):
            for kind, row in part:
                if kind in (INS, UA):
                    fed.live.append(row)
                else:
                    fed._forget(row)
            running.feed(batch_of(part, changelog.schema))
            wanted = over(fed.live, num_keys, orders, specs, plain_frame)
            assert running.out.rows == multiset(wanted)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3) if num_keys else 1)
    running.close()


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_is_what_the_rows_that_remain_come_to(seed, backend, monkeypatch):
    run_over(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 6))
def test_overs_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_over(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
        monkeypatch.undo()


# ------------------------------------------------------------------------------------------------------------- examples
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


def started(columns, **options):
    running = Running(ChangingOver(("k",), [("t", True, None)], columns, input_schema=SCHEMA, **options), [["k"]])
    running.give = lambda *changes: running.feed(batch_of(changes, SCHEMA))[0]
    return running


def test_a_row_that_comes_updates_those_whose_frames_it_is_in_and_no_others():
    running = started({"s": f.sum("v")}, frame=Frame(-1, 0))
    assert running.give((INS, ("a", 1, 10)), (INS, ("a", 5, 50)), (INS, ("b", 5, 7)), (INS, ("a", 9, 90))) == [
        (INS, ("a", 1, 10, 10)), (INS, ("a", 5, 50, 60)), (INS, ("a", 9, 90, 140)), (INS, ("b", 5, 7, 7)),
    ]  # fmt: skip
    assert running.give((INS, ("a", 3, 30))) == [
        (UB, ("a", 5, 50, 60)), (UA, ("a", 5, 50, 80)), (INS, ("a", 3, 30, 40)),
    ]  # fmt: skip
    assert running.give((D, ("a", 3, 30))) == [
        (D, ("a", 3, 30, 40)), (UB, ("a", 5, 50, 80)), (UA, ("a", 5, 50, 60)),
    ]  # fmt: skip
    running.close()


def test_a_partition_whose_rows_are_all_gone_is_forgotten():
    running = started({"n": row_number()})
    running.give((INS, ("a", 1, 1)))
    assert running.give((D, ("a", 1, 1))) == [(D, ("a", 1, 1, 1))]
    assert running.give((INS, ("a", 2, 2))) == [(INS, ("a", 2, 2, 1))]
    running.close()


def test_a_row_that_was_never_there_cannot_be_taken_back():
    running = started({"n": row_number()})
    running.give((INS, ("a", 1, 1)))
    with pytest.raises(UserFunctionError, match="takes back what is not there"):
        running.give((D, ("a", 1, 2)))
    running.close()


def test_what_means_nothing_is_refused():
    def made(*arguments, **options):
        return ChangingOver(*arguments, input_schema=SCHEMA, **options)

    with pytest.raises(ProgramError, match="'z'"):
        made(("z",), [], {"n": row_number()})
    with pytest.raises(ProgramError, match="'z'"):
        made(("k",), [("z", True, None)], {"n": row_number()})
    with pytest.raises(ProgramError, match="there already"):
        made(("k",), [("t", True, None)], {"v": row_number()})
    with pytest.raises(TypeMismatchError, match="distance"):
        made((), [("k", True, None)], {"n": f.count()}, frame=Frame(-1, 0, is_range=True))


def test_a_planted_bug_is_caught(monkeypatch):
    """Rows whose columns are others than before are not updated."""
    monkeypatch.setattr(partition_rows, "same_rows", lambda *given: __import__("numpy").ones(given[-1], bool))
    with pytest.raises(AssertionError):
        for seed in range(10):
            with monkeypatch.context() as patch:
                run_over(seed, "heap", patch)
