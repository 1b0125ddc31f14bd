"""The frames of Arrow's IPC format: what a stream claims to be, found out before Arrow takes memory for it.

Arrow decompresses a buffer into as many bytes as its header claims, and takes any number of rows for a column without
buffers. So the claims are added up first: every message's metadata, a FlatBuffer, is looked into for its number of
rows, its nodes and its buffers. Nothing is decompressed here, and no byte is trusted.

A file is a stream between two marks, followed by a footer that says where its parts are. Only the stream is read: a
footer may name one part a million times.

Source: Arrow's columnar format, "IPC Streaming Format" and "IPC File Format"; FlatBuffers' internals.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["Claims", "claims_of", "stream_of_file"]

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH, _SCHEMA = 2, 3, 1
_MAX_METADATA_BYTES = 64 << 20

_int16 = struct.Struct("<h").unpack_from
_uint16 = struct.Struct("<H").unpack_from
_uint32 = struct.Struct("<I").unpack_from
_int32 = struct.Struct("<i").unpack_from
_int64 = struct.Struct("<q").unpack_from
_pairs = struct.Struct("<qq").iter_unpack


@dataclass(slots=True)
class Claims:
    """What a stream says of itself.

    Attributes:
        num_slots: The lengths of all columns and their parts, of all batches.
        num_bytes: Of all buffers, decompressed.
        is_compressed: Whether a batch is compressed.
        num_batches: Record batches.
        dictionary_bytes: Of the buffers of all dictionaries, decompressed.
    """

    num_slots: int = 0
    num_bytes: int = 0
    is_compressed: bool = False
    num_batches: int = 0
    dictionary_bytes: int = 0


def stream_of_file(data: memoryview) -> memoryview:
    """Return the stream in a file.

    Raises:
        ValueError: If it is no Arrow file.
    """
    if len(data) < 24 or data[:6] != _MAGIC or data[-6:] != _MAGIC:
        message = "it is not an Arrow file: the mark at its start or end is missing"
        raise ValueError(message)
    (footer,) = _int32(data, len(data) - 10)
    end = len(data) - 10 - footer
    if footer <= 0 or end < 8:
        message = f"the footer of an Arrow file claims {footer} of {len(data)} bytes"
        raise ValueError(message)
    return data[8:end]


def claims_of(stream: memoryview) -> Claims:
    """Add up what the messages of a stream claim.

    Raises:
        ValueError: If it is no Arrow stream, or a message claims what cannot be; with its position.
    """
    claims, position = Claims(), 0
    while position < len(stream):
        try:
            size, is_end = _metadata_size(stream, position)
            if is_end:
                break
            table = _Table.root(stream[position + 8 : position + 8 + size])
            body_bytes = table.int64(3)
            start = position + 8 + size
            if not 0 <= body_bytes <= len(stream) - start:
                message = f"a message claims {body_bytes} bytes, {len(stream) - start} are left"
                raise ValueError(message)
            kind = table.uint8(1)
            if (kind == _SCHEMA) != (position == 0):
                message = "a stream must begin with its one schema"
                raise ValueError(message)
            if kind in (_RECORD_BATCH, _DICTIONARY_BATCH):
                batch, before = table.table(2), claims.num_bytes
                if kind == _DICTIONARY_BATCH and batch.uint8(2):
                    message = "a dictionary that grows, which Headrace never writes: each step is a copy of all"
                    raise ValueError(message)
                _add(claims, batch if kind == _RECORD_BATCH else batch.table(1), stream[start : start + body_bytes])
                claims.num_batches += kind == _RECORD_BATCH
                claims.dictionary_bytes += claims.num_bytes - before if kind == _DICTIONARY_BATCH else 0
            elif kind != _SCHEMA:
                message = f"a message of kind {kind} has no place in a stream of record batches"
                raise ValueError(message)
            position = start + body_bytes
        except (struct.error, IndexError, ValueError) as error:
            message = f"at byte {position} of {len(stream)}: {error}"
            raise ValueError(message) from error
    return claims


def _metadata_size(stream: memoryview, position: int) -> tuple[int, bool]:
    (mark,) = _uint32(stream, position)
    (size,) = _int32(stream, position + 4)
    if mark != _CONTINUATION:
        message = "a message does not begin as one"
        raise ValueError(message)
    if size == 0:
        return 0, True
    if not 0 < size <= min(_MAX_METADATA_BYTES, len(stream) - position - 8) or size % 8:
        message = f"a message claims {size} bytes of metadata, {len(stream) - position - 8} are left"
        raise ValueError(message)
    return size, False


def _add(claims: Claims, batch: _Table, body: memoryview) -> None:
    """Add what one record batch claims."""
    length = batch.int64(0)
    nodes, buffers = batch.structs(1, 16), batch.structs(2, 16)
    is_compressed = batch.has(3)
    lengths = [length, *(count for count, _ in _pairs(nodes))]
    if min(lengths) < 0:
        message = f"a record batch claims {min(lengths)} rows"
        raise ValueError(message)
    claims.num_slots += sum(lengths)
    claims.is_compressed |= is_compressed
    stored = 0
    for offset, size in _pairs(buffers):
        if offset < 0 or size < 0 or offset + size > len(body):
            message = f"a buffer of {size} bytes at {offset} leaves a body of {len(body)}"
            raise ValueError(message)
        stored += size
        claims.num_bytes += _decompressed_size(body, offset, size) if is_compressed else size
    if stored > len(body):
        message = f"buffers of {stored} bytes share a body of {len(body)}"
        raise ValueError(message)


def _decompressed_size(body: memoryview, offset: int, size: int) -> int:
    if size == 0:
        return 0
    if size < 8:
        message = f"a compressed buffer has {size} bytes"
        raise ValueError(message)
    (claimed,) = _int64(body, offset)
    if claimed < -1:
        message = f"a compressed buffer claims {claimed} bytes"
        raise ValueError(message)
    return size - 8 if claimed == -1 else int(claimed)


class _Table:
    """A table of a FlatBuffer: fields by number, found through its vtable."""

    __slots__ = ("_data", "_position", "_vtable", "_vtable_size")

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - _int32(data, position)[0]
        if self._vtable < 0:
            message = "a table lies outside of its message"
            raise ValueError(message)
        self._vtable_size = _uint16(data, self._vtable)[0]

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, _uint32(data, 0)[0])

    def _place(self, number: int) -> int:
        """Where a field is; 0 if it is left out."""
        entry = 4 + 2 * number
        if entry + 2 > self._vtable_size:
            return 0
        offset = int(_uint16(self._data, self._vtable + entry)[0])
        return self._position + offset if offset else 0

    def has(self, number: int) -> bool:
        return self._place(number) != 0

    def uint8(self, number: int) -> int:
        place = self._place(number)
        return self._data[place] if place else 0

    def int64(self, number: int) -> int:
        place = self._place(number)
        return int(_int64(self._data, place)[0]) if place else 0

    def table(self, number: int) -> _Table:
        place = self._place(number)
        if not place:
            message = f"a message lacks its part {number}"
            raise ValueError(message)
        return _Table(self._data, place + int(_uint32(self._data, place)[0]))

    def structs(self, number: int, size: int) -> memoryview:
        """Return the bytes of a vector of structs of a size."""
        place = self._place(number)
        if not place:
            return self._data[:0]
        start = place + int(_uint32(self._data, place)[0])
        num_bytes = int(_uint32(self._data, start)[0]) * size
        if start + 4 + num_bytes > len(self._data):
            message = "a vector leaves its message"
            raise ValueError(message)
        return self._data[start + 4 : start + 4 + num_bytes]
