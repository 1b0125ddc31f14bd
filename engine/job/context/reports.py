"""What subtasks hand to the client outside of any channel: collected rows and printed lines, kept until fetched.

Collected results are exactly-once: a committable's id is taken once, however often its commit is repeated after a
restore. Printed lines are as in Flink: a restart prints again. Offsets grow over all leaders of a job (they begin at
a number of the leader's epoch), so a client that has read from an older leader misses nothing of the next one.

Rows that the client has not fetched are part of every checkpoint that no longer holds them as a sink's committables,
so they survive the JobManager, too.

Source: Flink's ``CollectSinkOperatorCoordinator`` and ``CollectResultFetcher``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from ...functions.operator import COLLECT
from ...protocol.messages import ReportsFetched
from ...protocol.task_messages import ReportEmitted

__all__ = ["ReportLog"]

Entry = tuple[OperatorId, int, str, Any]

MAX_PRINTED = 100_000
"""Printed lines kept for a client that does not fetch; the oldest are dropped beyond that."""

MAX_PER_FETCH = 10_000
"""Reports per answer, so that one answer stays a bounded message."""

EPOCH_SHIFT = 40
"""Offsets of one leader: 2**40 reports, more than it could ever hold."""


class ReportLog:
    """Reports not yet acknowledged by the client.

    Args:
        epoch: The leader's epoch.
    """

    def __init__(self, epoch: int) -> None:
        # Offset and report, oldest first; gaps where printed lines were dropped.
        self._entries: deque[tuple[int, Entry]] = deque()
        self._next_offset = epoch << EPOCH_SHIFT
        self._num_printed = 0
        # Ids of collected committables, per operator; they outlive their rows.
        self._collected: set[tuple[OperatorId, Any]] = set()
        # Number of the newest report of each attempt.
        self._sequences: dict[ExecutionAttemptId, int] = {}

    @property
    def has_unfetched_rows(self) -> bool:
        """Whether there are collected rows that the client has not got."""
        return len(self._entries) > self._num_printed

    @property
    def is_empty(self) -> bool:
        """Whether the client has everything."""
        return not self._entries

    def add(self, message: ReportEmitted) -> bool:
        """Take a report. Gives whether it was new."""
        if message.sequence <= self._sequences.get(message.attempt, -1):
            return False
        self._sequences[message.attempt] = message.sequence
        if message.name == COLLECT:
            return self._add_collected(message.operator, message.attempt.subtask, message.value)
        self._num_printed += 1
        if self._num_printed > MAX_PRINTED:
            self._drop_oldest_printed()
        self._append((message.operator, message.attempt.subtask, message.name, message.value))
        return True

    def _add_collected(self, operator: OperatorId, subtask: int, value: Any) -> bool:
        identity = (operator, value[0])
        if identity in self._collected:
            return False
        self._collected.add(identity)
        self._append((operator, subtask, COLLECT, value))
        return True

    def _append(self, entry: Entry) -> None:
        self._entries.append((self._next_offset, entry))
        self._next_offset += 1

    def _drop_oldest_printed(self) -> None:
        for index, (_offset, entry) in enumerate(self._entries):
            if entry[2] != COLLECT:
                del self._entries[index]
                self._num_printed -= 1
                return

    def unfetched_rows(self) -> tuple[tuple[OperatorId, int, Any], ...]:
        """Return what a checkpoint must hold: collected rows that the client has not acknowledged, oldest first."""
        return tuple(
            (operator, subtask, value) for _offset, (operator, subtask, name, value) in self._entries if name == COLLECT
        )

    def restore(self, rows: Iterable[tuple[OperatorId, int, Any]]) -> None:
        """Take over such rows from a checkpoint; those already here are not taken twice."""
        for operator, subtask, value in rows:
            self._add_collected(operator, subtask, value)

    def fetch(self, offset: int) -> ReportsFetched:
        """Forget what is before ``offset`` and give what follows, up to a bound."""
        while self._entries and self._entries[0][0] < offset:
            _offset, entry = self._entries.popleft()
            self._num_printed -= entry[2] != COLLECT
        part = list(islice(self._entries, MAX_PER_FETCH))
        next_offset = part[-1][0] + 1 if part else max(offset, self._next_offset)
        return ReportsFetched(next_offset, [entry for _offset, entry in part])

    def forget_attempts_before(
        self, epoch: int, attempt: int, running: Collection[ExecutionAttemptId] = frozenset()
    ) -> None:
        """Forget the numbers of tasks that are older than the previous deployment, as a new one begins.

        Args:
            epoch: The leader's.
            attempt: Number of the previous deployment.
            running: Tasks that run on, however old they are.
        """
        self._sequences = {
            known: sequence
            for known, sequence in self._sequences.items()
            if (known.epoch, known.attempt) >= (epoch, attempt) or known in running
        }

    def roll_back(self, operator_subtasks: Collection[tuple[OperatorId, int]]) -> None:
        """Forget the rows of subtasks that begin again from nothing, as their job takes no checkpoints.

        What the client has fetched it has: without checkpoints a row may come twice.
        """
        kept = [
            (offset, entry)
            for offset, entry in self._entries
            if entry[2] != COLLECT or (entry[0], entry[1]) not in operator_subtasks
        ]
        self._entries = deque(kept)
