"""Whether a failed job is tried again, and after what pause: how far its restart strategy has been used up.

A `RestartBackoff` is a value: a failure gives the next one. It is part of the job's view, so a leader that takes over
goes on counting where its predecessor stopped. Times are the JobManager's clock; a clock that jumps can lengthen or
shorten what is counted, never lose a job.

Source: Flink's ``FixedDelayRestartBackoffTimeStrategy``, ``FailureRateRestartBackoffTimeStrategy`` and
``ExponentialDelayRestartBackoffTimeStrategy`` (FLIP-364). There the jitter is drawn from a random generator, here it
follows from the strategy's seed and the number of the restart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from .config import (
    AnyRestartStrategy,
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    RestartStrategy,
)

__all__ = ["RestartBackoff"]


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """How far a job has used up its restart strategy.

    Attributes:
        strategy: What the user asked for.
        num_restarts: Failures that were answered by a restart so far.
        failures_ms: When those of them were that still count, oldest first, epoch milliseconds; for a failure rate.
        last_failure_ms: When the newest of them was.
        backoff_ms: The pause behind it, before jitter; for an exponential delay.
        has_checkpoint: Whether a checkpoint has been completed since then.
    """

    strategy: AnyRestartStrategy
    num_restarts: int = 0
    failures_ms: tuple[int, ...] = ()
    last_failure_ms: int | None = None
    backoff_ms: int = 0
    has_checkpoint: bool = False

    def can_restart(self, now_ms: int) -> bool:
        """Return whether a failure at this time is followed by one more try."""
        strategy = self.strategy
        if isinstance(strategy, FailureRateRestartStrategy):
            return len(self._counting(strategy, now_ms)) < strategy.max_failures
        return strategy.max_attempts < 0 or self.num_restarts < strategy.max_attempts

    def after_failure(self, now_ms: int) -> RestartBackoff:
        """Return the value once a failure at this time has been answered by a restart."""
        strategy = self.strategy
        counted = replace(self, num_restarts=self.num_restarts + 1, last_failure_ms=now_ms, has_checkpoint=False)
        if isinstance(strategy, FailureRateRestartStrategy):
            return replace(counted, failures_ms=(*self._counting(strategy, now_ms), now_ms))
        if isinstance(strategy, ExponentialDelayRestartStrategy):
            return replace(counted, backoff_ms=self._next_backoff_ms(strategy, now_ms))
        return counted

    def after_checkpoint(self) -> RestartBackoff:
        """Return the value once a checkpoint has been completed."""
        return self if self.has_checkpoint else replace(self, has_checkpoint=True)

    @property
    def has_grown(self) -> bool:
        """Whether the pause is longer than the first one was."""
        strategy = self.strategy
        return isinstance(strategy, ExponentialDelayRestartStrategy) and self.backoff_ms > strategy.initial_backoff_ms

    @property
    def delay_ms(self) -> int:
        """Pause between the newest failure and the next try, milliseconds."""
        strategy = self.strategy
        if isinstance(strategy, (RestartStrategy, FailureRateRestartStrategy)):
            return max(strategy.delay_ms, 0)
        backoff_ms = self.backoff_ms or strategy.initial_backoff_ms
        spread_ms = backoff_ms * strategy.jitter_factor * _between_minus_one_and_one(strategy.seed, self.num_restarts)
        return min(max(round(backoff_ms + spread_ms), strategy.initial_backoff_ms), strategy.max_backoff_ms)

    def _counting(self, strategy: FailureRateRestartStrategy, now_ms: int) -> tuple[int, ...]:
        """The failures that are not longer ago than the interval; none that a clock that jumped puts in the future."""
        return tuple(at_ms for at_ms in self.failures_ms if 0 <= now_ms - at_ms < strategy.interval_ms)

    def _next_backoff_ms(self, strategy: ExponentialDelayRestartStrategy, now_ms: int) -> int:
        if self.last_failure_ms is None:
            return strategy.initial_backoff_ms
        quiet_ms = now_ms - (self.last_failure_ms + self.backoff_ms)
        if quiet_ms >= strategy.reset_backoff_threshold_ms:
            return strategy.initial_backoff_ms
        if strategy.resets_with_checkpoints and self.has_checkpoint and quiet_ms >= self.backoff_ms:
            return strategy.initial_backoff_ms  # it has run for as long as it had to wait, and got somewhere
        grown_ms = round(self.backoff_ms * strategy.backoff_multiplier)
        if strategy.backoff_multiplier > 1:  # rounding must not hold it where it is
            grown_ms = max(grown_ms, self.backoff_ms + 1)
        return min(grown_ms, strategy.max_backoff_ms)


def _between_minus_one_and_one(seed: int, number: int) -> float:
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / (1 << 63) - 1
