"""Rows found by their keys, many at once.

A key is found as its code in a `KeyIndex`; rows stand in the order of the codes of their keys, so those of a key are a
range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from ..tables.columns import Integers, Truths

__all__ = ["KeyedRows", "all_valid", "pairs_of"]


class KeyedRows:
    """Rows that do not change.

    Args:
        rows: The rows. Those of which a part of the key is null are left out.
        keys: Names of the key's columns.
    """

    def __init__(self, rows: pa.RecordBatch, keys: Sequence[str]) -> None:
        from ..tables.key_index import KeyIndex

        columns = [rows.column(key) for key in keys]
        has_key = all_valid(columns, rows.num_rows)
        rows = rows if has_key.all() else rows.filter(pa.array(has_key))
        self._index = KeyIndex([column.type for column in columns])
        codes, _ = self._index.codes_of([rows.column(key) for key in keys], rows.num_rows)
        order = np.argsort(codes, kind="stable")
        self._rows = rows.take(pa.array(order))
        self._owners = codes[order]

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def of(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of some keys, none of them null, in the order of the keys."""
        codes, _ = self._index.codes_of(keys.columns, keys.num_rows, add=False)
        return self._rows.take(pa.array(pairs_of(codes, self._owners, len(self._index))[1]))


def all_valid(columns: Sequence[pa.Array], num_rows: int) -> Truths:
    """Return for each row whether none of its values is null."""
    found = np.ones(num_rows, np.bool_)
    for column in columns:
        if column.null_count:
            found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found


def pairs_of(codes: Integers, owners: Integers, num_keys: int) -> tuple[Integers, Integers]:
    """Return each record with each row of its key, in the order of the records.

    Args:
        codes: The place of each record's key; -1 for none.
        owners: That of each row's key, in ascending order.
        num_keys: How many keys there are.
    """
    counts = np.bincount(owners, minlength=num_keys + 1)  # the last one is that of records without a key
    starts = np.cumsum(counts) - counts
    own = counts[codes]
    left = np.repeat(np.arange(len(codes)), own)
    first = np.cumsum(own) - own
    return left, starts[codes][left] + np.arange(len(left)) - first[left]
