"""How much a task does in one step: the one place that cuts batches.

Messages, barriers, timers, queries and cancellation pass between two steps of a slot. A step is therefore bounded by
what it costs, not by a number of records: about `STEP_US` of time, and as many bytes as a buffer gathers. What a record
costs, with all that the operators of the chain do for it, is measured; the first piece is one record, and pieces grow
while they turn out cheap, so that records of a microsecond and of a minute need no settings. A step should not produce
much more than its consumers want at once: what that means in records, `headrace.engine.task.inputs_outputs` knows.

A batch that costs more is taken in *pieces*, wherever it waits: at the head of a channel, in what a restore brought, in
the backlog of a loop. The rest stays where it is, in order, and belongs to whatever is asked of that place: it is
before the barrier behind it, and is in flight for a barrier that overtakes. A source reads fewer records instead. A
step goes on with further pieces of the same batch while its time lasts.

One record is never cut: a call of a function takes as long as it takes, and so does all that one record or one
watermark leads to within the chain.

It decides only. Time comes from a stopwatch that its owner gives, which need not be any other clock.

Source: Flink's ``MailboxProcessor``, whose actions are one record each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..columns.records import Batch

__all__ = ["STEP_US", "UNBOUNDED_ROWS", "StepMeter", "WithheldWatermark"]

STEP_US = 20_000
"""A step is to take about so long, in microseconds, unless the job wants shorter ones. A piece that took twice as long
makes the next one smaller.
"""

MAX_SHRINKAGE = 4
SURE_US = 500_000
"""One long piece may be the machine's fault, which was busy elsewhere: the next one has no less than this fraction of
its records, unless it was longer than that."""

MAX_GROWTH = 8
"""A piece has at most so many times the records of the one before."""

WITHHELD_MS = 200
"""A watermark waits at most so long for the rest of its batch."""

WEIGHED_ROWS = 1_024
WEIGHED_READS = 8
"""Of what a source reads, all that is less than so many records is weighed, and else every so many-th batch."""

UNBOUNDED_ROWS = 1 << 62
"""No bound by what records cost or become."""


class StepMeter:
    """Measures what records cost one task, and says how many to take at once.

    Used as follows: `begin` a step; ask `rows_of` a batch or `rows_to_read`; process so many; tell it by `took`; go on
    while `goes_on`.

    Args:
        stopwatch_us: Microseconds of a clock that never goes back; None measures nothing and cuts nothing.
        max_rows: The most records at once.
        max_bytes: The most bytes at once, of more than one record.
        step_us: How long a step is to take.

    Attributes:
        num_rows: Records of the piece that is being processed.
        is_cut: Whether what is being processed is a piece only: more of the same batch, or of what a source could have
            read, follows at once. A source that knows that nothing does sets it back.
    """

    __slots__ = (
        "_began_us",
        "_max_bytes",
        "_max_rows",
        "_may_cut",
        "_num_reads",
        "_row_bytes",
        "_rows",
        "_step_us",
        "_stopwatch_us",
        "_wanted_rows",
        "is_cut",
        "num_rows",
    )

    def __init__(
        self,
        stopwatch_us: Callable[[], int] | None = None,
        max_rows: int = UNBOUNDED_ROWS,
        max_bytes: int = UNBOUNDED_ROWS,
        step_us: int = STEP_US,
    ) -> None:
        self._stopwatch_us = stopwatch_us
        self._step_us = step_us
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        # Records of the next piece, by what they cost.
        self._rows = max_rows if stopwatch_us is None else 1
        # Bytes of a record that a source reads; 0 before the first.
        self._row_bytes = 0.0
        self._num_reads = 0
        self.num_rows = 0
        # When that began.
        self._began_us = 0
        # Whether a source was asked for less than it might have been.
        self._may_cut = False
        # The most records of the next piece by what happens to them.
        self._wanted_rows = UNBOUNDED_ROWS
        self.is_cut = False

    @property
    def max_rows(self) -> int:
        """The most records at once, however cheap they are: a whole batch."""
        return self._max_rows

    def want(self, num_rows: int) -> None:
        """Note, before a piece, to take no more than so many records, 1 or more, by what happens to them."""
        self._wanted_rows = num_rows
        self.num_rows = 0

    @property
    def wanted_share(self) -> float:
        """How many times the piece makes what was wanted at most; infinite if that has no bound."""
        if self._wanted_rows >= UNBOUNDED_ROWS or not self.num_rows:
            return math.inf
        return self._wanted_rows / self.num_rows

    def rows_of(self, batch: Batch, offset: int = 0) -> int:
        """Return how many records of a batch to take now.

        Args:
            batch: It waits for the task.
            offset: So many of it have been taken before.

        Returns:
            At least 1; all that are left if they make no long step.
        """
        left = batch.num_rows - offset
        rows = min(left if self._rows >= self._max_rows else self._rows, left, self._wanted_rows)
        if rows > 1 and batch.nbytes > self._max_bytes:
            rows = max(1, min(rows, self._max_bytes * batch.num_rows // batch.nbytes))
        self._begin(rows, is_cut=rows < left)
        return rows

    def rows_to_read(self, max_rows: int) -> int:
        """Return how many records a source is to read now; it tells by `has_read` how many it has read.

        Args:
            max_rows: No more than these for other reasons.
        """
        rows = min(self._rows, max_rows, self._wanted_rows)
        if self._row_bytes * rows > self._max_bytes:
            rows = max(1, int(self._max_bytes / self._row_bytes))
        self._may_cut = rows < self._max_rows
        self._begin(0, is_cut=False)
        return rows

    def has_read(self, batch: Batch, asked: int, *, goes_on: bool = False) -> None:
        """Note that a source has read records, asked for at most so many, and is about to emit them.

        Args:
            batch: The records.
            asked: How many at most.
            goes_on: Whether they belong to the same read as those before.
        """
        self.num_rows = batch.num_rows + (self.num_rows if goes_on else 0)
        self.is_cut = self._may_cut and batch.num_rows >= asked
        if not batch.num_rows or self._max_bytes == UNBOUNDED_ROWS:
            return
        self._num_reads += 1
        if batch.num_rows < WEIGHED_ROWS or self._num_reads % WEIGHED_READS == 0:
            self._row_bytes = batch.nbytes / batch.num_rows

    def took(self) -> int:
        """Note that the piece has been processed; gives the microseconds that it took, 0 if that is not known."""
        num_rows, stopwatch_us = self.num_rows, self._stopwatch_us
        if stopwatch_us is None or not num_rows:
            return 0
        took_us, step_us = max(1, stopwatch_us() - self._began_us), self._step_us
        if took_us > 2 * step_us:
            fitting = num_rows * step_us // took_us
            if took_us < SURE_US:
                fitting = max(fitting, num_rows // MAX_SHRINKAGE)
            self._rows = max(1, min(self._rows, fitting))
        elif num_rows >= self._rows and self._rows < self._max_rows and took_us < step_us:
            self._rows = min(self._max_rows, self._rows * MAX_GROWTH, self._rows * step_us // took_us)
        return took_us

    def begin(self) -> int:
        """Begin a step; gives the stopwatch's reading, for `goes_on`."""
        self.is_cut = False
        return 0 if self._stopwatch_us is None else self._stopwatch_us()

    def goes_on(self, began_us: int) -> bool:
        """Return whether the step that began then has time for another piece of what was cut."""
        return self.is_cut and self._stopwatch_us is not None and self._stopwatch_us() - began_us < self._step_us // 2

    def _begin(self, num_rows: int, *, is_cut: bool) -> None:
        self.num_rows = num_rows
        self.is_cut = is_cut
        if self._stopwatch_us is not None:
            self._began_us = self._stopwatch_us()


class WithheldWatermark:
    """Whether a watermark goes out behind a piece of a batch, or waits for the rest of it.

    Which records are late must not follow from how a batch was cut: a short collection gives one watermark, at its end,
    whatever its records cost. So a watermark waits while pieces are cut, until they make up a whole batch, but no
    longer than `WITHHELD_MS`.

    Args:
        step: What cuts.
    """

    __slots__ = ("_num_rows", "_since_ms", "_step")

    def __init__(self, step: StepMeter) -> None:
        self._step = step
        # Records behind the last watermark; since when one waits.
        self._num_rows = 0
        self._since_ms: int | None = None

    def add(self, num_rows: int) -> None:
        """Note that records have gone out."""
        self._num_rows += num_rows

    def waits(self, now_ms: int) -> bool:
        """Return whether the watermark is to wait; asked when there is one to emit."""
        if self._since_ms is None:
            self._since_ms = now_ms
        is_whole = not self._step.is_cut or self._num_rows >= self._step.max_rows
        if is_whole or not 0 <= now_ms - self._since_ms < WITHHELD_MS:
            self._num_rows, self._since_ms = 0, None
            return False
        return True

    @property
    def due_ms(self) -> int | None:
        """When it is to go out at the latest; None if none waits."""
        return None if self._since_ms is None else self._since_ms + WITHHELD_MS
