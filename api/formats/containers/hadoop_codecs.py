"""What compresses parts of Hadoop's files: its codecs by their classes, and the frames that some of them write.

zlib, gzip, bzip2 and zstd are streams as everybody has them. Snappy and LZ4 are in Hadoop's own frames: a block is its
length before compression, then pieces, each its length behind compression and that many bytes.

Source: Hadoop's ``DefaultCodec``, ``GzipCodec``, ``BZip2Codec``, ``ZStandardCodec``, ``BlockCompressorStream``.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, nearest
from headrace.state.reading.read_limits import check_expansion

from .compression_codecs import Codec, compress_zstd, expand_snappy, expand_streams, expand_zstd

__all__ = ["codec_named"]

_PACKAGE = "org.apache.hadoop.io.compress."
_INT = struct.Struct(">i")
_BLOCK_BYTES = 128 << 10
"""What is compressed at once in a frame: less than the buffers that Hadoop's decompressors have by default."""


def _gzip(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=31)
    return stream.compress(data) + stream.flush()


# --------------------------------------------------------------------------------------------------------------- frames
def _framed(arrow_name: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        codec = pa.Codec(arrow_name)
        parts: list[bytes] = []
        for start in range(0, len(data), _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            piece = codec.compress(block, asbytes=True)
            parts += (_INT.pack(len(block)), _INT.pack(len(piece)), piece)
        return b"".join(parts) or _INT.pack(0)

    return compress


def _unframed(expand_piece: Callable[[bytes, int], bytes]) -> Callable[[bytes, int], bytes]:
    def length_at(data: bytes, place: int, most: int) -> int:
        length = _INT.unpack_from(data, place)[0] if place + 4 <= len(data) else -1
        if not 0 <= length <= most:
            message = "a frame of compressed bytes is damaged or cut off"
            raise ValueError(message)
        return int(length)

    def expand(data: bytes, limit: int) -> bytes:
        pieces: list[bytes] = []
        place = size = 0
        while place < len(data):
            block = length_at(data, place, 2**31 - 1)
            place, size = place + 4, size + block
            check_expansion(size, len(data))
            while block:
                length = length_at(data, place, len(data) - place - 4)
                start, place = place + 4, place + 4 + length
                piece = expand_piece(data[start:place], block)
                if not piece:
                    message = "a frame of compressed bytes has a piece with nothing in it"
                    raise ValueError(message)
                pieces.append(piece)
                block -= len(piece)
        return b"".join(pieces)

    return expand


_LZ4_HEAD = bytes.fromhex("04224d18607073")
"""How a frame of LZ4's own begins: blocks that do not know each other, of at most 4 MiB."""


def _expand_lz4(data: bytes, most: int) -> bytes:
    """A piece, which does not tell its own length: it is read as a block of a frame of LZ4's own."""
    frame = _LZ4_HEAD + struct.pack("<I", len(data)) + data + bytes(4)
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        found = bytes(stream.read(most + 1))
    if len(found) > most:
        message = f"a piece of a frame has more bytes than the {most} that are left"
        raise ValueError(message)
    return found


_CODECS = (
    Codec("zlib", f"{_PACKAGE}DefaultCodec", zlib.compress, expand_streams(zlib.decompressobj)),
    Codec("gzip", f"{_PACKAGE}GzipCodec", _gzip, expand_streams(lambda: zlib.decompressobj(31))),
    Codec("bzip2", f"{_PACKAGE}BZip2Codec", bz2.compress, expand_streams(bz2.BZ2Decompressor)),
    Codec("snappy", f"{_PACKAGE}SnappyCodec", _framed("snappy"), _unframed(expand_snappy)),
    Codec("lz4", f"{_PACKAGE}Lz4Codec", _framed("lz4_raw"), _unframed(_expand_lz4)),
    Codec("zstd", f"{_PACKAGE}ZStandardCodec", compress_zstd, expand_zstd),
)
_BY_NAME = {
    **{one.name: one for one in _CODECS},
    **{one.stored_name: one for one in _CODECS},
    "default": _CODECS[0],
    f"{_PACKAGE}DeflateCodec": _CODECS[0],
}


def codec_named(name: str) -> Codec:
    """Return the codec of a name, or of a class of Hadoop.

    Raises:
        ConfigurationError: If it is none of those that are known here.
    """
    found = _BY_NAME.get(name)
    if found is None:
        known = [one.name for one in _CODECS]
        message = f"{name:.200} is no codec that is known here: {', '.join(known)}"
        raise ConfigurationError(message, hint=nearest(name, known))
    return found
