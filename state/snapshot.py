"""What tasks tell about their snapshots, and how a checkpoint's files find the subtasks of the next run.

All values here are plain data that the manifest can hold as JSON.

Source: Flink's ``OperatorSubtaskState`` and ``StateAssignmentOperation``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.state.identifiers import OperatorId

__all__ = ["OperatorSnapshot", "StateFile", "TaskRestore"]


@dataclass(frozen=True, slots=True)
class StateFile:
    """One immutable file of a checkpoint.

    Attributes:
        path: Relative to the job's checkpoint root, with ``/``; never leaves it.
        size: Bytes.
        sha256: Hex digest of the content.
        state, kind, metadata: As in `headrace.state.backend.SnapshotPart`.
        key_groups: First and last key group it may hold (inclusive) for ``keyed`` and ``columnar``; None otherwise.
    """

    path: str
    size: int
    sha256: str
    state: str
    kind: str
    metadata: dict[str, Any] = field(default_factory=dict)
    key_groups: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """One operator subtask's part of a checkpoint."""

    operator: OperatorId
    subtask: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True)
class TaskRestore:
    """What one subtask must read before it starts.

    Attributes:
        checkpoint_id: The checkpoint.
        root: URI of the job's checkpoint root that the paths are relative to.
        operators: For each operator of its chain, the snapshots (of old subtasks) that may hold something for it. Files whose key
            groups do not meet the subtask's own are left out.
    """

    checkpoint_id: int
    root: str
    operators: dict[OperatorId, tuple[OperatorSnapshot, ...]]
