"""Heavy records on their way through a whole job: few of them, however many there are. Family: counting.

What is counted is records, at the moment in which each is made; nothing depends on how fast anything is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from headrace import KeyedProcessFunction, StreamExecutionEnvironment
from headrace.actors.local.system import LocalSystem
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.columns import records
from headrace.engine.connectors.contract import SinkWriter

HEAVY_BYTES = 10_000_000
COUNT = 60
MADE, PROCESSED, WRITTEN = 1, 2, 3


class Book:
    """How far each record is, and how many there were on each way when it was made; a file, for every process.

    Each cell has one writer at a time: the one that has the record.
    """

    def __init__(self, path: Any) -> None:
        self.path = str(path)
        np.zeros((3, COUNT), np.int64).tofile(self.path)

    @property
    def cells(self) -> npt.NDArray[np.int64]:
        return np.memmap(self.path, np.int64, "r+", shape=(3, COUNT))

    def made(self, number: int) -> None:
        cells = self.cells
        cells[0, number] = MADE
        for way in (MADE, PROCESSED):
            cells[way, number] = np.count_nonzero(cells[0] == way)

    def moved(self, number: int, state: int) -> None:
        cells = self.cells
        assert cells[0, number] == state - 1
        cells[0, number] = state


class Note(KeyedProcessFunction):
    def __init__(self, book: Book) -> None:
        self.book = book

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.book.moved(value["v"], PROCESSED)
        yield value


class NotingSink:
    def __init__(self, book: Book) -> None:
        self.book = book

    def create_writer(self) -> SinkWriter:
        return NotingWriter(self.book)


class NotingWriter(SinkWriter):
    def __init__(self, book: Book) -> None:
        self.book = book

    def write(self, batch: Any) -> None:
        for row in batch.rows:
            self.book.moved(row["v"], WRITTEN)


def by_rows(env: StreamExecutionEnvironment, book: Book) -> Any:
    def make(number: int) -> Any:
        book.made(number)
        return {"v": number, "p": bytes(HEAVY_BYTES)}

    numbers = env.from_source(GeneratorSource(make, COUNT), None, "numbers")
    return numbers.key_by(lambda row: row["v"] % 7).process(Note(book))


def by_columns(env: StreamExecutionEnvironment, book: Book) -> Any:
    def make(start: int, length: int) -> Any:
        for number in range(start, start + length):
            book.made(number)
        return pa.record_batch({"v": np.arange(start, start + length), "p": [bytes(HEAVY_BYTES)] * length})

    def note(columns: Any) -> Any:
        for number in columns["v"].to_pylist():
            book.moved(number, PROCESSED)
        return columns

    numbers = env.from_source(GeneratorSource.batches(make, COUNT, batch_size=10), None, "numbers")
    return numbers.rebalance().map_batches(note)


@pytest.fixture(autouse=True)
def no_time(monkeypatch):
    """No work takes any time, so that steps are bounded by bytes alone."""
    monkeypatch.setattr(LocalSystem, "stopwatch_us", lambda _system, _host: 0)


def most_on_each_way(tmp_path: Any, build: Any, parallelism: int) -> tuple[int, int]:
    book = Book(tmp_path / "book")
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        build(env, book).rebalance().sink_to(NotingSink(book))
        env.execute("heavy records")
    cells = book.cells
    assert (cells[0] == WRITTEN).all()
    return int(cells[MADE].max()), int(cells[PROCESSED].max())


def most_allowed(parallelism: int) -> int:
    """Of each channel one record gathers and two are on their way, as 16 MB of credit are; and each sender has one."""
    return 3 * parallelism**2 + parallelism


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("build", [by_rows, by_columns])
@pytest.mark.sampled(4)
def test_few_heavy_records_are_on_their_way(tmp_path, build, parallelism):
    most = max(most_on_each_way(tmp_path, build, parallelism))
    assert most <= most_allowed(parallelism) < COUNT // 2 + 1


def test_if_the_bytes_of_rows_were_not_counted_many_would_be(tmp_path, monkeypatch):
    """The test above would notice."""
    monkeypatch.setattr(records, "rows_nbytes", lambda rows: 64 * len(rows))
    assert max(most_on_each_way(tmp_path, by_rows, 1)) > most_allowed(1)
