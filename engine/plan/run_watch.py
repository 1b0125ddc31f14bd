"""What is seen of a data set's run while it goes on, and how somebody else ends it.

A run writes what it does into its `RunWatch`; its maker reads it, from any thread, and may cancel. Nothing
waits for anybody: a run that nobody looks at costs a comparison a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import JobCanceledError
from ..protocol.views import StageView

__all__ = ["RunWatch"]

MOST_STAGES = 200
"""The newest ones are kept; an iteration on Spark may have thousands."""


class RunWatch:
    """One run, watched: the run alone writes, anybody may read and cancel.

    Args:
        clock: Epoch milliseconds, by which stages have begun that do not say when themselves.
    """

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        # The stages so far, in the order in which they began; replaced as a whole, so it can be read at any time.
        self.stages: tuple[StageView, ...] = ()
        # How many older ones were left out.
        self.num_left_out = 0
        self.is_canceled = False
        self._by_id: dict[int, StageView] = {}

    def cancel(self) -> None:
        """Have the run end: in process at its next batch, or piece of one, on Spark at once."""
        self.is_canceled = True

    def require_running(self) -> None:
        """Raise if the run is to end; the run calls this often.

        Raises:
            JobCanceledError: If it is to end.
        """
        if self.is_canceled:
            message = "the run was canceled"
            raise JobCanceledError(message)

    def tell(self, *stages: StageView) -> None:
        """Note how stages stand."""
        for stage in stages:
            before = self._by_id.get(stage.id)
            began_ms = stage.started_ms or (self._clock() if before is None else before.started_ms)
            self._by_id[stage.id] = replace(stage, started_ms=began_ms)
        while len(self._by_id) > MOST_STAGES:
            del self._by_id[next(iter(self._by_id))]
            self.num_left_out += 1
        self.stages = tuple(self._by_id.values())

    def has_failed(self) -> None:
        """Note that the run has ended in the middle: what ran has failed."""
        self.tell(*(stage.given_up() for stage in self.stages))
