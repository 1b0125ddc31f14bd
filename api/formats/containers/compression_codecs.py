"""What compresses parts of files, and makes them again: codecs by the names that files have for them.

Nothing is believed of a length: what comes out is bounded by what went in (`headrace.state.reading.read_limits`), and a
length that compressed bytes tell of themselves is looked at before there is memory for it.

Source: the Avro specification, "Required Codecs", "Optional Codecs".
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.state.reading.read_limits import check_expansion, expansion_limit

__all__ = ["AVRO_CODECS", "Codec", "compress_zstd", "expand_snappy", "expand_streams", "expand_zstd"]


@dataclass(frozen=True)
class Codec:
    """A codec.

    Attributes:
        name: As programs name it.
        stored_name: As files name it.
        compress: Makes a complete stream of some bytes.
        expand: Makes the bytes of a complete stream again, at most so many; ValueError if it is none, or has more.
    """

    name: str
    stored_name: str
    compress: Callable[[bytes], bytes]
    expand: Callable[[bytes, int], bytes]

    def expanded(self, data: bytes) -> bytes:
        """Return what was compressed.

        Raises:
            ValueError: If that cannot be said, or it would be too much.
        """
        try:
            return self.expand(data, expansion_limit(len(data)))
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            message = f"what {self.name} has compressed cannot be read: {error}"
            raise ValueError(message) from error


def expand_streams(make: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    """Return what expands streams behind each other, by what makes a decompressor as those of Python."""

    def expand(data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        size, rest = 0, data
        while rest:
            stream = make()
            piece = stream.decompress(rest, limit - size + 1)
            size += len(piece)
            if size > limit:
                check_expansion(size, len(data))
            if not stream.eof:
                message = "a compressed stream is cut off"
                raise ValueError(message)
            pieces.append(piece)
            rest = stream.unused_data
        return b"".join(pieces)

    return expand


def compress_zstd(data: bytes) -> bytes:
    """Return a complete stream."""
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def expand_zstd(data: bytes, limit: int) -> bytes:
    """Return what streams hold, at most so much."""
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        found = bytes(stream.read(limit + 1))
    check_expansion(len(found), len(data))
    return found


def expand_snappy(data: bytes, most: int) -> bytes:
    """Return what was compressed, which begins with its length: seven bits in each byte, the lowest first."""
    length = shift = 0
    for byte in data[:5]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if length > most:
        message = f"what was compressed has {length} bytes, where {most} are left"
        raise ValueError(message)
    return bytes(pa.Codec("snappy").decompress(data, decompressed_size=length, asbytes=True))


# ---------------------------------------------------------------------------------------------------------------- Avro
_CHECKSUM = struct.Struct(">I")


def _deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def _expand_deflate(data: bytes, limit: int) -> bytes:
    """One stream; some writers leave bytes of a checksum behind it."""
    stream = zlib.decompressobj(-15)
    found = stream.decompress(data, limit + 1)
    check_expansion(len(found), len(data))
    if not stream.eof:
        message = "a compressed stream is cut off"
        raise ValueError(message)
    return found


def _snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data, asbytes=True)) + _CHECKSUM.pack(zlib.crc32(data))


def _expand_checked_snappy(data: bytes, limit: int) -> bytes:
    found = expand_snappy(data[:-4], limit)
    if len(data) < 4 or _CHECKSUM.unpack(data[-4:])[0] != zlib.crc32(found):
        message = "its checksum is another one"
        raise ValueError(message)
    return found


def _unchanged(data: bytes, limit: int) -> bytes:
    return data


AVRO_CODECS = {
    one.stored_name: one
    for one in (
        Codec("null", "null", bytes, _unchanged),
        Codec("deflate", "deflate", _deflate, _expand_deflate),
        Codec("snappy", "snappy", _snappy, _expand_checked_snappy),
        Codec("zstandard", "zstandard", compress_zstd, expand_zstd),
        Codec("bzip2", "bzip2", bz2.compress, expand_streams(bz2.BZ2Decompressor)),
        Codec("xz", "xz", lzma.compress, expand_streams(lzma.LZMADecompressor)),
    )
}
"""Those of files of Avro, by their names."""
