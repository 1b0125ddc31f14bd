"""What a sink has committed into a table: kept in the table itself, changed by the same commits that add files.

A sink is known by its *origin* (the run with which it began), which jobs that go on from its checkpoints keep. Each of
these is an *owner*, and each of its attempts writes a note of the last checkpoint that it has committed. The *claim*
counts how often the sink has been taken over, and says by whom: who finds another claim than its own commits no more.

Source: Iceberg's ``flink.max-committed-checkpoint-id``; Delta's ``txn`` action;
``docs/design/020-owners-of-output.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.connectors.sink_protocols import GlobalCommittable
from headrace.engine.connectors.sink_writers import require_owner
from headrace.engine.errors import PossibleLossError, SinkError
from headrace.state.checkpoints.manifest_schema import is_count, require
from headrace.state.reading.stored_json import parse_json

__all__ = ["MAX_ATTEMPTS", "Ledger", "number_of"]

MAX_ATTEMPTS = 64
"""Of an owner: notes of older attempts are dropped, and what they prepared can be told no more from what is new."""


def number_of(attempt: str) -> tuple[int, ...]:
    """Return an attempt's place among those of its job: a newer one has a larger one."""
    return tuple(int(part) for part in attempt.split("."))


@dataclass(frozen=True)
class Ledger:
    """The notes of one sink in one table.

    Attributes:
        claim: How often the sink was taken over.
        holder: Owner and attempt that did so last; empty texts if none has.
        committed: By owner and attempt, the last checkpoint whose output is committed.
    """

    claim: int = 0
    holder: tuple[str, str] = ("", "")
    committed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def has(self, whole: GlobalCommittable) -> bool:
        """Return whether what was prepared for a checkpoint is committed; an attempt commits in the order of
        checkpoints.

        Raises:
            PossibleLossError: If that is so long ago that nobody knows.
        """
        attempts = self.committed.get(whole.owner, {})
        if whole.attempt in attempts:
            return whole.checkpoint_id <= attempts[whole.attempt]
        oldest = min(attempts, key=number_of, default=None)
        if len(attempts) >= MAX_ATTEMPTS and oldest is not None and number_of(whole.attempt) < number_of(oldest):
            message = "the table no longer says whether the checkpoint's output is committed: possible loss"
            raise PossibleLossError(message, checkpoint=whole.checkpoint_id, attempt=whole.attempt, oldest=oldest)
        return False

    def last_checkpoints(self) -> dict[str, int]:
        """Return by owner the last checkpoint whose output is committed."""
        return {owner: max(attempts.values()) for owner, attempts in self.committed.items() if attempts}

    def with_commit(self, whole: GlobalCommittable) -> Ledger:
        """Return the notes behind a commit."""
        attempts = {**self.committed.get(whole.owner, {}), whole.attempt: whole.checkpoint_id}
        kept = sorted(attempts, key=number_of)[-MAX_ATTEMPTS:]
        notes = {**self.committed, whole.owner: {attempt: attempts[attempt] for attempt in kept}}
        return Ledger(self.claim, self.holder, notes)

    def with_claim(self, owner: str, attempt: str) -> Ledger:
        """Return the notes behind a takeover."""
        return Ledger(self.claim + 1, (owner, attempt), self.committed)

    def to_text(self) -> str:
        """Return them as they are kept."""
        return json.dumps({"claim": self.claim, "holder": list(self.holder), "committed": self.committed})

    @classmethod
    def of_text(cls, text: str, **where: Any) -> Ledger:
        """Read them.

        Raises:
            SinkError: If somebody else has written there; ``where`` says in which table.
        """
        try:
            stored = parse_json(text)
            claim, holder, committed = stored["claim"], tuple(stored["holder"]), stored["committed"]
            require(is_count(claim), "claim", claim)
            require(len(holder) == 2 and all(type(part) is str for part in holder), "holder", holder)
            for owner, attempts in committed.items():
                require_owner(owner)
                for attempt, checkpoint_id in attempts.items():
                    number_of(attempt)
                    require(is_count(checkpoint_id), "checkpoint", checkpoint_id)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the table's notes of what a sink has committed cannot be read: {error!r:.400}"
            raise SinkError(message, **where) from error
        return cls(claim, holder, committed)
