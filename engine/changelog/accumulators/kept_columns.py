"""Accumulators that are kept as columns, with values for the groups that have some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...tables.columns import Integers, StoredColumn, Truths, stored_column
from ...tables.growing import grown
from .contract import Accumulator

__all__ = ["KeptColumns"]


class KeptColumns(Accumulator):
    """The part of an accumulator that keeps columns.

    Args:
        fields: The columns, as in `Accumulator.fields`.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.fields = list(fields)
        self._columns: list[StoredColumn] = [stored_column(field.type) for field in fields]
        # By group: whether it has values; what columns hold of others is left over.
        self._is_held = np.zeros(0, np.bool_)

    def holds(self, groups: Integers) -> Truths:
        """Return which groups have values."""
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        held: Truths = self._is_held[groups]
        return held

    def state(self, groups: Integers) -> list[pa.Array]:
        codes = np.where(self.holds(groups), groups, -1)
        return [column.take(codes) for column in self._columns]

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        self.holds(groups)
        # Of an aggregate that the query did not have when they were kept, all columns are null: it has seen nothing.
        self._is_held[groups] = np.any([np.asarray(array.is_valid()) for array in state], axis=0)
        for column, array in zip(self._columns, state, strict=True):
            column.put(groups, array.cast(column.type))

    def reset(self, groups: Integers) -> None:
        self.holds(groups)
        self._is_held[groups] = False

    @property
    def nbytes(self) -> int:
        return self._is_held.nbytes + sum(column.nbytes for column in self._columns)
