"""Files as a sink: Parquet, ORC, Avro, CSV, JSON lines and SequenceFiles, exactly once.

A writer fills *parts* in a staging directory, out of every reader's sight, and closes them at each barrier and whenever
one is large enough. A closed part is a committable; its commit renames it to its public name. So what a reader of the
directory sees is whole and is never taken back, and the same commit done twice changes nothing: the part is either
still staged or already there.

Public names hold the sink's origin and owner, the attempt, the checkpoint and a counter: no two parts are ever given
the same one, and from the names alone a restored job sees whether there is output that its checkpoint does not account
for. Who may publish, and how a takeover shuts out the owner before, is `headrace.connectors.files.output`.

What an attempt staged and no checkpoint holds is garbage; it is deleted by the next attempt once its own first
checkpoint is complete. What a savepoint holds is noted beside it, and spared until it has been committed.

Source: Flink's ``FileSink``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa

from headrace.engine.columns.write_mode import WriteMode, check_write_mode
from headrace.engine.connectors.contract import Committer, SinkWriter
from headrace.engine.errors import ConfigurationError

from ...arguments.places import lasting_place
from ...formats.avro_types import avro_library, avro_schema_of
from ...formats.containers.avro_files import require_avro_codec
from ...formats.containers.orc_files import OrcCompression, orc_schema_of, require_orc_compression
from ...formats.containers.sequence_files import SequenceCompression, SequenceSettings
from ...formats.csv_lexing import require_delimiter
from ...formats.folders import require_folder_columns
from ...formats.schemas import schema_of
from .committer import FileCommitter
from .parts import Compression, FileSinkSettings, NewerOutput
from .waiting import FileCompaction
from .writer import FileWriter

__all__ = ["FileSink"]


class FileSink:
    """Writes files into a directory. Made by `parquet`, `orc`, `avro`, `csv`, `json_lines` or `sequence_file`.

    Common arguments of all:
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
    def orc(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        compression: OrcCompression = "zlib",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
        mode: WriteMode = "error",
        on_newer_output: NewerOutput = "error",
        partition_by: str | Sequence[str] = (),
        compaction: FileCompaction | None = None,
    ) -> FileSink:
        """Write ORC files.

        A type that ORC has not (times of day, unsigned 64 bits) is refused, and a time before 1677 or after 2262.

        Args:
            path: See the class.
            schema: As of `parquet`.
            compression: ``zlib``, ``snappy``, ``lz4``, ``zstd`` or ``none``.
            max_part_bytes: See the class.
            max_part_rows: See the class.
            mode: See the class.
            on_newer_output: See the class.
            partition_by: See the class.
            compaction: See the class.

        Raises:
            ConfigurationError: If there is no such compression, or a column has a type that ORC has not.
        """
        require_orc_compression(compression)
        folders = _folders(partition_by)
        own = _in_files(schema_of(schema), folders)
        if own is not None:
            orc_schema_of(own)
        return cls(
            FileSinkSettings(
                "orc", _place(path), max_part_bytes, max_part_rows, own, compression=compression, mode=mode,
                on_newer_output=on_newer_output, partition_by=folders, compaction=compaction,
            )
        )  # fmt: skip

    @classmethod
    def avro(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        codec: str = "snappy",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
        mode: WriteMode = "error",
        on_newer_output: NewerOutput = "error",
        partition_by: str | Sequence[str] = (),
        compaction: FileCompaction | None = None,
    ) -> FileSink:
        """Write container files of Avro.

        A type that Avro has not (unsigned 64 bits, durations, keys of maps that are no text) is refused.

        Args:
            path: See the class.
            schema: As of `parquet`; a column that is declared without nulls is no union with null.
            codec: ``null``, ``deflate``, ``snappy``, ``zstandard``, ``bzip2`` or ``xz``.
            max_part_bytes: See the class.
            max_part_rows: See the class.
            mode: See the class.
            on_newer_output: See the class.
            partition_by: See the class.
            compaction: See the class.

        Raises:
            ConfigurationError: If there is no such codec, a column has a type or a name that Avro has not, or
                ``fastavro`` is not installed.
        """
        avro_library()
        require_avro_codec(codec)
        folders = _folders(partition_by)
        own = _in_files(schema_of(schema), folders)
        if own is not None:
            avro_schema_of(own)
        return cls(
            FileSinkSettings(
                "avro", _place(path), max_part_bytes, max_part_rows, own, compression=codec, mode=mode,
                on_newer_output=on_newer_output, partition_by=folders, compaction=compaction,
            )
        )  # fmt: skip

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

    @classmethod
    def sequence_file(
        cls,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        value: str | None = None,
        compression: SequenceCompression = "none",
        codec: str = "zlib",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
        mode: WriteMode = "error",
        on_newer_output: NewerOutput = "error",
        compaction: FileCompaction | None = None,
    ) -> FileSink:
        """Write SequenceFiles of Hadoop, version 6. Records have two fields, the first of which is the key.

        Args:
            path: See the class.
            key: The class of the keys, such as ``Text`` (`FileSource.sequence_file` has the list); None for that of
                their type: texts are ``Text``, bytes ``BytesWritable``, ints ``LongWritable``, floats
                ``DoubleWritable``. Null has a form in ``NullWritable`` only.
            value: The class of the values, likewise.
            compression: ``none``, ``record`` (each value by itself) or ``block`` (records together, about 1 MB).
            codec: ``zlib``, ``gzip``, ``bzip2``, ``snappy``, ``lz4`` or ``zstd``.
            max_part_bytes: See the class.
            max_part_rows: See the class.
            mode: See the class.
            on_newer_output: See the class.
            compaction: See the class.

        Raises:
            ConfigurationError: If there is no such class, compression or codec.
        """
        return cls(
            FileSinkSettings(
                "seq", _place(path), max_part_bytes, max_part_rows, mode=mode, on_newer_output=on_newer_output,
                compaction=compaction, sequence=SequenceSettings(key, value, compression, codec),
            )
        )  # fmt: skip

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return FileWriter(self._settings)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return FileCommitter(self._settings)


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
