"""Sinks that write by key, driven by hand: one subtask, one attempt, rows in one piece."""

from __future__ import annotations

from typing import Any

import pytest
from operator_harness import OperatorHarness

from headrace.connectors.upserts import UpsertOptions
from headrace.engine.connectors.async_sink_operator import AsyncSinkOperator
from headrace.engine.errors import HeadraceError

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
