"""Which splits of a source are known, which still wait for a reader, and who asked for one.

The engine's half of a split enumerator: the connector only discovers; what has been discovered, handed out and asked
for is kept here, once for all connectors. A split is handed out once per deployment; from then on the reader's
snapshots carry it. Invariant: at any cut made by a checkpoint, every known split that is not exhausted is either
unassigned here or in exactly one reader's snapshot, because the JobManager takes `SplitAssignment.snapshot` and
triggers the sources in one step, and answers overtake no trigger.

A bounded split goes to the reader that has waited longest for one. Splits without end are all dealt out, each to the
reader that has fewest, once all readers have said how many they have: so every partition is read, however many there
are, and a reader that comes a little later gets its share, too.

A split whose position would be another one if it were discovered again is read only once a checkpoint holds it. So
whatever job goes on, under whatever leader, finds the first position.

Restarted alone, a region's readers go back to the newest complete checkpoint while the others keep what they have. For
that it is remembered what was given to whom since that checkpoint was triggered: exactly this comes back.

A request is answered when there is something to say: splits, or that no more will come. Requests carry a number, so
that a doubled one gets the same answer instead of another split.

Source: FLIP-27's ``SplitEnumerator`` and ``SplitAssignmentTracker``; Flink's ``StaticFileSplitEnumerator``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from ...connectors.contract import Discovery, Split
from ...errors import CheckpointMismatchError
from ...protocol.task_messages import NextInputSplit, RequestNextInputSplit

__all__ = ["SplitAssignment"]


@dataclass(slots=True)
class _Found:
    """A split that waits for a reader.

    Attributes:
        split: It; whether it is bounded is said.
        is_durable: Whether it may be handed out, as another discovery would find the same or a checkpoint holds it.
        held_by: Else the first checkpoint that was triggered since: that one and all later ones hold it.
    """

    split: Split
    is_durable: bool
    held_by: int | None = None


@dataclass(slots=True)
class _HandedOut:
    """A split that a reader was given.

    Attributes:
        found: As it was given.
        subtask: To whom.
        held_by: The first checkpoint that was triggered afterwards: it and all later ones have it in the reader's
            snapshot, or exhausted. None if none was.
    """

    found: _Found
    subtask: int
    held_by: int | None = None


class SplitAssignment:
    """The splits of one source during one deployment.

    Args:
        operator: The source's uid.
        parallelism: The number of its readers.
        is_bounded: Whether its splits are, where they do not say.
        checkpointing: Whether checkpoints are taken: else nothing waits for one.
    """

    def __init__(
        self, operator: OperatorId, parallelism: int = 1, *, is_bounded: bool = True, checkpointing: bool = False
    ) -> None:
        self.operator = operator
        self.parallelism = parallelism
        # What the enumerator has asked to be remembered.
        self.state: Any = None
        self._is_bounded = is_bounded
        self._checkpointing = checkpointing
        # Ids of all splits ever discovered, exhausted ones included: what is known is never handed out again.
        self._known: set[str] = set()
        # Where discovery says what splits are cut out of, that is known instead, as a whole.
        self._origins: set[str] = set()
        # Discovered and not handed out, oldest first.
        self._unassigned: deque[_Found] = deque()
        # No further split will ever be discovered.
        self.is_final = False
        # Splits handed out since the newest complete checkpoint was triggered, oldest first.
        self._handed_out: list[_HandedOut] = []
        # Readers that wait, longest first, with their requests; subtasks that were told that no more will come.
        self._waiting: dict[ExecutionAttemptId, RequestNextInputSplit] = {}
        self._dismissed: set[int] = set()
        # The last answer to each reader, for doubled requests.
        self._answered: dict[ExecutionAttemptId, NextInputSplit] = {}
        # Whether splits have come up that only a checkpoint lets out, and this has not been told.
        self._wants_checkpoint = False

    @property
    def num_unassigned(self) -> int:
        """Splits that wait for a reader."""
        return len(self._unassigned)

    @property
    def has_found(self) -> bool:
        """Whether any split has ever been discovered."""
        return bool(self._known or self._origins)

    @property
    def is_exhausted(self) -> bool:
        """Whether every known split has been read to its end: all readers wait, and have none."""
        idle = {attempt.subtask for attempt, request in self._waiting.items() if request.num_splits == 0}
        return not self._unassigned and len(idle | self._dismissed) == self.parallelism

    def take_checkpoint_wish(self) -> bool:
        """Return whether splits have come up since the last time that wait for a checkpoint."""
        wish, self._wants_checkpoint = self._wants_checkpoint, False
        return wish

    def discovered(self, discovery: Discovery) -> list[NextInputSplit]:
        """Take over what a discovery gave.

        Returns:
            Answers to readers that were waiting.
        """
        cut_before = frozenset(self._origins)
        found_now: set[str] = set()  # a split that is named twice is one
        new = []
        for split in discovery.splits:
            if split.origin in cut_before or split.split_id in self._known or split.split_id in found_now:
                continue
            found_now.add(split.split_id)
            if split.origin is None:
                self._known.add(split.split_id)
            else:
                self._origins.add(split.origin)
            new.append(split)
        is_repeatable = discovery.is_repeatable
        if is_repeatable is None:
            is_repeatable = all(split.position is None for split in new)
        is_durable = is_repeatable or not self._checkpointing
        self._wants_checkpoint |= bool(new) and not is_durable
        self._unassigned.extend(_Found(self._completed(split), is_durable) for split in new)
        self.is_final = self.is_final or discovery.is_final
        self.state = discovery.state
        return self._answer_waiting()

    def _completed(self, split: Split) -> Split:
        return split if split.is_bounded is not None else replace(split, is_bounded=self._is_bounded)

    # ------------------------------------------------------------------------------------------------------- requests
    def requested(self, request: RequestNextInputSplit) -> list[NextInputSplit]:
        """Take a reader's request; the caller has checked that its attempt is a current one.

        Returns:
            Answers, to it and others; none while there is nothing to say: then `discovered` or `completed` gives one.
        """
        last = self._answered.get(request.attempt)
        if last is not None and request.nonce <= last.nonce:
            return [last] if request.nonce == last.nonce else []
        waiting = self._waiting.get(request.attempt)
        if waiting is not None and waiting.nonce >= request.nonce:  # doubled, or it has come to want more
            is_hungry = waiting.is_hungry or request.is_hungry
            num_splits = min(waiting.num_splits, request.num_splits)
            request = replace(waiting, is_hungry=is_hungry, num_splits=num_splits)
        self._waiting[request.attempt] = request
        return self._answer_waiting()

    def _answer_waiting(self) -> list[NextInputSplit]:
        answers = self._deal_out()
        bounded = [found for found in self._unassigned if found.is_durable and found.split.is_bounded]
        for attempt in [attempt for attempt, request in self._waiting.items() if request.is_hungry]:
            if not bounded:
                break
            answers.append(self._give(attempt, [bounded.pop(0)]))
        if self.is_final and not self._unassigned:
            answers += [self._give(attempt, []) for attempt in list(self._waiting)]
        return answers

    def _deal_out(self) -> list[NextInputSplit]:
        """Give all splits without end to those that have fewest, if all readers are there."""
        endless = [found for found in self._unassigned if found.is_durable and not found.split.is_bounded]
        present = {attempt.subtask for attempt in self._waiting}
        if not endless or len(present | self._dismissed) < self.parallelism or not present:
            return []
        counts = {attempt: request.num_splits for attempt, request in self._waiting.items()}
        dealt: dict[ExecutionAttemptId, list[_Found]] = {}
        for found in endless:
            attempt = min(counts, key=lambda attempt: (counts[attempt], attempt.subtask))
            counts[attempt] += 1
            dealt.setdefault(attempt, []).append(found)
        return [self._give(attempt, share) for attempt, share in dealt.items()]

    def _give(self, attempt: ExecutionAttemptId, share: list[_Found]) -> NextInputSplit:
        """Answer a reader that waits: with splits, or that no more will come."""
        request = self._waiting.pop(attempt)
        if not share:
            self._dismissed.add(attempt.subtask)
        given = set(map(id, share))
        self._unassigned = deque(found for found in self._unassigned if id(found) not in given)
        self._handed_out += [_HandedOut(found, attempt.subtask) for found in share]
        splits = tuple(found.split for found in share)
        answer = NextInputSplit(attempt, self.operator, request.nonce, splits, no_more=not share)
        self._answered[attempt] = answer
        return answer

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def triggered(self, checkpoint_id: int) -> None:
        """Note a checkpoint that is triggered in this step: what was handed out before is in its readers' snapshots."""
        for handed_out in self._handed_out:
            if handed_out.held_by is None:
                handed_out.held_by = checkpoint_id
        for found in self._unassigned:
            if found.held_by is None:
                found.held_by = checkpoint_id

    def completed(self, checkpoint_id: int) -> list[NextInputSplit]:
        """Note a complete checkpoint: readers restored from it, or from a later one, have what it holds.

        Returns:
            Answers to readers, with splits that waited for it.
        """
        self._handed_out = [one for one in self._handed_out if one.held_by is None or one.held_by > checkpoint_id]
        waited = [found for found in self._unassigned if not found.is_durable]
        for found in waited:
            found.is_durable = found.held_by is not None and found.held_by <= checkpoint_id
        return self._answer_waiting() if waited else []

    def take_back(self, subtasks: Collection[int]) -> list[NextInputSplit]:
        """Let some readers go back to the newest complete checkpoint; all others go on.

        What those were given since it was triggered is unassigned again, in its old order and before all else: no
        snapshot that is restored holds it.

        Args:
            subtasks: Which readers.

        Returns:
            Answers to other readers that were waiting.
        """
        returned = [one.found for one in self._handed_out if one.subtask in subtasks]
        self._handed_out = [one for one in self._handed_out if one.subtask not in subtasks]
        self._unassigned.extendleft(reversed(returned))
        self._waiting = {attempt: one for attempt, one in self._waiting.items() if attempt.subtask not in subtasks}
        self._answered = {attempt: last for attempt, last in self._answered.items() if attempt.subtask not in subtasks}
        self._dismissed.difference_update(subtasks)
        return self._answer_waiting()

    def snapshot(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, as JSON-able data."""
        return {
            "known": sorted(self._known),
            "origins": sorted(self._origins),
            "unassigned": [
                {
                    "split_id": found.split.split_id,
                    "payload": found.split.payload,
                    "position": found.split.position,
                    "is_bounded": found.split.is_bounded,
                }
                for found in self._unassigned
            ],
            "is_final": self.is_final,
            "state": self.state,
        }

    def restore(self, snapshot: Any | None) -> SplitAssignment:
        """Begin a deployment from a checkpoint's part, or from nothing; gives itself.

        Raises:
            CheckpointMismatchError: If the part is not one of a split assignment.
        """
        if snapshot is None:
            return self
        try:
            self._known = set(snapshot["known"])
            # Version 1 had none: there a file's splits were called by its path, with the range behind it.
            cut = {split_id.rpartition("#")[0] or split_id for split_id in self._known}
            self._origins = set(snapshot.get("origins", cut | self._known))
            for stored in snapshot["unassigned"]:
                split = Split(stored["split_id"], stored["payload"], stored["position"])
                split = self._completed(replace(split, is_bounded=stored.get("is_bounded")))
                self._unassigned.append(_Found(split, is_durable=True))
            self.is_final = bool(snapshot["is_final"])
            self.state = snapshot.get("state")
        except (KeyError, TypeError) as error:
            message = f"the checkpoint's part for a source's splits cannot be read: {error!r}"
            raise CheckpointMismatchError(message, operator=self.operator) from error
        return self
