"""Where a broker of MQTT is, and one connection to it, which runs in the thread that uses it.

The client library is imported when it is needed. Its own loop asks ``select``, which knows no more than 1,024 files of
a process, so there is another one here.

Source: OASIS, "MQTT Version 5.0".
"""

from __future__ import annotations

import contextlib
import functools
import select
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.errors import ConfigurationError, ExternalError
from headrace.state.credentials import masked
from headrace.state.extras import needs

from ..messages.server_urls import ServerUrl
from ..messages.tls import Tls

__all__ = ["Broker", "BrokerAwayError", "BrokerRefusedError", "Connection", "mqtt"]

TIMEOUT_S = 30.0
"""For one answer, and for a connection."""

KEEPALIVE_S = 30
"""How long a side may be silent until the other one takes the connection for broken: half as long again."""

PORT, TLS_PORT = 1883, 8883

READS_AT_ONCE = 500
"""So many packets are read before anything else is looked after."""

FAILURE = 128
"""Reason codes from here on are errors."""

_PASSING = (136, 137, 139, 151, 159)
"""Server unavailable, busy, shutting down; quota exceeded; connections come too fast."""

TAKEN_OVER = 142

FOR_EVER_S = 0xFFFFFFFF


def mqtt() -> Any:
    """Return the client library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("MQTT needs its client, paho-mqtt", "mqtt"):
        import paho.mqtt.client as library
    return library


def _properties(packet: str, **values: Any) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made = Properties(getattr(PacketTypes, packet))
    for name, value in values.items():
        setattr(made, name, value)
    return made


class BrokerAwayError(ExternalError):
    """A broker does not answer, or a connection is broken: it may be back in a moment."""


class BrokerRefusedError(ExternalError):
    """A broker does not allow what was asked for, and will not the next time."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, and who asks.

    Attributes:
        host: Its name.
        port: Where it listens.
        user: Who; None for nobody.
        password: Of the user.
        tls: Of ``mqtts://``; None without TLS.
    """

    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    tls: Tls | None

    @classmethod
    def of(cls, url: str, tls: Tls | None) -> Broker:
        """Read ``mqtt://user:password@host:port``, or ``mqtts://`` with TLS.

        Raises:
            ConfigurationError: If it is none.
        """
        form = "mqtt://user:password@host:port, or mqtts:// with TLS"
        found = ServerUrl.of(url, {"mqtt": PORT, "mqtts": TLS_PORT}, form)
        if found.path not in ("", "/"):
            message = f"url must be {form}; got {masked(url)!r}"
            raise ConfigurationError(message)
        is_safe = found.scheme == "mqtts"
        if tls is not None and (not is_safe or not isinstance(tls, Tls)):
            message = f"tls is a Tls, for mqtts://; got {tls!r} for {found.scheme}://"
            raise ConfigurationError(message)
        return cls(found.host, found.port, found.user, found.password, (tls or Tls()) if is_safe else None)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a connection asks its broker for.

    Attributes:
        client_id: Under which the broker keeps a session; only one connection may have it. Empty: the broker gives one.
        goes_on: Whether with a session that is there already.
        session_expiry_s: How long the broker keeps the session when nobody is connected; 0: not at all.
        receive_maximum: How many messages it may deliver ahead of their acknowledgements; None as it likes.
    """

    client_id: str = ""
    goes_on: bool = False
    session_expiry_s: int = 0
    receive_maximum: int | None = None


class Connection:
    """One connection. All of it is used by one thread, and what its client does happens in `pump`.

    Args:
        broker: Where.
        asked: For what.
        on_message: Takes each message that comes, within `pump`.
        on_published: Takes the number of each message that was sent here, and what the broker has answered.

    Raises:
        BrokerAwayError: If there is no answer.
        BrokerRefusedError: If the broker does not want it.
    """

    def __init__(
        self,
        broker: Broker,
        asked: Asked,
        on_message: Callable[[Any], None] = lambda _message: None,
        on_published: Callable[[int, Any], None] = lambda _number, _reason: None,
    ) -> None:
        library = mqtt()
        self._broker = broker
        self._granted: dict[int, list[Any]] = {}
        self._answer: tuple[Any, Any, Any] | None = None
        self._ended: Any = None
        self._num_messages = 0
        client = self._client = library.Client(
            library.CallbackAPIVersion.VERSION2,
            client_id=asked.client_id,
            protocol=library.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = TIMEOUT_S
        client.max_inflight_messages_set(0)  # who publishes keeps to what the broker takes
        client.on_connect = lambda _client, _data, flags, reason, properties: self._connected(flags, reason, properties)
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self._note_end(reason)
        client.on_subscribe = lambda _client, _data, number, reasons, _properties: self._granted.update(
            {number: reasons}
        )
        client.on_publish = lambda _client, _data, number, reason, _properties: on_published(number, reason)
        client._handle_pubrec = functools.partial(self._received, on_published, client._handle_pubrec)

        def take(_client: Any, _data: Any, message: Any) -> None:
            self._num_messages += 1
            on_message(message)

        client.on_message = take
        if broker.user is not None:
            client.username_pw_set(broker.user, broker.password)
        if broker.tls is not None:
            client.tls_set_context(broker.tls.context())
        values: dict[str, Any] = {"SessionExpiryInterval": asked.session_expiry_s}
        if asked.receive_maximum is not None:
            values["ReceiveMaximum"] = asked.receive_maximum
        try:
            client.connect(
                broker.host,
                broker.port,
                keepalive=KEEPALIVE_S,
                clean_start=not asked.goes_on,
                properties=_properties("CONNECT", **values),
            )
        except ssl.SSLCertVerificationError as error:
            message = f"the certificate of the broker at {broker} is not trusted: {error.verify_message}"
            raise BrokerRefusedError(message) from error
        except OSError as error:
            raise self._away(error) from error
        except ValueError as error:  # a name or a password that cannot be sent
            message = f"the broker at {broker} cannot be asked: {masked(str(error))}"
            raise BrokerRefusedError(message) from error
        try:
            self._wait_for(lambda: self._answer is not None)
        except BaseException:
            self.close()
            raise

    # --------------------------------------------------------------------------------------------- what the broker says
    def _connected(self, flags: Any, reason: Any, properties: Any) -> None:
        self._answer = (flags, reason, properties)

    def _note_end(self, reason: Any) -> None:
        self._ended = reason

    def _received(self, on_published: Callable[[int, Any], None], go_on: Callable[[], Any]) -> Any:
        """The broker has answered a message of QoS 2 for the first time.

        The library does not look at what it says, and takes a message that was refused for one that is under way.
        """
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.reasoncodes import ReasonCode

        answer = bytes(self._client._in_packet["packet"])
        if len(answer) <= 2 or answer[2] < FAILURE:
            return go_on()
        on_published(int.from_bytes(answer[:2], "big"), ReasonCode(PacketTypes.PUBREC, identifier=answer[2]))
        return mqtt().MQTT_ERR_SUCCESS

    @property
    def has_session(self) -> bool:
        """Whether the broker has gone on with a session that it had."""
        assert self._answer is not None
        return bool(self._answer[0].session_present)

    def told(self, name: str, default: Any) -> Any:
        """Return what the broker has said of itself when it was connected to; a default if it has not."""
        assert self._answer is not None
        return getattr(self._answer[2], name, default)

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                message = f"it has not answered within {TIMEOUT_S:.0f} s"
                raise self._away(message)
            self.pump(0.1)
        self._check_answer()

    def _check_answer(self) -> None:
        assert self._answer is not None
        reason = self._answer[1]
        if reason.value >= FAILURE:
            raise self._error_of(reason)

    def _error_of(self, reason: Any) -> ExternalError:
        if reason.value == TAKEN_OVER:
            message = f"another client has connected to the broker at {self._broker} under the same client id"
            hint = "a client id belongs to one job; an attempt of this job that was given up and lives on ends so, too"
            return BrokerRefusedError(message, hint=hint)
        if reason.value in _PASSING or reason.value < FAILURE or self._is_connected:
            return self._away(reason)
        message = f"the broker at {self._broker} refuses the connection: {reason}"
        return BrokerRefusedError(message)

    @property
    def _is_connected(self) -> bool:
        return self._answer is not None and self._answer[1].value < FAILURE

    def _away(self, why: Any) -> BrokerAwayError:
        message = f"the broker at {self._broker} cannot be reached: {masked(str(why) or repr(why))}"
        return BrokerAwayError(message)

    # -------------------------------------------------------------------------------------------------- what is done
    def pump(self, timeout_s: float) -> None:
        """Send and receive what there is; waits for it as long as that.

        Raises:
            BrokerAwayError: If the connection is broken.
            BrokerRefusedError: If the broker has ended it for good.
        """
        client, socket = self._client, self._client.socket()
        if socket is not None:
            poller = select.poll()
            poller.register(socket, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
            is_there = isinstance(socket, ssl.SSLSocket) and socket.pending() > 0
            for _, event in poller.poll(0 if is_there else timeout_s * 1_000) or [
                (0, select.POLLIN if is_there else 0)
            ]:
                if event & ~select.POLLOUT:
                    self._read()
                if event & select.POLLOUT:
                    client.loop_write()
            client.loop_misc()
        if client.socket() is None:
            if self._answer is not None:
                self._check_answer()
            raise self._away("it has closed the connection") if self._ended is None else self._error_of(self._ended)

    def _read(self) -> None:
        for _ in range(READS_AT_ONCE):
            before = self._num_messages
            self._client.loop_read()
            if self._num_messages == before or self._client.socket() is None:
                return

    def stay_alive(self) -> None:
        """Tell the broker so, if it is time to; nothing is read, so that nobody knows whether it has answered."""
        self._client._ping_t = 0
        self._client.loop_misc()

    def subscribe(self, topic_filter: str, qos: int, retain_handling: int) -> None:
        """Have messages delivered from now on.

        Raises:
            BrokerAwayError: If there is no answer.
            BrokerRefusedError: If the broker does not want that, or only without acknowledgements.
        """
        options = mqtt().SubscribeOptions(qos=qos, retainHandling=retain_handling)
        code, number = self._client.subscribe(topic_filter, options=options)
        if code != mqtt().MQTT_ERR_SUCCESS:
            raise self._away(mqtt().error_string(code))
        self._wait_for(lambda: number in self._granted)
        (reason,) = self._granted.pop(number)
        if reason.value >= FAILURE or reason.value < qos:
            what = str(reason) if reason.value >= FAILURE else f"it grants no more than QoS {reason.value}"
            message = f"the broker at {self._broker} does not deliver {topic_filter!r}: {what}"
            raise BrokerRefusedError(message)

    def acknowledge(self, number: int) -> None:
        """Acknowledge a message that was delivered with QoS 1."""
        self._client.ack(number, 1)

    def publish(self, topic: str, body: bytes, *, qos: int, retain: bool, properties: list[tuple[str, str]]) -> int:
        """Send a message; gives the number by which it will be confirmed.

        Raises:
            BrokerAwayError: If the connection is broken.
            ValueError: If the topic is none.
        """
        made = _properties("PUBLISH", UserProperty=properties) if properties else None
        sent = self._client.publish(topic, body, qos, retain, made)
        if sent.rc != mqtt().MQTT_ERR_SUCCESS:
            raise self._away(mqtt().error_string(sent.rc))
        return int(sent.mid)

    def close(self, *, forgets: bool = False) -> None:
        """Disconnect; never raises. With ``forgets`` the broker is to drop the session."""
        client = self._client
        with contextlib.suppress(OSError, ValueError):
            properties = _properties("DISCONNECT", SessionExpiryInterval=0) if forgets else None
            client.disconnect(properties=properties)
            if client.socket() is not None:
                client.loop_write()
        with contextlib.suppress(OSError):
            if (socket := client.socket()) is not None:
                socket.close()
