"""What is seen of a data set's run while it goes on, and how somebody else ends it.

A run writes what it does into its `RunWatch`; whoever made the watch reads it, from any thread, and may cancel. Nothing
waits for anybody: a run that nobody looks at costs a comparison a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import JobCanceledError

__all__ = ["RunWatch", "StageView"]

MOST_STAGES = 200
"""The newest ones are kept; an iteration on Spark may have thousands."""


@dataclass(frozen=True, slots=True)
class StageView:
    """A part of a run that is done as one: nodes of the plan that run in one another, or a stage of Spark.

    Attributes:
        id: Its number in the run.
        name: What it does.
        state: ``RUNNING``, ``FINISHED`` or ``FAILED``; of Spark also ``PENDING`` and ``SKIPPED``.
        num_tasks: How many tasks it has: partitions. 0 while that is not known.
        num_done: How many of them are done.
        num_running: How many run now.
        num_failed: How many attempts have failed; on Spark tasks are tried again.
        rows: How many rows it has given, so far as that is counted; None if it is not.
        duration_ms: How long it took, or takes so far; of a stage in supersteps all of them together.
    """

    id: int
    name: str
    state: str
    num_tasks: int = 0
    num_done: int = 0
    num_running: int = 0
    num_failed: int = 0
    rows: int | None = None
    duration_ms: int = 0


class RunWatch:
    """One run, watched: the run alone writes, anybody may read and cancel."""

    def __init__(self) -> None:
        # The stages so far, in the order in which they began; replaced as a whole, so it can be read at any time.
        self.stages: tuple[StageView, ...] = ()
        # How many older ones were left out.
        self.num_left_out = 0
        self.is_canceled = False
        self._by_id: dict[int, StageView] = {}

    def cancel(self) -> None:
        """Have the run end: in process at its next batch, on Spark at once."""
        self.is_canceled = True

    def require_running(self) -> None:
        """Called by the run, often.

        Raises:
            JobCanceledError: If it is to end.
        """
        if self.is_canceled:
            message = "the run was canceled"
            raise JobCanceledError(message)

    def tell(self, *stages: StageView) -> None:
        """Note how stages stand."""
        self._by_id.update({stage.id: stage for stage in stages})
        while len(self._by_id) > MOST_STAGES:
            del self._by_id[next(iter(self._by_id))]
            self.num_left_out += 1
        self.stages = tuple(self._by_id.values())

    def has_failed(self) -> None:
        """Note that the run has ended in the middle: what ran has failed."""
        running = [stage for stage in self.stages if stage.state == "RUNNING"]
        self.tell(*(replace(stage, state="FAILED", num_running=0) for stage in running))
