"""A sink that hands records back to the program, for ``execute_and_collect``.

With checkpoints the rows themselves are the committable: they travel in the checkpoint and are reported to the
JobManager when it is complete, under an id by which a second report of the same rows is recognised. So the program sees
each row exactly once, and only rows that no failure can take back. Without checkpoints rows are reported batch by
batch, at once. A job that starts from another job's checkpoint does not report that one's rows again: they were its
client's.

Source: Flink's ``CollectSinkOperator``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Committer, CommitterContext, SinkWriter, WriterContext
from headrace.engine.functions.operator import COLLECT

__all__ = ["CollectSink"]

MAX_ROWS_PER_REPORT = 65_536
"""Rows of one committable at most, so that no single message grows without bound."""


class CollectSink:
    """Reports ``(COLLECT, (id, rows))``; the client drops those whose id it has seen."""

    collects = True

    def create_writer(self) -> SinkWriter:
        """Make a writer that reports rows under the name ``collect``."""
        return _CollectWriter()

    def create_committer(self) -> Committer:
        """Make a committer that reports what is committed under the same name."""
        return _CollectCommitter()


class _CollectWriter(SinkWriter):
    def __init__(self) -> None:
        # Rows since the last barrier; always empty without checkpoints.
        self._rows: list[Any] = []
        self._count = 0

    def open(self, context: WriterContext) -> None:
        self._context = context

    def write(self, batch: Batch) -> None:
        if self._context.checkpointing:
            self._rows.extend(batch.rows)
            return
        self._count += 1
        self._context.report(COLLECT, (self._name(0, self._count), list(batch.rows)))

    def prepare(self, checkpoint_id: int) -> list[Any]:
        rows, self._rows = self._rows, []
        return [
            {"id": self._name(checkpoint_id, start), "rows": rows[start : start + MAX_ROWS_PER_REPORT]}
            for start in range(0, len(rows), MAX_ROWS_PER_REPORT)
        ]

    def close(self) -> None:
        self._rows = []

    def _name(self, checkpoint_id: int, number: int) -> str:
        context = self._context
        return f"{context.job}/{context.operator}/{context.subtask}/{context.attempt}/{checkpoint_id}/{number}"


class _CollectCommitter(Committer):
    blocks = False

    def open(self, context: CommitterContext) -> None:
        self._context = context

    def commit(self, committable: Any) -> None:
        if committable["id"].startswith(f"{self._context.job}/"):  # else it is another job's, as was its client
            self._context.report(COLLECT, (committable["id"], committable["rows"]))
