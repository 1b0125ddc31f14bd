"""SequenceFiles of Hadoop, version 6: pairs of key and value, cut and decoded, and written.

::

    "SEQ" 6 | class of keys | class of values | compressed? blocks? | codec | metadata | sync
    [-1 sync] length | length of the key | key | value                     a record; a value may be compressed by itself
    -1 sync number | key lengths | keys | value lengths | values           a block, each part compressed

The sync is 16 bytes of chance. With -1 before it, which is no length, it stands where reading may begin: before a
record every 100 KB, and before each block. So a file is cut into ranges of bytes, and a range has the records from the
first sync in it to the first one behind it.

A record that has no meaning is a bad record; lengths that lead nowhere, and a block that cannot be decompressed, are a
damaged file, as nothing says what follows.

Source: Hadoop's ``SequenceFile``.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.errors import DamagedFileError
from headrace.state.values.types import RECORD_SHAPE

from ..blocks import RecordFile
from ..contract import Rejected, by_halves, columns_to_write
from .compression_codecs import Codec
from .hadoop_codecs import codec_named
from .writables import Writable, read_vint, vint_bytes, vint_size, writable_for, writable_named

__all__ = [
    "SequenceCompression",
    "SequenceEncoder",
    "SequenceHeader",
    "SequenceRecords",
    "SequenceSettings",
    "sequence_records_of",
]

SequenceCompression = Literal["none", "record", "block"]

_VERSION = 6
_MAX_HEADER_BYTES = 1 << 20
_SYNC_BYTES = 16
_SYNC_INTERVAL = 100 << 10
_BLOCK_BYTES = 1_000_000
"""Of keys and values in a block before they are compressed, as Hadoop has it by default."""

_EXPANDED_AT_ONCE = 64 << 10
"""How many bytes of records, whose values are compressed, are decompressed together, or one record."""

_MOST_LENGTH = (1 << 31) - 1

_INT = struct.Struct(">i")
_LENGTHS = struct.Struct(">ii")
_ESCAPE = _INT.pack(-1)

_Pair = tuple[int, str, bytes, bytes]
"""Where a record begins in a block of bytes, which one it is there, its key and its value."""


def _pair_schema(key: Writable, value: Writable) -> pa.Schema:
    """A record is a tuple of key and value."""
    return pa.schema([pa.field("f0", key.kind), pa.field("f1", value.kind)], {RECORD_SHAPE: b"tuple"})


@dataclass(frozen=True)
class SequenceHeader:
    """What a file says of itself.

    Attributes:
        key: The class of its keys.
        value: The class of its values.
        compression: What is compressed.
        codec: By what; None for nothing.
        sync: What tells where reading may begin.
    """

    key: Writable
    value: Writable
    compression: SequenceCompression
    codec: Codec | None
    sync: bytes

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records, which are tuples."""
        return _pair_schema(self.key, self.value)

    def to_bytes(self) -> bytes:
        """Return how a file begins."""
        names = _named(self.key.class_name) + _named(self.value.class_name)
        flags = bytes((self.compression != "none", self.compression == "block"))
        codec = b"" if self.codec is None else _named(self.codec.stored_name)
        return b"SEQ" + bytes((_VERSION,)) + names + flags + codec + _INT.pack(0) + self.sync

    @classmethod
    def read(cls, data: bytes) -> tuple[SequenceHeader, int]:
        """Read the beginning of a file; return what it says, and where the first record begins.

        Raises:
            DamagedFileError: If it is no SequenceFile, or one of another version.
            ConfigurationError: If it has a class or a codec that is not known here.
        """
        if data[:3] != b"SEQ" or len(data) < 4:
            message = f"it is no SequenceFile: it begins with {data[:4]!r}"
            raise DamagedFileError(message)
        if data[3] != _VERSION:
            message = f"a SequenceFile must be of version {_VERSION}; it is of version {data[3]}"
            raise DamagedFileError(message)
        try:
            key, place = _text_at(data, 4)
            value, place = _text_at(data, place)
            is_compressed, is_block = _bytes_at(data, place, 2)
            codec, place = _text_at(data, place + 2) if is_compressed else (None, place + 2)
            (count,) = _INT.unpack(_bytes_at(data, place, 4))
            place += 4
            for _ in range(2 * count):
                place = _text_at(data, place)[1]
            sync = _bytes_at(data, place, _SYNC_BYTES)
        except ValueError as error:
            message = f"the header of a SequenceFile cannot be read: {error}"
            raise DamagedFileError(message) from error
        compression: SequenceCompression = "none"
        if is_compressed:
            compression = "block" if is_block else "record"
        header = cls(
            writable_named(key),
            writable_named(value),
            compression,
            None if codec is None else codec_named(codec),
            sync,
        )
        return header, place + _SYNC_BYTES


def _named(name: str) -> bytes:
    data = name.encode()
    return vint_bytes(len(data)) + data


def _bytes_at(data: bytes, place: int, length: int) -> bytes:
    if not 0 <= length <= len(data) - place:
        message = f"it is cut off, or has more than {_MAX_HEADER_BYTES:,} bytes"
        raise ValueError(message)
    return data[place : place + length]


def _text_at(data: bytes, place: int) -> tuple[str, int]:
    length, place = read_vint(data, place)
    return _bytes_at(data, place, length).decode(), place + length


def sequence_records_of(file: RecordFile) -> SequenceRecords:
    """Look at the beginning of a file; return its format. The file has to be opened anew afterwards.

    Raises:
        DamagedFileError: As of `SequenceHeader.read`.
        ConfigurationError: As there.
    """
    file.open_at(0)
    return SequenceRecords(*SequenceHeader.read(file.beginning(_MAX_HEADER_BYTES)))


class SequenceRecords:
    """The records of a file, as `headrace.formats.contract.ContainedRecords` says.

    Args:
        header: Of the file.
        first_byte: Where it ends.
    """

    def __init__(self, header: SequenceHeader, first_byte: int) -> None:
        self._header = header
        self.first_byte = first_byte
        self._is_block = header.compression == "block"
        self._value_codec = header.codec if header.compression == "record" else None
        self.mark = _ESCAPE + header.sync
        self.schema = header.schema

    def cut(self, data: bytes, end: int | None) -> int:
        """Return how many bytes are whole records, or one block; not many of what is larger once it is decompressed.

        Args:
            data: The bytes, from the beginning of a record on.
            end: Records from the first mark on that is there or behind are somebody else's; None for none.

        Raises:
            DamagedFileError: If a length leads nowhere.
        """
        if self._is_block:
            return next((last for *_, last in self._blocks(data)), 0)
        most = len(data) if self._value_codec is None else _EXPANDED_AT_ONCE
        cut = 0
        for start, key, _, last in self._records(data):
            is_marked = key - start > len(self.mark)
            if start > 0 and is_marked and end is not None and start >= end:
                break
            cut = last
            if cut >= most:
                break
        return cut

    def line_end(self, data: bytes, start: int) -> int:
        """Return where the first sync behind byte ``start`` is; 0 if ``data`` has none."""
        return max(data.find(self.mark, start + 1), 0)

    def require_end(self, rest: bytes) -> None:
        """See that a file may end with bytes that are no whole record or block: with a sync alone.

        Raises:
            DamagedFileError: If not.
        """
        if rest != self.mark:
            # What is wrong with it says who reads it.
            for _ in self._blocks(rest) if self._is_block else self._records(rest):
                pass
            raise _damaged(0, f"a {'block' if self._is_block else 'record'} is cut off")

    def pieces(self, block: bytes) -> Iterator[Batch | Rejected]:
        """Decode what can be decoded of records or blocks, in order.

        Raises:
            DamagedFileError: If one is cut off, or a block cannot be decompressed.
        """
        pairs = list(self._pairs_of_blocks(block) if self._is_block else self._pairs(block))
        if not pairs:
            return
        for piece in by_halves(len(pairs), lambda first, last: self._decoded(pairs[first:last])):
            if isinstance(piece, Batch):
                yield piece
                continue
            index, cause = piece
            place, which, key, value = pairs[index]
            yield Rejected(place, index, key + value, f"{which}{cause}")

    def _decoded(self, pairs: Sequence[_Pair]) -> Batch:
        keys = [key for _, _, key, _ in pairs]
        values = [value for _, _, _, value in pairs]
        if self._value_codec is not None:
            values = list(map(self._value_codec.expanded, values))
        columns = [self._header.key.decode(keys), self._header.value.decode(values)]
        return Batch.of_columns(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    # ---------------------------------------------------------------------------------------------------------- records
    def _records(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """Where each whole record begins, where its key begins, where its value begins, and where it ends."""
        place, size = 0, len(data)
        while place + 8 <= size:
            start = place
            length, key_length = _LENGTHS.unpack_from(data, place)
            if length == -1:
                if place + 28 > size:
                    return
                if not data.startswith(self.mark, place):
                    raise _damaged(place, "what stands for a sync is none")
                place += 20
                length, key_length = _LENGTHS.unpack_from(data, place)
            if not 0 <= key_length <= length:
                raise _damaged(place, f"a record of {length} bytes has a key of {key_length}")
            end = place + 8 + length
            if end > size:
                return
            yield start, place + 8, place + 8 + key_length, end
            place = end

    def _pairs(self, data: bytes) -> Iterator[_Pair]:
        place = 0
        for start, key, value, place in self._records(data):
            yield start, "", data[key:value], data[value:place]
        if place < len(data) and data[place:] != self.mark:
            raise _damaged(place, "a record is cut off")

    # ----------------------------------------------------------------------------------------------------------- blocks
    def _blocks(self, data: bytes) -> Iterator[tuple[int, int, list[tuple[int, int]], int]]:
        """Where each whole block begins, how many records it has, where its four parts are, and where it ends."""
        place, size = 0, len(data)
        while place + len(self.mark) < size:
            start = place
            if not data.startswith(self.mark, place):
                raise _damaged(place, "a block does not begin with a sync")
            place += len(self.mark)
            if place + vint_size(data[place]) > size:
                return
            number, place = _length_at(data, place)
            parts: list[tuple[int, int]] = []
            while len(parts) < 4:
                if place >= size or place + vint_size(data[place]) > size:
                    return
                length, place = _length_at(data, place)
                parts.append((place, place + length))
                place += length
            if place > size:
                return
            yield start, number, parts, place

    def _pairs_of_blocks(self, data: bytes) -> Iterator[_Pair]:
        place = 0
        for start, number, parts, place in self._blocks(data):  # noqa: B007 - where the last one ends
            try:
                lengths, keys, value_lengths, values = (self._expanded(data[first:last]) for first, last in parts)
                cut = zip(_cut(keys, lengths, number), _cut(values, value_lengths, number), strict=True)
            except ValueError as error:
                raise _damaged(start, f"a block cannot be read: {error}") from error
            for index, (key, value) in enumerate(cut):
                yield start, f"record {index} of the block there: ", key, value
        if place < len(data) and data[place:] != self.mark:
            raise _damaged(place, "a block is cut off")

    def _expanded(self, part: bytes) -> bytes:
        codec = self._header.codec
        assert codec is not None
        return codec.expanded(part) if part else b""


def _length_at(data: bytes, place: int) -> tuple[int, int]:
    """What a block says of its own size, and where that ends. Hadoop has it in 31 bits: more is not looked for.

    Raises:
        DamagedFileError: If it is none.
    """
    try:
        length, end = read_vint(data, place)
    except ValueError as error:
        raise _damaged(place, f"a block cannot be read: {error}") from error
    if not 0 <= length <= _MOST_LENGTH:
        raise _damaged(place, f"a block has {length} records, or bytes in a part")
    return length, end


def _cut(data: bytes, lengths: bytes, number: int) -> list[bytes]:
    """Cut values by their lengths, of which there are so many."""
    if number > len(lengths):
        message = f"{len(lengths)} bytes are no {number} lengths"
        raise ValueError(message)
    values: list[bytes] = []
    place = start = 0
    for _ in range(number):
        length, place = read_vint(lengths, place)
        if not 0 <= length <= len(data) - start:
            message = f"a value has {length} bytes, where {len(data) - start} are left"
            raise ValueError(message)
        values.append(data[start : start + length])
        start += length
    if place != len(lengths) or start != len(data):
        message = "there are more bytes than its records have"
        raise ValueError(message)
    return values


def _damaged(place: int, what: str) -> DamagedFileError:
    message = f"a SequenceFile is damaged {place} bytes behind the place: {what}"
    return DamagedFileError(message)


# -------------------------------------------------------------------------------------------------------------- written
@dataclass(frozen=True)
class SequenceSettings:
    """How files are written.

    Attributes:
        key: The class of the keys; None for that of the type that they have.
        value: The class of the values; as ``key``.
        compression: What is compressed: nothing, each value by itself, or blocks of records.
        codec: By what.

    Raises:
        ConfigurationError: If there is no such class, compression or codec.
    """

    key: str | None = None
    value: str | None = None
    compression: SequenceCompression = "none"
    codec: str = "zlib"

    def __post_init__(self) -> None:
        for name in (self.key, self.value):
            if name is not None:
                writable_named(name)
        if self.compression not in get_args(SequenceCompression):
            legal = ", ".join(get_args(SequenceCompression))
            message = f"the compression of a SequenceFile must be one of {legal}; got {self.compression!r}"
            raise ConfigurationError(message)
        codec_named(self.codec)


class SequenceEncoder:
    """Records of two columns, the first one the key, as a SequenceFile. Its classes are those of the first records.

    Args:
        settings: How it is written.
        schema: The columns to write; None for those that the records have.
    """

    def __init__(self, settings: SequenceSettings, schema: pa.Schema | None = None) -> None:
        self._settings = settings
        self._schema = schema
        # None before the first records.
        self._header: SequenceHeader | None = None
        # Bytes since the last sync.
        self._since_sync = 0
        # Records that are to be a block, and their bytes.
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._gathered_bytes = 0

    def encode(self, batch: Batch) -> bytes:
        """Return the bytes of records, but of those that wait for a whole block.

        Raises:
            TypeMismatchError: If they have no two columns, or a value no form in the class.
        """
        columns = columns_to_write(batch, self._schema)
        if columns.num_columns != 2:
            message = f"the records of a SequenceFile are pairs of key and value; they have {columns.schema.names}"
            raise TypeMismatchError(message, hint="make tuples of two of them")
        parts: list[bytes] = []
        if self._header is None:
            self._header = self._begun(columns.schema)
            parts.append(self._header.to_bytes())
        keys, values = (
            self._values_of(what, one, column)
            for what, one, column in zip(
                ("key", "value"), (self._header.key, self._header.value), columns.columns, strict=True
            )
        )
        if self._settings.compression == "block":
            self._gather(keys, values, parts)
        else:
            self._write(keys, values, parts)
        return b"".join(parts)

    def finish(self) -> bytes:
        """Return what has waited."""
        return self._block() if self._keys else b""

    def _begun(self, schema: pa.Schema) -> SequenceHeader:
        settings = self._settings
        key, value = (
            writable_for(field.type) if name is None else writable_named(name)
            for name, field in zip((settings.key, settings.value), schema, strict=True)
        )
        codec = None if settings.compression == "none" else codec_named(settings.codec)
        return SequenceHeader(key, value, settings.compression, codec, secrets.token_bytes(_SYNC_BYTES))

    def _values_of(self, what: str, writable: Writable, column: pa.Array) -> list[bytes]:
        try:
            return writable.values_of(column)
        except TypeMismatchError as error:
            error.context.setdefault("column", what)
            raise

    @property
    def _mark(self) -> bytes:
        assert self._header is not None
        return _ESCAPE + self._header.sync

    def _write(self, keys: list[bytes], values: list[bytes], parts: list[bytes]) -> None:
        assert self._header is not None
        if self._header.codec is not None:
            values = list(map(self._header.codec.compress, values))
        for key, value in zip(keys, values, strict=True):
            if self._since_sync >= _SYNC_INTERVAL:
                parts.append(self._mark)
                self._since_sync = 0
            record = _LENGTHS.pack(len(key) + len(value), len(key)) + key + value
            parts.append(record)
            self._since_sync += len(record)

    def _gather(self, keys: list[bytes], values: list[bytes], parts: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._keys.append(key)
            self._values.append(value)
            self._gathered_bytes += len(key) + len(value)
            if self._gathered_bytes >= _BLOCK_BYTES:
                parts.append(self._block())

    def _block(self) -> bytes:
        assert self._header is not None
        assert self._header.codec is not None
        keys, values = self._keys, self._values
        self._keys, self._values, self._gathered_bytes = [], [], 0
        parts = [self._mark, vint_bytes(len(keys))]
        for column in (keys, values):
            lengths = b"".join(vint_bytes(len(one)) for one in column)
            for content in (lengths, b"".join(column)):
                compressed = self._header.codec.compress(content)
                parts += (vint_bytes(len(compressed)), compressed)
        return b"".join(parts)
