"""The client's hold on a submitted job: its status, its end, its reports.

A `JobClient` asks; it decides nothing. How it follows a job is in `headrace.jobs.conversation`. How a job ended becomes
a `JobExecutionResult` or a typed error here, with the failure that ended it as its cause.

Source: PyFlink's ``JobClient`` and ``JobStatus``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import InternalError, JobCanceledError, JobError, JobFailedError
from headrace.engine.functions.accumulators import accumulated_value
from headrace.engine.functions.tracebacks import without_engine_frames
from headrace.engine.kernel.event_log import FetchStory
from headrace.engine.protocol.asks_jobs import AsksJobs
from headrace.engine.protocol.messages import (
    CancelJob,
    FailTaskOnPurpose,
    FetchJobDetails,
    KillSlotOnPurpose,
    RescaleJob,
    StopJob,
    TakeCheckpoint,
)
from headrace.engine.protocol.savepoint_messages import (
    SavepointState,
    SavepointStatus,
    StopWithSavepoint,
    TriggerSavepoint,
)
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView, StopMode
from headrace.state.identifiers import JobId, OperatorId

from ..arguments.places import lasting_place
from .conversation import ASK_TIMEOUT_MS, PATIENCE_MS, POLL_MS, JobConversation, ReportListener
from .event_time import explain_event_time
from .execution_result import JobExecutionResult
from .progress import ProgressListener, render_html

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from headrace.engine.protocol.details import JobDetails

    from .attendance import Attendance
    from .notebook_output import LiveOutput

__all__ = [
    "JobClient",
    "JobStatus",
    "ProgressListener",
    "ReportListener",
    "print_report",
]

_SAVEPOINT_POLL_MS = 1_000
"""Longest wait of one question after a savepoint."""


def print_report(_operator: OperatorId, _subtask: int, lines: Any) -> None:
    """Write the lines that a print sink reports to standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


class JobClient:
    """One submitted job. Made by ``execute_async``; may be used from several threads.

    Args:
        cluster: Where the job runs.
        job_id: The job.
        job_name: Its name, for errors.
        on_progress: Told each new view while somebody waits.
        delivery: What each of its sinks guarantees, a line each.
        on_report: Who is told which reports, by their name (``print``, ``collect``).
        attendance: Asks at a terminal what Ctrl-C is to do while the job's end is waited for.
    """

    def __init__(
        self,
        cluster: AsksJobs,
        job_id: JobId,
        job_name: str,
        *,
        on_progress: ProgressListener | None = None,
        delivery: tuple[str, ...] = (),
        on_report: dict[str, ReportListener] | None = None,
        attendance: Attendance | None = None,
    ) -> None:
        self._cluster = cluster
        self._job_id = job_id
        self._job_name = job_name
        self._delivery = delivery
        self.earlier: JobClient | None = None
        """In a notebook the client of the job of this name that still ran when this one was started; else None."""
        self._conversation = JobConversation(cluster, job_id, on_progress, on_report or {})
        self._attendance = attendance

    def get_job_id(self) -> JobId:
        """Return the job's id."""
        return self._job_id

    def get_job_status(self) -> JobStatus:
        """Return the job's state now."""
        return self.view().state

    def view(self) -> JobView:
        """Return everything that is known of the job now."""
        return self._conversation.poll(0)

    def live(self) -> LiveOutput:
        """Show the job's progress below a cell of a notebook until it has ended; the kernel stays free.

        Raises:
            ProgramError: Outside of a notebook.
        """
        from .notebook_output import LiveOutput

        self._conversation.on_progress = None  # it is shown here from now on

        def look() -> tuple[str, bool]:
            view = self.view()
            return render_html(view, self._delivery), view.state.is_terminal

        return LiveOutput(self, look, self.cancel)

    def _repr_html_(self) -> str:
        return render_html(self.view(), self._delivery)

    def get_accumulators(self) -> dict[str, Any]:
        """Return the values of all accumulators now, as the subtasks that run have last reported them.

        Raises:
            ProgramError: If operators have accumulators of different kinds under one name.
        """
        return {name: accumulated_value(name, parts) for name, parts in self.view().accumulators.items()}

    def views(self) -> Iterator[JobView]:
        """Follow the job: each new view as it comes (at least one every 200 ms), the last one once it has ended."""
        while True:
            view = self._conversation.poll(POLL_MS)
            yield view
            if view.state.is_terminal:
                return

    def checkpoints(self) -> pd.DataFrame:
        """Return the newest checkpoints and savepoints that have ended, as a data frame of pandas, oldest first.

        By their numbers: ``status``, ``is_savepoint``, ``triggered``, ``duration_ms``, bytes (``state_bytes``,
        ``uploaded_bytes``, ``persisted_bytes``) of all subtasks, ``alignment_ms``, ``sync_ms`` and ``async_ms`` of the
        slowest one, ``num_subtasks``, ``num_acknowledged``, ``num_unaligned``, ``path``, and ``reason`` of a failure.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        from .frames import checkpoint_frame

        return checkpoint_frame(self._details().checkpoints.history)

    def metrics(self) -> pd.DataFrame:
        """Return what the operator chains have last reported, as a data frame of pandas, in the order of the program.

        By their ids: ``operators``, ``parallelism``, ``records_in`` and ``records_out`` of the present attempts, both
        per second, shares of time (``busy``, ``idle``, ``backpressured``, 0 to 1), ``watermark``, and sums of the
        operators' own counters by their names, such as ``num_late_records_dropped``.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        from .frames import metrics_frame

        return metrics_frame(self.view().vertices)

    def plot(self) -> LiveOutput:
        """Draw below a cell of a notebook how the job goes on, until it has ended; the kernel stays free.

        There are the records that operator chains read per second, how far their event time is behind the clock, and
        how long checkpoints took. ``stop()`` of what is returned ends the drawing, not the job.

        Raises:
            ProgramError: Outside of a notebook.
        """
        from .job_plot import JobPlot
        from .notebook_output import LiveOutput

        drawn, is_stopped = JobPlot(), threading.Event()

        def look() -> tuple[str, bool]:
            view = self.view()
            if drawn.is_due(now := time.time()):
                drawn.take(view, self._details().checkpoints.history, now)
            return drawn.html(), is_stopped.is_set() or view.state.is_terminal

        return LiveOutput(self, look, is_stopped.set)

    def _details(self) -> JobDetails:
        details: JobDetails = self._conversation.ask(FetchJobDetails(vertices=()))
        return details

    def explain_event_time(self) -> str:
        """Say why windows do not fire: what waits for event time, and which split holds it back, since when.

        What subtasks say is as old as their last report, a second at most.
        """
        return explain_event_time(self.view())

    def story(self, about: str = "") -> list[str]:
        """Return what the job's JobManager remembers of the last events, oldest first: transitions of the job and its
        tasks.

        Args:
            about: What it is about: ``job``, the name of a TaskManager, or of operators that are chained, as
                in ``view().vertices``, maybe with a subtask (``map[2]``); empty for all.

        Returns:
            One line an event, of keys and values; see ``docs/guide/clusters.md``.

        Raises:
            JobError: If the job has ended, and its JobManager is gone.
        """
        lines: list[str] = self._conversation.ask(FetchStory(about))
        return lines

    def kill_slot(self, index: int = 0) -> str:
        """Kill the process of one slot, to see the job recover from it.

        Args:
            index: Which of ``view().slots``.

        Returns:
            The name of the killed process's host.
        """
        return str(self._conversation.ask(KillSlotOnPurpose(index)))

    def fail_task(self, operator: str, subtask: int = 0, reason: str = "by request") -> str:
        """Have one task fail as if its program had, to see the job recover from it.

        Args:
            operator: Uid or name of an operator of the task.
            subtask: Which of its subtasks, from 0.
            reason: For the job's history and the failure's text.

        Returns:
            The id of the attempt that is to fail.

        Raises:
            ConfigurationError: If there is no such task, or it does not run.
        """
        request = FailTaskOnPurpose(operator, subtask, reason)
        return str(self._conversation.ask(request))

    def rescale(
        self,
        parallelism: int | Mapping[str, int] | None = None,
        operators: Mapping[str, int] | None = None,
        *,
        timeout: float = 600.0,
    ) -> None:
        """Run the job on at another parallelism; returns when all its tasks run with it.

        The job goes on as it is until the slots are there and a fresh checkpoint is complete, and is then restarted
        from that: its state is dealt out anew, and nothing is lost or doubled. Slots that are no longer needed are
        given back. It keeps the new parallelism through all failures; a run that is started from one of its
        checkpoints has the program's again. May be asked again.

        Args:
            parallelism: For all operators that can be parallel; or, as a mapping, for single ones.
            operators: By operator uid or name, in addition to (and instead of) ``parallelism``. Operators that are
                chained have one parallelism, those of a loop, too.
            timeout: Seconds to wait for the end.

        Raises:
            ConfigurationError: If the job takes no checkpoints, or cannot be rescaled like that.
            NoResourceAvailableError: If there are not enough slots; the job goes on as it was.
            CheckpointError: If the checkpoint failed; the same.
            JobError: If the job has ended, or is about to.
            ClusterUnavailableError: If the end is not heard of in time.

        Source:
            Flink's ``PUT /jobs/:id/resource-requirements``.
        """
        named: dict[str, int] = dict(operators or {})
        if isinstance(parallelism, Mapping):
            named = {**parallelism, **named}
            parallelism = None
        self._conversation.ask(RescaleJob(parallelism, named), int(timeout * 1_000))
        self._conversation.poll(0)

    def query_state(
        self,
        operator: str,
        state: str,
        keys: Iterable[Any],
        *,
        window: tuple[int, int] | None = None,
        consistency: str = "live",
        timeout: float = 10.0,
        allow_pickle: bool = False,
    ) -> pa.Table:
        """Ask the running job what its state holds for some keys.

        See `headrace.actors.clients.state_queries.query_state`.
        """
        from headrace.actors.clients.state_queries import query_state

        return query_state(
            self._cluster,
            self._job_id,
            operator,
            state,
            keys,
            window=window,
            consistency=consistency,
            timeout=timeout,
            allow_pickle=allow_pickle,
        )

    def cancel(self) -> None:
        """Cancel the job; returns when it has ended, in whatever state."""
        with self._conversation.lock:
            while not self._conversation.ask(CancelJob()):
                self._conversation.poll(POLL_MS)
            self._conversation.poll(0)

    def stop(self, *, drain: bool = False, timeout: float | None = None) -> str | None:
        """End the job in order, losing nothing; returns when it has ended.

        Its sources stop reading at once, whatever they are; what they have read is processed, a last checkpoint is
        taken and committed, and the job is FINISHED. That checkpoint is kept. A later run that starts from it
        (``from_checkpoint=``, or ``HEADRACE_RESTORE_FROM``) goes on as if there had been no pause: windows and timers
        that were open are in it.

        A failure meanwhile restarts the job as usual, and then it stops. Asking again for the same is harmless.

        Args:
            drain: Whether to act as if all input had ended: windows and timers fire before the last checkpoint. For a
                job that is not to be continued: a run that starts from that checkpoint reads on where this one
                stopped, but a window that fired half-full will fire again with the rest.
            timeout: Seconds; None waits without end.

        Returns:
            Path of the last checkpoint. None if the job takes none (then it can only be drained), or had ended by
            itself before it heard of this.

        Raises:
            ConfigurationError: If it takes no checkpoints and is not to be drained; if it is being stopped in the other
                way already.
            JobFailedError, JobCanceledError: If it ended like that instead.
            TimeoutError: If it has not ended in time; it goes on stopping.

        Source:
            Flink's ``stopWithSavepoint``; here the state goes into a checkpoint. With a savepoint: see
            `stop_with_savepoint`.
        """
        mode = StopMode.DRAIN if drain else StopMode.SUSPEND
        deadline = None if timeout is None else time.monotonic() + timeout
        view = self._conversation.poll(0)
        while not view.state.is_terminal:
            if view.stopping is not mode:  # not asked for yet, or the present leader has not heard of it
                self._conversation.ask(StopJob(mode))
            view = self._conversation.poll(POLL_MS)
            if deadline is not None and time.monotonic() >= deadline and not view.state.is_terminal:
                message = f"job {self._job_name!r} is still {view.state} after {timeout} s"
                raise TimeoutError(message)
        self.result()
        return None if view.stopping is None else view.last_checkpoint_path

    def trigger_checkpoint(self, *, full: bool = False, timeout: float = 600.0) -> str:
        """Take a checkpoint now, whether or not one is due; returns when it is complete, and output committed by it.

        A job that is being started or restarted is waited for. One that is under way is not meant: another one is taken
        behind it.

        Args:
            full: Whether it holds all state itself, instead of naming files of checkpoints before it again.
            timeout: Seconds.

        Returns:
            Its path.

        Raises:
            ConfigurationError: If the job takes no checkpoints.
            CheckpointError: If it came to nothing; the job goes on.
            JobError: If the job has ended.
            TimeoutError: If the job does not run in time.
            ClusterUnavailableError: If the end is not heard of in time.

        Source:
            Flink's ``POST /jobs/:jobid/checkpoints`` and ``flink checkpoint``; FLIP-226.
        """
        self._wait_until_running(time.monotonic() + timeout)
        timeout_ms = int(timeout * 1_000)
        return str(self._conversation.ask(TakeCheckpoint(full, timeout_ms), timeout_ms).path)

    def trigger_savepoint(
        self, directory: str | os.PathLike[str] | None = None, *, timeout: float | None = None
    ) -> str:
        """Take a savepoint while the job goes on; returns when it is there.

        It holds all state and positions, belongs to the user, and can be moved as a whole; nothing deletes it but
        `headrace.dispose_savepoint`. It commits nothing: what sinks have prepared in it is committed by the job that
        goes on from it, and by this job in its own time. So start another job from it only once this one has ended, or
        into other outputs.

        A job that is being started or restarted is waited for.

        Args:
            directory: Below which its folder is made: a path or a URI that all machines reach. None
                takes the job's default (``set_default_savepoint_directory``).
            timeout: Seconds; None waits for as long as it takes: it is given up after the checkpoint timeout.

        Returns:
            Its path, good for ``from_savepoint``.

        Raises:
            ConfigurationError: If no directory is named and the job has no default.
            SavepointError: If it was not taken, e.g. because the job failed meanwhile, has ended, is being stopped, or
                nothing can be written there. The job goes on.
            JobError: If the job has ended.
            TimeoutError: If it is not there in time; it may still come to be.

        Source:
            Flink's ``triggerSavepoint``; FLIP-203.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._wait_until_running(deadline)
        request = TriggerSavepoint(uuid.uuid4().hex, _savepoint_place(directory), _SAVEPOINT_POLL_MS)
        return self._follow_savepoint(request, deadline)

    def stop_with_savepoint(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        drain: bool = False,
        timeout: float | None = None,
    ) -> str:
        """End the job in order with a savepoint, losing nothing; returns when it has ended.

        Its sources stop reading, what they have read is processed, the savepoint is taken, output is committed and the
        job is FINISHED; its own checkpoints are deleted. A job that is being started or restarted is waited for.

        If anything fails before that, the stop is given up and the job goes on from its newest checkpoint.

        Args:
            directory: As of `trigger_savepoint`.
            drain: Whether to act as if all input had ended: windows and timers fire first. See `stop`.
            timeout: Seconds; None waits without end.

        Returns:
            The savepoint's path.

        Raises:
            ConfigurationError: If no directory is named and the job has no default.
            SavepointError: If it was not stopped; the text says why, and whether there is a savepoint.
            JobError: If it has ended otherwise.
            TimeoutError: If it has not ended in time; it goes on stopping.

        Source:
            Flink's ``stopWithSavepoint``; FLIP-34.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._wait_until_running(deadline)
        request = StopWithSavepoint(
            uuid.uuid4().hex,
            _savepoint_place(directory),
            drain,
            _SAVEPOINT_POLL_MS,
        )
        try:
            path = self._follow_savepoint(request, deadline)
        except JobError:
            # Its JobManager is gone. Maybe it was stopped by this, and only the answer was lost.
            view = self._conversation.poll(0)
            if view.savepoint_path is None:
                raise
            path = view.savepoint_path
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return path

    def _wait_until_running(self, deadline: float | None) -> None:
        view = self._conversation.poll(0)
        while view.state in (JobStatus.CREATED, JobStatus.RESTARTING):
            if deadline is not None and time.monotonic() >= deadline:
                message = f"job {self._job_name!r} is still {view.state}"
                raise TimeoutError(message)
            view = self._conversation.poll(POLL_MS)

    def _follow_savepoint(self, request: TriggerSavepoint | StopWithSavepoint, deadline: float | None) -> str:
        """Ask until it is decided; gives the path."""
        while True:
            status: SavepointStatus = self._conversation.ask(request, request.timeout_ms + ASK_TIMEOUT_MS)
            if status.error is not None:
                raise status.error
            if status.state is SavepointState.COMPLETE:
                if status.path is None:
                    message = "a complete savepoint has no path"
                    raise InternalError(message, job=self._job_id)
                return status.path
            if deadline is not None and time.monotonic() >= deadline:
                message = f"the savepoint of job {self._job_name!r} is not there in time"
                raise TimeoutError(message)
            request = replace(request, epoch=status.epoch)

    def wait(self, timeout: float | None = None) -> JobView:
        """Wait until the job has ended, in whatever state.

        Args:
            timeout: Seconds; None waits without end.

        Raises:
            TimeoutError: If it has not ended by then; it goes on.
        """
        if timeout is None and self._attendance is not None and self._attendance.may_ask:
            return self._attendance.wait(self)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left_ms = POLL_MS if deadline is None else int((deadline - time.monotonic()) * 1_000)
            patience_ms = PATIENCE_MS if deadline is None else min(PATIENCE_MS, max(ASK_TIMEOUT_MS, left_ms))
            view = self._conversation.poll(max(0, min(POLL_MS, left_ms)), patience_ms)
            if view.state.is_terminal:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                message = f"job {self._job_name!r} is still {view.state} after {timeout} s"
                raise TimeoutError(message)

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the job's end and say how it went.

        Args:
            timeout: Seconds; None waits without end.

        Raises:
            JobFailedError: If it failed; what ended it is in its text and, where it is known, its ``__cause__``.
            JobCanceledError: If it was canceled.
            TimeoutError: If it has not ended in time.
        """
        view = self.wait(timeout)
        if view.state == JobStatus.CANCELED:
            message = f"job {self._job_name!r} was canceled"
            raise JobCanceledError(message, job=self._job_id)
        if view.state == JobStatus.FAILED:
            # The cause is part of the message, as its text may be many lines: a user function's traceback.
            message = f"job {self._job_name!r} failed: {view.failure or view.error}"
            first = view.error.__cause__ if isinstance(view.error, JobFailedError) else view.error
            raise JobFailedError(message) from without_engine_frames(first)
        ended_ms = view.started_ms if view.ended_ms is None else view.ended_ms
        return JobExecutionResult(
            self._job_id, view.name, ended_ms - view.started_ms, view.num_restarts, view.checkpoints_completed, view
        )

    def get_job_execution_result(self) -> JobExecutionResult:
        """PyFlink's name for `result`."""
        return self.result()

    def __await__(self) -> Generator[Any, None, JobExecutionResult]:
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        return f"JobClient({self._job_name!r}, {self._job_id})"


def _savepoint_place(directory: str | os.PathLike[str] | None) -> str | None:
    return None if directory is None else lasting_place(directory, "the directory of savepoints")
