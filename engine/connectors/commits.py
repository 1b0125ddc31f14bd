"""Prepared output of one subtask on its way to being committed: in order, off the task's thread, again if it fails.

A *round* is what is done in one go: opening the committer, committing what is due, dropping leftovers, and behind the
job's last commit finishing. At most one round is under way, so commits of a subtask keep their order and a committer
needs no lock. What a round has committed leaves the pending output when its end is told; until then every snapshot
holds it, so a crash in the middle of a round repeats commits and loses none.

What only cleans up, dropping leftovers and finishing, must not end a job whose output is committed: if it fails for
good, a warning says so and the round goes on without it.

A round that fails is gone on with after a pause that doubles, a bounded number of times; then, or at once if the error
says that it is no use, the operator fails with the checkpoint's id in the error. Nothing is ever skipped.

If the operator is closed while a round is under way, there is no waiting for it. It stops before its next commit and
closes the committer itself: of "the round has ended" and "it was given up", whichever comes second does that.

Source: Flink's ``CommitterOperator``, ``CommitRequestImpl`` (``sink.committer.retries``); FLIP-143, FLIP-191.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..errors import (
    CheckpointFallbackError,
    ExternalError,
    HeadraceError,
    NewerOutputError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
    raise_from_outside,
)
from ..functions.operator import OperatorContext
from .contract import CommitRetry, Committer, CommitterContext, ProvingCommitter, SinkHistory

__all__ = ["MAX_UNCOMMITTED_CHECKPOINTS", "CommitQueue", "Pending", "warn"]

Pending = tuple[int, Any]
"""Checkpoint id and committable."""

MAX_UNCOMMITTED_CHECKPOINTS = 8
"""Of so many complete checkpoints output may wait for its commit; beyond that no more records are taken."""


class _Round:
    """What a committer is to do in one go. A call of it does so, on any thread, and never raises what it can tell.

    Args:
        committer: Not used by anybody else meanwhile.
        context: With which to open it first; None if it is open.
        due: What to commit.
        drops: Whether to drop leftovers then.
        proves_after: The checkpoint behind which nothing must have been committed; None if that is of no concern.
        finishes: Whether to finish then.
        probe: Marks protocol points.

    Attributes:
        is_open: Whether the committer is open.
        num_committed: So many of ``due`` are committed, the first ones.
        has_dropped: Whether leftovers are dropped.
        has_finished: Whether the committer has finished.
        error: What went wrong, which ended the round.
    """

    __slots__ = (
        "_committer",
        "_context",
        "_drops",
        "_due",
        "_ends",
        "_finishes",
        "_is_given_up",
        "_probe",
        "_proves_after",
        "error",
        "has_dropped",
        "has_finished",
        "is_open",
        "num_committed",
    )

    def __init__(
        self,
        committer: Committer,
        context: CommitterContext | None,
        due: Sequence[Pending],
        drops: bool,
        proves_after: int | None,
        finishes: bool,
        probe: Callable[[str], None],
    ) -> None:
        self._committer = committer
        self._context = context
        self._due = due
        self._drops = drops
        self._proves_after = proves_after
        self._finishes = finishes
        self._probe = probe
        self._is_given_up = False
        # Gives 0 to the first and 1 to the second who asks: the round at its end, and who gives it up.
        self._ends = itertools.count()
        self.is_open = context is None
        self.num_committed = 0
        self.has_dropped = False
        self.has_finished = False
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._run()
        except BaseException as error:
            raise_from_outside(error)
            self.error = error
        self._end()

    def _run(self) -> None:
        committer, probe = self._committer, self._probe
        if self._context is not None and not self._is_given_up:
            committer.open(self._context)
            if self._proves_after is not None:
                _prove(committer, self._proves_after)
            self.is_open = True
        if self._due:
            probe("sink.commit.before")
            for k, (_, committable) in enumerate(self._due):
                if self._is_given_up:
                    return
                committer.commit(committable)
                self.num_committed += 1
                probe(f"sink.commit.{k}")
            probe("sink.commit.after")
        if self._drops and not self._is_given_up:
            committer.abort_leftovers()
            self.has_dropped = True
        if self._finishes and not self._is_given_up:
            committer.finish()
            self.has_finished = True

    def give_up(self) -> None:
        """Give the round up: its end is not waited for any more."""
        self._is_given_up = True
        self._end()

    def _end(self) -> None:
        if next(self._ends) == 1:
            self._committer.close()


def _prove(committer: Committer, checkpoint_id: int) -> None:
    """See that nothing behind a checkpoint that the job goes back to has been committed.

    Raises:
        CheckpointFallbackError: If something has, or that is unknown.
    """
    if isinstance(committer, ProvingCommitter):
        num_rows = committer.num_committed_after(checkpoint_id)
        if not num_rows:
            return
        what = f"{num_rows} rows of it are public"
    else:
        what = "what of it is public, nobody knows"
    message = f"output behind checkpoint {checkpoint_id} would be written again, as a newer one is lost; {what}"
    hint = "start anew from a checkpoint that is sound, with restore_from; or choose"
    hint += " set_damaged_checkpoint_policy(FALL_BACK_AT_LEAST_ONCE)"
    raise CheckpointFallbackError(message, hint=hint)


class CommitQueue:
    """Prepared output of a subtask, oldest first, and the committer that makes it visible.

    Args:
        committer: Belongs to the queue from now on.
        context: Of the operator.
        restored: What the restored checkpoint holds as prepared, oldest first: it is complete, whichever job took it.
        history: What that checkpoint accounts for.
    """

    def __init__(
        self, committer: Committer, context: OperatorContext, restored: Sequence[Pending], history: SinkHistory
    ) -> None:
        self._committer = committer
        self._context = context
        self._committer_context = CommitterContext(
            job=context.job,
            operator=context.operator,
            operator_name=context.name,
            subtask=context.subtask,
            parallelism=context.parallelism,
            attempt=context.attempt,
            now_ms=context.now_ms,
            report=context.report,
            history=history,
            newer_output=_newer_output(context),
        )
        self._retry: CommitRetry = committer.retry
        self._proves_after = context.must_prove_after
        # What is not known to be committed; the next snapshot holds it. Appended to, and shortened from the front.
        self._pending: list[Pending] = list(restored)
        # Whose checkpoint is complete: the first so many of it.
        self._num_due = len(self._pending)
        self._is_open = False
        # Leftovers are to be dropped (True) or will be, or have been (None).
        self._drops: bool | None = False
        # The committer is to finish (True) or will be, or has (None).
        self._finishes: bool | None = False
        self._round: _Round | None = None
        # Failures of the first pending commit (or of opening, or of dropping) in a row; the wait after one.
        self._num_failures = 0
        self._waiting: int | None = None
        self._is_closed = False

    @property
    def pending(self) -> list[Pending]:
        """What a snapshot must hold: all that is not known to be committed, oldest first."""
        return list(self._pending)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done, and nothing under way."""
        return self._round is None and self._waiting is None

    @property
    def is_full(self) -> bool:
        """Whether commits have fallen so far behind that no more should be prepared."""
        if self._num_due < MAX_UNCOMMITTED_CHECKPOINTS:
            return False
        return len({checkpoint_id for checkpoint_id, _ in self._pending[: self._num_due]}) > MAX_UNCOMMITTED_CHECKPOINTS

    def open(self) -> None:
        """Open the committer and have it commit what was restored."""
        self._go_on()

    def add(self, checkpoint_id: int, committables: Sequence[Any]) -> None:
        """Take what was prepared for a checkpoint; ids never fall."""
        self._pending.extend((checkpoint_id, committable) for committable in committables)

    def commit_up_to(self, checkpoint_id: int) -> None:
        """Commit what a complete checkpoint and all before it hold.

        The first one is the first of this attempt: leftovers of earlier ones are dropped behind it.
        """
        due = next((i for i, (number, _) in enumerate(self._pending) if number > checkpoint_id), len(self._pending))
        self._num_due = max(self._num_due, due)
        if self._drops is False:
            self._drops = True
        if self.is_settled:
            self._go_on()

    def finish(self) -> None:
        """Note that the job has ended in order: behind the last commit nothing is needed any more."""
        if self._finishes is False:
            self._finishes = True
        if self.is_settled:
            self._go_on()

    def undue(self) -> list[int]:
        """Return the checkpoints whose output was not asked to be committed."""
        return sorted({checkpoint_id for checkpoint_id, _ in self._pending[self._num_due :]})

    def close(self) -> None:
        """Close the committer, now or when the round under way has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._waiting is not None:
            self._context.cancel_offload(self._waiting)
        if self._round is None:
            self._committer.close()
        else:
            self._round.give_up()

    def _go_on(self) -> None:
        """Begin a round if there is something to do."""
        self._waiting = None
        drops, finishes = self._drops is True, self._finishes is True
        if self._is_open and not self._num_due and not drops and not finishes:
            return
        context = None if self._is_open else self._committer_context
        due = self._pending[: self._num_due]
        self._round = begun = _Round(
            self._committer, context, due, drops, self._proves_after, finishes, self._context.probe
        )
        if self._committer.blocks:
            self._context.offload(begun, lambda _result, error: self._ended(begun, error), "blocking")
        else:
            begun()
            self._ended(begun, None)

    def _ended(self, ended: _Round, failure: BaseException | None) -> None:
        """Go on after the end of a round, after a pause if it failed."""
        if ended is not self._round:
            return
        self._round = None
        del self._pending[: ended.num_committed]
        self._num_due -= ended.num_committed
        if ended.num_committed:
            self._context.metrics.count("num_committables_committed", ended.num_committed)
        if ended.num_committed or ended.is_open != self._is_open or ended.has_dropped:
            self._num_failures = 0
        self._is_open = ended.is_open
        if ended.has_dropped:
            self._drops = None
        if ended.has_finished:
            self._finishes = None
        error = failure if failure is not None else ended.error
        if error is None:
            self._go_on()
        else:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._num_failures += 1
        may_pass = isinstance(error, Exception) and _may_pass(error)
        if not may_pass or not self._committer.blocks or self._num_failures >= self._retry.max_attempts:
            if self._is_open and not self._num_due and not isinstance(error, _LASTING) and isinstance(error, Exception):
                self._leave_it(error)
                return
            self._raise(error)
        self._context.metrics.count("num_commit_retries")
        self._waiting = self._context.call_later(self._retry.delay_ms(self._num_failures), self._go_on)

    def _leave_it(self, error: Exception) -> None:
        """What only cleans up cannot be done: say so, and go on without it."""
        self._num_failures = 0
        if self._drops:
            self._drops = None
            what = "could not drop what earlier attempts of the job have prepared"
        else:
            self._finishes = None
            what = "could not clean up behind the last commit"
        warn(self._context, what, error)
        self._go_on()

    def _raise(self, error: BaseException) -> None:
        place: dict[str, Any] = {}
        if not self._is_open:
            what = "the sink's committer could not be opened"
        elif self._num_due:
            what = "could not commit"
            place["checkpoint"] = self._pending[0][0]
        else:
            what = "could not clean up"
        if self._num_failures > 1:
            place["attempts"] = self._num_failures
        if not isinstance(error, HeadraceError):
            message = f"{what}: {error!r}"
            raise SinkError(message, **place) from error
        for name, value in place.items():
            error.context.setdefault(name, value)
        raise error


def _may_pass(error: Exception) -> bool:
    """Whether trying again may help."""
    if isinstance(error, HeadraceError):
        return isinstance(error, ExternalError) and not isinstance(error, _LASTING)
    return True


_LASTING = (NewerOutputError, PossibleLossError, SinkFencedError)


def warn(context: OperatorContext, what: str, error: Exception) -> None:
    """Write into the job's history what went wrong and harms nothing."""
    context.warn(f"{what}: {str(error).splitlines()[0] if str(error) else repr(error)}")


def _newer_output(context: OperatorContext) -> Literal["refuse", "prove", "repeat"]:
    if context.repeats_output:
        return "repeat"
    return "refuse" if context.must_prove_after is None else "prove"
