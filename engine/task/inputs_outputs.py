"""The channels of a task, as its deployment names them.

Inputs are numbered by (edge id, peer subtask), those that close a loop last: `TaskInputs.channels`, which are aligned
and taken in turn, therefore have the numbers 0, 1 ..., and `TaskInputs.feedback` those behind.

Source: Flink's ``InputGate`` and ``RecordWriter`` set-up in ``StreamTask``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.state.identifiers import ExecutionAttemptId

from ..columns.records import Batch, CheckpointBarrier, Element
from ..functions.isolation import Handed
from ..functions.operator import KeyFields
from ..functions.steps import UNBOUNDED_ROWS
from ..graph.job_graph import JobEdge
from ..operators.exchange import HashPartitioner
from ..protocol.task_messages import AddCredit, TaskDeployment, edge_number
from .chain import ChainLink, OutputGate
from .channels import MESSAGES_PER_WINDOW, InputChannel, OutputChannel
from .debloating import FIRST_WINDOW_BYTES
from .loop_progress import LoopGates, looping_links
from .outbox import TaskOutbox
from .processor_time import ProcessorTime

__all__ = ["TaskInputs", "TaskOutputs"]


class TaskInputs:
    """All channels into a task.

    Args:
        deployment: Names them.

    Attributes:
        by_peer: All of them by (edge id, producer).
        channels: The ordinary ones, by number.
        feedback: Those that close a loop here: they are not aligned and hold no other back.
        in_loop: The numbers of ordinary channels that come from within a loop.
        key_selectors: By what records are dealt out on exchanges that go by key.
    """

    def __init__(self, deployment: TaskDeployment) -> None:
        edges = {edge.edge_id: edge for edge in deployment.input_edges}
        settings = deployment.settings
        described = sorted(deployment.inputs, key=lambda channel: edges[channel.edge_id].is_feedback)
        every = [
            InputChannel(
                index,
                channel.edge_id,
                edges[channel.edge_id].input_index,
                channel.peer,
                deployment.attempt,
                channel.peer_address,
                settings.channel_credits,
                settings.channel_credit_bytes,
                keeps_order=edges[channel.edge_id].keeps_order,
            )
            for index, channel in enumerate(described)
        ]
        self.by_peer: dict[tuple[int, ExecutionAttemptId], InputChannel] = {(c.edge_id, c.producer): c for c in every}
        self.channels = [channel for channel in every if not edges[channel.edge_id].is_feedback]
        self.feedback = [channel for channel in every if edges[channel.edge_id].is_feedback]
        hashed = ((one.edge_id, one.partitioner) for one in deployment.input_edges)
        self.key_selectors = {key: one.key_selector for key, one in hashed if isinstance(one, HashPartitioner)}
        self.in_loop = {channel.index for channel in self.channels if edges[channel.edge_id].is_in_loop}

    def numbers(self) -> dict[str, float]:
        """Return how full the fullest channel is, and the fullest one of each exchange."""
        numbers: dict[str, float] = {}
        for channel in self.by_peer.values():
            for name in ("input_usage", edge_number(channel.edge_id, "input_usage")):
                numbers[name] = max(numbers.get(name, 0.0), channel.usage)
        return numbers


FORGETTING = 0.75
"""What a piece counts for when the next one has been taken."""


class _Outlet:
    """What happens to the records that a task takes, on one exchange: how many make what a consumer wants at once.

    A filter leaves few of them, a `flat_map` makes many, and one consumer may get nearly all: bytes that go out to each
    are set against records that come in.
    """

    def __init__(self, channels: Sequence[OutputChannel]) -> None:
        self._channels = channels
        # Bytes emitted to each before this piece; of the last pieces, the newest counting most: bytes emitted to each,
        # and records taken.
        self._before = [0] * len(channels)
        self._num_bytes = [0.0] * len(channels)
        self._num_rows = 0.0

    def wanted_rows(self) -> int:
        """Return how many records to take at once; a piece is about to be taken."""
        self._before = [channel.added_bytes for channel in self._channels]
        num_rows, wanted = self._num_rows, float(UNBOUNDED_ROWS)
        for channel, num_bytes in zip(self._channels, self._num_bytes, strict=True):
            if num_bytes and channel.is_limited:
                wanted = min(wanted, channel.limit_bytes * num_rows / num_bytes)
        return max(1, int(wanted))

    def note_taken(self, num_rows: int) -> None:
        """Note that the piece has been taken. What elements without records bring about, as a window's end does, is no
        measure for records.
        """
        if num_rows:
            self._num_rows = FORGETTING * self._num_rows + num_rows
            self._num_bytes = [
                FORGETTING * num_bytes + channel.added_bytes - before
                for channel, num_bytes, before in zip(self._channels, self._num_bytes, self._before, strict=True)
            ]


class TaskOutputs:
    """All channels out of a task, joined behind its operators.

    Args:
        deployment: Names them.
        links: The task's operators; their outputs are given their gates here.
        now_ms: The clock.
        time: Books what the channels cost.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        links: Sequence[ChainLink],
        now_ms: Callable[[], int],
        time: ProcessorTime,
    ) -> None:
        settings, attempt = deployment.settings, deployment.attempt
        self._buffer_timeout_ms = settings.buffer_timeout_ms
        self._now_ms = now_ms
        self._deployment, self._links = deployment, links
        # One for each edge, in their order.
        self._edge_gates: list[OutputGate] = []
        self._by_peer: dict[tuple[int, ExecutionAttemptId], OutputChannel] = {}
        # As long as a consumer has not said what it wants.
        first_bytes = FIRST_WINDOW_BYTES // MESSAGES_PER_WINDOW if settings.buffer_debloat_enabled else 0
        in_loop: list[OutputGate] = []
        for edge in deployment.output_edges:
            channels = [
                OutputChannel(
                    edge.edge_id,
                    attempt,
                    described.peer,
                    described.peer_address,
                    settings.max_batch_rows,
                    settings.max_batch_bytes,
                    keeps_order=edge.keeps_order,
                    first_bytes=first_bytes,
                )
                for described in deployment.outputs
                if described.edge_id == edge.edge_id
            ]
            self._by_peer.update({(edge.edge_id, channel.consumer): channel for channel in channels})
            partitioner = edge.partitioner.bind(len(channels), attempt.subtask, edge.target_max_parallelism)
            gate = OutputGate(partitioner, channels, now_ms, time)
            if deployment.settings.watches_records:
                gate.handed = Handed(f"the key selector or partitioner of {partitioner!r}")
            links[edge.source_operator].output.add_gate(gate, edge.side_tag)
            self._edge_gates.append(gate)
            if edge.is_in_loop:
                in_loop.append(gate)
        self._channels = list(self._by_peer.values())
        self._edges = {edge.edge_id: edge for edge in deployment.output_edges}
        # A barrier is to leave before all else.
        self._has_urgent = False
        self._gates = [gate for link in links for gate in link.output.all_gates]
        self._outlets = [_Outlet(gate.channels) for gate in self._gates]
        self.loop_gates = LoopGates(looping_links(links, in_loop), in_loop)

    def stay(self, parallelism: int) -> None:
        """Let records stay with the consumer of this subtask's own number where their keys send them there anyway.

        That is so on an exchange by the key that they came by, if it has as many subtasks and key groups at both ends:
        nothing needs to be hashed or copied, and nothing leaves the process.

        Args:
            parallelism: The task's own.
        """
        inputs = self._deployment.input_edges
        of_input: dict[int, set[KeyFields | None]] = {}
        for edge in inputs:
            selector = edge.partitioner.key_selector if isinstance(edge.partitioner, HashPartitioner) else None
            of_input.setdefault(edge.input_index, set()).add(None if selector is None else selector.field_names)
        keys = [next(iter(of_input[index])) for index in sorted(of_input) if len(of_input[index]) == 1]
        groups = {edge.target_max_parallelism for edge in inputs}
        if len(keys) < len(of_input) or len(groups) != 1 or None in keys:
            return
        known = _keys_behind(self._links[0], [key for key in keys if key is not None])
        for edge, gate in zip(self._deployment.output_edges, self._edge_gates, strict=True):
            if not isinstance(edge.partitioner, HashPartitioner) or edge.side_tag is not None or edge.is_in_loop:
                continue
            names = edge.partitioner.key_selector.field_names
            is_alike = len(gate.channels) == parallelism and edge.target_max_parallelism in groups
            if is_alike and names in known.get(self._links[edge.source_operator], ()):
                gate.stay(self._deployment.attempt.subtask)

    @property
    def is_full(self) -> bool:
        """Whether a channel waits for credit with as much as it may hold: no more may be produced."""
        return any(channel.is_full for channel in self._channels)

    @property
    def usage(self) -> float:
        """How full the fullest channel is, 0 to 1; 0 if there is none."""
        return max((channel.usage for channel in self._channels), default=0.0)

    def numbers(self) -> dict[str, float]:
        """Return how full the fullest channel is, and of each exchange that, and how many records have gone there."""
        numbers: dict[str, float] = {"output_usage": self.usage}
        for channel in self._channels:
            usage, records = edge_number(channel.edge_id, "output_usage"), edge_number(channel.edge_id, "records")
            numbers[usage] = max(numbers.get(usage, 0.0), channel.usage)
            numbers[records] = numbers.get(records, 0) + channel.added_rows
        return numbers

    def wanted_rows(self) -> int:
        """Return how many records to take at once, so that no consumer is given much more than it wants at once."""
        return min((each.wanted_rows() for each in self._outlets), default=UNBOUNDED_ROWS)

    def note_taken(self, num_rows: int) -> None:
        """Note that so many records have been taken, and all that they led to has been emitted."""
        for outlet in self._outlets:
            outlet.note_taken(num_rows)

    def add_credit(self, credit: AddCredit) -> None:
        """Take a grant of a consumer; those of other attempts are ignored."""
        channel = self._by_peer.get((credit.edge_id, credit.consumer))
        if channel is not None:
            channel.add_credit(credit)

    def broadcast(self, element: Element) -> None:
        """Send a barrier, or the end, behind all that was emitted, as soon as there is credit."""
        for gate in self._gates:
            gate.broadcast(element, flush=True)

    def overtake(
        self, barrier: CheckpointBarrier, *, only_held: bool = False
    ) -> list[tuple[JobEdge, ExecutionAttemptId, list[Batch]]]:
        """Send a barrier ahead of all that waits for credit; on exchanges that keep order, behind it.

        Args:
            barrier: The barrier.
            only_held: It has been broadcast: only where it waits for credit itself, ahead of what waits before it.

        Returns:
            Each of these channels' exchange and consumer, with the records that the barrier overtakes.
        """
        self._has_urgent = True
        overtaken: list[tuple[JobEdge, ExecutionAttemptId, list[Batch]]] = []
        for channel in self._channels:
            if channel.keeps_order:
                if not only_held:
                    channel.add_control(barrier, self._now_ms(), flush=True)
            elif not only_held or channel.holds_barrier(barrier.checkpoint_id):
                overtaken.append((self._edges[channel.edge_id], channel.consumer, channel.overtake(barrier)))
        return overtaken

    def holds_barrier(self, checkpoint_id: int) -> bool:
        """Return whether a barrier has been broadcast and waits for credit somewhere where it may overtake."""
        return any(not c.keeps_order and c.holds_barrier(checkpoint_id) for c in self._channels)

    def flush(self, now_ms: int, outbox: TaskOutbox) -> int | None:
        """Send what is due; gives the time at which more will be, None if nothing waits for time."""
        if self._has_urgent:
            self._send_urgent(outbox)
        wake_ms: int | None = None
        for channel in self._channels:
            due_ms = channel.due_ms(self._buffer_timeout_ms)
            while due_ms is not None and due_ms <= now_ms:
                outbox.send(channel.consumer_address, channel.take_message())
                due_ms = channel.due_ms(self._buffer_timeout_ms)
            if due_ms is not None and (wake_ms is None or due_ms < wake_ms):
                wake_ms = due_ms
        return wake_ms

    def _send_urgent(self, outbox: TaskOutbox) -> None:
        for channel in self._channels:
            while (message := channel.take_urgent()) is not None:
                outbox.send(channel.consumer_address, message)
        self._has_urgent = any(channel.has_urgent for channel in self._channels)


def _keys_behind(head: ChainLink, keys: Sequence[KeyFields]) -> dict[ChainLink, frozenset[KeyFields]]:
    """By which fields of what each operator of a chain gives records are where their keys belong."""
    known = {head: head.operator.kept_keys(keys)}
    open_ends = [head]
    while open_ends:
        link = open_ends.pop()
        for behind in link.output.main_links:
            known[behind] = frozenset[KeyFields]().union(*(behind.operator.kept_keys([key]) for key in known[link]))
            open_ends.append(behind)
    return known
