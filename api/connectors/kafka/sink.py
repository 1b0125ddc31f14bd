"""A topic of Kafka as a sink: exactly once, or at least once.

*Exactly once*: readers with ``isolation.level=read_committed`` see the records of complete checkpoints, each once.
Until then records wait in one of two places:

* in the checkpoint. When it is complete they are written in one transaction of Kafka, together with a note that they
  are (`headrace.connectors.kafka.ledger`). Nothing depends on how long a transaction may stay open, or a job be away:
  what a checkpoint holds is never lost by a timeout of the broker.
* at the broker, in a transaction that stays open until the checkpoint is complete
  (`headrace.connectors.kafka.open_transactions`). Checkpoints stay small, and records travel once; but a job that is
  away for longer than the transaction may be open has lost them, and says so.

*At least once*: records are written when they come, and all of them before a barrier passes. What a failure makes the
job repeat is written again.

Records of one key keep their order if they come to one subtask: ``key_by`` the key.

Source: Flink's ``KafkaSink``, ``KafkaRecordSerializationSchema``; KIP-98.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.engine.connectors.contract import Committer, SinkWriter
from headrace.engine.errors import ConfigurationError
from headrace.state.values.durations import parse_duration_ms

from ...formats.messages import MessageFormat, require_format
from .client import RECORD_OVERHEAD, Client, require_servers
from .committing import KafkaCommitter
from .open_transactions import TransactionCommitter, TransactionWriter
from .serialization import KafkaRecords
from .transaction_coordinator import require_known_security
from .transactions import CommitSettings
from .writers import ProducingWriter, StagingWriter

__all__ = ["KafkaSink"]

_TIMEOUTS = {"checkpoint": "1 min", "transaction": "15 min"}
"""How long a transaction may be open unless the program says, by where records wait."""

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")


class KafkaSink:
    """Writes records into a topic, which must be there. Made by `exactly_once` or `at_least_once`.

    Common arguments of both:
        servers: ``host:port`` of some brokers, with commas between.
        topic: The topic.
        value: How values are encoded, as `JsonMessages`; see `headrace.formats.messages`.
        key: The field, or fields, whose values are the record's key: one as its text or bytes, several as a JSON
            object. None: records have no key and go to any partition.
        key_format: How these fields are encoded, as `JsonMessages`; None: as said. Equal keys must be equal bytes, or
            they are several to Kafka.
        delete_column: A boolean field that is not written: where it is true the record is a tombstone, a key without a
            value.
        properties: More settings of the client (``librdkafka``'s names), as those of security or ``compression.type``.

    Event times become the records' timestamps, where there are some.
    """

    def __init__(self, client: Client, topic: str, records: KafkaRecords) -> None:
        self._client = client
        self._topic = topic
        self._records = records

    def __repr__(self) -> str:
        return f"KafkaSink({self._topic!r})"

    @classmethod
    def exactly_once(
        cls,
        servers: str,
        topic: str,
        *,
        value: MessageFormat,
        transactional_id_prefix: str,
        key: str | Sequence[str] | None = None,
        key_format: MessageFormat | None = None,
        delete_column: str | None = None,
        commits_topic: str = "headrace-commits",
        staging: Literal["checkpoint", "transaction"] = "checkpoint",
        transaction_timeout: int | str | None = None,
        on_newer_output: Literal["error", "keep"] = "error",
        properties: Mapping[str, Any] = {},
    ) -> KafkaSink:
        """Write every record exactly once, for readers of committed records.

        Args:
            servers: See the class.
            topic: See the class.
            value: See the class.
            transactional_id_prefix: What the ids of this sink's transactions begin with: letters, digits, dots,
                underscores, hyphens. Rights on the broker may be given by it.
            key: See the class.
            key_format: See the class.
            delete_column: See the class.
            commits_topic: Where it is noted what is written: a compacted topic of one partition, made if it is not
                there. Several sinks may share it.
            staging: Where records wait for their checkpoint to be complete: in the ``checkpoint``, or in an open
                ``transaction``, which needs ``transaction_timeout`` above the time between checkpoints and the
                longest outage together.
            transaction_timeout: How long a transaction may be open: milliseconds or text; None is a minute for records
                in the checkpoint, which are written at once, else 15 minutes. The broker has a limit
                (``transaction.max.timeout.ms``, 15 minutes by default), and the job does not start above it.
            on_newer_output: What happens if this sink has written behind the checkpoint that is restored, which is not
                the newest then: going on writes those records again. ``error`` refuses to run; ``keep`` goes on.
            properties: See the class.

        Guarantees: exactly once with checkpoints; without them, the records appear when the job ends.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        client, records = _parts(servers, topic, value, key, key_format, delete_column, properties)
        if _PREFIX.fullmatch(transactional_id_prefix) is None:
            message = f"transactional_id_prefix is letters, digits, '.', '_' and '-'; got {transactional_id_prefix!r}"
            raise ConfigurationError(message)
        if not commits_topic or commits_topic == topic:
            message = f"commits are noted in a topic of their own; got {commits_topic!r}"
            raise ConfigurationError(message)
        if staging not in _TIMEOUTS:
            message = f"staging is 'checkpoint' or 'transaction'; got {staging!r}"
            raise ConfigurationError(message)
        timeout_ms = parse_duration_ms(_TIMEOUTS[staging] if transaction_timeout is None else transaction_timeout)
        if timeout_ms < 1_000:
            message = f"transaction_timeout must be a second at least; got {timeout_ms} ms"
            raise ConfigurationError(message)
        if on_newer_output not in ("error", "keep"):
            message = f"on_newer_output is 'error' or 'keep'; got {on_newer_output!r}"
            raise ConfigurationError(message)
        keeps_newer = on_newer_output == "keep"
        settings = CommitSettings(topic, transactional_id_prefix, commits_topic, timeout_ms, keeps_newer)
        if staging == "transaction":
            require_known_security(properties)
            return _OpenTransactionsSink(client, settings, records)
        return _StagingSink(client, settings, records)

    @classmethod
    def at_least_once(
        cls,
        servers: str,
        topic: str,
        *,
        value: MessageFormat,
        key: str | Sequence[str] | None = None,
        key_format: MessageFormat | None = None,
        delete_column: str | None = None,
        properties: Mapping[str, Any] = {},
    ) -> KafkaSink:
        """Write records as they come, and again after a failure; nothing is lost.

        Args:
            servers: See the class.
            topic: See the class.
            value: See the class.
            key: See the class.
            key_format: See the class.
            delete_column: See the class.
            properties: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        client, records = _parts(servers, topic, value, key, key_format, delete_column, properties)
        return cls(client, topic, records)

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return ProducingWriter(self._client, self._topic, self._records)


class _ExactlyOnceSink(KafkaSink):
    """Commits with the checkpoint."""

    # Ids of transactions are of one subtask in one attempt.
    subtasks_are_independent = True

    def __init__(self, client: Client, settings: CommitSettings, records: KafkaRecords) -> None:
        super().__init__(client, settings.topic, records)
        self._settings = settings


class _StagingSink(_ExactlyOnceSink):
    """Keeps records in the checkpoint, and writes them when it is complete."""

    def create_writer(self) -> SinkWriter:
        max_bytes = self._client.max_message_bytes - RECORD_OVERHEAD
        return StagingWriter(self._settings, self._records, max_bytes)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return KafkaCommitter(self._client, self._settings)


class _OpenTransactionsSink(_ExactlyOnceSink):
    """Writes records as they come, into transactions that are committed when the checkpoint is complete."""

    def create_writer(self) -> SinkWriter:
        return TransactionWriter(self._client, self._settings, self._records)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return TransactionCommitter(self._client, self._settings)


def _parts(
    servers: str,
    topic: str,
    value: MessageFormat,
    key: str | Sequence[str] | None,
    key_format: MessageFormat | None,
    delete_column: str | None,
    properties: Mapping[str, Any],
) -> tuple[Client, KafkaRecords]:
    require_servers(servers, properties)
    if not topic:
        message = "topic must not be empty"
        raise ConfigurationError(message)
    require_format(value)
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    if delete_column is not None and not keys:
        message = "a tombstone is for a key: delete_column needs one"
        raise ConfigurationError(message)
    if key_format is not None:
        require_format(key_format)
        if not keys:
            message = "key_format says how a key is encoded: it needs one"
            raise ConfigurationError(message)
    return Client(servers, properties), KafkaRecords(value, keys, delete_column, key_format)
