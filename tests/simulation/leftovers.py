"""What a job that has ended may leave in the checkpoint store, judged when nothing of its cluster is alive.

* A finished job leaves nothing; one that was stopped leaves its last checkpoint, with what that names, and the epoch
  of its last leader, which keeps one that was left behind from publishing there.
* What cannot be prevented: a slot that is given up for dead may store a file when all is over, and a leader that is
  claim an epoch. So after runs with such processes there may be data that no manifest names, and epochs; never a
  manifest or a claim.
"""

from __future__ import annotations

from typing import Any

from headrace.actors.sim.faults import FaultPlan
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem

__all__ = ["check_job_store", "check_leftovers"]


def check_leftovers(
    seed: int, name: str, job: str, view: Any, faults: FaultPlan, *, has_bad_store: bool = False
) -> None:
    """Compare what a finished job has left with what it is to leave.

    Args:
        seed: For the message.
        name: Of the store.
        job: The job's id.
        view: Its last word.
        faults: What went wrong.
        has_bad_store: Whether the store failed now and then.
    """
    prefix = f"checkpoints/{job}/"
    left = {path.removeprefix(prefix) for path in MemoryFileSystem.named(name).files if path.startswith(prefix)}
    wanted: set[str] = set()
    if view.stopping is not None and view.last_checkpoint is not None:
        storage = CheckpointStorage.open(f"memory://{name}/checkpoints", job)
        manifest = storage.load(view.last_checkpoint)
        storage.verify(manifest)
        wanted = {f"manifests/chk-{view.last_checkpoint}.json", *(file.path for file in manifest.files())}
        epochs = sorted(path for path in left if path.startswith("epochs/"))
        assert epochs, f"seed {seed}: nothing keeps leaders that were left behind from publishing"
        wanted.add(epochs[-1])
    spare = left - wanted
    is_haunted = has_bad_store or faults.freezes or faults.stray_work or faults.late_kill
    allowed = ("epochs/",) if is_haunted else ()
    if is_haunted or faults.random_kills or faults.kills_at or faults.node_deaths:
        allowed += ("chk-", "shared/")  # of slots that outlive their TaskManager
    spare = {path for path in spare if not path.startswith(allowed)}
    assert not spare, f"seed {seed}: the job has ended and left {sorted(spare)[:5]}"


def check_job_store(seed: int, name: str) -> None:
    """All jobs of the cluster have ended and been cleaned up after: no leader has to do that again."""
    left = [path for path in MemoryFileSystem.named(name).files if path.endswith("/submission")]
    assert not left, f"seed {seed}: {left[0]} was not cleaned up after"
