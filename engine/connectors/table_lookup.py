"""The contract of tables outside that rows are looked up in by key, a batch of keys at a time.

Source: Flink's ``LookupTableSource``, ``LookupFunction``; FLIP-221.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

__all__ = ["TableLookup"]


class TableLookup(ABC):
    """Finds the rows of a table that have some keys, as they are now. Each subtask has its own; one that asks
    asynchronously has several, which are copies.

    It is made where the program is, pickled, copied where it runs if there are to be several, and opened there. It is
    asked by one thread at a time, which need not be the same one, and closed in the end.

    Contract:
        * `lookup` gives every row whose key is asked for, and may give others, which are left out (*asserted*).
        * It keeps no state: after a failure the same keys may be asked for again, and have other rows.
        * What it cannot do for good, it raises; then the job fails, and is restarted as the strategy says.
    """

    def open(self) -> None:  # noqa: B027
        """Get ready; called once, before the first keys. It may block."""

    @abstractmethod
    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of some keys, in any order.

        Args:
            keys: Different keys, none of them null; the columns are the table's key columns, by their names.

        Returns:
            The rows, with the columns that were asked for when it was made; the key columns are among them.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of what was opened; called once, also if something has failed."""
