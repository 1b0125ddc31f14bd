"""One row of each key, or the job ends: for INSERT ... ON CONFLICT DO ERROR.

The rows of a key are kept as a Top-N of one row keeps them, and the last to come is given. A key may have two rows for
a moment, while one goes and another comes by another way. Aligned barriers cut all ways at one moment, so what is there
ahead of a barrier, or at the end, is the query's result at that moment: a key with two rows has a conflict then. It is
found before the checkpoint is taken, so that a sink that commits with checkpoints never commits it.

Source: FLIP-558; Flink's ``WatermarkCompactingSinkMaterializer``, which looks when a watermark passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.state.errors import ConflictingRowsError

from ..columns.records import Batch
from ..functions.operator import OperatorContext
from ..operators.column_operators import naming_operator
from .changes import columns_of
from .rank import Rank

if TYPE_CHECKING:
    from ..tables.key_index import KeyIndex

__all__ = ["OneRow"]

_KEYS_AT_ONCE = 4_096


class OneRow(Rank):
    """Passes the row of each key, and fails if there are several ahead of a barrier, or at the end.

    Args:
        keys: Names of the key's columns, by which the input is keyed.
        input_schema: Type of the records.
        ttl_ms: How long a key's rows are known that do not change, by the clock; 0 for ever.
    """

    def __init__(self, keys: Sequence[str], *, input_schema: pa.Schema, ttl_ms: int = 0) -> None:
        super().__init__(
            keys, (), input_schema=input_schema, limit=1, takes_back=True, ties_keep_last=True, ttl_ms=ttl_ms
        )

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # The keys whose rows have changed since the last barrier.
        self._touched = self._no_keys()

    def _no_keys(self) -> KeyIndex:
        from ..tables.key_index import KeyIndex

        return KeyIndex([self._schema.field(key).type for key in self.partition_keys])

    def process_batch(self, batch: Batch, input_index: int) -> None:
        super().process_batch(batch, input_index)
        if batch.num_rows:
            with naming_operator(self.context):
                keys = self._state.key_columns(columns_of(batch, self.input_schema, self._schema))
                self._touched.codes_of(keys, batch.num_rows)

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        super().prepare_snapshot(checkpoint_id)
        self._check()

    def finish(self) -> None:
        super().finish()
        self._check()

    def _check(self) -> None:
        """See that no key has several rows.

        Raises:
            ConflictingRowsError: If one has.
        """
        with naming_operator(self.context):
            for start in range(0, len(self._touched), _KEYS_AT_ONCE):
                codes = np.arange(start, min(start + _KEYS_AT_ONCE, len(self._touched)))
                keys = self._touched.take(codes)
                counts = self._state.counts_of(keys, len(codes))
                if (counts > 1).any():
                    self._refuse(keys, int(np.argmax(counts > 1)))
            self._touched = self._no_keys()

    def _refuse(self, keys: Sequence[pa.Array], place: int) -> None:
        key = {name: array[place].as_py() for name, array in zip(self.partition_keys, keys, strict=True)}
        message = f"ON CONFLICT DO ERROR: PRIMARY KEY {key!r:.400} has several rows of the query"
        raise ConflictingRowsError(
            message,
            hint="DO DEDUPLICATE writes the last row of a key, DO NOTHING the first",
            subtask=f"{self.context.subtask + 1}/{self.context.parallelism}",
        )

    def __repr__(self) -> str:
        return f"OneRow({', '.join(self.partition_keys)})"
