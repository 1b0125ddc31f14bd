"""Sinks that write by key and sources of tables, driven by hand: one subtask, one attempt, rows in one piece."""

from __future__ import annotations

from typing import Any

import pytest
from operator_harness import OperatorHarness

from headrace.connectors.upserts import UpsertOptions
from headrace.engine.connectors.async_sink_operator import AsyncSinkOperator
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
)
from headrace.engine.errors import HeadraceError
from headrace.engine.kernel.metrics import MetricGroup

AT_ONCE = UpsertOptions(batch_size=50, batch_interval="10 ms")


def harness_of(sink: Any, restored: Any = (), **place: Any) -> OperatorHarness:
    """A subtask of a sink, which is open."""
    harness = OperatorHarness(AsyncSinkOperator(sink), restored=restored, **place)
    harness.do_work()
    return harness


def written(sink: Any, rows: list[Any], **place: Any) -> dict[str, int]:
    """Write rows as one subtask, all in one piece; gives its counters."""
    harness = harness_of(sink, **place)
    harness.process(rows)
    harness.operator.end_input(0)
    harness.do_all_work()
    counters: dict[str, int] = harness.metrics.counters
    return counters


def told(call: Any) -> str:
    """What an error says."""
    with pytest.raises(HeadraceError) as refused:
        call()
    return str(refused.value)


def reader_of(source: Any, splits: list[Split]) -> SourceReader:
    """A reader of splits, which is open."""
    reader: SourceReader = source.create_reader()
    reader.open(ReaderContext("reader", 0, 1, lambda: 0, MetricGroup(), lambda batch: None))
    reader.add_splits(splits)
    return reader


def read_some(reader: SourceReader, number: int | None = None, at_once: int = 3) -> list[Any]:
    """So many records, or all that are left; a few more, as pages have several."""
    rows: list[Any] = []
    while number is None or len(rows) < number:
        found = reader.poll(at_once)
        if found is ALL_SPLITS_FINISHED:
            break
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, Polled):
                rows += one.batch.rows
    return rows
