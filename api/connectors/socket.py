"""A socket as a source: lines of text that some server sends.

A socket cannot be asked again for what it has sent. So this source is *at most once* over a failure: what had been read
since the last checkpoint, and what the server sends while no reader is connected, is lost, as with Flink's
``SocketTextStreamFunction``. For trying things out, not for data that matters.

Source: Flink's ``SocketTextStreamFunction``.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.engine.kernel.config import parse_duration_ms

__all__ = ["SocketTextSource"]

POLL_MS = 10
CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 16 << 20
"""A line longer than this is taken for a server that does not send lines."""


class SocketTextSource(Source[str]):
    """Gives the lines of one connection, as text without their line end. At most once over a failure; see the module.

    The stream ends when the server closes the connection and no reconnection is left.

    Args:
        host: Name or address of the server.
        port: Its TCP port.
        max_num_retries: How often to connect again, in a row, when connecting fails or the connection ends; -1 for
            without end.
        retry_delay: Pause before each; milliseconds or text such as ``"500 ms"``.
        connect_timeout: How long connecting may take.
        encoding: Of the text; undecodable bytes are shown as replacement characters and counted as
            ``num_records_malformed``.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        max_num_retries: int = 0,
        retry_delay: object = 500,
        connect_timeout: object = 5_000,
        encoding: str = "utf-8",
    ) -> None:
        if not 0 < port < 65_536:
            message = f"port must be between 1 and 65535; got {port}"
            raise ConfigurationError(message)
        if max_num_retries < -1:
            message = f"max_num_retries must be -1 or more; got {max_num_retries}"
            raise ConfigurationError(message)
        self.host = host
        self.port = port
        self.max_num_retries = max_num_retries
        self.retry_delay_ms = parse_duration_ms(retry_delay)
        self.connect_timeout_ms = parse_duration_ms(connect_timeout)
        self.encoding = encoding

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return one split: the connection."""
        return _SocketEnumerator(f"{self.host}:{self.port}")

    def create_reader(self) -> SourceReader:
        """Make a reader; it connects when it is given the split."""
        return _SocketReader(self)


class _SocketEnumerator:
    discovery_interval_ms: int | None = None

    def __init__(self, name: str) -> None:
        self._name = name

    def discover(self) -> Discovery:
        return Discovery([Split(self._name)], is_final=True)


class _SocketReader:
    """Connects and reads without ever waiting: each poll does what can be done at once."""

    def __init__(self, source: SocketTextSource) -> None:
        self._source = source
        self._split: Split | None = None
        # None while not connected; `_is_connecting` until the connection stands.
        self._socket: socket.socket | None = None
        self._is_connecting = False
        self._deadline_ms = 0
        self._retry_at_ms = 0
        self._num_retries = 0
        # Bytes of a line that has not ended, and lines not given yet.
        self._partial = b""
        self._lines: list[bytes] = []
        self._num_lines = 0
        # The server has closed the connection and no reconnection is left.
        self._has_ended = False

    def open(self, context: ReaderContext) -> None:
        self._context = context

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._split = split
            self._num_lines = split.position or 0

    def poll(self, max_records: int) -> Any:
        if self._split is None:
            return ALL_SPLITS_FINISHED
        if not self._lines and not self._receive():
            split, self._split = self._split, None
            return SplitFinished(split.split_id)
        lines, self._lines = self._lines[:max_records], self._lines[max_records:]
        if not lines:
            return NOTHING_NOW
        self._num_lines += len(lines)
        return Polled(self._split.split_id, Batch.of_rows([self._decode(line) for line in lines]))

    def next_poll_ms(self) -> int | None:
        now = self._context.now_ms()
        return max(now + POLL_MS, self._retry_at_ms) if self._socket is None else now + POLL_MS

    def snapshot(self) -> list[Split]:
        return [] if self._split is None else [Split(self._split.split_id, self._split.payload, self._num_lines)]

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _decode(self, line: bytes) -> str:
        line = line.removesuffix(b"\r")
        try:
            return line.decode(self._source.encoding)
        except UnicodeDecodeError:
            self._context.metrics.count("num_records_malformed")
            return line.decode(self._source.encoding, errors="replace")

    def _receive(self) -> bool:
        """Read what is there; False at the end of the stream."""
        if self._has_ended:
            return False
        if self._socket is None:
            if self._context.now_ms() < self._retry_at_ms:
                return True
            self._connect()
        connection = self._socket
        if connection is None or (self._is_connecting and not self._is_connected(connection)):
            return True
        try:
            data = connection.recv(CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            self._fail_or_retry(error)
            return True
        if data:
            self._num_retries = 0
            *self._lines, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) > MAX_LINE_BYTES:
                message = f"a line is longer than {MAX_LINE_BYTES} bytes"
                raise SourceError(message, address=self._address, position=f"line {self._num_lines + 1}")
            return True
        if self._partial:
            self._lines, self._partial = [self._partial], b""
        self.close()
        if self._is_exhausted:
            self._has_ended = True
        else:
            self._schedule_retry()
        return True

    @property
    def _address(self) -> str:
        return f"{self._source.host}:{self._source.port}"

    @property
    def _is_exhausted(self) -> bool:
        return 0 <= self._source.max_num_retries <= self._num_retries

    def _connect(self) -> None:
        now = self._context.now_ms()
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._source.host, self._source.port, type=socket.SOCK_STREAM
            )[0]
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            self._fail_or_retry(error)
            return
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            connection.close()
            self._fail_or_retry(OSError(code, os.strerror(code)))
            return
        self._socket = connection
        self._is_connecting = True
        self._deadline_ms = now + self._source.connect_timeout_ms

    def _is_connected(self, connection: socket.socket) -> bool:
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail_or_retry(OSError(code, os.strerror(code)))
            return False
        try:
            connection.getpeername()
        except OSError:  # not yet
            if self._context.now_ms() >= self._deadline_ms:
                self._fail_or_retry(TimeoutError(f"no connection within {self._source.connect_timeout_ms} ms"))
            return False
        self._is_connecting = False
        return True

    def _fail_or_retry(self, error: OSError) -> None:
        self.close()
        self._partial = b""
        if self._is_exhausted:
            message = f"could not read from socket {self._address}: {error.strerror or error}"
            raise SourceError(message, address=self._address) from error
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        self._num_retries += 1
        self._retry_at_ms = self._context.now_ms() + self._source.retry_delay_ms
