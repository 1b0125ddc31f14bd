"""A sink that shows records where the job was started.

Every batch is sent as text lines to the JobManager at once, and from there to the client's terminal or notebook. It
waits for no checkpoint: after a failure lines may be shown twice (at-least-once).

Source: Flink's ``PrintSink``.
"""

from __future__ import annotations

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.functions.operator import PRINT
from headrace.engine.functions.user_function import texts_of

__all__ = ["PrintSink"]


class PrintSink:
    """Prints ``str(record)``, one line each, after the subtask's number (from 1) if there are several: ``2> record``.

    Args:
        identifier: Put before the number: ``identifier:2> record``; told apart by it when a program prints several
            streams.
    """

    def __init__(self, identifier: str = "") -> None:
        self._identifier = identifier

    def create_writer(self) -> SinkWriter:
        """Make a writer that reports lines under the name ``print``."""
        return _PrintWriter(self._identifier)


class _PrintWriter(SinkWriter):
    def __init__(self, identifier: str) -> None:
        self._identifier = identifier

    def open(self, context: WriterContext) -> None:
        self._report = context.report
        number = str(context.subtask + 1) if context.parallelism > 1 else ""
        prefix = ":".join(part for part in (self._identifier, number) if part)
        self._prefix = f"{prefix}> " if prefix else ""

    def write(self, batch: Batch) -> None:
        self._report(PRINT, texts_of(batch.rows, self._prefix))
