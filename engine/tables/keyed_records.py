"""Records and the rows of their keys, beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .columns import Integers

__all__ = ["pairs_of"]


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
