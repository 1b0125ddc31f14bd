"""The contracts of connectors: where records come from and where they go.

A *source* is split into an enumerator (one per job, in the JobManager: finds splits, which the engine hands out) and
readers (one per subtask: read splits and give batches). What either may do beside that are protocols of their own, in
`headrace.engine.connectors.source_protocols`. A *sink* has writers (one per subtask) that prepare what they wrote at
each barrier as *committables*; these become part of the checkpoint, and once it is durable a *committer* makes them
visible, and again, idempotently, after a restore.

Reader, writer and their methods run on the task's thread and must return soon; an enumerator never blocks: what does
I/O is ``discover``, which is offloaded, and so is a committer.

Source: FLIP-27 (sources), FLIP-143 and FLIP-191 (sinks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from headrace.state.type_variables import IN, OUT

from ..columns.records import Batch
from ..errors import ProgramError
from ..functions.operator import place_of
from ..kernel.metrics import MetricGroup

__all__ = [
    "ALL_SPLITS_FINISHED",
    "NOTHING_NOW",
    "CommitRetry",
    "Committer",
    "CommitterContext",
    "Discovery",
    "EnumeratorContext",
    "Polled",
    "ProvingCommitter",
    "ReaderContext",
    "Sink",
    "SinkHistory",
    "SinkWriter",
    "Source",
    "SourceEvent",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitFinished",
    "SupportsCommitProof",
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
        origin: What of the outside it was cut out of (a file), if that may be cut in several ways. All splits of an
            origin are discovered at once, and what was cut before is never cut again, however discovery cuts it now.
            Only discoveries say it.
        is_bounded: Whether it ends, and may wait: such a split is handed out when a reader has time for it. Splits
            without end, and those that advance through event time side by side, are all read from the beginning, dealt
            out evenly. None: as the source. Only discoveries say it.
    """

    split_id: str
    payload: dict[str, Any] = field(default_factory=dict)
    position: Any = None
    origin: str | None = None
    is_bounded: bool | None = None


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
    """One of its kind, in copies of a program, too: a script's readers take what they name along."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return self._name


NOTHING_NOW = _Marker("NOTHING_NOW")
"""A reader has splits but no record at the moment; ask again at ``SourceReader.next_poll_ms``."""

ALL_SPLITS_FINISHED = _Marker("ALL_SPLITS_FINISHED")
"""A reader has no open split: another one may be requested."""


def _nobody_reads(sentence: str) -> None:
    """Where a reader is driven by hand, there is no history of a job."""


def _nobody_looks(letters: Callable[[], Batch]) -> None:
    """Where a reader is driven by hand, nobody is shown what it passes over."""


def _nobody_listens(event: Any) -> None:
    message = f"there is no enumerator to send a source event to; got {event!r}"
    raise ProgramError(message)


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
    send_source_event: Callable[[Any], None] = _nobody_listens
    """Sends something picklable to the source's enumerator, which must be a `ListeningEnumerator`. It arrives once and
    in order, unless the job restarts: what was sent since the restored checkpoint is to be sent again."""
    checkpointing: bool = True
    """Whether checkpoints are taken; a reader that would wait for one must not wait if not."""
    warn: Callable[[str], None] = _nobody_reads
    """Writes into the job's history what its user should know."""
    note_skipped: Callable[[Callable[[], Batch]], None] = _nobody_looks
    """Told of undecodable input that is passed over, by what makes rows of it as for ``emit_dead_letter``; that is
    called only where the last of them are kept to be shown."""


class SourceReader(Protocol):
    """Reads the splits assigned to one subtask. A class that inherits from it has its defaults.

    What it may be beside that: a `CheckpointListener`, a `CheckpointedFunction`, and what is in
    `headrace.engine.connectors.source_protocols`. A reader of splits without end is given several: it reads them side
    by side and fairly, as many as there are.

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
        """Return the next records, `SplitFinished`, `NOTHING_NOW` or `ALL_SPLITS_FINISHED`; or a list of the first two.

        A list is for a client that gets records of several splits at once.

        Raises:
            SourceError: If the source cannot be read; names split and position.
            MalformedRecordError: If a record cannot be decoded and the policy is ``fail``.
        """
        ...

    def next_poll_ms(self) -> int | None:
        """After `NOTHING_NOW`: when to poll again, epoch milliseconds; None: on a default of 20 ms."""
        return None

    def snapshot(self) -> list[Split]:
        """Return the unfinished splits with their positions."""
        ...

    def close(self) -> None:
        """Let go of resources."""
        return


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """Something picklable from an enumerator to its readers, which must be `ListeningReader`.

    It arrives once and in order: before the trigger of every checkpoint that holds the state it came with. A reader
    that restarts is not sent it again.

    Attributes:
        event: What.
        subtask: To which reader; None: to all.
    """

    event: Any
    subtask: int | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a look at the outside gave.

    Attributes:
        splits: Splits that are there now; those already known (by id) are ignored.
        is_final: True when no further split will ever appear.
        is_repeatable: Whether another look would give the same splits at the same positions. Where it would not
            ("latest"), splits are read only once a checkpoint holds them, so that no failure moves the start. None: if
            no split has a position.
        state: What a `ProgressingEnumerator` is to be given back the next time; JSON-able, part of checkpoints.
        events: For the readers.
        continues: Whether a `ProgressingEnumerator` has more to say once all splits so far are exhausted: it is called
            then although it may have been before, also if this look found nothing new.
    """

    splits: list[Split]
    is_final: bool
    is_repeatable: bool | None = None
    state: Any = None
    events: tuple[SourceEvent, ...] = ()
    continues: bool = False


@dataclass(slots=True)
class EnumeratorContext:
    """What an enumerator may know.

    Attributes:
        parallelism: The number of readers.
        checkpointing: Whether checkpoints are taken.
    """

    parallelism: int
    checkpointing: bool = True


class SplitEnumerator(Protocol):
    """Finds splits. The engine keeps which are unassigned, hands them out on request and stores both in checkpoints."""

    discovery_interval_ms: int | None
    """How often to discover again while discovery is not final; None: once."""

    def discover(self) -> Discovery:
        """Look outside for splits; may block (offloaded).

        What it raises is tried again with pauses, and fails the job when that has been in vain for a while; at once
        if it cannot get better: errors of Headrace's own tree but for `ExternalError`, and Python's own for mistakes
        in the code.

        Raises:
            SourceError: If the outside cannot be read; names what.
        """
        ...


class Source(Protocol[OUT]):
    """A description of where records come from; picklable, opened nowhere yet.

    A class that inherits from ``Source[Order]`` says to type checkers what its records are; no method does.
    """

    is_bounded: bool

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make the enumerator; called once per leader in the JobManager."""
        ...

    def create_reader(self) -> SourceReader:
        """Make a reader; called per subtask in its slot, and once where the program is written, to see what it can do.

        Touches nothing outside: that is for the reader's ``open``.
        """
        ...


@dataclass(frozen=True, slots=True)
class SinkHistory:
    """Whose output a sink goes on from, and what of it the restored checkpoint accounts for.

    Attributes:
        origin: Stands for the run with which the sink began. Jobs that go on from its checkpoints keep it.
        owner: Stands for the sink of this job.
        prepared: By owner, the last checkpoint whose output belongs to the restored one's past; empty if nothing was
            restored, or nothing that tells.
        is_restored: Whether the task goes on from a checkpoint, also if that says nothing of this sink.
    """

    origin: str
    owner: str
    prepared: dict[str, int] = field(default_factory=dict)
    is_restored: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether a checkpoint was restored that does not say whose output there is: the sink is new in the program, or
        the checkpoint is of a version of Headrace that kept no history.
        """
        return self.is_restored and not self.prepared

    def accounts_for(self, owner: str, checkpoint_id: int) -> bool:
        """Return whether what an owner prepared for a checkpoint is in the restored one, or in its past."""
        return checkpoint_id <= self.prepared.get(owner, -1)

    def accept(self, owner: str, checkpoint_id: int) -> None:
        """Count this output as past, although its records will come again: somebody chose so."""
        self.prepared[owner] = max(checkpoint_id, self.prepared.get(owner, -1))


@dataclass(slots=True)
class WriterContext:
    """What a writer may know of its place.

    Attributes:
        attempt: With the subtask, unique over the job's life: both are part of every name that a writer gives.
        report: Sends ``(name, value)`` to the JobManager and so to the client. A sink that reports rows under the name
            `headrace.engine.functions.operator.COLLECT` has an attribute ``collects = True``.
        checkpointing: Whether checkpoints are taken; if not, ``prepare`` is called once, at the end of the job.
        history: As of the committer.
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
    history: SinkHistory

    @property
    def place(self) -> dict[str, Any]:
        """Operator and subtask, for errors."""
        return place_of(self.operator_name, self.subtask, self.parallelism)


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

    def end_input(self) -> None:
        """Prepare the next time what waits for more: no more records come. Not called if the job goes on later."""
        return

    def retain(self, committables: list[Any]) -> None:
        """Keep these: a savepoint holds them, prepared by this writer or others, and not committed yet.

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
        """Return how long to wait after so many failures in a row."""
        return min(self.max_delay_ms, self.initial_delay_ms << min(num_failures - 1, 20))


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """What a committer may know of its place.

    Attributes:
        attempt: Text of the execution attempt: leader epoch and number of the deployment, two numbers with a dot
            between. Of two attempts of one job the one with the larger pair is the newer.
        report: As of the writer; for a committer that does not block.
        history: What the restored checkpoint accounts for.
        newer_output: What is to be done about output behind that checkpoint, if the sink can see it. ``refuse``, as
            the sink's user has not chosen otherwise; ``prove``: nothing at first, `ProvingCommitter` will be asked;
            ``repeat``: the user wants it again, at least once.
    """

    job: str
    operator: str
    operator_name: str
    subtask: int
    parallelism: int
    attempt: str
    now_ms: Callable[[], int]
    report: Callable[[str, Any], None]
    history: SinkHistory
    newer_output: Literal["refuse", "prove", "repeat"] = "refuse"

    @property
    def place(self) -> dict[str, Any]:
        """Operator and subtask, for errors."""
        return place_of(self.operator_name, self.subtask, self.parallelism)


class Committer(Protocol):
    """Makes prepared output visible. A class that inherits from it has its defaults.

    One per subtask. Its methods are called one after another, but on any thread, unless ``blocks`` is False. Whatever
    they raise counts as a failure that may pass, and the call is made again, as ``retry`` says; except errors of
    Headrace's own tree that are no `ExternalError`, and `PossibleLossError`, `NewerOutputError` and `SinkFencedError`,
    which fail the job. What only cleans up (``abort_leftovers``, ``finish``, and ``close`` behind it) does not fail a
    job whose output is committed, but for those errors: what was left behind is said in the job's history.

    Contract:
        * ``commit`` is idempotent: for a committable that is committed it changes nothing, whichever attempt committed
          it and however long ago, also if two do it at the same time (*trusted*).
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

    def finish(self) -> None:
        """Remove what only a running job needs: the job has ended in order, and this subtask has committed all.

        Other subtasks may still be committing.
        """
        return

    def close(self) -> None:
        """Let go of resources. Also called after a failure; maybe before ``open``."""
        return


class Sink(Protocol[IN]):  # type: ignore[misc]  # no method says what it takes
    """A description of where records go; picklable. As of `Source`, ``Sink[Order]`` says what records it takes.

    With ``create_writer`` alone it is at-least-once; with ``create_committer``, too, it is a `SupportsCommitter`.
    """

    def create_writer(self) -> SinkWriter:
        """Make a writer; called per subtask in its slot."""
        ...


class SupportsCommitter(Sink[IN], Protocol):  # type: ignore[misc]  # as of Sink
    """A sink that commits in two phases, and so can be exactly-once.

    A sink may say ``subtasks_are_independent = True``: what one subtask's attempt does never concerns another subtask,
    so a subtask that fails may be restarted alone. Without that all subtasks are restarted together, as for a sink that
    shuts out earlier attempts of the whole job.
    """

    def create_committer(self) -> Committer:
        """Make a committer; called per subtask in its slot."""
        ...


@runtime_checkable
class ProvingCommitter(Committer, Protocol):
    """A committer that can tell what has been committed."""

    def num_committed_after(self, checkpoint_id: int) -> int:
        """Return how many rows are public, to stay, that this job prepared for later checkpoints than that one.

        Asked when the job goes back to that checkpoint although newer ones were complete, as those are damaged or gone;
        once, behind ``open`` and before any ``commit``. The job fails unless every subtask of every sink says 0.

        Contract:
            * All subtasks and all attempts of the job count (*trusted*).
            * No earlier attempt commits anything any more: ``open`` has shut it out (*trusted*).
            * 0 only if that is certain; a number that is too large is safe (*trusted*).
        """
        ...


@runtime_checkable
class SupportsOutputPlace(Protocol):
    """A sink that says where its output goes, so that two of one program do not meet there."""

    output_place: str
    """A path or URI."""
    shares_place: bool
    """Whether it leaves alone what others write there at the same time."""


@runtime_checkable
class SupportsCommitProof(SupportsCommitter[IN], Protocol):  # type: ignore[misc]  # as of Sink
    """A sink whose committers are `ProvingCommitter`."""

    proves_commits: bool
    """True; False if it is set up so that its committers cannot."""

    def create_committer(self) -> ProvingCommitter:
        """Make a committer; called per subtask in its slot."""
        ...
