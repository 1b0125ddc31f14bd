"""Where a shard is, as a checkpoint has it, and as its reader goes on from there.

Invariant: a shard's position is the sequence number of the last record that was given, or passed over; within an
aggregated record it is that, and the number of the last one in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError
from headrace.state.checkpoints.manifest_schema import is_count, is_text

from .aggregation import MOST_HASH
from .shards import CHILDREN

__all__ = ["Position", "ShardReading", "place_text", "reading_of"]

MOST_DIGITS = 200
"""Of a sequence number, or a hash."""

_POSITION = {"sequence", "sub", "since_ms", "until_ms", CHILDREN}


def place_text(sequence: str, sub: int | None) -> str:
    """Return where a record is, for errors."""
    return f"sequence number {sequence}" + ("" if sub is None else f", number {sub} in it")


@dataclass(slots=True)
class Position:
    """How far a shard was fetched, or given.

    Attributes:
        sequence: The sequence number of the last record; None as long as there is none.
        sub: The number of the last one in it, if there are more; None if it was given as a whole.
        since_ms: Where to begin without a last record: those that came before are passed over. 0 for the first.
        until_ms: All records that came before this time were given, as far as Kinesis has told; 0 if it has not.
        children: Of a shard that has come to its end.
    """

    sequence: str | None
    sub: int | None
    since_ms: int
    until_ms: int
    children: list[dict[str, Any]] | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence, "sub": self.sub, "since_ms": self.since_ms, "until_ms": self.until_ms,
            CHILDREN: self.children,
        }  # fmt: skip

    @property
    def text(self) -> str:
        """For errors."""
        return "the beginning" if self.sequence is None else place_text(self.sequence, self.sub)


@dataclass(slots=True)
class ShardReading:
    """One shard and where it is.

    Attributes:
        payload: Of its split.
        position: How far it was fetched, or given.
        has_caught_up: Whether all was fetched, or given, that was there when reading began, or nobody waits for that.
        has_told_of_end: Whether the enumerator knows that it has ended.
        is_released: Whether the enumerator lets it go.
    """

    shard: str
    payload: dict[str, Any]
    position: Position
    has_caught_up: bool = False
    has_told_of_end: bool = False
    is_released: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether all of it was fetched, or given."""
        return self.position.children is not None

    @property
    def end_ms(self) -> int | None:
        end_ms: int | None = self.payload["end_ms"]
        return end_ms

    @property
    def parents(self) -> list[str]:
        parents: list[str] = self.payload["parents"]
        return parents

    @property
    def is_at_end(self) -> bool:
        return self.is_released

    def as_split(self) -> Split:
        return Split(self.shard, self.payload, self.position.as_dict())


def reading_of(split: Split) -> ShardReading:
    """Return where a split is.

    Raises:
        CheckpointMismatchError: If its position is none of a shard.
    """
    position, payload = split.position, split.payload
    if not _is_position(position) or not _is_payload(payload):
        message = "the checkpoint's position is not one of a shard of Kinesis"
        raise CheckpointMismatchError(message, split=split.split_id)
    return ShardReading(split.split_id, payload, Position(**position), has_caught_up=not payload["parents"])


def _is_position(stored: Any) -> bool:
    if not isinstance(stored, dict) or stored.keys() != _POSITION or not all(map(is_count, _times_of(stored))):
        return False
    sequence, sub, children = stored["sequence"], stored["sub"], stored[CHILDREN]
    is_right = sequence is None or _is_number(sequence)
    is_right = is_right and (sub is None or (is_count(sub) and sequence is not None))
    return is_right and (children is None or (isinstance(children, list) and all(map(_is_shard, children))))


def _times_of(stored: dict[str, Any]) -> tuple[Any, Any]:
    return stored["since_ms"], stored["until_ms"]


def _is_payload(stored: Any) -> bool:
    if not isinstance(stored, dict) or stored.keys() != {"hashes", "parents", "end_ms"}:
        return False
    is_right = _is_shard({"id": "", "parents": stored["parents"], "hashes": stored["hashes"]})
    return is_right and (stored["end_ms"] is None or is_count(stored["end_ms"]))


def _is_shard(stored: Any) -> bool:
    if not isinstance(stored, dict) or stored.keys() != {"id", "parents", "hashes"} or not is_text(stored["id"]):
        return False
    parents, hashes = stored["parents"], stored["hashes"]
    if not isinstance(parents, list) or not isinstance(hashes, list) or len(hashes) != 2:
        return False
    return all(map(is_text, parents)) and all(map(_is_number, hashes)) and int(hashes[1]) <= MOST_HASH


def _is_number(stored: Any) -> bool:
    return is_text(stored) and stored.isdecimal() and stored.isascii() and len(stored) <= MOST_DIGITS
