"""Topics of Pulsar as a source: exactly once.

A split is a partition, its position the id of the last message that was read. Ids are part of checkpoints, and only
those count when a job goes on: no cursor of Pulsar does. A partition has one reader.

Source: Pulsar's "Reader interface"; Flink's ``PulsarSource``; FLIP-27.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import (
    Discovery,
    EnumeratorContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from headrace.engine.connectors.source_protocols import EnumeratorProgress
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.state.type_variables import OUT
from headrace.state.values.durations import parse_duration_ms

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, names_of, patience_s_of, since_ms_of
from ..messages.client_thread import AwayError, patiently
from ..messages.decoding import MessageDecoder, OnError
from .client import Client, pulsar, told, will_not_pass
from .reader import METADATA, Id, Message, PulsarReader, id_of, in_chunks

__all__ = ["PulsarSource"]

READ_TIMEOUT_MS = 10_000


class PulsarSource(Source[OUT]):
    """Reads messages of topics; with ``metadata`` also what Pulsar says of them.

    Event times are those of the messages, or when they were published if their sender gave none, unless the watermark
    strategy has an assigner.

    Args:
        service_url: ``pulsar://host:port``, several hosts with commas between; ``pulsar+ssl://`` with TLS.
        topics: A name, or several; all partitions of them are read.
        value: How messages are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        start: Where to begin when nothing is restored: ``earliest``, ``latest`` (what comes from now on), or
            ``timestamp:`` and epoch milliseconds, when messages were published. Partitions that are found later begin
            with their first message.
        bounded: Whether the source ends with the messages that are there when the job begins.
        subscription: A durable subscription of this job alone, in which messages are acknowledged behind checkpoints,
            so that Pulsar deletes none that may be read again. None: its retention must be longer than the job is ever
            behind, or away.
        metadata: Columns that are added to those of the value: ``topic``, ``key``, ``message_id``, ``publish_time``,
            ``event_time``, ``producer_name``. A mapping gives them other names.
        discovery_interval: How often to look for new partitions: milliseconds or text; None never.
        on_error: What becomes of a message that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long Pulsar may be away before the job fails: milliseconds or text.
        token: Who asks, as a token of Pulsar.
        options: More settings of ``pulsar.Client``, as those of TLS.

    Guarantees: exactly once, as far as Pulsar keeps what was not read yet. Messages without a value (tombstones) are
        passed over, and counted as ``num_tombstones``. Messages in chunks are refused.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        service_url: str,
        topics: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        start: str = "earliest",
        bounded: bool = False,
        subscription: str | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        discovery_interval: int | str | None = "1 min",
        on_error: OnError = "fail",
        patience: int | str = "1 min",
        token: str | None = None,
        options: Mapping[str, Any] = {},
    ) -> None:
        if subscription is not None and (not isinstance(subscription, str) or not subscription):
            message = f"subscription is a name; got {subscription!r}"
            raise ConfigurationError(message)
        interval_ms = None if discovery_interval is None or bounded else parse_duration_ms(discovery_interval)
        self.is_bounded = bounded
        self._scan = _Scan(_names_of(topics), start == "latest", since_ms_of(start), bounded, interval_ms)
        self._client = Client(service_url, token, dict(options))
        self._patience_s = patience_s_of(patience)
        self._subscription = subscription
        self._decoder = MessageDecoder[Message](
            value,
            lambda one: one.data,
            lambda one: f"message {':'.join(map(str, one.id))}",
            METADATA,
            columns_of(metadata),
            on_error,
        )

    def __repr__(self) -> str:
        return f"PulsarSource({', '.join(self._scan.topics)})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds partitions."""
        return _Partitions(self._client, self._scan, self._patience_s)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return PulsarReader(self._client, self._decoder, self._patience_s, self._subscription)


def _names_of(topics: str | Sequence[str]) -> tuple[str, ...]:
    """The names of topics.

    Raises:
        ConfigurationError: If they are none, or name a topic that keeps nothing.
    """
    names = names_of("topics", topics)
    for name in names:
        if name.startswith("non-persistent:"):
            message = f"a topic that keeps nothing cannot be read exactly once; got {name!r}"
            raise ConfigurationError(message, hint=f"persistent:{name.removeprefix('non-persistent:')}")
    return names


@dataclass(frozen=True, slots=True)
class _Scan:
    topics: tuple[str, ...]
    is_latest: bool
    since_ms: int
    is_bounded: bool
    interval_ms: int | None


class _Partitions:
    """Finds partitions, and where they begin and end. It keeps nothing."""

    def __init__(self, client: Client, scan: _Scan, patience_s: float) -> None:
        self._client = client
        self._scan = scan
        self._patience_s = patience_s
        self.discovery_interval_ms = scan.interval_ms

    def discover(self) -> Discovery:
        return self.discover_from(EnumeratorProgress(None, is_exhausted=False, parallelism=1))

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """The partitions there are, but for those that are known already."""
        return patiently(lambda: self._look(progress), self._patience_s)

    def _look(self, progress: EnumeratorProgress) -> Discovery:
        scan, known = self._scan, set(progress.state or ())
        is_first = progress.state is None
        client = self._client.connect()
        try:
            fresh = [name for name in self._found(client) if name not in known]
            # What has come since holds nothing that was there before.
            needs_end = is_first and (scan.is_bounded or scan.is_latest)
            ends = {name: self._last_of(client, name) if needs_end else None for name in fresh}
        finally:
            client.close()
        splits = []
        for name in fresh:
            end, end_ms = ends[name] or (None, 0)
            if scan.is_bounded and (end is None or end_ms < scan.since_ms):
                continue  # there is nothing to read
            position = {
                "last": list(end) if end and scan.is_latest else None,
                "since_ms": scan.since_ms if is_first else 0,
            }
            splits.append(Split(name, {"end": list(end) if end and scan.is_bounded else None}, position, None, False))
        return Discovery(
            splits, is_final=scan.interval_ms is None, is_repeatable=not needs_end, state=sorted([*known, *fresh])
        )

    def _found(self, client: Any) -> list[str]:
        found: dict[str, None] = {}
        for topic in self._scan.topics:
            try:
                found.update(dict.fromkeys(client.get_topic_partitions(topic)))
            except pulsar().PulsarException as error:
                message = f"topic {topic!r} of Pulsar is not described: {told(error)}"
                hint = "make it first" if isinstance(error, pulsar().TopicNotFound) else None
                raise (SourceError if will_not_pass(error) else AwayError)(message, hint=hint, topic=topic) from error
        return list(found)

    @staticmethod
    def _last_of(client: Any, partition: str) -> tuple[Id, int] | None:
        """The id of the last message, and when it was published, epoch milliseconds; None for an empty partition."""
        library = pulsar()
        try:
            reader = client.create_reader(partition, library.MessageId.latest, start_message_id_inclusive=True)
            if not reader.has_message_available():
                return None
            message = reader.read_next(READ_TIMEOUT_MS)
            last, last_ms = id_of(message), message.publish_timestamp()
            while reader.has_message_available():  # the rest of a batch
                found = id_of(reader.read_next(READ_TIMEOUT_MS))
                if found[:2] != last[:2]:
                    break  # it has come since
                last = found
        except library.Timeout as error:  # the client makes nothing of a last chunk
            raise in_chunks(partition, "its last message does not come: it may be") from error
        except library.PulsarException as error:
            message = f"{partition} of Pulsar cannot be looked at: {told(error)}"
            raise (SourceError if will_not_pass(error) else AwayError)(message, topic=partition) from error
        return last, last_ms
