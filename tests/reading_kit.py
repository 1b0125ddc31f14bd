"""A reader of a source of messages under hand: one subtask, polled until it has given what a test waits for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    EnumeratorContext,
    ReaderContext,
    Split,
)
from headrace.engine.errors import HeadraceError
from headrace.engine.kernel.metrics import MetricGroup

__all__ = ["Reading"]


class Reading:
    """A reader of all splits of a source, or of those that are given.

    Attributes:
        reader: The reader.
        letters: Its dead letters.
    """

    def __init__(self, source: Any, splits: list[Split] | None = None) -> None:
        self.letters: list[Any] = []
        self.reader = source.create_reader()
        self.reader.open(ReaderContext("in", 0, 1, lambda: 0, MetricGroup(), self.letters.append))
        self.reader.add_splits(splits or source.create_enumerator(EnumeratorContext(1)).discover().splits)
        self._is_over = False

    def poll(self) -> list[Any]:
        """What it gives now."""
        found = self.reader.poll(100)
        self._is_over = found is ALL_SPLITS_FINISHED
        if self._is_over or found is NOTHING_NOW:
            return []
        return [row for part in found if hasattr(part, "batch") for row in part.batch.rows]

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

    def close(self) -> list[Split]:
        """Close it; gives where it has come to."""
        splits: list[Split] = self.reader.snapshot()
        self.reader.close()
        return splits
