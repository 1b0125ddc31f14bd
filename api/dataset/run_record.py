"""What is known of a run of a data set, as a view of a job: for a cluster that shows it, and for who has started it.

What may be stored by a cluster is without secrets and half characters, and not too long. Who has started a run is shown
it as a job over streams, see `headrace.jobs.progress`: a thread looks at its watch a few times a second. A run that is
over sooner than it is worth a look, as many a ``count()``, is not shown, unless the program has said who is to be told.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace.engine.errors import JobCanceledError
from headrace.engine.functions.accumulators import AccumulatorPart
from headrace.engine.plan.run_watch import RunWatch
from headrace.engine.protocol.states import JobStatus, StageState
from headrace.engine.protocol.views import FailureView, JobView, StageView
from headrace.state.credentials import masked
from headrace.state.identifiers import JobId

from ..jobs.progress import JobStart, NotebookProgress, Progress, ProgressListener, default_progress

__all__ = ["MOST_CHARACTERS", "MOST_CHARACTERS_OF_NAME", "RunRecord", "listener_of", "now_ms", "sent", "showing"]

MOST_CHARACTERS = 100_000
"""Of a plan, and of a failure; and bytes of an accumulator, else it is left out: all lists of jobs have it."""

MOST_CHARACTERS_OF_NAME = 1_000

LOOK_S = 0.2

NOT_SHOWN_S = 0.5
"""Runs that are over by then are not shown where nobody has asked for it."""


def now_ms() -> int:
    """Return epoch milliseconds."""
    return time.time_ns() // 1_000_000


def sent(text: str, most_characters: int) -> str:
    """Return a text of the user's as it can be stored: without secrets and half characters, and not too long."""
    return masked(text[:most_characters]).encode("utf-8", "replace").decode()


class RunRecord:
    """One run, from now to its end.

    Args:
        name: Its name.
        watch: What it does.
    """

    def __init__(self, name: str, watch: RunWatch) -> None:
        self.watch = watch
        self.job_id = JobId(uuid.uuid4().hex)
        self.name = sent(name, MOST_CHARACTERS_OF_NAME)
        # What functions have counted; known once the run is over.
        self.accumulators: Mapping[str, tuple[AccumulatorPart, ...]] = {}
        self._started_ms = now_ms()
        self._ended_ms: int | None = None
        self._state = JobStatus.RUNNING
        self._failure: FailureView | None = None
        self._canceled_ms: int | None = None
        # Grows with each view.
        self._version = 0

    def end(self, error: BaseException | None) -> None:
        """Note how it ended; the first word counts."""
        if self._ended_ms is not None:
            return
        at_ms = self._ended_ms = now_ms()
        self._state = JobStatus.FINISHED
        if error is not None:
            self.watch.has_failed()
            is_canceled = isinstance(error, (JobCanceledError, KeyboardInterrupt))
            self._state = JobStatus.CANCELED if is_canceled else JobStatus.FAILED
            if not is_canceled:
                self._failure = FailureView(at_ms, type(error).__name__, sent(_text_of(error), MOST_CHARACTERS))

    def cancel(self) -> None:
        """Have it end, as somebody wants; once."""
        if self._canceled_ms is None:
            self._canceled_ms = now_ms()
            self.watch.cancel()

    def view(self) -> JobView:
        """Return how it stands."""
        self._version += 1
        state, failure, ended_ms = self._state, self._failure, self._ended_ms
        entered_ms = {JobStatus.RUNNING.value: self._started_ms}
        if self._canceled_ms is not None:
            state = JobStatus.CANCELLING if ended_ms is None else state
            entered_ms[JobStatus.CANCELLING.value] = self._canceled_ms
        if ended_ms is not None:
            entered_ms[state.value] = ended_ms
        stages = [replace(one, name=sent(one.name, MOST_CHARACTERS_OF_NAME)) for one in self.watch.stages]
        if ended_ms is None:
            stages = [_so_far(stage) for stage in stages]
        if state is JobStatus.CANCELED:  # which is what an executor takes for a failure of what ran
            stages = [
                replace(one, state=StageState.CANCELED) if one.state is StageState.FAILED else one for one in stages
            ]
        return JobView(
            job_id=self.job_id,
            name=self.name,
            state=state,
            version=self._version,
            started_ms=self._started_ms,
            ended_ms=ended_ms,
            failure=None if failure is None else failure.text,
            accumulators=_sent_accumulators(self.accumulators),
            entered_ms=entered_ms,
            failures=() if failure is None else (failure,),
            stages=tuple(stages),
            num_stages_left_out=self.watch.num_left_out,
        )


def _so_far(stage: StageView) -> StageView:
    """A stage with how long it takes so far; in process that is told at its end only."""
    if stage.state is not StageState.RUNNING or not stage.started_ms:
        return stage
    return replace(stage, duration_ms=max(stage.duration_ms, now_ms() - stage.started_ms))


def _sent_accumulators(
    accumulators: Mapping[str, tuple[AccumulatorPart, ...]],
) -> dict[str, tuple[AccumulatorPart, ...]]:
    """Return those that are small: lists of what a run has seen are its program's."""
    sizes = {
        name: sum(len(part.content) for part in parts if isinstance(part.content, bytes))
        for name, parts in accumulators.items()
    }
    return {name: parts for name, parts in accumulators.items() if sizes[name] <= MOST_CHARACTERS}


def _text_of(error: BaseException) -> str:
    try:
        return str(error) or repr(error)
    except Exception:  # it is the user's, as is how it says what it is
        return f"{type(error).__name__}, which cannot say more"


def listener_of(wanted: ProgressListener | None) -> tuple[ProgressListener | None, float]:
    """Return who is told of a run, and how many seconds behind its beginning at the earliest.

    In a notebook nobody is unless it was said: a cell shows what its data set comes to.
    """
    if wanted is not None:
        return wanted, 0.0
    found = default_progress()
    return (None if isinstance(found, NotebookProgress) else found), NOT_SHOWN_S


@contextlib.contextmanager
def showing(run: RunRecord, listener: ProgressListener, since_s: float) -> Iterator[None]:
    """Tell of the run in the block, up to its end."""
    update = listener.update if isinstance(listener, Progress) else listener
    is_over, is_shown = threading.Event(), since_s == 0

    def begin() -> None:
        if isinstance(listener, Progress):
            listener.begins(JobStart(run.job_id, run.name, ()))

    def follow() -> None:
        nonlocal is_shown
        if is_over.wait(since_s):
            return
        if not is_shown:
            begin()
            is_shown = True
        while not is_over.wait(LOOK_S):
            update(run.view())

    if is_shown:
        begin()
    follower = threading.Thread(target=follow, name="headrace-dataset-progress", daemon=True)
    follower.start()
    try:
        yield
    except BaseException as error:
        run.end(error)
        raise
    else:
        run.end(None)
    finally:
        is_over.set()
        follower.join()
        if is_shown:
            update(run.view())
