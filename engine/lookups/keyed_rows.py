"""Rows found by their keys, many at once.

A key is found as its code in a `KeyIndex`; rows stand in the order of the codes of their keys, so those of a key are a
range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..tables.keyed_records import pairs_of

if TYPE_CHECKING:
    from ..tables.columns import Truths

__all__ = ["KeyedRows", "all_valid"]


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
