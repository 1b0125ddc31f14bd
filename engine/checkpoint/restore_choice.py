"""Which checkpoint of its own a job goes on from, and what must not be passed over in silence.

It is the newest complete one. That it is the newest is not left to the store's listing: what was complete is remembered
by the JobManager, by its successor through the Dispatcher, and in notes of the job's folder
(`headrace.state.checkpoints.completions`). With a checkpoint sinks make output public; so when the newest one is
damaged or gone, an older one, or nothing, would write that output again.

* The newest one is sound: it is taken.
* It is damaged or gone, and an older one is sound: that one is taken if the caller allows it, and says so.
* None is left: an error. A job with a past never starts from nothing.
* What is damaged and was never told to anybody, as the leader died while it was published, counts for nothing.

A listing may lie for a moment, so one that is not listed is looked for by its name, and the one that gets
`CheckpointLostError` should look again after a while.

What the sinks of a job have to do with it: one that goes on from an older checkpoint produces its output again, in
other transactions and maybe in another order, so what is there already cannot be told record by record. What can be
told is that *nothing* was committed behind the older one. A sink that can find that out says so
(`SupportsCommitProof`); its subtasks are asked once earlier attempts are shut out. A sink without a committer promises
nothing that a repetition would break.

Source: Flink's ``DefaultCompletedCheckpointStore``, which recovers from pointers that are kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.storage import CheckpointStorage

from ..errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointLostError,
    CheckpointNotFoundError,
    SupersededError,
)
from ..graph.job_graph import JobGraph

__all__ = ["Choice", "JobPast", "check_folder", "choose_checkpoint", "may_pass_over", "with_public_output"]

_HINT = "start the program anew from a checkpoint or savepoint that is there, with restore_from"


@dataclass(frozen=True, slots=True)
class JobPast:
    """What is known of a job's checkpoints, apart from the store.

    Attributes:
        newest: The newest one that was complete; 0 if none is known.
        has_run: Whether an earlier leader has run the job: its folder must be there.
        damaged: What tasks found damaged when they restored it, by id: what was wrong.
        given_up: Those that this leader has told its tasks will never complete.
        may_pass_over: Whether the newest one may be passed over if it is damaged or gone.
    """

    newest: int = 0
    has_run: bool = False
    damaged: Mapping[int, str] = field(default_factory=dict)
    given_up: frozenset[int] = frozenset()
    may_pass_over: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen.

    Attributes:
        manifest: The checkpoint; None if the job has none.
        passed_over: What is wrong with newer ones that were complete.
    """

    manifest: Manifest | None
    passed_over: tuple[str, ...] = ()


def check_folder(storage: CheckpointStorage, past: JobPast, epoch: int) -> None:
    """See that a job's folder is there if it must be, before anything is written to it.

    Args:
        storage: The folder.
        past: What is known.
        epoch: The leader's own, if it has claimed it; else 0.

    Raises:
        CheckpointLostError: If it is gone.
        SupersededError: If the leader's own epoch is: whatever else is there, it can publish nothing any more.
    """
    highest = storage.highest_epoch()
    if highest < epoch:
        message = f"epoch {epoch}, under which this leader runs, is gone from the store"
        raise SupersededError(message, path=storage.uri)
    if highest or not (past.has_run or past.newest) or storage.list_complete():
        return
    if past.newest:
        message = f"checkpoint {past.newest} was complete, and the store has none: the job's folder is gone"
    else:
        message = "the job has run, and its folder in the checkpoint store is gone"
    raise CheckpointLostError(message, hint=_HINT, path=storage.uri)


def choose_checkpoint(storage: CheckpointStorage, past: JobPast) -> Choice:
    """Find the checkpoint to go on from.

    Args:
        storage: The job's folder.
        past: What is known of its checkpoints besides.

    Raises:
        CheckpointLostError: If the newest one is gone, and none is left or none may be passed over.
        CheckpointCorruptError: The same of one that is damaged.
        CheckpointMismatchError: If it is of another format version.
    """
    noted = [checkpoint_id for checkpoint_id in storage.completions.noted() if checkpoint_id not in past.given_up]
    newest = max([past.newest, *noted])
    listed = [checkpoint_id for checkpoint_id in storage.list_complete() if checkpoint_id not in past.given_up]
    if newest > max(listed, default=0):
        listed.append(newest)  # not listed: asked for by its name
    elif newest == 0:
        newest = max(listed, default=0)  # a folder without notes: its writer told of all
    damaged: dict[int, CheckpointCorruptError] = {}
    manifest: Manifest | None = None
    for checkpoint_id in reversed(listed):
        try:
            manifest = _load(storage, checkpoint_id, past)
            break
        except CheckpointNotFoundError:
            continue  # a newer one has made it needless meanwhile, or it is lost: told apart below
        except CheckpointCorruptError as error:
            damaged[checkpoint_id] = error
    if newest == 0 or (manifest is not None and manifest.checkpoint_id >= newest):
        return Choice(manifest)
    problem = _error(storage, newest, damaged, manifest)
    if manifest is None or not past.may_pass_over:
        raise problem
    return Choice(manifest, (problem.message,))


def _load(storage: CheckpointStorage, checkpoint_id: int, past: JobPast) -> Manifest:
    reason = past.damaged.get(checkpoint_id)
    if reason is not None:
        raise CheckpointCorruptError(reason, path=storage.manifest_uri(checkpoint_id))
    return storage.load(checkpoint_id)


def _error(
    storage: CheckpointStorage, newest: int, damaged: Mapping[int, CheckpointCorruptError], older: Manifest | None
) -> CheckpointCorruptError | CheckpointLostError:
    found = damaged.get(newest)
    if found is not None:
        message = f"checkpoint {newest} is damaged: {found.message}"
        if older is None:
            message = f"none of the job's checkpoints can be restored; {message}"
        return CheckpointCorruptError(message, hint=_HINT, **{"path": storage.uri, **found.context})
    if older is not None:
        rest = f"; the newest one there is checkpoint {older.checkpoint_id}"
    else:
        rest = f"; checkpoint {max(damaged)} is damaged" if damaged else ""
    has = "has none" if older is None and not damaged else "does not have it"
    message = f"checkpoint {newest} was complete, and the store {has}{rest}"
    return CheckpointLostError(message, hint=_HINT, path=storage.uri)


# --------------------------------------------------------------------------------------------------------------- sinks
def may_pass_over(job_graph: JobGraph) -> bool:
    """Return whether every sink that commits can prove what it has committed, so that it depends on what they find."""
    return not _sinks(job_graph, only_unproven=True)


def with_public_output(error: CheckpointError, job_graph: JobGraph) -> CheckpointError:
    """Say beside what is wrong with the newest checkpoint which output was made public with it.

    Args:
        error: What is wrong.
        job_graph: The job.
    """
    context = dict(error.context)
    nodes = {str(node.uid): node.name for vertex in job_graph.vertices.values() for node in vertex.chain}
    if context.get("operator") in nodes:
        context["operator"] = nodes[context["operator"]]
    sinks = _sinks(job_graph, only_unproven=False)
    if not sinks:
        return type(error)(error.message, hint=error.hint, **context)
    names = ", ".join(f'"{name}"' for name in sinks)
    message = f"{error.message}; what it committed is public, in {names}, and would be written again"
    hint = error.hint
    if isinstance(error, CheckpointCorruptError) or hint is None:
        hint = "restore the checkpoint's files; or start anew from another one, with restore_from; or choose"
        hint += " set_damaged_checkpoint_policy(FALL_BACK_AT_LEAST_ONCE)"
    return type(error)(message, hint=hint, **context)


def _sinks(job_graph: JobGraph, *, only_unproven: bool) -> list[str]:
    """The names of the sinks that commit, in order."""
    nodes = [node for vertex in job_graph.vertices.values() for node in vertex.chain]
    return [
        node.name for node in nodes if node.operator.commits and not (only_unproven and node.operator.proves_commits)
    ]
