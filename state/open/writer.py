"""Writes checkpoints from tables: fresh ones, and changed copies of others; both are what any job restores from.

A writer collects what an operator is to hold, checks it at once, and `SnapshotWriter.write` makes a folder that is
complete in itself, the manifest last (`headrace.state.open.drafts` writes the files). So a snapshot from here
differs in nothing from one that a job has taken, and the same checks meet it.

Values are in their *stored form* (records as dicts): no class of the program is needed to write its state. A table is
refused if it could not become what the program declares: wherever a column is missing, of another type, or has a null
or a key where there must be none, the error names operator, state, column and row.

Source: Flink's State Processor API (``SavepointWriter``, ``StateBootstrapTransformation``); FLIP-43.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..backends.choice import BACKENDS
from ..checkpoints.manifest import Manifest
from ..checkpoints.snapshot import FileKind
from ..checkpoints.storage import CheckpointStorage
from ..errors import (
    AlreadyExistsError,
    CheckpointMismatchError,
    ConfigurationError,
    ProgramError,
)
from ..files.local_directories import LocalDirectory
from ..identifiers import OperatorId
from ..keyed.contract import Namespace
from ..keyed.declarations import form_of
from ..keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from ..keyed.evolution import stored_form
from ..keyed.kinds import StateDescriptor, is_state_kind, layout_of_kind
from ..keyed.layouts import ENTRIES
from ..keys.hashing import hash_keys
from ..keys.key_groups import key_groups_of
from ..reading.signing import key_file_of
from ..values.sharing import shown
from ..values.type_sources import schema_text, type_of_hint
from ..values.types import Schema
from .column_types import schema_of_values
from .drafts import DraftFiles, OperatorDraft, StateDraft
from .input import InputColumns, fits
from .names import FUNCTION_PREFIX, RUN_MARKS
from .reader import EVERYTHING, SnapshotReader
from .stored_states import StoredState
from .values import open_pickle

__all__ = ["SnapshotWriter"]

_WRITES = "snapshot_writes"
"""Counts in ``max_ids`` how often a snapshot was written anew: part of the names of its files."""


class SnapshotWriter:
    """Builds a snapshot. Made by ``Snapshot.builder`` and ``Snapshot.edit``; every ``with_`` method gives the writer.

    Args:
        max_parallelism: Of operators that are new: what the program sets. It never changes for the life of keyed state.
        parallelism: How many subtasks the new operators' state is written for; a job restores it at any parallelism.
        backend: ``heap`` or ``rocksdb``: the backend that the job restores with, for operators that have no keyed
            state yet.
        source: The snapshot that is edited: where it is, and what it holds; None for a fresh one.

    Raises:
        ConfigurationError: If a number or the backend is out of range.
        CheckpointMismatchError: If the edited snapshot holds records in flight.
    """

    def __init__(
        self,
        max_parallelism: int = 128,
        parallelism: int = 1,
        backend: str = "heap",
        source: tuple[CheckpointStorage, Manifest] | None = None,
    ) -> None:
        if backend not in BACKENDS:
            message = f"the state backend must be one of {', '.join(BACKENDS)}; got {backend!r}"
            raise ConfigurationError(message)
        if not 1 <= parallelism <= max_parallelism <= 1 << 15:
            message = (
                f"parallelism must be between 1 and max_parallelism, which is at most {1 << 15}; "
                f"got {parallelism} and {max_parallelism}"
            )
            raise ConfigurationError(message)
        self._max_parallelism = max_parallelism
        self._parallelism = parallelism
        self._backend = backend
        self._source = source
        self._operators: dict[str, OperatorDraft] = {}
        # Old uid -> new uid, for what belongs to sources and is not an operator's state.
        self._uids: dict[str, str] = {}
        if source is not None:
            _refuse_in_flight(source[1])
            for state in source[1].operators:
                self._operators[state.uid] = OperatorDraft(
                    state.uid, state.name, state.parallelism, state.max_parallelism, state
                )
            self._uids = {uid: uid for uid in source[1].enumerators if uid not in RUN_MARKS}

    # ----------------------------------------------------------------------------------------------------- whole parts
    def without_operator(self, uid: str) -> SnapshotWriter:
        """Leave out an operator with all of its state, and a source's splits.

        Raises:
            CheckpointMismatchError: If the snapshot does not have it.
        """
        if uid not in self._operators and uid not in self._uids.values():
            self._refuse_uid(uid)
        self._operators.pop(uid, None)
        self._uids = {old: new for old, new in self._uids.items() if new != uid}
        return self

    def without_state(self, uid: str, name: str) -> SnapshotWriter:
        """Leave out one state of an operator, by its name or by what it is listed as.

        Raises:
            CheckpointMismatchError: If the snapshot does not have it.
        """
        draft = self._operator(uid)
        known = draft.known
        there = {(state.is_keyed, state.name) for state in known.values()} | set(draft.states)
        meant = [(keyed, full) for full in (name, FUNCTION_PREFIX + name) for keyed in (True, False)]
        if name in known:
            meant.insert(0, (known[name].is_keyed, known[name].name))
        found = next((place for place in meant if place in there), None)
        if found is None:
            message = f"operator {uid!r} has no state {name!r}; it has: {', '.join(sorted(n for _, n in there))}"
            raise CheckpointMismatchError(message, operator=uid)
        draft.states.pop(found, None)
        draft.dropped.add(found)
        return self

    def with_uid(self, uid: str, new_uid: str) -> SnapshotWriter:
        """Give an operator another uid: that of the operator which is to find its state.

        Raises:
            CheckpointMismatchError: If the snapshot does not have it, or has one of the new uid.
        """
        if uid not in self._operators and uid not in self._uids.values():
            self._refuse_uid(uid)
        if not new_uid or new_uid in self._operators or new_uid in self._uids.values():
            message = f"operator {uid!r} cannot become {new_uid!r}: there is an operator of that uid"
            raise CheckpointMismatchError(message)
        if uid in self._operators:
            draft = self._operators.pop(uid)
            draft.uid = OperatorId(new_uid)
            self._operators[new_uid] = draft
        self._uids = {old: new_uid if new == uid else new for old, new in self._uids.items()}
        return self

    def _refuse_uid(self, uid: str) -> None:
        known = ", ".join(sorted({*self._operators, *self._uids.values()}))
        message = f"the snapshot has no operator {uid!r}; it has: {known}"
        raise CheckpointMismatchError(message)

    def _operator(self, uid: str) -> OperatorDraft:
        if uid not in self._operators:
            self._refuse_uid(uid)
        return self._operators[uid]

    def _operator_or_new(self, uid: str, name: str | None) -> OperatorDraft:
        if not isinstance(uid, str) or not uid:
            message = f"an operator's uid must be a non-empty string; got {uid!r}"
            raise ProgramError(message)
        draft = self._operators.get(uid)
        if draft is None:
            draft = self._operators[uid] = OperatorDraft(
                OperatorId(uid), name or uid, self._parallelism, self._max_parallelism
            )
        return draft

    # ----------------------------------------------------------------------------------------------------- keyed state
    def with_keyed_state(
        self,
        uid: str,
        descriptor: StateDescriptor | str,
        table: pa.Table,
        *,
        key_columns: str | Sequence[str] | None = None,
        value_columns: str | Sequence[str] | None = None,
        map_key_column: str = "map_key",
        key_type: Any = None,
        operator_name: str | None = None,
        now_ms: int | None = None,
    ) -> SnapshotWriter:
        """Add a keyed state, or put another in place of one that is there.

        Args:
            uid: The operator's.
            descriptor: The state, as the program declares it: value, list (one row per element), map (one row per
                entry), reducing or aggregating state (values are accumulators). For a state that is replaced its name
                will do.
            table: The values: columns as ``Snapshot.read`` gives them, others are passed over. With columns
                ``window_start`` and ``window_end`` it is state of windows.
            key_columns: The key: one column, or several that make up a tuple; by default ``key``, or ``key.*``.
            value_columns: The value: one column, or several that make up a record or, if so declared, a tuple; by
                default ``value``, or ``value.*``.
            map_key_column: Of map state.
            key_type: The declared type of the keys, to be checked.
            operator_name: For people, if the operator is new.
            now_ms: With a time to live: the time of the last write where the table has no column ``updated_at``;
                by default now.

        Raises:
            TypeMismatchError: If a column is missing or of another type, a key is null or comes twice, or a value is
                null that must not be; names operator, state, column and row.
            CheckpointMismatchError: If the snapshot has another kind or type of state under that name, or keys of
                another type.
        """
        draft = self._operator_or_new(uid, operator_name)
        known = draft.known
        columns = InputColumns(table, uid, descriptor if isinstance(descriptor, str) else descriptor.name)
        is_windowed = columns.has("window_start") and columns.has("window_end")
        name, form = self._form(known, uid, descriptor, is_windowed)
        declared, kind = form.get("value_schema"), form["descriptor"]
        key_schema = type_of_hint(key_type).schema
        keys, given_key, key_names = columns.gathered("key", key_columns, key_schema)
        columns.check(keys, given_key, key_schema, key_names, "key")
        keys = columns.checked_keys(keys, key_names)
        self._check_key_type(uid, known, name, given_key)
        values, given, value_names = columns.gathered("value", value_columns, declared)
        columns.check(values, given, declared, value_names, "value")
        units = _with_times(columns, values, now_ms) if form.get("ttl") else values
        namespaces: list[Namespace] = [None] * len(keys)
        if form["windowed"]:
            namespaces = columns.windows()
        layout = layout_of_kind(kind)
        places = columns.places(layout, map_key_column, form.get("map_key_schema"))
        parts: dict[tuple[Namespace, Any], dict[Any, Any]] = {}
        for row, (namespace, key, place, unit) in enumerate(zip(namespaces, keys, places, units, strict=True)):
            there = parts.setdefault((namespace, key), {})
            if place not in there:
                there[place] = unit
            elif layout is ENTRIES:
                message = f"key {shown(key, 120)} has the map key {shown(place, 120)} twice"
                raise columns.error(message, column=map_key_column, row=row)
            else:
                window = "" if namespace is None else f" in window {namespace}"
                message = f"key {shown(key, 120)} comes twice{window}; {kind} state has one value per key"
                raise columns.error(message, column=", ".join(key_names), row=row)
        held = {place: layout.whole(there.items()) for place, there in parts.items()}
        groups = key_groups_of(hash_keys([key for _, key in held]), draft.max_parallelism) if held else np.zeros(0)
        draft.dropped.add((True, name))
        draft.states[True, name] = StateDraft(name, FileKind.KEYED, form, held, groups)
        return self

    def _form(
        self, known: dict[str, StoredState], uid: str, descriptor: StateDescriptor | str, is_windowed: bool
    ) -> tuple[str, dict[str, Any]]:
        """The state's name and facts, seen to be those that the edited snapshot has."""
        name = descriptor if isinstance(descriptor, str) else descriptor.name
        state = _found(known, name, is_keyed=True)
        if isinstance(descriptor, str):
            if state is None:
                message = f"operator {uid!r} has no keyed state {name!r} to replace; it has: {', '.join(known)}"
                raise CheckpointMismatchError(message, hint="give a descriptor of new state", operator=uid)
            if state.is_columnar:
                message = f"state {name!r} of operator {uid!r} is {state.kind} state; it has no rows of keys"
                raise CheckpointMismatchError(message, operator=uid)
            notes = ("descriptor", "value_type", "windowed", "value_schema", "map_key_schema", "ttl", "ttl_ms")
            return name, {note: state.form[note] for note in (*notes, "queryable") if note in state.form}
        if not is_state_kind(descriptor):
            message = f"keyed state is described by a ValueStateDescriptor or the like; got {descriptor!r}"
            raise ProgramError(message, operator=uid)
        form = form_of(descriptor, is_windowed)
        if state is not None:
            was = (state.kind, state.windowed, state.has_ttl, state.value_schema, state.map_key_schema)
            now = (
                descriptor.kind,
                is_windowed,
                form["ttl"],
                form["value_schema"] if state.value_schema is not None else None,
                form["map_key_schema"] if state.map_key_schema is not None else None,
            )
            if was != now:
                message = f"the snapshot has {_text(was)} under the name {name!r}; the table is for {_text(now)}"
                hint = "leave the old one out first: without_state"
                raise CheckpointMismatchError(message, hint=hint, operator=uid, state=name)
        return name, form

    def _check_key_type(self, uid: str, known: dict[str, StoredState], name: str, given: Schema) -> None:
        """See that keys are of the type that the operator's other states have."""
        if self._source is None:
            return
        for state in known.values():
            if state.name == name or not state.is_keyed or state.is_columnar:
                continue
            reader = SnapshotReader(self._source[0])
            try:
                row = next(reader.rows(state, EVERYTHING, open_pickle), None)
            except CheckpointMismatchError:
                continue  # only unpickling would tell what its keys are
            finally:
                reader.close()
            if row is None:
                continue
            seen = schema_of_values([row.key])
            if not fits(given, seen) and not fits(seen, given):
                message = (
                    f"operator {uid!r} has keys of type {schema_text(seen)} in state {state.name!r}; "
                    f"the table has {schema_text(given)}"
                )
                raise CheckpointMismatchError(message, operator=uid, state=name)
            return

    # -------------------------------------------------------------------------------------------------- operator state
    def with_operator_state(
        self,
        uid: str,
        descriptor: ListStateDescriptor,
        table: pa.Table,
        *,
        value_columns: str | Sequence[str] | None = None,
        union: bool = False,
        operator_name: str | None = None,
    ) -> SnapshotWriter:
        """Add a list that a ``CheckpointedFunction`` finds in ``initialize_state``, or replace one.

        Args:
            uid: The operator's.
            descriptor: The list.
            table: One row per element; rows with a column ``subtask`` (of the parallelism written) go to that one.
            value_columns: As of `with_keyed_state`.
            union: Whether every subtask gets the whole list.
            operator_name: For people, if the operator is new.

        Raises:
            TypeMismatchError: If a column is missing, or the values are of another type.
            CheckpointMismatchError: If the snapshot has another kind or type of state under that name.
        """
        if not isinstance(descriptor, ListStateDescriptor) or descriptor.ttl is not None:
            message = f"operator state is a list without a time to live, of a ListStateDescriptor; got {descriptor!r}"
            raise ProgramError(message, operator=uid)
        draft = self._operator_or_new(uid, operator_name)
        known = draft.known
        is_recorded = _found(known, descriptor.name, is_keyed=False) is not None
        name = descriptor.name if is_recorded else FUNCTION_PREFIX + descriptor.name
        form = self._operator_form(known, uid, name, descriptor, "operator-union-list" if union else "operator-list")
        columns = InputColumns(table, uid, descriptor.name)
        values, given, names = columns.gathered("value", value_columns, form.get("value_schema"))
        columns.check(values, given, form.get("value_schema"), names, "value")
        subtasks: list[Any] = [0] * len(values)
        if columns.has("subtask"):
            subtasks = [s if type(s) is int and 0 <= s < draft.parallelism else 0 for s in columns.values("subtask")[0]]
        elements: dict[int, list[Any]] = {}
        for subtask, value in zip(subtasks, values, strict=True):
            elements.setdefault(subtask, []).append(value)
        draft.dropped.add((False, name))
        draft.states[False, name] = StateDraft(
            name, FileKind.UNION if union else FileKind.LIST, form, elements=elements
        )
        return self

    def with_broadcast_state(
        self,
        uid: str,
        descriptor: MapStateDescriptor,
        table: pa.Table,
        *,
        key_columns: str | Sequence[str] | None = None,
        value_columns: str | Sequence[str] | None = None,
        operator_name: str | None = None,
    ) -> SnapshotWriter:
        """Add a broadcast map, or replace one: one row per entry; else as `with_operator_state`."""
        if not isinstance(descriptor, MapStateDescriptor) or descriptor.ttl is not None:
            message = f"broadcast state is a map without a time to live, of a MapStateDescriptor; got {descriptor!r}"
            raise ProgramError(message, operator=uid)
        draft = self._operator_or_new(uid, operator_name)
        name = descriptor.name
        form = self._operator_form(draft.known, uid, name, descriptor, "broadcast")
        columns = InputColumns(table, uid, name)
        keys, given_key, key_names = columns.gathered("key", key_columns, form.get("map_key_schema"))
        columns.check(keys, given_key, form.get("map_key_schema"), key_names, "key")
        keys = columns.checked_keys(keys, key_names)
        values, given, value_names = columns.gathered("value", value_columns, form.get("value_schema"))
        columns.check(values, given, form.get("value_schema"), value_names, "value")
        held: dict[Any, Any] = {}
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if key in held:
                message = f"key {shown(key, 120)} comes twice"
                raise columns.error(message, column=", ".join(key_names), row=row)
            held[key] = value
        draft.dropped.add((False, name))
        draft.states[False, name] = StateDraft(name, FileKind.BROADCAST, form, held)
        return self

    def _operator_form(
        self, known: dict[str, StoredState], uid: str, name: str, descriptor: StateDescriptor, kind: str
    ) -> dict[str, Any]:
        form = {fact: value for fact, value in stored_form(descriptor).items() if value is not None}
        state = _found(known, name, is_keyed=False)
        if state is not None:
            was = (state.kind, state.value_schema, state.map_key_schema)
            now = (
                kind,
                form.get("value_schema") if state.value_schema is not None else None,
                form.get("map_key_schema") if state.map_key_schema is not None else None,
            )
            if was != now:
                there, here = (f"{k} state of {schema_text(value)}" for k, value, _ in (was, now))
                message = f"the snapshot has {there} under the name {name!r}; the table is for {here}"
                raise CheckpointMismatchError(message, operator=uid, state=name)
        return form

    # ---------------------------------------------------------------------------------------------------------- writing
    def write(self, path: str | os.PathLike[str], *, key_file: str | os.PathLike[str] | None = None) -> str:
        """Write the snapshot.

        Args:
            path: A folder without a checkpoint in it: a path or URI of any file system that checkpoints may be in.
            key_file: Of the keys that it is signed with; None for that of the snapshot that is edited, or that of
                ``HEADRACE_CHECKPOINT_KEY_FILE``, or none.

        Returns:
            What a job is started from: the path of the manifest.

        Raises:
            AlreadyExistsError: If there is a checkpoint.
            CheckpointCorruptError: If a file that is carried over is damaged; nothing is complete then.
            StorageError: If a file system fails.
        """
        known = None if self._source is None else self._source[0].key_file
        target = CheckpointStorage.at(os.fspath(path), key_file_of(key_file or known))
        if target.list_complete():
            message = "there is a checkpoint where a snapshot was to be written"
            raise AlreadyExistsError(message, path=str(path))
        old = None if self._source is None else self._source[1]
        checkpoint_id = 1 if old is None else old.checkpoint_id
        writes = 1 if old is None else old.max_ids.get(_WRITES, 0) + 1
        directory = LocalDirectory.make(None, "snapshot-writer")
        try:
            source = None if self._source is None else self._source[0]
            files = DraftFiles(target, source, checkpoint_id, writes, self._backend, directory)
            operators = tuple(files.write(draft) for draft in self._operators.values())
        finally:
            directory.close()
        enumerators = {} if old is None else {new: old.enumerators[uid] for uid, new in self._uids.items()}
        manifest = Manifest(
            job_id="snapshot" if old is None else old.job_id,
            job_name="snapshot" if old is None else old.job_name,
            checkpoint_id=checkpoint_id,
            epoch=1,
            timestamp_ms=time.time_ns() // 1_000_000,
            operators=tuple(state for state in operators if state.subtasks),
            enumerators=enumerators,
            max_ids={**({} if old is None else old.max_ids), _WRITES: writes},
            plan=None if old is None else old.plan,
        )
        return target.publish(manifest, 1)


def _refuse_in_flight(manifest: Manifest) -> None:
    """Records in flight were partitioned for the operators and keys as they were, and belong to the state as it was."""
    for operator in manifest.operators:
        for snapshot in operator.subtasks:
            if any(file.kind is FileKind.CHANNEL for file in snapshot.files):
                message = "an unaligned checkpoint that holds records in flight can be read, but not edited"
                hint = "edit a savepoint, or a checkpoint that was taken with aligned barriers"
                raise CheckpointMismatchError(
                    message, hint=hint, operator=operator.uid, checkpoint=manifest.checkpoint_id
                )


def _found(known: dict[str, StoredState], name: str, *, is_keyed: bool) -> StoredState | None:
    return next((state for state in known.values() if (state.is_keyed, state.name) == (is_keyed, name)), None)


def _text(form: tuple[Any, ...]) -> str:
    kind, is_windowed, has_ttl, value, _ = form
    typed = f" of {schema_text(value)}" if value is not None else ""
    return f"{kind}{' windowed' if is_windowed else ''} state{typed}{' with a time to live' if has_ttl else ''}"


def _with_times(columns: InputColumns, values: list[Any], now_ms: int | None) -> list[Any]:
    """Values with a time to live: each with the time of its last write."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if not columns.has("updated_at"):
        return [(value, now_ms) for value in values]
    times = columns.epoch_ms("updated_at")
    return [(value, now_ms if at is None else at) for value, at in zip(values, times, strict=True)]
