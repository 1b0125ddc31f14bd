"""What keyed backends have in common, whatever they keep state in: how states are declared, refused and handed out.

A state is declared by its descriptor, at any time and any number of times; under one name it must always be the same.
What a restore brought meets its declaration here: values of another type are brought to the declared one, or the
restore is refused. State with a time to live gets its clean-up here, so every backend forgets alike.

Source: Flink's ``AbstractKeyedStateBackend``, ``StateSerializerProvider``, ``TtlStateFactory``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import pyarrow as pa

from ..checkpoints.snapshot import FileKind
from ..errors import CheckpointMismatchError, ProgramError, StateAccessError
from ..identifiers import OperatorId
from ..keys.key_classes import KEY_CLASSES
from ..keys.key_groups import KeyGroupRange
from ..values.type_sources import type_text
from .contract import Namespace
from .evolution import can_become, stored_form
from .kinds import NO_KEY, StateDescriptor, is_state_kind
from .layouts import Layout, Merge
from .ttl import TtlCleanup
from .ttl_handles import merger_of_units, ttl_cell

__all__ = ["FORM", "DeclaredStates", "columns_text", "declare_form", "form_of", "is_same_form", "restored_form"]

FORM = ("descriptor", "value_type", "windowed", "value_schema", "map_key_schema", "ttl")
"""The facts of a declared state, as checkpoints keep them: see `form_of`."""

_NOTES = ("ttl_ms", "queryable")
"""Facts that are kept for readers of a checkpoint: no restore compares them, and older ones lack them."""

_APART = (*_NOTES, KEY_CLASSES)
"""Facts that subtasks may have different ones of."""

_HINT = "give changed state a new name, or the operator a new uid"


def form_of(descriptor: StateDescriptor, windowed: bool) -> dict[str, Any]:
    """Return the facts of a declared state."""
    notes = {"ttl_ms": None if descriptor.ttl is None else descriptor.ttl.ttl_ms, "queryable": descriptor.queryable}
    return {
        "descriptor": descriptor.kind,
        "value_type": type_text(descriptor.value_type),
        "windowed": windowed,
        **stored_form(descriptor),
        **{note: fact for note, fact in notes.items() if fact is not None},
    }


def declare_form(form: dict[str, Any], descriptor: StateDescriptor, windowed: bool) -> None:
    """Bring the facts of a state that was restored to those of its declaration.

    A type that is no longer declared stays known: it is how the values are stored. Notes say what is, and go with what
    they were about.
    """
    for note in _NOTES:
        form.pop(note, None)
    form.update({name: fact for name, fact in form_of(descriptor, windowed).items() if fact is not None})


def restored_form(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a state as a checkpoint has them.

    Raises:
        KeyError: If one is missing.
    """
    return {**{fact: facts[fact] for fact in FORM}, **{note: facts[note] for note in _APART if note in facts}}


def is_same_form(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two subtasks' facts of a state, or of all that is said about it, do not contradict each other."""
    names = {*one, *other}.difference(_APART)
    return all(one.get(name) == other.get(name) for name in names)


def columns_text(schema: pa.Schema) -> str:
    """Return a schema in one line, for people."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


class _Table(Protocol):
    """What is needed of a backend's table of keys and values."""

    name: str
    kind: FileKind
    form: dict[str, Any]
    declared: bool
    windowed: bool
    layout: Layout

    def declare(self, descriptor: StateDescriptor, now_ms: Callable[[], int]) -> None: ...

    def sweep(self, num_entries: int, cutoff_ms: int) -> None: ...


class _ColumnarTable(Protocol):
    """What is needed of a backend's table of record batches."""

    name: str
    kind: FileKind
    declared: bool
    schema: pa.Schema
    key_columns: tuple[str, ...]

    def evolve(self, schema: pa.Schema) -> None: ...


TableT = TypeVar("TableT", bound=_Table)
ColumnarT = TypeVar("ColumnarT", bound=_ColumnarTable)


class DeclaredStates(ABC, Generic[TableT, ColumnarT]):
    """The states of one operator subtask, by name.

    Args:
        operator: The operator's uid, for errors.
        key_groups: The key groups this subtask owns.
        max_parallelism: How many key groups there are in all.
        now_ms: The clock, epoch milliseconds.

    Attributes:
        current_key: The key that user handles read and write; `NO_KEY` outside of a keyed call. Set by the operator,
            before each record.
        current_namespace: The window that windowed handles read and write; None outside of windows.
    """

    def __init__(
        self, operator: OperatorId, key_groups: KeyGroupRange, max_parallelism: int, now_ms: Callable[[], int]
    ) -> None:
        self.operator = operator
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.now_ms = now_ms
        self.current_key: Any = NO_KEY
        self.current_namespace: Namespace = None
        # By name, in order of declaration; restored ones first.
        self._tables: dict[str, TableT | ColumnarT] = {}
        # How each was declared last: the quick answer for functions that ask for their state at every record.
        self._declared: dict[str, StateDescriptor] = {}
        # By state; those that clean up for every record, once more.
        self._cleanups: dict[str, TtlCleanup] = {}
        self._cleanups_of_records: list[TtlCleanup] = []

    # ------------------------------------------------------------------------------------------- what a backend offers
    @abstractmethod
    def _make_table(self, name: str, form: dict[str, Any]) -> TableT:
        """A new table."""

    @abstractmethod
    def _make_columnar_table(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> ColumnarT:
        """A new columnar table."""

    @abstractmethod
    def _make_cell(self, table: TableT, absent: Any) -> Any:
        """The cell of a table, by its layout; of one value it gives ``absent`` for a key without it."""

    @abstractmethod
    def _move(self, table: TableT, source: Namespace, target: Namespace, merge: Merge) -> None:
        """Move what the current key has in one window into another window, behind what is there.

        Args:
            table: The state's.
            source: The one.
            target: The other.
            merge: Makes one part of two at one place.
        """

    def managed_bytes(self) -> int | None:
        """Return how many bytes of its slot's managed memory it holds, as far as that is counted; None if
        nothing is.
        """
        return None

    # -------------------------------------------------------------------------------------------------------- declare
    def tables(self) -> Mapping[str, TableT | ColumnarT]:
        """Return all tables by name."""
        return self._tables

    def table(self, descriptor: StateDescriptor, *, windowed: bool = False) -> TableT:
        """Return the table of a state, made or restored on first use.

        Raises:
            ProgramError: If the name was declared before, as another kind of state.
            CheckpointMismatchError: If the restored checkpoint has another kind or type of state under that name.
        """
        name = descriptor.name
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = self._make_table(name, form_of(descriptor, windowed))
        elif known.kind is not FileKind.KEYED:
            self._refuse(known, f"{descriptor.kind}{' windowed' if windowed else ''} state")
        table = cast("TableT", known)
        if (table.form["descriptor"], table.windowed) != (descriptor.kind, windowed):
            self._refuse(table, f"{descriptor.kind}{' windowed' if windowed else ''} state")
        if not table.declared:
            try:
                table.declare(descriptor, self.now_ms)
            except CheckpointMismatchError as error:
                error.message = f"the checkpoint has state {name!r} of another type: {error.message}"
                error.context = {"operator": self.operator, "state": name, **error.context}
                error.hint = error.hint or _HINT
                raise
        elif not _is_same(self._declared.get(name), descriptor):
            wanted = form_of(descriptor, windowed)
            if any(wanted[fact] is not None and wanted[fact] != table.form[fact] for fact in stored_form(descriptor)):
                self._refuse(table, _state_text(wanted))
        self._declared[name] = descriptor
        return table

    def columnar_table(
        self, name: str, schema: pa.Schema, key_columns: tuple[str, ...], *, evolves: bool = False
    ) -> ColumnarT:
        """Return the columnar table of a state, made or restored on first use; key groups come from ``key_columns``.

        One that ``evolves`` may have been restored with other columns beside them.

        Raises:
            ProgramError: If the name was declared before with other columns, or a key column is not in ``schema``.
            CheckpointMismatchError: If the restored checkpoint has other columns under that name.
        """
        key_columns = tuple(key_columns)
        missing = [column for column in key_columns if schema.get_field_index(column) < 0]
        if missing or not key_columns:
            message = (
                f"columnar state {name!r} needs key columns among its columns {schema.names}; got {list(key_columns)}"
            )
            raise ProgramError(message, operator=self.operator)
        wanted = f"columnar state ({columns_text(schema)}) with key {list(key_columns)}"
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = self._make_columnar_table(name, schema, key_columns)
        elif known.kind is FileKind.KEYED:
            self._refuse(known, wanted)
        table = cast("ColumnarT", known)
        if evolves and not table.declared and table.key_columns == key_columns and not table.schema.equals(schema):
            if not can_become(table.schema, schema, key_columns):
                self._refuse(table, wanted)
            table.evolve(schema)
        if table.key_columns != key_columns or not table.schema.equals(schema):
            self._refuse(table, wanted)
        table.declared = True
        return table

    def _refuse(self, known: TableT | ColumnarT, wanted: str) -> None:
        """Refuse a state that is not what it should be: the program is wrong, or the checkpoint is another one's."""
        if known.kind is FileKind.KEYED:
            there = _state_text(cast("TableT", known).form)
        else:
            columnar = cast("ColumnarT", known)
            there = f"columnar state ({columns_text(columnar.schema)}) with key {list(columnar.key_columns)}"
        if known.declared:
            message = f"state {known.name!r} is declared twice: as {there} and as {wanted}"
            raise ProgramError(message, operator=self.operator)
        message = f"the checkpoint has {there} under the name {known.name!r}; the program declares {wanted}"
        raise CheckpointMismatchError(message, operator=self.operator, hint=_HINT)

    def queryable_states(self) -> dict[str, StateDescriptor]:
        """Return the states that clients may ask for, as declared, by the name they are asked for under."""
        return {declared.queryable: declared for declared in self._declared.values() if declared.queryable is not None}

    # -------------------------------------------------------------------------------------------------------- handles
    def handle(self, descriptor: StateDescriptor, *, windowed: bool = False) -> Any:
        """Return a handle bound to the current key; its methods raise StateAccessError outside of one.

        Raises:
            ProgramError: If it is no descriptor of state that functions use.
        """
        if not is_state_kind(descriptor):
            message = f"state is asked for by a descriptor such as ValueStateDescriptor; got {descriptor!r}"
            raise ProgramError(message, operator=self.operator)
        table = self.table(descriptor, windowed=windowed)
        if descriptor.ttl is None:
            return descriptor.handle(self._make_cell(table, descriptor.absent))
        cleanup = self._cleanups.get(descriptor.name)
        if cleanup is None:
            cleanup = self._cleanups[descriptor.name] = TtlCleanup(table, descriptor.ttl)
            if cleanup.runs_for_every_record:
                self._cleanups_of_records.append(cleanup)
        cell = self._make_cell(table, None)
        return descriptor.handle(ttl_cell(cell, table.layout, descriptor.absent, descriptor.ttl, cleanup, self.now_ms))

    def merge_namespaces(self, descriptor: StateDescriptor, target: Namespace, sources: Iterable[Namespace]) -> None:
        """Move the current key's state of some windows into another window: ``target``'s first, then the sources'.

        Raises:
            ProgramError: If state of its kind cannot be merged.
            StateAccessError: If there is no current key.
        """
        merge = descriptor.merger()
        if descriptor.ttl is not None:
            merge = merger_of_units(merge, descriptor.ttl, self.now_ms)
        table = self.table(descriptor, windowed=True)
        if self.current_key is NO_KEY:
            message = f"windows of state {descriptor.name!r} were merged where there is no current key"
            raise StateAccessError(message, operator=self.operator)
        for source in sources:
            if source != target:
                self._move(table, source, target, merge)

    def expect(self, keys: Sequence[Any]) -> None:
        """Do nothing: what is in memory need not be fetched."""

    def batch_processed(self, num_records: int) -> None:
        """Sweep what is swept for every record, as the operator has processed so many."""
        if self._cleanups_of_records:
            now_ms = self.now_ms()
            for cleanup in self._cleanups_of_records:
                cleanup.processed(num_records, now_ms)


def _state_text(form: Mapping[str, Any]) -> str:
    typed = f" of {form['value_type']}" if form["value_type"] is not None else ""
    timed = " with a time to live" if form["ttl"] else ""
    return f"{form['descriptor']}{' windowed' if form['windowed'] else ''} state{typed}{timed}"


def _is_same(known: StateDescriptor | None, descriptor: StateDescriptor) -> bool:
    """Whether a state was declared the very same way before."""
    return known is descriptor or (
        known is not None
        and known.kind == descriptor.kind
        and known.value_type is descriptor.value_type
        and known.place_type is descriptor.place_type
        and known.ttl == descriptor.ttl
    )
