"""Files as a sink: Parquet, CSV and JSON lines, exactly once.

A writer fills *parts* in a staging directory, out of every reader's sight, and closes them at each barrier and whenever
one is large enough. A closed part is a committable; its commit renames it to its public name. So what a reader of the
directory sees is whole and is never taken back, and the same commit done twice changes nothing: the part is either
still staged or already there.

Public names hold the sink's origin and owner, the attempt, the checkpoint and a counter: no two parts are ever given
the same one, and from the names alone a restored job sees whether there is output that its checkpoint does not account
for. Who may publish, and how a takeover shuts out the owner before, is `headrace.connectors.files.output`.

What an attempt staged and no checkpoint holds is garbage; it is deleted by the next attempt once its own first
checkpoint is complete. What a savepoint holds is noted beside it, and spared until it has been committed.

Source: Flink's ``FileSink``, ``FileWriter``, ``FileCommitter``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.columns.write_mode import WriteMode, check_write_mode
from headrace.engine.connectors.contract import (
    Committer,
    CommitterContext,
    SinkHistory,
    SinkWriter,
    WriterContext,
)
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    NotFoundError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
    StorageError,
    TypeMismatchError,
)
from headrace.engine.functions.checkpointed import FunctionInitializationContext, FunctionSnapshotContext
from headrace.state.reading.read_limits import number_in

from ...arguments.places import lasting_place
from ...formats.csv_lexing import require_delimiter
from ...formats.folders import by_folder, require_folder_columns
from ...formats.schemas import schema_of
from .committables import Committable, PublicFile
from .output import NOTE, OutputDirectory
from .parts import Compression, FileSinkSettings, NewerOutput, Part, open_part
from .waiting import WAITING, FileCompaction, WaitingRecords

__all__ = ["FileSink"]

_WRITE_ERRORS = (OSError, StorageError, pa.ArrowException)


class FileSink:
    """Writes files into a directory. Made by `parquet`, `csv` or `json_lines`.

    Common arguments of all three:
        path: The directory: a local path or a URI; made if it is not there. A relative path is the
            client's.
        max_part_bytes: A part is closed when it has this many bytes (about), even between checkpoints.
        max_part_rows: A part is closed when it has this many rows; None for no such limit.
        mode: What happens to files that are in the directory when the job begins: ``error`` refuses to run, ``append``
            leaves them, ``overwrite`` deletes those directly in the directory (with ``partition_by`` also those in its
            folders ``name=value``) before the first record is written. A job that restarts, or goes on from its own
            checkpoint or savepoint, has begun before, and deletes nothing.
        on_newer_output: What happens to files that this sink made public behind the checkpoint that is restored, if
            that is not the newest: going on writes their records again. ``error`` refuses to run, ``delete`` takes the
            files away (those who have read them have read the records that come again), ``keep`` leaves them: records
            are there twice.
        partition_by: Columns (integers, texts, dates) that become folders ``name=value``, one in the other, which the
            files then leave out. `FileSource` finds them again, as does a data set.
        compaction: What keeps checkpoints from making many small files (`FileCompaction`): records wait in checkpoints
            until they are enough for a file, or have waited for long enough. None makes a file at each checkpoint.

    A directory has one owner: of two jobs that go on from one checkpoint, the one that came first writes no more.

    Guarantees: exactly-once with checkpoints: parts appear when the checkpoint that holds them is complete. Without
    checkpoints they appear when the job ends.
    """

    subtasks_are_independent = True
    """No two subtasks ever touch the same file."""

    def __init__(self, settings: FileSinkSettings) -> None:
        for name in ("max_part_bytes", "max_part_rows"):
            limit = getattr(settings, name)
            if limit is not None and limit < 1:
                message = f"{name} must be at least 1; got {limit}"
                raise ConfigurationError(message)
        require_delimiter(settings.delimiter)
        check_write_mode(settings.mode)
        if settings.on_newer_output not in get_args(NewerOutput):
            legal = ", ".join(get_args(NewerOutput))
            message = f"on_newer_output must be one of {legal}; got {settings.on_newer_output!r}"
            raise ConfigurationError(message)
        self._settings = settings

    @property
    def location(self) -> str:
        """Where the files go: an absolute path or a URI."""
        return self._settings.location

    @property
    def output_place(self) -> str:
        """The same, for the check that no two sinks of a program meet."""
        return self._settings.location

    @property
    def shares_place(self) -> bool:
        """Whether others may write there at the same time."""
        return self._settings.mode == "append"

    @classmethod
    def parquet(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        compression: Compression = "snappy",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
        mode: WriteMode = "error",
        on_newer_output: NewerOutput = "error",
        partition_by: str | Sequence[str] = (),
        compaction: FileCompaction | None = None,
    ) -> FileSink:
        """Write Parquet files.

        Args:
            path: See the class.
            schema: Columns of the files; None takes the records' own. When those change their types (not their names),
                a new part begins.
            compression: ``snappy``, ``zstd``, ``gzip``, ``lz4``, ``brotli`` or ``none``.
            max_part_bytes: See the class.
            max_part_rows: See the class.
            mode: See the class.
            on_newer_output: See the class.
            partition_by: See the class.
            compaction: See the class.
        """
        folders = _folders(partition_by)
        return cls(
            FileSinkSettings(
                "parquet",
                _place(path),
                max_part_bytes,
                max_part_rows,
                _in_files(schema_of(schema), folders),
                compression=compression,
                mode=mode,
                on_newer_output=on_newer_output,
                partition_by=folders,
                compaction=compaction,
            )
        )

    @classmethod
    def csv(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        header: bool = True,
        delimiter: str = ",",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
        mode: WriteMode = "error",
        on_newer_output: NewerOutput = "error",
        partition_by: str | Sequence[str] = (),
        compaction: FileCompaction | None = None,
    ) -> FileSink:
        """Write CSV files.

        Columns are the records' keys, or ``f0``, ``f1`` ... for tuples. Null is an empty field, an empty text ``""``.

        Args:
            path: See the class.
            schema: Columns of the files; None takes the records' own, which must keep their names.
            header: Whether each file begins with the columns' names.
            delimiter: One character.
            max_part_bytes: See the class.
            max_part_rows: See the class.
            mode: See the class.
            on_newer_output: See the class.
            partition_by: See the class.
            compaction: See the class.
        """
        folders = _folders(partition_by)
        return cls(
            FileSinkSettings(
                "csv", _place(path), max_part_bytes, max_part_rows, _in_files(schema_of(schema), folders), header,
                delimiter, mode=mode, on_newer_output=on_newer_output, partition_by=folders, compaction=compaction,
            )
        )  # fmt: skip

    @classmethod
    def json_lines(
        cls,
        path: str | os.PathLike[str],
        *,
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
        mode: WriteMode = "error",
        on_newer_output: NewerOutput = "error",
        partition_by: str | Sequence[str] = (),
        compaction: FileCompaction | None = None,
    ) -> FileSink:
        """Write one JSON value per line.

        Dictionaries and dataclasses are objects; lists and tuples are arrays; dates and times ISO 8601 text; durations
        seconds; decimals and UUIDs text; bytes base64 text; enum members their value; sets arrays. JSON knows no
        ``NaN`` and no infinity: they are null, and refused as keys of an object.

        Args:
            path: See the class.
            max_part_bytes: See the class.
            max_part_rows: See the class.
            mode: See the class.
            on_newer_output: See the class.
            partition_by: See the class.
            compaction: See the class.
        """
        folders = _folders(partition_by)
        return cls(
            FileSinkSettings(
                "jsonl", _place(path), max_part_bytes, max_part_rows,
                mode=mode, on_newer_output=on_newer_output, partition_by=folders, compaction=compaction,
            )
        )  # fmt: skip

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _FileWriter(self._settings)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return _FileCommitter(self._settings)


# -------------------------------------------------------------------------------------------------------------- writing


_MAX_OPEN_PARTS = 64
"""Of one subtask: records for more folders at a time make more and smaller files."""


class _ClosedPart(NamedTuple):
    """A part that is complete: its staged name, its size in bytes and its number of records."""

    staged: str
    size: int
    rows: int


class _FileWriter(SinkWriter):
    """Fills staged parts."""

    def __init__(self, settings: FileSinkSettings) -> None:
        self._settings = settings
        # The parts being filled, by their folder ("" for the directory itself); the one used last is the last.
        self._parts: dict[str, Part] = {}
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
        """What still waits, behind `prepare`, is in the checkpoint."""
        self._waiting_state.update(self._waiting.to_state())

    def open(self, context: WriterContext) -> None:
        self._context = context
        self._attempt = context.attempt.replace(".", "_")
        self._note = f"{NOTE}{context.subtask:05d}-{context.history.owner}-{self._attempt}.json"
        self._output = _directory(self._settings, context.history)
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
        """No more records come: none has to wait."""
        self._has_ended = True

    def _write_to(self, folder: str, batch: Batch) -> None:
        limit = self._settings.max_part_rows
        while batch.num_rows:
            part = self._part_of(folder)
            taken = batch.num_rows if limit is None else min(batch.num_rows, limit - part.num_rows)
            piece = batch if taken == batch.num_rows else batch.slice(0, taken)
            try:
                is_taken = part.write(piece)
            except _WRITE_ERRORS as error:
                failure = _failed(self._context, "cannot write", part.path, error)
                raise failure from error
            except TypeMismatchError as error:
                error.context.setdefault("path", part.path)
                raise
            if not is_taken:
                self._close_part(folder)
                continue
            if part.num_bytes >= self._settings.max_part_bytes or (limit is not None and part.num_rows >= limit):
                self._close_part(folder)
            if taken == batch.num_rows:
                return
            batch = batch.slice(taken, batch.num_rows - taken)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        for folder in self._waiting.due(self._context.now_ms(), is_end=self._has_ended):
            self._write_waiting(folder)
        for folder in list(self._parts):
            self._close_part(folder)
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
        try:
            output.fs.write_bytes(note, json.dumps(sorted(self._retained)).encode())
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, "cannot note what a savepoint holds", note, error)
            raise failure from error

    def _forget_committed(self, output: OutputDirectory) -> None:
        """What is not staged any more has been committed."""
        self._retained = {name for name in self._retained if output.fs.exists(output.staged_path(name))}

    def close(self) -> None:
        output = self._output
        if output is None:
            return
        parts, self._parts = self._parts, {}
        closed, self._closed = self._closed, []
        if not self._is_claimed:
            return  # it has staged nothing
        doomed = [output.staged_path(part.staged) for _, part in closed]
        for part in parts.values():
            with contextlib.suppress(*_WRITE_ERRORS):  # it is thrown away; whatever failed before has been told
                part.abandon()
            doomed.append(part.path)
        if self._retained:
            self._forget_committed(output)
            doomed += [] if self._retained else [f"{output.own_staging}/{self._note}"]
        _delete(output, doomed, self._context)
        output.remove_if_empty()

    # ------------------------------------------------------------------------------------------------------------ parts
    def _claimed(self) -> OutputDirectory:
        """The directory, which this sink still owns when it is first used."""
        output = self._output
        assert output is not None
        if not self._is_claimed:
            try:
                output.require_owner()
            except _WRITE_ERRORS as error:
                failure = _failed(self._context, "cannot use the output directory", output.root, error)
                raise failure from error
            self._is_claimed = True
        return output

    def _part_of(self, folder: str) -> Part:
        """The part of a folder, which is begun if there is none; at most so many are open at a time."""
        part = self._parts.pop(folder, None)
        if part is None:
            if len(self._parts) == _MAX_OPEN_PARTS:
                self._close_part(next(iter(self._parts)))
            part = self._start_part()
        self._parts[folder] = part
        return part

    def _start_part(self) -> Part:
        output, settings, context = self._claimed(), self._settings, self._context
        number = f"{self._num_parts:05d}.{settings.format}"
        name = f"{output.own_staging}/{context.subtask:05d}-{context.history.owner}-{self._attempt}-{number}"
        try:
            try:
                stream = output.fs.open_output(name)
            except NotFoundError:
                # Another subtask, closing, removed the empty directory between its making and its use.
                stream = output.fs.open_output(name)
        except _WRITE_ERRORS as error:
            failure = _failed(context, "cannot begin a file", name, error)
            raise failure from error
        self._num_parts += 1
        return open_part(name, stream, settings)

    def _close_part(self, folder: str) -> None:
        part = self._parts.pop(folder)
        try:
            size = part.finish()
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, "cannot finish a file", part.path, error)
            raise failure from error
        self._closed.append((folder, _ClosedPart(part.path.rpartition("/")[2], size, part.num_rows)))


class _FileCommitter(Committer):
    """Takes the directory over, and renames staged parts to their public names."""

    def __init__(self, settings: FileSinkSettings) -> None:
        self._settings = settings
        # What earlier attempts of this job staged and left, as found at the start.
        self._leftovers: list[str] = []
        # None until opened, so that `close` after a failed start has nothing to do.
        self._output: OutputDirectory | None = None

    def open(self, context: CommitterContext) -> None:
        self._context = context
        output = _directory(self._settings, context.history)
        with self._failing("cannot use the output directory", output.root):
            output.require_room(self._settings.max_part_bytes)
            output.make()
            output.require_fresh(self._settings.mode)
            self._newer(output)  # before the owner is shut out for nothing
            output.claim(context.job, is_alone=self._settings.mode != "append")
            output.forget_done(context.subtask)
            output.adopt()
            newer = self._newer(output)
            if self._choice == "delete":
                for file in newer:
                    output.fs.delete(output.public_path(file.name))
            elif self._choice == "keep":
                for file in output.newer_than_restored():
                    context.history.accept(file.owner, file.checkpoint_id)
            self._leftovers = self._find_leftovers(output)
        self._output = output

    def _newer(self, output: OutputDirectory) -> list[PublicFile]:
        """This subtask's share of the public files that the restored checkpoint does not account for.

        What other subtasks have published since, if only this one was restarted, is none of its business.
        """
        newer = [file for file in output.newer_than_restored() if self._is_mine(file.subtask)]
        if newer and self._choice == "error":
            raise output.newer_output(newer)
        return newer

    @property
    def _choice(self) -> NewerOutput:
        """What happens to output behind the restored checkpoint: the user may also have chosen for the whole job."""
        choice = self._settings.on_newer_output
        return "keep" if choice == "error" and self._context.newer_output == "repeat" else choice

    def _is_mine(self, subtask: int) -> bool:
        """Parallelism may have changed: the subtask with the old one's number, modulo, sees to what belonged to it."""
        return subtask % self._context.parallelism == self._context.subtask

    def _find_leftovers(self, output: OutputDirectory) -> list[str]:
        staged = output.staged_files()
        notes = {note: output.noted(note) for note in output.notes()}
        spared = {name for name, _ in staged}.intersection(*[set().union(*notes.values())])
        found = [
            name
            for name, says in staged
            if name not in spared and says.owner == self._context.history.owner and self._is_mine(says.subtask)
        ]
        for note, names in notes.items():
            number = number_in(note.removeprefix(NOTE).split("-", 1)[0])
            if number is not None and self._is_mine(number) and spared.isdisjoint(names):
                found.append(note)
        return [f"{output.own_staging}/{name}" for name in found]

    def commit(self, committable: Any) -> None:
        output = self._output
        assert output is not None
        part = Committable.of(committable)
        final = output.public_path(part.final)
        with self._failing("could not commit", final):
            if not output.is_place_of(part.location):
                if output.is_public_elsewhere(part):
                    return
                message = "the checkpoint holds output that was prepared for another directory and is not public there"
                hint = "restore once with a sink that writes to that directory"
                raise CheckpointMismatchError(message, hint=hint, path=part.location, rows=part.rows)
            output.require_own(part)
            output.require_folder(part.final)
            is_public = output.is_public(part)  # asked first: nothing comes between the looks below and the rename
            output.require_owner()
            output.require_alone()
            try:
                if is_public:  # by an attempt that failed afterwards; where a rename is a copy, both names may be there
                    output.fs.delete(output.staged_path(part.staged))
                    return
                output.fs.rename(output.staged_path(part.staged), final)
            except NotFoundError:
                if output.fs.exists(final) and output.fs.size(final) == part.size:
                    return  # an old attempt that still runs has just committed it
                output.require_owner()  # it may have been taken away just now
                output.require_alone()
                message = "prepared output is gone and was never committed: possible loss"
                raise PossibleLossError(message, path=part.staged, final=final, rows=part.rows) from None

    @contextlib.contextmanager
    def _failing(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, what, path, error)
            raise failure from error

    def abort_leftovers(self) -> None:
        assert self._output is not None
        _delete(self._output, self._leftovers, self._context)
        self._leftovers = []

    def finish(self) -> None:
        output = self._output
        assert output is not None
        with self._failing("cannot clean up", output.staging), contextlib.suppress(SinkFencedError):
            output.require_owner()  # all is committed: the new owner cleans up
            output.mark_done(self._context.subtask, self._context.parallelism)

    def close(self) -> None:
        if self._output is not None:
            self._output.remove_if_empty()


def _delete(output: OutputDirectory, paths: list[str], context: WriterContext | CommitterContext) -> None:
    for path in paths:
        try:
            output.fs.delete(path)
        except _WRITE_ERRORS as error:
            failure = _failed(context, "cannot delete a staged file", path, error)
            raise failure from error


def _failed(context: WriterContext | CommitterContext, what: str, path: str, error: Exception) -> SinkError:
    place = f"{context.subtask + 1}/{context.parallelism}"
    return SinkError(f"{what}: {error}", path=path, operator=context.operator_name, subtask=place)


def _directory(settings: FileSinkSettings, history: SinkHistory) -> OutputDirectory:
    return OutputDirectory(
        settings.location, history, is_private=settings.is_private, has_folders=bool(settings.partition_by)
    )


def _folders(partition_by: str | Sequence[str]) -> tuple[str, ...]:
    return (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)


def _in_files(schema: pa.Schema | None, folders: tuple[str, ...]) -> pa.Schema | None:
    """The columns that files have, of those that records have."""
    if schema is None or not folders:
        return schema
    require_folder_columns(folders, schema)
    return pa.schema([field for field in schema if field.name not in folders], schema.metadata)


def _place(path: str | os.PathLike[str]) -> str:
    return lasting_place(path, "the directory of a file sink")
