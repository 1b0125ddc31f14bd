"""What readers of messages share: threads that fetch, and positions of what was given.

Families: contract (a source on this base passes what every source must, without a server of its own) and mutation (a
position that goes ahead with what was fetched is caught); and fairness (splits that come later are not left behind).
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

import cloudpickle
import pytest
from shelf_source import Shelf, ShelfSource

from headrace.connectors.messages.client_thread import AwayError, ClientThread
from headrace.connectors.messages.decoding import MessageDecoder
from headrace.connectors.messages.fetching import Fetched, FetchingReader
from headrace.engine.connectors.contract import NOTHING_NOW, ReaderContext, Split, SplitFinished
from headrace.engine.errors import SourceError
from headrace.engine.kernel.metrics import MetricGroup
from headrace.formats.messages import JsonMessages
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

cloudpickle.register_pickle_by_value(sys.modules[__name__])

AT_ONCE = 7


@dataclass
class PartReading:
    part: str
    at: int
    end: int | None

    @property
    def is_at_end(self):
        return self.end is not None and self.at >= self.end

    def as_split(self):
        return Split(self.part, {"end": self.end}, self.at)


@dataclass(frozen=True)
class Lines:
    split_id: str
    first: int
    lines: list[str]

    @property
    def num_messages(self):
        return len(self.lines)


class ShelfFetcher(ClientThread):
    """Fetches lines, ahead of those that are given."""

    def __init__(self, shelf, readings):
        super().__init__("shelf", 3, 60.0)
        self.shelf, self.readings = shelf, readings

    def connect(self):
        return

    def disconnect(self):
        return

    def work(self):
        found = [self.fetch(reading) for reading in self.readings]
        if not any(found):
            self.pause(0.005)

    def fetch(self, reading):
        try:
            lines = self.shelf.lines(int(reading.part), reading.at)[:AT_ONCE]
        except SourceError as error:
            raise AwayError(str(error)) from error
        first, reading.at = reading.at, reading.at + len(lines)
        if lines:  # maybe behind the end
            self.give(Lines(reading.part, first, lines))
        return bool(lines)


class FetchingShelfReader(FetchingReader[PartReading, Lines, ShelfFetcher]):
    def __init__(self, source):
        super().__init__()
        self.shelf = source.shelf
        self.decoder = MessageDecoder(
            JsonMessages(), lambda line: line[1].encode(), lambda line: f"line {line[0]}", {}, {},
            "skip" if source.skips else "fail",
        )  # fmt: skip

    def reading_of(self, split):
        return PartReading(split.split_id, split.position, split.payload["end"])

    def fetcher_of(self, readings):
        return ShelfFetcher(self.shelf, readings)

    def read(self, reading, fetched: Fetched):
        lines = [
            (number, line)
            for number, line in enumerate(fetched.lines, fetched.first)
            if reading.end is None or number < reading.end
        ]
        batch = self.decoder.decode(self._context, reading.part, lines)
        reading.at += len(lines)
        return batch


class SharesItsPositions(FetchingShelfReader):
    """The task's positions are the thread's."""

    def add_splits(self, splits):
        super().add_splits(splits)
        for fetcher in self._fetchers.values():
            self._readings.update({reading.part: reading for reading in fetcher.readings})

    def read(self, reading, fetched):
        at = reading.at
        batch = super().read(reading, fetched)
        reading.at = at
        return batch


def subject_of(tmp_path, *, stops, reader=FetchingShelfReader):
    place = Shelf(tmp_path)

    def source(*, skips=False):
        return ShelfSource(place, is_bounded=stops, skips=skips, reader=reader)

    return SourceSubject(
        source(), number=int, put=place.put, num_parts=3, grows=not stops, discovers=not stops, reads_side_by_side=True,
        put_bad=place.put_bad, passing_over=source(skips=True), server=place,
    )  # fmt: skip


@pytest.mark.parametrize("stops", [False, True], ids=["endless", "bounded"])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_a_source_that_fetches(check, stops, tmp_path):
    check(subject_of(tmp_path, stops=stops))


def test_positions_that_go_ahead_with_what_was_fetched_are_caught(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.testing.sources.harness.PATIENCE_S", 0.5)
    (check,) = [check for check in SOURCE_CONTRACT if check.__name__ == "goes_on_from_any_checkpoint"]
    with pytest.raises(AssertionError):
        check(subject_of(tmp_path, stops=False, reader=SharesItsPositions))


def test_a_split_at_its_end_is_finished_and_what_lies_behind_it_not_given(tmp_path):
    place = Shelf(tmp_path)
    place.put(0, range(20))
    place.put(1, range(20))
    reader = FetchingShelfReader(ShelfSource(place, is_bounded=True))
    reader.open(ReaderContext("shelf", 0, 1, lambda: 0, MetricGroup(), lambda batch: None))
    reader.add_splits([Split("0", {"end": 3}, 0), Split("1", {"end": 5}, 5)])
    found = []
    while reader.snapshot():
        polled = reader.poll(100)
        found += [] if polled is NOTHING_NOW else polled
    reader.close()
    assert {part.split_id for part in found if isinstance(part, SplitFinished)} == {"0", "1"}
    assert [row for part in found if not isinstance(part, SplitFinished) for row in part.batch.rows] == [0, 1, 2]


class NeverEmpty:
    """Stands for a thread that has always got more."""

    def __init__(self, part):
        self.part = part

    def start(self):
        return

    def take(self):
        return Lines(self.part, 0, ["1"] * AT_ONCE)


def test_threads_that_always_have_more_than_is_wanted_are_asked_in_turn(tmp_path):
    reader = FetchingShelfReader(ShelfSource(Shelf(tmp_path), is_bounded=False))
    reader.fetcher_of = lambda readings: NeverEmpty(readings[0].part)
    reader.open(ReaderContext("shelf", 0, 1, lambda: 0, MetricGroup(), lambda batch: None))
    for part in range(3):
        reader.add_splits([Split(str(part), {"end": None}, 0)])
    given = Counter()
    for _ in range(60):
        for polled in reader.poll(AT_ONCE):
            given[polled.split_id] += len(polled.batch)
    assert given == {str(part): 20 * AT_ONCE for part in range(3)}
