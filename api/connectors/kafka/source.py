"""Topics of Kafka as a source: exactly once.

A split is a partition, its position the offset of the next record. Offsets are part of checkpoints, and only those
count when a job goes on; what a group commits to Kafka is for others to see how far the job is. Partitions are assigned
by the engine, never by Kafka's groups, so nothing is rebalanced. Records of open and aborted transactions are not read.
Partitions that come later are found by looking again, and read from their first record.

What Kafka has deleted before it was read cannot be had any more: that is an error with topic, partition and offset, and
no jump to another one.

Source: Flink's ``KafkaSource``, ``KafkaSourceEnumerator``, ``KafkaPartitionSplitReader``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
from headrace.engine.errors import ConfigurationError, nearest
from headrace.state.type_variables import OUT
from headrace.state.values.durations import parse_duration_ms

from ...formats.messages import MessageFormat, require_format
from ..messages.arguments import columns_of
from .client import Client, require_servers
from .offsets import KafkaOffsets
from .partitions import Partitions
from .reader import METADATA, KafkaReader, ReadSettings

__all__ = ["KafkaSource"]


class KafkaSource(Source[OUT]):
    """Reads the values of topics' records; with ``metadata`` also what Kafka says of them.

    Event times are the records' timestamps, unless the watermark strategy has an assigner.

    Args:
        servers: ``host:port`` of some brokers, with commas between.
        topics: A name, or several.
        value: How values are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        key: How keys are decoded, into columns of their own or of the value's names; None: they are not. A record
            without a key has nulls there.
        topic_pattern: A regular expression that whole names must match, in place of ``topics``; topics that come later
            are read, too.
        start: Where to begin when nothing is restored.
        stop: Where the source ends: the offsets are looked up when the job begins. None: it never ends.
        group_id: Under which offsets are committed to Kafka with every complete checkpoint, for monitoring, and from
            which `KafkaOffsets.committed` starts. None commits nothing.
        metadata: Columns that are added to those of the value: ``key`` (bytes), ``topic``, ``partition``, ``offset``,
            ``timestamp``, ``headers`` (a list of name and bytes). A mapping gives them other names.
        deletions: Whether the topic is a table in which a record replaces the one before it that has its key, and one
            without a value (a tombstone) deletes it: records are changes then, `RowKind.UPDATE_AFTER` or ``DELETE``,
            for operators that take upserts (SQL's ``upsert-kafka``). A deletion has its key and metadata, else nulls.
        discovery_interval: How often to look for new partitions: milliseconds or text such as ``"1 min"``; None never.
        on_error: What becomes of a record that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        properties: More settings of the client (``librdkafka``'s names), as those of security.
        advice: What the error about a record that cannot be decoded advises, where users have other words for
            ``on_error``.

    Guarantees: exactly once, as far as Kafka keeps what was not read yet. Records without a value (tombstones) are
        passed over, and counted as ``num_tombstones``, unless they are ``deletions``.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str] = (),
        *,
        value: MessageFormat[OUT],
        key: MessageFormat | None = None,
        topic_pattern: str | None = None,
        start: KafkaOffsets = KafkaOffsets.earliest(),
        stop: KafkaOffsets | None = None,
        group_id: str | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        deletions: bool = False,
        discovery_interval: int | str | None = "5 min",
        on_error: Literal["fail", "skip", "dead-letter"] = "fail",
        properties: Mapping[str, Any] = {},
        advice: str | None = None,
    ) -> None:
        require_servers(servers, properties)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if bool(names) == (topic_pattern is not None):
            message = "a source reads topics, or those of a pattern: one of the two must be said"
            raise ConfigurationError(message)
        if topic_pattern is not None:
            _require_pattern(topic_pattern)
        require_format(value)
        if key is not None:
            require_format(key)
        if (deletions or key is not None) and (value.schema is None or (key is not None and key.schema is None)):
            message = "keys and deletions are for columns: the schemas of value and key must be declared"
            raise ConfigurationError(message, hint="JsonMessages({'field': 'int64'}), or TextMessages(column='text')")
        if value.gives_changes and (deletions or key is not None):
            message = f"values of {type(value).__name__} say themselves what becomes of rows: no key, no deletions"
            raise ConfigurationError(message)
        if on_error not in ("fail", "skip", "dead-letter"):
            message = f"on_error must be fail, skip or dead-letter; got {on_error!r}"
            raise ConfigurationError(message)
        if group_id is None and "committed" in (start.kind, stop.kind if stop else ""):
            message = "offsets that a group has committed need its group_id"
            raise ConfigurationError(message)
        self.is_bounded = stop is not None
        interval_ms = None if discovery_interval is None else parse_duration_ms(discovery_interval)
        self._scan = _Scan(names, topic_pattern, start, stop, interval_ms, group_id)
        self._client = Client(servers, properties)
        self._settings = ReadSettings(
            value, key, _checked(columns_of(metadata), value, key), deletions, on_error, group_id, advice
        )

    def __repr__(self) -> str:
        return f"KafkaSource({', '.join(self._scan.topics) or self._scan.pattern!r})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._settings.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds partitions."""
        return _KafkaEnumerator(self._client, self._scan)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return KafkaReader(self._client, self._settings)


@dataclass(frozen=True, slots=True)
class _Scan:
    topics: tuple[str, ...]
    pattern: str | None
    start: KafkaOffsets
    stop: KafkaOffsets | None
    interval_ms: int | None
    group_id: str | None


class _KafkaEnumerator:
    """Finds partitions, and where to begin in them. It keeps nothing that matters."""

    def __init__(self, client: Client, scan: _Scan) -> None:
        self._scan = scan
        self._partitions = Partitions(client, scan.group_id)
        # What is bounded is what there is at the begin.
        self.discovery_interval_ms = None if scan.stop is not None else scan.interval_ms

    def discover(self) -> Discovery:
        return self.discover_from(EnumeratorProgress(None, is_exhausted=False, parallelism=1))

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """The partitions there are. Those that are known already are ignored by who asks, whatever their offsets."""
        scan, known = self._scan, set(map(tuple, progress.state or ()))
        found = self._partitions.find(scan.topics, scan.pattern)
        fresh = [partition for partition in found if partition not in known]
        start = scan.start
        if progress.state is not None:  # a partition that has come since holds nothing that was there before
            start = replace(start, otherwise="earliest") if start.kind == "given" else KafkaOffsets.earliest()
        starts = self._partitions.offsets(fresh, start)
        stops = {} if scan.stop is None else self._partitions.offsets(fresh, scan.stop)
        splits = [
            Split(
                f"{topic}-{number}",
                {"topic": topic, "partition": number, "end": stops.get((topic, number))},
                starts[topic, number],
                is_bounded=False,  # those that end, too, are read side by side: one that waits would be late
            )
            for topic, number in fresh
        ]
        is_final = self.discovery_interval_ms is None
        state = sorted([*known, *fresh])
        return Discovery(
            splits, is_final, is_repeatable=start.kind in ("earliest", "given"), state=[list(one) for one in state]
        )


def _require_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        message = f"topic_pattern {pattern!r} is no regular expression: {error}"
        raise ConfigurationError(message) from error


def _checked(columns: Mapping[str, str], value: MessageFormat, key: MessageFormat | None) -> dict[str, str]:
    """The metadata by the names of their columns.

    Raises:
        ConfigurationError: If there is none of a name, or no place for it.
    """
    for column, name in columns.items():
        if name not in METADATA:
            message = f"Kafka's records have no metadata {name!r}"
            hint = nearest(name, list(METADATA)) or f"there are {', '.join(METADATA)}"
            raise ConfigurationError(message, hint=hint)
        if any(one is not None and one.schema is not None and column in one.schema.names for one in (value, key)):
            message = f"the record has a column {column!r} itself"
            raise ConfigurationError(message, hint=f"give the metadata another name: {{'kafka_{column}': {name!r}}}")
    if columns and value.schema is None:
        message = "metadata are columns beside those of the value, whose schema must be declared"
        raise ConfigurationError(message, hint="JsonMessages({'field': 'int64'}), or TextMessages(column='text')")
    return dict(columns)
