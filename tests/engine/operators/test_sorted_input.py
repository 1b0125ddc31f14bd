"""The gathered input of a keyed operator: order, several inputs, spilling; against Python's own sort."""

import random

import numpy as np
import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.records import MIN_TIMESTAMP, Batch
from headrace.engine.errors import UserFunctionError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.operators.sorted_input import SortedInput
from headrace.state.keyed.managed_memory import ManagedMemory
from headrace.state.keys.hashing import hash_key

PLENTY = 1 << 30


def drained(gathered):
    while gathered.merge_some():
        pass
    while (following := gathered.next()) is not None:
        batch, input_index = following
        times = [MIN_TIMESTAMP] * batch.num_rows if batch.timestamps is None else batch.timestamps.tolist()
        yield from ((input_index, row, time) for row, time in zip(batch.rows, times, strict=True))


def in_order(records):
    """(input, row, time) in the order of arrival, as they are to come out."""
    return sorted(records, key=lambda record: (hash_key(record[1]["key"]), record[2], record[0]))


@pytest.mark.parametrize("memory_bytes", [PLENTY, 20_000, 1])
@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("num_inputs", [1, 2, 3, 7])
def test_records_come_key_by_key_in_the_order_of_time(memory_bytes, columnar, num_inputs):
    rng = random.Random(f"{memory_bytes}-{columnar}-{num_inputs}")
    gathered = SortedInput([KeySelector.of_field("key")] * num_inputs, memory_bytes, None, None)
    expected = []
    for number in range(60):
        input_index = rng.randrange(num_inputs)
        rows = [{"key": rng.randrange(9), "n": 100 * number + i} for i in range(rng.randint(1, 40))]
        times = [rng.randrange(50) for _ in rows]
        batch = Batch.of_rows(rows, np.array(times, dtype=np.int64))
        if columnar:
            batch = Batch.of_columns(pa.RecordBatch.from_pylist(rows), batch.timestamps)
        gathered.add(batch, input_index)
        expected += [(input_index, row, time) for row, time in zip(rows, times, strict=True)]
    assert list(drained(gathered)) == in_order(expected)
    assert (gathered.num_spilled_bytes > 0) is (memory_bytes < PLENTY)
    gathered.close()


def test_records_without_time_come_in_the_order_of_arrival():
    gathered = SortedInput([KeySelector.of_field("key")], 1, None, None)
    rows = [{"key": n % 3, "n": n} for n in range(30)]
    for row in rows:
        gathered.add(Batch.of_rows([row]), 0)
    found = [row for _, row, _ in drained(gathered)]
    assert [row["n"] for row in found if row["key"] == 1] == list(range(1, 30, 3))
    assert sorted(row["n"] for row in found) == list(range(30))
    gathered.close()


def test_what_is_put_back_comes_next():
    gathered = SortedInput([KeySelector.of_field("key")], PLENTY, None, None)
    gathered.add(Batch.of_rows([{"key": 1, "n": n} for n in range(4)]), 0)
    while gathered.merge_some():
        pass
    batch, input_index = gathered.next()
    gathered.put_back(batch.slice(1, 3), input_index)
    assert [row["n"] for _, row, _ in drained(gathered)] == [1, 2, 3]
    gathered.close()


def test_a_skewed_key_is_never_in_memory_as_a_whole():
    gathered = SortedInput([KeySelector.of_field("key")], 400_000, None, None)
    for number in range(40):
        rows = [{"key": "one", "text": "x" * 200, "n": 500 * number + i} for i in range(500)]
        gathered.add(Batch.of_rows(rows, np.arange(500 * number, 500 * number + 500)[::-1].copy()), 0)
    sizes = []
    while gathered.merge_some():
        pass
    while (following := gathered.next()) is not None:
        sizes.append(following[0].nbytes)
    assert sum(sizes) > 4_000_000
    assert max(sizes) < 1_000_000
    gathered.close()


def test_a_key_function_that_fails_is_named():
    gathered = SortedInput([KeySelector.of_function(lambda row: 1 // row)], PLENTY, None, None)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        gathered.add(Batch.of_rows([0]), 0)
    gathered.close()


@given(
    seed=st.integers(0, 2**32),
    memory_bytes=st.sampled_from((1, 3_000, 100_000, 1 << 20, 8 << 20)),
    num_keys=st.sampled_from((1, 4, 1_000)),
    num_inputs=st.integers(1, 12),
)
@settings(max_examples=examples(60))
def test_any_input_in_any_memory_comes_in_order_and_memory_is_given_back(seed, memory_bytes, num_keys, num_inputs):
    """Of a key of any number of records, records of any size, runs of any number; pieces of it put back."""
    rng = random.Random(seed)
    memory = ManagedMemory(16 << 20)
    account = memory.account()
    account.reserve(memory_bytes, 1)
    gathered = SortedInput([KeySelector.of_field("key")] * num_inputs, memory_bytes, None, None, account)
    expected, large = [], rng.choice((10, 3_000))
    for number in range(rng.choice((0, 1, 90))):
        input_index = rng.randrange(num_inputs)
        rows = [
            {"key": rng.randrange(num_keys), "n": 100 * number + i, "text": "x" * rng.randrange(large)}
            for i in range(rng.randint(0, 40))
        ]
        times = None if rng.random() < 0.2 else np.array([rng.randrange(9) for _ in rows], dtype=np.int64)
        gathered.add(Batch.of_rows(rows, times), input_index)
        expected += [
            (input_index, row, MIN_TIMESTAMP if times is None else int(times[i])) for i, row in enumerate(rows)
        ]
    while gathered.merge_some():
        pass
    found = []
    while (following := gathered.next()) is not None:
        batch, input_index = following
        assert batch.num_rows > 0
        if rng.random() < 0.3 and batch.num_rows > 1:
            num_rows = rng.randrange(1, batch.num_rows)
            gathered.put_back(batch.slice(num_rows, batch.num_rows - num_rows), input_index)
            batch = batch.slice(0, num_rows)
        times = [MIN_TIMESTAMP] * batch.num_rows if batch.timestamps is None else batch.timestamps.tolist()
        found += [(input_index, row, time) for row, time in zip(batch.rows, times, strict=True)]
    assert found == in_order(expected)
    gathered.close()
    gathered.close()
    assert memory.used_bytes == 0
