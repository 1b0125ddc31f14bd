"""When a task takes its snapshot: barriers of all inputs are aligned, or only counted.

The first barrier of checkpoint n blocks its channel; when n has come on every channel the task snapshots, forwards the
barrier, and only then goes on, first with what waited behind the barriers. With alignment switched off nothing is
blocked and the snapshot may hold effects of records that will be replayed (Flink's
``CheckpointingMode.AT_LEAST_ONCE``).

A barrier that overtakes (unaligned checkpoints) triggers as soon as it has been taken from the channels that keep
order, whatever has come on the others; what is in flight before it is logged by `headrace.engine.task.checkpoints`.

The invariant: under alignment, at the moment of `Alignment.trigger` exactly the records before n have been processed.

Source: Flink's ``SingleCheckpointBarrierHandler`` and ``CheckpointBarrierTracker``.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from ..columns.records import CheckpointBarrier
from ..kernel.config import CheckpointingMode

__all__ = ["Alignment", "BarrierAligner", "Overtaking", "is_always_aligned"]


@dataclass(frozen=True, slots=True)
class Alignment:
    """What to do after a barrier or an abort, in this order.

    Attributes:
        superseded: A checkpoint whose alignment is given up: decline it.
        unblock: Unblock all channels before anything else.
        block: Block this channel.
        trigger: Take the snapshot for this barrier now, then unblock all channels.
    """

    superseded: int | None = None
    unblock: bool = False
    block: int | None = None
    trigger: CheckpointBarrier | None = None


@dataclass(frozen=True, slots=True)
class Overtaking:
    """What to do when a barrier has overtaken records: take the snapshot now, then unblock all channels.

    Attributes:
        superseded: A checkpoint whose alignment is given up: decline it.
        aligned: The channels on which the barrier had been taken: nothing is in flight before it there.
    """

    superseded: int | None
    aligned: frozenset[int]


NOTHING = Alignment()


def is_always_aligned(barrier: CheckpointBarrier) -> bool:
    """Return whether a barrier never overtakes: the job is stopped there, or a program may be changed behind it."""
    return barrier.suspends or barrier.savepoint is not None


@dataclass(slots=True)
class BarrierAligner:
    """Follows the barriers of one task.

    Args:
        num_channels: Input channels of the task; every one delivers every barrier, ended ones too.
        mode: Aligned or only counted.
    """

    num_channels: int
    mode: CheckpointingMode
    # Barriers seen of checkpoints not yet triggered: id -> (barrier, channels). Aligned: at most one.
    _pending: dict[int, tuple[CheckpointBarrier, set[int]]] = field(default_factory=dict)
    # The newest checkpoint triggered or given up here: barriers up to it are late.
    _settled: int = 0
    # Checkpoints aborted before their first barrier came.
    _aborted: set[int] = field(default_factory=set)

    @property
    def is_aligning(self) -> bool:
        """Whether a barrier waits for others."""
        return bool(self._pending)

    def on_barrier(self, channel: int, barrier: CheckpointBarrier) -> Alignment:
        """Take a barrier that has come to the head of a channel; gives what to do."""
        checkpoint = barrier.checkpoint_id
        if checkpoint <= self._settled or checkpoint in self._aborted:
            return NOTHING
        superseded = None
        if self.mode is CheckpointingMode.EXACTLY_ONCE and self._pending:
            current = next(iter(self._pending))
            if checkpoint < current:
                return NOTHING
            if checkpoint > current:
                # Its barrier did not come on this channel and never will: channels keep order.
                superseded = current
                del self._pending[current]
                self._settled = current
        _, channels = self._pending.setdefault(checkpoint, (barrier, set()))
        channels.add(channel)
        unblock = superseded is not None
        if len(channels) < self.num_channels:
            block = channel if self.mode is CheckpointingMode.EXACTLY_ONCE else None
            return Alignment(superseded=superseded, unblock=unblock, block=block)
        self._settle(checkpoint)
        return Alignment(superseded=superseded, unblock=unblock, trigger=barrier)

    def on_overtaking(self, barrier: CheckpointBarrier) -> Overtaking | None:
        """Let a barrier count before it has come on all channels: its checkpoint is not, or no longer, aligned.

        Returns:
            What that means; None if the checkpoint has been triggered or given up.
        """
        checkpoint = barrier.checkpoint_id
        if not self.is_open(checkpoint):
            return None
        superseded = next((n for n in self._pending if n < checkpoint), None)
        _, aligned = self._pending.get(checkpoint, (barrier, set()))
        self._settle(checkpoint)
        return Overtaking(superseded, frozenset(aligned))

    def taken(self, checkpoint_id: int) -> Set[int]:
        """Return the channels on which the barrier of an open checkpoint has been taken."""
        return self._pending[checkpoint_id][1] if checkpoint_id in self._pending else frozenset()

    def is_open(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint has neither been triggered nor given up here."""
        if checkpoint_id <= self._settled or checkpoint_id in self._aborted:
            return False
        # Aligned ones end in their order.
        return not any(n > checkpoint_id for n in self._pending)

    def on_abort(self, checkpoint_id: int) -> Alignment:
        """Forget a checkpoint that the coordinator has given up; gives what to do."""
        if checkpoint_id <= self._settled:
            return NOTHING
        if self._pending.pop(checkpoint_id, None) is not None:
            self._aborted.add(checkpoint_id)
            return Alignment(unblock=self.mode is CheckpointingMode.EXACTLY_ONCE)
        self._aborted.add(checkpoint_id)
        return NOTHING

    def _settle(self, checkpoint: int) -> None:
        self._settled = checkpoint
        self._pending = {n: seen for n, seen in self._pending.items() if n > checkpoint}
        self._aborted = {n for n in self._aborted if n > checkpoint}
