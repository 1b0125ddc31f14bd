"""How messages become bytes between processes.

They are pickled here and not by Ray. Columns and arrays leave as out-of-band buffers (pickle protocol 5), which Ray puts into its object store
when they are large and maps into the receiving process without a copy. Plain pickle comes first, because it is several times as fast;
what it cannot do (classes and closures of the user's main program) cloudpickle does by value.

Received columns refer to the buffers they came in: immutable, shared, kept alive by whoever keeps the columns.

Source: PEP 574.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.engine.link import Parcel

__all__ = ["decode", "encode"]

OUT_OF_BAND_BYTES = 64 << 10
"""Pickles from this size on travel beside the call, so that the receiver need not copy them."""


def _reduce_record_batch(columns: pa.RecordBatch) -> Any:
    """A slice of a larger batch is copied first, else pickle would send all of what it was cut from."""
    if columns.get_total_buffer_size() > 2 * columns.nbytes + 4_096:
        return pa.ipc.read_record_batch, (columns.serialize(), columns.schema)
    return columns.__reduce_ex__(5)


class _ParcelPickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, pa.RecordBatch: _reduce_record_batch}  # type: ignore[assignment]


def encode(parcels: tuple[Parcel, ...]) -> list[Any]:
    """Pickle messages for the wire.

    Returns:
        The pickle, then its out-of-band buffers, all of types that Ray sends without looking into them.

    Raises:
        Exception: Whatever a message raises that cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _ParcelPickler(stream, protocol=5, buffer_callback=buffers.append).dump(parcels)
        payload = stream.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError):
        # Rows of classes or closures of the user's main program; slower, but by value.
        buffers.clear()
        payload = cloudpickle.dumps(parcels, protocol=5, buffer_callback=buffers.append)
    return [pickle.PickleBuffer(payload) if len(payload) >= OUT_OF_BAND_BYTES else payload, *buffers]


def decode(payload: Any, buffers: tuple[Any, ...]) -> tuple[Parcel, ...]:
    """The messages again; columns refer to ``buffers`` and keep them alive."""
    parcels: tuple[Parcel, ...] = pickle.loads(payload, buffers=buffers)  # noqa: S301 - from within the cluster
    return parcels
