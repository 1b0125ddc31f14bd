"""Numbers of a job as data frames, for notebooks: to be sorted, grouped and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import ConfigurationError
from headrace.engine.protocol.details import CheckpointView
from headrace.engine.protocol.views import VertexView

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["checkpoint_frame", "event_time_of", "metrics_frame"]

ENDLESS_MS = 2**53
"""Watermarks beyond are those of the beginning and of the end: no calendar has them."""

_METRICS = {
    "operators": "object",
    "parallelism": "int64",
    "records_in": "int64",
    "records_out": "int64",
    "records_in_per_s": "float64",
    "records_out_per_s": "float64",
    "busy": "float64",
    "idle": "float64",
    "backpressured": "float64",
    "watermark": "datetime64[ms, UTC]",
}
"""Columns of what operator chains have reported, and their types; the operators' own counters come behind them."""

_CHECKPOINTS = {
    "checkpoint_id": "int64",
    "status": "object",
    "is_savepoint": "bool",
    "triggered": "datetime64[ms, UTC]",
    "duration_ms": "Int64",
    "num_subtasks": "int64",
    "num_acknowledged": "int64",
    "state_bytes": "int64",
    "uploaded_bytes": "int64",
    "persisted_bytes": "int64",
    "alignment_ms": "float64",
    "sync_ms": "float64",
    "async_ms": "float64",
    "num_unaligned": "int64",
    "path": "object",
    "reason": "object",
}
"""Columns of checkpoints and their types, as well where there is no row; times of subtasks are of the slowest."""


def checkpoint_frame(checkpoints: Sequence[CheckpointView]) -> pd.DataFrame:
    """Return one row for each checkpoint, oldest first, by its number; see `JobClient.checkpoints`.

    Args:
        checkpoints: Newest first.

    Raises:
        ConfigurationError: If pandas is not installed.
    """
    rows = [_row(checkpoint) for checkpoint in reversed(checkpoints)]
    return _frame(rows, _CHECKPOINTS).set_index("checkpoint_id")


def metrics_frame(vertices: Sequence[VertexView]) -> pd.DataFrame:
    """Return one row for each operator chain, by its id; see `JobClient.metrics`.

    Args:
        vertices: In the order of the program.

    Raises:
        ConfigurationError: If pandas is not installed.
    """
    own = dict.fromkeys(name for vertex in vertices for name in vertex.metrics)
    rows = [{**_metrics(vertex), **{name: vertex.metrics.get(name) for name in own}} for vertex in vertices]
    types = {"vertex_id": "object", **_METRICS, **dict.fromkeys(own, "float64")}
    return _frame(rows, types).set_index("vertex_id")


def _frame(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        message = "numbers as a data frame need pandas, which is not installed"
        raise ConfigurationError(message, hint="pip install pandas") from error

    columns: dict[str, Any] = {}
    for name, kind in types.items():
        values = [row[name] for row in rows]
        if kind.startswith("datetime"):
            columns[name] = pd.Series(pd.to_datetime(values, unit="ms", utc=True), dtype=kind)
        else:
            columns[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns)


def _metrics(vertex: VertexView) -> dict[str, Any]:
    return {
        "vertex_id": vertex.vertex_id,
        "operators": vertex.name,
        "watermark": event_time_of(vertex.watermark_ms),
        **{name: getattr(vertex, name) for name in _METRICS if name not in ("operators", "watermark")},
    }


def event_time_of(watermark_ms: int | None) -> int | None:
    """Return a watermark as a point in time; None where it is none: before the first one, and behind the end."""
    return None if watermark_ms is None or abs(watermark_ms) >= ENDLESS_MS else watermark_ms


def _row(checkpoint: CheckpointView) -> dict[str, Any]:
    tasks = checkpoint.tasks
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "status": checkpoint.status.value,
        "is_savepoint": checkpoint.is_savepoint,
        "triggered": checkpoint.triggered_ms,
        "duration_ms": checkpoint.duration_ms,
        "num_subtasks": checkpoint.num_subtasks,
        "num_acknowledged": len(tasks),
        "state_bytes": sum(task.state_bytes for task in tasks),
        "uploaded_bytes": sum(task.uploaded_bytes for task in tasks),
        "persisted_bytes": sum(task.persisted_bytes for task in tasks),
        "alignment_ms": max((task.alignment_ms for task in tasks), default=0.0),
        "sync_ms": max((task.sync_ms for task in tasks), default=0.0),
        "async_ms": max((task.async_ms for task in tasks), default=0.0),
        "num_unaligned": sum(task.is_unaligned for task in tasks),
        "path": checkpoint.path,
        "reason": checkpoint.reason,
    }
