"""How a checkpoint's files find the subtasks of the next run, at any parallelism.

Keyed files go to every subtask whose key groups they meet (which then keeps its own); to all, where the classes of
their keys have other names now and so other hashes (`headrace.state.keys.key_classes`). List and union files go to all
(which then deal them out by place). At the parallelism of the checkpoint a subtask gets back the list files that it
wrote: so some subtasks can go back to a checkpoint while others go on from it.

Source: Flink's ``StateAssignmentOperation``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from ..errors import CheckpointMismatchError
from ..identifiers import OperatorId
from ..keys.key_classes import has_renamed_classes
from ..keys.key_groups import KeyGroupRange, key_group_range
from .manifest import Manifest, OperatorState
from .snapshot import FileKind, OperatorSnapshot, TaskRestore

__all__ = ["assign_restore", "has_renamed_keys", "unmatched_operators"]


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
        is_renamed = has_renamed_keys(state)
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
        filtered = (
            _filtered(one, None if is_renamed else owned, not is_undealt or one.subtask == subtask)
            for one in state.subtasks
        )
        assigned[state.uid] = tuple(snapshot for snapshot in filtered if snapshot.files)
    return TaskRestore(manifest.checkpoint_id, root, assigned, frozenset(undealt))


def has_renamed_keys(state: OperatorState) -> bool:
    """Return whether keys of an operator are of classes that have other names now; where the program's classes are
    known.
    """
    files = (file.metadata for snapshot in state.subtasks for file in snapshot.files)
    return any(has_renamed_classes(facts) for file in files for facts in (file, *file.get("states", ())))


def _filtered(snapshot: OperatorSnapshot, owned: KeyGroupRange | None, has_lists: bool) -> OperatorSnapshot:
    files = tuple(
        file
        for file in snapshot.files
        if file.kind is not FileKind.CHANNEL
        and (file.key_groups is None or owned is None or owned.overlaps(*file.key_groups))
        and (has_lists or file.kind is not FileKind.LIST)
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
