"""Operators over tables by event time, fed by hand: all subtasks, cut by key, restored at any parallelism."""

from __future__ import annotations

import datetime

import numpy as np
from changelog_kit import canonical, changes_of
from operator_harness import MAX_PARALLELISM, ParallelHarness, count_late

from headrace.engine.columns.records import Batch
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.key_groups import key_groups_of, subtask_of

START_MS = 1_700_000_000_000


def in_unit(value, unit):
    """A time as it came out, as the number that it went in as."""
    if hasattr(value, "value"):  # of nanoseconds
        return value.value
    since = value - datetime.datetime(1970, 1, 1)  # noqa: DTZ001
    return since // {"s": datetime.timedelta(seconds=1), "ms": datetime.timedelta(milliseconds=1),
                     "us": datetime.timedelta(microseconds=1)}[unit]  # fmt: skip


class TimedRunning:
    """All subtasks of an operator; ``rows`` is what has come out, in order, and ``times`` its event times."""

    def __init__(self, operator, keys, parallelism=1, backend=None):
        """``keys`` are the names of the key's columns, one list for each input."""
        self.keys = keys
        self.harness = ParallelHarness(operator, parallelism, backend=backend)
        self.rows, self.times, self.watermark_ms, self._late = [], [], None, 0

    def feed(self, columns, input_index=0, kinds=None):
        """Feed rows, cut by key."""
        batch = Batch.of_columns(columns).with_row_kinds(kinds)
        names, subtasks = self.keys[input_index], self.harness.subtasks
        targets = np.zeros(batch.num_rows, np.int64)
        if names and len(subtasks) > 1:
            hashes = hash_columns([columns.column(name) for name in names])
            targets = subtask_of(key_groups_of(hashes, MAX_PARALLELISM), MAX_PARALLELISM, len(subtasks))
        for number, subtask in enumerate(subtasks):
            if (targets == number).any():
                subtask.operator.process_batch(batch.filter(targets == number), input_index)
        self._take()

    def watermark(self, watermark_ms):
        """Let event time go on."""
        self.watermark_ms = watermark_ms
        self.harness.watermark(watermark_ms)
        self._take()

    def _take(self):
        for subtask in self.harness.subtasks:
            for batch in subtask.output.elements:
                if isinstance(batch, Batch):
                    assert batch.row_kinds is None
                    self.rows += [canonical(row) for _, row in changes_of(batch)]
                    assert batch.timestamps is not None
                    self.times += batch.timestamps.tolist()
            subtask.output.elements.clear()

    @property
    def num_late(self):
        """How many records were late."""
        return self._late + sum(count_late(subtask.context) for subtask in self.harness.subtasks)

    def restore(self, parallelism):
        """Go on from a snapshot, with so many subtasks."""
        self._late = self.num_late
        before, self.harness = self.harness, self.harness.restored(parallelism)
        before.close()

    def close(self):
        self.harness.close()
