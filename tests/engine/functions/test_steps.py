"""How much a task does in one step, by a stopwatch of our own. Families: scenario with costs, property."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.records import Batch
from headrace.engine.columns.sizes import MIN_ROW_BYTES, rows_nbytes
from headrace.engine.functions.steps import STEP_US, WITHHELD_MS, StepMeter, WithheldWatermark
from headrace.engine.kernel.config import JobSettings

MAX_ROWS = 65_536
WHOLE = Batch.of_rows([0] * MAX_ROWS)


class Worker:
    """Takes batches as a task does; each record costs so many microseconds."""

    def __init__(self, max_bytes: int = 16 << 20, step_us: int = STEP_US) -> None:
        self.now_us = 0.0
        self.meter = StepMeter(lambda: int(self.now_us), MAX_ROWS, max_bytes, step_us)
        self.pieces: list[int] = []

    def work_off(self, batch: Batch, cost_us: float) -> list[int]:
        self.pieces = []
        offset = 0
        while offset < batch.num_rows:
            rows = self.meter.rows_of(batch, offset)
            self.now_us += rows * cost_us
            self.meter.took()
            self.pieces.append(rows)
            offset += rows
        assert offset == batch.num_rows
        return self.pieces


@pytest.mark.parametrize("cost_us", [100, 1_000, 5_000, 19_000, 1_000_000])
def test_no_piece_of_a_batch_takes_long_not_even_the_first(cost_us: int) -> None:
    pieces = Worker().work_off(Batch.of_rows([0] * 5_000), cost_us)
    assert max(pieces) * cost_us <= max(STEP_US, cost_us)
    assert pieces[0] == 1


def test_a_job_that_wants_shorter_steps_gets_them() -> None:
    pieces = Worker(step_us=2_500).work_off(Batch.of_rows([0] * 5_000), 100)
    assert max(pieces) == 25
    assert JobSettings().step_us == STEP_US


def test_cheap_records_are_taken_whole_soon() -> None:
    worker = Worker()
    assert len(worker.work_off(WHOLE, 0.1)) <= 8
    assert worker.work_off(WHOLE, 0.1) == [MAX_ROWS]


def test_records_that_become_expensive_make_one_long_step() -> None:
    worker = Worker()
    worker.work_off(WHOLE, 0.1)
    pieces = worker.work_off(WHOLE, 5_000)
    assert pieces == [MAX_ROWS]
    assert max(worker.work_off(Batch.of_rows([0] * 100), 5_000)) == 4


def test_one_step_that_a_busy_machine_held_up_does_not_make_the_next_ones_tiny() -> None:
    worker = Worker()
    worker.work_off(WHOLE, 0.1)
    worker.work_off(WHOLE, 400_000 / MAX_ROWS)
    assert worker.work_off(WHOLE, 0.1) == [MAX_ROWS // 4, MAX_ROWS - MAX_ROWS // 4]


def test_heavy_records_are_taken_one_at_a_time_however_cheap_they_are() -> None:
    heavy = Batch.of_rows([bytes(1_000_000) for _ in range(8)])
    assert Worker(max_bytes=2_500_000).work_off(heavy, 0) == [1, 2, 2, 2, 1]
    columns = Batch.of_columns(pa.record_batch({"a": np.zeros(80_000, np.int64)}))
    assert max(Worker(max_bytes=100_000).work_off(columns, 0)) <= 12_500


def test_a_source_reads_fewer_records_when_they_are_heavy() -> None:
    worker = Worker(max_bytes=10_000_000)
    read = []
    for _ in range(6):
        asked = worker.meter.rows_to_read(MAX_ROWS)
        worker.meter.has_read(Batch.of_rows([bytes(4_000_000)] * asked), asked)
        worker.meter.took()
        read.append(asked)
    assert read == [1, 2, 2, 2, 2, 2]


def test_what_nobody_measures_is_not_cut() -> None:
    assert StepMeter().rows_of(WHOLE) == MAX_ROWS
    assert StepMeter().rows_to_read(77) == 77


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0, 1, 50, 700, 30_000, 900_000])), max_size=20))
def test_whatever_records_cost_each_is_taken_once(batches: list[tuple[int, int]]) -> None:
    worker = Worker(max_bytes=64 * 50)
    for num_rows, cost_us in batches:
        pieces = worker.work_off(Batch.of_rows([0] * num_rows), cost_us)
        assert all(0 < piece <= 50 for piece in pieces)


# ----------------------------------------------------------------------------------------------------------- watermarks
def test_a_watermark_waits_for_the_rest_of_its_batch_but_not_for_long() -> None:
    step = StepMeter(lambda: 0, 100)
    withheld = WithheldWatermark(step)
    step.is_cut = True
    withheld.add(10)
    assert withheld.waits(1_000)
    assert withheld.due_ms == 1_000 + WITHHELD_MS
    assert not withheld.waits(1_000 + WITHHELD_MS), "it has waited long enough"
    assert withheld.due_ms is None
    withheld.add(99)
    assert withheld.waits(5_000)
    withheld.add(1)
    assert not withheld.waits(5_001), "a whole batch has gone out"
    withheld.add(1)
    assert withheld.waits(6_000)
    step.is_cut = False
    assert not withheld.waits(6_000), "that was the last piece"


def test_a_clock_that_goes_back_does_not_withhold_a_watermark() -> None:
    step = StepMeter(lambda: 0, 100)
    withheld = WithheldWatermark(step)
    step.is_cut = True
    assert withheld.waits(1_000)
    assert not withheld.waits(-5_000)


# ---------------------------------------------------------------------------------------------------------------- sizes
class Plain:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload


class Slotted:
    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


@pytest.mark.parametrize(
    "wrap",
    [
        lambda payload: payload,
        lambda payload: {"a": 1, "payload": payload},
        lambda payload: (1, payload),
        lambda payload: {"deep": {"deeper": [payload]}},
        Plain,
        Slotted,
        lambda payload: np.frombuffer(payload, np.uint8),
        lambda payload: pa.array([payload]),
    ],
)
def test_a_large_value_is_found_wherever_it_is(wrap) -> None:
    rows = [wrap(bytes(100_000)) for _ in range(3)]
    assert 300_000 <= rows_nbytes(rows) < 310_000


def test_an_object_whose_attributes_fail_has_a_size_all_the_same() -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:
            raise RuntimeError

    assert rows_nbytes([Odd()]) >= MIN_ROW_BYTES


def test_of_many_rows_a_few_stand_for_all() -> None:
    assert rows_nbytes([bytes(1_000)] * 100_000) == 100_000 * sys.getsizeof(bytes(1_000))
    assert rows_nbytes(list(range(10_000))) == 10_000 * MIN_ROW_BYTES
    assert rows_nbytes([]) == 0


def test_rows_that_came_from_another_process_keep_their_size_without_being_built() -> None:
    import pickle

    batch = Batch.of_rows([bytes(5_000)] * 40)
    again = pickle.loads(pickle.dumps(batch))
    assert again.nbytes == batch.nbytes
    assert again._rows is None
