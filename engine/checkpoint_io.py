"""The store's work that the control machines offload: claiming leadership, finding a checkpoint, publishing and deleting.

Each function here blocks, touches no machine and is handed over inside an `Offload`; it opens the store itself, so that a machine never
holds anything that could do I/O.

Which checkpoint a job goes on from is decided here: its own newest complete one that is sound; else the one the user named; else none. A
checkpoint of its own that turns out to be damaged is passed over for the one before it; but if there are any and none is sound,
that is an error: a job with a past never starts from nothing. A checkpoint the user named is taken or refused, never replaced.

Source: Flink's ``DefaultCompletedCheckpointStore`` and ``Checkpoints.loadAndValidateCheckpoint``; rows G11, D30.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from headrace.engine.errors import CheckpointCorruptError, CheckpointMismatchError, NotFoundError
from headrace.engine.jobgraph import JobGraph
from headrace.engine.messages import SubmitJob
from headrace.state.identifiers import CheckpointId, JobId, OperatorId
from headrace.state.snapshot import OperatorSnapshot
from headrace.state.storage import CheckpointStorage, Manifest, OperatorState

__all__ = [
    "CheckpointInventory",
    "Preparation",
    "RestorePoint",
    "check_restorable",
    "discard_all_checkpoints",
    "discard_checkpoints",
    "list_checkpoints",
    "prepare_job",
    "publish_checkpoint",
]


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A checkpoint to start from.

    Attributes:
        manifest: What it holds.
        root: URI that the manifest's paths are relative to.
        is_requested: Whether the user named it; it is the job's own otherwise.
    """

    manifest: Manifest
    root: str
    is_requested: bool

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint."""
        return self.manifest.checkpoint_id

    @property
    def enumerators(self) -> dict[OperatorId, Any]:
        """The parts of the split enumerators."""
        return dict(self.manifest.enumerators)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a JobManager needs to begin: the epoch it leads under, and where to start from (None: empty)."""

    epoch: int
    restore_point: RestorePoint | None


@dataclass(frozen=True, slots=True)
class CheckpointInventory:
    """What the store holds of a job: the highest id used there, and the complete checkpoints (id, path), oldest first."""

    highest_id: int
    complete: tuple[tuple[int, str], ...]


def prepare_job(job: SubmitJob, epoch: int, excluded: Collection[int], *, is_claimed: bool) -> Preparation:
    """Claim leadership, unless that is done, and find the checkpoint to start from.

    Args:
        job: The job.
        epoch: The epoch to claim at least, or the one claimed.
        excluded: Checkpoints of this job not to start from.
        is_claimed: Whether ``epoch`` has been claimed.

    Raises:
        CheckpointCorruptError: If the job has checkpoints and none of them is sound; or if the one the user named is not.
        CheckpointNotFoundError: If there is none where the user named one.
        CheckpointMismatchError: If it is of another format version.
        StorageError: If the store cannot be reached.
    """
    settings = job.settings
    own: RestorePoint | None = None
    if settings.checkpoints is not None:
        storage = CheckpointStorage.open(settings.checkpoints.directory, job.job_id)
        if not is_claimed:
            epoch = storage.claim_epoch(epoch)
        own = _newest_sound(storage, excluded)
    if own is None and settings.restore_from is not None:
        return Preparation(epoch, _load_requested(settings.restore_from))
    return Preparation(epoch, own)
