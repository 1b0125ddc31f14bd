"""The operator that drives a sink's writer through the two phases of a commit.

A writer's output becomes *committables* at each barrier; they are part of that checkpoint (operator state
``committables``, as pairs of checkpoint id and committable) and are committed once the checkpoint is known to be
complete. The one invariant: a committable is in the state of every checkpoint from the one that made it until one taken
after its commit. So whatever checkpoint a job restores, everything up to it is either visible already or is in the
restored state, and committing it again changes nothing. An aborted checkpoint loses nothing for the same reason: its
committables stay pending and are part of the next one.

Without checkpoints nobody would ever tell a sink to commit, so what was written becomes visible at the end of the job.

Source: Flink's ``SinkWriterOperator`` and ``CommitterOperator``; FLIP-143, FLIP-191; rows G15 to G17.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.checkpointed import initialize_function
from headrace.engine.connector import Sink, SinkWriter, WriterContext
from headrace.engine.errors import InternalError
from headrace.engine.operators import Operator, OperatorContext
from headrace.engine.records import Batch
from headrace.state.backend import ListStateHandle

__all__ = ["NO_CHECKPOINT", "SinkOperator"]

NO_CHECKPOINT = 0
"""The checkpoint id under which a sink prepares when no checkpoints are taken; real ones count from 1."""


class SinkOperator(Operator):
    """Writes what comes in and commits it with the checkpoint it belongs to.

    Probe points: ``sink.prepare`` (durable, not yet in a snapshot), ``sink.commit.before``, ``sink.commit.<k>`` (after
    the k-th committable, from 0), ``sink.commit.after``.

    Args:
        sink: Where the records go.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        # Made in `open`; None before, so that `close` after a failed start has nothing to do.
        self._writer: SinkWriter | None = None
        # Prepared and not yet known to be part of a complete checkpoint, oldest first; mirrors what the next snapshot
        # will hold.
        self._pending: list[tuple[int, Any]] = []
        # The first checkpoint that this attempt prepared for; None before it.
        self._first_prepared: int | None = None

    def open(self, context: OperatorContext) -> None:
        """Make the writer and commit what the restored checkpoint holds: it is complete, whoever took it."""
        super().open(context)
        self._state: ListStateHandle = context.operator_state.list_state("committables")
        restored = [(int(checkpoint_id), committable) for checkpoint_id, committable in self._state.get()]
        restored.sort(key=lambda pair: pair[0])
        writer = self.sink.create_writer()
        self._writer = writer
        initialize_function(writer, context, None)
        writer.open(
            WriterContext(
                job=context.job,
                operator=context.operator,
                operator_name=context.name,
                subtask=context.subtask,
                parallelism=context.parallelism,
                attempt=context.attempt,
                now_ms=context.now_ms,
                metrics=context.metrics,
                probe=context.probe,
                report=context.report,
                checkpointing=context.checkpointing,
            ),
            [committable for _, committable in restored],
        )
        self._write = writer.write
        if restored:
            self._commit(writer, restored)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Hand records to the writer."""
        self._write(batch)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Prepare what was written since the last barrier; with what is still pending it is in the checkpoint."""
        self._prepare(checkpoint_id)
        if self.context.takes_savepoint and self._pending:
            retain = getattr(self._opened(), "retain", None)
            if retain is not None:
                retain([committable for _, committable in self._pending])
        self._state.update(list(self._pending))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit what the checkpoint and all before it hold."""
        if self._first_prepared is None or checkpoint_id < self._first_prepared:
            return
        due = [pair for pair in self._pending if pair[0] <= checkpoint_id]
        self._commit(self._opened(), due)
        self._pending = [pair for pair in self._pending if pair[0] > checkpoint_id]

    def finish_job(self) -> None:
        """Make the rest visible: all without checkpoints, nothing with them, as the last one held it."""
        if self.context.checkpointing:
            if self._pending:
                message = "output is still uncommitted after the job's last checkpoint"
                raise InternalError(message, checkpoints=sorted({checkpoint_id for checkpoint_id, _ in self._pending}))
            return
        self._prepare(NO_CHECKPOINT)
        due, self._pending = self._pending, []
        self._commit(self._opened(), due)

    def close(self) -> None:
        """Close the writer, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _opened(self) -> SinkWriter:
        if self._writer is None:
            message = "the sink's writer is not open"
            raise InternalError(message)
        return self._writer

    def _prepare(self, checkpoint_id: int) -> None:
        if self._first_prepared is None:
            self._first_prepared = checkpoint_id
        self._pending.extend((checkpoint_id, committable) for committable in self._opened().prepare(checkpoint_id))
        self.context.probe("sink.prepare")

    def _commit(self, writer: SinkWriter, pairs: list[tuple[int, Any]]) -> None:
        """Commit one by one, oldest first; a writer also hears of a complete checkpoint that holds nothing of it."""
        probe = self.context.probe
        probe("sink.commit.before")
        if not pairs:
            writer.commit([])
        for k, (_, committable) in enumerate(pairs):
            writer.commit([committable])
            probe(f"sink.commit.{k}")
        probe("sink.commit.after")
