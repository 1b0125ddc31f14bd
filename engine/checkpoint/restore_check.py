"""A restore tried out on paper: what of a snapshot has a place in a program, before anything runs.

It reads the manifest alone, which names every state with its descriptor and the classes of its keys; no state is
loaded. What the program declares is found as a task would find it: every operator is copied and opened, once, on empty
state that compares each declaration with the snapshot's and refuses what a restore would refuse. Sources and sinks are
not opened, for theirs would reach outside; their engine-side state is known. A user function's ``open`` does run (and
``close`` after it), unless the caller does not want that: then the states of user functions are compared when the job
runs.

It cannot know what is declared later than in ``open``, nor whether single values can be read: a restore may refuse what
was found to fit here, never the other way round.

Source: Flink's ``Checkpoints.loadAndValidateCheckpoint`` and ``TypeSerializerSchemaCompatibility``, brought forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from headrace.state.backends.heap.backend import HeapKeyedStateBackend, HeapOperatorStateBackend
from headrace.state.checkpoints.assignment import assign_restore
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import KEYED_KINDS, FileKind
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from headrace.state.keyed.evolution import migration
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.keys.key_classes import check_noted_classes
from headrace.state.keys.key_groups import KeyGroupRange
from headrace.state.open.names import BUFFERED_REQUESTS, COMMITTABLES, SINK_HISTORY
from headrace.state.reading.program_classes import ProgramClasses
from headrace.state.reading.program_pickles import dump_program, dump_program_classes, load_program

from ..columns.records import Batch, LatencyMarker, StreamStatus, Watermark
from ..connectors.async_sink_operator import AsyncSinkOperator
from ..connectors.sink_writers import WriterOperator
from ..connectors.sinks import CommitterOperator
from ..connectors.sources import SourceOperator
from ..errors import CheckpointError, CheckpointMismatchError, HeadraceError, raise_from_outside
from ..functions.operator import Operator, OperatorContext
from ..graph.job_graph import JobGraph, JobVertex
from ..kernel.metrics import MetricGroup
from ..task.channel_state import ChannelFiles
from .io import RestorePoint

__all__ = ["OperatorReport", "RestoreReport", "RestoreVerdict", "StateReport", "check_restore"]

SPLITS = "(splits)"
"""The name that the state of a source's enumerator has in reports."""


class RestoreVerdict(str, Enum):
    """What happens to an operator or a state."""

    RESTORED = "restored"
    STARTS_EMPTY = "starts empty"
    """The program has it, the snapshot does not."""
    KEPT = "kept"
    """The snapshot has it; the program has not declared it when its operators are opened, but still may."""
    LOST = "lost"
    """The snapshot has it; no operator of the program has its uid."""
    INCOMPATIBLE = "incompatible"
    """Both have it, and one does not fit the other."""


@dataclass(frozen=True, slots=True)
class StateReport:
    """One state of an operator.

    Attributes:
        name: The state's.
        kind: What it is, for people.
        verdict: What happens to it.
        detail: Why, if that needs saying.
    """

    name: str
    kind: str
    verdict: RestoreVerdict
    detail: str = ""


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """One operator of the program, or of the snapshot alone.

    Attributes:
        uid: What state is matched by.
        name: For people.
        verdict: The worst of its states'; ``starts empty`` if the snapshot has nothing for it.
        states: Its states, by name.
        detail: What concerns all of it.
        parallelism: In the snapshot and in the program; 0 where it does not exist.
    """

    uid: OperatorId
    name: str
    verdict: RestoreVerdict
    states: tuple[StateReport, ...]
    detail: str
    parallelism: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore would do. ``str`` gives it as a table.

    Attributes:
        path: The snapshot's folder.
        kind: ``savepoint`` or ``checkpoint``.
        job_name: Of the job that took it.
        checkpoint_id: Its number in that job.
        timestamp_ms: When it was taken, epoch milliseconds UTC.
        operators: The program's in its order, then those of the snapshot alone.
        problems: Why the restore would be refused; empty if it would not.
    """

    path: str
    kind: str
    job_name: str
    checkpoint_id: int
    timestamp_ms: int
    operators: tuple[OperatorReport, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def is_restorable(self) -> bool:
        """Whether nothing is known that would refuse it."""
        return not self.problems

    def __str__(self) -> str:
        rows = [("OPERATOR", "UID", "STATE", "KIND", "PARALLELISM", "VERDICT")]
        for operator in self.operators:
            before, now = operator.parallelism
            change = f"{before or '-'} -> {now or '-'}"
            rows.append((operator.name, operator.uid, "", "", change, operator.verdict.value))
            rows += [("", "", state.name, state.kind, "", state.verdict.value) for state in operator.states]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        cells = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
        head = f'{self.kind} {self.checkpoint_id} of job "{self.job_name}": {self.path}'
        details = [
            f"{operator.name}: {text}"
            for operator in self.operators
            for text in (operator.detail, *(state.detail for state in operator.states))
            if text
        ]
        end = "it can be restored" if self.is_restorable else "it cannot be restored:"
        parts = (head, "", *(line.rstrip() for line in cells), "", *details, end, *(f"  {p}" for p in self.problems))
        return "\n".join(parts)


def check_restore(
    point: RestorePoint,
    job_graph: JobGraph,
    *,
    backend: str,
    allow_non_restored_state: bool = False,
    open_functions: bool = True,
) -> RestoreReport:
    """Compare a snapshot with a program.

    Args:
        point: The snapshot.
        job_graph: The program.
        backend: The state backend that the job is to have.
        allow_non_restored_state: Whether state that has no place in the program may be lost.
        open_functions: Whether to open user functions, to see what they declare.
    """
    manifest = point.manifest
    known = {state.uid: state for state in manifest.operators}
    operators: list[OperatorReport] = []
    classes = ProgramClasses(lambda: dump_program_classes(job_graph.vertices.values())[1])
    for vertex in job_graph.vertices.values():
        copied: JobVertex = load_program(dump_program(vertex))
        for node in copied.chain:
            splits = point.enumerators.get(node.uid)
            trial = _Trial(node.uid, node.name, vertex, known.get(node.uid), has_splits=splits is not None)
            with classes.in_use():
                operators.append(trial.run(node.operator, manifest, backend, open_functions=open_functions))
    here = {operator.uid for operator in operators}
    operators += _lost(manifest, point, here)
    lost = [operator for operator in operators if operator.verdict is RestoreVerdict.LOST]
    problems = [
        f"{operator.name}: {text}"
        for operator in operators
        if operator.verdict is RestoreVerdict.INCOMPATIBLE
        for text in (operator.detail, *(s.detail for s in operator.states if s.verdict is RestoreVerdict.INCOMPATIBLE))
        if text
    ]
    if lost and not allow_non_restored_state:
        names = ", ".join(f'"{operator.uid}"' for operator in lost)
        problems.append(
            f"state of operators that the program does not have would be lost, which is not allowed: {names}"
        )
    try:
        ChannelFiles(manifest, job_graph)
    except CheckpointMismatchError as error:
        problems.append(f"{error.message}; {error.hint}")
    return RestoreReport(
        point.root,
        manifest.kind,
        manifest.job_name,
        manifest.checkpoint_id,
        manifest.timestamp_ms,
        tuple(operators),
        tuple(problems),
    )


def _lost(manifest: Manifest, point: RestorePoint, here: set[OperatorId]) -> Iterator[OperatorReport]:
    """The operators that only the snapshot has."""
    gone = {state.uid: state for state in manifest.operators if state.uid not in here}
    for uid in sorted({*gone, *(uid for uid in point.enumerators if uid not in here)}):
        state = gone.get(uid)
        found = {} if state is None else _states_of(state)
        states = [StateReport(name, _kind_text(f), RestoreVerdict.LOST) for name, f in sorted(found.items())]
        if uid in point.enumerators:
            states.append(StateReport(SPLITS, "splits", RestoreVerdict.LOST))
        parallelism = (0 if state is None else state.parallelism, 0)
        name = uid if state is None else state.name
        if states:
            yield OperatorReport(uid, name, RestoreVerdict.LOST, tuple(states), "", parallelism)


def _states_of(state: OperatorState) -> dict[str, Mapping[str, Any]]:
    """The states that an operator has in a snapshot, with their facts."""
    return dict(_stored(state))


def _stored(state: OperatorState) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The states of an operator's subtasks, each with its facts there."""
    for snapshot in state.subtasks:
        for file in snapshot.files:
            if file.kind is FileKind.DATABASE:
                yield from ((each["name"], each) for each in file.metadata.get("states", ()))
            else:
                yield file.state, {**file.metadata, "kind": file.kind}


def _strange_keys(state: OperatorState | None) -> dict[str, str]:
    """Why keys would not be found, by state: the program's classes, which are known meanwhile, are others."""
    strange: dict[str, str] = {}
    for name, facts in () if state is None else _stored(state):
        try:
            check_noted_classes(facts)
        except CheckpointMismatchError as error:
            strange.setdefault(name, f"state {name!r}: {error.message}; {error.hint}")
    return strange


def _kind_text(facts: Mapping[str, Any]) -> str:
    if facts["kind"] != FileKind.KEYED:
        return str(facts["kind"])
    typed = f" of {facts['value_type']}" if facts.get("value_type") else ""
    return f"{facts.get('descriptor') or 'keyed'}{typed}"


def _declared_by_connector(operator: Operator) -> set[str]:
    """The states of a source or sink, which is not opened: that would touch what is outside."""
    if isinstance(operator, SourceOperator):
        return {"splits", SPLITS}
    if isinstance(operator, AsyncSinkOperator):
        return {BUFFERED_REQUESTS}
    return {COMMITTABLES, SINK_HISTORY} if isinstance(operator, CommitterOperator) else {SINK_HISTORY}


class _Trial:
    """The restore of one operator, tried out."""

    def __init__(
        self, uid: OperatorId, name: str, vertex: JobVertex, state: OperatorState | None, *, has_splits: bool
    ) -> None:
        self.uid = uid
        self._name = name
        self._vertex = vertex
        self._state = state
        self._has_splits = has_splits
        self._found = {} if state is None else _states_of(state)
        self._problem = ""

    def run(self, operator: Operator, manifest: Manifest, backend: str, *, open_functions: bool) -> OperatorReport:
        """Open the operator and return its report."""
        vertex = self._vertex
        note = ""
        try:
            assign_restore(manifest, "", [(self.uid, vertex.max_parallelism)], 0, vertex.parallelism)
        except CheckpointError as error:
            self._problem = f"{error.message}; {error.hint}"
        self._check_backend(backend)
        keyed = _ExpectedKeyedState(self.uid, vertex.max_parallelism, self._found)
        plain = _ExpectedOperatorState(self.uid, self._found)
        if isinstance(operator, (SourceOperator, AsyncSinkOperator, WriterOperator, CommitterOperator)):
            declared = _declared_by_connector(operator)
        elif open_functions:
            note = self._open(operator, keyed, plain)
            declared = {*keyed.declared, *plain.declared}
        else:
            declared, note = set(), "not opened: what it declares is compared when the job runs"
        refused = {**keyed.refused, **plain.refused, **_strange_keys(self._state)}
        return self._report(declared, refused, note)

    def _check_backend(self, backend: str) -> None:
        files = [] if self._state is None else [f for snapshot in self._state.subtasks for f in snapshot.files]
        kinds = {file.kind for file in files}
        there = "rocksdb" if FileKind.DATABASE in kinds else "heap" if kinds & KEYED_KINDS else None
        if there is not None and there != backend and not self._problem:
            self._problem = f"its keyed state is of the {there} backend; the program has the backend {backend!r}"

    def _open(self, operator: Operator, keyed: _ExpectedKeyedState, plain: _ExpectedOperatorState) -> str:
        vertex = self._vertex
        context = OperatorContext(
            operator=self.uid,
            name=self._name,
            subtask=0,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            attempt="0.0",
            job="restore-check",
            output=_NoOutput(),
            keyed_state=keyed,
            operator_state=plain,
            metrics=MetricGroup(),
            now_ms=lambda: 0,
            probe=lambda _name: None,
            is_restored=bool(self._found),
        )
        operator.context = context
        notes: list[str] = []
        try:
            operator.open(context)
        except BaseException as error:
            raise_from_outside(error)
            notes.append(f"could not be opened here, so not all it declares is known: {_text(error)}")
        try:
            operator.close()
        except BaseException as error:
            raise_from_outside(error)
            notes.append(f"could not be closed here: {_text(error)}")
        return "; ".join(notes)

    def _report(self, declared: set[str], refused: Mapping[str, str], note: str) -> OperatorReport:
        states: list[StateReport] = []
        for name in sorted({*self._found, *refused, *(declared - {SPLITS})}):
            facts = self._found.get(name)
            kind = "" if facts is None else _kind_text(facts)
            if name in refused:
                states.append(StateReport(name, kind, RestoreVerdict.INCOMPATIBLE, refused[name]))
            elif facts is None:
                states.append(StateReport(name, kind, RestoreVerdict.STARTS_EMPTY))
            elif name in declared:
                states.append(StateReport(name, kind, RestoreVerdict.RESTORED))
            else:
                states.append(StateReport(name, kind, RestoreVerdict.KEPT))
        if self._has_splits:
            states.append(StateReport(SPLITS, "splits", RestoreVerdict.RESTORED))
        if self._problem or refused:
            verdict = RestoreVerdict.INCOMPATIBLE
        elif self._found or self._has_splits:
            verdict = RestoreVerdict.RESTORED
        else:
            verdict = RestoreVerdict.STARTS_EMPTY
        before = 0 if self._state is None else self._state.parallelism
        detail = self._problem or note
        return OperatorReport(self.uid, self._name, verdict, tuple(states), detail, (before, self._vertex.parallelism))


def _text(error: BaseException) -> str:
    return error.message if isinstance(error, HeadraceError) else repr(error)


class _NoOutput:
    """Drop it: nothing listens."""

    def emit(self, batch: Batch) -> None: ...

    def emit_watermark(self, watermark: Watermark) -> None: ...

    def emit_status(self, status: StreamStatus) -> None: ...

    def emit_side(self, tag: str, batch: Batch) -> None: ...

    def emit_marker(self, marker: LatencyMarker) -> None: ...


class _ExpectedKeyedState(HeapKeyedStateBackend):
    """Empty keyed state that knows what a restore would have brought."""

    def __init__(self, operator: OperatorId, max_parallelism: int, found: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(operator, KeyGroupRange(0, max_parallelism - 1), max_parallelism, lambda: 0)
        self._found = {name: facts for name, facts in found.items() if facts["kind"] in KEYED_KINDS}
        self.declared: set[str] = set()
        self.refused: dict[str, str] = {}

    def table(self, descriptor: StateDescriptor, *, windowed: bool = False) -> Any:
        """Compare, then declare."""
        self.declared.add(descriptor.name)
        facts = self._found.get(descriptor.name)
        if facts is not None:
            wanted = f"{descriptor.kind}{' windowed' if windowed else ''} state"
            if facts["kind"] != FileKind.KEYED:
                self._say(descriptor.name, f"it is {facts['kind']} state; the program declares {wanted}")
            elif (facts["descriptor"], facts["windowed"]) != (descriptor.kind, windowed):
                there = f"{facts['descriptor']}{' windowed' if facts['windowed'] else ''} state"
                self._say(descriptor.name, f"it is {there}; the program declares {wanted}")
            else:
                self._migrate(facts, descriptor)
        return super().table(descriptor, windowed=windowed)

    def columnar_table(
        self, name: str, schema: pa.Schema, key_columns: tuple[str, ...], *, evolves: bool = False
    ) -> Any:
        """Compare, then declare."""
        self.declared.add(name)
        facts = self._found.get(name)
        if facts is not None and (
            facts["kind"] != FileKind.COLUMNAR or list(facts["key_columns"]) != list(key_columns)
        ):
            self._say(name, f"it has other key columns; the program declares {list(key_columns)}")
        return super().columnar_table(name, schema, key_columns, evolves=evolves)

    def _migrate(self, facts: Mapping[str, Any], descriptor: StateDescriptor) -> None:
        try:
            migration(facts, descriptor, lambda: 0)
        except CheckpointMismatchError as error:
            self._say(descriptor.name, error.message)

    def _say(self, name: str, problem: str) -> None:
        self.refused.setdefault(name, f"state {name!r}: {problem}")


class _ExpectedOperatorState(HeapOperatorStateBackend):
    """Empty operator state that knows what a restore would have brought."""

    def __init__(self, operator: OperatorId, found: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(operator)
        self._found = {name: facts for name, facts in found.items() if facts["kind"] not in KEYED_KINDS}
        self.declared: set[str] = set()
        self.refused: dict[str, str] = {}

    def list_state(self, name: str, value_type: Any = None) -> Any:
        """Compare, then declare."""
        self._compare(FileKind.LIST, ListStateDescriptor(name, value_type))
        return super().list_state(name, value_type)

    def union_list_state(self, name: str, value_type: Any = None) -> Any:
        """Compare, then declare."""
        self._compare(FileKind.UNION, ListStateDescriptor(name, value_type))
        return super().union_list_state(name, value_type)

    def broadcast_state(self, descriptor: MapStateDescriptor) -> Any:
        """Compare, then declare."""
        self._compare(FileKind.BROADCAST, descriptor)
        return super().broadcast_state(descriptor)

    def _compare(self, kind: FileKind, descriptor: StateDescriptor) -> None:
        name = descriptor.name
        self.declared.add(name)
        facts = self._found.get(name)
        if facts is None:
            return
        problem = ""
        if facts["kind"] != kind:
            problem = f"it is {facts['kind']} state; the program declares {kind} state"
        else:
            try:
                migration(facts, descriptor, lambda: 0)
            except CheckpointMismatchError as error:
                problem = error.message
        if problem:
            self.refused.setdefault(name, f"operator state {name!r}: {problem}")
