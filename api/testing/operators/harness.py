"""What all test harnesses share: a manual clock, elements in, elements out.

A harness owns the clock: processing time stands still until the test moves it, and event time until the test feeds a
watermark, so every run of a test is the same run. What is emitted is kept, in order, until it is taken; reading it
(``extract_...``) leaves it there, taking it (``take_...``) does not.

Source: Flink's ``AbstractStreamOperatorTestHarness``; Kafka Streams' ``TopologyTestDriver``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import MIN_TIMESTAMP, Batch, StreamStatus, Watermark, times_or_none
from headrace.engine.errors import HeadraceError, ProgramError
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.kernel.config import parse_duration_ms

from ...arguments.checks import tag_id_of

__all__ = ["Harness", "StreamRecord", "batch_of", "records_of_batch"]

_Self = TypeVar("_Self", bound="Harness")


class StreamRecord(NamedTuple):
    """A record with its event time; equal to the plain tuple of both.

    Examples:
        >>> StreamRecord("a", 10) == ("a", 10)
        True
    """

    value: Any
    timestamp: int | None = None


def batch_of(values: Iterable[Any], timestamps: Sequence[int] | None) -> Batch:
    """Return a batch of values and their event times; a ``pyarrow.RecordBatch`` is taken as columns.

    Raises:
        ProgramError: If there are not as many times as values.
    """
    batch = Batch.of_columns(values) if isinstance(values, pa.RecordBatch) else Batch.of_rows(list(values))
    if timestamps is None:
        return batch
    if len(timestamps) != batch.num_rows:
        message = f"there must be one timestamp per value; got {batch.num_rows} values, {len(timestamps)} timestamps"
        raise ProgramError(message)
    return batch.with_timestamps(np.array(timestamps, dtype=np.int64))


def records_of_batch(batch: Batch) -> list[StreamRecord]:
    """Return the records of a batch."""
    times = times_or_none(batch.timestamps, batch.num_rows)
    return [StreamRecord(row, time) for row, time in zip(batch.rows, times, strict=True)]


class Harness(ABC):
    """The part of a harness that does not depend on what it runs. Opened on first use, closed by ``with`` or `close`.

    Args:
        now_ms: Where processing time begins, epoch milliseconds.
    """

    def __init__(self, now_ms: int) -> None:
        # Processing time; moved by `set_processing_time` alone.
        self._now_ms = now_ms
        # Output name (None for the main output) -> what came out and was not taken, in order.
        self._emitted: dict[str | None, list[StreamRecord | Watermark | StreamStatus]] = {}
        self._is_open = False
        self._is_closed = False

    # -------------------------------------------------------------------------------------------------------- lifecycle
    def open(self: _Self) -> _Self:
        """Open what is tested; everything else does it, if need be. Returns the harness.

        Raises:
            ProgramError: If the harness was closed.
        """
        if self._is_closed:
            message = "the harness is closed"
            raise ProgramError(message, hint="Make a new one; restore() takes a snapshot of this one.")
        if not self._is_open:
            self._is_open = True
            self._guarded(self._open)
        return self

    def close(self) -> None:
        """Close what is tested and let go of its state; may be repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._close()

    def __enter__(self: _Self) -> _Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _open(self) -> None:
        """Open what is tested."""

    @abstractmethod
    def _close(self) -> None:
        """Close what is tested, as far as it was opened."""

    def _guarded(self, action: Any, *arguments: Any) -> Any:
        """Do something with what is tested; if it fails, the harness is closed: what failed is not to be used again."""
        try:
            return action(*arguments)
        except BaseException as error:
            self._is_closed = True
            try:
                self._close()
            except Exception as second:
                if not isinstance(error, HeadraceError):
                    raise
                error.context.setdefault("on_closing", str(second).splitlines()[0])  # a footnote, as in production
            raise

    # ------------------------------------------------------------------------------------------------------------- time
    @property
    def now_ms(self) -> int:
        """Processing time, epoch milliseconds."""
        return self._now_ms

    def set_processing_time(self, now_ms: int) -> None:
        """Let processing time go on to ``now_ms``, firing each timer on the way at its own time.

        Raises:
            ProgramError: If that is in the past.
        """
        self.open()
        if now_ms < self._now_ms:
            message = f"processing time is {self._now_ms}; it cannot be set back to {now_ms}"
            raise ProgramError(message)
        self._guarded(self._advance_to, now_ms)

    def advance(self, duration: Any) -> None:
        """Let processing time go on for a while.

        Args:
            duration: Milliseconds, or a text such as ``"5 s"``.
        """
        self.set_processing_time(self._now_ms + parse_duration_ms(duration))

    @abstractmethod
    def _advance_to(self, now_ms: int) -> None:
        """Let processing time go on; it is not in the past."""

    # ----------------------------------------------------------------------------------------------------------- output
    def extract_output_values(self, output: OutputTag | str | None = None) -> list[Any]:
        """Return the values emitted and not yet taken, in order; they stay.

        Args:
            output: A side output, or a named output of a pipeline; None for the main output.
        """
        return [record.value for record in self.extract_output_records(output)]

    def extract_output_records(self, output: OutputTag | str | None = None) -> list[StreamRecord]:
        """As `extract_output_values`, with event times."""
        return [element for element in self._elements(output) if isinstance(element, StreamRecord)]

    def get_side_output(self, output: OutputTag | str) -> list[StreamRecord]:
        """Return the records of a side output, with event times; as `extract_output_records`."""
        return self.extract_output_records(output)

    def get_output(self, output: OutputTag | str | None = None) -> list[StreamRecord | Watermark | StreamStatus]:
        """Return everything emitted and not yet taken: records, watermarks, changes of idleness; it stays."""
        return list(self._elements(output))

    def take_output_values(self, output: OutputTag | str | None = None) -> list[Any]:
        """Return the values emitted since the last time; watermarks among them are forgotten."""
        return [record.value for record in self.take_output_records(output)]

    def take_output_records(self, output: OutputTag | str | None = None) -> list[StreamRecord]:
        """As `take_output_values`, with event times."""
        records = self.extract_output_records(output)
        self._elements(output).clear()
        return records

    def clear_output(self) -> None:
        """Forget everything that was emitted, on all outputs."""
        self._emitted.clear()

    def _elements(self, output: OutputTag | str | None) -> list[StreamRecord | Watermark | StreamStatus]:
        return self._emitted.setdefault(self._output_name(output), [])

    def _output_name(self, output: OutputTag | str | None) -> str | None:
        return None if output is None else tag_id_of(output)


class WatermarkGuard:
    """The watermark of one input: it only grows.

    Examples:
        >>> WatermarkGuard("clicks").advance(5)
        Watermark(timestamp_ms=5)
    """

    __slots__ = ("_current_ms", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._current_ms = MIN_TIMESTAMP

    def advance(self, timestamp: int) -> Watermark:
        """Return the next watermark.

        Raises:
            ProgramError: If it is lower than the one before.
        """
        if timestamp < self._current_ms:
            message = f"the watermark of {self._name} is {self._current_ms}; it cannot go back to {timestamp}"
            raise ProgramError(message)
        self._current_ms = timestamp
        return Watermark(timestamp)
