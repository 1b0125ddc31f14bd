"""The contracts of connectors: where records come from and where they go.

A *source* is split into an enumerator (one per job, in the JobManager: finds splits and hands them out on request,
row D9) and readers (one per subtask: read splits and give batches). A *sink* has writers (one per subtask) that
prepare what they wrote at each barrier as *committables*; these become part of the checkpoint, and once it is durable
a *committer* makes them visible, and again, idempotently, after a restore.

Reader, writer and their methods run on the task's thread and must return soon; an enumerator never blocks: what does
I/O is ``discover``, which is offloaded, and so is a committer.

Source: FLIP-27 (sources), FLIP-143 and FLIP-191 (sinks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.engine.metrics import MetricGroup
from headrace.engine.records import Batch

__all__ = [
    "ALL_SPLITS_FINISHED",
    "NOTHING_NOW",
    "CommitRetry",
    "Committer",
    "CommitterContext",
    "Discovery",
    "EnumeratorContext",
    "Polled",
    "ReaderContext",
    "Sink",
    "SinkWriter",
    "Source",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitFinished",
    "SupportsCommitter",
    "WriterContext",
]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source that one reader reads alone, with the position to go on from.

    Attributes:
        split_id: Unique within the source, stable over restarts: named in errors, key of per-split watermarks.
        position: Where to read on; None is the beginning. JSON-able (numbers, strings, lists, dicts): it is stored
            in checkpoints.
        payload: What the reader needs to open the split (path, range, partition ...); JSON-able.
    """

    split_id: str
    payload: dict[str, Any] = field(default_factory=dict)
    position: Any = None


@dataclass(frozen=True, slots=True)
class Polled:
    """Records of one split.

    Attributes:
        split_id: The split.
        batch: The records, in the split's order; ``timestamps`` set where the source knows event times itself.
        watermark_ms: A watermark behind these records that the source knows itself; it counts beside the strategy's,
            and the batch may be empty.
    """

    split_id: str
    batch: Batch
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SplitFinished:
    """A split has no more records."""

    split_id: str


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


NOTHING_NOW = _Marker("NOTHING_NOW")
"""A reader has splits but no record at the moment; ask again at ``SourceReader.next_poll_ms``."""

ALL_SPLITS_FINISHED = _Marker("ALL_SPLITS_FINISHED")
"""A reader has no open split: another one may be requested."""


@dataclass(slots=True)
class ReaderContext:
    """What a reader may know of its place."""

    operator_name: str
    subtask: int
    parallelism: int
    now_ms: Callable[[], int]
    metrics: MetricGroup
    emit_dead_letter: Callable[[Batch], None]
    """Hands undecodable input to the side output ``dead-letter`` (rows ``{"error", "split", "position", "raw"}``)."""
    attempt: str = "0.0"
    """Text of the execution attempt: leader epoch and number of the deployment, from 0."""


class SourceReader(Protocol):
    """Reads the splits assigned to one subtask.

    A reader of several splits side by side may have ``wants_split``, a property: whether it would read another one at
    once; and ``pause_splits(split_ids: frozenset[str])``, after which ``poll`` and ``next_poll_ms`` leave out exactly
    those splits until the next call: watermark alignment then holds back single splits instead of the subtask.

    Contract:
        * ``snapshot`` reflects exactly the records returned by ``poll`` so far (*trusted*; the heart of exactly-once).
        * ``poll`` never blocks for long and returns at most about ``max_records`` records (*trusted*).
    """

    def open(self, context: ReaderContext) -> None:
        """Get ready."""
        ...

    def add_splits(self, splits: list[Split]) -> None:
        """Take over splits, at their positions."""
        ...

    def poll(self, max_records: int) -> Polled | SplitFinished | Any:
        """The next records, `SplitFinished`, `NOTHING_NOW` or `ALL_SPLITS_FINISHED`.

        Raises:
            SourceError: If the source cannot be read; names split and position.
            MalformedRecordError: If a record cannot be decoded and the policy is ``fail``.
        """
        ...

    def next_poll_ms(self) -> int | None:
        """After `NOTHING_NOW`: when to poll again, epoch milliseconds; None: on a default of 20 ms."""
        ...

    def snapshot(self) -> list[Split]:
        """The unfinished splits with their positions."""
        ...

    def close(self) -> None:
        """Let go of resources."""
        ...


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a look at the outside gave.

    Attributes:
        splits: Splits that are there now; those already known (by id) are ignored.
        is_final: True when no further split will ever appear.
    """

    splits: list[Split]
    is_final: bool


@dataclass(slots=True)
class EnumeratorContext:
    """What an enumerator may know."""

    parallelism: int


class SplitEnumerator(Protocol):
    """Finds splits. The engine keeps which are unassigned, hands them out on request and stores both in checkpoints."""

    discovery_interval_ms: int | None
    """How often to discover again while discovery is not final; None: once."""

    def discover(self) -> Discovery:
        """Look outside for splits; may block (offloaded).

        Raises:
            SourceError: If the outside cannot be read; names what.
        """
        ...


class Source(Protocol):
    """A description of where records come from; picklable, opened nowhere yet."""

    is_bounded: bool

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make the enumerator; called once per leader in the JobManager."""
        ...

    def create_reader(self) -> SourceReader:
        """Make a reader; called per subtask in its slot."""
        ...


@dataclass(slots=True)
class WriterContext:
    """What a writer may know of its place.

    Attributes:
        attempt: With the subtask, unique over the job's life: both are part of every name that a writer gives.
        report: Sends ``(name, value)`` to the JobManager and so to the client.
        checkpointing: Whether checkpoints are taken; if not, ``prepare`` is called once, at the end of the job.
    """

    job: str
    operator: str
    operator_name: str
    subtask: int
    parallelism: int
    attempt: str
    now_ms: Callable[[], int]
    metrics: MetricGroup
    probe: Callable[[str], None]
    report: Callable[[str, Any], None]
    checkpointing: bool


class SinkWriter(Protocol):
    """Writes the records of one subtask, on its task's thread. A class that inherits from it has its defaults.

    Contract:
        * In a sink with a committer nothing that is written is visible to readers before its commit (*trusted*).
        * A writer gives no name twice, over all attempts of the job (*trusted*): job, operator, subtask and attempt
          make one.
    """

    def open(self, context: WriterContext) -> None:
        """Get ready. What is outside may be touched from the first ``write`` on: by then the committers of all subtasks
        are open and have committed what the restored checkpoint held.
        """
        return

    def write(self, batch: Batch) -> None:
        """Take records."""
        ...

    def prepare(self, checkpoint_id: int) -> list[Any]:
        """Make what was written since the last call durable, but invisible, and name it.

        Called at every barrier. Without a committer: see to it that everything written so far is there to stay.

        Returns:
            Committables, in the order in which they are to be committed: JSON-able or picklable values that say
            everything a committer needs, which may be another one, at another parallelism or in another job. They
            become part of the checkpoint.
        """
        return []

    def retain(self, committables: list[Any]) -> None:
        """A savepoint holds these, prepared by this writer or others, and not committed yet.

        What they need must not be dropped as a leftover, whatever becomes of the job: the user may come back to it.
        """
        return

    def close(self) -> None:
        """Let go of resources; drop what was never prepared. Also called after a failure."""
        return


@dataclass(frozen=True, slots=True)
class CommitRetry:
    """How often a commit that fails is tried again.

    Attributes:
        max_attempts: How often a commit is tried altogether, at least 1.
        initial_delay_ms: How long after the first failure; twice that after each further one.
        max_delay_ms: The longest pause.
    """

    max_attempts: int = 8
    initial_delay_ms: int = 100
    max_delay_ms: int = 5_000

    def delay_ms(self, num_failures: int) -> int:
        """How long to wait after so many failures in a row."""
        return min(self.max_delay_ms, self.initial_delay_ms << min(num_failures - 1, 20))


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """What a committer may know of its place.

    Attributes:
        attempt: Text of the execution attempt: leader epoch and number of the deployment, two numbers with a dot
            between. Of two attempts of one job the one with the larger pair is the newer.
        report: As of the writer; for a committer that does not block.
    """

    job: str
    operator: str
    operator_name: str
    subtask: int
    parallelism: int
    attempt: str
    now_ms: Callable[[], int]
    report: Callable[[str, Any], None]


class Committer(Protocol):
    """Makes prepared output visible. A class that inherits from it has its defaults.

    One per subtask. Its methods are called one after another, but on any thread, unless ``blocks`` is False. Whatever
    they raise counts as a failure that may pass, and the call is made again, as ``retry`` says; except errors of
    Headrace's own tree that are no `ExternalError`, `PossibleLossError` and `SinkFencedError`, which fail the job.

    Contract:
        * ``commit`` is idempotent: for a committable that is committed it changes nothing, whoever committed it and
          however long ago, also if two do it at the same time (*trusted*).
        * What a committable names is visible as a whole or not at all (*trusted*).
        * ``commit`` never returns without the output being visible, to stay (*trusted*).
    """

    blocks: bool = True
    """Whether its methods may take long (a database, a store): they are kept off the task's thread then. What does not
    block has no reason to fail for a while, and is not tried again.
    """

    retry: CommitRetry = CommitRetry()
    """When a call that failed is made again."""

    def open(self, context: CommitterContext) -> None:
        """Get ready: connect, check that what is outside fits, shut out earlier attempts of the job.

        The task does not start before it has returned. May be called again after it has failed.
        """
        return

    def commit(self, committable: Any) -> None:
        """Make what one committable names visible. Idempotent.

        Raises:
            PossibleLossError: If prepared output is gone and was not committed.
        """
        ...

    def abort_leftovers(self) -> None:
        """Drop what earlier attempts of the job prepared and what is not committed: no checkpoint holds it.

        Called once, behind the commits of this attempt's first complete checkpoint: by then all that the restored one
        held is committed, by all subtasks. Every subtask is asked; they may share the work by subtask and parallelism.
        """
        return

    def close(self) -> None:
        """Let go of resources. Also called after a failure; maybe before ``open``."""
        return


class Sink(Protocol):
    """A description of where records go; picklable.

    With ``create_writer`` alone it is at-least-once; with ``create_committer``, too, it is a `SupportsCommitter`.
    """

    def create_writer(self) -> SinkWriter:
        """Make a writer; called per subtask in its slot."""
        ...


class SupportsCommitter(Sink, Protocol):
    """A sink that commits in two phases, and so can be exactly-once.

    A sink may say ``subtasks_are_independent = True``: what one subtask's attempt does never concerns another subtask,
    so a subtask that fails may be restarted alone. Without that all subtasks are restarted together, as for a sink that
    shuts out earlier attempts of the whole job.
    """

    def create_committer(self) -> Committer:
        """Make a committer; called per subtask in its slot."""
        ...
