"""The messages of PostgreSQL's plugin ``pgoutput``, version 1 of its protocol, and of replication around them: bytes
in, facts out.

Values stay as the texts that the database writes. Integers are big-endian, times microseconds since 2000.

Source: PostgreSQL's documentation ("Logical Replication Message Formats", "Streaming Replication Protocol").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import SourceError

__all__ = [
    "UNCHANGED",
    "Begin",
    "Change",
    "Commit",
    "Keepalive",
    "Relation",
    "Truncate",
    "lsn_of",
    "lsn_text",
    "parse_copy_data",
    "parse_message",
    "status_update",
]

EPOCH_OFFSET_MS = 946_684_800_000
"""From 1970 to 2000, from which PostgreSQL counts."""


class _Unchanged:
    """What stands for a large value (TOAST) that an update did not change and the log therefore does not have."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()

Values = list[Any]
"""Of a row, by the relation's columns: bytes of the text, None for NULL, or `UNCHANGED`."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction that is committed; its changes follow.

    Attributes:
        commit_lsn: Where its commit is in the log: transactions come in this order.
        time_ms: When it was committed, epoch milliseconds.
        xid: Its number, 32 bits.
    """

    commit_lsn: int
    time_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction; ``end_lsn`` is where the log goes on behind it."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table is like from here on.

    Attributes:
        relation: Its number, by which changes name it.
        schema: Name of its schema.
        table: Its own name.
        identity: What old rows have: ``d`` the key, ``f`` everything, ``i`` those of an index, ``n`` nothing.
        columns: Names.
        types: Numbers of the columns' types.
        identifies: Whether the column is part of what old rows have.
    """

    relation: int
    schema: str
    table: str
    identity: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    identifies: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A row that came (I), was changed (U) or went (D).

    Attributes:
        kind: ``I``, ``U`` or ``D``.
        relation: The table's number.
        old: The row before, or of it only its key; None if an update did not touch the key.
        old_is_key: Whether ``old`` is only the key.
        new: The row; None for ``D``.
    """

    kind: str
    relation: int
    old: Values | None
    old_is_key: bool
    new: Values | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables were emptied at once; no row is told."""

    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keepalive:
    """All that was committed before ``end_lsn`` has been sent."""

    end_lsn: int
    wants_answer: bool


def lsn_of(text: str) -> int:
    """Return the number of a place in the log, which is written as two hexadecimal ones."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return how a place in the log is written."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_copy_data(data: bytes) -> Keepalive | tuple[int, bytes]:
    """Return a keepalive, or how far the server has come and the message of the plugin.

    Raises:
        SourceError: If it is neither.
    """
    kind = data[:1]
    if kind == b"w":
        _start, end_lsn, _time = struct.unpack_from(">QQq", data, 1)
        return end_lsn, data[25:]
    if kind == b"k":
        end_lsn, _time, wants_answer = struct.unpack_from(">QqB", data, 1)
        return Keepalive(end_lsn, bool(wants_answer))
    message = f"the server speaks a protocol of replication that is not known: {kind!r}"
    raise SourceError(message)


def status_update(written_lsn: int, flushed_lsn: int, now_ms: int, *, wants_answer: bool) -> bytes:
    """Return what tells the server how far we are: it keeps its log from ``flushed_lsn`` on."""
    time_us = (now_ms - EPOCH_OFFSET_MS) * 1_000
    return struct.pack(">cQQQqB", b"r", written_lsn, flushed_lsn, flushed_lsn, time_us, wants_answer)


def parse_message(data: bytes) -> Begin | Commit | Relation | Change | Truncate | None:
    """Return what a message says; None if it says nothing of rows.

    Raises:
        SourceError: If it is of a kind that is not known.
    """
    kind = chr(data[0])
    if kind == "B":
        commit_lsn, time_us, xid = struct.unpack_from(">QqI", data, 1)
        return Begin(commit_lsn, time_us // 1_000 + EPOCH_OFFSET_MS, xid)
    if kind == "C":
        _flags, _commit_lsn, end_lsn, _time = struct.unpack_from(">BQQq", data, 1)
        return Commit(end_lsn)
    if kind == "R":
        return _relation(data)
    if kind in "IUD":
        return _change(kind, data)
    if kind == "T":
        count, _options = struct.unpack_from(">iB", data, 1)
        return Truncate(struct.unpack_from(f">{count}I", data, 6))
    if kind in "OYM":  # origin, type, message of somebody
        return None
    message = f"the log has a message of a kind that is not known: {kind!r}"
    raise SourceError(message)


def _relation(data: bytes) -> Relation:
    (relation,) = struct.unpack_from(">I", data, 1)
    schema, place = _text(data, 5)
    table, place = _text(data, place)
    identity = chr(data[place])
    (count,) = struct.unpack_from(">h", data, place + 1)
    place += 3
    columns, types, identifies = [], [], []
    for _ in range(count):
        identifies.append(bool(data[place] & 1))
        name, place = _text(data, place + 1)
        (number,) = struct.unpack_from(">I", data, place)
        columns.append(name)
        types.append(number)
        place += 8
    schema = schema or "pg_catalog"
    return Relation(relation, schema, table, identity, tuple(columns), tuple(types), tuple(identifies))


def _change(kind: str, data: bytes) -> Change:
    (relation,) = struct.unpack_from(">I", data, 1)
    place, old, new, old_is_key = 5, None, None, False
    if chr(data[place]) in "KO":
        old_is_key = chr(data[place]) == "K"
        old, place = _values(data, place + 1)
    if place < len(data):
        new, place = _values(data, place + 1)  # behind an N
    return Change(kind, relation, old, old_is_key, new)


def _values(data: bytes, place: int) -> tuple[Values, int]:
    (count,) = struct.unpack_from(">h", data, place)
    place += 2
    values: Values = []
    for _ in range(count):
        kind = data[place]
        place += 1
        if kind == 0x6E:  # n
            values.append(None)
        elif kind == 0x75:  # u
            values.append(UNCHANGED)
        else:
            (length,) = struct.unpack_from(">i", data, place)
            place += 4
            values.append(data[place : place + length])
            place += length
    return values, place


def _text(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(0, place)
    return data[place:end].decode(), end + 1
