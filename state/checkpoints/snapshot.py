"""What tasks tell about their snapshots, and how a checkpoint's files find the subtasks of the next run.

All values here are plain data that the manifest can hold as JSON. `assign_restore` works at any parallelism: keyed
files go to every subtask whose key groups they meet (which then keeps its own), list and union files go to all (which
then deal them out by place). At the parallelism of the checkpoint a subtask gets back the list files that it wrote: so
some subtasks can go back to a checkpoint while others go on from it.

Source: Flink's ``OperatorSubtaskState`` and ``StateAssignmentOperation``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointMismatchError
from ..files.local_directories import LocalFile
from ..identifiers import OperatorId
from ..values.key_groups import KeyGroupRange, key_group_range

if TYPE_CHECKING:
    from .storage import Manifest

__all__ = [
    "CHANNEL_KIND",
    "ChannelFile",
    "OperatorSnapshot",
    "RestoredPart",
    "SnapshotPart",
    "StateFile",
    "TaskRestore",
    "assign_restore",
    "unmatched_operators",
]

CHANNEL_KIND = "channel"
"""Of files that hold records in flight (`headrace.engine.task.channel_state`), no state of an operator."""


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
    kind: str
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
        kind: ``keyed`` (rows of key group, namespace, key, value), ``columnar`` (record batches with a
            key-group column), ``list`` (redistributed on rescale), ``union`` (every subtask receives all) or
            ``broadcast`` (every subtask writes the same and receives one copy); ``rocksdb`` is a file of a state
            database, which holds all keyed states of the subtask; ``channel`` holds records in flight.
        metadata: JSON-able facts that a restore checks: descriptor, types, format version.
        write: Gives the file's bytes (an Arrow IPC file); called once, maybe on another thread.
        file: Where they are on the local disk, if they are: large files are streamed from there into the checkpoints'
            shared area, for later checkpoints to use them again.
        reused: What an earlier complete checkpoint has stored of exactly this file: then nothing is written at all.
    """

    state: str
    kind: str
    metadata: dict[str, Any]
    write: Callable[[], bytes] = field(compare=False)
    file: LocalFile | None = field(default=None, compare=False)
    reused: StateFile | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """One file of a checkpoint, read and verified, on its way into a backend."""

    state: str
    kind: str
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


def assign_restore(
    manifest: Manifest, root: str, operators: Iterable[tuple[str, int]], subtask: int, parallelism: int
) -> TaskRestore:
    """Say what one subtask reads from a checkpoint before it starts. Called by the JobManager for every deployment.

    Args:
        manifest: The checkpoint.
        root: URI of the job's checkpoint root that the manifest's paths are relative to.
        operators: The uids of the subtask's chain, each with its max parallelism.
        subtask: The subtask's index.
        parallelism: The vertex's parallelism now; the checkpoint's may have been another.

    Returns:
        The files. An operator that the checkpoint does not know starts empty and is left out.

    Raises:
        CheckpointMismatchError: If an operator has keyed state in the checkpoint and another max parallelism.
    """
    known = {state.uid: state for state in manifest.operators}
    assigned: dict[OperatorId, tuple[OperatorSnapshot, ...]] = {}
    undealt: set[OperatorId] = set()
    for uid, max_parallelism in operators:
        state = known.get(OperatorId(uid))
        if state is None:
            continue
        if state.has_keys and state.max_parallelism != max_parallelism:
            message = (
                f"operator {uid!r} has keyed state of max parallelism {state.max_parallelism} in the checkpoint; "
                f"the program gives it {max_parallelism}"
            )
            hint = f"set max_parallelism({state.max_parallelism}): it cannot change for the life of keyed state"
            raise CheckpointMismatchError(message, hint=hint, checkpoint=manifest.checkpoint_id)
        owned = key_group_range(max_parallelism, parallelism, subtask)
        is_undealt = state.parallelism == parallelism
        if is_undealt:
            undealt.add(state.uid)
        filtered = (_filtered(one, owned, not is_undealt or one.subtask == subtask) for one in state.subtasks)
        assigned[state.uid] = tuple(snapshot for snapshot in filtered if snapshot.files)
    return TaskRestore(manifest.checkpoint_id, root, assigned, frozenset(undealt))


def _filtered(snapshot: OperatorSnapshot, owned: KeyGroupRange, has_lists: bool) -> OperatorSnapshot:
    files = tuple(
        file
        for file in snapshot.files
        if file.kind != CHANNEL_KIND
        and (file.key_groups is None or owned.overlaps(*file.key_groups))
        and (has_lists or file.kind != "list")
    )
    return replace(snapshot, files=files)


def unmatched_operators(manifest: Manifest, uids: Collection[str]) -> list[str]:
    """Return the uids of operators that have state in a checkpoint and no place in the program, sorted.

    Called by the JobManager before it restores: unless the user allows it, dropping state refuses the restore.
    """
    return sorted(
        state.uid
        for state in manifest.operators
        if state.uid not in uids and any(snapshot.files for snapshot in state.subtasks)
    )
