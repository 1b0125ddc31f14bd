"""How connectors are driven in these tests: a clock by hand, readers cut and resumed anywhere, sinks crashed anywhere.

The fixtures are classes, not objects, and of session scope, so that hypothesis may use them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from reading_kit import close_readers, reader_of

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    EnumeratorContext,
    Polled,
    Split,
    SplitFinished,
)
from headrace.engine.kernel.metrics import MetricGroup
from headrace.testing import SinkTestHarness


class Clock:
    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Reading:
    """Reads sources as the engine would: one reader, splits in order of discovery."""

    def __init__(self, clock: Clock | None = None, parallelism: int = 1) -> None:
        self.clock = clock or Clock()
        self.parallelism = parallelism
        self.metrics = MetricGroup()
        self.dead_letters: list[dict[str, Any]] = []

    def discover(self, source: Any) -> list[Split]:
        discovery = source.create_enumerator(EnumeratorContext(self.parallelism)).discover()
        return [through_json(split) for split in discovery.splits]

    def open(self, source: Any) -> Any:
        return reader_of(
            source,
            [],
            operator_name="source",
            parallelism=self.parallelism,
            now_ms=self.clock,
            metrics=self.metrics,
            emit_dead_letter=lambda batch: self.dead_letters.extend(batch.rows),
        )

    def batches(self, source: Any, max_records: int = 1 << 16, splits: list[Split] | None = None) -> list[Batch]:
        found: list[Batch] = []
        reader = self.open(source)
        for split in self.discover(source) if splits is None else splits:
            reader.add_splits([split])
            while True:
                polled = reader.poll(max_records)
                if isinstance(polled, SplitFinished):
                    break
                assert polled is not NOTHING_NOW
                assert polled is not ALL_SPLITS_FINISHED
                assert polled.split_id == split.split_id
                assert polled.batch.num_rows <= max_records
                found.append(polled.batch)
            assert reader.snapshot() == []
        assert reader.poll(max_records) is ALL_SPLITS_FINISHED
        reader.close()
        return found

    def rows(self, source: Any, max_records: int = 1 << 16) -> list[Any]:
        return [row for batch in self.batches(source, max_records) for row in batch.rows]

    def rows_with_cuts(self, source: Any, cuts: Iterable[int]) -> list[Any]:
        """Everything, by readers that are thrown away after ``n`` polls for each n of ``cuts``; sizes of polls follow
        from ``n``."""
        todo = self.discover(source)
        open_splits: list[Split] = []
        rows: list[Any] = []
        plan = iter(cuts)
        while True:
            reader = self.open(source)
            reader.add_splits(open_splits)
            num_polls = next(plan, None)
            count = 0
            while num_polls is None or count < num_polls:
                count += 1
                polled = reader.poll(1 + (count * 7 + (num_polls or 0)) % 13)
                if isinstance(polled, Polled):
                    rows.extend(polled.batch.rows)
                elif polled is ALL_SPLITS_FINISHED:
                    if not todo:
                        reader.close()
                        return rows
                    reader.add_splits([todo.pop(0)])
            open_splits = [through_json(split) for split in reader.snapshot()]
            reader.close()


def through_json(split: Split) -> Split:
    """As a checkpoint would hold it."""
    return Split(split.split_id, json.loads(json.dumps(split.payload)), json.loads(json.dumps(split.position)))


class CrashError(BaseException):
    """The process died here: nothing catches it."""

    strikes_from_outside = True


@pytest.fixture(autouse=True)
def no_reader_stays_open() -> Iterator[None]:
    """What a test has opened by `reading_kit` ends with it, whether or not it comes to its end."""
    yield
    close_readers()


@pytest.fixture(scope="session")
def reading() -> type[Reading]:
    return Reading


@pytest.fixture(scope="session")
def clock_class() -> type[Clock]:
    return Clock


@pytest.fixture(scope="session")
def sink_job() -> type[SinkTestHarness]:
    return SinkTestHarness


@pytest.fixture(scope="session")
def crash_error() -> type[CrashError]:
    return CrashError
