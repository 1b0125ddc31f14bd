"""The store's work that tasks offload: read what they restore from, write what they have snapshotted.

Both block and touch no task. Files of state databases are copied from and to the local disk in pieces; everything else
passes through memory, one file at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.state.checkpoints.snapshot import OperatorSnapshot, RestoredPart, SnapshotPart
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.filesystem import join_confined
from headrace.state.files.local_directories import LocalDirectory
from headrace.state.identifiers import OperatorId

from ..errors import CheckpointCorruptError
from ..protocol.task_messages import TaskDeployment

__all__ = ["discard_late_snapshot", "read_restored_parts", "upload_snapshot"]


def read_restored_parts(deployment: TaskDeployment) -> dict[OperatorId, list[RestoredPart]]:
    """Read and verify every file a task restores from. Blocking: runs offloaded.

    Raises:
        CheckpointCorruptError: If a file is not what the manifest says.
        StorageError: If the store or the local disk fails.
    """
    settings = deployment.settings
    if settings.checkpoints is not None:
        # Arrow imports pandas, if there is one, with the first array it makes: half a second of a core, which would
        # otherwise fall between the barriers of the first checkpoint.
        pa.array([0])
    restore = deployment.restore
    if restore is None:
        return {}
    storage = CheckpointStorage.at(restore.root)
    is_own = (
        settings.checkpoints is not None
        and CheckpointStorage.open(settings.checkpoints.directory, deployment.job_id).uri == storage.uri
    )
    attempt = deployment.attempt
    # Gone when nothing refers to the parts any more, in whatever way that comes about.
    directory: LocalDirectory | None = None
    restored: dict[OperatorId, list[RestoredPart]] = {}
    for operator, snapshots in restore.operators.items():
        parts = restored[operator] = []
        for snapshot in snapshots:
            for file in snapshot.files:
                if storage.data_files.is_shared(file) and directory is None:
                    label = f"restore-{attempt.vertex}-{attempt.subtask}"
                    directory = LocalDirectory.make(settings.state.local_directory, label)
                stored = (restore.checkpoint_id, file) if is_own else None
                try:
                    parts.append(storage.data_files.restore_part(file, snapshot.subtask, directory, stored))
                except CheckpointCorruptError as error:
                    error.context.setdefault("operator", str(operator))
                    raise
    for channel in restore.channels:
        target = OperatorId(channel.file.metadata["target"])
        restored.setdefault(target, []).append(storage.data_files.restore_part(channel.file, channel.subtask, None))
    return restored


def upload_snapshot(
    deployment: TaskDeployment,
    checkpoint_id: int,
    drafts: list[tuple[OperatorId, list[SnapshotPart]]],
    savepoint: str | None = None,
) -> tuple[OperatorSnapshot, ...]:
    """Write the parts of one task's snapshot. Blocking: runs offloaded.

    Args:
        deployment: The task.
        checkpoint_id: The checkpoint.
        drafts: The parts, by operator.
        savepoint: The folder of a savepoint; None for the job's own.

    Raises:
        StorageError: If the store or the local disk fails.
    """
    settings = deployment.settings.checkpoints
    if savepoint is not None:
        storage = CheckpointStorage.at(savepoint)
    else:
        assert settings is not None
        storage = CheckpointStorage.open(settings.directory, deployment.job_id)
    attempt = deployment.attempt
    return tuple(
        OperatorSnapshot(
            operator,
            attempt.subtask,
            tuple(storage.data_files.write_part(checkpoint_id, attempt, operator, part) for part in parts),
        )
        for operator, parts in drafts
    )


def discard_late_snapshot(savepoint: str, snapshots: Iterable[OperatorSnapshot]) -> None:
    """Delete what a task has written for a savepoint that was given up meanwhile: no other process knows of it.
    Blocking.

    Raises:
        StorageError: If the store fails.
    """
    storage = CheckpointStorage.at(savepoint)
    for snapshot in snapshots:
        for file in snapshot.files:
            storage.fs.delete(join_confined(storage.root, file.path))
