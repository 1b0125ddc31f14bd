"""Changes by key on their way into a table: of each key the last one counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

__all__ = ["last_changes"]


def last_changes(pieces: Iterable[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key, of pieces in the order in which they were written.

    Args:
        pieces: Of one schema, but for columns that came or went with the table's: at least one.
        keys: The columns of the key.
    """
    whole = pa.concat_tables(pieces, promote_options="default").combine_chunks()
    place = "$place"
    numbered = whole.select(list(keys)).append_column(place, pa.array(np.arange(whole.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([(place, "max")]).column(f"{place}_max")
    return whole.take(pa.array(np.sort(last.to_numpy())))
