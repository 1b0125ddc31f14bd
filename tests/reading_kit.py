"""Readers of sources under hand: one subtask, polled until it has given what a test waits for.

What is made here is closed when its test ends (`close_readers`): a client that is left would go on to ask its server.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
)
from headrace.engine.errors import HeadraceError
from headrace.engine.kernel.metrics import MetricGroup

__all__ = ["Reading", "close_readers", "read_some", "reader_of", "splits_of"]

_made: list[SourceReader] = []
"""Readers of the test that runs, some of which it may have closed."""


def splits_of(source: Any) -> list[Split]:
    """The splits that a source has now."""
    splits: list[Split] = source.create_enumerator(EnumeratorContext(1)).discover().splits
    return splits


def reader_of(source: Any, splits: list[Split] | None = None, **known: Any) -> SourceReader:
    """A reader, open, of these splits, or of all that there are.

    Args:
        source: Its source.
        splits: What it reads.
        known: What it knows of its place, by names of `ReaderContext`.
    """
    reader: SourceReader = source.create_reader()
    _made.append(reader)
    place = {"operator_name": "in", "subtask": 0, "parallelism": 1, "now_ms": lambda: 0, "metrics": MetricGroup()}
    reader.open(ReaderContext(**{**place, "emit_dead_letter": lambda batch: None, **known}))
    reader.add_splits(splits_of(source) if splits is None else splits)
    return reader


def close_readers() -> None:
    """Close all readers that were made here since the last time."""
    while _made:
        _made.pop().close()


def read_some(reader: SourceReader, number: int | None = None, at_once: int = 3) -> list[Any]:
    """So many records, or all that are left; a few more, as pages have several."""
    rows: list[Any] = []
    while (number is None or len(rows) < number) and (found := reader.poll(at_once)) is not ALL_SPLITS_FINISHED:
        rows += _rows_of(found)
    return rows


def _rows_of(polled: Any) -> list[Any]:
    """The records of what a reader gives at once."""
    parts = polled if isinstance(polled, list) else [polled]
    return [row for part in parts if isinstance(part, Polled) for row in part.batch.rows]


class Reading:
    """A reader, and what it says beside its records.

    Args:
        source: Its source.
        splits: What it reads; all that there is if not said.
        checkpointing: Whether it is told of checkpoints.

    Attributes:
        reader: The reader.
        letters: Its dead letters.
        warnings: What it has written into the job's history.
        events: What it has sent to its enumerator.
        metrics: Its metrics.
        now_ms: The clock, which stands still.
    """

    def __init__(self, source: Any, splits: list[Split] | None = None, *, checkpointing: bool = True) -> None:
        self.letters: list[Any] = []
        self.warnings: list[str] = []
        self.events: list[Any] = []
        self.metrics = MetricGroup()
        self.now_ms = 0
        self.reader = reader_of(
            source,
            splits,
            now_ms=lambda: self.now_ms,
            metrics=self.metrics,
            emit_dead_letter=lambda batch: self.letters.extend(batch.rows),
            warn=self.warnings.append,
            send_source_event=self.events.append,
            checkpointing=checkpointing,
        )
        self._is_over = False

    def poll(self) -> list[Any]:
        """What it gives now."""
        found = self.reader.poll(100)
        self._is_over = found is ALL_SPLITS_FINISHED
        return _rows_of(found)

    def rows(self, number: int = 1 << 30) -> list[Any]:
        """So many rows, or all up to the end."""
        rows: list[Any] = []
        while len(rows) < number and not self._is_over:
            rows += self.poll()
        return rows

    def fails(self) -> str:
        """What the error says that it ends with."""
        with pytest.raises(HeadraceError) as told:
            while True:
                self.poll()
        self.reader.close()
        return str(told.value)

    def checkpoint(self, number: int) -> list[Split]:
        """A checkpoint that is complete; gives where it has come to."""
        splits: list[Split] = self.reader.snapshot_for(number)
        self.reader.notify_checkpoint_complete(number)
        return splits

    def close(self) -> list[Split]:
        """Close it; gives where it has come to."""
        splits: list[Split] = self.reader.snapshot()
        self.reader.close()
        return splits
