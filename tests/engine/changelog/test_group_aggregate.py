"""Group aggregates over changes.

Families: oracle (lists of what remains, aggregated one by one in Python), property (random types, changelogs, cuts,
restores at other parallelisms, both backends), example (row kinds, errors).
"""

from __future__ import annotations

import decimal
import math
import random
import statistics
import subprocess
import sys

import numpy as np
import operator_harness
import pyarrow as pa
import pytest
from aggregate_kit import aggregate_of
from campaigns import blocks, seeds
from changelog_kit import (
    BACKENDS,
    KEYS,
    KINDS,
    ORDERED,
    RUNS,
    Changelog,
    Running,
    batch_of,
    canonical,
    chosen_backend,
    columns_of,
    cut,
    multiset,
    schema_of,
)
from changelog_oracles import AGGREGATES, aggregated
from operator_harness import MAX_PARALLELISM, OperatorHarness

from headrace.engine.changelog import grouped_state
from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate, why_in_one_phase
from headrace.engine.columns.conditionals import when
from headrace.engine.columns.expressions import col, lit
from headrace.engine.columns.grouping import Groups
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import CheckpointMismatchError, ProgramError, TypeMismatchError, UserFunctionError
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.functions.aggregates.contract import ColumnarAggregates
from headrace.engine.functions.aggregates.statistics import collect_list, collect_set, median
from headrace.engine.tables import run_log, value_counts
from headrace.state.backends.heap.backend import HeapKeyedStateBackend
from headrace.state.backends.rocksdb.database import SlotMemory
from headrace.state.errors import ManagedMemoryError
from headrace.state.keyed.managed_memory import ManagedMemory
from headrace.state.keys.key_groups import key_group_range

INS, UB, UA, D = RowKind


NUMBERS = ["int", "small", "float", "decimal", "truth"]
OF = {"sum": NUMBERS, "sum_distinct": ["int", "small", "decimal"], "avg": NUMBERS, "min": ORDERED, "max": ORDERED}


def random_query(rng, *, takes_back):
    """A schema's kinds, names of keys, aggregates, and what they must give: name -> (aggregate's name, column,
    column that is not null)."""
    key_kinds = rng.choices(KEYS, k=rng.randint(0, 3))
    aggregates, wanted, kinds = {"n": f.count()}, {"n": ("count", None)}, list(key_kinds)
    names = sorted(set(AGGREGATES) - ({"first", "last"} if takes_back else set()))
    for number in range(rng.randint(0, 4)):
        name = rng.choice(names)
        kind = rng.choice(OF.get(name, KEYS))
        column = f"c{len(kinds)}"
        if len(kinds) > len(key_kinds) and rng.random() < 0.4 and kinds[-1] in OF.get(name, KEYS):
            column = f"c{len(kinds) - 1}"  # of the same values as the one before
        else:
            kinds.append(kind)
        kind = schema_of(kinds).field(column).type
        aggregates[f"a{number}"] = aggregate_of(name, col(column), kind)
        wanted[f"a{number}"] = (name, int(column[1:]))
        if (
            name in ("count", "count_distinct", "min", "max", "sum_distinct") and rng.random() < 0.4
        ):  # FILTER (WHERE it is not null)
            other = rng.randrange(len(kinds))
            chosen = when(~col(f"c{other}").is_null()).then(col(column))
            aggregates[f"a{number}"] = aggregate_of(name, chosen, kind)
            wanted[f"a{number}"] = (name, int(column[1:]), other)
    kinds.append("int")  # a column that nobody asks for
    return kinds, [f"c{index}" for index in range(len(key_kinds))], aggregates, wanted


def run_query(seed, backend, monkeypatch=None, *, folds=False):
    """With ``folds`` some batches are folded on the way, by one of two subtasks, and may be cut by key then."""
    rng = random.Random(seed)
    if monkeypatch is not None:
        backend = chosen_backend(backend, rng, monkeypatch)
        monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
        monkeypatch.setattr(grouped_state, "_MIN_DEAD", rng.choice([0, 5]))
        monkeypatch.setattr(value_counts, "_MIN_DEAD", rng.choice([0, 5]))
    takes_back = rng.random() < 0.7
    kinds, keys, aggregates, wanted = random_query(rng, takes_back=takes_back)
    changelog = Changelog(rng, kinds, takes_back=takes_back)
    schema = changelog.schema
    if folds:
        why = {
            name: why_in_one_phase(keys, {name: one}, schema, takes_back=takes_back) for name, one in aggregates.items()
        }
        aggregates = {name: one for name, one in aggregates.items() if why[name] is None}
        wanted = {name: one for name, one in wanted.items() if why[name] is None}
        local = LocalGroupAggregate(keys, aggregates, input_schema=schema, takes_back=takes_back, adapts=False)
        locals_ = [OperatorHarness(local) for _ in range(2)]
    operator = GroupAggregate(keys, aggregates, input_schema=schema, takes_back=takes_back)
    running = Running(operator, [keys], rng.randint(1, 3) if keys else 1, backend)
    applied = Changelog(rng, kinds)  # what has been fed
    for _ in range(12):
        for part in cut(rng, changelog.changes(rng.randint(1, 25))):
            for kind, row in part:
                if kind in (INS, UA):
                    applied.live.append(row)
                else:
                    applied._forget(row)
            batch = batch_of(part, schema)
            if folds and rng.random() < 0.8:
                harness = rng.choice(locals_)
                harness.operator.process_batch(batch, 0)
                batch = Batch.concat(harness.output.elements)
                assert batch.num_rows <= len(part)
                harness.output.elements.clear()
            running.feed(batch)
            assert running.out.rows == multiset(aggregated(applied.live, len(keys), wanted.values()))
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3) if keys else 1)
    running.close()
    assert takes_back or not running.kinds[D]


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_what_is_out_is_the_aggregate_of_what_remains(seed, backend, monkeypatch):
    run_query(seed, backend, monkeypatch)


@pytest.mark.parametrize("block", blocks(1, 12))
def test_two_phases_are_one(block, monkeypatch):
    for seed in seeds(block, 8):
        run_query(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch, folds=True)
        monkeypatch.undo()


def run_lists(seed, backend, monkeypatch):
    """Lists, medians, first and last values are of a group's values in order; of equal ones the earliest goes."""
    rng = random.Random(f"lists {seed}")
    backend = chosen_backend(backend, rng, monkeypatch)
    monkeypatch.setattr(grouped_state, "_MIN_DEAD", rng.choice([0, 5]))
    kinds = [*rng.choices(KEYS, k=rng.randint(0, 2)), rng.choice([*KINDS]), "int"]
    keys, values = [f"c{index}" for index in range(len(kinds) - 2)], col(f"c{len(kinds) - 2}")
    aggregates = {
        "l": collect_list(values),
        "f": f.first(values),
        "e": f.last(values),
        "m": median(f"c{len(kinds) - 1}"),
    }
    aggregates["p"] = collect_list(when(col(f"c{len(kinds) - 1}") > 1).then(values))
    changelog = Changelog(rng, kinds)
    running = Running(GroupAggregate(keys, aggregates, input_schema=changelog.schema, takes_back=True), [keys],
                      rng.randint(1, 3) if keys else 1, backend)  # fmt: skip
    groups = {} if keys else {(): [0, [], [], []]}
    for _ in range(10):
        for part in cut(rng, changelog.changes(rng.randint(1, 20))):
            for kind, row in part:
                sign, (value, number) = 1 if kind in (INS, UA) else -1, row[-2:]
                group = groups.setdefault(canonical(row[:-2]), [0, [], [], []])
                group[0] += sign
                chosen = value if number is not None and number > 1 else None
                for column, one in zip(group[1:], (value, number, chosen), strict=True):
                    one = canonical(one)
                    if one is not None and sign > 0:
                        column.append(one)
                    elif one is not None:
                        column.remove(one)
            running.feed(batch_of(part, changelog.schema))
            wanted = [
                (*key, listed, listed[0] if listed else None, listed[-1] if listed else None,
                 float(statistics.median(numbers)) if numbers else None, chosen)
                for key, (num, listed, numbers, chosen) in groups.items() if num or not keys
            ]  # fmt: skip
            assert running.out.rows == multiset(wanted)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3) if keys else 1)
    running.close()


@pytest.mark.parametrize("block", blocks(1, 12))
def test_lists_are_of_what_remains_in_order(block, monkeypatch):
    for seed in seeds(block, 3):
        run_lists(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
        monkeypatch.undo()


def test_a_value_that_is_not_there_is_not_taken_back():
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    running = Running(GroupAggregate(("k",), {"l": collect_list("v")}, input_schema=schema, takes_back=True), [["k"]])
    running.feed(batch_of([(INS, ("a", 1)), (INS, ("a", 2))], schema))
    with pytest.raises(UserFunctionError, match="takes back a value that is not there: 3"):
        running.feed(batch_of([(D, ("a", 3))], schema))


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_queries_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_query(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
        monkeypatch.undo()


def test_insert_only_results_are_those_of_columns():
    """The same records at once, by the aggregates of windows and data sets."""
    rng = random.Random(5)
    for _ in range(20):
        kinds, keys, aggregates, _ = random_query(rng, takes_back=False)
        if not keys:
            continue
        schema = schema_of(kinds)
        changes = Changelog(rng, kinds, takes_back=False).changes(200)
        running = Running(GroupAggregate(keys, aggregates, input_schema=schema, takes_back=False), [keys])
        for part in cut(rng, changes):
            running.feed(batch_of(part, schema))
        batch = columns_of([row for _, row in changes], schema)
        groups, columns = Groups.of([batch.column(key) for key in keys]), ColumnarAggregates(aggregates)
        with np.errstate(invalid="ignore"):  # sums of both infinities
            results = columns.finalise(columns.from_records(groups, batch, 0))
        taken = [*(groups.take_keys(batch.column(key)) for key in keys), *results]
        assert running.out.rows == multiset(zip(*(array.to_pylist() for array in taken), strict=True))
        running.close()


# ------------------------------------------------------------------------------------------------------------ row kinds
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def started(*, keys=("k",), takes_back=True, **aggregates):
    aggregates = aggregates or {"total": f.sum("v")}
    return Running(GroupAggregate(keys, aggregates, input_schema=SCHEMA, takes_back=takes_back), [list(keys)])


def test_kinds_are_those_of_flink():
    running = started()
    assert running.feed(batch_of([(INS, ("a", 1)), (INS, ("b", 2))], SCHEMA)) == [[(INS, ("a", 1)), (INS, ("b", 2))]]
    assert running.feed(batch_of([(INS, ("a", 3))], SCHEMA)) == [[(UB, ("a", 1)), (UA, ("a", 4))]]
    assert running.feed(batch_of([(UB, ("a", 3)), (UA, ("a", 5))], SCHEMA)) == [[(UB, ("a", 4)), (UA, ("a", 6))]]
    assert running.feed(batch_of([(D, ("b", 2))], SCHEMA)) == [[(D, ("b", 2))]]
    assert running.feed(batch_of([(INS, ("b", 7))], SCHEMA)) == [[(INS, ("b", 7))]]


def test_a_batch_is_one_net_change():
    running = started()
    assert running.feed(batch_of([(INS, ("a", 1)), (D, ("a", 1)), (INS, ("b", 1)), (INS, ("b", 1))], SCHEMA)) == [
        [(INS, ("b", 2))]
    ]
    assert running.feed(batch_of([(INS, ("b", 5)), (INS, ("b", -5))], SCHEMA)) == [[]]


def test_insertions_alone_have_no_kinds():
    running = started()
    running.harness.subtasks[0].operator.process_batch(batch_of([(INS, ("a", 1))], SCHEMA), 0)
    (batch,) = running.harness.subtasks[0].output.elements
    assert batch.row_kinds is None
    assert batch.timestamps is None


def test_a_global_group_has_a_row_from_its_first_record_on():
    running = started(keys=(), n=f.count(), total=f.sum("v"))
    assert running.feed(batch_of([(INS, ("a", 1))], SCHEMA)) == [[(INS, (1, 1))]]
    assert running.feed(batch_of([(D, ("a", 1))], SCHEMA)) == [[(UB, (1, 1)), (UA, (0, None))]]
    running.restore(1)
    assert running.feed(batch_of([(INS, ("a", 4))], SCHEMA)) == [[(UB, (0, None)), (UA, (1, 4))]]


def test_a_global_group_is_in_one_subtask():
    operator = GroupAggregate((), {"n": f.count()}, input_schema=SCHEMA, takes_back=True)
    with pytest.raises(ProgramError, match="works in one subtask; its parallelism is 2") as error:
        OperatorHarness(operator, parallelism=2)
    assert error.value.context["operator"] == "op"


def test_keys_alone_are_distinct_rows():
    running = Running(GroupAggregate(("k",), {}, input_schema=SCHEMA, takes_back=True), [["k"]])
    assert running.feed(batch_of([(INS, ("a", 1)), (INS, ("a", 2))], SCHEMA)) == [[(INS, ("a",))]]
    assert running.feed(batch_of([(D, ("a", 1))], SCHEMA)) == [[]]
    assert running.feed(batch_of([(D, ("a", 2))], SCHEMA)) == [[(D, ("a",))]]


def test_counts_of_filtered_values():
    """A FILTER is an argument that is null where the filter is not true."""
    running = started(
        some=f.count_distinct(when(col("v") > 2).then(col("v")).otherwise(lit(None, pa.int64()))),
        all=f.count_distinct("v"),
        most=f.max("v"),
        least=f.min("v"),
    )
    assert len(running.harness.subtasks[0].operator._state._values._tables) == 1
    assert running.feed(batch_of([(INS, ("a", 1)), (INS, ("a", 3)), (INS, ("a", 3))], SCHEMA)) == [
        [(INS, ("a", 1, 2, 3, 1))]
    ]
    assert running.feed(batch_of([(D, ("a", 3))], SCHEMA)) == [[]]
    assert running.feed(batch_of([(D, ("a", 3))], SCHEMA)) == [[(UB, ("a", 1, 2, 3, 1)), (UA, ("a", 0, 1, 1, 1))]]


def test_rows_of_python_objects_are_taken_by_their_type():
    running = started()
    running.harness.subtasks[0].operator.process_batch(Batch.of_rows([{"k": "a", "v": 2}, {"k": "a", "v": 3}]), 0)
    assert running.harness.take() == [({"k": "a", "total": 5}, None)]


# --------------------------------------------------------------------------------------------------------------- errors
def test_sums_that_do_not_fit_are_an_error():
    running = started()
    running.feed(batch_of([(INS, ("a", 2**63 - 1))], SCHEMA))
    running.feed(batch_of([(INS, ("a", 1)), (D, ("a", 1))], SCHEMA))  # what a batch comes to has to fit
    with pytest.raises(UserFunctionError, match="a sum of integers does not fit int64") as error:
        running.feed(batch_of([(INS, ("a", 1))], SCHEMA))
    assert error.value.context["operator"] == "op"
    assert error.value.context["subtask"] == "1/1"
    assert error.value.context["aggregate"] == "total = sum(col('v'))"


def test_sums_of_decimals_that_do_not_fit_are_an_error():
    schema = pa.schema([("k", pa.string()), ("v", pa.decimal128(38, 0))])
    running = Running(GroupAggregate(("k",), {"s": f.sum("v")}, input_schema=schema, takes_back=True), [["k"]])
    most = decimal.Decimal(10**38 - 1)
    assert running.feed(batch_of([(INS, ("a", most)), (INS, ("a", most)), (D, ("a", most))], schema)) == [
        [(INS, ("a", most))]
    ]
    with pytest.raises(UserFunctionError, match="does not fit the 38 digits"):
        running.feed(batch_of([(INS, ("a", most))], schema))


def test_what_was_not_there_cannot_be_taken_back():
    for aggregates, changes in (
        ({"n": f.count()}, [(D, ("a", 1))]),
        ({"n": f.count_distinct("v")}, [(INS, ("a", 2)), (D, ("a", 1))]),
    ):
        running = started(**aggregates)
        with pytest.raises(UserFunctionError, match=r"takes back what is not there: \{'k': 'a', 'v': 1\}") as error:
            running.feed(batch_of(changes, SCHEMA))
        assert error.value.context["operator"] == "op"


def test_insert_only_inputs_take_nothing_back():
    running = started(takes_back=False)
    with pytest.raises(TypeMismatchError, match=r"insert-only; it has a change that takes a row back \(-U\)"):
        running.feed(batch_of([(INS, ("a", 1)), (UB, ("a", 1))], SCHEMA))


def test_programs_that_mean_nothing():
    for keys, aggregates, message in (
        (("x",), {"n": f.count()}, "column 'x' is not in the records"),
        (("k",), {"k": f.count()}, "column 'k' is a key"),
        (("k",), {"n": collect_set("v")}, "is for inputs that take no rows back"),
        ((), {}, "at least one aggregate"),
    ):
        with pytest.raises(ProgramError, match=message):
            GroupAggregate(keys, aggregates, input_schema=SCHEMA, takes_back=True)


def test_schemas_of_results():
    operator = GroupAggregate(
        ("k",), {"n": f.count(), "a": f.avg("v"), "m": f.max("v")}, input_schema=SCHEMA, takes_back=True
    )
    assert operator.output_schema(SCHEMA) == pa.schema(
        [("k", pa.string()), ("n", pa.int64()), ("a", pa.float64()), ("m", pa.int64())]
    )


def test_sums_forget_what_was_rounded_when_nothing_is_left():
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    aggregates = {"n": f.count(), "s": f.sum("v")}
    running = Running(GroupAggregate((), aggregates, input_schema=schema, takes_back=True), [[]])
    changes = [(kind, ("a", value)) for kind in (INS, D) for value in (1e300, 0.1, float("nan"), math.inf, 1e-9)]
    running.feed(batch_of(changes, schema))
    assert running.feed(batch_of([(INS, ("a", 0.5))], schema)) == [[(UB, (0, None)), (UA, (1, 0.5))]]


def test_groups_that_come_and_go_leave_nothing():
    running = started(n=f.count_distinct("v"), m=f.max("v"))
    for start in range(0, 40_000, 4_000):
        rows = [(str(key), key) for key in range(start, start + 4_000)]
        running.feed(batch_of([(INS, row) for row in rows], SCHEMA))
        running.feed(batch_of([(D, row) for row in rows], SCHEMA))
    state = running.harness.subtasks[0].operator._state
    assert len(state._index) < 10_000
    assert np.array([len(counts._pairs) for counts in state._values._tables.values()]).max() < 10_000
    assert not running.out.rows


def test_no_process_imports_compilers_before_an_operator_is_opened():
    """Programs are written, and processes that run no such operator live, without numba."""
    code = "import sys, headrace, headrace.engine.changelog.group_aggregate; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_state_of_other_aggregates_is_not_taken_for_its_own():
    running = started(total=f.sum("v"))
    running.feed(batch_of([(INS, ("a", 1))], SCHEMA))
    parts = running.harness.subtasks[0].snapshot()
    operator = GroupAggregate(["k"], {"most": f.max("v")}, input_schema=SCHEMA, takes_back=True)
    with pytest.raises(CheckpointMismatchError) as error:
        OperatorHarness(operator, restored=parts)
    assert error.value.context["operator"] == "op"


def test_dictionaries_are_taken_by_their_values():
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("k", kind), ("v", kind)])
    aggregates = {"n": f.count_distinct("v"), "most": f.max("v")}
    for takes_back in (False, True):
        operator = GroupAggregate(["k"], aggregates, input_schema=schema, takes_back=takes_back)
        running = Running(operator, [["k"]])
        columns = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["x", None, "y"]).dictionary_encode()]
        running.feed(Batch.of_columns(pa.RecordBatch.from_arrays(columns, schema=schema)))
        columns = [pa.array(["c", "a"]).dictionary_encode(), pa.array(["x", "y"]).dictionary_encode()]
        running.feed(Batch.of_columns(pa.RecordBatch.from_arrays(columns, schema=schema)))
        assert running.out.rows == multiset([("a", 2, "y"), ("b", 0, None), ("c", 1, "x")])
        running.restore(2)
        running.feed(Batch.of_columns(pa.RecordBatch.from_arrays(columns, schema=schema)))
        assert running.out.rows == multiset([("a", 2, "y"), ("b", 0, None), ("c", 1, "x")])


def test_conditions_may_guard_what_is_counted():
    """What is computed where the condition is true is computed nowhere else: it would fail there."""
    some = when(col("v") > 0).then(lit(6) // col("v")).otherwise(None)
    running = started(n=f.count_distinct(some), all=f.count_distinct("v"))
    assert running.feed(batch_of([(INS, ("a", 0)), (INS, ("a", 2)), (INS, ("a", 3))], SCHEMA)) == [[(INS, ("a", 2, 3))]]
    assert len(running.harness.subtasks[0].operator._state._values._tables) == 2


# --------------------------------------------------------------------------------------------------------------- memory
def test_tables_that_do_not_fit_are_an_error_on_the_heap(monkeypatch):
    memory = ManagedMemory(200_000)
    groups = key_group_range(MAX_PARALLELISM, 1, 0)
    state = HeapKeyedStateBackend("op", groups, MAX_PARALLELISM, account=memory.account())
    monkeypatch.setattr(operator_harness, "keyed_state", lambda *_given: state)
    running = started()
    running.feed(batch_of([(INS, ("a", 1))], SCHEMA))
    assert 0 < state.managed_bytes() == memory.used_bytes < 20_000
    with pytest.raises(
        ManagedMemoryError, match=r"'groups' does not fit.*share of managed memory is 195.3 KiB"
    ) as error:
        running.feed(batch_of([(INS, (str(number), number)) for number in range(5_000)], SCHEMA))
    assert error.value.context["operator"] == "op"
    assert error.value.context["subtask"] == "1/1"
    assert "rocksdb" in error.value.hint


def test_tables_hold_no_more_than_there_is_room_for(monkeypatch):
    room = 300_000
    monkeypatch.setattr(SlotMemory, "table_share", lambda _memory: room)
    aggregates = {"n": f.count(), "most": f.max("v"), "least": f.min("v")}
    operator = GroupAggregate(("k",), aggregates, input_schema=SCHEMA, takes_back=True)
    running, rng = Running(operator, [["k"]], backend="rocksdb"), np.random.default_rng(3)
    held = {}
    for _ in range(8):
        keys = rng.integers(0, 6_000, 1_500).tolist()
        running.feed(batch_of([(INS, (str(key), key % 7)) for key in keys], SCHEMA))
        for key in keys:
            held[str(key)] = held.get(str(key), 0) + 1
        (subtask,) = running.harness.subtasks
        assert subtask.operator._state.residents._count() <= room
        assert room / 4 < subtask.keyed_state._table_bytes < subtask.keyed_state.managed_bytes()
    assert running.out.rows == multiset((key, num, int(key) % 7, int(key) % 7) for key, num in held.items())
    assert len(subtask.operator._state.residents) < len(held) / 2
    running.close()


def test_a_restore_reads_keys_when_they_come():
    running = Running(
        GroupAggregate(("k",), {"n": f.count()}, input_schema=SCHEMA, takes_back=True), [["k"]], 1, "rocksdb"
    )
    running.feed(batch_of([(INS, (str(number), number)) for number in range(100)], SCHEMA))
    running.restore(1)
    residents = running.harness.subtasks[0].operator._state.residents
    assert len(residents) == 0
    assert running.feed(batch_of([(INS, ("7", 1))], SCHEMA)) == [[(UB, ("7", 1)), (UA, ("7", 2))]]
    assert len(residents) == 1
    running.restore(1)
    assert running.feed(batch_of([(D, ("7", 1)), (D, ("8", 8))], SCHEMA)) == [
        [(UB, ("7", 2)), (UA, ("7", 1)), (D, ("8", 1))]
    ]
    running.close()
