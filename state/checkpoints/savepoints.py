"""Savepoints as folders: how they are named, and how snapshots that are not needed any more are removed.

A savepoint is a folder of its own, laid out like a job's folder of checkpoints, with one manifest of kind
``savepoint``. It is self-contained and belongs to the user: no job ever deletes it unless it was started from it under
``RestoreMode.CLAIM``. It exists once its manifest does. Without one the folder is garbage of a savepoint that failed;
nothing takes it for a savepoint.

Whatever is removed here loses its manifests first, so that a removal that is interrupted leaves garbage and never half
a snapshot; and only what the layout knows is touched, whatever else the user keeps beside it.

Source: Flink's ``SavepointDisposalRequestTest``, ``Checkpoints.disposeSavepoint``; FLIP-193 for ownership.
"""

from __future__ import annotations

import hashlib
import os
import re

from ..errors import CheckpointMismatchError, CheckpointNotFoundError
from ..files.filesystem import join_uri
from .manifest import SAVEPOINT
from .storage import CheckpointStorage

__all__ = ["delete_claimed", "discard_folder", "dispose_savepoint", "savepoint_folder"]


def savepoint_folder(directory: str, job_id: str, request: str) -> str:
    """Return the place of one savepoint.

    Args:
        directory: Of all savepoints: a path or a URI.
        job_id: The job's.
        request: Tells this attempt at a savepoint from every other one: nothing else ever writes to its folder.

    Returns:
        ``<directory>/savepoint-<first 6 characters of the job's id>-<12 hex digits>``.
    """
    digest = hashlib.sha256(f"{job_id}/{request}".encode()).hexdigest()[:12]
    short = re.sub(r"[^A-Za-z0-9]", "_", job_id[:6])
    return join_uri(directory, f"savepoint-{short}-{digest}")


def dispose_savepoint(path: str | os.PathLike[str]) -> None:
    """Delete a savepoint. Called by users, when no job will be started from it any more.

    Args:
        path: Path or URI of its folder or its manifest.

    Raises:
        CheckpointNotFoundError: If there is no savepoint.
        CheckpointMismatchError: If it is a checkpoint: those belong to their job. Or it is of a newer format.
        CheckpointCorruptError: If its manifest is damaged.
        StorageError: If the store fails; what is left then is no savepoint any more, or all of it.
    """
    storage, manifest = CheckpointStorage.locate(path)
    if manifest.kind != SAVEPOINT:
        message = f"checkpoint {manifest.checkpoint_id} of job {manifest.job_id!r} is not a savepoint"
        hint = "checkpoints are deleted by their job; start a job from it with restore mode CLAIM to have it deleted"
        raise CheckpointMismatchError(message, hint=hint, path=os.fspath(path))
    discard_folder(storage.uri)


def discard_folder(uri: str) -> None:
    """Delete whatever a savepoint has, or would have had, in its folder. Nothing happens if there is nothing."""
    storage = CheckpointStorage.at(uri)
    fs, root = storage.fs, storage.root
    fs.delete_directory(f"{root}/manifests")
    start = len(root) + 1
    parts = {path[start:].partition("/")[0] for path, _ in fs.list_files(root)}
    for part in sorted(parts):
        if part in ("completed", "epochs", "shared") or re.fullmatch(r"chk-[1-9][0-9]*", part):
            fs.delete_directory(f"{root}/{part}")
    fs.delete(f"{root}/claimed")
    if not fs.list_files(root):
        fs.delete_directory(root)


def delete_claimed(manifest_uri: str) -> None:
    """Delete a snapshot that a job has claimed and no longer needs.

    A savepoint goes as a whole, and so does the folder of an earlier job: all that it retained is superseded. If that
    folder holds a newer checkpoint than the claimed one, its job has gone on after all. Then nothing is touched: that
    job may name any file again, and deletes what it does not need by itself. The claimed manifest goes last of all
    manifests, so a folder that has none is one whose removal was interrupted.

    Args:
        manifest_uri: Of the snapshot.

    Raises:
        StorageError: If the store fails: try again.
    """
    try:
        storage, manifest = CheckpointStorage.locate(manifest_uri)
    except CheckpointNotFoundError:  # done before, but maybe not to its end
        storage = CheckpointStorage.around(manifest_uri)
        if not storage.list_complete():
            discard_folder(storage.uri)
        return
    complete = storage.list_complete()
    if manifest.kind == SAVEPOINT or complete[-1] == manifest.checkpoint_id:
        for other in complete[:-1]:
            storage.discard(other)
        discard_folder(storage.uri)
