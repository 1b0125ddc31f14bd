"""Rows joined with what a table outside has for their keys when they come: the lookup join of tables.

All rows of a batch are looked up at once: each key that occurs is asked for once, unless a cache of this subtask knows
it. The cache is memory of one attempt, in no snapshot; the operator has no state, and what it gives for a row is out
before the next barrier, so each row is joined once in what counts. After a failure rows that come again may find other
rows than before.

While the table is asked the task waits, as it does for Flink's synchronous lookups;
`headrace.engine.lookups.async_table_join` goes on meanwhile.

Source: Flink's ``LookupJoinRunner``, ``DefaultLookupCache``.
"""

from __future__ import annotations

import pyarrow as pa

from ..columns.records import Batch
from ..connectors.table_lookup import TableLookup
from ..functions.operator import TABLE_LOOPS, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from .batch_questions import LookupMetrics, LookupTerms, RememberedRows
from .enrichment import LookupCache

__all__ = ["LookupJoinOfTables"]


class LookupJoinOfTables(Operator):
    """Joins rows with those that a table has for their keys. Metrics are in the group ``lookup``.

    Args:
        lookup: The table.
        terms: What is looked up, and what goes out.
        cache: What to remember; None for nothing.
    """

    may_change_records = False
    face = "columns"
    compiled_loops = TABLE_LOOPS

    def __init__(self, lookup: TableLookup, terms: LookupTerms, cache: LookupCache | None = None) -> None:
        self.lookup = lookup
        self.terms = terms
        self.cache = cache

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self.terms.output_schema

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._known = None if self.cache is None else RememberedRows(self.cache)
        self._metrics = LookupMetrics(context.metrics, self._known)
        with naming_operator(context):
            self.lookup.open()

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            question = self.terms.question(self.terms.records_of(batch), batch.timestamps)
            now_ms = self.context.now_ms()
            if self._known is not None:
                self._metrics.count_known(self._known.fill(question, now_ms), question)
            asked = question.open
            if len(asked):
                self.terms.answer(question, self._asked(question.open_keys()))
                if self._known is not None:
                    self._known.keep(question, asked, now_ms)
            for pairs in self.terms.pairs(question):
                self.context.output.emit(pairs)

    def _asked(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the table has for keys."""
        try:
            rows = self.lookup.lookup(keys)
        except BaseException:
            self._metrics.failures.inc()
            raise
        self._metrics.loads.inc()
        return rows

    def close(self) -> None:
        self.lookup.close()

    def __repr__(self) -> str:
        return f"LookupJoinOfTables({self.terms!r})"
