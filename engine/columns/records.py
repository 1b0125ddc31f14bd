"""What flows in a channel: batches of records and the control elements between them.

A `Batch` has up to two faces, converted lazily and at most once: *columns* (a ``pyarrow.RecordBatch``) and *rows* (a
list of Python objects). Python functions ask for rows, expressions and built-in aggregates for columns; who asks for
the face that is there pays nothing. Whatever is cut out of a batch keeps the face that it was made with: rows are the
user's own objects, and columns that were made of them (tuples become lists there, dataclasses structs) are never a
reason to make them anew. Event time travels beside either face as int64 epoch milliseconds UTC; `MIN_TIMESTAMP` stands
for none beside records that have one. So do the kinds of changes (`RowKind`), which insert-only streams do not have.

How rows and columns map is written in the schema's metadata under ``headrace.row``: ``dict`` (the default: a record
is a dict by field name), ``tuple`` (fields ``f0``, ``f1`` ...; a record is a tuple) or ``value`` (one field
``value``; a record is that value).

Keys are found once: what an exchange has found for each record goes with the batch and with all that is cut out of it,
for operators that ask for keys by the same selector. Keys that are ints are an array, which is cut at once and goes to
other processes, too; other keys are found there again, as pickling them costs about what the selector does.

Rows that come from another process stay a pickle until somebody asks for them. What waits in channels is then a few
blocks of bytes instead of a heap of objects, which would drive what the processor works on out of its caches and
would be looked at by each collection of garbage: aligning a checkpoint, which lets channels fill, cost a tenth of the
throughput.

Source: Flink's ``StreamElement`` and its subclasses.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import TypeMismatchError, raise_from_outside
from headrace.state.reading.program_pickles import dump_program, load_program
from headrace.state.values.serde import columns_from_rows, rows_from_columns

from .filtering import rows_where
from .sizes import rows_nbytes

__all__ = [
    "MAX_BATCH_ROWS",
    "MAX_TIMESTAMP",
    "MAX_WATERMARK",
    "MIN_TIMESTAMP",
    "Batch",
    "CheckpointBarrier",
    "Element",
    "EndOfInput",
    "LatencyMarker",
    "LoopProbe",
    "RowKind",
    "RowKinds",
    "StreamStatus",
    "Timestamps",
    "Watermark",
    "times_or_none",
]

Timestamps = npt.NDArray[np.int64]
"""Event times of a batch, epoch milliseconds UTC, one per record."""

MIN_TIMESTAMP = -(2**63)
"""No event time yet: the watermark before the first one."""

MAX_TIMESTAMP = 2**63 - 1
"""The end of event time."""

MAX_BATCH_ROWS = 65_536
"""What gives more than it gets hands it on once it has gathered about this many rows, so that batches move well."""


class RowKind(IntEnum):
    """What a record of a changelog does to a table. Source: Flink's ``RowKind``, with its numbers and short names."""

    INSERT = 0
    UPDATE_BEFORE = 1
    """Takes back the row that the next `UPDATE_AFTER` replaces."""
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """``+I``, ``-U``, ``+U`` or ``-D``."""
        return ("+I", "-U", "+U", "-D")[self]


RowKinds = npt.NDArray[np.int8]
"""Numbers of `RowKind`, one per record."""

_Packed = tuple[Any, list[Any]]
"""A pickle, and what it refers to that is not in it."""

Keys = list[Any] | npt.NDArray[np.int64]
"""Keys of records, one for each: Python values, or ints as an array."""

_Places = slice | npt.NDArray[Any]
"""Which elements of an array: a slice, their indices or a mask."""

OUT_OF_BAND_BYTES = 64 << 10
"""Pickles from this size on travel on their own, so that the receiver need not copy them."""


class Batch:
    """A run of records, in order, with their event times.

    Guarantees: immutable once made; shared freely between operators of a process. ``rows`` may not be changed in place.
    Who may change a record, or keeps it, asks for `with_own_rows` where a batch ``is_shared``.
    """

    __slots__ = (
        "_columns",
        "_is_of_rows",
        "_is_tangled",
        "_keys",
        "_nbytes",
        "_packed",
        "_rows",
        "_schema",
        "is_shared",
        "num_rows",
        "row_kinds",
        "timestamps",
    )

    def __init__(self, rows: list[Any] | None, columns: pa.RecordBatch | None, timestamps: Timestamps | None) -> None:
        self._rows = rows
        self._columns = columns
        # The type that the rows are known to be of; their columns are made of that type.
        self._schema: pa.Schema | None = None
        # Whether rows came first; columns beside them were made of them.
        self._is_of_rows = rows is not None
        # The rows as they came from another process, and the buffers that belong to them, until they are asked for.
        self._packed: _Packed | None = None
        # The size, once it has been asked for; of packed rows it has come with them.
        self._nbytes: int | None = None
        # The records' keys, and which selector has found them; None if none has.
        self._keys: tuple[Hashable, Keys] | None = None
        self.timestamps = timestamps
        # What each record does to a table; None if all are inserted.
        self.row_kinds: RowKinds | None = None
        # Whether somebody else may hold the records: other readers of the batch, or the state of who made it.
        self.is_shared = False
        # Whether several of its records may be, or hold, one object: that stays so in another process.
        self._is_tangled = False
        if rows is not None:
            self.num_rows = len(rows)
        else:
            assert columns is not None
            self.num_rows = columns.num_rows

    @classmethod
    def of_rows(cls, rows: list[Any], timestamps: Timestamps | None = None, schema: pa.Schema | None = None) -> Batch:
        """Make a batch from Python objects, one per record; with ``schema`` they are known to be of that type."""
        batch = cls(rows, None, timestamps)
        batch._schema = schema
        return batch

    @classmethod
    def of_columns(
        cls, columns: pa.RecordBatch, timestamps: Timestamps | None = None, row_kinds: RowKinds | None = None
    ) -> Batch:
        """Make a batch from an Arrow record batch; with ``row_kinds`` its records are changes."""
        batch = cls(None, columns, timestamps)
        batch.row_kinds = row_kinds
        return batch

    @property
    def has_rows(self) -> bool:
        """Whether there are rows, which need not be made of columns."""
        return self._rows is not None or self._packed is not None

    @property
    def is_of_rows(self) -> bool:
        """Whether the records are the user's own objects; columns beside them were made of them."""
        return self._is_of_rows

    @property
    def schema(self) -> pa.Schema | None:
        """The type of the columns; None if there are none, nor a type to make them of."""
        return self._schema if self._columns is None else self._columns.schema

    @property
    def has_columns(self) -> bool:
        """Whether there are columns, or a type to make them of: they do not depend on which values there are."""
        return self._columns is not None or self._schema is not None

    @property
    def rows(self) -> list[Any]:
        """The records as Python objects.

        Raises:
            TypeMismatchError: If they came from another process, and one of them cannot be built in this one.
        """
        if self._rows is None:
            if self._packed is not None:
                self._rows, self._packed = _unpack(*self._packed), None
            else:
                assert self._columns is not None
                self._rows = rows_from_columns(self._columns)
        return self._rows

    @property
    def columns(self) -> pa.RecordBatch:
        """The records as Arrow columns.

        Raises:
            TypeMismatchError: If the rows are not of one shape that Arrow has types for.
        """
        if self._columns is None:
            self._columns = columns_from_rows(self.rows, self._schema)
        return self._columns

    def columns_as(self, schema: pa.Schema | None) -> pa.RecordBatch:
        """Return the records as Arrow columns of a declared schema; with None as `columns`."""
        if self._columns is None and self._schema is None and schema is not None:
            self._columns = columns_from_rows(self.rows, schema)
        return self.columns

    def is_of(self, schema: pa.Schema) -> bool:
        """Return whether the records are rows that are known to be of a type."""
        return self._schema is schema and self._is_of_rows

    @property
    def nbytes(self) -> int:
        """A cheap estimate of the size in memory, in bytes: of rows some are looked at."""
        if self._nbytes is None:
            self._nbytes = self._columns.nbytes if self._columns is not None else rows_nbytes(self.rows)
        return self._nbytes

    def keys_by(self, selector: Hashable) -> list[Any] | None:
        """Return the records' keys, if that selector has found them already."""
        if self._keys is None or self._keys[0] != selector:
            return None
        keys = self._keys[1]
        return keys if isinstance(keys, list) else keys.tolist()

    def note_keys(self, selector: Hashable, keys: Keys) -> None:
        """Keep the keys that a selector has found, for the next one who asks; lists of them stay in this process."""
        self._keys = (selector, keys)

    def without_keys(self) -> Batch:
        """Return this batch, without what selectors have found: for those who keep it beyond the program."""
        self._keys = None
        return self

    def take(self, indices: npt.NDArray[np.intp]) -> Batch:
        """Return the records at ``indices``, in that order, on all faces that are there."""
        columns = None if self._columns is None else self._columns.take(pa.array(indices))
        has_lists = self.has_rows or (self._keys is not None and isinstance(self._keys[1], list))
        places = indices.tolist() if has_lists else []
        return self._part(lambda values: [values[i] for i in places], columns, indices)

    def filter(self, mask: npt.NDArray[np.bool_]) -> Batch:
        """Return the records whose ``mask`` is true, on all faces that are there."""
        columns = None if self._columns is None else rows_where(self._columns, mask)
        chosen = mask.tobytes()
        return self._part(lambda values: list(compress(values, chosen)), columns, mask)

    def slice(self, offset: int, length: int) -> Batch:
        """``length`` records from ``offset`` on, on all faces that are there, without a copy of columns."""
        places = slice(offset, offset + length)
        columns = None if self._columns is None else self._columns.slice(offset, length)
        return self._part(lambda values: values[places], columns, places)

    def with_timestamps(self, timestamps: Timestamps) -> Batch:
        """Return the same records with other event times."""
        same = self._part(lambda values: values, self._columns, slice(None))
        same.timestamps = timestamps
        return same

    def with_row_kinds(self, row_kinds: RowKinds | None) -> Batch:
        """Return the same records as other changes; with None all are inserted."""
        same = self._part(lambda values: values, self._columns, slice(None))
        same.row_kinds = row_kinds
        return same

    def with_columns(self, columns: pa.RecordBatch) -> Batch:
        """Return the same records with columns of other types; rows that they were made with stay."""
        batch = Batch(self.rows if self._is_of_rows else None, columns, self.timestamps)
        batch.row_kinds, batch.is_shared, batch._is_tangled = self.row_kinds, self.is_shared, self._is_tangled
        return batch

    def shared(self) -> Batch:
        """Return this batch, marked: somebody else may hold its records."""
        self.is_shared = True
        return self

    def tangled(self) -> Batch:
        """Return this batch, marked: it is `shared`, and several of its records may be, or hold, one object."""
        self.is_shared = self._is_tangled = True
        return self

    def with_own_rows(self, copied: Callable[[list[Any]], list[Any]]) -> Batch:
        """Return the same records, held by nothing else; those that are still columns or a pickle are made when asked
        for.

        Rows that are made of one pickle twice have its buffers in common (arrays lie in them), so they are copied, too.

        Args:
            copied: Copies rows.
        """
        if self._rows is None and (self._packed is None or not (self._is_tangled or self._packed[1])):
            batch = Batch(None, self._columns, self.timestamps) if self._packed is None else Batch.__new__(Batch)
            if self._packed is not None:
                batch._rows, batch._columns, batch._packed = None, self._columns, self._packed
                batch.num_rows, batch.timestamps = self.num_rows, self.timestamps
                batch.is_shared = batch._is_tangled = False
                batch._keys = None  # the records to come are others
            batch._nbytes = self._nbytes
        else:
            batch = Batch(copied(self.rows), self._columns, self.timestamps)
        batch.row_kinds, batch._is_of_rows, batch._schema = self.row_kinds, self._is_of_rows, self._schema
        return batch

    def _part(
        self,
        cut: Callable[[list[Any]], list[Any]],
        columns: pa.RecordBatch | None,
        places: _Places,
    ) -> Batch:
        """Some of the records: ``cut`` takes them out of a list with one value for each, ``places`` out of an array."""
        timestamps = None if self.timestamps is None else self.timestamps[places]
        part = Batch(cut(self.rows) if self.has_rows else None, columns, timestamps)
        part.row_kinds = None if self.row_kinds is None else self.row_kinds[places]
        if self._keys is not None:
            selector, keys = self._keys
            part._keys = (selector, cut(keys) if isinstance(keys, list) else keys[places])
        part._is_of_rows, part._schema = self._is_of_rows, self._schema
        part.is_shared, part._is_tangled = self.is_shared, self._is_tangled
        return part

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Return one batch of all records, in order; with columns if all have columns of one schema."""
        if len(batches) == 1:
            return batches[0]
        parts = [batch._columns for batch in batches if batch._columns is not None]
        columns = None
        if len(parts) == len(batches) and all(part.schema.equals(parts[0].schema) for part in parts):
            columns = pa.concat_batches(parts)
        rows: list[Any] | None = None
        if columns is None or any(batch._is_of_rows for batch in batches):
            rows = list(chain.from_iterable(batch.rows for batch in batches))
        timestamps = _concat_beside(batches, [batch.timestamps for batch in batches], np.int64(MIN_TIMESTAMP))
        whole = Batch(rows, columns, timestamps)
        whole.row_kinds = _concat_beside(batches, [batch.row_kinds for batch in batches], np.int8(RowKind.INSERT))
        if all(batch._schema is batches[0]._schema for batch in batches):
            whole._schema = batches[0]._schema
        noted = [batch._keys for batch in batches if batch._keys is not None]
        if len(noted) == len(batches) and all(keys[0] == noted[0][0] for keys in noted):
            whole._keys = (noted[0][0], _concat_keys([keys for _, keys in noted]))
        whole.is_shared = any(batch.is_shared for batch in batches)
        whole._is_tangled = any(batch._is_tangled for batch in batches)
        return whole

    def __len__(self) -> int:
        return self.num_rows

    def __reduce_ex__(self, protocol: Any) -> Any:
        packed = self._packed
        if packed is None and self._is_of_rows:
            packed = _pack(self.rows)
        if packed is not None:
            packed = _for_transport(*packed, protocol)
        is_tangled = self._is_tangled and packed is not None
        columns = self._columns if self._schema is None else self.columns
        keys = self._keys if self._keys is not None and not isinstance(self._keys[1], list) else None
        beside = (self.timestamps, self.num_rows, self.nbytes, is_tangled, self.row_kinds, keys)
        return _received, (packed, columns, *beside)

    def __repr__(self) -> str:
        faces = "+".join(name for name, there in (("rows", self.has_rows), ("columns", self.has_columns)) if there)
        return f"Batch({self.num_rows} records, {faces})"


def times_or_none(timestamps: Timestamps | None, num_rows: int) -> list[int | None]:
    """Event times of records as their functions see them, None for those without."""
    if timestamps is None:
        return [None] * num_rows
    times: list[int | None] = timestamps.tolist()
    if num_rows and int(timestamps.min()) == MIN_TIMESTAMP:
        return [None if time == MIN_TIMESTAMP else time for time in times]
    return times


def _concat_beside(batches: Sequence[Batch], beside: Sequence[npt.NDArray[Any] | None], nothing: Any) -> Any:
    """What lies beside the records of all; ``nothing`` beside those of batches without it, None if no batch has it."""
    if all(values is None for values in beside):
        return None
    return np.concatenate(
        [
            np.full(batch.num_rows, nothing) if values is None else values
            for batch, values in zip(batches, beside, strict=True)
        ]
    )


def _concat_keys(parts: Sequence[Keys]) -> Keys:
    arrays = [keys for keys in parts if not isinstance(keys, list)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    return list(chain.from_iterable(keys if isinstance(keys, list) else keys.tolist() for keys in parts))


def _pack(rows: list[Any]) -> _Packed:
    """Plain pickle first, because it is several times as fast; classes of the user's main program go by value."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        return pickle.dumps(rows, protocol=5, buffer_callback=buffers.append), buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        buffers.clear()
        return dump_program(rows, protocol=5, buffer_callback=buffers.append), buffers


def _unpack(payload: Any, buffers: list[Any]) -> list[Any]:
    try:
        rows: list[Any] = load_program(payload, buffers=buffers)
    except BaseException as error:
        raise_from_outside(error)
        message = f"records of another process cannot be built in this one: {error!r}"
        hint = "their classes must be importable on every node, and be built again from what they pickle"
        raise TypeMismatchError(message, hint=hint) from error
    return rows


def _for_transport(payload: Any, buffers: list[Any], protocol: int) -> _Packed:
    """In a form that this protocol can pickle; what came from elsewhere may be a view of somebody's memory."""
    if protocol < 5:
        return bytes(payload), [bytes(buffer) for buffer in buffers]
    is_large = memoryview(payload).nbytes >= OUT_OF_BAND_BYTES
    return pickle.PickleBuffer(payload) if is_large else bytes(payload), list(map(pickle.PickleBuffer, buffers))


def _received(
    packed: _Packed | None,
    columns: pa.RecordBatch | None,
    timestamps: Timestamps | None,
    num_rows: int,
    nbytes: int | None = None,
    is_tangled: bool = False,
    row_kinds: RowKinds | None = None,
    keys: tuple[Hashable, Keys] | None = None,
) -> Batch:
    """A batch in the process that it was sent to."""
    batch = Batch.__new__(Batch)
    batch._rows, batch._packed, batch._columns, batch._schema = None, packed, columns, None
    batch._is_of_rows = packed is not None
    batch.is_shared = batch._is_tangled = is_tangled
    batch._nbytes, batch._keys = nbytes, keys
    batch.timestamps, batch.row_kinds, batch.num_rows = timestamps, row_kinds, num_rows
    return batch


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with an event time at or below ``timestamp_ms`` is expected behind it in this channel."""

    timestamp_ms: int


MAX_WATERMARK = Watermark(MAX_TIMESTAMP)
"""The end of event time: sent when a bounded input ends, so that every window closes."""


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Separates the records of checkpoint ``checkpoint_id`` (before it) from those after it.

    In an unaligned checkpoint it may overtake records, which then belong to the checkpoint themselves.
    """

    checkpoint_id: int
    timestamp_ms: int
    """When the checkpoint was triggered."""
    suspends: bool = False
    """Whether the job is stopped at this checkpoint: nothing is processed behind it."""
    base_id: int = 0
    """The newest checkpoint complete at that time, 0 for none: its files may be named again instead of stored again."""
    savepoint: str | None = None
    """The folder that a savepoint's files go to; None for a checkpoint. Savepoints have no base and are aligned."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """An idle channel is left out when watermarks are combined."""

    idle: bool


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No record follows in this channel; barriers still may, so that checkpoints go on until the job ends."""


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Measures the way from a source: flows with the records, is never state, and is dropped where it cannot pass."""

    emitted_ms: int
    source: str
    subtask: int


@dataclass(frozen=True, slots=True)
class LoopProbe:
    """Goes round an iteration's loop behind the records, to find what is in it: `headrace.engine.task.loop_head`."""

    round: int
    """Counts the probes of a head subtask from 1."""
    lowest_ms: int
    """The least event time, exclusive, that anybody it has passed knows to be in the loop."""


Element = Batch | Watermark | CheckpointBarrier | StreamStatus | EndOfInput | LatencyMarker | LoopProbe
