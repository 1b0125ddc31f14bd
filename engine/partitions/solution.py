"""The solution set of a delta iteration: one partition of it, indexed by key.

A superstep looks up the keys of its workset and puts changed records in, so its work follows the workset and not the
size of the set. Records are kept as wire rows' Python objects; a record that was looked up must not be changed.

Invariant: one record per canonical key. The order of records is that in which their keys came first.

Source: Flink's ``CompactingHashTable`` and ``SolutionSetDeltaIterator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from headrace.state.values.sharing import shown

from ..columns.records import MAX_BATCH_ROWS, Batch
from ..errors import ProgramError
from ..plan.plan import CoGroup, GroupKey, IterationInput, Join, Node
from .wire_records import canonical_keys, decode, encode, frozen

__all__ = ["SolutionSet", "refuse_two_records", "solution_side"]


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

    def update(self, batches: Iterable[pa.RecordBatch], what: str, operator: str, superstep: int | None = None) -> None:
        """Put wire batches in that belong together, replacing records with the same keys.

        Args:
            batches: All changes that are made at once.
            what: What they are, for errors.
            operator: The iteration's name.
            superstep: Which superstep made them.

        Raises:
            ProgramError: If there are two different records with one key.
        """
        fresh: dict[Any, Any] = {}
        for batch in batches:
            decoded = decode(batch, self._schema)
            for key, row in zip(canonical_keys(self._key, decoded), decoded.rows, strict=True):
                if key in fresh and frozen(fresh[key]) != frozen(row):
                    refuse_two_records(what, operator, superstep, f"{shown(key)}: {shown(fresh[key])} and {shown(row)}")
                fresh[key] = row
        self._by_key.update(fresh)

    def lookup(self, keys: Sequence[Any]) -> list[Any]:
        """Return the record of each canonical key; None where there is none."""
        return list(map(self._by_key.get, keys))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all records, as wire batches."""
        rows = list(self._by_key.values())
        for offset in range(0, len(rows), MAX_BATCH_ROWS):
            yield encode(Batch.of_rows(rows[offset : offset + MAX_BATCH_ROWS]), self._schema)

    def __len__(self) -> int:
        return len(self._by_key)


def refuse_two_records(what: str, operator: str, superstep: int | None, which: str) -> NoReturn:
    """Refuse two records of one key.

    Raises:
        ProgramError: Always.
    """
    message = f"the {what} of {operator!r} has two different records with the key {which}"
    place = {} if superstep is None else {"superstep": superstep}
    hint = "a solution set holds one record of each key: reduce what comes, group_by(key).reduce(...), min_by or first"
    raise ProgramError(message, hint=hint, operator=operator, **place)


def solution_side(node: Node, solution: IterationInput, key: GroupKey) -> int | None:
    """Return which input of a node is the solution set and can be looked up instead of read; None if neither.

    Args:
        node: Of a step plan.
        solution: The placeholder.
        key: The iteration's.
    """
    if not isinstance(node, (CoGroup, Join)):
        return None
    for side, own in ((0, node.left_key), (1, node.right_key)):
        outer_on_other = ("inner", "right" if side == 0 else "left")
        is_possible = not isinstance(node, Join) or node.how in outer_on_other
        if node.inputs[side].id == solution.id and own.is_same_as(key) and is_possible:
            if node.inputs[1 - side].id == solution.id:
                return None
            return side
    return None
