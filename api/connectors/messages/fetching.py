"""Reads splits side by side, each from a position on: threads fetch, and the task gives what they have got.

A connector says how its client fetches (`ClientThread`), how a piece that was fetched becomes records and moves its
split's position, and where a split ends. Positions are kept twice: the thread knows how far a split was fetched, the
task how far it was given.

Invariant: a split's snapshot is behind the last message that was given, or passed over.

Source: Flink's ``SourceReaderBase``, ``SplitFetcherManager``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)

from .client_thread import ClientThread

__all__ = ["POLL_MS", "Fetched", "FetchingReader", "Reading"]

POLL_MS = 5
"""How soon to look again when nothing was there."""

CLOSE_TIMEOUT_S = 2.0


class Reading(Protocol):
    """A split and how far it was fetched, or given."""

    @property
    def is_at_end(self) -> bool:
        """Whether no more of it is read."""
        ...

    def as_split(self) -> Split:
        """Return the split, with its position."""
        ...


class Fetched(Protocol):
    """A piece of a split, as a thread gives it."""

    @property
    def split_id(self) -> str:
        """Whose it is."""
        ...

    @property
    def num_messages(self) -> int:
        """How many messages it has."""
        ...


SomeReading = TypeVar("SomeReading", bound=Reading)
SomeFetched = TypeVar("SomeFetched", bound=Fetched)
Fetcher = TypeVar("Fetcher", bound=ClientThread)


class FetchingReader(SourceReader, ABC, Generic[SomeReading, SomeFetched, Fetcher]):
    """Reads the splits of one subtask."""

    def __init__(self) -> None:
        # How far splits were given; those that are read to their end are gone.
        self._readings: dict[str, SomeReading] = {}
        # Which of them fetches a split; one for each time that splits were handed out.
        self._fetchers: dict[str, Fetcher] = {}
        # Which of them is asked first: where all have more than is wanted, the others would never be asked.
        self._turn = 0

    @abstractmethod
    def reading_of(self, split: Split) -> SomeReading:
        """Return where a split is.

        Raises:
            CheckpointMismatchError: If its position is none of this connector.
        """

    @abstractmethod
    def fetcher_of(self, readings: Sequence[SomeReading]) -> Fetcher:
        """Return a thread, not started, that gives pieces of these; it moves them as it fetches."""

    @abstractmethod
    def read(self, reading: SomeReading, fetched: SomeFetched) -> Batch:
        """Return the records of a piece; moves the reading behind it.

        Raises:
            MalformedRecordError: If a message cannot be decoded and that is to fail.
        """

    def open(self, context: ReaderContext) -> None:
        self._context = context

    def add_splits(self, splits: list[Split]) -> None:
        if not splits:
            return  # nobody would end a thread for none
        self._readings.update({split.split_id: self.reading_of(split) for split in splits})
        fetcher = self.fetcher_of([self.reading_of(split) for split in splits])
        self._fetchers.update({split.split_id: fetcher for split in splits})
        fetcher.start()

    def poll(self, max_records: int) -> Any:
        if not self._readings:
            return ALL_SPLITS_FINISHED
        found: list[Polled | SplitFinished] = []
        num_messages = 0
        fetchers = self._all_fetchers()
        self._turn = (self._turn + 1) % len(fetchers)
        for fetcher in fetchers[self._turn :] + fetchers[: self._turn]:
            while num_messages < max_records and (fetched := fetcher.take()) is not None:
                num_messages += fetched.num_messages
                reading = self._readings.get(fetched.split_id)
                if reading is not None:  # what was sent ahead may lie behind the end
                    batch = self.read(reading, fetched)
                    found += [Polled(fetched.split_id, batch)] if len(batch) else []
        for split_id in [name for name, reading in self._readings.items() if reading.is_at_end]:
            del self._readings[split_id]
            found.append(SplitFinished(split_id))
        return found or NOTHING_NOW

    def _all_fetchers(self) -> list[Fetcher]:
        return list(dict.fromkeys(self._fetchers.values()))

    def next_poll_ms(self) -> int | None:
        return self._context.now_ms() + POLL_MS

    def snapshot(self) -> list[Split]:
        return [reading.as_split() for reading in self._readings.values()]

    def close(self) -> None:
        fetchers = self._all_fetchers()
        self._fetchers.clear()
        for fetcher in fetchers:
            fetcher.stop(CLOSE_TIMEOUT_S)
