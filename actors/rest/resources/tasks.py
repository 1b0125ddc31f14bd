"""What vertices and subtasks have in common: their states in Flink's words, times, numbers, and ids of metrics.

Flink has no READY and no ENDED: a task that is READY has INITIALIZING behind it and waits for the others, one that has
ENDED still answers barriers and is RUNNING.

Source: Flink's ``ExecutionState``, ``ExecutionJobVertex.getAggregateJobVertexState`` and ``MetricNames``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.engine.kernel.metrics import as_numbers
from headrace.engine.protocol.details import SubtaskTotals, SubtaskView
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.views import OperatorView

__all__ = [
    "FLINK_STATES",
    "flink_state",
    "io_metrics",
    "level_of",
    "skew_of",
    "state_counts",
    "state_of_all",
    "task_metrics",
    "times_of",
    "times_of_all",
]

FLINK_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "INITIALIZING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
)
"""The states that Flink counts tasks by."""

_OTHERS: dict[str, str] = {TaskState.READY: "INITIALIZING", TaskState.ENDED: "RUNNING"}

OK_UP_TO, LOW_UP_TO = 0.1, 0.5
"""Shares of time under backpressure, as Flink judges them."""

_NAMES = {
    "num_records_in": "numRecordsIn",
    "num_records_out": "numRecordsOut",
    "num_late_records_dropped": "numLateRecordsDropped",
    "watermark_ms": "currentOutputWatermark",
    "current_emit_event_time_lag": "currentEmitEventTimeLag",
    "watermark_lag": "watermarkLag",
    "source_idle_time": "sourceIdleTime",
    "pending_records": "pendingRecords",
}
"""Metrics of operators that Flink has, too, with its names."""

_TASK_NAMES = {
    "watermark_ms": "currentOutputWatermark",
    "input_watermark_ms": "currentInputWatermark",
    "input_usage": "inPoolUsage",
    "output_usage": "outPoolUsage",
}
"""Numbers of tasks that not all of them have."""

_ODD = re.compile(r"[^A-Za-z0-9_]")


def flink_state(state: str) -> str:
    """Return a task's state as Flink calls it."""
    return _OTHERS.get(state, state)


def state_counts(states: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Count tasks by Flink's states, those without any included; of the tasks' states, or of how many are in each."""
    counts = _by_flink_state(states)
    return {state: counts[state] for state in FLINK_STATES}


def _by_flink_state(states: Iterable[str] | Mapping[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for state, number in (states if isinstance(states, Mapping) else Counter(states)).items():
        counts[flink_state(state)] += number
    return counts


def state_of_all(states: Iterable[str] | Mapping[str, int]) -> str:
    """Return the state of a vertex, of those of its subtasks, or of how many are in each."""
    counts = _by_flink_state(states)
    for state in ("FAILED", "CANCELING", "CANCELED", "INITIALIZING", "RUNNING"):
        if counts[state]:
            return state
    if counts["FINISHED"]:
        return "FINISHED" if counts["FINISHED"] == counts.total() else "RUNNING"
    return "CREATED"


def times_of_all(totals: SubtaskTotals, now_ms: int) -> dict[str, int]:
    """Return when the first of some subtasks was deployed and the last has ended, and how long that took so far."""
    start_ms, end_ms = totals.started_ms, totals.ended_ms
    return {
        "start-time": start_ms,
        "end-time": end_ms,
        "duration": -1 if start_ms < 0 else max((now_ms if end_ms < 0 else end_ms) - start_ms, 0),
    }


def times_of(subtask: SubtaskView, now_ms: int) -> dict[str, Any]:
    """Return when an attempt was deployed and when it ended, -1 for what has not been, and how long it has been there.

    ``status-duration`` says for how long it was in each state so far.
    """
    start_ms, end_ms = subtask.started_ms, subtask.ended_ms
    last_ms = now_ms if end_ms < 0 else end_ms
    until = [*list(subtask.entered_ms.values())[1:], last_ms]
    durations = dict.fromkeys(FLINK_STATES, -1)
    for (state, since_ms), until_ms in zip(subtask.entered_ms.items(), until, strict=False):
        name = flink_state(state)
        durations[name] = max(durations[name], 0) + max(until_ms - since_ms, 0)
    return {
        "start-time": start_ms,
        "end-time": end_ms,
        "duration": -1 if start_ms < 0 else max(last_ms - start_ms, 0),
        "status-duration": durations,
    }


def io_metrics(totals: SubtaskTotals) -> dict[str, Any]:
    """Return what tasks have read and written in records, and how their time went in milliseconds, added up.

    Each ``-complete`` says whether all of them have reported.
    """
    busy, backpressured = totals.busy_ms, totals.backpressured_ms
    return {
        "read-records": totals.records_in,
        "read-records-complete": totals.is_complete,
        "write-records": totals.records_out,
        "write-records-complete": totals.is_complete,
        "accumulated-busy-time": busy,
        "accumulated-backpressured-time": backpressured,
        "accumulated-idle-time": max(totals.elapsed_ms - busy - backpressured, 0),
    }


def level_of(ratio: float) -> str:
    """Return Flink's word for a share of time under backpressure."""
    if ratio <= OK_UP_TO:
        return "ok"
    return "low" if ratio <= LOW_UP_TO else "high"


def skew_of(values: Sequence[float]) -> float:
    """Return how unevenly a number is spread, in percent: mean distance from the mean over the mean, as Flink."""
    mean = sum(values) / len(values)
    return min(100.0, 100.0 * sum(abs(value - mean) for value in values) / len(values) / mean) if mean else 0.0


def task_metrics(subtask: SubtaskView, operators: tuple[OperatorView, ...]) -> dict[str, float]:
    """Return all metrics of a subtask by their ids: the task's own, and ``operator.name`` of its operators."""
    numbers = subtask.numbers
    if not numbers:
        return {}
    busy_ms, backpressured_ms = numbers["busy_ms"], numbers["backpressured_ms"]
    metrics: dict[str, float] = {
        "numRecordsIn": numbers["records_in"],
        "numRecordsInPerSecond": subtask.records_in_per_s,
        "numRecordsOut": numbers["records_out"],
        "numRecordsOutPerSecond": subtask.records_out_per_s,
        "busyTimeMsPerSecond": 1_000 * subtask.busy,
        "backPressuredTimeMsPerSecond": 1_000 * subtask.backpressured,
        "idleTimeMsPerSecond": 1_000 * subtask.idle,
        "accumulateBusyTimeMs": busy_ms,
        "accumulateBackPressuredTimeMs": backpressured_ms,
        "accumulateIdleTimeMs": max(numbers["elapsed_ms"] - busy_ms - backpressured_ms, 0),
    }
    metrics |= {name: numbers[own] for own, name in _TASK_NAMES.items() if own in numbers}
    for operator, name in operator_names(operators).items():
        for metric, value in as_numbers(subtask.operators.get(operator, {})).items():  # type: ignore[call-overload]
            metrics[f"{name}.{metric_name(metric)}"] = value
    return metrics


def metric_name(name: str) -> str:
    """Return an operator's metric as Flink calls it, if Flink has it; others keep their names."""
    return _NAMES.get(name, name)


def operator_names(operators: tuple[OperatorView, ...]) -> Mapping[str, str]:
    """Return what the operators of a vertex are called in ids of metrics: by their names, or uids where these are the
    same.
    """
    names = {operator.uid: _ODD.sub("_", operator.name) for operator in operators}
    counts = Counter(names.values())
    return {uid: name if counts[name] == 1 else _ODD.sub("_", uid) for uid, name in names.items()}
