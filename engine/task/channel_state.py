"""Channel state: records in flight that belong to an unaligned checkpoint; how they are named, written and found again.

A channel's records in flight at checkpoint n are those its producer had emitted before n and its consumer has not
processed in n: first what waited at the consumer, its *input state*, then what waited at the producer for credit, its
*output state*. On restore both are processed by the consumer, in this order and before anything of its channels. What
is in flight is older than all that anybody emits from then on, so order per channel is kept at any parallelism, and per
key behind a hash partitioner, whichever subtask owns the producer's keys now.

A file holds what one subtask has logged of one exchange. An exchange is known by an `exchange_uid`, not by its number:
numbers change with the program. At another parallelism of the *consumer* (that of the producer does not matter) the
partitioner says who takes what: deterministic ones (hash, global) are asked again, record by record; all others give
what the old subtask j had to the new one (j mod new parallelism). An exchange whose two operators are chained in the
new program has no channels any more: its records enter the chain in the middle.

Exchanges that keep order (broadcast, forward, rescale, custom) have nothing in flight, but in checkpoints of earlier
versions: custom partitioners are asked again, and copies of a broadcast, which are at other places with each consumer,
are restored at the same parallelism only.

Only batches are channel state. Watermarks, idleness and the end of input come from the sources again
(``docs/design/011-unaligned-checkpoints.md``).

Source: Flink's ``ChannelStateWriter``, ``InflightDataRescalingDescriptor`` and ``RecoveredInputChannel``; FLIP-76.
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.checkpoints.assignment import has_renamed_keys
from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.snapshot import ChannelFile, FileKind, RestoredPart, SnapshotPart
from headrace.state.identifiers import OperatorId, VertexId
from headrace.state.keys.key_groups import key_group_range
from headrace.state.reading.arrow_reading import read_arrow_file, read_arrow_schema, read_arrow_stream
from headrace.state.reading.stored_json import parse_json
from headrace.state.reading.stored_pickles import unpickle_value
from headrace.state.values.encoding import decode_values, encode_values

from ..columns.records import Batch, RowKind, RowKinds, Timestamps
from ..errors import CheckpointCorruptError, CheckpointMismatchError
from ..graph.job_graph import JobGraph, JobVertex, exchange_uid
from ..operators.exchange import (
    BroadcastPartitioner,
    CustomPartitioner,
    GlobalPartitioner,
    HashPartitioner,
    Partitioner,
)
from ..protocol.task_messages import TaskDeployment
from .chain import ChainLink
from .channels import CutBatch

__all__ = ["ChannelFiles", "Logged", "Replay", "channel_part"]

INPUT, OUTPUT = "input", "output"

_SCHEMA = pa.schema(
    [
        pa.field("consumer", pa.int32(), nullable=False),
        pa.field("is_columnar", pa.bool_(), nullable=False),
        pa.field("timestamps", pa.large_binary()),
        pa.field("records", pa.large_binary(), nullable=False),
    ]
)
_ROW_KINDS = pa.field("row_kinds", pa.large_binary())
_SCHEMA_OF_CHANGES = _SCHEMA.append(_ROW_KINDS)
"""Of a file: one row per batch. ``records`` is an Arrow IPC stream: of the columns; or of one column of rows, whose
metadata say how it holds them (`headrace.state.values.encoding`), and of which type their columns are. Earlier versions
have pickled lists of rows. A file in which all records are inserted has no ``row_kinds``."""

_ROWS, _ENCODING, _COLUMNS = "headrace.rows", b"headrace.encoding", b"headrace.columns"
_PICKLE = b"\x80"
"""What pickles begin with, and streams do not."""


class Logged(NamedTuple):
    """A batch in flight, safe from whatever is done with its records later."""

    consumer: int
    """The subtask it is on its way to."""
    rows: bytes | None
    columns: pa.RecordBatch | None
    timestamps: Timestamps | None
    num_rows: int
    row_kinds: RowKinds | None = None

    @classmethod
    def of(cls, batch: Batch, consumer: int) -> Logged:
        """Log a batch. Rows are encoded at once: the records are processed while the checkpoint is written.

        Raises:
            TypeMismatchError: If a row cannot be stored.
        """
        beside = batch.timestamps, batch.num_rows, batch.row_kinds
        if not batch.is_of_rows:
            return cls(consumer, None, batch.columns, *beside)
        return cls(consumer, _stored_rows(batch), None, *beside)


def channel_part(
    exchange: str, side: str, entries: Sequence[Logged], target: OperatorId, input_index: int, vertex: tuple[int, int]
) -> SnapshotPart:
    """Return one subtask's channel state of one exchange, to be written as one file.

    Args:
        exchange: The exchange's uid.
        side: Who logged it: ``input`` (the consumer) or ``output`` (the producer).
        entries: The batches, in the order of each channel.
        target: The operator that consumes them.
        input_index: Which of its inputs.
        vertex: Parallelism and max parallelism of the consumer.
    """
    metadata = {
        "exchange": exchange,
        "side": side,
        "target": target,
        "input_index": input_index,
        "consumers": sorted({entry.consumer for entry in entries}),
        "parallelism": vertex[0],
        "max_parallelism": vertex[1],
    }
    return SnapshotPart(f"{side} {exchange}", FileKind.CHANNEL, metadata, functools.partial(_write, list(entries)))


def _write(entries: list[Logged]) -> bytes:
    columns = [
        pa.array([entry.consumer for entry in entries], pa.int32()),
        pa.array([entry.rows is None for entry in entries], pa.bool_()),
        _stored_beside([entry.timestamps for entry in entries], "<i8"),
        pa.array(
            [_stream(entry.columns) if entry.rows is None else entry.rows for entry in entries], pa.large_binary()
        ),
    ]
    schema = _SCHEMA
    if any(entry.row_kinds is not None for entry in entries):
        schema = _SCHEMA_OF_CHANGES
        columns.append(_stored_beside([entry.row_kinds for entry in entries], "i1"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _stored_beside(arrays: Sequence[npt.NDArray[Any] | None], kind: str) -> pa.Array:
    """What lies beside the records of batches, as bytes; null for a batch without it."""
    stored = [None if values is None else values.astype(kind).tobytes() for values in arrays]
    return pa.array(stored, pa.large_binary())


def _beside(data: bytes | None, kind: str, num_rows: int, what: str) -> Any:
    """What `_stored_beside` has stored of a batch.

    Raises:
        ValueError: If it is not one for each record.
    """
    if data is None:
        return None
    values = np.frombuffer(data, kind).astype(np.dtype(kind).newbyteorder("="), copy=False)
    if len(values) != num_rows:
        message = f"{len(values)} {what} of {num_rows} records"
        raise ValueError(message)
    return values


def _row_kinds(data: bytes | None, num_rows: int) -> RowKinds | None:
    """The kinds of changes of a batch.

    Raises:
        ValueError: If there is not one for each record, or one is none.
    """
    kinds: RowKinds | None = _beside(data, "i1", num_rows, "kinds of changes")
    if kinds is not None and num_rows and not RowKind.INSERT <= kinds.min() <= kinds.max() <= RowKind.DELETE:
        message = f"kinds of changes are 0 to 3; got {kinds.min()} to {kinds.max()}"
        raise ValueError(message)
    return kinds


def _stream(columns: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _stored_rows(batch: Batch) -> bytes:
    """The rows, and the type of their columns, if they have one."""
    array, encoding = encode_values(batch.rows)
    metadata = {_ENCODING: json.dumps(encoding).encode()}
    if batch.schema is not None:
        metadata[_COLUMNS] = batch.schema.serialize().to_pybytes()
    return _stream(pa.RecordBatch.from_arrays([array], schema=pa.schema([pa.field(_ROWS, array.type)], metadata)))


def _batch_of_rows(data: bytes, state: str) -> Batch:
    columns = None
    if data[:1] == _PICKLE:
        rows = unpickle_value(data)
    else:
        schema, batches = read_arrow_stream(data, "rows in flight", state=state)
        (batch,) = batches
        encoding = parse_json(schema.metadata[_ENCODING], max_bytes=_MAX_ENCODING_BYTES)
        rows = decode_values(batch.column(_ROWS), encoding)
        if _COLUMNS in schema.metadata:
            columns = read_arrow_schema(schema.metadata[_COLUMNS], "the type of rows in flight", state=state)
    if not isinstance(rows, list):
        message = f"rows in flight are a {type(rows).__name__}"
        raise TypeError(message)
    return Batch.of_rows(rows, None, columns)


def _batch_of_columns(data: bytes, state: str) -> Batch:
    (columns,) = read_arrow_stream(data, "columns in flight", state=state)[1]
    return Batch.of_columns(columns)


_MAX_ENCODING_BYTES = 64 << 20


def _read(part: RestoredPart) -> list[tuple[int, Batch]]:
    """The batches of a file, each with the old subtask it was on its way to.

    Raises:
        CheckpointCorruptError: If it cannot be decoded.
        CheckpointMismatchError: If a pickled row cannot be built.
    """
    batches: list[tuple[int, Batch]] = []
    table = read_arrow_file(part.data, "records in flight", state=part.state)
    try:
        if not (table.schema.equals(_SCHEMA) or table.schema.equals(_SCHEMA_OF_CHANGES)):
            message = f"the columns are {table.schema.names!r:.200}"
            raise ValueError(message)
        for entry in table.to_pylist():
            read = _batch_of_columns if entry["is_columnar"] else _batch_of_rows
            batch = read(entry["records"], part.state)
            batch.timestamps = _beside(entry["timestamps"], "<i8", batch.num_rows, "timestamps")
            batch.row_kinds = _row_kinds(entry.get("row_kinds"), batch.num_rows)
            batches.append((entry["consumer"], batch))
    except (pa.ArrowException, KeyError, TypeError, ValueError, MemoryError) as error:
        message = f"records in flight cannot be decoded: {error!r:.300}"
        raise CheckpointCorruptError(message, state=part.state) from error
    return batches


# --------------------------------------------------------------------------------------------------------- who restores
def _takes(
    partitioner: Partitioner | None, old: tuple[int, int], new: tuple[int, int], subtask: int
) -> Callable[[int], bool]:
    """Which old consumers' records in flight a new one has to look at.

    Args:
        partitioner: Of the exchange now; None if its operators are chained.
        old: Parallelism and max parallelism of the consumer then.
        new: The same now.
        subtask: The new consumer.
    """
    num_old, num_new = old[0], new[0]
    if not _are_dealt_out(partitioner, old, new):
        return lambda consumer: consumer == subtask
    if isinstance(partitioner, HashPartitioner) and old[1] == new[1]:
        own = key_group_range(new[1], num_new, subtask)
        return lambda consumer: own.overlaps(*_bounds(old[1], num_old, consumer))
    if _is_deterministic(partitioner):
        return lambda _consumer: True
    return lambda consumer: consumer % num_new == subtask


def _are_dealt_out(partitioner: Partitioner | None, old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Whether consumers take anything but what they had: at another parallelism, or if keys have other key groups."""
    return old[0] != new[0] or (isinstance(partitioner, HashPartitioner) and old[1] != new[1])


def _bounds(max_parallelism: int, parallelism: int, subtask: int) -> tuple[int, int]:
    groups = key_group_range(max_parallelism, parallelism, subtask)
    return groups.start, groups.end


def _is_deterministic(partitioner: Partitioner | None) -> bool:
    """Whether a record's receiver follows from the record alone."""
    return isinstance(partitioner, (HashPartitioner, CustomPartitioner, GlobalPartitioner))


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Where records of an exchange go in the program that is deployed."""

    vertex: VertexId
    partitioner: Partitioner | None


class ChannelFiles:
    """The channel state of a checkpoint, and who restores what of it. Called by the JobManager, once per deployment.

    Args:
        manifest: The checkpoint.
        job_graph: The program.

    Raises:
        CheckpointMismatchError: If records are in flight where the program has no exchange, or beside keys that belong
            to other subtasks by now.
    """

    def __init__(self, manifest: Manifest, job_graph: JobGraph) -> None:
        self._vertices = job_graph.vertices
        self._of_vertex: dict[VertexId, list[tuple[ChannelFile, Partitioner | None]]] = {}
        files = [
            ChannelFile(file, snapshot.subtask)
            for state in manifest.operators
            for snapshot in state.subtasks
            for file in snapshot.files
            if file.kind is FileKind.CHANNEL
        ]
        if not files:
            return
        for state in manifest.operators:
            if has_renamed_keys(state):
                message = (
                    f"checkpoint {manifest.checkpoint_id} holds records in flight, and keys of operator {state.uid!r} "
                    "whose class has another full name in the program"
                )
                hint = "start from a savepoint, or an aligned checkpoint, of the version that took it"
                raise CheckpointMismatchError(message, hint=hint)
        exchanges = _exchanges(job_graph)
        uids = {node.uid for vertex in job_graph.vertices.values() for node in vertex.chain}
        for channel_file in files:
            facts = channel_file.file.metadata
            exchange = exchanges.get(facts["exchange"])
            if exchange is None:
                if facts["target"] not in uids:
                    continue  # the operator has been taken out of the program, and its state with it
                message = (
                    f"checkpoint {manifest.checkpoint_id} holds records in flight to operator {facts['target']!r}, "
                    "on an exchange that the program does not have"
                )
                hint = "a program may be rewired from an aligned checkpoint, such as that of a job that was stopped"
                raise CheckpointMismatchError(message, hint=hint, exchange=facts["exchange"])
            self._check_broadcast(manifest.checkpoint_id, channel_file, exchange)
            self._of_vertex.setdefault(exchange.vertex, []).append((channel_file, exchange.partitioner))

    def _check_broadcast(self, checkpoint_id: int, channel_file: ChannelFile, exchange: _Exchange) -> None:
        old = channel_file.file.metadata["parallelism"]
        new = self._vertices[exchange.vertex].parallelism
        if isinstance(exchange.partitioner, BroadcastPartitioner) and old != new:
            message = (
                f"checkpoint {checkpoint_id}, of an earlier version, holds broadcast records in flight to {old} "
                f"subtasks of {exchange.vertex!r}; it cannot be restored at parallelism {new}"
            )
            hint = f"restore it at parallelism {old}; checkpoints that are taken then fit any"
            raise CheckpointMismatchError(message, hint=hint, exchange=channel_file.file.metadata["exchange"])

    def of(self, vertex_id: VertexId, subtask: int) -> tuple[ChannelFile, ...]:
        """Return what one subtask reads."""
        vertex = self._vertices[vertex_id]
        new = (vertex.parallelism, vertex.max_parallelism)
        found: list[ChannelFile] = []
        for channel_file, partitioner in self._of_vertex.get(vertex_id, ()):
            facts = channel_file.file.metadata
            takes = _takes(partitioner, (facts["parallelism"], facts["max_parallelism"]), new, subtask)
            if any(takes(consumer) for consumer in facts["consumers"]):
                found.append(channel_file)
        return tuple(found)


def _exchanges(job_graph: JobGraph) -> dict[str, _Exchange]:
    """Every way from one operator to another, by uid, those within chains included."""
    found = {edge.uid: _Exchange(edge.target, edge.partitioner) for edge in job_graph.edges}
    for vertex in job_graph.vertices.values():
        for uid in _chained_exchanges(vertex):
            found.setdefault(uid, _Exchange(vertex.vertex_id, None))
    return found


def _chained_exchanges(vertex: JobVertex) -> dict[str, int]:
    """The exchanges that a chain has swallowed, with the index of the operator they lead to."""
    found: dict[str, int] = {}
    for index, node in enumerate(vertex.chain):
        if node.parent is not None:
            parent = vertex.chain[node.parent]
            found[exchange_uid(parent.uid, node.side_tag, node.uid, 0)] = index
    return found


# ------------------------------------------------------------------------------------------------------------ replaying
class _Entry(NamedTuple):
    depth: int
    input_index: int
    exchange: str
    batch: Batch


class Replay:
    """What was in flight to one task when its checkpoint was taken: processed before anything of its channels.

    What has not been processed yet belongs to every snapshot that is taken meanwhile.

    Args:
        deployment: The task; names its exchanges.
        vertex: Its vertex.
        links: Its operators.
    """

    def __init__(self, deployment: TaskDeployment, vertex: JobVertex, links: Sequence[ChainLink]) -> None:
        self._subtask = deployment.attempt.subtask
        self._vertex = vertex
        self._links = links
        self._partitioners = {edge.uid: edge.partitioner for edge in deployment.input_edges}
        self._depths = {**_chained_exchanges(vertex), **{edge.uid: 0 for edge in deployment.input_edges}}
        self._entries: deque[_Entry] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def restore(self, restored: Mapping[OperatorId, Iterable[RestoredPart]]) -> None:
        """Take what a checkpoint holds for this task.

        Raises:
            CheckpointCorruptError: If a file cannot be decoded.
            CheckpointMismatchError: If a pickled row cannot be built.
            HeadraceError: If a partitioner's function fails.
        """
        parts = [part for some in restored.values() for part in some if part.kind is FileKind.CHANNEL]
        by_exchange: dict[str, list[RestoredPart]] = {}
        for part in parts:
            by_exchange.setdefault(part.metadata["exchange"], []).append(part)
        # Deepest first: what had gone further is older.
        for exchange in sorted(by_exchange, key=lambda uid: (-self._depths[uid], uid)):
            self._entries.extend(self._own(exchange, by_exchange[exchange]))

    def _own(self, exchange: str, parts: list[RestoredPart]) -> list[_Entry]:
        """What is this subtask's of one exchange: channel by channel, what was at the consumer first."""
        facts = parts[0].metadata
        partitioner = self._partitioners.get(exchange)
        new = (self._vertex.parallelism, self._vertex.max_parallelism)
        old = (facts["parallelism"], facts["max_parallelism"])
        takes = _takes(partitioner, old, new, self._subtask)
        sides = sorted(parts, key=lambda part: (part.metadata["side"] != INPUT, part.source_subtask))
        batches: dict[int, list[Batch]] = {}
        for part in sides:
            for consumer, batch in _read(part):
                if takes(consumer):
                    batches.setdefault(consumer, []).append(batch)
        own = [batch for consumer in sorted(batches) for batch in batches[consumer]]
        if _are_dealt_out(partitioner, old, new) and partitioner is not None and _is_deterministic(partitioner):
            bound = partitioner.bind(new[0], 0, new[1])
            own = [piece for batch in own for index, piece in bound.partition(batch) if index == self._subtask]
        depth = self._depths[exchange]
        return [_Entry(depth, facts["input_index"], exchange, batch) for batch in own]

    def process_next(self, cut: CutBatch | None = None) -> None:
        """Have the oldest batch processed, or as much of it as is to be taken at once."""
        entry = self._entries.popleft()
        batch = entry.batch
        num_rows = batch.num_rows if cut is None else cut(batch, 0)
        if num_rows < batch.num_rows:
            self._entries.appendleft(entry._replace(batch=batch.slice(num_rows, batch.num_rows - num_rows)))
            batch = batch.slice(0, num_rows)
        self._links[entry.depth].process_batch(batch, entry.input_index)

    def log(self) -> list[tuple[OperatorId, int, str, Logged]]:
        """Return what is left: the operator it goes to, which input, by which exchange, and the batch."""
        return [
            (
                OperatorId(self._links[entry.depth].uid),
                entry.input_index,
                entry.exchange,
                Logged.of(entry.batch, self._subtask),
            )
            for entry in self._entries
        ]
