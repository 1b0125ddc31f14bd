"""Files of Avro: blocks of records behind a header, cut at their marks and decoded, and written.

::

    "Obj" 1 | what is said of the file (its schema, its codec) | sync
    number of records | length | records, compressed | sync                            a block

The sync is 16 bytes of chance, behind the header and behind each block. Here it counts as the beginning of what
follows it: so a file is cut into ranges of bytes, and a range has the blocks whose syncs begin in it, as with Avro's
own reader.

Of a block whose records cannot be read nothing is believed: it is a damaged file.

Source: the Avro specification, "Object Container Files"; Java's ``DataFileReader``, ``DataFileWriter``.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError, nearest
from headrace.state.errors import DamagedFileError
from headrace.state.values.types import RECORD_SHAPE, declared_shape

from ..avro_types import AvroRows, avro_library, avro_schema_of, parsed_avro_schema
from ..blocks import RecordFile
from ..contract import Rejected, in_types
from .compression_codecs import AVRO_CODECS, Codec

__all__ = ["AvroEncoder", "AvroRecords", "avro_records_of", "require_avro_codec"]

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_HEADER_BYTES = (64 << 10, 1 << 20, 16 << 20)
"""How much of a file is looked at for its header, one after the other; the last is the most that one may have."""

_DECODED_AT_ONCE = 128 << 10
"""How many bytes of blocks are decoded together, or one block."""

_BLOCK_BYTES = 64 << 10
"""Of records in a block before they are compressed, as Java's writer has it by default."""

_MOST_BLOCK_BYTES = (1 << 31) - 1
"""Of a block, compressed, as for Java's reader; what is looked for in memory."""

_MOST_EMPTY_RECORDS = 1 << 20
"""How many records a block may have beyond its bytes: those of a record without fields have none."""

_ROW = RECORD_SHAPE.decode()
"""What a file says of itself beside its schema and codec: what a record is, if no dict."""


class _CutOffError(ValueError):
    """A number that goes on behind the bytes."""


def read_long(data: bytes, place: int) -> tuple[int, int]:
    """Return a number in zigzag, seven bits in each byte, and where it ends.

    Raises:
        ValueError: If it is cut off, or has more than 64 bits.
    """
    number = shift = 0
    while True:
        if place >= len(data):
            message = "a number is cut off"
            raise _CutOffError(message)
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
        if shift > 63:
            message = "a number has more than 64 bits"
            raise ValueError(message)
    return (number >> 1) ^ -(number & 1), place


def long_bytes(number: int) -> bytes:
    """Return a number in zigzag; the inverse of `read_long`."""
    rest = (number << 1) ^ (number >> 63)
    parts = bytearray()
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def _text_bytes(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


@dataclass(frozen=True)
class AvroHeader:
    """What a file says of itself.

    Attributes:
        schema: Of its records, as JSON.
        codec: What compresses blocks.
        row: What a record is: ``dict``, ``tuple`` or ``value``.
        sync: What tells where reading may begin.
    """

    schema: str
    codec: Codec
    row: str
    sync: bytes

    def to_bytes(self) -> bytes:
        """Return how a file begins, without the sync."""
        said = {"avro.schema": self.schema, "avro.codec": self.codec.stored_name}
        if self.row != "dict":
            said[_ROW] = self.row
        texts = b"".join(_text_bytes(name.encode()) + _text_bytes(value.encode()) for name, value in said.items())
        return _MAGIC + long_bytes(len(said)) + texts + long_bytes(0)

    @classmethod
    def read(cls, data: bytes) -> tuple[AvroHeader, int]:
        """Read the beginning of a file; return what it says, and where its sync begins.

        Raises:
            _CutOffError: If the header goes on behind the bytes.
            DamagedFileError: If it is no file of Avro.
            ConfigurationError: If it has a codec that is not known here.
        """
        if data[:4] != _MAGIC:
            message = f"it is no file of Avro: it begins with {data[:4]!r}"
            raise DamagedFileError(message)
        place, said = 4, {}
        try:
            count, place = read_long(data, place)
            while count:
                if count < 0:
                    _, place = read_long(data, place)
                for _ in range(abs(count)):
                    name, place = _text_at(data, place)
                    said[name.decode()], place = _text_at(data, place)
                count, place = read_long(data, place)
            sync = _bytes_at(data, place, _SYNC_BYTES)
            texts = {name: said.get(name, b"").decode() for name in ("avro.schema", "avro.codec", _ROW)}
        except _CutOffError:
            raise
        except ValueError as error:
            message = f"the header of a file of Avro cannot be read: {error}"
            raise DamagedFileError(message) from error
        if not texts["avro.schema"]:
            message = "the header of a file of Avro has no schema"
            raise DamagedFileError(message)
        codec = texts["avro.codec"] or "null"
        if codec not in AVRO_CODECS:
            message = f"{codec:.200} is no codec of Avro that is known here: {', '.join(AVRO_CODECS)}"
            raise ConfigurationError(message)
        row = texts[_ROW] if texts[_ROW] in ("tuple", "value") else "dict"
        return cls(texts["avro.schema"], AVRO_CODECS[codec], row, sync), place


def _bytes_at(data: bytes, place: int, length: int) -> bytes:
    if length < 0:
        message = f"something has {length} bytes"
        raise ValueError(message)
    if length > len(data) - place:
        message = "it is cut off"
        raise _CutOffError(message)
    return data[place : place + length]


def _text_at(data: bytes, place: int) -> tuple[bytes, int]:
    length, place = read_long(data, place)
    return _bytes_at(data, place, length), place + length


def require_avro_codec(codec: str) -> None:
    """See that files can be written by a codec.

    Raises:
        ConfigurationError: If there is none of that name.
    """
    if codec not in AVRO_CODECS:
        message = f"{codec!r} is no codec of Avro: {', '.join(AVRO_CODECS)}"
        raise ConfigurationError(message, hint=nearest(codec, AVRO_CODECS))


def avro_records_of(file: RecordFile, columns: Sequence[str] | None = None) -> AvroRecords:
    """Look at the beginning of a file; return its format. The file has to be opened anew afterwards.

    Args:
        file: The file.
        columns: Which to give; None for all.

    Raises:
        DamagedFileError: As of `AvroHeader.read`, and if the header is cut off or its schema is none.
        ConfigurationError: As there, if it has a type that no column has, or lacks a column.
    """
    for size in _HEADER_BYTES:
        file.open_at(0)
        data = file.beginning(size)
        try:
            return AvroRecords(*AvroHeader.read(data), columns)
        except _CutOffError as error:
            if len(data) < size or size == _HEADER_BYTES[-1]:
                message = f"the header of a file of Avro is cut off, or has more than {_HEADER_BYTES[-1]:,} bytes"
                raise DamagedFileError(message) from error
    raise AssertionError  # the last size is met above


class AvroRecords:
    """The records of a file, as `headrace.formats.contract.ContainedRecords` says.

    Args:
        header: Of the file.
        first_byte: Where its sync begins.
        columns: Which to give; None for all.
    """

    def __init__(self, header: AvroHeader, first_byte: int, columns: Sequence[str] | None = None) -> None:
        self._codec = header.codec
        self.first_byte = first_byte
        self.mark = header.sync
        self._types = AvroRows(json.loads(header.schema))
        own = self._types.schema
        missing = [name for name in columns or () if name not in own.names]
        if missing:
            message = f"the file has no column {missing[0]!r}; it has {own.names}"
            raise ConfigurationError(message, hint=nearest(missing[0], own.names))
        self._columns = None if columns is None else list(columns)
        chosen = list(own) if columns is None else [own.field(name) for name in columns]
        is_row = header.row != "dict" and columns is None
        self.schema = pa.schema(chosen, {RECORD_SHAPE: header.row} if is_row else None)
        # How a file without compression begins that has the same records, for the library to read.
        self._head = AvroHeader(json.dumps(self._types.library), AVRO_CODECS["null"], "dict", header.sync).to_bytes()

    def cut(self, data: bytes, end: int | None) -> int:
        """Return how many bytes are whole blocks; not many of what is larger once it is decompressed.

        Args:
            data: The bytes, from the beginning of a block on.
            end: Blocks from the first one on that begins there or behind are somebody else's; None for none.

        Raises:
            DamagedFileError: If a length leads nowhere, or no sync stands behind a block.
        """
        cut = 0
        for start, _, _, last in self._blocks(data):
            if start and (last > _DECODED_AT_ONCE or (end is not None and start >= end)):
                break
            cut = last
        return cut

    def line_end(self, data: bytes, start: int) -> int:
        """Return where the first sync behind byte ``start`` is; 0 if ``data`` has none."""
        return max(data.find(self.mark, start + 1), 0)

    def require_end(self, rest: bytes) -> None:
        """See that a file may end with bytes that are no whole block: with a sync alone.

        Raises:
            DamagedFileError: If not.
        """
        if rest != self.mark:
            raise _damaged(0, "a block is cut off")

    def pieces(self, block: bytes) -> Iterator[Batch | Rejected]:
        """Decode blocks.

        Raises:
            DamagedFileError: If one cannot be decompressed, or has other records than it says.
        """
        rows: list[dict[str, Any]] = []
        for start, number, (first, last), _ in self._blocks(block + self.mark):
            try:
                rows += self._rows(number, self._codec.expanded(block[first:last]))
            except _FAILURES as error:
                raise _damaged(start, f"a block cannot be read: {error or type(error).__name__}") from error
        try:
            columns = self._types.columns_of(rows)
        except (TypeMismatchError, pa.ArrowException, ValueError) as error:
            raise _damaged(0, f"a block has values that are none of their types: {error}") from error
        if self._columns is not None:
            columns = columns.select(self._columns)
        yield Batch.of_columns(columns.replace_schema_metadata(self.schema.metadata))

    def _rows(self, number: int, data: bytes) -> list[dict[str, Any]]:
        if number > len(data) + _MOST_EMPTY_RECORDS:
            message = f"{len(data)} bytes are no {number} records"
            raise ValueError(message)
        parts = (self._head, self.mark, long_bytes(number), long_bytes(len(data)), data, self.mark)
        block = next(avro_library().block_reader(io.BytesIO(b"".join(parts))))
        rows = list(block)
        rest = len(block.bytes_.read())
        if rest:
            message = f"{rest} bytes are left behind its {number} records"
            raise ValueError(message)
        return rows

    def _blocks(self, data: bytes) -> Iterator[tuple[int, int, tuple[int, int], int]]:
        """Where each whole block begins that a sync follows, how many records it has, where they are, and its end."""
        place = 0
        while place + _SYNC_BYTES < len(data):
            start = place
            if not data.startswith(self.mark, place):
                raise _damaged(place, "a block does not begin with a sync")
            try:
                number, place = read_long(data, place + _SYNC_BYTES)
                size, place = read_long(data, place)
            except _CutOffError:
                return
            except ValueError as error:
                raise _damaged(start, f"a block cannot be read: {error}") from error
            if number < 0 or not 0 <= size <= _MOST_BLOCK_BYTES:
                raise _damaged(start, f"a block has {number} records in {size} bytes")
            first, place = place, place + size
            if place + _SYNC_BYTES > len(data):
                return
            if not data.startswith(self.mark, place):
                raise _damaged(start, "no sync stands behind a block")
            yield start, number, (first, place), place


_FAILURES = (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, StopIteration)
"""What the library raises where bytes are not what the schema says."""


def _damaged(place: int, what: str) -> DamagedFileError:
    message = f"a file of Avro is damaged {place} bytes behind the place: {what}"
    return DamagedFileError(message)


# -------------------------------------------------------------------------------------------------------------- written
class AvroEncoder:
    """Records gathered into blocks of a file. Its columns are those of the first records.

    Args:
        stream: Where bytes are written.
        codec: Of the blocks, by its name in Avro.
    """

    def __init__(self, stream: Any, codec: str = "snappy") -> None:
        self._stream = stream
        self._codec = AVRO_CODECS[codec]
        self._schema: pa.Schema | None = None
        # The block that is coming together.
        self._block = io.BytesIO()
        self._num_records = 0

    @property
    def gathered_bytes(self) -> int:
        """What is not written yet."""
        return self._block.tell()

    def write(self, columns: pa.RecordBatch) -> bool:
        """Take records; False if their types do not fit into the file.

        Raises:
            TypeMismatchError: If they have other columns than those before, or a value has no form in Avro.
            ConfigurationError: If a column's type has none.
        """
        if self._schema is None:
            self._begin(columns.schema)
        fitting = in_types(columns, self._schema)
        if fitting is None:
            return False
        write, parsed, block = avro_library().schemaless_writer, self._parsed, self._block
        for row in self._rows.rows_of(fitting):
            write(block, parsed, row)
            self._num_records += 1
            if block.tell() >= _BLOCK_BYTES:
                self._write_block()
        return True

    def finish(self) -> None:
        """Write what is left."""
        if self._num_records:
            self._write_block()

    def abandon(self) -> None:
        """Close without what is gathered."""

    def _begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        avro = avro_schema_of(schema)
        self._rows = AvroRows(avro)
        self._parsed = parsed_avro_schema(self._rows.library)
        row = declared_shape(schema)
        header = AvroHeader(json.dumps(avro), self._codec, row, secrets.token_bytes(_SYNC_BYTES))
        self._sync = header.sync
        self._stream.write(header.to_bytes() + header.sync)

    def _write_block(self) -> None:
        data = self._codec.compress(self._block.getvalue())
        self._stream.write(long_bytes(self._num_records) + long_bytes(len(data)) + data + self._sync)
        self._block.seek(0)
        self._block.truncate()
        self._num_records = 0
