"""Where the processor time of a task goes: to each of its operators, and to its exchanges.

One account runs at a time. An operator that emits calls the operators behind it, and the gates of its edges: the time
of these goes to their own accounts, so an operator's account is the time of its own work. A task's time outside of its
operators (taking what has arrived, cutting and gathering what is sent) goes to the account of its exchanges; what hosts
do between two steps, such as sending messages, to none.

The clock is read twice for each batch and operator, never for a record.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Account", "ProcessorTime"]


class Account:
    """What one part of a task has used, in microseconds."""

    __slots__ = ("used_us",)

    def __init__(self) -> None:
        self.used_us = 0


class ProcessorTime:
    """Books processor time to accounts.

    Used as follows: ``outer = time.switch(account)``, work, ``time.switch(outer)``.

    Args:
        clock_us: Microseconds of processor time that the calling thread has had; None books nothing.

    Attributes:
        is_measured: Whether there is a clock.
        exchanges: What the task does outside of its operators.
    """

    __slots__ = ("_clock_us", "_current", "_since_us", "exchanges", "is_measured")

    def __init__(self, clock_us: Callable[[], int] | None = None) -> None:
        self._clock_us = clock_us or _stands_still
        self.is_measured = clock_us is not None
        # Whom time is booked to, since when; None outside of steps.
        self._current: Account | None = None
        self._since_us = 0
        self.exchanges = Account()

    def switch(self, account: Account | None) -> Account | None:
        """Book to another account from now on, None for nobody; gives the one before."""
        now_us, before = self._clock_us(), self._current
        if before is not None:
            before.used_us += now_us - self._since_us
        self._current, self._since_us = account, now_us
        return before


def _stands_still() -> int:
    return 0
