"""Ships: which partition a record goes to. Shared by executors wherever their own system does not decide it.

HASH uses the stable hash of the canonical key, so both inputs of a join agree whatever face their batches have. RANGE
takes bounds that `range_bounds` makes of a sample; the reference executor's sample is everything.

Source: Flink's ``ShipStrategyType``, ``OutputEmitter``, ``RangePartitionRewriter``.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.hashing import hash_keys

from ..columns.records import MAX_BATCH_ROWS, Batch
from ..errors import HeadraceError, InternalError, ProgramError
from ..functions.operator import add_place, place_of
from ..functions.user_function import raise_in_function
from ..plan.plan import GroupKey, Ship, ShipKind
from .context import TaskContext
from .scopes import Partition, Partitions
from .spilling import Memory
from .wire_records import canonical_keys, comparable_keys, decode

__all__ = ["cut", "key_hashes", "range_bounds", "shipped_to", "targets"]

Targets = npt.NDArray[np.int64]
"""The partition of each record."""


def key_hashes(key: GroupKey | None, batch: Batch) -> npt.NDArray[np.uint64]:
    """Return the stable hash of each record's canonical key; with None of the whole record.

    Records that have columns are hashed by them. All senders of a data set do so or none does: that is a matter of its
    type.
    """
    if key is not None or batch.has_columns:
        columns = batch.columns.columns if key is None else key.selector.key_columns(batch)
        if columns and not any(pa.types.is_nested(column.type) for column in columns):
            return hash_columns(columns)
    return hash_keys(canonical_keys(key, batch))


def range_bounds(sample: Sequence[tuple[Any, ...]], num_partitions: int) -> list[tuple[Any, ...]]:
    """Return upper bounds, inclusive, of all partitions but the last; of a sample of ``comparable_keys``.

    Returns:
        At most ``num_partitions - 1`` different bounds, ascending.
    """
    keys = sorted(sample)
    bounds: list[tuple[Any, ...]] = []
    for i in range(1, num_partitions):
        at = len(keys) * i // num_partitions
        if 0 < at < len(keys) and (not bounds or bounds[-1] < keys[at - 1]):
            bounds.append(keys[at - 1])
    return bounds


def targets(
    ship: Ship, batch: Batch, num_partitions: int, bounds: Sequence[tuple[Any, ...]] = (), first: int = 0
) -> Targets:
    """Return the partition of each record.

    Args:
        ship: HASH, RANGE, CUSTOM or REBALANCE.
        batch: Records of one sender.
        num_partitions: How many partitions there are.
        bounds: Of RANGE.
        first: Of REBALANCE: the partition of the first record.

    Raises:
        UserFunctionError: If a key function or a partitioner raises.
        ProgramError: If a partitioner names a partition that does not exist.
    """
    if ship.kind is ShipKind.REBALANCE:
        return (np.arange(batch.num_rows, dtype=np.int64) + first) % num_partitions
    try:
        if ship.kind is ShipKind.HASH:
            return (key_hashes(ship.key, batch) % np.uint64(num_partitions)).astype(np.int64)
        if ship.kind is ShipKind.RANGE:
            keys = comparable_keys(batch, ship.orders)
            return np.array([bisect.bisect_left(bounds, key) for key in keys], dtype=np.int64)
        if ship.kind is ShipKind.CUSTOM:
            return _custom_targets(ship, batch, num_partitions)
    except BaseException as error:
        raise_in_function(error, repr(ship))
    message = f"ship {ship!r} does not choose among partitions"
    raise InternalError(message)


def _custom_targets(ship: Ship, batch: Batch, num_partitions: int) -> Targets:
    function = ship.function
    assert function is not None
    assert ship.key is not None
    chosen = [function(key, num_partitions) for key in ship.key.selector.keys(batch)]
    for target in chosen:
        if not isinstance(target, (int, np.integer)) or not 0 <= target < num_partitions:
            message = f"a partitioner must give an int from 0 to {num_partitions - 1}; got {target!r}"
            raise ProgramError(message)
    return np.array(chosen, dtype=np.int64)


def cut(batch: pa.RecordBatch, where: Targets, num_partitions: int) -> list[pa.RecordBatch | None]:
    """Return the piece of a wire batch for each partition, order kept; None where there is nothing."""
    if num_partitions == 1:
        return [batch]
    by_target = np.argsort(where, kind="stable")
    ends = np.searchsorted(where[by_target], np.arange(num_partitions + 1))
    pieces: list[pa.RecordBatch | None] = []
    for i in range(num_partitions):
        indices = by_target[ends[i] : ends[i + 1]]
        if len(indices) == batch.num_rows:
            pieces.append(batch)
        else:
            pieces.append(batch.take(pa.array(indices)) if len(indices) else None)
    return pieces


def shipped_to(
    ship: Ship, partitions: Partitions, schema: pa.Schema | None, count: int, operator: str, memory: Memory
) -> Partitions:
    """Return the records of partitions brought where a ship says.

    Args:
        ship: Of one input of a node.
        partitions: Of that input.
        schema: Of its records.
        count: How many partitions there are to be.
        operator: The node's name, for errors.
        memory: Where what has been brought together is held.
    """
    if ship.kind is ShipKind.FORWARD:
        if len(partitions) != count:
            message = f"operator {operator!r} gets {len(partitions)} partitions forward, but has {count}"
            raise InternalError(message)
        return partitions
    if ship.kind is ShipKind.GATHER:
        everything = [batch for partition in partitions for batch in partition]
        return [everything if i == 0 else [] for i in range(count)]
    if ship.kind is ShipKind.BROADCAST:
        everything = [batch for partition in partitions for batch in partition]
        return [everything for _ in range(count)]
    bounds: list[tuple[Any, ...]] = []
    try:
        if ship.kind is ShipKind.RANGE:
            sample = [
                key
                for partition in partitions
                for batch in partition
                for key in comparable_keys(decode(batch, schema), ship.orders)
            ]
            bounds = range_bounds(sample, count)
    except BaseException as error:
        raise_in_function(error, repr(ship), TaskContext(operator))
    received = [_Received(memory) for _ in range(count)]
    first = 0
    for sender, partition in enumerate(partitions):
        for batch in partition:
            try:
                where = targets(ship, decode(batch, schema), count, bounds, first)
            except HeadraceError as error:
                add_place(error, place_of(operator, sender, len(partitions)), None)
                raise
            first = (first + batch.num_rows) % count
            for target, piece in enumerate(cut(batch, where, count)):
                if piece is not None and piece.num_rows:
                    received[target].add(piece)
    return [partition.batches() for partition in received]


_BATCH_BYTES = 32 << 20
"""A batch of heavy records has fewer of them."""


class _Received:
    """A partition put together of pieces, in batches of a good size: pieces of pieces would be single records."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._batches: Partition = []
        # Pieces that do not make a batch yet.
        self._pending: Partition = []
        self._num_rows = self._num_bytes = 0

    def add(self, piece: pa.RecordBatch) -> None:
        self._pending.append(piece)
        self._num_rows += piece.num_rows
        self._num_bytes += piece.nbytes
        if self._num_rows >= MAX_BATCH_ROWS or self._num_bytes >= _BATCH_BYTES:
            self._join()

    def _join(self) -> None:
        self._batches += self._memory.kept([pa.concat_batches(self._pending)])
        self._pending = []
        self._num_rows = self._num_bytes = 0

    def batches(self) -> Partition:
        if self._pending:
            self._join()
        return self._batches
