"""Checkpoints of a job as a data frame, for notebooks: to be sorted, grouped and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import ConfigurationError
from headrace.engine.protocol.details import CheckpointView

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["checkpoint_frame"]

_TYPES = {
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
"""Columns and their types, which are the same where there is no row; times of subtasks are those of the slowest."""


def checkpoint_frame(checkpoints: Sequence[CheckpointView]) -> pd.DataFrame:
    """Return one row for each checkpoint, oldest first, by its number; see `JobClient.checkpoints`.

    Args:
        checkpoints: Newest first.

    Raises:
        ConfigurationError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        message = "checkpoints as a data frame need pandas, which is not installed"
        raise ConfigurationError(message, hint="pip install pandas") from error

    rows = [_row(checkpoint) for checkpoint in reversed(checkpoints)]
    columns: dict[str, Any] = {}
    for name, kind in _TYPES.items():
        values = [row[name] for row in rows]
        if name == "triggered":
            columns[name] = pd.Series(pd.to_datetime(values, unit="ms", utc=True), dtype=kind)
        else:
            columns[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns).set_index("checkpoint_id")


def _row(checkpoint: CheckpointView) -> dict[str, Any]:
    tasks = checkpoint.tasks
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "status": checkpoint.status,
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
