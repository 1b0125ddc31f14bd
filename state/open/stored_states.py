"""Which states a checkpoint has, by its manifest alone: what is known of a state before any file is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..checkpoints.manifest import OperatorState
from ..checkpoints.snapshot import OPERATOR_KINDS, FileKind, OperatorSnapshot, StateFile
from ..errors import CheckpointCorruptError
from ..identifiers import OperatorId
from ..keyed.kinds import layout_of_kind, shows_parts_of_kind
from ..keyed.layouts import ELEMENTS, ONE, Layout
from ..reading.arrow_reading import read_arrow_schema
from ..values.types import Schema

__all__ = ["StoredState", "columns_of", "states_of"]

_OPERATOR_WORDS = {FileKind.LIST: "operator-list", FileKind.UNION: "operator-union-list"}
"""What lists of operators are called to people, who know keyed ones by the same words."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """One state of one operator, over all subtasks that stored it.

    Attributes:
        operator: The operator's uid.
        name: The state's.
        kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``; ``table`` for state of the engine's own
            operators, ``columnar`` for such state in columns; ``operator-list``, ``operator-union-list`` and
            ``broadcast`` for state without a key.
        backend: ``heap`` or ``rocksdb``; ``operator`` for state without a key.
        windowed: Whether it belongs to windows, or to other times, as well as to keys.
        value_schema: The declared type of values (`headrace.state.keyed.evolution`), None if none was.
        map_key_schema: The same of a map's keys.
        has_ttl: Whether values have a time to live.
        ttl_ms: The time, as far as it is known.
        queryable: Under which name the running job answers for it; None for not at all.
        columns: Of columnar state.
        key_columns: The columns among them that make up the key.
        files: By subtask; of a database all its files, which hold the operator's other states too.
        numbers: Of a database: the state's number in each subtask's.
    """

    operator: OperatorId
    name: str
    kind: str
    backend: str
    windowed: bool = False
    value_schema: Schema = None
    map_key_schema: Schema = None
    has_ttl: bool = False
    ttl_ms: int | None = None
    queryable: str | None = None
    columns: str | None = None
    key_columns: tuple[str, ...] = ()
    files: dict[int, tuple[StateFile, ...]] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    form: dict[str, Any] = field(default_factory=dict)
    """The facts as they are stored, to write the state again."""

    @property
    def is_columnar(self) -> bool:
        """Whether it is record batches, by columns of keys."""
        return self.kind == FileKind.COLUMNAR.value

    @property
    def is_broadcast(self) -> bool:
        """Whether all subtasks of its operator have it alike."""
        return self.kind == FileKind.BROADCAST.value

    @property
    def layout(self) -> Layout:
        """How what a key, or of state without a key a subtask, holds is made of parts.

        Raises:
            CheckpointMismatchError: If it is of a kind that is not registered.
        """
        if not self.is_keyed:  # of broadcast state each entry is a key's value
            return ONE if self.is_broadcast else ELEMENTS
        return ONE if self.is_columnar else layout_of_kind(self.kind)

    @property
    def shows_parts(self) -> bool:
        """Whether clients are shown what is stored, as far as the program runs."""
        return not self.is_keyed or shows_parts_of_kind(self.kind)

    @property
    def is_keyed(self) -> bool:
        """Whether it belongs to keys."""
        return self.backend != "operator"


def states_of(operator: OperatorState) -> dict[str, StoredState]:
    """Return the states of one operator of a checkpoint, by name: from the manifest alone, no file is opened.

    Records in flight, of an unaligned checkpoint, are no state of an operator and are left out. State without a key
    that shares its name with a keyed one is listed as ``<name> (operator)``.
    """
    try:
        return _states_of(operator)
    except (KeyError, TypeError, ValueError) as error:
        message = f"a checkpoint's manifest lacks facts of a state: {error!r:.200}"
        raise CheckpointCorruptError(message, operator=operator.uid) from error


def _states_of(operator: OperatorState) -> dict[str, StoredState]:
    states: dict[str, StoredState] = {}
    for snapshot in operator.subtasks:
        databases = tuple(file for file in snapshot.files if file.kind is FileKind.DATABASE)
        for file in snapshot.files:
            if file.kind is FileKind.CHANNEL:
                continue
            if file.kind is FileKind.DATABASE:
                for form in file.metadata.get("states", ()):  # the frame's
                    _add(
                        states, operator.uid, form["name"], FileKind(form["kind"]), "rocksdb", form, snapshot, databases
                    )
            else:
                backend = "operator" if file.kind in OPERATOR_KINDS else "heap"
                _add(states, operator.uid, file.state, file.kind, backend, file.metadata, snapshot, (file,))
    return states


def _add(
    states: dict[str, StoredState],
    operator: OperatorId,
    name: str,
    kind: FileKind,
    backend: str,
    form: dict[str, Any],
    snapshot: OperatorSnapshot,
    files: tuple[StateFile, ...],
) -> None:
    label, known = name, states.get(name)
    if known is not None and known.is_keyed != (backend != "operator"):
        label = f"{name} (operator)"  # two backends, one name
        known = states.get(label)
    if known is None:
        if backend == "operator":
            shown = _OPERATOR_WORDS.get(kind, kind.value)
        else:
            shown = kind.value if kind is FileKind.COLUMNAR else form["descriptor"]
        columns = form.get("columns")
        if columns is None and "schema" in form:
            columns = ", ".join(f"{field.name}: {field.type}" for field in columns_of(form["schema"]))
        known = states[label] = StoredState(
            operator,
            name,
            shown,
            backend,
            windowed=bool(form.get("windowed")) or kind is FileKind.COLUMNAR,
            value_schema=form.get("value_schema"),
            map_key_schema=form.get("map_key_schema"),
            has_ttl=bool(form.get("ttl")),
            ttl_ms=form.get("ttl_ms"),
            queryable=form.get("queryable"),
            columns=columns,
            key_columns=tuple(form.get("key_columns", ())),
            form=form,
        )
    known.files[snapshot.subtask] = known.files.get(snapshot.subtask, ()) + files
    if "id" in form:
        known.numbers[snapshot.subtask] = form["id"]


def columns_of(encoded: str) -> pa.Schema:
    """Return the schema of columnar state."""
    return read_arrow_schema(encoded, "the schema of columnar state")
