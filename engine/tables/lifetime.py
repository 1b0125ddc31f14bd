"""Time to live of an operator's state: what was not written for so long by the clock has expired.

The clock is handed in, and is looked at once a batch. What was written at or before the *cutoff* has expired; the
cutoff only grows, and is kept in snapshots, so that what has once expired stays so: under a longer time to live, after
a rescale, when a clock goes back, and when the time to live is taken away.

Who owns state asks of what a batch touches whether it has expired, so that nothing expired is ever read. All other
entries are looked at together, once in half the time to live: an entry is looked at three times at most before it is
written again or goes, however many there are.

Source: Flink's ``StateTtlConfig`` with ``OnCreateAndWrite`` and ``NeverReturnExpired``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..functions.operator import OperatorContext
from .columns import Integers, Truths

__all__ = ["NEVER", "Lifetime", "lifetime_of"]

NEVER = int(np.iinfo(np.int64).min)
"""A time before all others."""


class Lifetime:
    """The time to live of some of an operator's state.

    Args:
        context: The operator's.
        ttl_ms: How long an entry lives that is not written; 0 for ever.
        name: What tells it from others of the operator.

    Attributes:
        ttl_ms: See above.
        now_ms: The time of the batch.
        cutoff_ms: What was written then or before has expired.
        began_ms: When entries count as written of which nobody has noted it: they are older than the time to live.
    """

    def __init__(self, context: OperatorContext, ttl_ms: int, name: str) -> None:
        self._clock = context.now_ms
        self._metrics = context.metrics
        self.ttl_ms = ttl_ms
        self._cutoffs = context.operator_state.union_list_state(f"{name} expired until")
        self._begins = context.operator_state.union_list_state(f"{name} lives since")
        cutoffs, begins = self._cutoffs.get(), self._begins.get()
        self.is_kept = ttl_ms > 0 or bool(cutoffs)
        self.now_ms = context.now_ms() if self.is_kept else NEVER
        self.cutoff_ms = max(cutoffs, default=NEVER)
        self.began_ms = max(begins, default=self.now_ms if context.is_restored else NEVER)
        self._next_sweep_ms = NEVER

    def begin(self) -> None:
        """Look at the clock, for a batch or a snapshot."""
        self.now_ms = max(self.now_ms, self._clock())
        if self.ttl_ms:
            self.cutoff_ms = max(self.cutoff_ms, self.now_ms - self.ttl_ms)

    def is_expired(self, times: Integers) -> Truths:
        """Return which times are too long ago."""
        expired: Truths = times <= self.cutoff_ms
        return expired

    def times_of(self, column: pa.Array) -> Integers:
        """Return times as a log has them; null where nobody has noted it."""
        times: Integers = column.fill_null(self.began_ms).to_numpy(zero_copy_only=False)
        return times

    @property
    def is_sweep_due(self) -> bool:
        """Whether all entries are to be looked at now; the next time is half the time to live later."""
        if self.now_ms < self._next_sweep_ms:
            return False
        self._next_sweep_ms = self.now_ms + max(self.ttl_ms // 2, 1)
        return True

    def count(self, num_expired: int = 0, num_ignored: int = 0) -> None:
        """Count entries that have expired, and changes that take back what has."""
        if num_expired:
            self._metrics.count("num_state_entries_expired", num_expired)
        if num_ignored:
            self._metrics.count("num_retractions_ignored", num_ignored)

    def snapshot(self) -> None:
        """Keep what has expired."""
        self._cutoffs.update([self.cutoff_ms])
        self._begins.update([self.began_ms])


def lifetime_of(context: OperatorContext, ttl_ms: int, name: str = "state") -> Lifetime | None:
    """Return the time to live of state; None if it has none and never had one, so that nothing need be kept for it.

    Args:
        context: The operator's.
        ttl_ms: How long an entry lives that is not written; 0 for ever.
        name: What tells it from others of the operator.
    """
    lifetime = Lifetime(context, ttl_ms, name)
    return lifetime if lifetime.is_kept else None
