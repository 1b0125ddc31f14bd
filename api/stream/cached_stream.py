"""Streams whose records are kept, for the next jobs of the same environment.

A cached stream is a place in the program with two sides. While nothing is kept, jobs compute it as any other stream,
and the first of them writes it down beside that, exactly once, with a file sink. When that job has finished, later ones
read the files instead and compute nothing in front of them.

How many batches the stream has is written beside them, by one subtask, in the end. So whether all is there is seen from
the files alone, whenever somebody looks: what is lost, even in part, is computed again.

What is kept belongs to the environment: `CachedDataStream.invalidate` and ``close`` delete it. A job that starts from a
snapshot writes nothing down, as it does not see what came before.

Source: Flink's ``CachedDataStream``, ``CacheTransformation``; FLIP-205.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.connectors.sinks import SinkOperator
from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.errors import HeadraceError, ProgramError
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.transformations import (
    OperatorKind,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
    inputs_of,
    is_behind,
)
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.exchange import GlobalPartitioner
from headrace.engine.operators.packed_batches import (
    COUNTS_TAG,
    PACKED_SCHEMA,
    TOTAL_SCHEMA,
    PackOperator,
    TotalOperator,
    UnpackOperator,
)
from headrace.state.files.filesystem import filesystem_for, join_uri
from headrace.state.type_variables import T1

from ..connectors.collection import CollectionSource
from ..connectors.files.locations import find_files
from ..connectors.files.parts import FileSinkSettings
from ..connectors.files.source import FileSink, FileSource
from ..jobs.client import JobClient, JobStatus
from .data_stream import DataStream

if TYPE_CHECKING:
    from .environment import StreamExecutionEnvironment

__all__ = ["CachedDataStream", "StreamCaches", "cached"]

_DATA, _TOTAL = "data", "total"
"""Of a kept stream's directory: what its batches are in, and how many they are."""

_MAX_PART_BYTES = 128 << 20


class CachedDataStream(DataStream[T1]):
    """A stream whose records are kept for the environment's next jobs. Made by ``cache``.

    Its settings are those of the operator in front of it: set them there.
    """

    def __init__(self, stream: DataStream[T1], caches: StreamCaches) -> None:
        environment = stream.get_execution_environment()
        place = UnionTransformation(environment.new_id(), (stream.transformation,))
        super().__init__(environment, place, stream.hinted_type, stream.known_columns)
        self._kept = _Kept(place, stream.transformation, caches)
        caches.add(self._kept)

    def cache(self) -> CachedDataStream[T1]:
        """Return this stream itself."""
        return self

    def invalidate(self) -> None:
        """Forget what is kept: the next job that needs it computes and keeps it anew."""
        self._kept.forget()


def cached(stream: DataStream[T1], caches: StreamCaches) -> CachedDataStream[T1]:
    """Have a stream kept.

    Raises:
        ProgramError: If it has no end, or says how its records are to be dealt out.
    """
    _refuse_partitioning(stream.transformation)
    unbounded = [one.name for one in _sources_of(stream.transformation) if not _is_bounded(one)]
    if unbounded:
        message = f"cache keeps streams that end; {unbounded[0]!r} does not"
        raise ProgramError(message, hint="write it to a sink, and read that")
    return CachedDataStream(stream, caches)


def _refuse_partitioning(transformation: Transformation) -> None:
    """What is kept is dealt out anew: copies made by a broadcast would be records of their own, and be copied again."""
    open_ends = [transformation]
    while open_ends:
        one = open_ends.pop()
        if isinstance(one, PartitionTransformation):
            message = (
                "a stream that is dealt out to the next operator cannot be cached: its partitioning would get lost"
            )
            raise ProgramError(message, hint="write cache() first", partitioning=repr(one.partitioner))
        if isinstance(one, UnionTransformation):
            open_ends.extend(one.inputs)


def _sources_of(transformation: Transformation) -> list[OperatorTransformation]:
    found: dict[int, OperatorTransformation] = {}
    seen: set[int] = set()
    open_ends = [transformation]
    while open_ends:
        one = open_ends.pop()
        if one.transformation_id not in seen:
            seen.add(one.transformation_id)
            open_ends.extend(inputs_of(one))
            if isinstance(one, OperatorTransformation) and one.kind is OperatorKind.SOURCE:
                found[one.transformation_id] = one
    return list(found.values())


def _is_bounded(source: OperatorTransformation) -> bool:
    return not isinstance(source.operator, SourceOperator) or source.operator.source.is_bounded


class _Kept:
    """What is kept of one stream.

    Args:
        place: Where it stands in the program; its one input is what it is computed by, or read with.
        computed: What it is computed by.
        caches: All of the environment.
    """

    def __init__(self, place: UnionTransformation, computed: Transformation, caches: StreamCaches) -> None:
        self.place = place
        self._computed = computed
        self._caches = caches
        # Where it is written to, or was; by which job, while it may run; and whether that has finished.
        self.directory: str | None = None
        # What its records are signed with there.
        self._key = b""
        self.writer: JobClient | None = None
        self.is_written = False
        # What reads the files.
        self._read: Transformation | None = None

    def settle(self) -> None:
        """See whether the job that writes it has ended, and how."""
        if self.writer is None:
            return
        try:
            view = self.writer.view()
        except HeadraceError:
            self.forget()  # it is unknown
            return
        if not view.state.is_terminal:
            return
        self.writer = None
        was_stopped = view.stopping is not None or view.savepoint_path is not None
        if view.state == JobStatus.FINISHED and not was_stopped:
            self.is_written = True
        else:
            self.forget()

    def arrange(self, *, may_read: bool) -> None:
        """Have the program read the files, if they are there as they were, or else compute the stream.

        Args:
            may_read: Whether it may.
        """
        num_batches = _num_batches(self.directory) if self.is_written and self.directory is not None else None
        if self.is_written and num_batches is None:
            self.forget()
        if not may_read or num_batches is None:
            self.place.inputs = (self._computed,)
            return
        if self._read is None:
            self._read = self._reading(is_empty=num_batches == 0)
        self.place.inputs = (self._read,)

    def _reading(self, *, is_empty: bool) -> Transformation:
        source = CollectionSource([]) if is_empty else FileSource.parquet(join_uri(self.directory or "", _DATA))
        parallelism = 1 if is_empty else self._caches.environment.get_parallelism()
        operator = SourceOperator(source, WatermarkStrategy.no_watermarks())
        files = self._operator("cached", OperatorKind.SOURCE, operator, (), parallelism)
        files.is_parallel = not is_empty
        return self._operator("unpack", OperatorKind.OPERATOR, UnpackOperator(self._key), (files,), parallelism)

    def begin_to_write(self) -> list[OperatorTransformation]:
        """Return what writes the stream down beside a job that computes it."""
        self.forget()
        self.directory = self._caches.new_place()
        self._key = secrets.token_bytes(32)
        computed = self._computed
        is_operator = isinstance(computed, OperatorTransformation)
        parallelism = computed.parallelism if is_operator else self._caches.environment.get_parallelism()  # type: ignore[attr-defined]
        pack = self._operator("pack", OperatorKind.OPERATOR, PackOperator(self._key), (computed,), parallelism)
        sink = _sink_into(join_uri(self.directory, _DATA), PACKED_SCHEMA)
        new_id = self._caches.environment.new_id
        counts = PartitionTransformation(
            new_id(), SideOutputTransformation(new_id(), pack, COUNTS_TAG), GlobalPartitioner()
        )
        total = self._operator("total", OperatorKind.OPERATOR, TotalOperator(), (counts,), 1)
        total_sink = _sink_into(join_uri(self.directory, _TOTAL), TOTAL_SCHEMA)
        sinks = [
            self._operator("cache", OperatorKind.SINK, sink, (pack,), parallelism),
            self._operator("cache: total", OperatorKind.SINK, total_sink, (total,), 1),
        ]
        total.is_parallel = sinks[1].is_parallel = False
        return [pack, total, *sinks]

    def _operator(
        self,
        name: str,
        kind: OperatorKind,
        operator: Operator,
        inputs: tuple[Transformation, ...],
        parallelism: int,
    ) -> OperatorTransformation:
        own_id = self._caches.environment.new_id()
        return OperatorTransformation(own_id, name, kind, operator, inputs, parallelism)

    def forget(self) -> None:
        """Delete what is kept."""
        directory, self.directory = self.directory, None
        self.writer = self._read = None
        self.is_written = False
        self.place.inputs = (self._computed,)
        if directory is not None:
            _delete(directory)


class StreamCaches:
    """All cached streams of an environment.

    Args:
        environment: It.
    """

    def __init__(self, environment: StreamExecutionEnvironment) -> None:
        self.environment = environment
        self._kept: list[_Kept] = []

    def add(self, kept: _Kept) -> None:
        """Look after another one."""
        self._kept.append(kept)

    def new_place(self) -> str:
        """Return where to keep a stream: beside the checkpoints, if the program says where those are, else on this
        machine.
        """
        config = self.environment.get_checkpoint_config()
        named = config.get_checkpoint_storage_dir()
        if named is None or not config.is_storage_dir_named():
            return tempfile.mkdtemp(prefix="headrace-cache-")
        return join_uri(named, f"cached-streams/{uuid.uuid4().hex}")

    def arrange(self, roots: Sequence[Transformation], *, is_restored: bool) -> list[_Kept]:
        """Make ready for a job.

        Args:
            roots: The program.
            is_restored: Whether it starts from a snapshot.

        Returns:
            The streams that the job computes, and that are neither kept nor being written down.
        """
        for kept in self._kept:
            kept.settle()
            kept.arrange(may_read=not is_restored)
        if is_restored:
            return []
        missing = [kept for kept in self._kept if not kept.is_written and kept.writer is None]
        return [kept for kept in missing if any(is_behind(root, kept.place) for root in roots)]

    def close(self) -> None:
        """Delete all that is kept."""
        for kept in self._kept:
            kept.forget()


def _sink_into(location: str, schema: pa.Schema) -> SinkOperator:
    """A sink of Parquet files that are their owner's alone, as checkpoints are."""
    settings = FileSinkSettings("parquet", location, _MAX_PART_BYTES, None, schema, is_private=True)
    return SinkOperator(FileSink(settings))


def _num_batches(directory: str) -> int | None:
    """How many batches are kept; None if not all are there, or that cannot be seen."""
    try:
        fs, files = find_files(join_uri(directory, _TOTAL), recursive=False)
        totals: list[int] = []
        for path, _ in files:
            with fs.open_input(path) as file:
                totals += pq.read_table(file).column(0).to_pylist()
        if len(totals) != 1:
            return None
        num_batches = 0
        for path, _ in find_files(join_uri(directory, _DATA), recursive=False)[1]:
            with fs.open_input(path) as file:
                num_batches += pq.ParquetFile(file).metadata.num_rows
    except (HeadraceError, OSError, pa.ArrowException):
        return None
    return num_batches if totals == [num_batches] else None


def _delete(directory: str) -> None:
    """Best effort: what cannot be deleted is in no one's way, as no directory is used twice."""
    with contextlib.suppress(HeadraceError, OSError):
        fs, path = filesystem_for(directory)
        fs.delete_directory(path)
