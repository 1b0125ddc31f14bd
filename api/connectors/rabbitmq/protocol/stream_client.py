"""RabbitMQ's stream protocol, as far as readers and writers need it: one connection, used by one thread.

Source: RabbitMQ's "Stream Plugin Protocol" (``PROTOCOL.adoc``, version 1 of all commands).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.state.credentials import masked

from .address import TIMEOUT_S, Address

__all__ = ["Chunk", "StreamConnection", "StreamRefusedError", "StreamsAwayError", "chunk_at_edge"]

DECLARE_PUBLISHER, PUBLISH, PUBLISH_CONFIRM, PUBLISH_ERROR, QUERY_SEQUENCE, DELETE_PUBLISHER = 1, 2, 3, 4, 5, 6
SUBSCRIBE, DELIVER, CREDIT, STORE_OFFSET, UNSUBSCRIBE, CREATE, DELETE = 7, 8, 9, 10, 12, 13, 14
METADATA_UPDATE, PEER_PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE = 16, 17, 18, 19
TUNE, OPEN, CLOSE, HEARTBEAT = 20, 21, 22, 23
ANSWER = 0x8000

OK, NO_STREAM, EXISTS, UNAVAILABLE, INTERNAL_ERROR = 1, 2, 5, 6, 15
CODES = {
    2: "the stream does not exist", 5: "the stream exists already", 6: "the stream is not available",
    7: "the mechanism is not supported", 8: "user or password is wrong", 12: "the virtual host may not be used",
    14: "a frame is too large", 15: "internal error", 16: "access is refused", 17: "a precondition failed",
    18: "the publisher does not exist", 19: "there is no offset",
}  # fmt: skip

FRAME_BYTES = 1 << 20
PUBLISH_BYTES = 256 << 10
"""Messages are sent in frames of about this size."""
MOST_UNCONFIRMED = 10_000

EDGE_TIMEOUT_S = 2.0
"""How long to wait for a chunk that should be there at once: an empty stream sends nothing."""

_GZIP = 1
MOST_EXPANDED_BYTES = 256 << 20
"""Of one batch of messages that its publisher has compressed."""

_OFFSETS = {"first": 1, "last": 2, "next": 3, "offset": 4, "timestamp": 5}


class StreamsAwayError(OSError):
    """The server does not answer, or has closed the connection."""


class StreamRefusedError(Exception):
    """The server has refused what was asked.

    Attributes:
        code: Why.
    """

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {CODES.get(code, f'code {code}')}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of a stream that the server keeps together.

    Attributes:
        subscription: To which they were delivered.
        first_offset: Of the first message.
        time_ms: When the server wrote them.
        messages: In their order, AMQP 1.0.
    """

    subscription: int
    first_offset: int
    time_ms: int
    messages: list[bytes]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


class StreamConnection:
    """One connection. Its methods block, but for `receive`, which waits as long as it is told.

    Args:
        address: Of the server.
        heartbeat_s: How often it and we say that we are there; 0 for never: of who does not listen all the time.

    Raises:
        StreamsAwayError: If it does not answer.
        StreamRefusedError: If it does not let us in.
    """

    def __init__(self, address: Address, heartbeat_s: int = 0) -> None:
        self._buffer = bytearray()
        self._events: deque[tuple[int, bytes]] = deque()
        self._num_requests = 0
        self._heartbeat_s = heartbeat_s
        self._heard_at = self._said_at = time.monotonic()
        try:
            self._socket = socket.create_connection((address.host, address.port), TIMEOUT_S)
        except OSError as error:
            message = f"streams of RabbitMQ at {address} do not answer: {error}"
            raise StreamsAwayError(message) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._log_in(address)
        except BaseException:
            self.close()
            raise

    def _log_in(self, address: Address) -> None:
        told = _text("product") + _text("Headrace")
        self._request(PEER_PROPERTIES, struct.pack(">I", 1) + told, "the server")
        self._request(SASL_HANDSHAKE, b"", "logging in")
        secret = f"\0{address.user}\0{address.password}".encode()
        plain = _text("PLAIN") + struct.pack(">I", len(secret)) + secret
        self._request(SASL_AUTHENTICATE, plain, f"user {masked(address.user)!r}")
        self._await(TUNE)
        self._send(TUNE, struct.pack(">II", FRAME_BYTES, self._heartbeat_s))
        self._request(OPEN, _text(address.virtual_host), f"virtual host {address.virtual_host!r}")

    # ---------------------------------------------------------------------------------------------------------- frames
    def _send(self, key: int, payload: bytes) -> None:
        frame = struct.pack(">IHH", len(payload) + 4, key, 1) + payload
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(frame)
        except OSError as error:
            raise _broken(error) from error
        self._said_at = time.monotonic()

    def _request(self, key: int, payload: bytes, what: str) -> bytes:
        """Ask, and wait for the answer; gives what stands behind its code."""
        self._num_requests += 1
        self._send(key, struct.pack(">I", self._num_requests) + payload)
        answer = self._await(key | ANSWER)
        _, code = struct.unpack_from(">IH", answer)
        if code != OK:
            raise StreamRefusedError(what, code)
        return answer[6:]

    def _await(self, key: int) -> bytes:
        """Return the next frame of a kind; others wait for `receive`."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            frame = self._next_frame(deadline - time.monotonic())
            if frame is None:
                message = f"RabbitMQ has not answered for {TIMEOUT_S:.0f} s"
                raise StreamsAwayError(message)
            if frame[0] == key:
                return frame[1]
            self._events.append(frame)

    def _next_frame(self, timeout_s: float) -> tuple[int, bytes] | None:
        """Return the next frame that is none of the connection's own; None if there is none within the time."""
        deadline = time.monotonic() + timeout_s
        while True:
            while (frame := self._cut_frame()) is not None:
                key, payload = frame
                if key == HEARTBEAT:
                    continue
                if key == CLOSE:
                    (length,) = struct.unpack_from(">H", payload, 6)
                    message = f"RabbitMQ closes the connection: {payload[8 : 8 + length].decode('utf-8', 'replace')}"
                    raise StreamsAwayError(message)
                return frame
            self.beat()
            if not self._fill(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                return None

    def _cut_frame(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < 8:
            return None
        size, key, _version = struct.unpack_from(">IHH", self._buffer)
        if size > FRAME_BYTES + (64 << 20):
            message = f"RabbitMQ has sent a frame of {size} bytes: is this the port of streams?"
            raise StreamsAwayError(message)
        if len(self._buffer) < size + 4:
            return None
        payload = bytes(self._buffer[8 : size + 4])
        del self._buffer[: size + 4]
        return key, payload

    def _fill(self, timeout_s: float) -> bool:
        """Take what has come; whether there was something."""
        try:
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return False
            found = self._socket.recv(1 << 20)
        except (OSError, ValueError) as error:
            raise _broken(error) from error
        if not found:
            message = "RabbitMQ has closed the connection"
            raise StreamsAwayError(message)
        self._buffer += found
        self._heard_at = time.monotonic()
        return True

    def beat(self) -> None:
        """Say that we are there, and see that the other side is, if that is due."""
        if not self._heartbeat_s:
            return
        now = time.monotonic()
        if now - self._heard_at > 2 * self._heartbeat_s:
            message = f"RabbitMQ has said nothing for {2 * self._heartbeat_s} s"
            raise StreamsAwayError(message)
        if now - self._said_at > self._heartbeat_s / 2:
            self._send(HEARTBEAT, b"")

    # --------------------------------------------------------------------------------------------------------- streams
    def create(self, stream: str, **arguments: str) -> None:
        """Make a stream."""
        given = b"".join(_text(key.replace("_", "-")) + _text(value) for key, value in arguments.items())
        self._request(CREATE, _text(stream) + struct.pack(">I", len(arguments)) + given, f"stream {stream!r}")

    def delete(self, stream: str) -> None:
        """Delete a stream."""
        self._request(DELETE, _text(stream), f"stream {stream!r}")

    # --------------------------------------------------------------------------------------------------------- writing
    def last_number(self, publisher: str, stream: str) -> int:
        """Return the last number that a stream has of a publisher; 0 for none."""
        answer = self._request(QUERY_SEQUENCE, _text(publisher) + _text(stream), f"stream {stream!r}")
        return int(struct.unpack_from(">Q", answer)[0])

    def publish(self, publisher: str, stream: str, first: int, messages: Sequence[bytes]) -> None:
        """Send messages under numbers from the first on, and wait until all are confirmed.

        Args:
            publisher: Its name; without one nothing is remembered of it.
            stream: Where to.
            first: Number of the first message.
            messages: AMQP 1.0.
        """
        self._request(DECLARE_PUBLISHER, b"\0" + _text(publisher) + _text(stream), f"stream {stream!r}")
        unconfirmed: set[int] = set()
        for numbered in _frames(first, messages):
            self._send(PUBLISH, b"\0" + struct.pack(">I", len(numbered)) + b"".join(part for _, part in numbered))
            unconfirmed.update(number for number, _ in numbered)
            while len(unconfirmed) > MOST_UNCONFIRMED:
                self._take_confirms(unconfirmed, stream)
        while unconfirmed:
            self._take_confirms(unconfirmed, stream)
        self._request(DELETE_PUBLISHER, b"\0", "the publisher")

    def _take_confirms(self, unconfirmed: set[int], stream: str) -> None:
        frame = self._events.popleft() if self._events else self._next_frame(TIMEOUT_S)
        if frame is None:
            message = f"stream {stream!r} of RabbitMQ has confirmed nothing for {TIMEOUT_S:.0f} s"
            raise StreamsAwayError(message)
        key, payload = frame
        if key == PUBLISH_CONFIRM:
            (count,) = struct.unpack_from(">I", payload, 1)
            unconfirmed.difference_update(struct.unpack_from(f">{count}Q", payload, 5))
        elif key == PUBLISH_ERROR:
            what = f"stream {stream!r}"
            raise StreamRefusedError(what, struct.unpack_from(">H", payload, 13)[0])
        elif key == METADATA_UPDATE:
            message = f"stream {stream!r} of RabbitMQ has moved"
            raise StreamsAwayError(message)

    # --------------------------------------------------------------------------------------------------------- reading
    def subscribe(self, subscription: int, stream: str, start: str, at: int, credit: int) -> None:
        """Have a stream delivered.

        Args:
            subscription: A number for it, below 256.
            stream: Which.
            start: ``first``, ``last`` (chunk), ``next``, ``offset``, ``timestamp``.
            at: The offset, or the timestamp in epoch milliseconds.
            credit: How many chunks may come before more is given.
        """
        place = struct.pack(">H", _OFFSETS[start])
        if start in ("offset", "timestamp"):
            place += struct.pack(">q", at)
        wanted = struct.pack(">B", subscription) + _text(stream) + place + struct.pack(">HI", credit, 0)
        self._request(SUBSCRIBE, wanted, f"stream {stream!r}")

    def store_offset(self, consumer: str, stream: str, offset: int) -> None:
        """Have the server remember, in the stream itself, how far somebody has read; there is no answer."""
        self._send(STORE_OFFSET, _text(consumer) + _text(stream) + struct.pack(">Q", offset))

    def give_credit(self, subscription: int, credit: int) -> None:
        """Let more chunks come."""
        self._send(CREDIT, struct.pack(">BH", subscription, credit))

    def receive(self, timeout_s: float) -> Chunk | None:
        """Return the next chunk; None if there is none within the time.

        Raises:
            StreamsAwayError: If the connection is broken, or a stream has moved or is no more.
            ValueError: If a chunk is damaged.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._events.popleft() if self._events else self._next_frame(deadline - time.monotonic())
            if frame is None:
                return None
            key, payload = frame
            if key == DELIVER:
                return _chunk_of(payload)
            if key == METADATA_UPDATE:
                message = "a stream of RabbitMQ has moved, or was deleted"
                raise StreamsAwayError(message)

    def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()


def chunk_at_edge(address: Address, stream: str, edge: str) -> Chunk | None:
    """Return the ``first`` or ``last`` chunk of messages of a stream; None for an empty stream.

    Raises:
        StreamsAwayError: If the server does not answer.
        StreamRefusedError: If there is no such stream.
        ValueError: If the chunk is damaged.
    """
    connection = StreamConnection(address)
    try:
        connection.subscribe(0, stream, edge, 0, 1)
        # A server that is slow has not sent the chunk yet; it does so before it answers what is asked behind it.
        connection.last_number("headrace", stream)
        return connection.receive(EDGE_TIMEOUT_S)
    finally:
        connection.close()


def _broken(error: Exception) -> StreamsAwayError:
    message = f"the connection to RabbitMQ is broken: {error}"
    return StreamsAwayError(message)


def _frames(first: int, messages: Sequence[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Messages with their numbers, as many as go into a frame."""
    frame: list[tuple[int, bytes]] = []
    size = 0
    for number, message in enumerate(messages, first):
        frame.append((number, struct.pack(">QI", number, len(message)) + message))
        size += len(message) + 12
        if size >= PUBLISH_BYTES:
            yield frame
            frame, size = [], 0
    if frame:
        yield frame


def _chunk_of(payload: bytes) -> Chunk:
    """Read what a delivery holds.

    Raises:
        ValueError: If it is damaged, or compressed as nobody here can read.
    """
    subscription = payload[0]
    _magic, kind, num_entries, num_records, time_ms, _epoch, first, crc, length, _trailer = struct.unpack_from(
        ">bbHIqQQIII", payload, 1
    )
    data = payload[49 : 49 + length]
    if kind != 0 or len(data) != length or zlib.crc32(data) != crc:
        what = f"the chunk at offset {first} is damaged"
        raise ValueError(what)
    messages: list[bytes] = []
    place = 0
    try:
        for _ in range(num_entries):
            add = _add_batch if data[place] & 0x80 else _add_message
            place = add(messages, data, place)
    except (struct.error, IndexError, zlib.error, ValueError) as error:
        what = f"the chunk at offset {first} cannot be read: {error}"
        raise ValueError(what) from error
    if len(messages) != num_records:
        what = f"the chunk at offset {first} holds {len(messages)} messages of {num_records}"
        raise ValueError(what)
    return Chunk(subscription, first, time_ms, messages)


def _add_batch(messages: list[bytes], data: bytes, place: int) -> int:
    """Add the messages of a batch that was sent as one entry; gives where it ends."""
    compression = (data[place] & 0x70) >> 4
    count, size, length = struct.unpack_from(">HII", data, place + 1)
    entry = data[place + 11 : place + 11 + length]
    if len(entry) != length:
        what = "a batch of messages is cut off"
        raise ValueError(what)
    if compression == _GZIP:
        entry = _expanded(entry, size)
    elif compression:
        what = f"a batch of messages is compressed in another way than gzip (number {compression})"
        raise ValueError(what)
    at = 0
    for _ in range(count):
        at = _add_message(messages, entry, at)
    return place + 11 + length


def _add_message(messages: list[bytes], data: bytes, place: int) -> int:
    """Add a message; gives where it ends."""
    (size,) = struct.unpack_from(">I", data, place)
    end = place + 4 + size
    if end > len(data):
        what = "a message is cut off"
        raise ValueError(what)
    messages.append(data[place + 4 : end])
    return int(end)


def _expanded(entry: bytes, size: int) -> bytes:
    """What was compressed: so many bytes as its publisher says, who may be anybody."""
    if size > MOST_EXPANDED_BYTES:
        what = f"a batch of messages would have {size} bytes, more than {MOST_EXPANDED_BYTES}"
        raise ValueError(what)
    stream = zlib.decompressobj(wbits=31)
    found = stream.decompress(entry, size + 1)
    if len(found) != size or not stream.eof:
        what = "a batch of messages has other bytes than it says"
        raise ValueError(what)
    return found
