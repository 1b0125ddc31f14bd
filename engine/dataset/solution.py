"""The solution set of a delta iteration: one partition of it, indexed by key.

A superstep looks up the keys of its workset and puts changed records in, so its work follows the workset and not the
size of the set. Records are kept as wire rows' Python objects; a record that was looked up must not be changed.

Invariant: one record per canonical key. The order of records is that in which their keys came first.

Source: Flink's ``CompactingHashTable`` and ``SolutionSetDeltaIterator``; row H3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.dataset.plan import GroupKey, IterationInput, Join, KeyMatch, Node
from headrace.engine.dataset.wire import MAX_BATCH_ROWS, canonical_keys, decode, encode
from headrace.engine.records import Batch

__all__ = ["SolutionSet", "solution_side"]


class SolutionSet:
    """One partition of a solution set.

    Args:
        key: How the key of a record is found.
        schema: Of the records.
    """

    __slots__ = ("_by_key", "_key", "_schema")

    def __init__(self, key: GroupKey, schema: pa.Schema | None) -> None:
        self._key = key
        self._schema = schema
        # Canonical key -> record.
        self._by_key: dict[Any, Any] = {}

    def update(self, batch: pa.RecordBatch) -> None:
        """Put the records of a wire batch in, replacing those with the same keys; the last one of a key stays."""
        decoded = decode(batch, self._schema)
        self._by_key.update(zip(canonical_keys(self._key, decoded), decoded.rows, strict=True))

    def lookup(self, keys: Sequence[Any]) -> list[Any]:
        """The record of each canonical key; None where there is none."""
        return list(map(self._by_key.get, keys))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records, as wire batches."""
        rows = list(self._by_key.values())
        for offset in range(0, len(rows), MAX_BATCH_ROWS):
            yield encode(Batch.of_rows(rows[offset : offset + MAX_BATCH_ROWS]), self._schema)

    def __len__(self) -> int:
        return len(self._by_key)


def solution_side(node: Node, solution: IterationInput, key: GroupKey) -> int | None:
    """Which input of a node is the solution set and can be looked up instead of read; None if neither.

    Args:
        node: Of a step plan.
        solution: The placeholder.
        key: The iteration's.
    """
    if not isinstance(node, KeyMatch):
        return None
    for side, own in ((0, node.left_key), (1, node.right_key)):
        outer_on_other = ("inner", "right" if side == 0 else "left")
        is_possible = not isinstance(node, Join) or node.how in outer_on_other
        if node.inputs[side].id == solution.id and own.is_same_as(key) and is_possible:
            if node.inputs[1 - side].id == solution.id:
                return None
            return side
    return None
