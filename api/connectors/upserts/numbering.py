"""Numbers that a sink makes itself for what it writes, each greater than all that were made before for the same place.

A record without an order of its own has its place in the stream: of two records of a key the later one is newer.
Services compare numbers, so each request is given one. Numbers come in blocks. A block is reserved in a cell of the
service itself, by compare-and-set, above all that were reserved before: by other attempts, subtasks and jobs, whatever
their clocks say. The clock only gives a number to begin above, so that what other programs have written by their clocks
is older.

An attempt that was replaced may use its block up, which is below those of its successor. It gets no other one: the cell
knows who has reserved, and of a subtask only the newest attempt may go on. At another parallelism keys belong to other
subtasks; so then any newer attempt shuts out all older ones.

Invariant: what the cell holds as the last number only grows, and no number is used before the cell holds one that is
not less.
"""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.engine.errors import SinkError, SinkFencedError

__all__ = ["NumberCell", "Numbers", "WriterPlace"]

BLOCK = 10_000
"""Numbers of a block, of which each request takes one."""

FORGET_AFTER_DAYS = 30
"""Who has reserved nothing for so long is forgotten."""

MOST_TRIES = 200
LONGEST_PAUSE_S = 0.05

_Attempt = tuple[int, int]


class NumberCell(Protocol):
    """A text in a service, changed by compare-and-set."""

    def read(self) -> str | None:
        """Return what it holds, as no older than all that has been stored; None at first.

        Raises:
            SinkAwayError: If the service does not answer.
        """
        ...

    def replace(self, old: str | None, new: str) -> bool:
        """Store a text if it holds the old one; whether it has.

        Raises:
            SinkAwayError: If it is not known whether it has.
        """
        ...


@dataclass(frozen=True)
class WriterPlace:
    """Whose numbers they are.

    Attributes:
        sink: Tells the sink from others: its job and operator.
        subtask: Which one.
        parallelism: Of how many.
        attempt: Of the job: leader epoch and number of the deployment.
    """

    sink: str
    subtask: int
    parallelism: int
    attempt: _Attempt

    @classmethod
    def of(cls, context: Any) -> WriterPlace:
        """Return the place of a function, by its runtime context."""
        epoch, _, deployment = context.get_attempt().partition(".")
        return cls(
            f"{context.get_job_id()}/{context.get_operator_id()}",
            context.get_index_of_this_subtask(),
            context.get_number_of_parallel_subtasks(),
            (int(epoch), int(deployment)),
        )


class Numbers:
    """Gives numbers to one writer; may be asked by several threads.

    Args:
        cell: Of the place that is written to.
        writer: Who asks.
        unit_us: What a number counts as in microseconds, for the clock.
        block: How many are reserved at once.
    """

    def __init__(self, cell: NumberCell, writer: WriterPlace, *, unit_us: int = 1, block: int = BLOCK) -> None:
        self._cell = cell
        self._writer = writer
        self._unit_us = unit_us
        self._block = block
        # The next number, and the last one that is reserved.
        self._next, self._last = 0, -1
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return the next number.

        Raises:
            SinkAwayError: If none can be reserved now.
            SinkFencedError: If a newer attempt of the job has reserved.
        """
        with self._lock:
            if self._next > self._last:
                self._next, self._last = self._reserve()
            self._next += 1
            return self._next - 1

    def _reserve(self) -> tuple[int, int]:
        for _ in range(MOST_TRIES):
            text = self._cell.read()
            kept = _Kept.of(text)
            kept.check_may_reserve(self._writer)
            first = max(kept.last + 1, time.time_ns() // (1_000 * self._unit_us))
            last = first + self._block - 1
            forgotten = last - FORGET_AFTER_DAYS * 86_400_000_000 // self._unit_us
            if self._cell.replace(text, kept.with_block(self._writer, last, forgotten).text):
                return first, last
            time.sleep(random.uniform(0, LONGEST_PAUSE_S))
        message = f"no numbers could be reserved in {MOST_TRIES} tries: too many subtasks reserve at once"
        raise SinkError(message)


@dataclass(frozen=True)
class _Sink:
    """Who of one sink has reserved.

    Attributes:
        oldest: The attempt that first had this parallelism: older ones may reserve nothing.
        parallelism: Of the newest attempt.
        last: The last number of its newest block.
        attempts: The newest attempt of each subtask.
    """

    oldest: _Attempt
    parallelism: int
    last: int
    attempts: Mapping[int, _Attempt]

    def shuts_out(self, writer: WriterPlace) -> bool:
        """Whether a newer attempt writes in the place of a writer."""
        if writer.parallelism == self.parallelism:
            return writer.attempt < max(self.oldest, self.attempts.get(writer.subtask, self.oldest))
        return writer.attempt < max(self.oldest, *self.attempts.values())

    def with_block(self, writer: WriterPlace, last: int) -> _Sink:
        """The same behind one more block."""
        if writer.parallelism != self.parallelism:
            return _Sink(writer.attempt, writer.parallelism, last, {writer.subtask: writer.attempt})
        return _Sink(self.oldest, self.parallelism, last, {**self.attempts, writer.subtask: writer.attempt})


@dataclass(frozen=True)
class _Kept:
    """What a cell holds.

    Attributes:
        last: The last number that is reserved.
        sinks: Who has reserved.
    """

    last: int
    sinks: Mapping[str, _Sink]

    @classmethod
    def of(cls, text: str | None) -> _Kept:
        """Raises: SinkError: If the text is none of a cell."""
        if text is None:
            return cls(-1, {})
        try:
            found = json.loads(text)
            sinks = {
                name: _Sink(
                    _attempt(one["oldest"]), _whole(one["parallelism"]), _whole(one["last"]),
                    {int(subtask): _attempt(attempt) for subtask, attempt in one["attempts"].items()},
                )
                for name, one in found["sinks"].items()
            }  # fmt: skip
            return cls(_whole(found["last"]), sinks)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            message = f"the numbers of what was written last cannot be read: {text[:80]!r}"
            raise SinkError(message) from error

    @property
    def text(self) -> str:
        """As `of` takes it."""
        sinks = {name: dataclasses.asdict(one) for name, one in sorted(self.sinks.items())}
        return json.dumps({"last": self.last, "sinks": sinks}, separators=(",", ":"))

    def check_may_reserve(self, writer: WriterPlace) -> None:
        """Raises: SinkFencedError: If a newer attempt has taken the writer's place."""
        mine = self.sinks.get(writer.sink)
        if mine is not None and mine.shuts_out(writer):
            message = "a newer attempt of the job writes in the place of this one"
            raise SinkFencedError(message)

    def with_block(self, writer: WriterPlace, last: int, forgotten: int) -> _Kept:
        """The same behind one more block, without sinks whose blocks ended at a number that is forgotten."""
        sinks = {name: one for name, one in self.sinks.items() if one.last > forgotten}
        mine = sinks.get(writer.sink) or _Sink(writer.attempt, writer.parallelism, last, {})
        return _Kept(last, {**sinks, writer.sink: mine.with_block(writer, last)})


def _attempt(value: Any) -> _Attempt:
    epoch, deployment = value
    return _whole(epoch), _whole(deployment)


def _whole(value: Any) -> int:
    if type(value) is not int or value < -1:
        message = f"expected a whole number, got {value!r:.40}"
        raise ValueError(message)
    return value
