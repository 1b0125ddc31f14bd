"""Streams of Redis as a source: exactly once.

A split is a stream, its position the id of the last entry that was read. Ids are part of checkpoints, and only those
count when a job goes on; nothing is acknowledged in Redis, and no consumer group is used. A stream has one reader, so
several streams are what several subtasks share.

What Redis has trimmed before it was read cannot be had any more: that is an error, and no jump (from Redis 7 on, which
counts the entries of a stream; where entries in the middle were deleted by XDEL nobody can tell, and nothing is said).

Source: Redis' ``XREAD``, ``XINFO STREAM``; Flink's FLIP-27.
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
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.state.credentials import masked
from headrace.state.type_variables import OUT

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, names_of, patience_s_of
from ..messages.client_thread import AwayError, patiently
from ..messages.decoding import MessageDecoder, OnError
from .client import Client, redis
from .reader import METADATA, Entry, RedisReader, parse_id

__all__ = ["RedisStreamSource"]


class RedisStreamSource(Source[OUT]):
    """Reads one field of the entries of streams; with ``metadata`` also what Redis says of them.

    Event times are the milliseconds in the entries' ids, which Redis takes from its clock, unless the watermark
    strategy has an assigner.

    Args:
        url: ``redis://user:password@host:port/database``; ``rediss://`` with TLS.
        streams: A key, or several. One that is not there yet is waited for.
        value: How messages are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        field: The field of an entry that is the message.
        start: Where to begin when nothing is restored: ``earliest``, ``latest``, or the id of an entry, behind which
            reading begins.
        bounded: Whether the source ends with the entries that are there when the job begins.
        metadata: Columns that are added to those of the value: ``stream``, ``id``. A mapping gives them other names.
        on_error: What becomes of an entry that cannot be decoded or lacks the field: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long Redis may be away before the job fails: milliseconds or text.
        options: More settings of the client (``redis.Redis``), as those of TLS.

    Guarantees: exactly once, as far as Redis keeps what was not read yet.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        field: str = "value",
        start: str = "earliest",
        bounded: bool = False,
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        patience: int | str = "1 min",
        options: Mapping[str, Any] = {},
    ) -> None:
        names = names_of("streams", streams)
        if start not in ("earliest", "latest") and parse_id(start) is None:
            message = f"start must be earliest, latest or an entry's id, as 1526919030474-55; got {start!r}"
            raise ConfigurationError(message)
        if not field:
            message = "the field of an entry must be named"
            raise ConfigurationError(message)
        self.is_bounded = bounded
        self._scan = _Scan(names, start, bounded)
        self._client = Client(url, dict(options))
        self._patience_s = patience_s_of(patience)
        self._field = name = field.encode()
        self._decoder = MessageDecoder[Entry](
            value,
            lambda entry: entry.fields[name],
            lambda entry: f"entry {entry.id}",
            METADATA,
            columns_of(metadata),
            on_error,
        )

    def __repr__(self) -> str:
        return f"RedisStreamSource({', '.join(self._scan.streams)})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds where to begin in the streams."""
        return _Streams(self._client, self._scan, self._patience_s)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return RedisReader(self._client, self._field, self._decoder, self._patience_s)


@dataclass(frozen=True, slots=True)
class _Scan:
    streams: tuple[str, ...]
    start: str
    is_bounded: bool


class _Streams:
    discovery_interval_ms: int | None = None

    def __init__(self, client: Client, scan: _Scan, patience_s: float) -> None:
        self._client = client
        self._scan = scan
        self._patience_s = patience_s

    def discover(self) -> Discovery:
        """All streams, with where to begin and where to end."""
        scan = self._scan
        splits = patiently(self._splits, self._patience_s)
        return Discovery(splits, is_final=True, is_repeatable=scan.start != "latest" and not scan.is_bounded)

    def _splits(self) -> list[Split]:
        connection = self._client.connect()
        try:
            return [self._split(connection, name) for name in self._scan.streams]
        except (redis().RedisError, OSError) as error:
            message = f"streams of Redis cannot be looked at: {masked(str(error) or repr(error))}"
            raise (SourceError if isinstance(error, redis().ResponseError) else AwayError)(message) from error
        finally:
            connection.close()

    def _split(self, connection: Any, name: str) -> Split:
        scan = self._scan
        info = connection.xinfo_stream(name) if connection.exists(name) else None
        last = "0-0" if info is None else info["last-generated-id"].decode()
        position: dict[str, Any] = {"id": scan.start, "count": None}
        if scan.start == "earliest":
            # How many there were before the first: what is there is read from it.
            added = None if info is None else info.get("entries-added")
            position = {"id": "0-0", "count": 0 if info is None else added and added - info["length"]}
        elif scan.start == "latest":
            position = {"id": last, "count": 0 if info is None else info.get("entries-added")}
        return Split(name, {"end": last if scan.is_bounded else None}, position, is_bounded=False)
