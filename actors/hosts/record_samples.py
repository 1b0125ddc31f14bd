"""Shows the newest records of an exchange, when somebody asks: a look at what arrives, for a moment.

While nobody looks a channel pays for it with one comparison a message. Who looks is handed batches, of which the last
few records are kept, and makes texts of them in the thread that asks, when the look is over. What is to be hidden never
becomes text (`masking`). What operators have rejected cannot be waited for, so they keep the last of it themselves,
where records are shown at all (`headrace.engine.columns.rejected_records`); it is shown in the same way.

Source: the taps of Flink's ``collect-sink`` and ksqlDB's ``PRINT``; RisingWave's stream tracing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.columns.rejected_records import BAD, LATE, RejectedRecords
from headrace.engine.protocol.observation_messages import (
    RecordSample,
    RejectedSample,
    SampleRecords,
    ShownRecord,
    ShowRejectedRecords,
)
from headrace.engine.protocol.task_messages import DataMessage
from headrace.state.identifiers import ExecutionAttemptId, VertexId

from .masking import without_hidden

__all__ = ["MOST_RECORDS", "RejectedOf", "Tap", "TapChannels", "rejected_records", "sample_records"]

MOST_RECORDS = 100
"""Of one task."""

LONGEST_MS = 10_000
MOST_CHARACTERS = 500
"""Of one record."""

LOOK_MS = 20

Tap = Callable[[ExecutionAttemptId, DataMessage], None]
TapChannels = Callable[[VertexId, int, "Tap | None"], list[ExecutionAttemptId]]
"""Has a tap called for each message that tasks of a vertex get on an exchange, on their thread, or none any more; gives
which tasks there are.
"""


_OF_RAW_INPUT = frozenset(("error", "raw"))
"""Fields that quote what could not be decoded, in which no field to be hidden can be told apart."""

_Shows: TypeAlias = SampleRecords | ShowRejectedRecords

RejectedOf = Callable[[VertexId], list[tuple[ExecutionAttemptId, str, str, RejectedRecords]]]
"""What the operators of a vertex's tasks keep: attempt, uid, name."""


class _Kept:
    """The newest records of each task: pieces of batches that have been made by others, and are not changed."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records
        self._pieces: dict[ExecutionAttemptId, deque[Batch]] = {}

    def take(self, attempt: ExecutionAttemptId, message: DataMessage) -> None:
        """Keep what is new; called on the task's thread."""
        pieces = self._pieces.setdefault(attempt, deque(maxlen=self._num_records))
        for element in message.elements:
            if isinstance(element, Batch) and element.num_rows:
                number = min(element.num_rows, self._num_records)
                pieces.append(element.slice(element.num_rows - number, number))

    def num_records(self, attempt: ExecutionAttemptId) -> int:
        return sum(piece.num_rows for piece in list(self._pieces.get(attempt, ())))

    def pieces(self, attempt: ExecutionAttemptId) -> list[Batch]:
        """Those with the newest records, oldest first, no more of them than are wanted."""
        found: list[Batch] = []
        left = self._num_records
        for piece in reversed(list(self._pieces.get(attempt, ()))):
            number = min(piece.num_rows, left)
            found.append(piece.slice(piece.num_rows - number, number))
            left -= number
            if not left:
                break
        return found[::-1]


def sample_records(tap_channels: TapChannels, request: SampleRecords) -> list[RecordSample]:
    """Look at an exchange; blocks until there are enough records or the time is over."""
    kept = _Kept(min(request.num_records, MOST_RECORDS))
    deadline = time.monotonic() + min(request.duration_ms, LONGEST_MS) / 1_000
    try:
        attempts = tap_channels(request.vertex, request.edge_id, kept.take)
        while time.monotonic() < deadline and any(
            kept.num_records(attempt) < min(request.num_records, MOST_RECORDS) for attempt in attempts
        ):
            time.sleep(LOOK_MS / 1_000)
    finally:
        tap_channels(request.vertex, request.edge_id, None)
    return [_shown(attempt, kept.pieces(attempt), request) for attempt in attempts]


def rejected_records(rejected_of: RejectedOf, request: ShowRejectedRecords) -> list[RejectedSample]:
    """Show what operators have rejected last, of each kind of which there is any."""
    number = min(request.num_records, MOST_RECORDS)
    masked = request.masked | _OF_RAW_INPUT if request.masked else request.masked
    requests = {LATE: request, BAD: replace(request, masked=masked)}
    return [
        RejectedSample(uid, name, kind, _shown(attempt, kept.last(kind, number), requests[kind]))
        for attempt, uid, name, kept in rejected_of(request.vertex)
        for kind in (LATE, BAD)
        if kept.last(kind, number)
    ]


def _shown(attempt: ExecutionAttemptId, pieces: Sequence[Batch], request: _Shows) -> RecordSample:
    schema = next((piece.schema for piece in pieces if piece.schema is not None), None)
    columns = "" if schema is None else ", ".join(f"{field.name} {field.type}" for field in schema)
    records = tuple(record for piece in pieces for record in _records_of(piece, request))
    return RecordSample(attempt, columns[: 4 * MOST_CHARACTERS], records)


def _records_of(piece: Batch, request: _Shows) -> list[ShownRecord]:
    timestamps, kinds = piece.timestamps, piece.row_kinds
    return [
        ShownRecord(
            _text(row, request),
            None if timestamps is None else int(timestamps[index]),
            None if kinds is None else RowKind(int(kinds[index])).short,
        )
        for index, row in enumerate(piece.rows)
    ]


def _text(row: Any, request: _Shows) -> str:
    try:
        text = repr(without_hidden(row, request.masked, hides_values=request.hides_values))
    except Exception as error:  # a program's own repr, or a value that changes meanwhile
        text = f"<{type(row).__name__}, which cannot be shown: {type(error).__name__}>"
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " ..."
