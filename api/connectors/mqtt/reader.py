"""Reads what a broker delivers in sessions, one for each split, and acknowledges behind checkpoints.

A session is what a broker keeps under a client id: a subscription, and the messages that were not acknowledged in it.
So a split has a client id of its own, and the session goes where the split goes. A broker that has lost a session has
lost what was in it, and says so when it is connected to: it makes a new one.

Messages of QoS 2 are delivered as QoS 1. With QoS 2 a receiver takes a message over by its first answer, before the
message is anywhere else, and the client library gives that answer by itself: a process that dies would lose it.

Acknowledgements go in the order of deliveries, as the protocol has it.

Source: OASIS, "MQTT Version 5.0", 4.1 "Session State", 4.3, 4.6, 4.8.2 "Shared Subscriptions".
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import SourceError
from headrace.state.reading.read_limits import number_in

from ..messages.client_thread import AwayError
from ..messages.consuming import Consumer, ConsumingReader, Delivery
from ..messages.decoding import MessageDecoder, Metadata
from .client import Asked, Broker, BrokerAwayError, BrokerRefusedError, Connection, mqtt

__all__ = ["METADATA", "Message", "MqttReader", "SessionSettings"]

LISTEN_S = 0.02
"""How long the thread listens to the broker until it looks whether something is to be acknowledged."""

QOS = 1

MOST_WITHOUT_QOS = 10_000
"""So many messages may wait to be taken beside those that the broker bounds: of QoS 0 nothing else bounds them."""

SHORT_S = 10.0
MOST_SHORT = 10
"""So many connections in a row that last no longer are taken for two clients that end each other's: not every broker
says so."""

RETAINED_ONCE, RETAINED_NEVER = 1, 2
"""Retained messages come when a subscription is new; or not at all."""

Tag = tuple[int, int]
"""The number of the connection, and of the delivery on it."""


@dataclass(frozen=True, slots=True)
class Message(Delivery[Tag]):
    """A message that was delivered."""

    split_id: str
    tag: Tag | None
    topic: str
    qos: int
    is_retained: bool
    properties: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def place(self) -> str:
        """What tells it from others."""
        return f"topic {self.topic!r}" if self.tag is None else f"topic {self.topic!r}, packet {self.tag[1]}"


_PROPERTIES = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))

METADATA: Metadata = {
    "topic": (pa.string(), lambda message: message.topic),
    "qos": (pa.int32(), lambda message: message.qos),
    "retained": (pa.bool_(), lambda message: message.is_retained),
    "user_properties": (
        _PROPERTIES,
        lambda message: [{"name": name, "value": value} for name, value in message.properties],
    ),
}


@dataclass(frozen=True)
class SessionSettings:
    """How topics are read.

    Attributes:
        id_of: The user property that tells messages apart; None for at least once.
        receive_maximum: How many messages are delivered ahead of their acknowledgement, by split.
        session_expiry_s: How long the broker is to keep a session that nobody is connected to.
        wants_retained: Whether messages that were there before the subscription are read.
        fails_without_session: Whether it is an error if the broker has lost a session.
        drops_topic: Where the broker says how many messages it has dropped; None for nowhere.
        remember_ms: How long ids are known.
        patience_s: How long the broker may be away.
    """

    id_of: str | None
    receive_maximum: int
    session_expiry_s: int
    wants_retained: bool
    fails_without_session: bool
    drops_topic: str | None
    remember_ms: int
    patience_s: float


@dataclass(frozen=True, slots=True)
class _Subscribed:
    """From now on the broker keeps what comes for a split."""

    split_id: str


@dataclass(frozen=True, slots=True)
class _Warning:
    """Something that the job's user should know, counted under a name."""

    metric: str
    number: int
    sentence: str


class _Session(Consumer[Tag]):
    """Takes what a broker delivers in one session, and acknowledges what it is told to."""

    def __init__(self, broker: Broker, settings: SessionSettings, name: str, split: Split) -> None:
        super().__init__(name, settings.receive_maximum + MOST_WITHOUT_QOS, settings.patience_s)
        self._broker = broker
        self._settings = settings
        self._split_id = split.split_id
        self._filter: str = split.payload["filter"]
        self._asked = Asked(split.payload["client_id"], True, settings.session_expiry_s, settings.receive_maximum)
        # One split watches for all, as brokers count for all.
        self._drops_topic = settings.drops_topic if split.payload["watches"] else None
        self._num_dropped: int | None = None
        # Whether the broker must have a session, with what was not acknowledged in it.
        self._had_session = split.position is not None
        self._connection: Connection | None = None
        self._number = 0
        self._connected_s = 0.0
        self._num_short = 0
        self._is_told = False
        # What has come on this connection: not handed on yet; not acknowledged yet, in order; of that, what is due.
        self._arrived: deque[Any] = deque()
        self._open: deque[int] = deque()
        self._settled: set[int] = set()

    # ------------------------------------------------------------------------------------------------- the connection
    def connect(self) -> None:
        self._number += 1
        self._arrived.clear()
        self._open.clear()
        self._settled.clear()
        try:
            self._connection = Connection(self._broker, self._asked, self._arrived.append)
            if self._had_session and not self._connection.has_session:
                self._miss_session(self._connection)
            self._subscribe(self._connection)
        except BrokerAwayError as error:
            raise AwayError(str(error)) from error
        except BrokerRefusedError as error:
            raise SourceError(error.message, hint=error.hint, split=self._split_id) from error
        self._connected_s = time.monotonic()
        self._had_session = self._is_told = True
        self.tell_connected(self._split_id)
        self.give(_Subscribed(self._split_id))

    def _subscribe(self, connection: Connection) -> None:
        # Again with each connection: a process may have died between its first connection and its subscription.
        handling = RETAINED_ONCE if self._settings.wants_retained else RETAINED_NEVER
        connection.subscribe(self._filter, QOS, handling)
        expiry_s = connection.told("SessionExpiryInterval", self._asked.session_expiry_s)
        if expiry_s < self._asked.session_expiry_s:
            self._warn(
                "num_sessions_shortened",
                f"the broker keeps the session {self._asked.client_id!r} for {expiry_s} s when nobody is connected, and"
                f" not for {self._asked.session_expiry_s} s: a job that is away for longer loses messages",
            )
        if self._drops_topic is not None:
            connection.subscribe(self._drops_topic, 0, 0)

    def _miss_session(self, connection: Connection) -> None:
        """What the session held is lost."""
        what = (
            f"the broker has no session {self._asked.client_id!r} any more: messages for {self._filter!r} that were not"
            " acknowledged in it, or came since, are lost"
        )
        if self._settings.fails_without_session:
            self._connection = None
            connection.close(forgets=True)  # the next attempt would find the new one, and go on in silence
            hint = (
                "the broker was started without its data, dropped the session, or its time was over (session_expiry);"
                " on_session_lost='warn' goes on with what comes from now on, and counts it"
            )
            raise SourceError(what, hint=hint, split=self._split_id)
        self._warn("num_sessions_lost", what)

    def _warn(self, metric: str, sentence: str, number: int = 1) -> None:
        self.give(_Warning(metric, number, sentence))

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self.is_stopping:
                self._connection = connection
                self.settle_due()
                self._connection = None
            connection.close()
        if self._is_told:
            self._is_told = False
            self.tell_lost(self._split_id)

    # -------------------------------------------------------------------------------------------------------- messages
    def work(self) -> None:
        assert self._connection is not None
        try:
            self.settle_due()
            self._connection.pump(LISTEN_S)
        except BrokerAwayError as error:
            self._refuse_to_fight(error)
            raise AwayError(str(error)) from error
        except BrokerRefusedError as error:
            raise SourceError(error.message, hint=error.hint, split=self._split_id) from error
        while self._arrived:
            self._hand_on(self._arrived.popleft())

    def _refuse_to_fight(self, error: BrokerAwayError) -> None:
        self._num_short = self._num_short + 1 if time.monotonic() - self._connected_s < SHORT_S else 0
        if self._num_short >= MOST_SHORT:
            message = f"{self._num_short} connections in a row were ended within {SHORT_S:.0f} s; the last one: {error}"
            hint = (
                f"another client may connect as {self._asked.client_id!r}: a client id belongs to one job, and an"
                " attempt of this job that was given up and lives on ends so, too"
            )
            raise SourceError(message, hint=hint, split=self._split_id)

    def _hand_on(self, found: Any) -> None:
        if self._drops_topic is not None and found.topic == self._drops_topic:
            self._note_drops(found.payload)
            return
        tag = None
        if found.qos:
            tag = (self._number, found.mid)
            self._open.append(found.mid)
        properties = tuple(getattr(found.properties, "UserProperty", ()))
        self.give(
            Message(self._split_id, tag, found.topic, found.qos, bool(found.retain), properties, bytes(found.payload))
        )

    def _note_drops(self, payload: bytes) -> None:
        number, before = number_in(payload.decode(errors="replace")), self._num_dropped
        if number is None:
            return
        self._num_dropped = number
        if before is not None and number > before:
            self._warn(
                "num_dropped_by_broker",
                f"the broker says that it has dropped messages, as of {self._drops_topic}; raise its limits of queues,"
                " or take checkpoints more often",
                number - before,
            )

    def while_waiting(self) -> None:
        if self._connection is not None:
            self._connection.stay_alive()

    def acknowledge_now(self, split_id: str, tags: list[Tag]) -> None:
        assert self._connection is not None
        self._settled.update(number for connection, number in tags if connection == self._number)
        while self._open and self._open[0] in self._settled:
            number = self._open.popleft()
            self._settled.discard(number)
            self._connection.acknowledge(number)


class MqttReader(ConsumingReader[Tag]):
    """Reads the sessions of one subtask.

    Args:
        broker: Where they are.
        settings: How.
        decoder: Makes records of messages.
    """

    def __init__(self, broker: Broker, settings: SessionSettings, decoder: MessageDecoder[Message]) -> None:
        super().__init__(settings.remember_ms, settings.receive_maximum, decoder)
        self._broker = broker
        self._settings = settings
        # Splits whose session there is.
        self._subscribed: set[str] = set()
        self._warned: set[str] = set()

    def open(self, context: ReaderContext) -> None:
        mqtt()  # said at once if it is not installed
        super().open(context)

    def add_splits(self, splits: list[Split]) -> None:
        self._subscribed.update(split.split_id for split in splits if split.position is not None)
        super().add_splits(splits)

    def consumers_of(self, splits: Sequence[Split]) -> Mapping[str, _Session]:
        name = f"mqtt {self._context.operator_name} {self._context.subtask + 1}"
        return {split.split_id: _Session(self._broker, self._settings, name, split) for split in splits}

    def id_of(self, message: Message) -> str | None:
        name = self._settings.id_of
        if name is None:
            return None
        for known, value in message.properties:
            if known == name:
                return value
        text = f"a message has no user property {name!r}, by which it would be known if it came again"
        hint = "have the sender set it, or read at least once with deduplicate_by=None"
        raise SourceError(text, hint=hint, split=message.split_id, position=message.place)

    def is_taken(self, message: Message) -> bool:
        if message.tag is None:
            self._tell(
                _Warning(
                    "num_without_acknowledgement",
                    1,
                    "there are messages of QoS 0 among those that are read: at most once, as brokers keep none of them",
                )
            )
        return super().is_taken(message)

    def take_other(self, thing: Any) -> None:
        if isinstance(thing, _Subscribed):
            self._subscribed.add(thing.split_id)
        else:
            self._tell(thing)

    def _tell(self, warning: _Warning) -> None:
        self._context.metrics.count(warning.metric, warning.number)
        if warning.metric not in self._warned:
            self._warned.add(warning.metric)
            self._context.warn(warning.sentence)

    def snapshot(self) -> list[Split]:
        return self._marked(super().snapshot())

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As of the base."""
        return self._marked(super().snapshot_for(checkpoint_id))

    def _marked(self, splits: list[Split]) -> list[Split]:
        """A position says that there is a session, which a restored job must find again."""
        return [split if split.split_id in self._subscribed else replace(split, position=None) for split in splits]
