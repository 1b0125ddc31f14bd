"""Messages that are acknowledged behind a checkpoint: what of a queue was given, is covered, and may be forgotten.

A queue keeps a message until it is acknowledged, and then has it no more. So a message may be acknowledged only once a
complete checkpoint covers it; until then the queue gives it again whenever a connection breaks. Which of what comes
again was given before is told by the messages' ids: those of all messages that the queue may still give again are part
of every checkpoint.

The rules:

* A message is given unless its id is known. One that is known is not given, but acknowledged: at once if a complete
  checkpoint covers it, else together with that. Passed over in silence it would take a place among those that a queue
  delivers ahead, until the queue delivers nothing more.
* An id that was given stays in every snapshot until its checkpoint is complete and a connection has lasted for a while
  since. An acknowledgement gets no answer: it may be lost with the connection, or with the queue's server, and its
  message come again; so may the next one's, so the while begins anew with each.
* What a connection has delivered can only be acknowledged on it. With the connection the tags are void; ids stay.

All of this is about one split, and a queue is one split: its messages come again to whoever reads the split. Two
readers of one queue cannot know what the other one was given, so with several there are no ids: at least once.

Source: Flink's ``MessageAcknowledgingSourceBase``, ``MultipleIdsMessageAcknowledgingSourceBase``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from headrace.state.checkpoints.manifest_schema import is_text

from ..errors import CheckpointMismatchError
from .contract import ReaderContext, SourceReader, Split

__all__ = ["Acknowledgements", "AcknowledgingReader"]

Tag = TypeVar("Tag", bound=Hashable)
"""By which a message is acknowledged on the connection that has delivered it."""


class Acknowledgements(Generic[Tag]):
    """The messages of one split.

    Args:
        remember_ms: How long the ids of messages that were acknowledged are known while there is a connection, in
            milliseconds: longer than it takes until a queue has noticed that an earlier one is gone.
        restored: Ids of the restored checkpoint; empty at the beginning.
    """

    def __init__(self, remember_ms: int, restored: Iterable[str] = ()) -> None:
        self._remember_ms = remember_ms
        self._is_connected = False
        # Given since the last snapshot: ids, with None for a tag that is void.
        self._given: dict[str, Tag | None] = {}
        # By checkpoint, oldest first: given before its barrier, and behind that of the checkpoint before.
        self._pending: dict[int, dict[str, Tag | None]] = {}
        # The same, of messages without ids.
        self._given_tags: list[Tag] = []
        self._pending_tags: dict[int, list[Tag]] = {}
        # Covered by a complete checkpoint: until when the id is known, if the connection lasts so long; None for one
        # that has come again and was acknowledged again, since the last checkpoint that was completed.
        self._covered: dict[str, int | None] = dict.fromkeys(restored, 0)
        self._due: list[Tag] = []

    @property
    def num_unacknowledged(self) -> int:
        """How many messages that were given wait for a checkpoint: with ids, or on the connection that there is."""
        with_ids = len(self._given) + sum(map(len, self._pending.values()))
        return with_ids + len(self._given_tags) + sum(map(len, self._pending_tags.values()))

    def arrived(self, message_id: str | None, tag: Tag) -> bool:
        """Take a message; whether it is to be given.

        Args:
            message_id: None for a message without one, which is always given.
            tag: By which it is acknowledged.
        """
        if message_id is None:
            self._given_tags.append(tag)
            return True
        if message_id in self._covered:
            self._due.append(tag)
            self._covered[message_id] = None  # this acknowledgement, too, may be lost, however late it is
            return False
        for ids in (self._given, *self._pending.values()):
            if message_id in ids:
                before = ids.pop(message_id)
                if before is None:
                    ids[message_id] = tag
                else:  # sent twice by whoever sent it: two messages, one record, known until both are acknowledged
                    self._given_tags.append(before)
                    self._given[message_id] = tag
                return False
        self._given[message_id] = tag
        return True

    def snapshot(self, checkpoint_id: int) -> list[str]:
        """All that has arrived is covered by a checkpoint once that is complete; gives the ids to keep in it."""
        self._pending[checkpoint_id], self._given = self._given, {}
        self._pending_tags[checkpoint_id], self._given_tags = self._given_tags, []
        return self.ids()

    def ids(self) -> list[str]:
        """Return all ids that are known."""
        return [*self._covered, *(one for ids in self._pending.values() for one in ids), *self._given]

    def complete(self, checkpoint_id: int, now_ms: int) -> None:
        """Note that a checkpoint is complete: what it and those before it cover is due to be acknowledged."""
        for number in [one for one in self._pending if one <= checkpoint_id]:
            for message_id, tag in self._pending.pop(number).items():
                self._cover(message_id, tag, now_ms)
            self._due += self._pending_tags.pop(number)
        if self._is_connected:
            for message_id, until_ms in list(self._covered.items()):
                if until_ms is None:
                    self._covered[message_id] = now_ms + self._remember_ms
                elif until_ms <= now_ms:
                    del self._covered[message_id]

    def _cover(self, message_id: str, tag: Tag | None, now_ms: int) -> None:
        self._covered[message_id] = now_ms + self._remember_ms
        if tag is not None:
            self._due.append(tag)

    def take_due(self) -> list[Tag]:
        """Return what is to be acknowledged now, which is then no longer due."""
        due, self._due = self._due, []
        return due

    def connected(self, now_ms: int) -> None:
        """There is a connection, and what was not acknowledged on the last one will come: how soon, nobody knows."""
        self._is_connected = True
        self._covered = dict.fromkeys(self._covered, now_ms + self._remember_ms)

    def connection_lost(self) -> None:
        """Tags are void: what was not acknowledged comes again, with others."""
        self._is_connected = False
        for ids in (self._given, *self._pending.values()):
            for message_id in ids:
                ids[message_id] = None
        self._given_tags.clear()
        for tags in self._pending_tags.values():
            tags.clear()
        self._due.clear()


class AcknowledgingReader(SourceReader, ABC, Generic[Tag]):
    """Reads queues, a split each, and acknowledges behind checkpoints. Subclasses talk to the server.

    They call `is_new` for each message, `connected` and `connection_lost` as that happens, and `settle` with each poll.
    Without checkpoints a message is acknowledged when its record has gone through the chain.

    Args:
        remember_ms: See `Acknowledgements`.
        prefetch: How many messages a server delivers ahead of their acknowledgements, by split.
    """

    def __init__(self, remember_ms: int, prefetch: int) -> None:
        self._remember_ms = remember_ms
        self._prefetch = prefetch
        self._splits: dict[str, Split] = {}
        self._messages: dict[str, Acknowledgements[Tag]] = {}
        self._has_warned = False
        # Stands for checkpoints where there are none.
        self._num_polls = 0

    def open(self, context: ReaderContext) -> None:
        self._context = context

    @abstractmethod
    def subscribe(self, splits: Sequence[Split]) -> None:
        """Have the server deliver messages of these."""

    @abstractmethod
    def acknowledge(self, split_id: str, tags: list[Tag]) -> None:
        """Acknowledge messages on the connection that there is; returns at once."""

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._splits[split.split_id] = split
            restored = _checked_ids(split.position or [], split.split_id)
            self._messages[split.split_id] = Acknowledgements(self._remember_ms, restored)
        self.subscribe(splits)

    # -------------------------------------------------------------------------------------------------------- messages
    def is_new(self, split_id: str, message_id: str | None, tag: Tag) -> bool:
        """Whether a message that has arrived is to be given."""
        if self._messages[split_id].arrived(message_id, tag):
            return True
        self._context.metrics.count("num_redeliveries_known")
        return False

    def connected(self, split_id: str) -> None:
        """The server delivers messages of a split from now on."""
        self._messages[split_id].connected(self._context.now_ms())

    def connection_lost(self, split_id: str) -> None:
        """What a connection has delivered of a split can be acknowledged no more."""
        self._messages[split_id].connection_lost()

    def settle(self, *, has_more: bool) -> None:
        """Acknowledge what is due. To be called with each poll, before its records are given.

        Args:
            has_more: Whether messages have arrived that wait to be given.
        """
        if not self._context.checkpointing:
            self._num_polls += 1
            self.snapshot_for(self._num_polls)
            self.notify_checkpoint_complete(self._num_polls)
            return
        for split_id, messages in self._messages.items():
            self._acknowledge(split_id, messages)
            if not has_more and messages.num_unacknowledged >= self._prefetch and not self._has_warned:
                self._has_warned = True
                self._context.warn(
                    f"queue {split_id!r} delivers no more than {self._prefetch} messages ahead of the next checkpoint,"
                    " and waits for it: raise the prefetch count above the messages of a checkpoint interval"
                )

    def _acknowledge(self, split_id: str, messages: Acknowledgements[Tag]) -> None:
        due = messages.take_due()
        if due:
            self.acknowledge(split_id, due)

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def snapshot(self) -> list[Split]:
        return [self._with_ids(split_id, messages.ids()) for split_id, messages in self._messages.items()]

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As `snapshot`; what was given until now will be acknowledged when this checkpoint is complete."""
        return [
            self._with_ids(split_id, messages.snapshot(checkpoint_id)) for split_id, messages in self._messages.items()
        ]

    def _with_ids(self, split_id: str, ids: list[str]) -> Split:
        return Split(split_id, self._splits[split_id].payload, ids)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Acknowledge what it covers."""
        for split_id, messages in self._messages.items():
            messages.complete(checkpoint_id, self._context.now_ms())
            self._acknowledge(split_id, messages)


def _checked_ids(stored: Any, split_id: str) -> list[str]:
    """Return the ids that a checkpoint holds for a split.

    Raises:
        CheckpointMismatchError: If it does not hold ids.
    """
    if isinstance(stored, list) and all(map(is_text, stored)):
        return stored
    message = "the checkpoint's position is not one of a queue, which is a list of ids"
    raise CheckpointMismatchError(message, split=split_id)
