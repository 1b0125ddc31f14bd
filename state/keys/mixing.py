"""How bits are mixed into hashes of 64 bits, one by one or whole arrays of them. Part of the checkpoint format.

Integers go through splitmix64's finaliser; texts fold their UTF-8 in words of eight bytes through it, all texts of a
batch at once, those above 256 bytes (where that would be slow) through BLAKE2b; tuples fold their elements' hashes.

Source: Steele et al., "Fast splittable pseudorandom number generators" (the finaliser).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "BYTES",
    "DATE",
    "DURATION",
    "FLOAT",
    "MASK",
    "NAIVE",
    "NAN_HASH",
    "NULL_HASH",
    "OBJECT",
    "SET",
    "TEXT",
    "TIME",
    "TUPLE",
    "ZONED",
    "Hashes",
    "combine",
    "digest",
    "fold",
    "fold_text",
    "hash_floats",
    "hash_texts",
    "mix",
    "mix_int",
    "tagged",
]

Hashes = npt.NDArray[np.uint64]

MASK = 2**64 - 1
# Added before mixing, so that equal bits of different kinds (the number 5, the day 5) part ways. Arbitrary, fixed.
FLOAT = 0x9AE16A3B2F90404F
TEXT = 0xC949D7C7509E6557
BYTES = 0xFF51AFD7ED558CCD
DATE = 0x8CB92BA72F3D8DD7
NAIVE = 0xD6E8FEB86659FD93
ZONED = 0xA0761D6478BD642F
TIME = 0xE7037ED1A0B428DB
DURATION = 0x8EBC6AF09C88C6E3
TUPLE = 0x589965CC75374CC3
SET = 0x1D8E4E27C47D124F
OBJECT = 0xEB44ACCAB455D165
NULL_HASH = 0x6C62272E07BB0142
NAN_HASH = 0x27D4EB2F165667C5
_LONG_TEXT_BYTES = 256
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN = 0x9E3779B97F4A7C15


def mix(bits: Hashes) -> Hashes:
    """Splitmix64's step; a new array."""
    mixed = bits + np.uint64(_GOLDEN)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_M1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_M2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def mix_int(bits: int) -> int:
    """As `mix`, for one number of 64 bits."""
    bits = (bits + _GOLDEN) & MASK
    bits = ((bits ^ (bits >> 30)) * _M1) & MASK
    bits = ((bits ^ (bits >> 27)) * _M2) & MASK
    return bits ^ (bits >> 31)


def tagged(seed: int, ticks: int) -> int:
    return mix_int((ticks + seed) & MASK)


def combine(hashed: list[Hashes], width: int) -> Hashes:
    """Fold the elements' hashes of tuples, column by column."""
    folded = np.full(len(hashed[0]), (TUPLE + width) & MASK, np.uint64)
    for column in hashed:
        folded = mix(folded ^ column)
    return folded


def fold(seed: int, parts: list[int]) -> int:
    """As `combine`, for one tuple."""
    folded = (seed + len(parts)) & MASK
    for part in parts:
        folded = mix_int(folded ^ part)
    return folded


def digest(kind: bytes, data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=kind).digest(), "little")


def hash_floats(values: npt.NDArray[np.float64]) -> Hashes:
    """Whole numbers of 64 bits hash as integers, -0.0 as 0, every NaN alike."""
    hashes = mix(values.view(np.uint64) + np.uint64(FLOAT))
    with np.errstate(invalid="ignore"):
        whole = (values >= -(2.0**63)) & (values < 2.0**63) & (values == np.floor(values))
    hashes[whole] = mix(values[whole].astype(np.int64).view(np.uint64))
    hashes[np.isnan(values)] = NAN_HASH
    return hashes


def hash_texts(array: pa.Array, seed: int) -> Hashes:
    """Hash all texts of an array at once, eight bytes of each at a time; long ones one by one."""
    count = len(array)
    if not count:
        return np.empty(0, np.uint64)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data_buffer = array.buffers()
    item = 8 if wide else 4
    bounds = np.frombuffer(offset_buffer, f"<i{item}", count + 1, array.offset * item).astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    data = np.zeros(last - first + 8, np.uint8)  # eight more, so that a word may be read at every position
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8, last - first, first)
    words = np.ndarray((last - first + 1,), "<u8", data, strides=(1,))
    starts = bounds[:-1] - first
    lengths = bounds[1:] - bounds[:-1]
    hashes = mix(lengths.view(np.uint64) + np.uint64(seed))
    if array.null_count:
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    is_long = lengths > _LONG_TEXT_BYTES
    for index in np.flatnonzero(is_long).tolist():
        text = data[starts[index] : starts[index] + lengths[index]].tobytes()
        hashes[index] = tagged(seed, digest(b"text", text))
    left = np.where(is_long, 0, lengths)
    active = np.flatnonzero(left)
    starts, left = starts[active], left[active]
    while len(active):
        word = words[starts]
        short = left < 8
        word[short] &= (np.uint64(1) << (left[short] * 8).view(np.uint64)) - np.uint64(1)
        hashes[active] = mix(hashes[active] ^ word)
        more = left > 8
        active, starts, left = active[more], starts[more] + 8, left[more] - 8
    return hashes


def fold_text(data: bytes, seed: int) -> int:
    """As `hash_texts`, for one text."""
    if len(data) > _LONG_TEXT_BYTES:
        return int(hash_texts(pa.array([data], pa.large_binary()), seed)[0])
    folded = mix_int((len(data) + seed) & MASK)
    for start in range(0, len(data), 8):
        folded = mix_int(folded ^ int.from_bytes(data[start : start + 8], "little"))
    return folded
