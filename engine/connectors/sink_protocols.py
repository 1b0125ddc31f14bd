"""What a sink may have beside a writer and a committer per subtask: one committer for all, and streams of its own.

A sink is asked for these when the program is written. With `SupportsGlobalCommitter` what all subtasks prepared for a
checkpoint is committed in one place and in one go: what a table format needs, whose commit makes one new version of
the table. Before that the sink may have a stream of its own work on its records (`SupportsPreWriteTopology`), and on
its committables (`SupportsPreCommitTopology`), for instance to bring many small files together.

Source: Flink's ``SupportsPreWriteTopology``, ``SupportsPreCommitTopology``, ``SupportsPostCommitTopology`` and
``StandardSinkTopologies.addGlobalCommitter``; FLIP-191, FLIP-371. There the global committer hears of what was
committed; here it commits. See ``docs/design/037-sinks-for-tables-and-services.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .contract import Committer, Sink

__all__ = [
    "GlobalCommittable",
    "GlobalCommitter",
    "SupportsGlobalCommitter",
    "SupportsPreCommitTopology",
    "SupportsPreWriteTopology",
]


@dataclass(frozen=True, slots=True)
class GlobalCommittable:
    """All that the subtasks of a sink prepared for one checkpoint, to be made visible in one go.

    Attributes:
        owner: Stands for the sink of the job that prepared it; as in `headrace.engine.connectors.contract.SinkHistory`.
        attempt: The attempt of the committer that gathered it.
        checkpoint_id: The checkpoint.
        committables: What the writers gave, or what a pre-commit topology made of it; never empty. Those of one
            subtask are in their order.
    """

    owner: str
    attempt: str
    checkpoint_id: int
    committables: tuple[Any, ...]

    @property
    def name(self) -> str:
        """A text that no other commit of any job ever has, and that this one keeps over retries, restores and jobs.

        Kept beside what is committed, and in the same transaction, it tells whether this has been committed.
        """
        return f"{self.owner}-{self.attempt}-{self.checkpoint_id}"


@runtime_checkable
class GlobalCommitter(Committer, Protocol):
    """Makes visible what all subtasks of a sink prepared, a checkpoint at a time. It may be a `ProvingCommitter`.

    There is one per sink, however many writers there are. In all else it is a `Committer`, which see: off the task's
    thread, in the order of checkpoints, again after a failure. A checkpoint for which nothing was prepared is passed
    over.

    Contract:
        * ``commit`` is idempotent: the same `GlobalCommittable.name` changes nothing the second time (*trusted*).
        * With exactly-once checkpoints a `GlobalCommittable` holds what all subtasks prepared for its checkpoint, so
          what is visible is at any time what led to one checkpoint (*asserted*). At the end of the job, and without
          checkpoints, it holds the rest.
    """

    def commit(self, committable: GlobalCommittable) -> None:
        """Make what a checkpoint holds visible, as a whole or not at all. Idempotent.

        Raises:
            PossibleLossError: If prepared output is gone and was not committed.
        """
        ...


class SupportsGlobalCommitter(Sink, Protocol):
    """A sink that commits all subtasks' output of a checkpoint in one place, and so can be exactly-once.

    It has no ``create_committer`` beside. If it says ``proves_commits = True`` its committer is a `ProvingCommitter`.
    The history that its writers are given is theirs; that of the output is its committer's.
    """

    def create_global_committer(self) -> GlobalCommitter:
        """Make the committer; called in the one slot that it runs in."""
        ...


@runtime_checkable
class SupportsPreWriteTopology(Protocol):
    """A sink whose records go through a stream of its own before they are written."""

    def add_pre_write_topology(self, stream: Any) -> Any:
        """Return the stream that is to be written, made of the one that the program hands over."""
        ...


@runtime_checkable
class SupportsPreCommitTopology(Protocol):
    """A sink with a global committer whose committables go through a stream of its own before they are committed."""

    def add_pre_commit_topology(self, committables: Any) -> Any:
        """Return the stream of what is to be committed, made of that of the writers' committables.

        Barriers are aligned on all of the way, so what was prepared for a checkpoint comes to the committer before it.
        An operator that keeps committables over a barrier breaks that: they are committed with a later checkpoint, and
        a committer whose ``abort_leftovers`` drops what an earlier attempt prepared must not drop those.
        """
        ...
