"""The lookup join of tables that has several questions under way and does not wait: an `AsyncWaitOperator` of batches.

What is a record there is here up to `MAX_ROWS` rows, which ask for their different keys at once. Each question runs in
a thread, and is put to a lookup of its own, so that a table needs to know nothing of threads; there are as many of
these as questions have been under way at once, ``capacity`` at most.

Rows whose question is not answered, and those that wait behind them, are in the snapshot, as columns, and ask again
after a restore; so each row is joined once in what counts. Rows keep their order if that is asked for, and never pass
a watermark.

Keys for which the table has no row may be asked for again after a while, those alone: the rows of their batch wait.

Source: Flink's ``AsyncLookupJoinRunner``, ``RetryableAsyncLookupFunctionDelegator``; FLIP-234.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.reading.arrow_reading import read_arrow_stream

from ..columns.records import MAX_BATCH_ROWS, Batch, Timestamps
from ..connectors.table_lookup import TableLookup
from ..functions.async_functions import AsyncRetryStrategies, AsyncRetryStrategy
from ..functions.operator import TABLE_LOOPS, OperatorContext
from ..operators.async_operator import Asked, AsyncRequest, AsyncWaitOperator
from ..operators.column_operators import naming_operator
from .batch_questions import LookupMetrics, LookupTerms, Question, RememberedRows
from .enrichment import LookupCache

__all__ = ["MAX_ROWS", "AsyncLookupJoinOfTables", "missing_keys_again"]

MAX_ROWS = 1_024
"""Rows of one question at most: a large batch is several, which are under way at once."""

_STATE = "requests"
"""What the rows that wait are called where names of columns are looked up."""


class AsyncLookupJoinOfTables(AsyncWaitOperator):
    """Joins rows with those that a table has for their keys. Metrics are in the group ``lookup``.

    Args:
        lookup: The table; each thread has a copy.
        terms: What is looked up, and what goes out.
        cache: What to remember; None for nothing.
        ordered: Whether rows keep their order; else they do between two watermarks only.
        capacity: Most questions that are under way at once.
        timeout_ms: How long all attempts at an answer may take; 0 for ever.
        retry: When keys without a row are asked for again: `missing_keys_again`.
    """

    may_change_records = False
    compiled_loops = TABLE_LOOPS

    def __init__(
        self,
        lookup: TableLookup,
        terms: LookupTerms,
        cache: LookupCache | None = None,
        *,
        ordered: bool,
        capacity: int,
        timeout_ms: int,
        retry: AsyncRetryStrategy | None = None,
    ) -> None:
        function = _LookupsInThreads(lookup)
        super().__init__(
            function, ordered=ordered, capacity=capacity, timeout_ms=timeout_ms, retry=retry, methods=("lookup",)
        )
        self.terms = terms
        self.cache = cache

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self.terms.output_schema

    def open(self, context: OperatorContext) -> None:
        self._known = None if self.cache is None else RememberedRows(self.cache)
        self._metrics = LookupMetrics(context.metrics, self._known)
        super().open(context)

    # ------------------------------------------------------------------------------------------------------------- rows
    def _asked_of(self, batch: Batch) -> Iterable[Asked]:
        with naming_operator(self.context):
            return list(_parts(self.terms.records_of(batch), batch.timestamps))

    def _restored(self, records: list[tuple[Any, int | None]]) -> Iterable[Asked]:
        with naming_operator(self.context):
            return [part for value, _ in records for part in self._read(*value)]

    def _read(self, times: bytes | None, stream: bytes) -> Iterator[Asked]:
        _, batches = read_arrow_stream(stream, "rows that wait for a table's answer")
        records = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        own = {self._stored_name(name): name for name in self.terms.record_names}
        known = [name for name in records.schema.names if name in own]
        records = pa.RecordBatch.from_arrays([records.column(name) for name in known], [own[name] for name in known])
        timestamps = None if times is None else np.frombuffer(times, "<i8").astype(np.int64)
        yield from _parts(self.terms.records_of(Batch.of_columns(records)), timestamps)

    def _stored(self, value: _Rows) -> tuple[bytes | None, bytes]:
        names = [self._stored_name(name) for name in value.records.schema.names]
        records = value.records.rename_columns(names)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, records.schema) as writer:
            writer.write_batch(records)
        times = None if value.times is None else value.times.astype("<i8").tobytes()
        return times, sink.getvalue().to_pybytes()

    def _stored_name(self, name: str) -> str:
        """What a column is called where it is kept."""
        return name if self.stored is None else self.stored.of_column(_STATE, f"row.{name}")

    # -------------------------------------------------------------------------------------------------------- questions
    def _begin(self, request: AsyncRequest) -> None:
        rows: _Rows = request.value
        with naming_operator(self.context):
            question = request.argument = self.terms.question(rows.records, rows.times)
            if self._known is not None:
                self._metrics.count_known(self._known.fill(question, self.context.now_ms()), question)
            rows.asked = question.open
            if not len(question.open):
                request.results = list(self.terms.pairs(question))
                self._queue.completed(request)
                return
        super()._begin(request)

    def _argument_of(self, request: AsyncRequest) -> pa.RecordBatch:
        return request.argument.open_keys()

    def _ended(self, request: AsyncRequest, result: Any, error: BaseException | None) -> None:
        (self._metrics.loads if error is None else self._metrics.failures).inc()
        super()._ended(request, result, error)

    def _found(self, request: AsyncRequest, result: Any) -> list[Any]:
        """Take an answer; gives the places of keys that have no row yet."""
        question: Question = request.argument
        self.terms.answer(question, result)
        return list(question.open)

    def _results(self, request: AsyncRequest, found: list[Any]) -> list[Any]:
        if self._known is not None:
            self._known.keep(request.argument, request.value.asked, self.context.now_ms())
        return list(self.terms.pairs(request.argument))

    def _give(self, requests: Sequence[AsyncRequest]) -> None:
        given: list[Batch] = []
        num_rows = 0
        for batch in (batch for request in requests for batch in request.results or ()):
            if given and num_rows + batch.num_rows > MAX_BATCH_ROWS:
                self.context.output.emit(Batch.concat(given))
                given, num_rows = [], 0
            given.append(batch)
            num_rows += batch.num_rows
        if given:
            self.context.output.emit(Batch.concat(given))

    def __repr__(self) -> str:
        return f"AsyncLookupJoinOfTables({self.terms!r})"


@dataclass(eq=False)
class _Rows:
    """What one question is asked for.

    Attributes:
        records: The rows.
        times: Their event times.
        asked: Places of the keys that the table was asked for first: what no cache knew.
    """

    records: pa.RecordBatch
    times: Timestamps | None
    asked: Any = None

    def __repr__(self) -> str:
        return f"{self.records.num_rows} rows, the first {self.records.slice(0, 1).to_pylist()}"


def _parts(records: pa.RecordBatch, times: Timestamps | None) -> Iterator[Asked]:
    for start in range(0, records.num_rows, MAX_ROWS):
        own = None if times is None else times[start : start + MAX_ROWS]
        yield _Rows(records.slice(start, MAX_ROWS), own), None, None


def missing_keys_again(max_attempts: int, delay_ms: int) -> AsyncRetryStrategy:
    """Ask for keys without a row so many times more, so long after the answer before."""
    return AsyncRetryStrategies.fixed_delay(max_attempts, delay_ms, result_predicate=bool, exception_predicate=None)


class _LookupsInThreads:
    """Puts questions to a table from several threads, each to a lookup of its own, which is opened with its first.

    Args:
        lookup: What each of them is a copy of.
    """

    def __init__(self, lookup: TableLookup) -> None:
        self._lookup = lookup
        # What errors call it.
        self.__qualname__ = type(lookup).__qualname__
        # Opened, and put no question now. Threads take them and give them back by themselves.
        self._free: deque[TableLookup] = deque()
        self._is_closed = False

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that the table has for keys."""
        own = self._taken()
        try:
            rows = own.lookup(keys)
        except BaseException:
            own.close()
            raise
        self._give_back(own)
        return rows

    def _taken(self) -> TableLookup:
        try:
            return self._free.pop()
        except IndexError:
            own = copy.deepcopy(self._lookup)
        try:
            own.open()
        except BaseException:
            own.close()
            raise
        return own

    def _give_back(self, own: TableLookup) -> None:
        self._free.append(own)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Let go of all that nobody uses; what is still asked goes when it has answered."""
        self._is_closed = True
        while self._free:
            try:
                own = self._free.pop()
            except IndexError:
                return
            own.close()
