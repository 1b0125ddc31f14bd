"""Finds shards, and hands out those that replace others when these have been read to their end.

A stream is resharded by splitting a shard, or merging two. The new shards, the *children*, have the records behind
those of their *parents*, so they wait until all of these have ended. A reader that has come to the end of a shard keeps
it, and tells; it is let go when its children have been read up to what was there when they began (*caught up*). Until
then the parent's watermark holds back event time, which its children have not reached: shards that are read beside
them, in their own subtasks too, may be far ahead. A child that was closed before it has caught up is stood for by its
own children, and so on: whatever was there is read before the first of the line is let go.

What is known is the enumerator's state, and part of checkpoints. A reader tells again, after a restore, what it may
have told in vain. So a checkpoint has the end of a shard here, or the shard in a reader's snapshot, or both.

Source: Kinesis' ``ListShards``, ``ChildShards`` of ``GetRecords``; Flink's ``KinesisStreamsSourceEnumerator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.connectors.contract import Discovery, SourceEvent, Split
from headrace.engine.connectors.source_protocols import EnumeratorProgress
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, SourceError

from ..messages.client_thread import AwayError, patiently
from .client import Stream, StreamError, service_ms

__all__ = ["CAUGHT_UP", "CHILDREN", "ENDED", "RELEASED", "Scan", "Shard", "ShardEnumerator", "failed"]

ENDED, CHILDREN, CAUGHT_UP, RELEASED = "ended", "children", "caught_up", "released"
"""Of events: a reader has come to the end of a shard, of which those are the children; it has caught up with one; it is
to let go of some.
"""

SECOND_MS = 1_000


def failed(stream: Stream, error: StreamError, what: str, **place: Any) -> Exception:
    """Return the error of a source for an answer that is none, and will not be one."""
    message = f"{what}: {error}"
    if error.kind == "setup":
        return ConfigurationError(message, hint="options={'aws_access_key_id': ...}, or where boto3 looks for them")
    hint = "make it first, or see to its region" if error.kind == "gone" else None
    return SourceError(message, hint=hint, stream=stream.name, **place)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as Kinesis describes it.

    Attributes:
        id: Its name.
        parents: Those it came of, as far as anybody knows: none, one, or two.
        hashes: The first and the last number of the partition keys that belong to it, as texts.
        is_closed: Whether it gets no more records.
    """

    id: str
    parents: tuple[str, ...]
    hashes: tuple[str, str]
    is_closed: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Shard:
        """Return that of ``ListShards``."""
        parents = (told.get("ParentShardId"), told.get("AdjacentParentShardId"))
        is_closed = "EndingSequenceNumber" in told["SequenceNumberRange"]
        return cls(told["ShardId"], tuple(one for one in parents if one), _hashes(told), is_closed)

    @classmethod
    def of_child(cls, told: Mapping[str, Any]) -> Shard:
        """Return that of ``ChildShards``."""
        return cls(told["ShardId"], tuple(told["ParentShards"]), _hashes(told))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; see `of_dict`."""
        return {"id": self.id, "parents": list(self.parents), "hashes": list(self.hashes)}

    @classmethod
    def of_dict(cls, stored: Mapping[str, Any]) -> Shard:
        """Return what `as_dict` gave."""
        return cls(stored["id"], tuple(stored["parents"]), tuple(stored["hashes"]))


def _hashes(told: Mapping[str, Any]) -> tuple[str, str]:
    return told["HashKeyRange"]["StartingHashKey"], told["HashKeyRange"]["EndingHashKey"]


@dataclass(frozen=True, slots=True)
class Scan:
    """What is read.

    Attributes:
        is_latest: Whether nothing is that was there before the job began.
        since_ms: When records must have come, epoch milliseconds; 0 for whenever.
        is_bounded: Whether only what is there when the job begins.
        interval_ms: How often to look for shards; None for never again.
    """

    is_latest: bool
    since_ms: int
    is_bounded: bool
    interval_ms: int | None


@dataclass(slots=True)
class _Waiting:
    """A shard that is not handed out yet.

    Attributes:
        shard: It.
        behind: Which of its parents have not ended.
        since_ms: Where its reading begins: when its records must have come.
        end_ms: Where it ends, if the shard has not before: with the first record that came later. None for nowhere.
    """

    shard: Shard
    behind: set[str]
    since_ms: int = 0
    end_ms: int | None = None

    def as_split(self) -> Split:
        position = {"sequence": None, "sub": None, "since_ms": self.since_ms, "until_ms": 0, CHILDREN: None}
        payload = {"hashes": list(self.shard.hashes), "parents": list(self.shard.parents), "end_ms": self.end_ms}
        return Split(self.shard.id, payload, position, None, False)


@dataclass(slots=True)
class Lineage:
    """Which shards are read, which wait for which, and which have ended.

    Attributes:
        open: Handed out, and not known to have ended.
        waiting: To be handed out when their parents have ended.
        ended: Known to have ended, or begun behind their end; as long as they are listed.
        held: Of these, those that their reader keeps, each with the shards that must catch up before: its children, or
            what came of them.
    """

    open: set[str] = field(default_factory=set)
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    held: dict[str, set[str]] = field(default_factory=dict)

    @property
    def known(self) -> set[str]:
        """All shards that were found, but for those that ended long ago."""
        return self.open | set(self.waiting) | self.ended

    def found(self, shards: Iterable[Shard], *, since_ms: int = 0, end_ms: int | None = None) -> None:
        """Take over shards that are not known yet."""
        fresh = [shard for shard in shards if shard.id not in self.known]
        for shard in fresh:
            self.waiting[shard.id] = _Waiting(shard, set(shard.parents) - self.ended, since_ms, end_ms)

    def forget(self, listed: set[str]) -> None:
        """Count no more on what is neither known nor listed: it is beyond the stream's retention."""
        self.ended &= listed | set(self.held)
        there = self.open | set(self.waiting)
        for one in self.waiting.values():
            one.behind &= there

    def take_ready(self) -> list[Split]:
        """Return the shards that nothing stands in front of; they are handed out."""
        ready = [shard_id for shard_id, one in self.waiting.items() if not one.behind]
        self.open.update(ready)
        return [self.waiting.pop(shard_id).as_split() for shard_id in ready]

    def end(self, shard_id: str) -> list[str]:
        """Note that a reader has come to the end of a shard; gives those that may be let go."""
        if shard_id not in self.open:  # told again, after a restore
            return [] if shard_id in self.held else [shard_id]
        self.open.discard(shard_id)
        self.ended.add(shard_id)
        children = self._children_of(shard_id)
        if not children:
            return [*self._take_out(shard_id), shard_id]
        for child in children:
            self.waiting[child].behind.discard(shard_id)
        # Its own subtask may be ahead of it: what it was waited for is waited for in its children.
        for descendants in self.held.values():
            if shard_id in descendants:
                descendants.discard(shard_id)
                descendants |= children
        self.held[shard_id] = children
        return []

    def catch_up(self, shard_id: str) -> list[str]:
        """Note that a shard has been read up to what was there when it began; gives those that may be let go.

        If it is closed, its children have records that were there, too: its end will say that they are waited for.
        """
        return [] if self._children_of(shard_id) else self._take_out(shard_id)

    def _children_of(self, shard_id: str) -> set[str]:
        return {child for child, one in self.waiting.items() if shard_id in one.shard.parents}

    def _take_out(self, shard_id: str) -> list[str]:
        """Wait no longer for a shard; gives those that waited for it alone."""
        released = []
        for parent, descendants in list(self.held.items()):
            descendants.discard(shard_id)
            if not descendants:
                del self.held[parent]
                released.append(parent)
        return released

    def as_state(self) -> dict[str, Any]:
        """JSON-able; see `of_state`."""
        waiting = [
            {"shard": one.shard.as_dict(), "behind": sorted(one.behind), "since_ms": one.since_ms, "end_ms": one.end_ms}
            for one in self.waiting.values()
        ]
        held = {parent: sorted(children) for parent, children in self.held.items()}
        return {"open": sorted(self.open), "waiting": waiting, "ended": sorted(self.ended), "held": held}

    @classmethod
    def of_state(cls, state: Any) -> Lineage:
        """Return what `as_state` gave.

        Raises:
            CheckpointMismatchError: If that is something else.
        """
        try:
            waiting = [
                _Waiting(Shard.of_dict(one["shard"]), set(one["behind"]), one["since_ms"], one["end_ms"])
                for one in state["waiting"]
            ]
            held = {parent: set(children) for parent, children in state["held"].items()}
            return cls(set(state["open"]), {one.shard.id: one for one in waiting}, set(state["ended"]), held)
        except (AttributeError, KeyError, TypeError) as error:
            message = f"the checkpoint's part for a stream of Kinesis cannot be read: {error!r}"
            raise CheckpointMismatchError(message) from error


class ShardEnumerator:
    """The enumerator of a stream. All it knows is in its state.

    Args:
        stream: Which.
        scan: What of it.
        patience_s: How long Kinesis may be away.
    """

    def __init__(self, stream: Stream, scan: Scan, patience_s: float) -> None:
        self._stream = stream
        self._scan = scan
        self._patience_s = patience_s
        self.discovery_interval_ms = scan.interval_ms

    def discover(self) -> Discovery:
        return self.discover_from(EnumeratorProgress(None, is_exhausted=False, parallelism=1))

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """Return the shards that are listed, but for those that are known already, or wait for others.

        Raises:
            SourceError: If they cannot be listed.
            ConfigurationError: If credentials or a region are missing.
        """
        found, answer = patiently(self._list, self._patience_s)
        shards = [Shard.of(one) for one in found]
        listed = {shard.id for shard in shards}
        is_first = progress.state is None
        if is_first:
            lineage = self._begin(shards, service_ms(answer))
        else:
            lineage = Lineage.of_state(progress.state)
            if not self._scan.is_bounded:
                lineage.found(shards)
        lineage.forget(listed)
        # Where "now" counts, it will be another one the next time.
        is_repeatable = not is_first or not (self._scan.is_bounded or self._scan.is_latest)
        return self._said(lineage, is_repeatable=is_repeatable)

    def _list(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        what = "shards of Kinesis cannot be listed"
        try:
            return self._stream.shards(self._stream.connect())
        except StreamError as error:
            if error.is_away:
                message = f"{what}: {error}"
                raise AwayError(message, stream=self._stream.name) from error
            raise failed(self._stream, error, what) from error

    def _begin(self, shards: Sequence[Shard], now_ms: int) -> Lineage:
        """What there is when the job begins."""
        lineage, since_ms = Lineage(), self._scan.since_ms
        if self._scan.is_latest:
            lineage.ended.update(shard.id for shard in shards if shard.is_closed)
            since_ms = now_ms
        # The service tells the second: what came in this one before the job began, comes before the next.
        end_ms = now_ms - now_ms % SECOND_MS + SECOND_MS if self._scan.is_bounded else None
        lineage.found(shards, since_ms=since_ms, end_ms=end_ms)
        return lineage

    def handle_source_event(self, subtask: int, event: Any, progress: EnumeratorProgress) -> Discovery:
        """Take it that a reader has come to the end of a shard, or caught up with one."""
        lineage = Lineage.of_state(progress.state)
        if ENDED in event:
            if not self._scan.is_bounded:
                lineage.found(Shard.of_dict(child) for child in event[CHILDREN])
            released = lineage.end(event[ENDED])
        else:
            self._find_children(lineage, event[CAUGHT_UP])
            released = lineage.catch_up(event[CAUGHT_UP])
        # After a restore another reader may have it: all are told.
        return self._said(lineage, [SourceEvent({RELEASED: released})] if released else [])

    def _find_children(self, lineage: Lineage, shard_id: str) -> None:
        """See whether a shard that others wait for has been closed since it was looked for the last time."""
        if not self._scan.is_bounded and any(shard_id in descendants for descendants in lineage.held.values()):
            shards = [Shard.of(one) for one in patiently(self._list, self._patience_s)[0]]
            lineage.found(shard for shard in shards if shard_id in shard.parents)

    def _said(self, lineage: Lineage, events: Sequence[SourceEvent] = (), *, is_repeatable: bool = True) -> Discovery:
        splits = lineage.take_ready()
        is_final = self._scan.is_bounded and not lineage.waiting
        return Discovery(
            splits, is_final=is_final, is_repeatable=is_repeatable, state=lineage.as_state(), events=tuple(events)
        )
