"""Files as a source, in several formats, wherever `headrace.state.files` reaches; with the sink.

Discovery lists files and cuts them into splits: Parquet by row groups, ORC by stripes, Avro and SequenceFiles by byte
ranges that begin at marks, text by whole file or, where records end with the line, by byte ranges. A file is cut once:
the engine knows it by its path, and a split carries its range, so other settings and another parallelism change nothing
for files that were found before. A followed directory is listed again and again; a file is taken once, by its path, and
must be complete when it gets its name: write it under a hidden name (``.x``, ``_x``, ``x.tmp``, ``x.inprogress``) and
rename it.

A position is how many rows were read (Parquet, ORC), or the byte at which a block of records begins and how many of its
records were read (all others). The one invariant: reading on from a position gives exactly the records behind it,
rejected ones included.

Source: Flink's ``FileSource``, ``ParquetColumnarRowInputFormat``, ``NonSplittingRecursiveEnumerator``,
``ContinuousFileEnumerator``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.engine.kernel.config import parse_duration_ms
from headrace.state.files.filesystem import FileSystem, store_of
from headrace.state.type_variables import OUT

from ...arguments.data_types import Types
from ...arguments.data_types import schema_of as type_schema
from ...arguments.places import absolute_place
from ...formats.avro_types import avro_library
from ...formats.blocks import READ_ERRORS, compression_of
from ...formats.containers.orc_files import open_orc
from ...formats.containers.parquet_files import Footers, open_parquet
from ...formats.csv_lexing import require_delimiter
from ...formats.folders import of_folders
from ...formats.schemas import schema_of
from ...formats.text import encoding_named, is_cut_by_newlines
from .columnar_splits import OrcSplit, ParquetSplit
from .locations import find_files
from .settings import ErrorPolicy, FileSettings
from .sink import FileSink
from .splits import ContainerSplit, OpenSplit, TextSplit, columns_in_files

__all__ = ["FileSink", "FileSource"]


class FileSource(Source[OUT]):
    """Reads files. Made by `parquet`, `orc`, `avro`, `csv`, `json_lines`, `text` or `sequence_file`.

    Common arguments of all:
        path: A file, a directory, a glob (``*``, ``?``, ``[..]``, ``**`` for any depth), or several of them; a local
            path or a URI. Relative paths are the client's. Files are read in the order of their names.
        recursive: Whether a directory's subdirectories are read, too.
        follow: Look for new files this often (milliseconds, or text such as ``"1 s"``), without end; None reads what is
            there and ends. Event time goes on with the slowest subtask: see ``WatermarkStrategy.with_idleness`` if some
            get no file.
        split_bytes: How large a split should be.
        folders: Columns, with their types, whose values the folders ``name=value`` that a file is in say; they come
            behind the file's own, and in the place of one of the same name (Parquet, ORC, Avro, CSV, JSON lines with a
            schema).
    """

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self.is_bounded = settings.follow_ms is None

    @staticmethod
    def parquet(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        recursive: bool = False,
        follow: object = None,
        split_bytes: int | None = None,
        folders: pa.Schema | Mapping[str, Any] | None = None,
        int96_unit: str | None = None,
    ) -> FileSource[Any]:
        """Read Parquet files, in splits of neighbouring row groups that hold at least ``split_bytes`` uncompressed.

        By default these are 32 MiB, or less where each reader would have too few splits.

        Args:
            path: See the class.
            columns: Which to read, fields of structs as ``"outer.inner"``; None for all.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.
            folders: See the class.
            int96_unit: What times of 96 bits, as Spark and Flink write them, are read in; None for nanoseconds, which
                end in the year 2262.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        if int96_unit not in (None, "s", "ms", "us", "ns"):
            message = f"int96_unit must be 's', 'ms', 'us' or 'ns'; got {int96_unit!r}"
            raise ConfigurationError(message)
        chosen = None if columns is None else tuple(columns)
        return FileSource(
            FileSettings(
                "parquet", _locations(path), recursive, _follow_ms(follow),
                0 if split_bytes is None else _positive(split_bytes), columns=chosen, int96_unit=int96_unit,
                folders=schema_of(folders),
            )
        )  # fmt: skip

    @staticmethod
    def orc(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        recursive: bool = False,
        follow: object = None,
        split_bytes: int = 16 << 20,
        folders: pa.Schema | Mapping[str, Any] | None = None,
    ) -> FileSource[dict[str, Any]]:
        """Read ORC files, in splits of neighbouring stripes that have about ``split_bytes``, compressed.

        A stripe is decoded as a whole. Times have nanoseconds.

        Args:
            path: See the class.
            columns: Which to read; None for all.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.
            folders: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return FileSource(
            FileSettings(
                "orc", _locations(path), recursive, _follow_ms(follow), _positive(split_bytes),
                columns=None if columns is None else tuple(columns), folders=schema_of(folders),
            )
        )  # fmt: skip

    @staticmethod
    def avro(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        recursive: bool = False,
        follow: object = None,
        split_bytes: int = 16 << 20,
        folders: pa.Schema | Mapping[str, Any] | None = None,
    ) -> FileSource[Any]:
        """Read container files of Avro. Large files are read in parallel, from their syncs on.

        The fields of their records are columns, each in the type that the file says: a union with null may be null,
        other unions are refused, as is a record that holds records of its own kind. A block that cannot be read is a
        damaged file.

        Args:
            path: See the class.
            columns: Which to read; None for all.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.
            folders: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value, or ``fastavro`` is not installed.
        """
        avro_library()
        return FileSource(
            FileSettings(
                "avro", _locations(path), recursive, _follow_ms(follow), _positive(split_bytes), is_splittable=True,
                columns=None if columns is None else tuple(columns), folders=schema_of(folders),
            )
        )  # fmt: skip

    @staticmethod
    def csv(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        schema: pa.Schema | Mapping[str, Any] | None = None,
        *,
        has_header: bool = True,
        delimiter: str = ",",
        null_values: Sequence[str] | None = None,
        on_error: ErrorPolicy = "fail",
        splittable: bool = False,
        recursive: bool = False,
        follow: object = None,
        split_bytes: int = 64 << 20,
        folders: pa.Schema | Mapping[str, Any] | None = None,
    ) -> FileSource[dict[str, Any]]:
        """Read CSV files; the records are columns.

        Args:
            path: See the class.
            schema: Columns and their types: a schema, or a mapping from name to Arrow type, its name or Python type.
                With a header it chooses columns by name; without, it names them all. None takes all columns and infers
                types from each file's first block.
            has_header: Whether a file's first record names its columns; without header and schema they are ``f0``,
                ``f1`` ...
            delimiter: One character.
            null_values: Texts that mean null, but in text columns; None for Arrow's list (empty, ``NA``, ``null`` ...).
            on_error: What to do with a record that cannot be decoded: ``fail``, ``skip`` (and count
                ``num_records_skipped``) or ``dead-letter`` (count, and emit to the side output ``dead-letter``).
            splittable: True promises that no field holds a line end: large files are then read in parallel.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.
            folders: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        require_delimiter(delimiter)
        return FileSource(
            FileSettings(
                "csv", _locations(path), recursive, _follow_ms(follow), _positive(split_bytes),
                schema=schema_of(schema), on_error=_policy(on_error), is_splittable=splittable, has_header=has_header,
                delimiter=delimiter, null_values=None if null_values is None else tuple(null_values),
                folders=schema_of(folders),
            )
        )  # fmt: skip

    @staticmethod
    def json_lines(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        schema: pa.Schema | Mapping[str, Any] | None = None,
        *,
        on_error: ErrorPolicy = "fail",
        recursive: bool = False,
        follow: object = None,
        split_bytes: int = 64 << 20,
        folders: pa.Schema | Mapping[str, Any] | None = None,
    ) -> FileSource[Any]:
        """Read files of one JSON value per line; large files are read in parallel.

        Args:
            path: See the class.
            schema: Columns and their types, as for `csv`: the records are columns. None: the records are rows as
                Python's parser makes them.
            on_error: As for `csv`.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.
            folders: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        if folders is not None and schema is None:
            message = "columns of folders need the schema of what is in the files, too"
            raise ConfigurationError(message)
        return FileSource(
            FileSettings(
                "json lines", _locations(path), recursive, _follow_ms(follow), _positive(split_bytes),
                schema=schema_of(schema), on_error=_policy(on_error), is_splittable=True, folders=schema_of(folders),
            )
        )  # fmt: skip

    @staticmethod
    def text(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        charset_name: str = "UTF-8",
        *,
        on_error: ErrorPolicy = "fail",
        recursive: bool = False,
        follow: object = None,
        split_bytes: int = 64 << 20,
    ) -> FileSource[str]:
        """Read text files; every line is a record, a ``str`` without its line end. Large files are read in parallel.

        Args:
            path: See the class.
            charset_name: The encoding, as Python knows it; not one whose characters have several bytes throughout, such
                as UTF-16.
            on_error: What to do with a line that cannot be decoded, as for `csv`.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return FileSource(
            FileSettings(
                "text", _locations(path), recursive, _follow_ms(follow), _positive(split_bytes),
                schema=type_schema(Types.STRING()), on_error=_policy(on_error), is_splittable=True,
                encoding=_encoding(charset_name),
            )
        )  # fmt: skip

    @staticmethod
    def sequence_file(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        on_error: ErrorPolicy = "fail",
        recursive: bool = False,
        follow: object = None,
        split_bytes: int = 64 << 20,
    ) -> FileSource[tuple[Any, Any]]:
        """Read SequenceFiles of Hadoop; the records are tuples of key and value. Large files are read in parallel.

        Version 6, with keys and values of the classes ``Text``, ``BytesWritable``, ``IntWritable``, ``LongWritable``,
        ``FloatWritable``, ``DoubleWritable``, ``ShortWritable``, ``ByteWritable``, ``BooleanWritable``,
        ``NullWritable``, ``VIntWritable`` and ``VLongWritable``; not compressed, or by zlib, gzip, bzip2, Snappy, LZ4
        or Zstandard, record by record or in blocks. Anything else is an error that names it.

        Args:
            path: See the class.
            on_error: What to do with a record whose bytes mean nothing in its class, as for `csv`.
            recursive: See the class.
            follow: See the class.
            split_bytes: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        return FileSource(
            FileSettings(
                "sequence", _locations(path), recursive, _follow_ms(follow), _positive(split_bytes),
                on_error=_policy(on_error), is_splittable=True,
            )
        )  # fmt: skip

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records as far as they are declared, or the first file says them.

        None if nothing is known, or the file cannot be read from here: then the run says what is wrong.
        """
        settings = self._settings
        own = columns_in_files(settings) if settings.format in _TYPED else settings.schema
        if own is None or settings.folders is None:
            return own
        return pa.schema([*(field for field in own if field.name not in settings.folders.names), *settings.folders])

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make what finds the files."""
        return _FileEnumerator(self._settings, context.parallelism)

    def create_reader(self) -> SourceReader:
        """Make what reads them."""
        return _FileReader(self._settings)


_SPLITS: dict[str, Callable[[Split, FileSettings, ReaderContext], OpenSplit]] = {
    "orc": OrcSplit,
    "avro": ContainerSplit,
    "sequence": ContainerSplit,
}
"""By format; Parquet has its own place in the reader, and all others are text."""

_TYPED = frozenset(("parquet", *_SPLITS))
"""Formats whose files say what their columns are, and what in them is compressed."""


def _locations(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths:
        message = "a file source needs at least one path; got none"
        raise ConfigurationError(message)
    return tuple(absolute_place(p) for p in paths)


def _follow_ms(follow: object) -> int | None:
    if follow is None:
        return None
    interval_ms = parse_duration_ms(follow)
    if interval_ms < 1:
        message = f"follow must be at least 1 ms; got {follow!r}"
        raise ConfigurationError(message)
    return interval_ms


def _positive(split_bytes: int) -> int:
    if split_bytes < 1:
        message = f"split_bytes must be at least 1; got {split_bytes}"
        raise ConfigurationError(message)
    return split_bytes


def _policy(on_error: str) -> ErrorPolicy:
    if on_error not in ("fail", "skip", "dead-letter"):
        message = f"on_error must be 'fail', 'skip' or 'dead-letter'; got {on_error!r}"
        raise ConfigurationError(message)
    return on_error  # type: ignore[return-value]


def _encoding(charset_name: str) -> str:
    encoding = encoding_named(charset_name)
    if not is_cut_by_newlines(encoding):
        message = f"lines of text cannot be told apart by bytes in {charset_name!r}"
        raise ConfigurationError(message, hint="convert the files, e.g. to UTF-8")
    return encoding


# ------------------------------------------------------------------------------------------------------------ discovery


SPLIT_BYTES = 32 << 20
SPLITS_PER_READER = 8
LEAST_SPLIT_BYTES = 64 << 10
"""Row groups are put together so far, as a split costs a request and an opened file; but only as far as leaves each
reader about so many splits of what a location has, so that none has much to do when the others have ended; and so far
in any case."""


class _FileEnumerator:
    """Lists files and cuts them into splits, each file once.

    Args:
        settings: Which files.
        parallelism: How many readers there are.
    """

    def __init__(self, settings: FileSettings, parallelism: int) -> None:
        self._settings = settings
        self._parallelism = parallelism
        self.discovery_interval_ms = settings.follow_ms
        # Store and splits of every file seen, by path: a file is cut once, however many locations mean it, and
        # following does not open it again.
        self._seen: dict[str, tuple[tuple[str, str], list[Split]]] = {}

    def discover(self) -> Discovery:
        found: dict[str, list[Split]] = {}
        for location in self._settings.locations:
            fs, files = find_files(location, recursive=self._settings.recursive)
            scheme, host, _ = store_of(location)
            num_bytes = sum(size for _, size in files)
            if not files and self._settings.follow_ms is None:
                message = "no file found there"
                raise SourceError(message, path=location)
            for path, size in files:
                if path not in self._seen:
                    # A file ends, also where the folder is followed.
                    share = size / max(num_bytes, 1)
                    cut = self._cut(fs, location, path, size, share)
                    self._seen[path] = (scheme, host), [dataclasses.replace(split, is_bounded=True) for split in cut]
                store, found[path] = self._seen[path]
                if store != (scheme, host):
                    message = "a file source cannot tell apart two files of one path that are in two stores"
                    hint = "read each store with a source of its own, and join them with union"
                    raise SourceError(message, hint=hint, path=path, location=location)
        splits = [split for cut in found.values() for split in cut]
        if self._settings.follow_ms is not None:
            return Discovery(splits, is_final=False)
        return Discovery(splits, is_final=True, state={"last_path": max(found)})

    def _cut(self, fs: FileSystem, location: str, path: str, size: int, share: float) -> list[Split]:
        """The splits of a file, which has such a share of what its location has."""
        settings = self._settings
        payload: dict[str, Any] = {"location": location, "path": path, "format": settings.format, "size": size}
        if settings.format == "parquet":
            return [
                Split(f"{path}#{first}-{last}", {**payload, "row_groups": [first, last]}, origin=path)
                for first, last in _cut_row_groups(
                    fs, path, settings.split_bytes, share * SPLITS_PER_READER * self._parallelism
                )
            ]
        if settings.format == "orc":
            return [
                Split(f"{path}#{first}-{last}", {**payload, "stripes": [first, last]}, origin=path)
                for first, last in _cut_stripes(fs, path, settings.split_bytes)
            ]
        is_compressed = settings.format not in _TYPED and compression_of(path) is not None
        if not settings.is_splittable or is_compressed or size <= settings.split_bytes:
            return [Split(path, {**payload, "range": None}, origin=path)]
        bounds = [*range(0, size, settings.split_bytes), size]
        return [
            Split(f"{path}#{start}-{end}", {**payload, "range": [start, end]}, origin=path)
            for start, end in itertools.pairwise(bounds)
        ]


def _cut_row_groups(fs: FileSystem, path: str, split_bytes: int, num_splits: float) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring row groups, (first, last + 1), of ``split_bytes``; if that is 0, about ``num_splits`` or as
    many as have `SPLIT_BYTES`.
    """
    try:
        with fs.open_input(path) as file:
            metadata = open_parquet(file).metadata
    except READ_ERRORS as error:
        message = f"not a readable parquet file: {error}"
        raise SourceError(message, path=path) from error
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    least_bytes = split_bytes or min(SPLIT_BYTES, max(LEAST_SPLIT_BYTES, sum(sizes) / num_splits))
    first = gathered = 0
    for index, size in enumerate(sizes):
        gathered += size
        if gathered >= least_bytes:
            yield first, index + 1
            first, gathered = index + 1, 0
    if first < metadata.num_row_groups:
        yield first, metadata.num_row_groups


def _cut_stripes(fs: FileSystem, path: str, split_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring stripes, (first, last + 1), of one number of them: the end of a file says their sizes only
    together.
    """
    try:
        with fs.open_input(path) as file:
            found = open_orc(file)
            count, size = found.nstripes, found.content_length
    except READ_ERRORS as error:
        message = f"not a readable orc file: {error}"
        raise SourceError(message, path=path) from error
    except ConfigurationError as error:
        error.context.update(path=path)
        raise
    step = max(1, split_bytes * count // max(size, 1))
    for first in range(0, count, step):
        yield first, min(first + step, count)


# -------------------------------------------------------------------------------------------------------------- reading


class _FileReader:
    """Reads splits one after another."""

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._splits: list[Split] = []
        # The first of `_splits`, once it is opened.
        self._current: OpenSplit | None = None
        # What its folders say.
        self._in_folders: list[pa.Scalar] = []
        self._footers = Footers()

    def open(self, context: ReaderContext) -> None:
        self._context = context

    def add_splits(self, splits: list[Split]) -> None:
        self._splits.extend(splits)

    def poll(self, max_records: int) -> Any:
        if not self._splits:
            return ALL_SPLITS_FINISHED
        split = self._splits[0]
        if self._current is None:
            if self._settings.folders is not None:
                self._in_folders = of_folders(split.payload["path"], self._settings.folders)
            self._current = self._opened(split)
        batch = self._current.read(max_records)
        if batch is not None:
            return Polled(split.split_id, self._with_folders(batch))
        self._current.close()
        self._current = None
        del self._splits[0]
        return SplitFinished(split.split_id)

    def _opened(self, split: Split) -> OpenSplit:
        if self._settings.format == "parquet":
            return ParquetSplit(split, self._settings, self._context, self._footers)
        return _SPLITS.get(self._settings.format, TextSplit)(split, self._settings, self._context)

    def _with_folders(self, batch: Batch) -> Batch:
        if self._settings.folders is None or batch.num_rows == 0:
            return batch
        folders, columns = self._settings.folders, batch.columns_as(None)
        columns = columns.select([name for name in columns.schema.names if name not in folders.names])
        for field, value in zip(folders, self._in_folders, strict=True):
            columns = columns.append_column(field, pa.repeat(value, batch.num_rows))
        return Batch.of_columns(columns)

    def next_poll_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Split]:
        if self._current is None:
            return list(self._splits)
        first = self._splits[0]
        return [Split(first.split_id, first.payload, self._current.position()), *self._splits[1:]]

    def close(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.close()
