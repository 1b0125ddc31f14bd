"""Streams of RabbitMQ as a source: exactly once.

A split is a stream, its position the offset of the next message. Offsets are part of checkpoints, and only those count
when a job goes on; nothing is stored in RabbitMQ. A stream has one reader, so several streams, as the partitions of a
super stream, are what several subtasks share.

What RabbitMQ has deleted before it was read cannot be had any more: that is an error, and no jump.

Source: RabbitMQ's "Streams and Superstreams"; Flink's FLIP-27.
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
from headrace.state.type_variables import OUT

from ....formats.messages import MessageFormat
from ...messages.arguments import columns_of, names_of, patience_s_of
from ...messages.client_thread import AwayError, patiently
from ...messages.decoding import MessageDecoder, OnError
from ..protocol.address import STREAM_PORT, Address
from ..protocol.stream_client import INTERNAL_ERROR, UNAVAILABLE, StreamRefusedError, StreamsAwayError, chunk_at_edge
from .reader import METADATA, Message, StreamReader

__all__ = ["RabbitStreamSource"]


class RabbitStreamSource(Source[OUT]):
    """Reads messages of streams; with ``metadata`` also what RabbitMQ says of them.

    Event times are when RabbitMQ wrote the messages, unless the watermark strategy has an assigner.

    Args:
        url: ``rabbitmq-stream://user:password@host:port/virtual-host``; the node must have a replica of the streams.
        streams: A name, or several.
        value: How bodies are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        start: Where to begin when nothing is restored: ``first``, ``next`` (what comes from now on), an offset, or
            ``timestamp:`` and epoch milliseconds.
        bounded: Whether the source ends with the messages that are there when the job begins.
        metadata: Columns that are added to those of the value: ``stream``, ``offset``, ``timestamp``. A mapping gives
            them other names.
        on_error: What becomes of a message that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long RabbitMQ may be away before the job fails: milliseconds or text.

    Guarantees: exactly once, as far as RabbitMQ keeps what was not read yet.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        start: str | int = "first",
        bounded: bool = False,
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        patience: int | str = "1 min",
    ) -> None:
        names = names_of("streams", streams)
        self.is_bounded = bounded
        self._scan = _Scan(names, *_start_of(start), bounded)
        self._address = Address.of(url, "rabbitmq-stream", STREAM_PORT)
        self._patience_s = patience_s_of(patience)
        self._decoder = MessageDecoder[Message](
            value, lambda one: one.body, lambda one: f"offset {one.offset}", METADATA, columns_of(metadata), on_error
        )

    def __repr__(self) -> str:
        return f"RabbitStreamSource({', '.join(self._scan.streams)})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds where to begin in the streams, and where to end."""
        return _Streams(self._address, self._scan, self._patience_s)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return StreamReader(self._address, self._decoder, self._patience_s)


def _start_of(start: str | int) -> tuple[str, int]:
    """Where to begin: as the protocol has it.

    Raises:
        ConfigurationError: If that is nowhere.
    """
    if start in ("first", "next"):
        return str(start), 0
    if type(start) is int and start >= 0:
        return "offset", start
    text = start.removeprefix("timestamp:") if isinstance(start, str) else ""
    if text != start and text.isdecimal():
        return "timestamp", int(text)
    message = f"start must be first, next, an offset, or timestamp: and epoch milliseconds; got {start!r}"
    raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class _Scan:
    streams: tuple[str, ...]
    start: str
    at: int
    is_bounded: bool


class _Streams:
    discovery_interval_ms: int | None = None

    def __init__(self, address: Address, scan: _Scan, patience_s: float) -> None:
        self._address = address
        self._scan = scan
        self._patience_s = patience_s

    def discover(self) -> Discovery:
        """All streams."""
        scan = self._scan
        ends: dict[str, int | None] = dict.fromkeys(scan.streams)
        if scan.is_bounded or scan.start == "next":
            ends = patiently(lambda: {name: self._end_of(name) for name in scan.streams}, self._patience_s)
        splits = []
        for name in scan.streams:
            position: dict[str, Any] = {"from": scan.start, "at": scan.at}
            if scan.start == "next":
                position = {"from": "offset" if ends[name] else "first", "at": ends[name]}
            end = ends[name] if scan.is_bounded else None
            splits.append(Split(name, {"end": end}, position, is_bounded=False))
        is_repeatable = scan.start != "next" and not scan.is_bounded
        return Discovery(splits, is_final=True, is_repeatable=is_repeatable)

    def _end_of(self, stream: str) -> int:
        """The offset behind the last message."""
        try:
            chunk = chunk_at_edge(self._address, stream, "last")
        except (StreamsAwayError, StreamRefusedError, ValueError) as error:
            message = f"stream {stream!r} of RabbitMQ cannot be looked at: {error}"
            passes = getattr(error, "code", None) in (UNAVAILABLE, INTERNAL_ERROR)  # as behind the server's start
            is_away = passes or isinstance(error, StreamsAwayError)
            raise (AwayError if is_away else SourceError)(message) from error
        return 0 if chunk is None else chunk.first_offset + len(chunk.messages)
