"""The two ends of a channel: numbered messages, credit, and nothing lost, doubled or overtaken.

An `OutputChannel` gathers elements and turns them into numbered messages while it has credit: under load messages
grow, because elements gather while credit is missing; at a low rate they leave after the buffer timeout. An
`InputChannel` takes messages in sequence, drops repeated ones, refuses gaps, and grants credit as elements are
consumed. Backpressure is nothing but missing credit.

A barrier of an unaligned checkpoint does not wait its turn: it leaves at once, without credit, as a message of its own,
and is not queued where it arrives, unless the task waits for other channels (`InputChannel.keep_place`). What it
overtook is told to what takes the snapshot: `OutputChannel.overtake` at one end, `InputChannel.in_flight` at the
other. Messages keep their order; only the barrier's place among the elements changes. On a channel that *keeps order*
no barrier overtakes.

A consumer that is slow shrinks its window of credit (`InputChannel.resize`, by `headrace.engine.task.debloating`), and
tells its producer with each grant how large messages may be: the producer is full earlier then, and sends less at once.

Credit is absolute (allowed up to message n and byte b since the channel's beginning), so doubled or late grants are
harmless.

Source: Flink's credit-based flow control (``RemoteInputChannel``, ``PipelinedSubpartition``) and buffer debloating.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.state.identifiers import ExecutionAttemptId

from ..columns.records import Batch, CheckpointBarrier, Element, Watermark
from ..errors import InternalError
from ..kernel.machine import Address
from ..protocol.task_messages import AddCredit, DataMessage

__all__ = ["MESSAGES_PER_WINDOW", "CutBatch", "InputChannel", "OutputChannel"]

CutBatch = Callable[[Batch, int], int]
"""Says how many records of a batch to take now, of which so many have been taken before: at least one."""

MAX_PENDING_ELEMENTS = 1_024
"""A channel with this many elements waiting is full even if they are tiny: bounds watermarks under backpressure."""

MESSAGES_PER_WINDOW = 2
"""A window that has shrunk is to be filled by so many messages: while one is taken, the next one is on its way."""

MERGE_BELOW_ROWS = 8_192
"""Neighbouring batches smaller than this are merged when a message is made: the receiver's kernels want length, and
the copy is cheap.
"""


class OutputChannel:
    """The sending end of a channel: gathers elements, sends them as messages while there is credit."""

    __slots__ = (
        "_credit_bytes",
        "_credit_sequence",
        "_flush_wanted",
        "_limit_bytes",
        "_max_bytes",
        "_max_rows",
        "_oldest_ms",
        "_pending",
        "_pending_bytes",
        "_pending_rows",
        "_sent_bytes",
        "_sequence",
        "_urgent",
        "added_rows",
        "consumer",
        "consumer_address",
        "edge_id",
        "keeps_order",
        "producer",
    )

    def __init__(
        self,
        edge_id: int,
        producer: ExecutionAttemptId,
        consumer: ExecutionAttemptId,
        consumer_address: Address,
        max_rows: int,
        max_bytes: int,
        *,
        keeps_order: bool = False,
        first_bytes: int = 0,
    ) -> None:
        self.edge_id = edge_id
        # Whether barriers never overtake here.
        self.keeps_order = keeps_order
        self.producer = producer
        self.consumer = consumer
        self.consumer_address = consumer_address
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        # Elements not yet sent, in order.
        self._pending: list[Element] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        # When the oldest pending element came.
        self._oldest_ms = 0
        # A barrier or the end waits: send as soon as there is credit.
        self._flush_wanted = False
        # Records gathered since the channel's beginning.
        self.added_rows = 0
        # Number of the next message; bytes sent so far.
        self._sequence = 0
        self._sent_bytes = 0
        # Bytes that a message may have by the consumer's last word; 0 for no bound of its own.
        self._limit_bytes = first_bytes
        # Allowed by the consumer: messages below this number, and a start below this many bytes.
        self._credit_sequence = 0
        self._credit_bytes = 0
        # Barriers that leave before anything that is pending, as soon as the consumer has started.
        self._urgent: deque[CheckpointBarrier] = deque()

    @property
    def has_pending(self) -> bool:
        """Whether elements wait to be sent."""
        return bool(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether the task must not produce more for now."""
        return (
            self._pending_rows >= self._max_rows
            or self._pending_bytes >= self.limit_bytes
            or len(self._pending) >= MAX_PENDING_ELEMENTS
        )

    @property
    def usage(self) -> float:
        """How full it is, 0 to 1 (and over, behind a batch that is larger than it may hold)."""
        return max(self._pending_rows / self._max_rows, self._pending_bytes / self.limit_bytes)

    @property
    def limit_bytes(self) -> int:
        """How many bytes are gathered before the channel is full: what the consumer wants at once."""
        return self._limit_bytes or self._max_bytes

    @property
    def is_limited(self) -> bool:
        """Whether the consumer wants less at once than is configured."""
        return self._limit_bytes > 0

    @property
    def added_bytes(self) -> int:
        """Bytes gathered since the channel's beginning."""
        return self._sent_bytes + self._pending_bytes

    @property
    def has_credit(self) -> bool:
        """Whether a message may be sent. One message may overshoot the bytes, so that none is too big to ever go."""
        return self._sequence < self._credit_sequence and self._sent_bytes < self._credit_bytes

    def add_batch(self, batch: Batch, now_ms: int) -> None:
        """Gather records."""
        if not self._pending:
            self._oldest_ms = now_ms
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.added_rows += batch.num_rows
        self._pending_bytes += batch.nbytes

    def add_control(self, element: Element, now_ms: int, *, flush: bool = False) -> None:
        """Gather a control element; a watermark replaces one right before it; with ``flush`` everything leaves at
        once.
        """
        if not self._pending:
            self._oldest_ms = now_ms
        if isinstance(element, Watermark) and self._pending and isinstance(self._pending[-1], Watermark):
            self._pending[-1] = element
        else:
            self._pending.append(element)
        self._flush_wanted |= flush

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch]:
        """Send a barrier ahead of all that is pending, or of what is pending before it if it has been added already.

        Returns:
            The records it overtakes. They are sent later, as they would have been.
        """
        place = self._place_of(barrier.checkpoint_id)
        overtaken = self._pending if place is None else self._pending[:place]
        batches = [element for element in overtaken if isinstance(element, Batch)]
        if place is not None:
            del self._pending[place]
        self._urgent.append(barrier)
        return batches

    def holds_barrier(self, checkpoint_id: int) -> bool:
        """Return whether a barrier has been added and has not left."""
        return self._place_of(checkpoint_id) is not None

    def _place_of(self, checkpoint_id: int) -> int | None:
        for place, element in enumerate(self._pending):
            if isinstance(element, CheckpointBarrier) and element.checkpoint_id == checkpoint_id:
                return place
        return None

    def take_urgent(self) -> DataMessage | None:
        """Take the next barrier that is to leave before all else, if there is one.

        A consumer that has never granted anything has not started: it gets nothing, as there is nothing before it.
        """
        if not self._urgent or not self._credit_sequence:
            return None
        barrier = self._urgent.popleft()
        message = DataMessage(self.edge_id, self.producer, self.consumer, self._sequence, (barrier,), 0, overtakes=True)
        self._sequence += 1
        return message

    @property
    def has_urgent(self) -> bool:
        """Whether a barrier is to leave before all else."""
        return bool(self._urgent)

    def add_credit(self, credit: AddCredit) -> None:
        """Take a grant; older ones change nothing."""
        if credit.up_to_sequence >= self._credit_sequence:
            self._limit_bytes = min(credit.batch_bytes, self._max_bytes)
        self._credit_sequence = max(self._credit_sequence, credit.up_to_sequence)
        self._credit_bytes = max(self._credit_bytes, credit.up_to_bytes)

    def due_ms(self, buffer_timeout_ms: int) -> int | None:
        """Give when the pending elements should leave: 0 for at once, None if there are none or no credit for them."""
        if not self._pending or not self.has_credit:
            return None
        if self._flush_wanted or self.is_full:
            return 0
        return self._oldest_ms + buffer_timeout_ms

    def take_message(self) -> DataMessage:
        """Turn what is pending, or as much as may go at once, into the next message; `due_ms` has said that it may."""
        rest: list[Element] = []
        # A batch somewhat too large goes as it is: what is cut has to be copied.
        if self._pending_bytes > (self._limit_bytes or 2 * self._max_bytes):
            rest = self._cut(self.limit_bytes)
        elements = tuple(_merge_small(self._pending)) if len(self._pending) > 1 else tuple(self._pending)
        nbytes = self._pending_bytes + 32 * len(elements)
        message = DataMessage(self.edge_id, self.producer, self.consumer, self._sequence, elements, nbytes)
        self._sequence += 1
        self._sent_bytes += nbytes
        self._pending = rest
        self._pending_rows = self._pending_bytes = 0
        if rest:
            batches = [element for element in rest if isinstance(element, Batch)]
            self._pending_rows = sum(batch.num_rows for batch in batches)
            self._pending_bytes = sum(batch.nbytes for batch in batches)
        else:
            self._flush_wanted = False
        return message

    def _cut(self, left_bytes: int) -> list[Element]:
        """Leave no more pending than so many bytes; gives the rest. What is left has some element."""
        for place, element in enumerate(self._pending):
            if not isinstance(element, Batch):
                continue
            if element.nbytes <= left_bytes:
                left_bytes -= element.nbytes
                continue
            num_rows = left_bytes * element.num_rows // element.nbytes
            if num_rows == 0 and place == 0:
                num_rows = 1
            rest = self._pending[place + 1 :]
            self._pending = self._pending[:place]
            if num_rows:
                self._pending.append(element.slice(0, num_rows))
            if num_rows < element.num_rows:
                rest.insert(0, element.slice(num_rows, element.num_rows - num_rows))
            batches = [element for element in self._pending if isinstance(element, Batch)]
            self._pending_rows = sum(batch.num_rows for batch in batches)
            self._pending_bytes = sum(batch.nbytes for batch in batches)
            return rest
        return []


def _merge_small(elements: list[Element]) -> list[Element]:
    """Merge runs of neighbouring small batches, but for those of other columns."""
    merged: list[Element] = []
    run: list[Batch] = []
    for element in elements:
        small = element if isinstance(element, Batch) and element.num_rows < MERGE_BELOW_ROWS else None
        if run and (small is None or not _is_alike(run[-1], small)):
            merged.append(Batch.concat(run))
            run = []
        if small is None:
            merged.append(element)
        else:
            run.append(small)
    if run:
        merged.append(Batch.concat(run))
    return merged


def _is_alike(batch: Batch, other: Batch) -> bool:
    """Whether batches may become one: records of other columns would become plain rows for it."""
    one, two = batch.schema, other.schema
    return one is two or one is None or two is None or one.names == two.names


class InputChannel:
    """The receiving end of a channel: numbered messages in, elements out, credit back."""

    __slots__ = (
        "_consumed_messages",
        "_credit_bytes",
        "_credits",
        "_granted_bytes",
        "_granted_messages",
        "_granted_window",
        "_message_bytes",
        "_position",
        "_queue",
        "_rows_taken",
        "_sequence",
        "_window_bytes",
        "consumed_bytes",
        "consumer",
        "edge_id",
        "index",
        "input_index",
        "is_blocked",
        "is_ended",
        "keeps_order",
        "producer",
        "producer_address",
        "tap",
    )

    def __init__(
        self,
        index: int,
        edge_id: int,
        input_index: int,
        producer: ExecutionAttemptId,
        consumer: ExecutionAttemptId,
        producer_address: Address,
        max_messages: int,
        credit_bytes: int,
        *,
        keeps_order: bool = False,
    ) -> None:
        # Whether barriers never overtake here.
        self.keeps_order = keeps_order
        # Position among the task's channels; which input of the head operator it feeds.
        self.index = index
        self.edge_id = edge_id
        self.input_index = input_index
        self.producer = producer
        self.consumer = consumer
        self.producer_address = producer_address
        # Told of each new message while somebody looks at what arrives; put here from another thread.
        self.tap: Callable[[DataMessage], None] | None = None
        # Set while a barrier waits for the other channels: nothing is taken then.
        self.is_blocked = False
        # Set when EndOfInput has been taken; only barriers follow.
        self.is_ended = False
        self._credits = max_messages
        # The most bytes in flight, and how many are allowed for now.
        self._credit_bytes = self._window_bytes = credit_bytes
        # Messages received and not yet fully taken; how far into the first one we are.
        self._queue: deque[DataMessage] = deque()
        self._position = 0
        # Records of the next batch that have been taken before it: it is taken in pieces.
        self._rows_taken = 0
        # Bytes of the first message that count as consumed.
        self._message_bytes = 0
        # Number of the next message expected.
        self._sequence = 0
        self._consumed_messages = self.consumed_bytes = 0
        # Both counters as they were at the last grant; the window that it gave.
        self._granted_messages = self._granted_bytes = 0
        self._granted_window = credit_bytes

    def receive(self, message: DataMessage) -> bool:
        """Take a message off the wire. A barrier that overtakes is not queued: the caller acts on it at once.

        Returns:
            Whether it is a new one.

        Raises:
            InternalError: If a message before it is missing: records would be lost.
        """
        if message.sequence < self._sequence:
            return False  # a repetition
        if message.sequence > self._sequence:
            text = f"channel lost messages {self._sequence} to {message.sequence - 1}"
            raise InternalError(text, edge=self.edge_id, producer=str(self.producer), consumer=str(self.consumer))
        self._sequence += 1
        tap = self.tap
        if tap is not None:
            tap(message)
        if message.overtakes:
            self._consumed_messages += 1
        else:
            self._queue.append(message)
        return True

    def keep_place(self, message: DataMessage) -> None:
        """Queue a barrier that has just been received ahead of what it overtook, behind all that has come.

        What it overtook comes after it, so the channel gives exactly what was processed, or in flight, before it.
        """
        self._consumed_messages -= 1
        self._queue.append(message)

    def in_flight(self, checkpoint_id: int) -> tuple[list[Batch], bool]:
        """Return the records that have come and not been taken, up to a barrier; and whether that has come."""
        batches: list[Batch] = []
        start = self._position
        if self._rows_taken:
            batches.append(self._rest())
            start += 1
        for message in self._queue:
            for element in message.elements[start:]:
                if isinstance(element, Batch):
                    batches.append(element)
                elif isinstance(element, CheckpointBarrier) and element.checkpoint_id == checkpoint_id:
                    return batches, True
            start = 0
        return batches, False

    @property
    def has_element(self) -> bool:
        """Whether `take` would give something: it has data and is not blocked."""
        return bool(self._queue) and not self.is_blocked

    @property
    def has_control(self) -> bool:
        """Whether `take` would give anything but records."""
        return self.has_element and type(self._queue[0].elements[self._position]) is not Batch

    @property
    def has_rest(self) -> bool:
        """Whether a batch has been taken in part."""
        return self._rows_taken > 0

    def take(self, cut: CutBatch | None = None) -> Element:
        """Take the next element, or a piece of it.

        Args:
            cut: Says how many records of a batch to take; None takes all that is left of it.
        """
        message = self._queue[0]
        element = message.elements[self._position]
        if isinstance(element, Batch):
            offset = self._rows_taken
            num_rows = element.num_rows - offset
            if cut is not None:
                num_rows = cut(element, offset)
            if offset + num_rows < element.num_rows:
                self._rows_taken += num_rows
                # Credit follows what is taken, not whole messages: one may be as large as all that may be in flight.
                self._count_bytes(
                    min(self._message_bytes + element.nbytes * num_rows // element.num_rows, message.nbytes)
                )
                return element.slice(offset, num_rows)
            if offset:
                element, self._rows_taken = self._rest(), 0
        self._position += 1
        if self._position == len(message.elements):
            self._queue.popleft()
            self._position = 0
            self._consumed_messages += 1
            self._count_bytes(message.nbytes)
            self._message_bytes = 0
        return element

    def _count_bytes(self, message_bytes: int) -> None:
        """So many bytes of the first message have been taken."""
        self.consumed_bytes += message_bytes - self._message_bytes
        self._message_bytes = message_bytes

    def _rest(self) -> Batch:
        """What is left of a batch that is taken in pieces."""
        batch = self._queue[0].elements[self._position]
        assert isinstance(batch, Batch)
        return batch.slice(self._rows_taken, batch.num_rows - self._rows_taken)

    @property
    def usage(self) -> float:
        """How much of what may be in flight has arrived and waits to be taken, 0 to 1 (and over, of large batches)."""
        return sum(message.nbytes for message in self._queue) / self._window_bytes

    @property
    def window_bytes(self) -> int:
        """How many bytes may be in flight."""
        return self._window_bytes

    def resize(self, num_bytes: int) -> bool:
        """Allow so many bytes in flight from the next grant on; gives whether that is more than before."""
        before, self._window_bytes = self._window_bytes, min(max(num_bytes, 1), self._credit_bytes)
        return self._window_bytes > before

    def initial_credit(self) -> AddCredit:
        """Return the first grant, sent when the task starts."""
        return self.grant()

    def credit_due(self) -> AddCredit | None:
        """Return the next grant, once half of the last one has been used; granting less often saves messages, later
        would stall.
        """
        if 2 * (self._consumed_messages - self._granted_messages) >= self._credits or 2 * (
            self.consumed_bytes - self._granted_bytes
        ) >= min(self._window_bytes, self._granted_window):
            return self.grant()
        return None

    def grant(self) -> AddCredit:
        """Return a grant out of turn, as after the window has grown."""
        self._granted_messages, self._granted_bytes = self._consumed_messages, self.consumed_bytes
        self._granted_window = self._window_bytes
        return AddCredit(
            self.edge_id,
            self.producer,
            self.consumer,
            self._consumed_messages + self._credits,
            self.consumed_bytes + self._window_bytes,
            0 if self._window_bytes == self._credit_bytes else max(self._window_bytes // MESSAGES_PER_WINDOW, 1),
        )
