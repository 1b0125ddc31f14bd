"""Records that the Kinesis Producer Library has put into one: taken apart.

Such a record is a magic number, a message of Protocol Buffers, and the MD5 digest of that::

    message AggregatedRecord {
      repeated string partition_key_table = 1;
      repeated string explicit_hash_key_table = 2;
      repeated Record records = 3;
    }
    message Record {
      required uint64 partition_key_index = 1;
      optional uint64 explicit_hash_key_index = 2;
      required bytes data = 3;
      repeated Tag tags = 4;
    }

What looks like one and is none is a record as it is, as for AWS's own consumers.

Source: "KPL Aggregated Record Format" (amazon-kinesis-producer).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["UserRecord", "hash_of", "users_of"]

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
MOST_HASH = (1 << 128) - 1


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One of the records in an aggregated one.

    Attributes:
        key: Its partition key.
        hash: Where it belongs: a number that is in the range of one shard.
        data: Its bytes.
    """

    key: str
    hash: int
    data: bytes


def hash_of(key: str) -> int:
    """Return the number of a partition key, which says to which shard it belongs."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def users_of(data: bytes) -> list[UserRecord] | None:
    """Return the records in one; None if it is not an aggregated one."""
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + DIGEST_BYTES:
        return None
    message = data[len(MAGIC) : -DIGEST_BYTES]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-DIGEST_BYTES:]:
        return None
    try:
        return _users_of(message)
    except (IndexError, KeyError, ValueError):  # no such message; UnicodeDecodeError is a ValueError
        return None


def _users_of(message: bytes) -> list[UserRecord]:
    keys: list[str] = []
    hashes: list[int] = []
    records: list[dict[int, int | bytes]] = []
    for number, value in _fields(message):
        if number == 1:
            keys.append(_bytes(value).decode())
        elif number == 2:
            hashes.append(int(_bytes(value).decode("ascii")))
        elif number == 3:
            records.append(dict(_fields(_bytes(value))))  # of a field that is there twice the last one counts
    users = []
    for record in records:
        key = keys[_number(record[1])]
        own = hashes[_number(record[2])] if 2 in record else hash_of(key)
        if not 0 <= own <= MOST_HASH:
            raise ValueError(own)
        users.append(UserRecord(key, own, _bytes(record[3])))
    return users


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of Protocol Buffers: number, and value."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(kind)
        if place + size > len(message):
            raise ValueError(size)
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError(value)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(value)
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError(value)
    return value
