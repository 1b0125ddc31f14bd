"""Stopping a job in order: what is asked for, whether it is possible, and that it is not forgotten.

A stop is a wish that stands until the job has ended. Sources stop reading at once; a last checkpoint is taken there
(under ``DRAIN`` when all that follows from the end of input has happened), committed, kept and named in the job's view;
then the job is FINISHED. What may cross it is decided so:

* A checkpoint under way is finished first; the sources are quiet meanwhile.
* A failure restarts the job from its newest checkpoint as always, but its sources are told to stop before they are
  started, so nothing more is read; then it stops. A job that may not restart has failed, and that is its answer.
* A stop that comes while the job waits for slots, restarts or is deployed works when its tasks start.
* A second stop of the same kind is the first one. One of the other kind is refused: a drained window cannot be taken
  back, and a suspended job's can be drained by the run that goes on from it.
* A job that has processed everything when the stop comes ends as it would have, but its last checkpoint is kept.
* A cancellation wins over a stop; a stop does not win over a failure or a cancellation that is on its way.
* A JobManager that dies hands the wish on twice: in its last view, and in every checkpoint triggered since. The second
  is what makes it safe: no run ever reads on from a checkpoint whose windows were drained unless the user starts one
  from it.

Source: Flink's ``StopWithSavepoint`` (``stop`` and ``stop --drain``); FLIP-34. There a failure while stopping gives the
stop up; here it stands. A stop with a savepoint is given up as there: see `headrace.engine.job.context.savepoints`.
"""

from __future__ import annotations

from ...checkpoint.io import RestorePoint
from ...errors import ConfigurationError, HeadraceError
from ...kernel.config import JobSettings
from ...protocol.messages import StopJob
from ...protocol.views import StopMode
from .record import JobRecord

__all__ = ["JobStop"]


class JobStop:
    """The stop of one job, wanted or not.

    Args:
        record: Where it stands for clients and for the next leader.
        settings: The job's.
        job_name: For errors.
    """

    def __init__(self, record: JobRecord, settings: JobSettings, job_name: str) -> None:
        self._record = record
        self._takes_checkpoints = settings.checkpoints is not None
        self._is_batch = settings.is_batch
        self._job_name = job_name
        # A stop with a savepoint, and how: it is no one else's than this leader's.
        self._with_savepoint: StopMode | None = None

    @property
    def mode(self) -> StopMode | None:
        """What is wanted; None: nothing."""
        return self._record.stopping

    @property
    def suspends(self) -> bool:
        """Whether the job ends in the middle of its input, at a barrier."""
        return StopMode.SUSPEND in (self._record.stopping, self._with_savepoint)

    @property
    def savepoint_mode(self) -> StopMode | None:
        """How the job is being stopped with a savepoint; None: not at all, or not so."""
        return self._with_savepoint

    def want_savepoint(self, mode: StopMode) -> None:
        """Note that the job is being stopped with a savepoint."""
        self._with_savepoint = mode

    def give_up_savepoint(self) -> None:
        """Note that it is not stopped with a savepoint any more."""
        self._with_savepoint = None

    def refusal(self, request: StopJob) -> HeadraceError | None:
        """Return why a request cannot be met, if so."""
        if self._is_batch:
            message = "a batch job has no state that a later run could go on from"
            return ConfigurationError(message, hint="Cancel it, or let it end.", job=self._job_name)
        mode = self._record.stopping
        if self._with_savepoint is not None:
            message = "the job is being stopped already, with a savepoint"
            return ConfigurationError(message, job=self._job_name)
        if mode is not None and mode is not request.mode:
            message = f"the job is being stopped already, by {mode.value}; it cannot {request.mode.value} as well"
            return ConfigurationError(message, job=self._job_name)
        if request.mode is StopMode.SUSPEND and not self._takes_checkpoints:
            message = "the job takes no checkpoints, so there is nothing that a later run could go on from"
            hint = "Stop it with drain=True, cancel it, or enable checkpointing."
            return ConfigurationError(message, hint=hint, job=self._job_name)
        return None

    def want(self, mode: StopMode, now_ms: int) -> bool:
        """Take the wish down; False if it stands already."""
        if self._record.stopping is not None:
            return False
        self._record.stopping = mode
        self._record.note(now_ms, f"stops by request: {mode.value}")
        self._record.has_news = True
        return True

    def restored(self, point: RestorePoint, now_ms: int) -> None:
        """Go on stopping if the restored checkpoint is the job's own and was taken while it was stopping."""
        if point.stopping is not None:
            self.want(StopMode(point.stopping), now_ms)
