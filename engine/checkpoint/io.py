"""The store's work that the control machines offload: claim leadership, find, publish and delete checkpoints.

Each function here blocks, touches no machine and is handed over inside an `Offload`; it opens the store itself, so
that a machine never holds anything that could do I/O.

Which checkpoint a job goes on from is decided here: one of its own, as `headrace.engine.checkpoint.restore_choice`
says; else the one the user named; else none. A checkpoint the user named is taken or refused, never replaced.

Source: Flink's ``DefaultCompletedCheckpointStore`` and ``Checkpoints.loadAndValidateCheckpoint``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.state.checkpoints.assignment import unmatched_operators
from headrace.state.checkpoints.leases import end_of_term
from headrace.state.checkpoints.manifest import SAVEPOINT, Manifest, OperatorState
from headrace.state.checkpoints.savepoints import delete_claimed, discard_folder
from headrace.state.checkpoints.snapshot import OperatorSnapshot
from headrace.state.checkpoints.storage import NUM_EPOCHS_KEPT, CheckpointStorage
from headrace.state.files.filesystem import join_uri
from headrace.state.identifiers import JobId, OperatorId, VertexId
from headrace.state.open.names import PENDING_REPORTS, RUN_MARKS, STOPPED_WITH_SAVEPOINT, STOPPING
from headrace.state.reading.program_pickles import load_program
from headrace.state.reading.stored_json import parse_json

from ..errors import CheckpointError, CheckpointMismatchError
from ..graph.job_graph import JobGraph
from ..kernel.config import CheckpointSettings, DamagedCheckpointPolicy, JobSettings, RestoreMode
from ..protocol.messages import SubmitJob
from ..protocol.states import JobStatus
from ..protocol.views import JobView
from .pending_reports import PendingReports, read_pending_reports, stored_reports
from .restore_choice import JobPast, check_folder, choose_checkpoint

__all__ = [
    "STOPPED_WITH_SAVEPOINT",
    "STOPPING",
    "CheckpointInventory",
    "Fenced",
    "Preparation",
    "RestorePoint",
    "begin_savepoint",
    "check_restorable",
    "clean_up_job",
    "collect_garbage",
    "discard_savepoint",
    "is_newest_kept",
    "list_checkpoints",
    "make_folder",
    "prepare_job",
    "publish_checkpoint",
    "publish_savepoint",
    "remove_checkpoints",
]


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A checkpoint to start from.

    Attributes:
        manifest: What it holds.
        root: URI that the manifest's paths are relative to.
        is_requested: Whether the user named it; it is the job's own otherwise.
        passed_over: What is wrong with newer ones of the job that were complete.
        must_prove: Whether sinks must prove, if any is passed over, that nothing of it has been committed.
    """

    manifest: Manifest
    root: str
    is_requested: bool
    passed_over: tuple[str, ...] = ()
    must_prove: bool = True

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint."""
        return self.manifest.checkpoint_id

    @property
    def path(self) -> str:
        """Its place, for people: a savepoint's folder, a checkpoint's manifest."""
        is_savepoint = self.manifest.kind == SAVEPOINT
        return self.root if is_savepoint else join_uri(self.root, f"manifests/chk-{self.checkpoint_id}.json")

    @property
    def enumerators(self) -> dict[OperatorId, Any]:
        """The parts of the split enumerators."""
        parts = self.manifest.enumerators.items()
        return {OperatorId(uid): part for uid, part in parts if uid not in RUN_MARKS}

    @property
    def stopping(self) -> str | None:
        """How its job was being stopped when it was taken, as a ``StopMode``; that of another job does not count."""
        stopping: str | None = None if self.is_requested else self.manifest.enumerators.get(STOPPING)
        return stopping

    @property
    def stopped_with(self) -> tuple[str, str] | None:
        """Request and path of the savepoint that its job was stopped with; of another job that does not count."""
        mark = None if self.is_requested else self.manifest.enumerators.get(STOPPED_WITH_SAVEPOINT)
        return None if mark is None else (str(mark[0]), str(mark[1]))

    @property
    def reports(self) -> PendingReports:
        """Rows collected up to this checkpoint that no client had fetched; those of another job do not count.

        Raises:
            CheckpointCorruptError: If they are something else.
            CheckpointMismatchError: If an earlier version has pickled rows that are not plain.
        """
        stored = self.manifest.enumerators.get(PENDING_REPORTS)
        return () if stored is None or self.is_requested else read_pending_reports(stored)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a JobManager needs to begin: the epoch it leads under, and where to start from (None: empty)."""

    epoch: int
    restore_point: RestorePoint | None


@dataclass(frozen=True, slots=True)
class CheckpointInventory:
    """What the store holds of a job: the highest id used, and the complete checkpoints (id, path), oldest first."""

    highest_id: int
    complete: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """A publication was refused: another leader has taken over, and may well restore from this checkpoint."""

    reason: str


def prepare_job(job: SubmitJob, epoch: int, past: JobPast = JobPast(), *, is_claimed: bool = False) -> Preparation:
    """Claim leadership, unless that is done, and find the checkpoint to start from.

    A snapshot that the job is to own is claimed here, in the job's folder, before anything is read from it.

    Args:
        job: The job.
        epoch: The epoch to claim at least, or the one claimed.
        past: What is known of the job's checkpoints besides.
        is_claimed: Whether ``epoch`` has been claimed.

    Raises:
        CheckpointCorruptError: If a checkpoint is damaged and no other one may be taken in its place.
        CheckpointLostError: If a checkpoint that was complete is gone and no other one may be taken in its place.
        CheckpointNotFoundError: If there is none where the user named one.
        CheckpointMismatchError: If it is of another format version.
        ConfigurationError: If others can write to the job's folder or to the one it is to start from, and nothing is
            signed.
        StorageError: If the store cannot be reached.
        SupersededError: If a later leader of the cluster runs the job.
    """
    settings = job.settings
    own: RestorePoint | None = None
    if settings.checkpoints is not None:
        storage = CheckpointStorage.open(settings.checkpoints.directory, job.job_id, settings.checkpoint_key_file)
        storage.require_trusted()
        check_folder(storage, past, epoch if is_claimed else 0)
        if not is_claimed:
            epoch = storage.claim_epoch(epoch, end_of_term(epoch))
            storage.require_trusted()  # it is made by now: a server may have given it another owner
        choice = choose_checkpoint(storage, past)
        if choice.manifest is not None:
            must_prove = settings.checkpoints.damaged_checkpoints is DamagedCheckpointPolicy.FAIL
            own = RestorePoint(choice.manifest, storage.uri, False, choice.passed_over, must_prove)
    if own is None and settings.restore_from is not None:
        found, manifest = CheckpointStorage.from_manifest(settings.restore_from, settings.checkpoint_key_file)
        found.require_trusted()
        if settings.restore_mode is RestoreMode.CLAIM and settings.checkpoints is not None:
            storage.note_claim(found.manifest_uri(manifest.checkpoint_id))
        return Preparation(epoch, RestorePoint(manifest, found.uri, is_requested=True))
    return Preparation(epoch, own)


def make_folder(job: SubmitJob, epoch: int) -> None:
    """Make a job's folder before the job is stored: from then on, one that is not there has been deleted.

    Args:
        job: The job.
        epoch: An epoch that is below those of all its JobManagers.

    Raises:
        StorageError: If nothing can be written there.
        ConfigurationError: The same; or if the folder that was made is not this user's alone, and nothing is signed.
    """
    settings = job.settings.checkpoints
    if settings is None:
        return
    storage = CheckpointStorage.open(settings.directory, job.job_id, job.settings.checkpoint_key_file)
    if storage.highest_epoch() == 0:
        storage.claim_epoch(epoch)
    storage.require_trusted()


def check_restorable(point: RestorePoint, job_graph: JobGraph, *, allow_non_restored_state: bool = False) -> None:
    """See that a checkpoint belongs to a program: everything it holds has a place there.

    Args:
        point: The checkpoint.
        job_graph: The program.
        allow_non_restored_state: Whether a snapshot that the user named may hold more: that is left behind.

    Raises:
        CheckpointMismatchError: If it holds state of operators or sources that the program does not have.
    """
    uids = {node.uid for vertex in job_graph.vertices.values() for node in vertex.chain}
    unmatched = {*unmatched_operators(point.manifest, uids), *(uid for uid in point.enumerators if uid not in uids)}
    if unmatched and not (allow_non_restored_state and point.is_requested):
        names = ", ".join(f'"{uid}"' for uid in sorted(unmatched))
        message = f"checkpoint {point.checkpoint_id} holds state of operators that the program does not have: {names}"
        hint = (
            "Give operators the uid they had when the checkpoint was taken, or allow_non_restored_state to lose theirs."
        )
        raise CheckpointMismatchError(message, hint=hint, path=point.root)


def list_checkpoints(directory: str, job_id: JobId) -> CheckpointInventory:
    """See what the store holds of a job, after its leader has claimed its epoch and before it takes a checkpoint.

    Args:
        directory: Of all jobs.
        job_id: The job.
    """
    storage = CheckpointStorage.open(directory, job_id)
    highest = storage.highest_checkpoint_id()
    complete = tuple((checkpoint_id, storage.manifest_uri(checkpoint_id)) for checkpoint_id in storage.list_complete())
    return CheckpointInventory(highest, complete)


def publish_checkpoint(
    directory: str,
    job: SubmitJob,
    epoch: int,
    checkpoint_id: int,
    timestamp_ms: int,
    snapshots: Sequence[OperatorSnapshot],
    enumerators: dict[OperatorId, Any],
    reports: PendingReports,
    parallelism: Mapping[VertexId, int] | None = None,
) -> str | Fenced:
    """Make a checkpoint complete.

    Args:
        directory: Of all jobs.
        job: The job.
        epoch: The publishing leader's.
        checkpoint_id: The checkpoint.
        timestamp_ms: When it was triggered.
        snapshots: Every operator subtask's part.
        enumerators: The split enumerators' parts.
        reports: Collected rows that the client has not fetched.
        parallelism: How many subtasks each vertex had; None: as it was submitted. A rescale changes it.

    Returns:
        Its path, good for ``restore_from``; or that another leader has taken over.

    Raises:
        CheckpointError: If it cannot be published.
        StorageError: If the store failed; whether the checkpoint exists is not known then.
    """
    storage = CheckpointStorage.open(directory, job.job_id, job.settings.checkpoint_key_file)
    parts: dict[str, Any] = {str(uid): part for uid, part in enumerators.items()}
    if reports:
        parts[PENDING_REPORTS] = stored_reports(reports)
    manifest = Manifest(
        job_id=job.job_id,
        job_name=job.name,
        checkpoint_id=checkpoint_id,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        operators=_operator_states(job, snapshots, parallelism or {}),
        enumerators=parts,
        plan=_plan_of(job),
    )
    has_ended = Fenced("the job's folder is gone: it has ended under another leader, or somebody has deleted it")
    if _takes_back(storage, checkpoint_id):
        return has_ended
    try:
        path = storage.publish(manifest, epoch)
        storage.completions.note(checkpoint_id)  # before anybody is told, and commits
        return has_ended if _takes_back(storage, checkpoint_id) else path
    except CheckpointError as error:
        if storage.highest_epoch() > epoch:
            return Fenced(str(error))
        raise


def _takes_back(storage: CheckpointStorage, checkpoint_id: int) -> bool:
    """Delete again what was written for a checkpoint into a folder that had been deleted; gives whether it had.

    Asked before a checkpoint is published, so that it is not seen for as long as the deletion takes, or for ever,
    should this process die in between; and after it, as the folder may have been deleted meanwhile.

    Raises:
        CheckpointError: If only the epochs are gone. No end of a job does that, as manifests go first; something that
            deletes old files does, and what it has left must not follow.
    """
    if storage.highest_epoch() > 0:
        return False
    if any(other != checkpoint_id for other in storage.list_complete()):
        message = f"checkpoint {checkpoint_id} cannot be published: the job's epochs have been deleted by somebody else"
        hint = "nothing may delete single files of a job's folder, such as a rule that deletes old files"
        raise CheckpointError(message, hint=hint, path=storage.uri)
    storage.remove()
    return True


def _plan_of(job: SubmitJob) -> dict[str, Any] | None:
    return None if job.settings.plan is None else parse_json(job.settings.plan, max_bytes=4 * len(job.settings.plan))


def _operator_states(
    job: SubmitJob, snapshots: Sequence[OperatorSnapshot], parallelism: Mapping[VertexId, int]
) -> tuple[OperatorState, ...]:
    by_operator: dict[OperatorId, list[OperatorSnapshot]] = {}
    for snapshot in snapshots:
        if snapshot.files:
            by_operator.setdefault(snapshot.operator, []).append(snapshot)
    return tuple(
        OperatorState(
            node.uid,
            node.name,
            parallelism.get(node.vertex_id, node.parallelism),
            node.max_parallelism,
            tuple(sorted(by_operator[node.uid], key=lambda snapshot: snapshot.subtask)),
        )
        for node in _nodes_of(job.job_graph)
        if node.uid in by_operator
    )


class _Node(NamedTuple):
    """What a manifest says of an operator."""

    uid: OperatorId
    name: str
    vertex_id: VertexId
    parallelism: int
    max_parallelism: int


@lru_cache(maxsize=4)
def _nodes_of(job_graph: bytes) -> tuple[_Node, ...]:
    """The operators of a pickled job graph: it holds all functions of a user, so no checkpoint reads it again."""
    graph: JobGraph = load_program(job_graph)
    return tuple(
        _Node(node.uid, node.name, vertex.vertex_id, vertex.parallelism, vertex.max_parallelism)
        for vertex in graph.vertices.values()
        for node in vertex.chain
    )


def collect_garbage(
    directory: str,
    job_id: JobId,
    epoch: int,
    retained: Collection[int],
    bases: Collection[int] = (),
    *,
    releases_claim: bool = False,
    key_file: str | None = None,
) -> list[int]:
    """Delete the checkpoints below the newest retained one that are not retained, complete or not, and shared files
    that none of those that stay names.

    A leader that another one has replaced deletes nothing.

    Args:
        directory: Of all jobs.
        job_id: The job.
        epoch: The leader's.
        retained: Complete checkpoints that stay.
        bases: Complete checkpoints whose files those under way may name: they stay for now.
        releases_claim: Whether the snapshot that the job was started from, and owns, is needed no more.
        key_file: Of the keys that the note of it must be signed with.

    Returns:
        The ids deleted.
    """
    storage = CheckpointStorage.open(directory, job_id, key_file)
    if storage.highest_epoch() > epoch:
        return []
    deleted = storage.collect_garbage({*retained, *bases})
    storage.completions.forget_before(max(retained, default=0))
    storage.forget_old_epochs(NUM_EPOCHS_KEPT)
    if releases_claim:
        _release_claim(storage)
    return deleted


def _release_claim(storage: CheckpointStorage) -> None:
    claimed = storage.claimed()
    if claimed is not None:
        delete_claimed(claimed)
        storage.forget_claim()


def remove_checkpoints(
    directory: str, job_id: JobId, *, releases_claim: bool = False, key_file: str | None = None
) -> None:
    """Delete all of a job's checkpoints, and with ``releases_claim`` the snapshot it was started from if it owns it."""
    storage = CheckpointStorage.open(directory, job_id, key_file)
    if releases_claim:
        _release_claim(storage)
    storage.remove()


def is_newest_kept(checkpoints: CheckpointSettings, state: JobStatus, *, is_stopped: bool) -> bool:
    """Return whether the newest checkpoint is still there when a job has ended.

    Args:
        checkpoints: The job's settings.
        state: Its last one, as in its view.
        is_stopped: Whether it was stopped in order, to be resumed.
    """
    if state is JobStatus.FINISHED:
        return is_stopped
    return state is not JobStatus.CANCELED or checkpoints.retain_on_cancellation


def clean_up_job(settings: JobSettings, view: JobView) -> None:
    """Delete what no restore of a job needs. Called once its end is recorded, and maybe again.

    A finished job needs none of its checkpoints, but for the last one if it was stopped; nor the snapshot that it
    claimed. Those of a canceled job go unless they are to stay, and what it claimed stays where it is. A failed job
    keeps what it retained. What stays keeps the epoch of its last leader, and loses those of the ones before.

    Args:
        settings: The job's.
        view: Its last word.

    Raises:
        CheckpointError: If the checkpoint that is to stay cannot be read; then nothing is deleted.
        StorageError: If the store fails; what is left then is deleted when this is called again.
    """
    checkpoints = settings.checkpoints
    if checkpoints is None:
        return
    has_finished = view.state is JobStatus.FINISHED
    is_kept = is_newest_kept(checkpoints, view.state, is_stopped=view.stopping is not None)
    owns = settings.restore_mode is RestoreMode.CLAIM and has_finished
    last = view.last_checkpoint if has_finished and view.stopping is not None else None
    if not is_kept or (has_finished and last is None):
        key_file = settings.checkpoint_key_file
        remove_checkpoints(checkpoints.directory, view.job_id, releases_claim=owns, key_file=key_file)
        return
    storage = CheckpointStorage.open(checkpoints.directory, view.job_id, settings.checkpoint_key_file)
    if last is None:
        storage.forget_old_epochs()
        return
    storage.keep_only(last)
    if owns:
        _release_claim(storage)


# ---------------------------------------------------------------------------------------------------------- savepoints
def begin_savepoint(root: str, epoch: int) -> None:
    """Make the folder of a savepoint, before any task is asked for its part: a place that is no good shows here.

    Args:
        root: The folder, which is used for nothing else.
        epoch: The leader's.

    Raises:
        StorageError, ConfigurationError: If nothing can be written there.
    """
    CheckpointStorage.at(root).claim_epoch(epoch)


def publish_savepoint(
    root: str,
    job: SubmitJob,
    epoch: int,
    checkpoint_id: int,
    timestamp_ms: int,
    snapshots: Sequence[OperatorSnapshot],
    enumerators: dict[OperatorId, Any],
    parallelism: Mapping[VertexId, int] | None = None,
) -> str | Fenced:
    """Make a savepoint complete, if this leader still leads the job before and after.

    Args:
        root: Its folder.
        job: The job.
        epoch: The publishing leader's.
        checkpoint_id: The savepoint's number among the job's checkpoints.
        timestamp_ms: When it was triggered.
        snapshots: Every operator subtask's part.
        enumerators: The split enumerators' parts.
        parallelism: How many subtasks each vertex had; None: as it was submitted. A rescale changes it.

    Returns:
        Its path, good for ``restore_from``; or that another leader has taken over, and then it is gone.

    Raises:
        CheckpointError: If it cannot be published.
        StorageError: If the store failed; whether the savepoint exists is not known then.
    """
    storage = CheckpointStorage.at(root, job.settings.checkpoint_key_file)
    settings = job.settings.checkpoints
    # A job without checkpoints has no lease; nothing of it is durable that another leader's savepoint could contradict.
    lease = None if settings is None else CheckpointStorage.open(settings.directory, job.job_id)
    manifest = Manifest(
        job_id=job.job_id,
        job_name=job.name,
        checkpoint_id=checkpoint_id,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        operators=_operator_states(job, snapshots, parallelism or {}),
        enumerators={str(uid): part for uid, part in enumerators.items()},
        kind=SAVEPOINT,
        plan=_plan_of(job),
    )
    if lease is not None and (highest := lease.highest_epoch()) > epoch:
        discard_folder(root)
        return Fenced(f"savepoint {checkpoint_id} of epoch {epoch} is not published: epoch {highest} has taken over")
    storage.publish(manifest, epoch)
    # Without any epoch the job has ended under another leader, and its folder has been deleted.
    if lease is not None and not 0 < (highest := lease.highest_epoch()) <= epoch:
        discard_folder(root)
        return Fenced(f"savepoint {checkpoint_id} of epoch {epoch} is withdrawn: epoch {highest} has taken over")
    return storage.uri


def discard_savepoint(root: str) -> None:
    """Delete what is there of a savepoint that was given up.

    Raises:
        StorageError: If the store fails.
    """
    discard_folder(root)
