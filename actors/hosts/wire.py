"""How messages become bytes between processes.

They are pickled here and not by Ray. Columns and arrays leave as out-of-band buffers (pickle protocol 5), which Ray
puts into its object store when they are large and maps into the receiving process without a copy. Plain pickle comes
first, because it is several times as fast; what it cannot do (classes and closures of the user's main program)
cloudpickle does by value.

Received columns refer to the buffers they came in: immutable, shared, kept alive by the columns.

Source: PEP 574.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.kernel.link import Parcel
from headrace.state.reading.program_pickles import dump_program, load_program

__all__ = ["decode", "encode"]

OUT_OF_BAND_BYTES = 64 << 10
"""Pickles from this size on are treated as buffers, so that the receiver need not copy them."""

INLINE_BYTES = 96 << 10
"""Ray sends an argument of up to 100 KiB with the call itself and puts a larger one into its object store."""

INLINE_TOTAL_BYTES = 512 << 10
"""All arguments together. The object store costs about 1.5 ms more than a small call, whatever the size; each 100 KiB
with the call costs about 0.15 ms."""


def _reduce_record_batch(columns: pa.RecordBatch) -> Any:
    """Pickle a batch; a slice of a larger one is copied first, else pickle would send all of what it was cut from."""
    if columns.get_total_buffer_size() > 2 * columns.nbytes + 4_096:
        return pa.ipc.read_record_batch, (columns.serialize(), columns.schema)
    return columns.__reduce_ex__(5)


class _ParcelPickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, pa.RecordBatch: _reduce_record_batch}


def encode(parcels: tuple[Parcel, ...]) -> list[Any]:
    """Pickle messages for the wire.

    Returns:
        Arguments of a call to Ray: the pickle and its out-of-band buffers, each on its own if they are to travel with
        the call, else all in one list, which becomes one object of the object store.

    Raises:
        Exception: Whatever a message raises that cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _ParcelPickler(stream, protocol=5, buffer_callback=buffers.append).dump(parcels)
        payload = stream.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError):
        buffers.clear()
        payload = dump_program(parcels, protocol=5, buffer_callback=buffers.append)
    if not buffers and len(payload) < OUT_OF_BAND_BYTES:
        return [payload]
    parts: list[Any] = [pickle.PickleBuffer(payload) if len(payload) >= OUT_OF_BAND_BYTES else payload, *buffers]
    sizes = [len(payload), *(buffer.raw().nbytes for buffer in buffers)]
    return parts if max(sizes) <= INLINE_BYTES and sum(sizes) <= INLINE_TOTAL_BYTES else [parts]


def decode(arguments: Sequence[Any]) -> tuple[Parcel, ...]:
    """Return the messages again; columns refer to what came in ``arguments`` and keep it alive."""
    payload, *buffers = arguments[0] if isinstance(arguments[0], list) else arguments
    parcels: tuple[Parcel, ...] = load_program(payload, buffers=buffers)
    return parcels
