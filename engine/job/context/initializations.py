"""How long a job took to run: from its submission, a failure or a rescale on, phase by phase.

Source: Flink's ``JobInitializationMetrics`` and FLIP-384 (traces of checkpoints and recoveries).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...protocol.details import InitializationView
from .phase import Phase

__all__ = ["Initializations"]

NUM_KEPT = 16
"""The newest ones are kept."""

_ON_THE_WAY = frozenset({Phase.STOPPING, Phase.BACKING_OFF, Phase.PREPARING, Phase.WAITING_FOR_SLOTS, Phase.DEPLOYING})


class Initializations:
    """The starts and restarts of a job under one leader."""

    def __init__(self) -> None:
        self._ended: deque[InitializationView] = deque(maxlen=NUM_KEPT)
        # Of the one that is under way: phases with the time at which each of them began first.
        self._phases: dict[str, int] = {}

    def entered(self, phase: Phase, now_ms: int) -> None:
        """Note a phase; a failure on the way to EXECUTING is a part of the same start."""
        if phase in _ON_THE_WAY:
            self._phases.setdefault(phase.value, now_ms)
        elif phase is not Phase.EXECUTING:
            self._phases.clear()

    def ended(
        self,
        now_ms: int,
        num_restarts: int,
        deployment: int,
        num_tasks: int,
        restored: int,
        history: Sequence[tuple[int, str]],
    ) -> None:
        """Note that all tasks run.

        Args:
            now_ms: The time.
            num_restarts: How often the job has been restarted so far.
            deployment: Number of the attempts that were started.
            num_tasks: How many these are.
            restored: The checkpoint that they go on from; 0 for none.
            history: Notable events of the job, oldest first: the last one before it was stopped says why.
        """
        if not self._phases:
            return
        stopped_ms = self._phases.get(Phase.STOPPING.value)
        reasons = [] if stopped_ms is None else [text for at_ms, text in history if at_ms <= stopped_ms]
        reason = reasons[-1] if reasons else ""
        view = InitializationView(num_restarts, deployment, now_ms, dict(self._phases), num_tasks, restored, reason)
        self._ended.append(view)
        self._phases.clear()

    def views(self) -> tuple[InitializationView, ...]:
        """Return those that have ended, oldest first."""
        return tuple(self._ended)
