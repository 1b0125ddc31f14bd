"""Reads queues, by clients in threads: what a server delivers is given, and acknowledged behind checkpoints.

A connector says how its client connects, delivers and acknowledges (`Consumer`), and what tells its messages apart.

Source: Flink's ``MessageAcknowledgingSourceBase``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.engine.connectors.acknowledging import AcknowledgingReader
from headrace.engine.connectors.contract import ALL_SPLITS_FINISHED, NOTHING_NOW, Polled, Split
from headrace.engine.errors import InternalError

from .client_thread import ClientThread
from .decoding import MessageDecoder

__all__ = ["Consumer", "ConsumingReader", "Delivery"]

POLL_MS = 5
"""How soon to look again when nothing was there."""

CLOSE_TIMEOUT_S = 5.0

Tag = TypeVar("Tag", bound=Hashable)


class Delivery(ABC, Generic[Tag]):
    """A message that was delivered.

    Attributes:
        split_id: Of its queue.
        tag: By which it is acknowledged; None if the server waits for nothing.
    """

    __slots__ = ()

    split_id: str
    tag: Tag | None

    @property
    @abstractmethod
    def place(self) -> str:
        """What tells it from others, for errors."""

    @property
    def time_ms(self) -> int | None:
        """Its event time, epoch milliseconds; None if it has none."""
        return None


@dataclass(frozen=True, slots=True)
class _Connected:
    split_id: str


@dataclass(frozen=True, slots=True)
class _Lost:
    split_id: str


@dataclass(frozen=True, slots=True)
class _Mark:
    """All that was delivered before it has been taken when it is."""

    split_id: str


class Consumer(ClientThread, Generic[Tag]):
    """Takes what queues deliver, and acknowledges what it is told to.

    Subclasses call `tell_connected` and `tell_lost` as that happens, `give` deliveries, and call `settle_due` with each
    piece of work.
    """

    def __init__(self, name: str, max_waiting: int, patience_s: float) -> None:
        super().__init__(name, max_waiting, patience_s)
        # What is to be acknowledged, and marks that are to come back: put in by the task, taken out by the thread.
        self._due: deque[tuple[str, list[Tag]] | _Mark] = deque()

    @abstractmethod
    def acknowledge_now(self, split_id: str, tags: list[Tag]) -> None:
        """Acknowledge messages, those of this connection; called in the thread."""

    def acknowledge(self, split_id: str, tags: list[Tag]) -> None:
        """Have messages acknowledged; called by the task."""
        self._due.append((split_id, tags))

    def mark(self, split_id: str) -> None:
        """Have a mark come back; called by the task."""
        self._due.append(_Mark(split_id))

    def settle_due(self) -> None:
        """Acknowledge what is due, and have marks come back behind what was delivered."""
        while self._due:
            first = self._due.popleft()
            if isinstance(first, _Mark):
                self.give(first)
            else:
                self.acknowledge_now(*first)

    def tell_connected(self, split_id: str) -> None:
        """Tell that the server delivers messages of a split from now on."""
        self.give(_Connected(split_id))

    def tell_lost(self, split_id: str) -> None:
        """Tell that messages of a split which this connection has delivered can be acknowledged no more."""
        self.give(_Lost(split_id))


class ConsumingReader(AcknowledgingReader[Tag], ABC, Generic[Tag]):
    """Reads the queues of one subtask.

    Args:
        remember_ms: As of `AcknowledgingReader`.
        prefetch: As of it.
        decoder: Makes records of messages.
    """

    def __init__(self, remember_ms: int, prefetch: int, decoder: MessageDecoder[Any]) -> None:
        super().__init__(remember_ms, prefetch)
        self._decoder = decoder
        # Which of them reads a split.
        self._consumers: dict[str, Consumer[Tag]] = {}

    @abstractmethod
    def consumers_of(self, splits: Sequence[Split]) -> Mapping[str, Consumer[Tag]]:
        """Make consumers of splits, not started; one may be for several."""

    @abstractmethod
    def id_of(self, message: Any) -> str | None:
        """Return what tells a message from others; None if nothing needs to.

        Raises:
            SourceError: If it has no id, and needs one.
        """

    def take_other(self, thing: Any) -> None:
        """Take something that a consumer has given beside messages; here an error, as none gives anything."""
        message = f"a consumer gave something that is no message: {thing!r}"
        raise InternalError(message)

    def subscribe(self, splits: Sequence[Split]) -> None:
        consumers = self.consumers_of(splits)
        self._consumers.update(consumers)
        for consumer in set(consumers.values()):
            consumer.start()

    def acknowledge(self, split_id: str, tags: list[Tag]) -> None:
        self._consumers[split_id].acknowledge(split_id, tags)

    def mark(self, split_id: str) -> None:
        self._consumers[split_id].mark(split_id)

    def poll(self, max_records: int) -> Any:
        consumers = set(self._consumers.values())
        if not consumers:
            return ALL_SPLITS_FINISHED
        self.settle(has_more=any(consumer.has_more for consumer in consumers))
        found: dict[str, list[Any]] = {}
        for consumer in consumers:
            for _ in range(max_records):
                thing = consumer.take()
                if thing is None:
                    break
                if not isinstance(thing, Delivery):
                    self._note(thing)
                elif self.is_taken(thing):
                    found.setdefault(thing.split_id, []).append(thing)
        polled = [
            Polled(split_id, batch)
            for split_id, messages in found.items()
            if len(batch := self._decoder.decode(self._context, split_id, messages, lambda message: message.time_ms))
        ]
        return polled or NOTHING_NOW

    def is_taken(self, message: Any) -> bool:
        """Return whether a message is to be given."""
        return message.tag is None or self.is_new(message.split_id, self.id_of(message), message.tag)

    def _note(self, thing: Any) -> None:
        if isinstance(thing, _Connected):
            self.connected(thing.split_id)
        elif isinstance(thing, _Mark):
            self.lasted(thing.split_id)
        elif isinstance(thing, _Lost):
            self.connection_lost(thing.split_id)
        else:
            self.take_other(thing)

    def next_poll_ms(self) -> int | None:
        return self._context.now_ms() + POLL_MS

    def close(self) -> None:
        for consumer in set(self._consumers.values()):
            consumer.stop(CLOSE_TIMEOUT_S)
        self._consumers.clear()
