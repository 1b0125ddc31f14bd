"""Operator state in memory: lists that are dealt out or given to all on restore, and broadcast maps.

Each state is one Arrow IPC file per subtask: ``value`` for lists, ``key, value`` for maps; the schema's metadata says
how to read them. Operator state is small, so every backend of keyed state comes with this one.

Source: Flink's ``DefaultOperatorStateBackend``, ``HeapBroadcastState``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...checkpoints.snapshot import FileKind, RestoredPart, SnapshotPart
from ...checkpoints.state_files import FORMAT_VERSION, FrozenColumn, read_state_file, write_state_file
from ...errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError, ProgramError
from ...identifiers import OperatorId
from ...keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from ...keyed.evolution import migration, of_whole, stored_form
from ...keyed.kinds import StateDescriptor
from ...keys.key_classes import KEY_CLASSES, check_key_classes, check_noted_classes, notes_of
from ...reading.program_classes import own_classes_in
from ...values.encoding import decode_values
from ...values.type_sources import type_of_hint
from ...values.types import Change

__all__ = ["HeapOperatorStateBackend"]


class _State:
    """What lists and maps share: their kind, and the form that their content is stored in."""

    def __init__(self, kind: FileKind) -> None:
        self.kind = kind
        self.declared = False
        # As declared, or as restored until then.
        self.form: dict[str, Any] = {}
        # Turns the content into what is stored; None if that is the same.
        self.lower: Change | None = None

    def declare(self, descriptor: StateDescriptor, operator: OperatorId) -> Change | None:
        """Take the program's declaration of the state; gives what restored content is turned into, None for nothing.

        Raises:
            CheckpointMismatchError: If it cannot become what is declared.
        """
        if descriptor.ttl is not None:
            message = f"operator state {descriptor.name!r} cannot have a time to live"
            raise ProgramError(message, operator=operator)
        value_type = type_of_hint(descriptor.value_type)
        try:
            change = of_whole(descriptor.layout, migration(self.form, descriptor, _never))
        except CheckpointMismatchError as error:
            error.message = f"the checkpoint has operator state {descriptor.name!r} of another type: {error.message}"
            error.context = {"operator": operator, "state": descriptor.name, **error.context}
            raise
        lift = of_whole(descriptor.layout, value_type.lift)
        form = stored_form(descriptor)
        self.form.update({name: fact for name, fact in form.items() if fact is not None})
        self.lower = of_whole(descriptor.layout, value_type.lower)
        self.declared = True
        if change is None or lift is None:
            return change if lift is None else lift
        return lambda content: lift(change(content))


def _never() -> int:
    return 0


class _HeapList(_State):
    """One list or union list state."""

    def __init__(self, kind: FileKind, values: list[Any]) -> None:
        super().__init__(kind)
        self.values = values
        # What it writes of a restored list while the program has not declared the state: its deal of a union list,
        # whose elements every subtask holds; of a plain one all that it holds.
        self.share = values

    def get(self) -> list[Any]:
        return list(self.values)

    def add(self, value: Any) -> None:
        self.values.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        self.values.extend(values)

    def update(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def clear(self) -> None:
        self.values = []


class _HeapBroadcast(_State):
    """One broadcast map."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        super().__init__(FileKind.BROADCAST)
        self.entries = entries

    def get(self, key: Any) -> Any:
        return self.entries.get(key)

    def put(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self.entries.update(entries)

    def remove(self, key: Any) -> None:
        self.entries.pop(key, None)

    def contains(self, key: Any) -> bool:
        return key in self.entries

    def keys(self) -> Iterator[Any]:
        return iter(list(self.entries))

    def values(self) -> Iterator[Any]:
        return iter(list(self.entries.values()))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self.entries.items()))

    def is_empty(self) -> bool:
        return not self.entries

    def clear(self) -> None:
        self.entries.clear()


class HeapOperatorStateBackend:
    """All non-keyed state of one operator subtask, in memory.

    Args:
        operator: The operator's uid, for errors.
    """

    def __init__(self, operator: OperatorId) -> None:
        self.operator = operator
        self._states: dict[str, _HeapList | _HeapBroadcast] = {}

    def list_state(self, name: str, value_type: Any = None) -> _HeapList:
        """State whose elements are dealt out over the subtasks on restore.

        Args:
            name: Unique among the operator's operator state.
            value_type: The declared type of the elements, if any; as in a keyed state's descriptor.
        """
        return self._list(name, FileKind.LIST, value_type)

    def union_list_state(self, name: str, value_type: Any = None) -> _HeapList:
        """State that every subtask receives in full on restore; else as `list_state`.

        A subtask that then keeps all elements writes them all, so that the next restore has each as many times as
        there were subtasks: users keep what is theirs, by ``update``.
        """
        return self._list(name, FileKind.UNION, value_type)

    def broadcast_state(self, descriptor: MapStateDescriptor) -> _HeapBroadcast:
        """Return a map of which every subtask holds an equal copy.

        Raises:
            ProgramError: If the name was declared before, as another kind of state, or the state has a time to live.
            CheckpointMismatchError: If the restored checkpoint has another kind or type of state under that name.
        """
        given: Any = descriptor
        if not isinstance(given, MapStateDescriptor):
            message = f"broadcast state is a map, described by a MapStateDescriptor; got {descriptor!r}"
            raise ProgramError(message, operator=self.operator)
        state = self._known(descriptor.name, FileKind.BROADCAST)
        if state is None:
            state = self._states[descriptor.name] = _HeapBroadcast({})
        assert isinstance(state, _HeapBroadcast)
        if not state.declared:
            change = state.declare(descriptor, self.operator)
            if change is not None:
                state.entries = change(state.entries)
        return state

    def _list(self, name: str, kind: FileKind, value_type: Any) -> _HeapList:
        state = self._known(name, kind)
        if state is None:
            state = self._states[name] = _HeapList(kind, [])
        assert isinstance(state, _HeapList)
        if not state.declared:
            change = state.declare(ListStateDescriptor(name, value_type), self.operator)
            if change is not None:
                state.values = change(state.values)
        return state

    def _known(self, name: str, kind: FileKind) -> _HeapList | _HeapBroadcast | None:
        state = self._states.get(name)
        if state is not None and state.kind is not kind:
            if state.declared:
                message = f"operator state {name!r} is declared twice: as {state.kind} and as {kind} state"
                raise ProgramError(message, operator=self.operator)
            message = (
                f"the checkpoint has {state.kind} state under the name {name!r}; the program declares {kind} state"
            )
            raise CheckpointMismatchError(message, operator=self.operator)
        return state

    def snapshot(self) -> list[SnapshotPart]:
        """Return the synchronous part of a snapshot. Empty lists write nothing; maps are written even if they are
        empty, so that there are as many copies as subtasks.

        Raises:
            TypeMismatchError: If a value cannot be stored; maybe only from a part's ``write``.
        """
        parts = []
        for name, state in self._states.items():
            facts = {"format_version": FORMAT_VERSION, "state": name, "kind": state.kind.value, **state.form}
            if isinstance(state, _HeapBroadcast):
                entries = state.entries if state.lower is None else state.lower(state.entries)
                columns = {
                    "key": FrozenColumn(list(entries), name),
                    "value": FrozenColumn(list(entries.values()), name),
                }
                classes = own_classes_in(entries)
                if classes:
                    facts[KEY_CLASSES] = notes_of(classes)
            else:
                values = state.values if state.declared else state.share
                if not values:
                    continue
                columns = {"value": FrozenColumn(list(values if state.lower is None else state.lower(values)), name)}
            parts.append(SnapshotPart(name, state.kind, facts, functools.partial(_write, facts, columns)))
        return parts

    def restore(
        self, parts: Iterable[RestoredPart], subtask: int, parallelism: int, *, is_undealt: bool = False
    ) -> None:
        """Load what earlier subtasks wrote. Called once, before first use.

        Args:
            parts: Those of *all* earlier subtasks: elements are dealt out by their place in the whole list.
            subtask: This subtask's index.
            parallelism: How many subtasks there are now.
            is_undealt: Whether the parts of lists are those that this subtask wrote, and stay whole.

        Raises:
            CheckpointMismatchError: If the parts contradict each other or hold values that cannot be built.
            CheckpointCorruptError: If a part cannot be decoded.
        """
        by_state: dict[str, list[RestoredPart]] = {}
        for part in sorted(parts, key=lambda part: part.source_subtask):
            by_state.setdefault(part.state, []).append(part)
        for name, files in by_state.items():
            for part in files:
                if part.kind is not files[0].kind:
                    self._disagree(part)
            if files[0].kind is FileKind.BROADCAST:
                columns, form = self._read(files[subtask % len(files)], ("key", "value"))
                state: _HeapList | _HeapBroadcast = _HeapBroadcast(dict(zip(*columns, strict=True)))
            else:
                values: list[Any] = []
                forms = []
                for part in files:
                    (more,), form = self._read(part, ("value",))
                    values.extend(more)
                    forms.append(form)
                    if form != forms[0]:
                        self._disagree(part)
                is_union, dealt = files[0].kind is not FileKind.LIST, values[subtask::parallelism]
                state = _HeapList(files[0].kind, values if is_undealt or is_union else dealt)
                if is_union:
                    state.share = dealt
            state.form = form
            self._states[name] = state

    def _disagree(self, part: RestoredPart) -> None:
        message = f"the checkpoint's files disagree about what state {part.state!r} is"
        raise CheckpointMismatchError(message, operator=self.operator, source_subtask=part.source_subtask)

    def _read(self, part: RestoredPart, names: tuple[str, ...]) -> tuple[list[list[Any]], dict[str, Any]]:
        """The columns of a file, and the form of its values."""
        data, facts = read_state_file(part, self.operator)
        try:
            columns = [decode_values(data.column(name), facts[f"{name}_encoding"]) for name in names]
            if "key" in names:
                check_noted_classes(facts)
                check_key_classes(columns[0])
        except CheckpointError as error:
            error.context = {"operator": self.operator, "state": part.state, **error.context}
            raise
        except (KeyError, TypeError, ValueError) as error:
            message = f"a state file cannot be decoded: {error!r:.300}"
            raise CheckpointCorruptError(message, operator=self.operator, state=part.state) from error
        return columns, {name: facts[name] for name in ("value_schema", "map_key_schema", "ttl") if name in facts}


def _write(facts: dict[str, Any], columns: dict[str, FrozenColumn]) -> bytes:
    encoded = {name: column.encode() for name, column in columns.items()}
    encodings = {f"{name}_encoding": encoding for name, (_, encoding) in encoded.items()}
    return write_state_file(pa.table({name: array for name, (array, _) in encoded.items()}), {**facts, **encodings})
