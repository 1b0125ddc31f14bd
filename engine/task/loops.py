"""A task's part in a loop: that of the head, to which the loop comes back, and that of the tasks of its body.

What a head does with what comes back is decided in `headrace.engine.task.loop_head`, what probes mean in
`headrace.engine.task.loop_progress`. Here it is joined to channels: feedback is taken at any time, with or without
credit for output, else the loop could stand still; the head's backlog and its input take turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.state.checkpoints.snapshot import SnapshotPart

from ..columns.records import Element
from .chain import ChainLink
from .channels import CutBatch, InputChannel
from .inputs_outputs import TaskInputs
from .loop_head import IterationHead, LoopTask
from .loop_progress import LoopGates, ProbeRelay
from .outbox import TaskOutbox

__all__ = ["LoopBody", "LoopFeedback"]


class LoopFeedback:
    """The way back into the head of a loop.

    Args:
        link: The head in its chain; its operator is an `IterationHead`.
        channels: The channels that close the loop.
    """

    def __init__(self, link: ChainLink, channels: Sequence[InputChannel]) -> None:
        assert isinstance(link.operator, IterationHead)
        self._link = link
        self._head = link.operator
        self._channels = channels
        # Whether the backlog had the last turn.
        self._was_backlog = False

    def join(self, task: LoopTask) -> None:
        """Tell the head what it is part of, when it has been opened."""
        self._link.call(self._head.join, task)

    @property
    def channels(self) -> list[int]:
        """The numbers of the channels."""
        return [channel.index for channel in self._channels]

    @property
    def has_element(self) -> bool:
        """Whether something has come back and not been taken."""
        return any(channel.has_element for channel in self._channels)

    def take(self, outbox: TaskOutbox) -> None:
        """Take all that has come back into the head's backlog, and give credit for it."""
        for channel in self._channels:
            while channel.has_element:
                self._link.call(self._head.take, channel.index, channel.take())
            credit = channel.credit_due()
            if credit is not None:
                outbox.send(channel.producer_address, credit)

    def take_complete_logs(self) -> list[tuple[int, list[SnapshotPart]]]:
        """Return what belongs to the head's snapshots beside its state, of those where that is known by now."""
        return self._head.take_complete_logs()

    @property
    def has_backlog(self) -> bool:
        """Whether the head has something to emit."""
        return self._head.has_backlog

    def emit_in_turn(self, inputs: Sequence[InputChannel], cut: CutBatch) -> bool:
        """Emit one element of the backlog, or a piece of it, if there is one and it is next; called only with credit.

        Backlog and input take turns, unless there is too much backlog for more input.

        Args:
            inputs: The head's ordinary channels.
            cut: Says how many records of a batch to emit.

        Returns:
            Whether it was the backlog's turn.
        """
        if not self._head.has_backlog:
            return False
        has_input = self._head.wants_input and any(channel.has_element for channel in inputs)
        self._was_backlog = not (has_input and self._was_backlog)
        if self._was_backlog:
            self._link.call(self._head.emit_next, cut)
        return self._was_backlog


class LoopBody:
    """Probes on their way through a task in the body of a loop.

    Args:
        inputs: The task's channels, some of which come from within the loop.
        gates: The way on.
    """

    def __init__(self, inputs: TaskInputs, gates: LoopGates) -> None:
        others = [channel.index for channel in inputs.channels if channel.index not in inputs.in_loop]
        self._relay = ProbeRelay(inputs.in_loop, others)
        self._gates = gates

    def take(self, channel: InputChannel, element: Element) -> None:
        """Pass on the probes that may go on now, as a control element of any channel has been processed."""
        for probe in self._relay.take(channel.index, element):
            self._gates.send(probe)
