"""A source as somebody else would write it: folders of numbers, in which every check of a source's contract means
something; and ways to get it wrong.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import cloudpickle

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    Polled,
    SourceReader,
    Split,
    SplitFinished,
)
from headrace.engine.errors import MalformedRecordError, SourceError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass
class Shelf:
    """A directory with a file of JSON lines per part. ``gone`` in it means that it is away."""

    directory: Path

    def put(self, part, numbers):
        with open(self.directory / f"{part}.part", "a") as file:
            file.writelines(f"{number}\n" for number in numbers)

    def put_bad(self, part):
        self.put(part, ["bad"])

    def stop(self):
        (self.directory / "gone").touch()

    def start(self):
        (self.directory / "gone").unlink(missing_ok=True)

    def pause(self):
        self.stop()

    def resume(self):
        self.start()

    def parts(self):
        self.check(None, None)
        return sorted(int(path.stem) for path in self.directory.glob("*.part"))

    def lines(self, part, position):
        self.check(str(part), position)
        text = (self.directory / f"{part}.part").read_text()
        return text[: text.rfind("\n") + 1].splitlines()[position:]

    def check(self, split, position):
        if (self.directory / "gone").exists():
            message = "the shelf is away"
            raise SourceError(message, split=split, position=position)


class ShelfSource:
    """Reads a shelf: what is there and ends, or without end."""

    def __init__(self, shelf, *, is_bounded=False, skips=False, reader=None, enumerator=None):
        self.shelf, self.is_bounded, self.skips = shelf, is_bounded, skips
        self.reader, self.enumerator = reader or ShelfReader, enumerator or ShelfEnumerator

    def create_reader(self):
        return self.reader(self)

    def create_enumerator(self, context):
        return self.enumerator(self)


class ShelfEnumerator:
    def __init__(self, source):
        self.shelf, self.is_bounded = source.shelf, source.is_bounded
        self.discovery_interval_ms = None if source.is_bounded else 1_000

    def discover(self):
        splits = [
            Split(str(part), {"end": len(self.shelf.lines(part, 0)) if self.is_bounded else None}, 0, is_bounded=False)
            for part in self.shelf.parts()
        ]
        return Discovery(splits, is_final=self.is_bounded, is_repeatable=True)


class ShelfReader(SourceReader):
    """Takes the parts in turn."""

    def __init__(self, source):
        self.shelf, self.skips = source.shelf, source.skips

    def open(self, context):
        self.context = context
        self.positions = {}
        self.splits = {}

    def add_splits(self, splits):
        for split in splits:
            self.splits[split.split_id] = split
            self.positions[split.split_id] = split.position

    def poll(self, max_records):
        if not self.positions:
            return ALL_SPLITS_FINISHED
        for split_id in list(self.positions):
            position = self.positions.pop(split_id)
            self.positions[split_id] = position  # behind all others
            end = self.splits[split_id].payload["end"]
            if position == end:
                del self.positions[split_id]
                return SplitFinished(split_id)
            lines = self.lines(split_id, position, max_records, end)
            if lines:
                return Polled(split_id, Batch.of_rows(lines))
            if self.positions[split_id] != position:
                return Polled(split_id, Batch.of_rows([]))
        return NOTHING_NOW

    def lines(self, split_id, position, max_records, end):
        """The next numbers; the position goes on behind them."""
        found = self.shelf.lines(int(split_id.partition("-")[0]), position)[:max_records]
        found = found if end is None else found[: end - position]
        good = found[: found.index("bad")] if "bad" in found else found
        if "bad" in found and not good:
            return self.bad(split_id, position)
        self.positions[split_id] = position + len(good)
        return [json.loads(line) for line in good]

    def bad(self, split_id, position):
        if not self.skips:
            message = "this is no number"
            raise MalformedRecordError(message, split=split_id, position=position)
        self.context.metrics.count("num_records_skipped")
        self.positions[split_id] = position + 1
        return []

    def snapshot(self):
        return [Split(one, self.splits[one].payload, position) for one, position in self.positions.items()]


# ---------------------------------------------------------------------------------------------- readers that are wrong
class Forgetful(ShelfReader):
    """Its checkpoints do not hold how far it is."""

    def snapshot(self):
        return [self.splits[one] for one in self.positions]


class KeepsThePositionLate(ShelfReader):
    """The position goes on with the next poll, as in a loop that commits behind the record."""

    def open(self, context):
        super().open(context)
        self.kept = {}

    def add_splits(self, splits):
        super().add_splits(splits)
        self.kept.update((split.split_id, split.position) for split in splits)

    def poll(self, max_records):
        self.kept = dict(self.positions)
        return super().poll(max_records)

    def snapshot(self):
        return [Split(one, self.splits[one].payload, self.kept[one]) for one in self.positions]


class KeepsThePositionEarly(ShelfReader):
    """Reads ahead, and its position is that of what it has fetched."""

    def open(self, context):
        super().open(context)
        self.fetched = {}

    def lines(self, split_id, position, max_records, end):
        if not self.fetched.get(split_id):
            self.fetched[split_id] = super().lines(split_id, position, 2 * max_records, end)
        given = self.fetched[split_id][:max_records]
        self.fetched[split_id] = self.fetched[split_id][max_records:]
        return given


class ForgetsFreshSplits(ShelfReader):
    """What it has not begun to read is not in its checkpoints."""

    def snapshot(self):
        return [split for split in super().snapshot() if split.position]


class TakesOneSplit(ShelfReader):
    """Takes the first of the splits it is given."""

    def add_splits(self, splits):
        super().add_splits(splits[:1])


class PassesOverBadRecords(ShelfReader):
    def bad(self, split_id, position):
        self.positions[split_id] = position + 1
        return []


class DoesNotSayWhere(ShelfReader):
    def bad(self, split_id, position):
        if not self.skips:
            message = "this is no number"
            raise MalformedRecordError(message)
        return super().bad(split_id, position)


class SkipsABlock(ShelfReader):
    """Skips what comes with a bad record, too."""

    def lines(self, split_id, position, max_records, end):
        found = self.shelf.lines(int(split_id.partition("-")[0]), position)[:max_records]
        if self.skips and "bad" in found:
            self.context.metrics.count("num_records_skipped", found.count("bad"))
            self.positions[split_id] = position + len(found)
            return []
        return super().lines(split_id, position, max_records, end)


class StartsAnewWithItsServer(ShelfReader):
    """Connects again by itself, and begins at the beginning."""

    def poll(self, max_records):
        try:
            return super().poll(max_records)
        except SourceError:
            self.positions = dict.fromkeys(self.positions, 0)
            return NOTHING_NOW


class TakesItsServerForTheEnd(ShelfReader):
    """Where nothing can be read, it says that all is read."""

    def poll(self, max_records):
        try:
            return super().poll(max_records)
        except SourceError:
            split_id = next(iter(self.positions))
            del self.positions[split_id]
            return SplitFinished(split_id)


class ReadsOneAfterTheOther(ShelfReader):
    """Waits for more of its first part while the others have something."""

    def poll(self, max_records):
        if not self.positions:
            return ALL_SPLITS_FINISHED
        split_id = next(iter(self.positions))
        lines = self.lines(split_id, self.positions[split_id], max_records, None)
        return Polled(split_id, Batch.of_rows(lines)) if lines else NOTHING_NOW


class SaysTheWrongSplit(ShelfReader):
    """Gives records of all its parts as those of one."""

    def poll(self, max_records):
        polled = super().poll(max_records)
        return Polled(min(self.positions), polled.batch) if isinstance(polled, Polled) else polled


class NeverEnds(ShelfReader):
    def poll(self, max_records):
        polled = super().poll(max_records)
        if isinstance(polled, SplitFinished):
            self.positions[polled.split_id] = self.splits[polled.split_id].payload["end"]
            return NOTHING_NOW
        return polled


class LooksOnce(ShelfEnumerator):
    def __init__(self, source):
        super().__init__(source)
        self.discovery_interval_ms = None


class NamesSplitsAnew(ShelfEnumerator):
    """The same part has another name for another leader."""

    def discover(self):
        found = super().discover()
        splits = [Split(f"{split.split_id}-{id(self)}", split.payload, 0, is_bounded=False) for split in found.splits]
        return Discovery(splits, found.is_final, is_repeatable=True)


class Reverses(ShelfReader):
    def lines(self, split_id, position, max_records, end):
        return super().lines(split_id, position, max_records, end)[::-1]
