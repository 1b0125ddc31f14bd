"""What is in a loop: probes that go round it, and what can be concluded from them.

Every subtask of a loop's head sends markers, *probes*, round the loop behind its records, in numbered rounds
(`LoopProgress`). Tasks of the body pass a round's probe on when it has come on all channels of the loop, without
blocking any (`ProbeRelay`, `LoopGates`). K rounds, K being the number of head subtasks, make a finding: a time W such
that nothing in the loop that comes to the head from now on, and nothing that will ever enter it, is at or before W. The
head passes W on as its watermark; if W is the end of event time, all input has ended and the loop is empty.

*Proof.* Head i sends probe r at time t(i, r), which is when it joins the queue behind what the head has taken; I(i, r)
is the time since t(i, r-1). FIFO and the rule for passing on give: (1) what i emits in I(i, p), and all that it leads
to in the body, reaches the next heads in their I(., p+1) or earlier; (2) what a head takes from the loop in I(., p) it
emits between its probes p-1 and p, which counts as I(., p). In a measured round q each head takes m(i, q): no record
that it took from the loop in I(i, q) is at or before m, nor is any that input 0 brings from t(i, q-1) on. Suppose that
m(j, q) >= W for every head j from which head i can be reached (*), and that i takes a record at or before W in I(i, p),
p > q. Follow it back: by (1) some such j emitted it, or what led to it, in I(j, p') with p' >= p-1 >= q; as input it
is after W; so j had taken it from the loop, by (2) in I(j, p'), and p' > q because of m(j, q). The same holds for that
record, and so on, for ever: but records enter a loop after finitely many steps. So there is none.

It remains to know (*). A probe carries the least m that its sender knows; what a head knows travels one hop a round,
and no head is more than K-1 hops from one that it can reach, so after K rounds the least m of all has come everywhere.
After one round only, a head would know its neighbours, while a record may be two hops away.

Two more things bring records into a loop. Other inputs of the body enter a probe with their watermark as it was when
the probe before went by, like input 0 of a head. An operator that holds records (``Operator.holds_records``:
processing-time timers, results under way) emits in the interval after a probe what it held when that probe went by: it
enters the probe at which it holds something, and the next one, with no time at all.

The proof needs that the body never lowers a record's event time, and inputs that keep to their watermarks. What breaks
that, such as the result of a window in the loop, is late: processed, and counted by the head.

Source: Mattern's detection of termination by rounds; the progress protocol of Naiad.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..columns.records import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    Element,
    EndOfInput,
    LoopProbe,
    StreamStatus,
    Watermark,
)
from ..operators.watermark_valve import StatusWatermarkValve
from .chain import ChainLink, OutputGate

__all__ = ["NOTHING_LEFT", "ONLY_IDLE", "LoopGates", "LoopProgress", "ProbeRelay", "looping_links"]

NOTHING_LEFT = MAX_WATERMARK.timestamp_ms
"""Lower bound of the times in the loop when there is nothing, and all input has ended."""

ONLY_IDLE = NOTHING_LEFT - 1
"""The same when input may still come, but is idle and holds no other back."""


class LoopProgress:
    """What one head subtask knows of the loop: sends probes, and learns from those that come back.

    Args:
        channels: The feedback channels of this subtask.
        num_heads: How many subtasks the head has: so many rounds make a finding.
    """

    __slots__ = (
        "_arrived",
        "_input_at_probe_ms",
        "_is_open",
        "_live",
        "_lowest_ms",
        "_num_heads",
        "input_ms",
        "known_ms",
        "round",
    )

    def __init__(self, channels: Iterable[int], num_heads: int) -> None:
        self._num_heads = num_heads
        # Feedback channels that have not ended.
        self._live = set(channels)
        # Number of the probe sent last, and whether it is still on its way.
        self.round = 0
        self._is_open = False
        # Probes that have come, by round: the least of their times, and on which channels.
        self._arrived: dict[int, tuple[int, set[int]]] = {}
        # All that comes from input 0 from now on is after this; and as it was when the last probe was sent.
        self.input_ms = self._input_at_probe_ms = MIN_TIMESTAMP
        # All that was taken from the loop since the last probe is after this.
        self._lowest_ms = NOTHING_LEFT
        # The least time known in the present finding.
        self.known_ms = MIN_TIMESTAMP

    @property
    def is_between_findings(self) -> bool:
        """Whether the last finding is complete and the next one has not begun."""
        return not self._is_open and self.round % self._num_heads == 0

    @property
    def is_open(self) -> bool:
        """Whether a probe is on its way."""
        return self._is_open

    @property
    def is_asked(self) -> bool:
        """Whether another head has begun the next round."""
        return any(number > self.round for number in self._arrived)

    def take_records(self, after_ms: int) -> None:
        """Note that records have come from the loop, all of them after ``after_ms``."""
        self._lowest_ms = min(self._lowest_ms, after_ms)

    def take_probe(self, channel: int, probe: LoopProbe) -> None:
        """Take a probe that has come back on a channel."""
        lowest_ms, channels = self._arrived.get(probe.round, (NOTHING_LEFT, set()))
        channels.add(channel)
        self._arrived[probe.round] = (min(lowest_ms, probe.lowest_ms), channels)

    def end_channel(self, channel: int) -> None:
        """Note that nothing more comes on a channel."""
        self._live.discard(channel)

    def begin_round(self) -> LoopProbe:
        """Begin the next round: the probe must be sent behind everything that has been taken so far."""
        assert not self._is_open
        if self.round % self._num_heads == 0:  # measured; the other rounds only tell others
            self.known_ms = min(self._input_at_probe_ms, self._lowest_ms)
        self._input_at_probe_ms, self._lowest_ms = self.input_ms, NOTHING_LEFT
        self.round += 1
        self._is_open = True
        return LoopProbe(self.round, self.known_ms)

    def close_round(self) -> bool:
        """Return whether the probe sent last has come back on all channels, which is told once."""
        lowest_ms, channels = self._arrived.get(self.round, (NOTHING_LEFT, set()))
        if not self._is_open or not channels >= self._live:
            return False
        self._arrived.pop(self.round, None)
        self.known_ms = min(self.known_ms, lowest_ms)
        self._is_open = False
        return True


class ProbeRelay:
    """The probes of one task in the body of a loop: passed on when they have come on all its channels of the loop.

    Args:
        loop_channels: Channels from within the loop.
        other_channels: Channels from elsewhere, whose records may get into the loop here.
    """

    __slots__ = ("_arrived", "_live", "_other_at_probe_ms", "_others", "_places")

    def __init__(self, loop_channels: Collection[int], other_channels: Collection[int]) -> None:
        # Channels of the loop that have not ended.
        self._live = set(loop_channels)
        # Probes that have come and are not passed on, by round: the least of their times, and on which channels.
        self._arrived: dict[int, tuple[int, set[int]]] = {}
        # How far event time is on the other channels; and as it was when the last probe was passed on.
        self._others = StatusWatermarkValve(len(other_channels))
        self._places = {channel: place for place, channel in enumerate(other_channels)}
        self._other_at_probe_ms = MIN_TIMESTAMP if other_channels else NOTHING_LEFT

    def take(self, channel: int, element: Element) -> list[LoopProbe]:
        """Take a control element of any channel; gives the probes that are to be passed on now."""
        is_of_loop = channel in self._live
        if isinstance(element, LoopProbe):
            lowest_ms, channels = self._arrived.get(element.round, (NOTHING_LEFT, set()))
            channels.add(channel)
            self._arrived[element.round] = (min(lowest_ms, element.lowest_ms), channels)
        elif isinstance(element, EndOfInput):
            if not is_of_loop:
                self._others.update(self._places[channel], NOTHING_LEFT)
            self._live.discard(channel)
        elif is_of_loop:
            return []
        elif isinstance(element, Watermark):
            self._others.update(self._places[channel], element.timestamp_ms)
        elif isinstance(element, StreamStatus):
            self._others.set_idle(self._places[channel], element.idle)
        return [self._passed_on(number) for number in sorted(self._arrived) if self._arrived[number][1] >= self._live]

    def _passed_on(self, number: int) -> LoopProbe:
        lowest_ms, _ = self._arrived.pop(number)
        probe = LoopProbe(number, min(lowest_ms, self._other_at_probe_ms))
        if self._other_at_probe_ms != NOTHING_LEFT:
            self._other_at_probe_ms = ONLY_IDLE if self._others.is_idle else self._others.watermark_ms
        return probe


def looping_links(links: Sequence[ChainLink], gates: Collection[OutputGate]) -> list[ChainLink]:
    """Return the operators of a chain whose output reaches one of the gates that go on in the loop."""
    looping: list[ChainLink] = []
    for link in reversed(links):  # those that feed others come first
        if any(gate in gates for gate in link.output.all_gates) or any(
            behind in looping for behind in link.output.all_links
        ):
            looping.append(link)
    return looping[::-1]


@dataclass(slots=True)
class LoopGates:
    """The way of probes out of a task: to the gates that go on in the loop."""

    links: list[ChainLink] = field(default_factory=list)
    """The task's operators in the loop."""
    gates: list[OutputGate] = field(default_factory=list)
    held_at_probe: bool = False
    """Whether an operator held records when the last probe was sent on."""

    def send(self, probe: LoopProbe) -> None:
        """Send a probe on; if an operator here holds records, or has since the last one, the loop may hold anything."""
        holds = any(link.call(link.operator.holds_records) for link in self.links)
        if holds or self.held_at_probe:
            probe = replace(probe, lowest_ms=MIN_TIMESTAMP)
        self.held_at_probe = holds
        for gate in self.gates:
            gate.broadcast(probe, flush=True)
