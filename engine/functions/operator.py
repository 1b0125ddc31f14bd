"""The contract of operators: what a task's chain is made of.

An operator takes batches and control elements of its inputs and emits to an `Output`; it knows nothing of channels,
barriers' alignment, slots or actors. State, timers, clock and metrics come with its context. It is built on the
client (unopened, picklable: functions and settings only), copied to each subtask, opened there, restored if need be,
fed, snapshotted and closed, always by one thread.

Order of calls: ``open`` (state already restored) -> any of ``process_*``, ``on_*``, [``prepare_snapshot`` ->
``snapshot_state``], ``notify_*`` -> ``end_input`` per input -> ``finish`` -> still snapshots and notifications ->
``close``.

Source: Flink's ``StreamOperator``; FLIP-147 for operators that outlive their input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from headrace.state.identifiers import OperatorId
from headrace.state.keyed.contract import KeyedStateBackend, OperatorStateBackend
from headrace.state.keyed.stored_names import StoredNames

from ..columns.records import Batch, LatencyMarker, StreamStatus, Watermark
from ..columns.rejected_records import LATE, RejectedRecords
from ..errors import HeadraceError, InternalError
from ..kernel.machine import OffloadKind
from ..kernel.metrics import MetricGroup
from .accumulators import Accumulators
from .event_time_parts import WatermarkPart
from .keys import KeySelector
from .steps import StepMeter

__all__ = [
    "FRAME_LOOPS",
    "TABLE_LOOPS",
    "ArrivalOrder",
    "BatchOrder",
    "CallLater",
    "KeyFields",
    "OffloadEnd",
    "Operator",
    "OperatorContext",
    "Output",
    "StartOffload",
    "add_closing",
    "add_place",
    "place_of",
]

OffloadEnd = Callable[[Any, BaseException | None], None]
"""Takes the result of offloaded work, or its failure."""

StartOffload = Callable[[Callable[[], Any], OffloadEnd, OffloadKind], int]
"""Takes work, whom to tell of its end, and where it is to run; gives a number by which it can be cancelled."""

KeyFields = tuple[str, ...]
"""Names of the fields that are a key, in its order."""

TABLE_LOOPS: tuple[str, ...] = ("headrace.engine.tables.table_loops",)
"""Modules of loops that whoever keeps tables goes over keys by."""

FRAME_LOOPS: tuple[str, ...] = (*TABLE_LOOPS, "headrace.engine.frames.loops")
"""Modules of loops that whoever computes frames of OVER goes over rows by."""

CallLater = Callable[[int, Callable[[], None]], int]
"""Takes a delay in milliseconds and what to call then; gives a number by which it can be cancelled, like work."""


class ArrivalOrder(Enum):
    """The order of records that are gathered and not sorted."""

    AS_THEY_CAME = "as they came"


BatchOrder = KeySelector | ArrivalOrder
"""The order of one input of an operator in a batch: by key and event time, or as its records came."""


def _refuse_offload(_work: Callable[[], Any], _on_end: OffloadEnd, _kind: OffloadKind) -> int:
    message = "nothing here runs work for operators"
    raise InternalError(message)


def _refuse_call(_delay_ms: int, _call: Callable[[], None]) -> int:
    message = "nothing here calls operators back"
    raise InternalError(message)


class Output(Protocol):
    """Where an operator emits: the next operator of the chain or the task's output gates."""

    def emit(self, batch: Batch) -> None:
        """Emit records; empty batches are dropped by the output."""
        ...

    def emit_watermark(self, watermark: Watermark) -> None:
        """Emit progress of event time."""
        ...

    def emit_status(self, status: StreamStatus) -> None:
        """Tell that this operator's output has become idle or active."""
        ...

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Emit records to the side output ``tag``; dropped if it has no reader."""
        ...

    def emit_marker(self, marker: LatencyMarker) -> None:
        """Pass a latency marker on."""
        ...


COLLECT = "collect"
"""The name of a report of rows for the client: a pair of an id, by which a second report of them is known, and rows."""

PRINT = "print"
"""The name of a report of lines that the client prints."""

WARNING = "warning"
"""The name of a report that is a sentence for the job's history."""


@dataclass(slots=True)
class OperatorContext:
    """What one operator subtask works with."""

    operator: OperatorId
    """The operator's uid."""
    name: str
    """Its display name, for errors and metrics."""
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: str
    """Text of the execution attempt; with the subtask, unique over the job's life: part of names of files and
    transactions.
    """
    job: str
    """The job's id."""
    output: Output
    keyed_state: KeyedStateBackend
    operator_state: OperatorStateBackend
    metrics: MetricGroup
    now_ms: Callable[[], int]
    """The injected clock: processing time, epoch milliseconds UTC."""
    probe: Callable[[str], None]
    """Marks a named protocol point (``sink.prepare`` ...), where the simulator may kill; does nothing in production."""
    is_restored: bool = False
    starts_event_time_anew: bool = False
    """Whether the watermark that was kept is not that of the input which comes now: the job was restored, and a source
    that feeds this operator was not there when the checkpoint was taken. Event time starts with what comes."""
    send_source_event: Callable[[Any], None] = field(default=lambda _event: None)
    """Sends something to the enumerator of the source that the operator is."""
    report: Callable[[str, Any], None] = field(default=lambda _name, _value: None)
    """Sends ``(name, value)`` to the JobManager outside of any channel: collected rows, printed lines."""
    is_batch: bool = False
    """Whether the job is a batch: no time passes before all input has come, and results are given once."""
    checkpointing: bool = False
    """Whether checkpoints are taken; sinks that would wait for one must not wait if not."""
    accumulators: Accumulators = field(default_factory=Accumulators)
    """What user functions count for the job's result."""
    offload: StartOffload = field(default=_refuse_offload)
    """Has work done outside the mailbox. Its end is told on the operator's thread, unless the task has ended; what
    is told must not emit then, but in ``on_processing_time``, which `Operator.next_processing_time` asks for.
    """
    snapshot_hooks: list[Callable[[int], None]] = field(default_factory=list)
    """Called with the checkpoint's id after ``snapshot_state``: user functions put their state away."""
    listeners: list[tuple[Callable[[int], None], Callable[[int], None]]] = field(default_factory=list)
    """User functions that hear of checkpoints: called with the id of one that is complete, and of one that never will.
    """
    cancel_offload: Callable[[int], None] = field(default=lambda _number: None)
    """Gives up work that was begun: its end will not be told."""
    reuses_objects: bool = False
    """Whether records are never copied: no function changes what it is handed or has given."""
    watches_records: bool = False
    """Whether to look for functions that change records which others read."""
    takes_savepoint: bool = False
    """Whether the snapshot that is being taken is a savepoint's: the user may come back to it at any time."""
    must_prove_after: int | None = None
    """The checkpoint that is restored, if newer ones were complete and are passed over: whatever commits must prove
    that nothing of those has been made public. None if there is nothing to prove."""
    repeats_output: bool = False
    """Whether newer ones are passed over because the user chose to have their output again, at least once."""
    call_later: CallLater = field(default=_refuse_call)
    """Has a function called on the operator's thread after so many milliseconds, whatever the task does by then."""
    step: StepMeter = field(default_factory=StepMeter)
    """How the task cuts what it takes; ``is_cut`` tells whether more of the same batch follows at once."""

    rejected: RejectedRecords | None = None
    """Keeps the last records that the operator rejects; None where the cluster shows no records."""

    def reject_late(self, num_records: int, records: Callable[[], Batch], tag: str | None = None) -> None:
        """Do what is to become of late records: they are dropped and counted, or go to a side output.

        Args:
            num_records: How many there are.
            records: Makes a batch of them; not called where nobody would see it. Where only partial results of records
                are left, it has these.
            tag: The side output; None drops them.
        """
        if self.rejected is None and tag is None:
            self.metrics.count("num_late_records_dropped", num_records)
            return
        late = records()
        if self.rejected is not None:
            self.rejected.keep(LATE, late)
        if tag is None:
            self.metrics.count("num_late_records_dropped", num_records)
        else:
            self.output.emit_side(tag, late)

    def warn(self, sentence: str) -> None:
        """Write into the job's history what its user should know, with the place it comes from."""
        self.report(WARNING, f"{sentence} ({self.name} {self.subtask + 1}/{self.parallelism})")


def place_of(name: str, subtask: int, parallelism: int) -> dict[str, Any]:
    """Return where an error happened, as errors say it: the operator's name, and its subtask, counted from 1."""
    return {"operator": name, "subtask": f"{subtask + 1}/{parallelism}"}


def add_place(error: HeadraceError, place: Mapping[str, Any], uid: str | None) -> None:
    """Say where an error happened, as far as it does not say so itself.

    State backends know their operator by its uid only; its name takes the uid's place.

    Args:
        error: Changed in place.
        place: ``operator`` (the name), ``subtask`` and what else is known.
        uid: The operator's; None if it is not known.
    """
    if uid is not None and uid != place["operator"] and error.context.get("operator") == uid:
        error.context.update(operator=place["operator"], subtask=place["subtask"])
    for key, value in place.items():
        error.context.setdefault(key, value)


def add_closing(error: BaseException, failure: HeadraceError) -> None:
    """Say what else went wrong while things were closed after an error: the first error is the one that is told.

    Args:
        error: The first; changed in place.
        failure: What closing raised.
    """
    text = str(failure).splitlines()[0]
    if isinstance(error, HeadraceError):
        earlier = error.context.get("on_closing")
        error.context["on_closing"] = text if earlier is None else f"{earlier}; {text}"
    else:
        notes = getattr(error, "__notes__", [])
        error.__notes__ = [*notes, f"on closing: {text}"]  # type: ignore[attr-defined]  # Python 3.11 shows them


class Operator:
    """One step of a chain. Subclasses override what they need; everything here is a correct default for a stateless
    operator.

    Contract:
        * Everything emitted in ``process_batch`` goes out before it returns, or is state (*trusted*).
        * ``prepare_snapshot`` emits what is pending, so that nothing but state is left (*trusted*).
    """

    context: OperatorContext
    stored: StoredNames | None = None
    """What its columnar state is called where it is kept; None for what the operator calls it."""
    requests_split: bool = False
    """Whether it is a source that asks for splits."""
    keyed: bool = False
    """Whether the operator uses keyed state; only then a keyed backend with the subtask's key groups is made."""
    keeps_columns: bool = False
    """Whether its keyed state is columns, which live in managed memory whatever the state backend."""

    offloads: bool = False
    """Whether the operator has work done outside; only then is it asked for ``is_blocked`` and ``has_pending``."""

    face: str = "rows"
    """Which face of a batch it works on, for people: ``rows`` (record by record), ``columns``, or ``as given`` (that of
    its connector).
    """

    may_change_records: bool = True
    """Whether it hands its records to code that may change them, or keeps them: then it gets records of its own."""

    takes_changes: bool = False
    """Whether records may come to it as changes (`RowKind`), which it passes on or applies; others refuse them, as they
    would take what is deleted for what is inserted.
    """

    fires_by_clock: bool = False
    """Whether its processing times are those of timers that the program has set: in a batch the clock stands still for
    them until all input has come.
    """

    gives_committables: bool = False
    """Whether it emits what a sink has prepared, ahead of the barrier that it was prepared for."""

    takes_committables: bool = False
    """Whether it commits what such operators emit: barriers are aligned all the way from them to here."""

    keeps_work: bool = False
    """Whether its work outside goes on when the job is suspended: what it commits counts still."""

    compiled_loops: tuple[str, ...] = ()
    """Modules of the loops by which it goes over keys: they are compiled, which the first use of an installation waits
    for. `TABLE_LOOPS` or `FRAME_LOOPS`."""

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        """By which fields of its output records are where their keys belong, if records come dealt out by key.

        Those are fields with the values of the key of the record that it gives them for, in its order: an exchange by
        them would send no record elsewhere. Of none for operators that do not say.

        Args:
            keys: By input, the names of the fields that it is dealt out by.
        """
        return frozenset()

    @property
    def is_one_region(self) -> bool:
        """Whether all its subtasks must be restarted together, though no record passes between them."""
        return False

    @property
    def batch_orders(self) -> tuple[BatchOrder | None, ...]:
        """By input, how a batch is gathered before it comes here; None where records come as they arrive, before those
        of all inputs that are gathered. Empty if nothing depends on an order.
        """
        return ()

    @property
    def commits(self) -> bool:
        """Whether it makes output public when a checkpoint is complete."""
        return False

    @property
    def collects(self) -> bool:
        """Whether it reports rows for the client under the name `COLLECT`."""
        return False

    @property
    def proves_commits(self) -> bool:
        """Whether it can prove what is public; see `headrace.engine.connectors.contract.SupportsCommitProof`."""
        return False

    @property
    def is_settled(self) -> bool:
        """Whether it waits for no work outside that must end before the task is ready, and before it is finished."""
        return True

    @property
    def is_blocked(self) -> bool:
        """Whether it can take no more records for now: the task takes no batch, but still what comes between batches,
        so that barriers pass.
        """
        return False

    @property
    def has_pending(self) -> bool:
        """Whether output is still to come although all input has been taken: ``finish`` waits until it has come."""
        return False

    def open(self, context: OperatorContext) -> None:
        """Get ready; called once, after ``context``'s state has been restored."""
        if self.stored is not None:
            context.keyed_state = self.stored.over(context.keyed_state)
        self.context = context

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Take records of one input (0 unless the operator has several)."""
        raise NotImplementedError

    def process_watermark(self, watermark: Watermark) -> None:
        """Take the combined watermark of all inputs; it only grows. Fires timers, then is passed on."""
        self.context.output.emit_watermark(watermark)

    def process_status(self, status: StreamStatus) -> None:
        """Take a change of the combined idleness of all inputs."""
        self.context.output.emit_status(status)

    def process_marker(self, marker: LatencyMarker) -> None:
        """Take a latency marker."""
        self.context.output.emit_marker(marker)

    def watermark_parts(self) -> list[WatermarkPart]:
        """Return what its watermark is made of, for one that makes watermarks; for people."""
        return []

    def next_event_time(self) -> int | None:
        """Return the watermark at which it will do something next, such as firing a window; for people.

        None if nothing is known to wait for one.
        """
        return None

    def next_processing_time(self) -> int | None:
        """When ``on_processing_time`` wants to be called at the latest, epoch milliseconds; None for never."""
        return None

    def on_processing_time(self, now_ms: int) -> None:
        """Do what is due by the clock; called between batches once ``now_ms`` has reached ``next_processing_time``."""

    def holds_records(self) -> bool:
        """Return whether it may emit without further input: a loop it is in does not count as empty then.

        By default while output is pending or a processing time is awaited; one whose times bring no records says no.
        """
        return self.has_pending or self.next_processing_time() is not None

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        """Emit pending output, before the barrier is forwarded."""

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Put what is not yet in state handles there; the backends are snapshotted right after."""

    def take_snapshot(self, checkpoint_id: int) -> None:
        """Have the operator and its user functions put their state away; what the task calls. Not for overriding."""
        self.snapshot_state(checkpoint_id)
        for put_away in self.context.snapshot_hooks:
            put_away(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Checkpoint ``checkpoint_id`` (and with it every earlier one) is durable. May be called twice, may be
        skipped for a later id.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Take note that checkpoint ``checkpoint_id`` will never complete."""

    def checkpoint_ended(self, checkpoint_id: int, *, is_complete: bool) -> None:
        """Tell the operator and its user functions what became of a checkpoint; what the task calls. Not for
        overriding.
        """
        if is_complete:
            self.notify_checkpoint_complete(checkpoint_id)
        else:
            self.notify_checkpoint_aborted(checkpoint_id)
        for completed, aborted in self.context.listeners:
            (completed if is_complete else aborted)(checkpoint_id)

    def end_input(self, input_index: int) -> None:
        """Take note that no record follows on this input."""

    def finish(self) -> None:
        """Emit what is left, as all inputs have ended. State may still be snapshotted afterwards."""

    def finish_job(self) -> None:
        """Make output final, as the whole job has processed its data, and its last checkpoint, if it takes any, is
        complete. Called once.
        """

    def close(self) -> None:
        """Let go of resources; also called after a failure, maybe before ``open`` has ended."""
