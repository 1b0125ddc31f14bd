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

from ..columns.records import Batch
from ..errors import InternalError, ProgramError
from ..functions.user_function import raise_in_function
from ..plan.plan import GroupKey, Ship, ShipKind
from .wire import canonical_keys, comparable_keys

__all__ = ["cut", "key_hashes", "range_bounds", "targets"]

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
    """Upper bounds, inclusive, of all partitions but the last; of a sample of ``comparable_keys``.

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
