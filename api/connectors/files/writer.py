"""The writer of a file sink: fills staged parts, and closes them at each barrier.

What waits for more records is in checkpoints (`headrace.connectors.files.waiting`); what a savepoint holds is noted
beside it, so that it is spared until it has been committed.

Source: Flink's ``FileWriter``.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import NotFoundError, TypeMismatchError
from headrace.engine.functions.checkpointed import FunctionInitializationContext, FunctionSnapshotContext

from ...formats.folders import by_folder, require_folder_columns
from .committables import Committable
from .output import NOTE, OutputDirectory
from .parts import FileSinkSettings, OpenParts, Part, failing, open_part
from .waiting import WAITING, WaitingRecords

__all__ = ["FileWriter"]


class _ClosedPart(NamedTuple):
    """A part that is complete: its staged name, its size in bytes and its number of records."""

    staged: str
    size: int
    rows: int


class FileWriter(SinkWriter):
    """Fills staged parts."""

    def __init__(self, settings: FileSinkSettings) -> None:
        self._settings = settings
        # The parts being filled, by their folder ("" for the directory itself).
        self._parts = OpenParts(self._close_part)
        # Closed parts that no checkpoint holds yet, and their folders.
        self._closed: list[tuple[str, _ClosedPart]] = []
        # Counts this attempt's parts.
        self._num_parts = 0
        # Staged names that a savepoint holds and that may not be committed yet.
        self._retained: set[str] = set()
        # Records that are to wait for more; what a restored checkpoint holds, though there is no compaction any more.
        self._waiting = WaitingRecords(settings.compaction)
        self._has_ended = False
        # None until opened, so that `close` after a failed start has nothing to do.
        self._output: OutputDirectory | None = None

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._waiting_state = context.get_operator_state_store().get_list_state(WAITING)
        self._waiting.restore(self._waiting_state.get())

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Keep in the checkpoint what still waits behind `prepare`."""
        self._waiting_state.update(self._waiting.to_state())

    def open(self, context: WriterContext) -> None:
        self._context = context
        self._attempt = context.attempt.replace(".", "_")
        self._note = f"{NOTE}{context.subtask:05d}-{context.history.owner}-{self._attempt}.json"
        self._output = OutputDirectory.of(self._settings, context.history)
        # The committer has claimed it by then; before the first part the writer finds that claim.
        self._is_claimed = False

    def write(self, batch: Batch) -> None:
        names = self._settings.partition_by
        if not batch.num_rows:
            return
        if not names:
            self._take("", batch)
        else:
            columns = batch.columns_as(None)
            require_folder_columns(names, columns.schema)
            for folder, rows in by_folder(names, columns):
                self._take(folder, Batch.of_columns(rows))

    def _take(self, folder: str, batch: Batch) -> None:
        """Write records, or let them wait for more."""
        if self._settings.compaction is None:
            self._write_to(folder, batch)
            return
        ready = self._waiting.add(folder, batch, self._context.now_ms())
        if ready is not None:
            self._write_waiting(ready)

    def _write_waiting(self, folder: str) -> None:
        for batch in self._waiting.take(folder):
            self._write_to(folder, batch)

    def end_input(self) -> None:
        """Let nothing wait any more, as no more records come."""
        self._has_ended = True

    def _write_to(self, folder: str, batch: Batch) -> None:
        limit = self._settings.max_part_rows
        while batch.num_rows:
            part = self._parts.of(folder, self._start_part)
            taken = batch.num_rows if limit is None else min(batch.num_rows, limit - part.num_rows)
            piece = batch if taken == batch.num_rows else batch.slice(0, taken)
            try:
                with self._failing("cannot write", part.path):
                    is_taken = part.write(piece)
            except TypeMismatchError as error:
                error.context.setdefault("path", part.path)
                raise
            if not is_taken:
                self._parts.finish(folder)
                continue
            if part.num_bytes >= self._settings.max_part_bytes or (limit is not None and part.num_rows >= limit):
                self._parts.finish(folder)
            if taken == batch.num_rows:
                return
            batch = batch.slice(taken, batch.num_rows - taken)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        for folder in self._waiting.due(self._context.now_ms(), is_end=self._has_ended):
            self._write_waiting(folder)
        self._parts.finish_all()
        closed, self._closed = self._closed, []
        history, subtask = self._context.history, self._context.subtask
        begin = f"part-{subtask:05d}-{history.origin}-{history.owner}-{self._attempt}-{checkpoint_id:05d}"
        committables = []
        for number, (folder, part) in enumerate(closed, self._num_parts - len(closed)):
            final = f"{folder}{'/' if folder else ''}{begin}-{number:05d}.{self._settings.format}"
            committables.append(
                Committable(self._settings.location, part.staged, final, part.size, part.rows).to_state()
            )
        return committables

    def retain(self, committables: list[Any]) -> None:
        output = self._claimed()
        self._forget_committed(output)
        held = (Committable.of(committable) for committable in committables)
        self._retained.update(one.staged for one in held if output.is_place_of(one.location))
        note = f"{output.own_staging}/{self._note}"
        with self._failing("cannot note what a savepoint holds", note):
            output.fs.write_bytes(note, json.dumps(sorted(self._retained)).encode())

    def _forget_committed(self, output: OutputDirectory) -> None:
        """What is not staged any more has been committed."""
        self._retained = {name for name in self._retained if output.fs.exists(output.staged_path(name))}

    def close(self) -> None:
        output = self._output
        if output is None:
            return
        abandoned = self._parts.abandon()
        closed, self._closed = self._closed, []
        if not self._is_claimed:
            return  # it has staged nothing
        doomed = [output.staged_path(part.staged) for _, part in closed]
        doomed += [part.path for _, part in abandoned]
        if self._retained:
            self._forget_committed(output)
            doomed += [] if self._retained else [f"{output.own_staging}/{self._note}"]
        output.delete(doomed, self._context)
        output.remove_if_empty()

    # ------------------------------------------------------------------------------------------------------------ parts
    def _claimed(self) -> OutputDirectory:
        """The directory, which this sink still owns when it is first used."""
        output = self._output
        assert output is not None
        if not self._is_claimed:
            with self._failing("cannot use the output directory", output.root):
                output.require_owner()
            self._is_claimed = True
        return output

    def _start_part(self) -> Part:
        output, settings, context = self._claimed(), self._settings, self._context
        number = f"{self._num_parts:05d}.{settings.format}"
        name = f"{output.own_staging}/{context.subtask:05d}-{context.history.owner}-{self._attempt}-{number}"
        with self._failing("cannot begin a file", name):
            try:
                stream = output.fs.open_output(name)
            except NotFoundError:
                # Another subtask, closing, removed the empty directory between its making and its use.
                stream = output.fs.open_output(name)
        self._num_parts += 1
        return open_part(name, stream, settings)

    def _close_part(self, folder: str, part: Part) -> None:
        with self._failing("cannot finish a file", part.path):
            size = part.finish()
        self._closed.append((folder, _ClosedPart(part.path.rpartition("/")[2], size, part.num_rows)))

    def _failing(self, what: str, path: str) -> AbstractContextManager[None]:
        return failing(what, path=path, **self._context.place)
