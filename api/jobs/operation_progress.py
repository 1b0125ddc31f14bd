"""How far a job is with something that somebody waits for: a line on a terminal, as long as a checkpoint, stop or
rescale takes.

What is told is what the job's CheckpointCoordinator knows: who has acknowledged, and how large their state is. A
subtask that still writes is told of once it is done, so the line stands still while the last one writes a large state.
The job is looked at by Ray or by REST; what is shown is the same.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headrace.engine.errors import HeadraceError
from headrace.engine.protocol.details import CheckpointProgress
from headrace.engine.protocol.messages import FetchPendingCheckpoints, WaitForJob
from headrace.engine.protocol.views import JobView
from headrace.state.keyed.managed_memory import bytes_text

if TYPE_CHECKING:
    from rich.live import Live

    from headrace.engine.protocol.asks_jobs import AsksJobs
    from headrace.state.identifiers import JobId

__all__ = ["Look", "look_at", "operation_line", "operation_shown"]

REFRESH_S = 0.5
ANSWER_MS = 5_000
ENDING_S = 1.0
"""How long the end of the thread that asks is waited for."""

Look: TypeAlias = Callable[[], tuple[Sequence[CheckpointProgress], JobView]]
"""Looks at a job: its checkpoints under way, newest first, and the job as it is. Called in another thread."""


def look_at(cluster: AsksJobs, job_id: JobId) -> Look:
    """Return what looks at a job of a cluster that is asked itself."""

    def look() -> tuple[Sequence[CheckpointProgress], JobView]:
        pending = cluster.ask_job(job_id, FetchPendingCheckpoints(), ANSWER_MS)
        return [one.progress for one in pending], cluster.ask_job(job_id, WaitForJob(-1, 0), ANSWER_MS)

    return look


@contextlib.contextmanager
def operation_shown(look: Look, what: str, *, is_quiet: bool) -> Iterator[None]:
    """Show on standard error how far the job is with something, while the block waits for it.

    Args:
        look: Looks at the job.
        what: What goes on, as ``savepoint`` or ``stop``.
        is_quiet: Whether nothing is shown; so it is where standard error is no terminal.
    """
    if is_quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    has_ended = threading.Event()
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        arguments = (live, look, what, has_ended)
        follower = threading.Thread(target=_follow, args=arguments, name="headrace-operation", daemon=True)
        follower.start()
        try:
            yield
        finally:
            has_ended.set()
            follower.join(ENDING_S)


def _follow(live: Live, look: Look, what: str, has_ended: threading.Event) -> None:
    from rich.text import Text

    began_s = time.monotonic()
    while not has_ended.wait(REFRESH_S):
        try:
            pending, view = look()
        except HeadraceError:
            continue  # it is between two JobManagers, or has ended: the command itself says how it ends
        if not has_ended.is_set():
            line = operation_line(what, pending, view, time.monotonic() - began_s)
            live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


def operation_line(what: str, pending: Sequence[CheckpointProgress], view: JobView, elapsed_s: float) -> str:
    """Return how far an operation is, on one line.

    Args:
        what: What goes on.
        pending: Checkpoints under way, newest first.
        view: The job.
        elapsed_s: How long it has taken so far.
    """
    parts = [f"{what}: job is {view.state}"]
    if view.waiting is not None:
        parts.append(f"waits for slots: {view.waiting}")
    # Of several the one that the operation waits for: savepoints and the last one stand behind no other.
    checkpoint = next((one for one in pending if one.is_savepoint or one.is_last), pending[0] if pending else None)
    if checkpoint is not None:
        parts.append(_checkpoint_text(checkpoint))
    return " | ".join([*parts, f"{elapsed_s:.0f} s"])


def _checkpoint_text(one: CheckpointProgress) -> str:
    name = f"{'savepoint' if one.is_savepoint else 'checkpoint'} {one.checkpoint_id}"
    if not one.num_subtasks:
        return f"{name} begins"
    done = f"{one.num_acknowledged} of {one.num_subtasks} subtasks"
    return f"{name}: {done}, {bytes_text(one.state_bytes)} of state, {bytes_text(one.uploaded_bytes)} written"
