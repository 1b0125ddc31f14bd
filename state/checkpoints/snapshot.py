"""What tasks tell about their snapshots, and what they are given back of one.

All values here are plain data that the manifest can hold as JSON.

Source: Flink's ``OperatorSubtaskState`` and ``JobManagerTaskRestore``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..files.local_directories import LocalFile
from ..identifiers import OperatorId
from ..text_enum import TextEnum

__all__ = [
    "KEYED_KINDS",
    "OPERATOR_KINDS",
    "ChannelFile",
    "FileKind",
    "OperatorSnapshot",
    "RestoredPart",
    "SnapshotPart",
    "StateFile",
    "TaskRestore",
]


class FileKind(TextEnum):
    """What a file of a checkpoint holds. Names of files, manifests and metadata have the value."""

    KEYED = "keyed"
    """Rows of key group, namespace, key, value."""
    COLUMNAR = "columnar"
    """Record batches with a column of key groups."""
    LIST = "list"
    """A list of an operator, dealt out anew on a rescale."""
    UNION = "union"
    """A list of an operator that every subtask gets whole."""
    BROADCAST = "broadcast"
    """State of an operator that every subtask writes alike, and gets one copy of."""
    DATABASE = "rocksdb"
    """A file of a state database, which holds all keyed states of its subtask."""
    CHANNEL = "channel"
    """Records in flight (`headrace.engine.task.channel_state`), no state of an operator."""


KEYED_KINDS = frozenset({FileKind.KEYED, FileKind.COLUMNAR, FileKind.DATABASE})
"""Those of state by key."""

OPERATOR_KINDS = frozenset({FileKind.LIST, FileKind.UNION, FileKind.BROADCAST})
"""Those of operators' own state."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """One immutable file of a checkpoint.

    Attributes:
        path: Relative to the job's checkpoint root, with ``/``; never leaves it.
        size: Bytes.
        sha256: Hex digest of the content.
        state, kind, metadata: As in `SnapshotPart`.
        key_groups: First and last key group it may hold (inclusive) for ``keyed`` and ``columnar``; None otherwise.
    """

    path: str
    size: int
    sha256: str
    state: str
    kind: FileKind
    metadata: dict[str, Any] = field(default_factory=dict)
    key_groups: tuple[int, int] | None = None

    def is_made_for(self, checkpoint_id: int) -> bool:
        """Return whether it was stored for that checkpoint, and not for an earlier one that has it too."""
        area, _, rest = self.path.partition("/")
        if area == "shared":
            return rest.rpartition("/")[2].startswith(f"{checkpoint_id}-")
        return area == f"chk-{checkpoint_id}"


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """One state of one operator subtask, ready to be written as one immutable file.

    Attributes:
        state: The state's name; unique within the operator.
        kind: What it holds.
        metadata: JSON-able facts that a restore checks: descriptor, types, format version.
        write: Gives the file's bytes (an Arrow IPC file); called once, maybe on another thread.
        file: Where they are on the local disk, if they are: large files are streamed from there into the checkpoints'
            shared area, for later checkpoints to use them again.
        reused: What an earlier complete checkpoint has stored of exactly this file: then nothing is written at all.
    """

    state: str
    kind: FileKind
    metadata: dict[str, Any]
    write: Callable[[], bytes] = field(compare=False)
    file: LocalFile | None = field(default=None, compare=False)
    reused: StateFile | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """One file of a checkpoint, read and verified, on its way into a backend."""

    state: str
    kind: FileKind
    metadata: dict[str, Any]
    data: bytes
    source_subtask: int
    """The subtask that wrote it; elements of ``list`` parts are dealt out over the new subtasks by (source_subtask,
    index).
    """
    file: LocalFile | None = None
    """Where it has been copied to, if it is a large file; ``data`` is empty then."""
    stored: tuple[int, StateFile] | None = None
    """The checkpoint and what its manifest says of the file, if later checkpoints of the job may use it again."""


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """One operator subtask's part of a checkpoint."""

    operator: OperatorId
    subtask: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True)
class ChannelFile:
    """A file of records in flight, and the subtask that logged them."""

    file: StateFile
    subtask: int


@dataclass(frozen=True, slots=True)
class TaskRestore:
    """What one subtask must read before it starts.

    Attributes:
        checkpoint_id: The checkpoint.
        root: URI of the job's checkpoint root that the paths are relative to.
        operators: For each operator of its chain, the snapshots (of old subtasks) that may hold something for it.
            Files whose key groups do not meet the subtask's own are left out.
        undealt: The operators whose list files are only those that this subtask wrote: nothing is dealt out.
        channels: What was in flight to the subtask, logged by itself or by those that feed it:
            `headrace.engine.task.channel_state`.
        must_prove_after: The same checkpoint, if newer ones were complete and sinks must prove that they have committed
            nothing of those; else None.
        repeats_output: Whether newer ones were complete and their output is to come again, as the user has chosen.
        starts_event_time_anew: Whether a source that feeds the subtask has nothing in the checkpoint.
    """

    checkpoint_id: int
    root: str
    operators: dict[OperatorId, tuple[OperatorSnapshot, ...]]
    undealt: frozenset[OperatorId] = frozenset()
    channels: tuple[ChannelFile, ...] = ()
    must_prove_after: int | None = None
    repeats_output: bool = False
    starts_event_time_anew: bool = False
