"""Messages that are acknowledged behind a checkpoint: what of a queue was given, is covered, and may be forgotten.

A queue keeps a message until it is acknowledged, and then has it no more. So a message may be acknowledged only once a
complete checkpoint covers it; until then the queue gives it again whenever a connection breaks. Which of what comes
again was given before is told by the messages' ids: those of all messages that the queue may still give again are part
of every checkpoint.

The rules:

* A message is given unless its id is known. One that is known is not given, but acknowledged: at once if a complete
  checkpoint covers it, else together with that. Passed over in silence it would take a place among those that a queue
  delivers ahead, until the queue delivers nothing more.
* An id that was given stays in every snapshot until its checkpoint is complete and the connection on which its message
  was acknowledged has lasted for a while since. An acknowledgement gets no answer: it may be lost with the connection,
  or with the queue's server, and its message come again; so may the next one's, so the while begins anew with each.
* An id whose message may come again, as a connection has broken, stays for a while after the last one that came again.
* A while is counted in *spans*. A span has lasted when all that the server had delivered at its end has been taken: who
  is held back has not seen yet that a connection broke. It counts only if the server could deliver in it: a queue that
  waits for a checkpoint, as its prefetch count is used up, keeps to itself what it would give again.
* What a connection has delivered can only be acknowledged on it. With the connection the tags are void; ids stay.

All of this is about one split, and a queue is one split: its messages come again to the reader of the split. Two
readers of one queue cannot know what the other one was given, so with several there are no ids: at least once.

Source: Flink's ``MessageAcknowledgingSourceBase``, ``MultipleIdsMessageAcknowledgingSourceBase``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile
from typing import Any, Generic, TypeVar

from headrace.state.checkpoints.manifest_schema import is_text

from ..errors import CheckpointMismatchError
from .contract import ReaderContext, SourceReader, Split

__all__ = ["NUM_SPANS", "Acknowledgements", "AcknowledgingReader"]

Tag = TypeVar("Tag", bound=Hashable)
"""By which a message is acknowledged on the connection that has delivered it."""

NUM_SPANS = 20
"""Into how many spans the time is cut for which ids are known."""


class Acknowledgements(Generic[Tag]):
    """The messages of one split.

    Args:
        num_spans: How many spans an id is known behind the last acknowledgement of its message.
        prefetch: How many messages the server delivers ahead of their acknowledgements.
        restored: Ids of the restored checkpoint; empty at the beginning.
    """

    def __init__(self, num_spans: int, prefetch: int, restored: Iterable[str] = ()) -> None:
        self._num_spans = num_spans
        self._prefetch = prefetch
        # Spans that have counted, and whether something was acknowledged in the one that lasts.
        self._span = 0
        self._has_acknowledged = False
        # Given since the last snapshot: ids, with None for a tag that is void.
        self._given: dict[str, Tag | None] = {}
        # By checkpoint, oldest first: given before its barrier, and behind that of the checkpoint before.
        self._pending: dict[int, dict[str, Tag | None]] = {}
        # The same, of messages without ids.
        self._given_tags: list[Tag] = []
        self._pending_tags: dict[int, list[Tag]] = {}
        # Covered by a complete checkpoint and acknowledged on this connection: up to which span the id is known; those
        # that are acknowledged last are at the end.
        self._acknowledged: dict[str, int] = {}
        # Covered as well, but not acknowledged on this connection: all are known up to one span.
        self._may_return: dict[str, None] = dict.fromkeys(restored)
        self._may_return_until = 0
        self._expect_returns()
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
        if message_id in self._may_return:
            del self._may_return[message_id]
            self._expect_returns()
            self._acknowledge(message_id, tag)
            return False
        if message_id in self._acknowledged:  # sent twice by its sender, and this acknowledgement may be lost, too
            self._acknowledge(message_id, tag)
            return False
        for ids in (self._given, *self._pending.values()):
            if message_id in ids:
                before = ids.pop(message_id)
                if before is None:
                    ids[message_id] = tag
                    self._expect_returns()
                else:  # sent twice by its sender: two messages, one record, known until both are acknowledged
                    self._given_tags.append(before)
                    self._given[message_id] = tag
                return False
        self._given[message_id] = tag
        return True

    def snapshot(self, checkpoint_id: int) -> list[str]:
        """Cover all that has arrived by a checkpoint, once that is complete; gives the ids to keep in it."""
        self._pending[checkpoint_id], self._given = self._given, {}
        self._pending_tags[checkpoint_id], self._given_tags = self._given_tags, []
        return self.ids()

    def ids(self) -> list[str]:
        """Return all ids that are known."""
        pending = (one for ids in self._pending.values() for one in ids)
        return [*self._may_return, *self._acknowledged, *pending, *self._given]

    def complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete: what it and those before it cover is due to be acknowledged."""
        for number in [one for one in self._pending if one <= checkpoint_id]:
            for message_id, tag in self._pending.pop(number).items():
                if tag is None:
                    self._may_return[message_id] = None
                    self._expect_returns()
                else:
                    self._acknowledge(message_id, tag)
            self._due += self._pending_tags.pop(number)

    def _acknowledge(self, message_id: str, tag: Tag) -> None:
        self._due.append(tag)
        self._acknowledged.pop(message_id, None)
        self._acknowledged[message_id] = self._until()

    def _expect_returns(self) -> None:
        self._may_return_until = self._until()

    def _until(self) -> int:
        return self._span + self._num_spans + 1  # some of this one is over

    def take_due(self) -> list[Tag]:
        """Return what is to be acknowledged now, which is then no longer due."""
        due, self._due = self._due, []
        self._has_acknowledged |= bool(due)
        return due

    def lasted(self) -> None:
        """Note that a span is over, on a connection that lasts: all that was delivered in it has arrived. Ids are
        forgotten that were known for long enough.
        """
        could_deliver = self._has_acknowledged or self.num_unacknowledged < self._prefetch
        self._has_acknowledged = False
        if not could_deliver:
            return
        self._span += 1
        if self._may_return_until <= self._span:
            self._may_return.clear()
        for message_id in list(takewhile(lambda one: self._acknowledged[one] <= self._span, self._acknowledged)):
            del self._acknowledged[message_id]

    def connected(self) -> None:
        """Note a connection: what was not acknowledged on the last one will come; how soon, nobody knows."""
        self._expect_returns()

    def connection_lost(self) -> None:
        """Forget all tags, as they are void: what was not acknowledged comes again, with others."""
        self._may_return.update(dict.fromkeys(self._acknowledged))
        self._acknowledged.clear()
        for ids in (self._given, *self._pending.values()):
            for message_id in ids:
                ids[message_id] = None
        self._given_tags.clear()
        for tags in self._pending_tags.values():
            tags.clear()
        self._due.clear()


class AcknowledgingReader(SourceReader, ABC, Generic[Tag]):
    """Reads queues, a split each, and acknowledges behind checkpoints. Subclasses talk to the server.

    They call `is_new` for each message, `connected` and `connection_lost` as that happens, `lasted` for each mark, and
    `settle` with each poll. Without checkpoints a message is acknowledged when its record has gone through the chain.

    Args:
        remember_ms: How long the ids of messages that were acknowledged are known while the queue delivers, in
            milliseconds: longer than it takes until a queue has noticed that an earlier connection is gone.
        prefetch: How many messages a server delivers ahead of their acknowledgements, by split.
    """

    def __init__(self, remember_ms: int, prefetch: int) -> None:
        self._span_ms = remember_ms // NUM_SPANS
        self._prefetch = prefetch
        self._splits: dict[str, Split] = {}
        self._messages: dict[str, Acknowledgements[Tag]] = {}
        # When the next span of a split is to end; None while its mark is under way.
        self._mark_due_ms: dict[str, int | None] = {}
        self._has_warned = False
        # Stands for checkpoints where there are none, above the numbers of savepoints.
        self._num_polls = 1 << 62

    def open(self, context: ReaderContext) -> None:
        self._context = context

    @abstractmethod
    def subscribe(self, splits: Sequence[Split]) -> None:
        """Have the server deliver messages of these."""

    @abstractmethod
    def acknowledge(self, split_id: str, tags: list[Tag]) -> None:
        """Acknowledge messages on the connection that there is; returns at once."""

    @abstractmethod
    def mark(self, split_id: str) -> None:
        """Have a mark come back, for `lasted`: on a connection, behind what was delivered there, once what is to be
        acknowledged by now was sent. Returns at once.
        """

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._splits[split.split_id] = split
            restored = _checked_ids(split.position or [], split.split_id)
            self._messages[split.split_id] = Acknowledgements(NUM_SPANS, self._prefetch, restored)
            self._mark_due_ms[split.split_id] = self._context.now_ms() + self._span_ms
        self.subscribe(splits)

    # -------------------------------------------------------------------------------------------------------- messages
    def is_new(self, split_id: str, message_id: str | None, tag: Tag) -> bool:
        """Return whether a message that has arrived is to be given."""
        if self._messages[split_id].arrived(message_id, tag):
            return True
        self._context.metrics.count("num_redeliveries_known")
        return False

    def connected(self, split_id: str) -> None:
        """Note that the server delivers messages of a split from now on."""
        self._messages[split_id].connected()

    def connection_lost(self, split_id: str) -> None:
        """Note that messages of a split which a connection has delivered can be acknowledged no more."""
        self._messages[split_id].connection_lost()

    def lasted(self, split_id: str) -> None:
        """Note that the mark of a split has come back."""
        self._messages[split_id].lasted()
        self._mark_due_ms[split_id] = self._context.now_ms() + self._span_ms

    def settle(self, *, has_more: bool) -> None:
        """Acknowledge what is due. To be called with each poll, before its records are given.

        Args:
            has_more: Whether messages have arrived that wait to be given.
        """
        self._mark_spans()
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

    def _mark_spans(self) -> None:
        now_ms = self._context.now_ms()
        for split_id, due_ms in self._mark_due_ms.items():
            if due_ms is not None and due_ms <= now_ms:
                self._mark_due_ms[split_id] = None
                self.mark(split_id)

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
            messages.complete(checkpoint_id)
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
