"""Topics of MQTT as a source: at least once, and exactly once with ids of messages as far as they are remembered.

A broker has no positions: it keeps a message for a session until that acknowledges it. Messages are acknowledged when a
complete checkpoint covers them (`headrace.engine.connectors.acknowledging`). A split is a session, whose client id is
stable over restarts: one for each topic filter, or several that share one (``$share``).

Source: OASIS, "MQTT Version 5.0"; Flink's ``MessageAcknowledgingSourceBase``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headrace.engine.connectors.contract import (
    Discovery,
    EnumeratorContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT
from headrace.state.values.durations import parse_duration_ms

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, names_of, patience_s_of, remember_ms_of
from ..messages.decoding import MessageDecoder, OnError
from ..messages.tls import Tls
from .client import FOR_EVER_S, KEEPALIVE_S, Broker
from .reader import METADATA, Message, MqttReader, SessionSettings

__all__ = ["MqttSource"]

MOST_RECEIVED = 65_535
LEAST_MEMORY_MS = 4 * KEEPALIVE_S * 1_000
"""A broker takes half as long again as the keep-alive to notice that a connection is gone."""

SHARED = "$share/"


class MqttSource(Source[OUT]):
    """Reads messages of topics; with ``metadata`` also what MQTT says of them.

    Records have no event times of their own: give the watermark strategy an assigner.

    Args:
        url: ``mqtt://user:password@host:port``, or ``mqtts://`` with TLS.
        topics: A topic filter, or several, each of which is a session and a split; ``$share/group/filter`` shares its
            messages with others of the group. A message that matches several comes once for each.
        value: How messages are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        client_id: Under which the broker keeps the sessions, with a number for each: of this source alone, and the same
            whenever the job goes on.
        consumers: How many sessions share a filter of ``$share``, and so how many subtasks may read it.
        deduplicate_by: The user property that tells messages apart, each of which must have one of its own. None: what
            comes again is given again. With ``consumers`` above 1 only None.
        receive_maximum: How many messages of a session are delivered ahead of the checkpoint that covers them: more
            than arrive in a checkpoint interval, or the session waits for each checkpoint, which the job's history
            says, and brokers drop what they do not want to keep meanwhile.
        session_expiry: How long the broker keeps a session when nobody is connected: milliseconds or text; None without
            end. A job that is away for longer has lost messages.
        on_session_lost: What becomes of the job if a broker has no session any more that must be there: ``fail``, or
            ``warn``, counted as ``num_sessions_lost``. What was in the session is lost in either case.
        retained: Whether retained messages are read that are there when a session begins.
        drops_topic: Where the broker says how many messages it has dropped, as Mosquitto does in
            ``$SYS/broker/publish/messages/dropped``: when that grows it is counted as ``num_dropped_by_broker``, and
            said in the job's history.
        remember: How long ids of messages are known behind their checkpoint: milliseconds or text, of time in which the
            broker delivers. They are part of checkpoints.
        metadata: Columns that are added to those of the value: ``topic``, ``qos``, ``retained``, ``user_properties``. A
            mapping gives them other names.
        on_error: What becomes of a message that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long the broker may be away before the job fails: milliseconds or text.
        tls: Whom to trust, for ``mqtts://``.

    Guarantees: at least once for messages of QoS 1 and 2, as far as the broker keeps them; what comes again is given
        once with ``deduplicate_by``, as long as it does not come later than ``remember``. Messages of QoS 0 at most
        once, counted as ``num_without_acknowledgement``. Without checkpoints a message is acknowledged when its record
        has been handed on.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = False

    def __init__(
        self,
        url: str,
        topics: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        client_id: str,
        consumers: int = 1,
        deduplicate_by: str | None = None,
        receive_maximum: int = 10_000,
        session_expiry: int | str | None = "1 d",
        on_session_lost: Literal["fail", "warn"] = "fail",
        retained: bool = True,
        drops_topic: str | None = None,
        remember: int | str = "10 min",
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        patience: int | str = "1 min",
        tls: Tls | None = None,
    ) -> None:
        filters = names_of("topic filters", topics)
        for one in filters:
            check_filter(one)
        if not isinstance(client_id, str) or not client_id or "\0" in client_id:
            message = f"client_id is a text by which the broker knows the source again; got {client_id!r}"
            raise ConfigurationError(message)
        if consumers < 1 or (consumers > 1 and not all(one.startswith(SHARED) for one in filters)):
            message = f"consumers must be 1, or more for filters of $share; got {consumers}"
            raise ConfigurationError(message, hint=f"'{SHARED}{client_id}/{filters[0]}' shares messages among them")
        if deduplicate_by is not None and any(one.startswith(SHARED) for one in filters):
            message = f"deduplicate_by is for filters without $share; got {deduplicate_by!r}"
            hint = "a message that comes again to another session is not known there"
            raise ConfigurationError(message, hint=hint)
        if not 1 <= receive_maximum <= MOST_RECEIVED:
            message = f"receive_maximum must be from 1 to {MOST_RECEIVED}; got {receive_maximum}"
            raise ConfigurationError(message)
        if on_session_lost not in ("fail", "warn"):
            message = f"on_session_lost must be fail or warn; got {on_session_lost!r}"
            raise ConfigurationError(message)
        hint = "a broker takes a while to notice that a connection is gone, and gives its messages again then"
        remember_ms = remember_ms_of(remember, LEAST_MEMORY_MS, hint)
        self._scan = _Scan(filters, consumers, client_id)
        self._broker = Broker.of(url, tls)
        self._settings = SessionSettings(
            id_of=deduplicate_by,
            receive_maximum=receive_maximum,
            session_expiry_s=_expiry_s_of(session_expiry),
            wants_retained=retained,
            fails_without_session=on_session_lost == "fail",
            drops_topic=drops_topic,
            remember_ms=remember_ms,
            patience_s=patience_s_of(patience),
        )
        self._decoder = MessageDecoder[Message](
            value, lambda message: message.body, lambda message: message.place, METADATA, columns_of(metadata), on_error
        )

    def __repr__(self) -> str:
        return f"MqttSource({', '.join(self._scan.filters)})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what says which sessions there are."""
        return _Sessions(self._scan)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return MqttReader(self._broker, self._settings, self._decoder)


def check_filter(text: object) -> None:
    """See that a text is a topic filter.

    Raises:
        ConfigurationError: If it is none.
    """
    levels = text.split("/") if isinstance(text, str) else []
    if levels and levels[0] == "$share":
        is_shared = len(levels) > 2 and levels[1] and not set(levels[1]) & set("+#")
        levels = levels[2:] if is_shared else []
    is_right = bool(levels) and levels != [""] and "\0" not in "".join(levels)
    is_right = is_right and all(level == "+" or "+" not in level for level in levels)
    is_right = is_right and all("#" not in level for level in levels[:-1])
    if not is_right or ("#" in levels[-1] and levels[-1] != "#"):
        message = f"a topic filter has levels with / between, + for one and # for all others at its end; got {text!r}"
        raise ConfigurationError(message, hint="sensors/+/temperature, sensors/#, $share/group/sensors/#")


def _expiry_s_of(duration: int | str | None) -> int:
    if duration is None:
        return FOR_EVER_S
    milliseconds = parse_duration_ms(duration)
    if not 1_000 <= milliseconds < FOR_EVER_S * 1_000:
        message = f"session_expiry must be a second at least, or None for no end; got {duration!r}"
        raise ConfigurationError(message)
    return milliseconds // 1_000


@dataclass(frozen=True, slots=True)
class _Scan:
    filters: tuple[str, ...]
    consumers: int
    client_id: str

    def split(self, topic_filter: str, number: int) -> Split:
        """The session of a filter with a number, from 1; the same one whatever other filters there are."""
        known = hashlib.sha256(topic_filter.encode()).hexdigest()[:8]
        return Split(
            topic_filter if number == 1 else f"{topic_filter} {number}",
            {
                "filter": topic_filter,
                "client_id": f"{self.client_id}-{known}-{number}",
                "watches": topic_filter == self.filters[0] and number == 1,
            },
        )


class _Sessions:
    discovery_interval_ms: int | None = None

    def __init__(self, scan: _Scan) -> None:
        self._scan = scan

    def discover(self) -> Discovery:
        """One split for each consumer of a filter."""
        numbers = range(1, self._scan.consumers + 1)
        return Discovery([self._scan.split(one, n) for one in self._scan.filters for n in numbers], is_final=True)
