"""Changes of a table of which only the latest row of each key is told: what it was before is kept here.

A source of upserts (a compacted topic of Kafka, say) tells a key's new row, or that the key has none any more, and not
what it replaces. Operators behind it take rows back, so they need that. What a batch comes to is net: of a key only its
last row counts, and one that is as it was gives nothing, so what is told twice does no harm.

Invariant: what is out is the latest row of each key that was not deleted.

Source: Flink's ``StreamExecChangelogNormalize`` and ``ProcTimeDeduplicateKeepLastRowFunction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import TypeMismatchError

from ..columns.records import Batch, RowKind, RowKinds
from ..functions.operator import OperatorContext
from ..operators.column_operators import naming_operator
from .by_key import ReplayingInput
from .changes import check_names

if TYPE_CHECKING:
    from ..tables.columns import Integers
    from .latest_rows import LatestRows

__all__ = ["ChangelogNormalize"]


class ChangelogNormalize(ReplayingInput):
    """Makes changes that take rows back of rows that replace one another.

    Its input's ``INSERT`` and ``UPDATE_AFTER`` are the row that a key has from now on; of a ``DELETE`` only the key
    counts, all else may be null. ``UPDATE_BEFORE`` is passed over.

    Args:
        keys: Names of the key's columns, by which the input is keyed.
        input_schema: Type of the rows.
        ttl_ms: How long a key's row is known that is not written, by the clock; 0 for ever.

    Raises:
        ProgramError: If a column is not there.
    """

    def __init__(self, keys: Sequence[str], *, input_schema: pa.Schema, ttl_ms: int = 0) -> None:
        super().__init__(input_schema)
        self.keys = tuple(keys)
        self.ttl_ms = ttl_ms
        check_names("keys", self.keys, input_schema)

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._schema

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            from .latest_rows import LatestRows

            self._state: LatestRows = LatestRows(context, self.keys, self._schema, ttl_ms=self.ttl_ms)

    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        if signs is not None and kinds is not None:
            counts = kinds != RowKind.UPDATE_BEFORE
            part, signs = part.filter(pa.array(counts)), signs[counts]
        self._require_keys(part)
        return super()._process(part, signs, None, input_index)

    def _require_keys(self, rows: pa.RecordBatch) -> None:
        """See that rows have keys.

        Raises:
            TypeMismatchError: If one has not.
        """
        for name in self.keys:
            if rows.column(name).null_count:
                message = f"column {name!r} of the PRIMARY KEY is null in a row that is updated or deleted by it"
                raise TypeMismatchError(message)

    def __repr__(self) -> str:
        return f"ChangelogNormalize({', '.join(self.keys)})"
