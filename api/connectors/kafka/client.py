"""The client of Kafka, imported when it is needed, and what its errors mean.

``librdkafka`` connects again by itself and for ever; an error that comes out of it as fatal, or that says what will not
change (a topic that is not there, a right that is missing), is raised, others are waited for.

Source: ``confluent_kafka``; Kafka's protocol guide, "Error Codes".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

from .transaction_coordinator import Coordinator

__all__ = ["Client", "ClientErrors", "cause_of", "client_failures", "kafka", "require_servers"]

_LOG = logging.getLogger("headrace.kafka")

REQUEST_TIMEOUT_S = 30.0
"""For one answer of a broker, where somebody waits for it."""

MAX_MESSAGE_BYTES = 1_000_000
"""The client's ``message.max.bytes``, where the program does not set it."""

RECORD_OVERHEAD = 36
"""Bytes that the client counts for a record besides its key and value (lengths and offsets as long as they get)."""

OWN_SETTINGS = {
    "bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset",
    "enable.partition.eof", "transactional.id", "enable.idempotence", "error_cb", "logger", "isolation.level",
    "transaction.timeout.ms",
}  # fmt: skip
"""What exactness rests on, and what arguments say: no user's property."""


def kafka() -> Any:
    """Return the client library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("Kafka needs its client, confluent-kafka", "kafka"):
        import confluent_kafka
        import confluent_kafka.admin
    return confluent_kafka


def client_failures() -> tuple[type[Exception], ...]:
    """Return what calls of the client raise that serve its callbacks.

    A fatal error that comes just before a record's callback is a SystemError, whose cause it is.
    """
    return (kafka().KafkaException, SystemError)


def cause_of(failure: Exception) -> str:
    """Return what a failure of the client says, without passwords."""
    is_wrapped = isinstance(failure, SystemError) and failure.__cause__ is not None
    return masked(str(failure.__cause__ if is_wrapped else failure))


def require_servers(servers: str, properties: Mapping[str, Any]) -> None:
    """See that servers and properties can be meant.

    Raises:
        ConfigurationError: If not.
    """
    if not isinstance(servers, str) or not servers.strip():
        message = f"servers must be host:port, several with commas between; got {servers!r}"
        raise ConfigurationError(message)
    for name in properties:
        if name in OWN_SETTINGS:
            message = f"the property {name!r} of Kafka's client is not for the program to set"
            raise ConfigurationError(message, hint="the source and the sink have arguments for what may be chosen")


class ClientErrors:
    """What a client says from its own threads: the first error that will not pass, and the last that may.

    Args:
        what: Whose it is, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        # The first fatal error; None while there is none.
        self._fatal: Any = None
        self.last: str = ""

    def note(self, error: Any) -> None:
        """Take an error; called by the client's thread."""
        text = masked(str(error))
        with self._lock:
            self.last = text
            if self._fatal is None and _is_final(error):
                self._fatal = error
        _LOG.warning("%s: %s", self._what, text)

    def check(self, make: Callable[[str], Exception]) -> None:
        """Raise what will not pass."""
        with self._lock:
            fatal = self._fatal
        if fatal is not None:
            raise make(masked(str(fatal)))


def _is_final(error: Any) -> bool:
    codes = kafka().KafkaError
    final = (codes._AUTHENTICATION, codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED)
    return bool(error.fatal()) or error.code() in final


class Client:
    """Makes consumers, producers and admins of one cluster.

    Args:
        servers: ``host:port``, several with commas between.
        properties: More of the client's own settings: security, sizes, names.
    """

    def __init__(self, servers: str, properties: Mapping[str, Any]) -> None:
        # Warnings and worse; what its threads say besides is written to standard error.
        self._settings = {"log_level": 4, **properties, "bootstrap.servers": servers}

    @property
    def max_message_bytes(self) -> int:
        """What the client sends at a time at most, in bytes; a record has `RECORD_OVERHEAD` beside key and value."""
        return int(self._settings.get("message.max.bytes", MAX_MESSAGE_BYTES))

    def consumer(self, errors: ClientErrors, group_id: str, **settings: Any) -> Any:
        """Make a consumer that commits nothing by itself and never jumps to another offset."""
        own = {
            "group.id": group_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "error_cb": errors.note,
        }
        return kafka().Consumer({**self._settings, **own, **settings}, logger=_LOG)

    def producer(self, errors: ClientErrors, **settings: Any) -> Any:
        """Make a producer that loses, doubles and reorders nothing while it lives."""
        # Keys go to the partitions to which Java's clients send them.
        own = {"enable.idempotence": True, "partitioner": "murmur2_random", "error_cb": errors.note}
        return kafka().Producer({**own, **self._settings, **settings}, logger=_LOG)

    def admin(self, errors: ClientErrors) -> Any:
        """Make a client that asks about topics."""
        return kafka().admin.AdminClient({**self._settings, "error_cb": errors.note}, logger=_LOG)

    def coordinator(self) -> Coordinator:
        """Make a client that asks the coordinators of transactions."""
        properties = {name: value for name, value in self._settings.items() if name != "bootstrap.servers"}
        return Coordinator(self._settings["bootstrap.servers"], properties)
