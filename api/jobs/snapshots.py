"""Checkpoints as data: what is in one, as Arrow tables, and new ones made of tables.

`Snapshot.open` reads a checkpoint or savepoint of any job, from any file system that jobs write to, without the job's
program: no class of it is imported and no code of it runs. `Snapshot.builder` bootstraps the state of a job that has
never run; `Snapshot.edit` changes a snapshot that a job has taken. What is written is a checkpoint like any other.

Source: Flink's State Processor API (``SavepointReader``, ``SavepointWriter``); FLIP-43.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter, itemgetter
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, NotFoundError, TypeMismatchError
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import FileKind, StateFile
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.credentials import masked
from headrace.state.files.filesystem import join_confined
from headrace.state.keyed.layouts import ENTRIES
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import KeyGroupRange, key_groups_of
from headrace.state.open.column_types import Observed
from headrace.state.open.names import COMMITTABLES, FUNCTION_PREFIX, RUN_MARKS, SPLITS, TIMERS
from headrace.state.open.plain_objects import plain_value
from headrace.state.open.reader import EVERYTHING, Row, Selection, SnapshotReader, encoded_key, number_of
from headrace.state.open.snapshot_tables import columnar_tables, observed_columns
from headrace.state.open.stored_states import StoredState, states_of
from headrace.state.open.values import open_pickle
from headrace.state.open.writer import SnapshotWriter
from headrace.state.reading.signing import key_file_of
from headrace.state.reading.stored_pickles import pickle_value, unpickle_value
from headrace.state.values.json_text import json_text
from headrace.state.values.sharing import spreads
from headrace.state.values.type_sources import schema_text

from .snapshot_info import FileProblem, OperatorInfo, StateInfo

__all__ = ["Snapshot", "SnapshotWriter"]

_PIECE_BYTES = 1 << 20


class Snapshot:
    """A checkpoint or savepoint, opened to be read. Made by `open`; a context manager.

    Local copies of the files that were read are kept until it is closed.

    Args:
        storage: Where it is.
        manifest: What it holds.
        local_directory: Where copies go; None for the system's directory for temporary files.
    """

    def __init__(self, storage: CheckpointStorage, manifest: Manifest, local_directory: str | None = None) -> None:
        self._storage = storage
        self._manifest = manifest
        self._reader = SnapshotReader(storage, local_directory)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        local_directory: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> Snapshot:
        """Open a snapshot.

        Args:
            path: Path or URI of a manifest (``.../manifests/chk-7.json``), of a checkpoint (``.../chk-7``) or of a
                folder, whose newest complete checkpoint is meant.
            local_directory: Where files are copied to when they are read.
            key_file: Of the keys that it must be signed with; None for ``HEADRACE_CHECKPOINT_KEY_FILE``, or none. What
                is written from this snapshot is signed, too.

        Raises:
            CheckpointNotFoundError: If there is none.
            CheckpointCorruptError: If the manifest, or the size of a file, is wrong.
            CheckpointMismatchError: If a newer version wrote it, or it is not signed with one of the keys.
        """
        storage, manifest = CheckpointStorage.from_manifest(path, key_file_of(key_file))
        return cls(storage, manifest, local_directory)

    @staticmethod
    def builder(*, max_parallelism: int = 128, parallelism: int = 1, backend: str = "heap") -> SnapshotWriter:
        """Start to make a snapshot of tables.

        Args:
            max_parallelism: What the program sets; 128 if it sets nothing. It never changes for the life of keyed
                state.
            parallelism: How many files each state is cut into; a job restores them at any parallelism.
            backend: ``heap`` or ``rocksdb``: the state backend that the job is run with.

        Raises:
            ConfigurationError: If a number or the backend is out of range.
        """
        return SnapshotWriter(max_parallelism, parallelism, backend)

    def edit(self, *, backend: str = "heap") -> SnapshotWriter:
        """Start to make a changed copy; everything that is not changed is carried over.

        Args:
            backend: For operators that have no keyed state yet.

        Raises:
            CheckpointMismatchError: If it holds records in flight, as unaligned checkpoints do.
        """
        most = max((state.max_parallelism for state in self._manifest.operators), default=128)
        return SnapshotWriter(most, 1, backend, (self._storage, self._manifest))

    def close(self) -> None:
        """Let go of local copies. A second call does nothing."""
        self._reader.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------ what it is
    @property
    def path(self) -> str:
        """The folder it is in."""
        return self._storage.uri

    @property
    def checkpoint_id(self) -> int:
        """Its number among the job's checkpoints."""
        return self._manifest.checkpoint_id

    @property
    def job_id(self) -> str:
        """The job that took it."""
        return self._manifest.job_id

    @property
    def job_name(self) -> str:
        """The job's name."""
        return self._manifest.job_name

    @property
    def timestamp(self) -> datetime:
        """When it was triggered, UTC."""
        return datetime.fromtimestamp(self._manifest.timestamp_ms / 1_000, timezone.utc)

    @property
    def format_version(self) -> int:
        """Of its manifest."""
        return self._manifest.format_version

    def operators(self) -> list[OperatorInfo]:
        """Return the operators that have state, in the program's order."""
        return [self._operator_info(state) for state in self._manifest.operators]

    def operator(self, uid: str) -> OperatorInfo:
        """Return one operator, by its uid or its name.

        Raises:
            CheckpointMismatchError: If there is none, or several have that name.
        """
        return self._operator_info(self._operator(uid))

    def _operator_info(self, state: OperatorState) -> OperatorInfo:
        files = [file for snapshot in state.subtasks for file in snapshot.files]
        names = tuple(states_of(state))
        size = sum(file.size for file in files)
        return OperatorInfo(state.uid, state.name, state.parallelism, state.max_parallelism, names, len(files), size)

    def states(self, uid: str | None = None, *, look: bool = False, allow_pickle: bool = False) -> list[StateInfo]:
        """Return the states of one operator, or of all.

        Args:
            uid: The operator.
            look: Whether to read the states, to count entries and find types that were not declared.
            allow_pickle: Whether to build pickled objects when looking; as of `read_batches`.

        Raises:
            CheckpointMismatchError: If there is no such operator.
        """
        operators = self._manifest.operators if uid is None else (self._operator(uid),)
        return [
            self._state_info(label, state, look, allow_pickle)
            for operator in operators
            for label, state in states_of(operator).items()
        ]

    def _state_info(self, label: str, state: StoredState, look: bool, allow_pickle: bool) -> StateInfo:
        files = [file for some in state.files.values() for file in some]
        value_type, map_key_type = _declared_text(state.value_schema), _declared_text(state.map_key_schema)
        key_type: str | None = ", ".join(state.key_columns) or None
        count: int | None = None
        if state.is_columnar:
            value_type = state.columns
            if look:
                count = sum(batch.num_rows for batch in columnar_tables(self._reader, state, EVERYTHING))
        elif look:
            count, keys, inner, values = 0, Observed(), Observed(), Observed()
            for row in self._rows_of(state, allow_pickle):
                count += 1
                keys.add(row.key)
                inner.add(row.inner)
                values.add(row.value)
            value_type = value_type or _declared_text(values.schema())
            if state.layout is ENTRIES:
                map_key_type = map_key_type or _declared_text(inner.schema())
            if state.is_keyed:
                key_type = _declared_text(keys.schema())
        return StateInfo(
            operator=state.operator,
            name=label,
            kind=state.kind,
            backend=state.backend,
            windowed=state.windowed,
            value_type=value_type,
            map_key_type=map_key_type,
            key_type=key_type,
            has_ttl=state.has_ttl,
            ttl_ms=state.ttl_ms,
            queryable=state.queryable,
            num_files=len(files),
            num_bytes=sum(file.size for file in files),
            shares_files=any(file.kind is FileKind.DATABASE for file in files),
            num_entries=count,
        )

    def _operator(self, uid: str) -> OperatorState:
        operators = self._manifest.operators
        by_uid = [state for state in operators if state.uid == uid]
        found = by_uid or [state for state in operators if state.name == uid]
        if len(found) != 1:
            known = ", ".join(f"{state.uid} ({state.name})" for state in operators)
            what = "has no operator" if not found else f"has {len(found)} operators named"
            message = f"the snapshot {what} {uid!r}; it has: {known}"
            raise CheckpointMismatchError(message, path=self.path)
        return found[0]

    def _state(self, uid: str, name: str) -> tuple[OperatorState, StoredState]:
        operator = self._operator(uid)
        states = states_of(operator)
        for candidate in (name, FUNCTION_PREFIX + name, f"window.{name}", f"trigger.{name}"):
            if candidate in states:
                return operator, states[candidate]
        message = f"operator {operator.uid!r} has no state {name!r}; it has: {', '.join(states)}"
        raise CheckpointMismatchError(message, path=self.path)

    def _rows_of(self, state: StoredState, allow_pickle: bool) -> Iterator[Row]:
        """All rows; pickled objects as what they consist of, or closed."""
        if allow_pickle:
            return _BuildingReader(self._reader).rows(state, EVERYTHING, unpickle_value)
        return self._reader.rows(state, EVERYTHING, open_pickle)

    # --------------------------------------------------------------------------------------------------------- reading
    def read(self, uid: str, state: str, **options: Any) -> pa.Table:
        """Read a state as one table; else as `read_batches`."""
        batches = list(self.read_batches(uid, state, **options))
        return pa.Table.from_batches(batches)

    def read_batches(
        self,
        uid: str,
        state: str,
        *,
        keys: Iterable[Any] | None = None,
        key_range: tuple[Any, Any] | None = None,
        key_groups: tuple[int, int] | None = None,
        subtasks: Iterable[int] | None = None,
        flatten: bool = True,
        infer: bool = False,
        allow_pickle: bool = False,
        batch_rows: int = 65_536,
    ) -> Iterator[pa.RecordBatch]:
        """Read a state in batches of one schema, so that it may be larger than memory; at least one batch.

        Args:
            uid: The operator's uid or name.
            state: The state's name; the engine's prefixes of user functions' states may be left out.
            keys: Only these keys: only the files that may hold them are fetched, only their rows are read.
            key_range: Only keys from the first to, without, the second; None for no bound. Both of the keys' own
                type; numbers compare as numbers, whatever their types, in tuples too. Keys of another type are not
                in the range.
            key_groups: Only these key groups, first and last.
            subtasks: Only what these subtasks stored.
            flatten: Whether a key or value that is a tuple or record has a column per field.
            infer: Whether to look at values for their type even if one was declared.
            allow_pickle: Whether to build pickled objects, which runs code that the checkpoint names. Dataclasses,
                named tuples, enums and sets become columns then; without, they are pickles in a binary column whose
                metadata ``headrace.encoding`` says so.
            batch_rows: How many rows a batch has at most.

        Shape: `headrace.state.open.snapshot_tables` says which columns; ordered by subtask, key group, window and key.

        Raises:
            CheckpointMismatchError: If there is no such operator or state.
            CheckpointCorruptError: If a file is damaged.
            ConfigurationError: If ``key_groups`` or ``batch_rows`` is no such thing.
            TypeMismatchError: If a key asked for can be no key, or a value is not of its declared type.
        """
        if batch_rows < 1:
            message = f"a batch has one row or more; got batch_rows={batch_rows!r}"
            raise ConfigurationError(message)
        operator, stored = self._state(uid, state)
        selection = _selection(operator, stored, keys, key_range, key_groups, subtasks)
        if stored.is_columnar:
            if selection.looks_at_keys:
                message = f"columnar state {stored.name!r} is not read by key; filter its columns instead"
                raise ConfigurationError(message)
            yield from columnar_tables(self._reader, stored, selection)
            return
        reader: Any = _BuildingReader(self._reader) if allow_pickle else self._reader
        unpickle = unpickle_value if allow_pickle else open_pickle
        columns = observed_columns(reader, stored, selection, unpickle, flatten=flatten, infer=infer)
        is_empty = True
        for batch in columns.batches(reader.rows(stored, selection, unpickle), batch_rows):
            is_empty = False
            yield batch
        if is_empty:
            yield columns.batch([])

    def timers(self, uid: str) -> pa.Table:
        """Return the timers of an operator: ``key``, ``time``, ``domain``, of windows their bounds too."""
        names = [name for name in states_of(self._operator(uid)) if name in TIMERS]
        tables = [self.read(uid, name) for name in names]
        if not tables:
            return pa.table({"key": pa.nulls(0), "time": pa.array([], pa.int64()), "domain": pa.array([], pa.string())})
        return pa.concat_tables(tables, promote_options="permissive")

    def windows(self, uid: str, *, allow_pickle: bool = False) -> pa.Table:
        """Give the windows that an operator has state of: ``state``, ``window_start``, ``window_end``, ``num_rows``."""
        counts: dict[tuple[str, int, int], int] = {}
        for name, state in states_of(self._operator(uid)).items():
            if not state.windowed or name in TIMERS:
                continue
            if state.is_columnar:
                bounds = (
                    pair
                    for batch in columnar_tables(self._reader, state, EVERYTHING)
                    for pair in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
                )
            else:
                rows = self._rows_of(state, allow_pickle)
                bounds = (row.namespace or (None, None) for row in rows)
            for start, end in bounds:
                if start is not None and end is not None:
                    counts[name, start, end] = counts.get((name, start, end), 0) + 1
        found = sorted(counts.items(), key=lambda item: item[0])
        return pa.table(
            {
                "state": pa.array([name for (name, _, _), _ in found], pa.string()),
                "window_start": pa.array([start for (_, start, _), _ in found], pa.int64()),
                "window_end": pa.array([end for (_, _, end), _ in found], pa.int64()),
                "num_rows": pa.array([count for _, count in found], pa.int64()),
            }
        )

    def source_positions(self) -> pa.Table:
        """Return the splits that readers had: ``operator``, ``subtask``, ``split_id``, ``position`` and ``payload`` as
        JSON.

        What split enumerators still had to hand out is in `enumerators`.
        """
        rows = []
        for operator, subtask, value in self._elements(SPLITS):
            split = value.get("split", {}) if isinstance(value, dict) else {}
            texts = (json_text(split.get(part), repr) for part in ("position", "payload"))
            rows.append((operator, subtask, str(split.get("split_id")), *texts))
        names = ("operator", "subtask", "split_id", "position", "payload")
        return _text_table(names, rows)

    def enumerators(self) -> dict[str, Any]:
        """Return what the split enumerators of sources had to hand out, JSON values by the source's uid."""
        return {uid: part for uid, part in self._manifest.enumerators.items() if uid not in RUN_MARKS}

    def committables(self) -> pa.Table:
        """Return what sinks had prepared and not committed: ``operator``, ``subtask``, ``checkpoint_id``,
        ``committable``.
        """
        rows = []
        for operator, subtask, value in self._elements(COMMITTABLES):
            checkpoint_id, committable = value if isinstance(value, tuple) and len(value) == 2 else (None, value)
            rows.append((operator, subtask, checkpoint_id, json_text(committable, repr)))
        return _text_table(("operator", "subtask", "checkpoint_id", "committable"), rows)

    def _elements(self, name: str) -> Iterator[tuple[str, int, Any]]:
        for operator in self._manifest.operators:
            state = states_of(operator).get(name)
            if state is not None and state.kind == "operator-list":
                for row in self._reader.rows(state, EVERYTHING, open_pickle):
                    yield operator.uid, row.subtask, row.value

    # ------------------------------------------------------------------------------------------------------- verifying
    def verify(self) -> list[FileProblem]:
        """Read every file and compare size and SHA-256; gives those that are wrong."""
        problems = []
        for operator in self._manifest.operators:
            for snapshot in operator.subtasks:
                for file in snapshot.files:
                    reason = self._problem_of(file)
                    if reason is not None:
                        problems.append(FileProblem(file.path, operator.uid, file.state, reason))
        return problems

    def _problem_of(self, file: StateFile) -> str | None:
        digest, size = hashlib.sha256(), 0
        try:
            with self._storage.fs.open_input(join_confined(self._storage.root, file.path)) as source:
                while piece := source.read(_PIECE_BYTES):
                    digest.update(piece)
                    size += len(piece)
        except NotFoundError:
            return "missing"
        if size != file.size:
            return f"has {size} bytes instead of {file.size}"
        return None if digest.hexdigest() == file.sha256 else "does not have the content it was written with"

    def diff(self, other: Snapshot, *, allow_pickle: bool = False) -> pa.Table:
        """Compare two snapshots: per operator and state, rows only here, only there, different and the same.

        States are matched by uid and name; their files, parallelism and backend do not matter. Of columnar state only
        whole rows are compared. States of different kinds have no row in common.

        Args:
            other: The other one.
            allow_pickle: Whether to build pickled objects; as of `read_batches`.
        """
        mine, theirs = self._all_states(), other._all_states()
        rows = []
        for place in [*mine, *(place for place in theirs if place not in mine)]:
            one, two = mine.get(place), theirs.get(place)
            here, there = self._contents(one, allow_pickle), other._contents(two, allow_pickle)
            if one is not None and two is not None and one.kind != two.kind:
                counts = (sum(1 for _ in here), sum(1 for _ in there), 0, 0)
            else:
                counts = _compared(here, there)
            rows.append((*place, *counts))
        return _text_table(("operator", "state", "only_here", "only_there", "different", "same"), rows)

    def _all_states(self) -> dict[tuple[str, str], StoredState]:
        return {
            (operator.uid, label): state
            for operator in self._manifest.operators
            for label, state in states_of(operator).items()
        }

    def _contents(self, state: StoredState | None, allow_pickle: bool) -> Iterator[tuple[Any, Any]]:
        """The rows of a state as (place, value), in ascending order of the places."""
        if state is None:
            return
        if state.is_columnar:
            found = sorted(
                repr(row)
                for batch in columnar_tables(self._reader, state, EVERYTHING)
                for row in batch.drop_columns(["subtask"]).to_pylist()
            )
            yield from (((row, index), row) for index, row in enumerate(found))
            return
        rows = self._reader.rows(state, EVERYTHING, unpickle_value if allow_pickle else open_pickle)
        if not state.is_keyed and not state.is_broadcast:
            yield from (((row, index), row) for index, row in enumerate(sorted(repr(row.value) for row in rows)))
            return
        # What was not unpickled has no order that both backends know, but for its key group.
        for _, group in groupby(rows, key=attrgetter("key_group")):
            yield from sorted(((_place_of(row), (row.value, row.updated_ms)) for row in group), key=itemgetter(0))

    def _repr_html_(self) -> str:
        """Its operators, as a notebook shows them."""
        from .notebook_output import html_rows

        note = (
            f"checkpoint {self.checkpoint_id} of {self.job_name!r}, {self.timestamp:%Y-%m-%d %H:%M:%S} UTC: {self.path}"
        )
        return html_rows([asdict(operator) for operator in self.operators()], masked(note))

    def __repr__(self) -> str:
        return f"Snapshot({self.path}, checkpoint {self.checkpoint_id} of job {self.job_name!r})"


def _declared_text(schema: Any) -> str | None:
    return None if schema is None else schema_text(schema)


def _selection(
    operator: OperatorState,
    state: StoredState,
    keys: Iterable[Any] | None,
    key_range: tuple[Any, Any] | None,
    key_groups: tuple[int, int] | None,
    subtasks: Iterable[int] | None,
) -> Selection:
    if key_groups is not None and (len(key_groups) != 2 or key_groups[0] > key_groups[1]):
        message = f"key groups are given as the first and the last one; got {key_groups!r}"
        raise ConfigurationError(message, operator=operator.uid, state=state.name)
    wanted: dict[bytes, int] | None = None
    if keys is not None:
        asked = list(keys)
        groups = key_groups_of(hash_keys(asked), operator.max_parallelism).tolist() if asked else []
        wanted = {encoded_key(key): group for key, group in zip(asked, groups, strict=True)}
    low, high = (None if bound is None else encoded_key(bound) for bound in key_range or (None, None))
    numbers = tuple(None if bound is None else number_of(bound) for bound in (low, high))
    is_numeric = numbers != (None, None)
    if low is not None and high is not None and (None in numbers if is_numeric else low[:1] != high[:1]):
        message = f"the bounds of a range of keys must be of one type; got {key_range!r}"
        raise TypeMismatchError(message, operator=operator.uid, state=state.name)
    return Selection(
        wanted,
        low,
        high,
        (numbers[0], numbers[1]) if is_numeric else None,
        KeyGroupRange(0, operator.max_parallelism - 1) if key_groups is None else KeyGroupRange(*key_groups),
        None if subtasks is None else frozenset(subtasks),
    )


def _text_table(names: Sequence[str], rows: list[Any]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for index, name in enumerate(names):
        values = [row[index] for row in rows]
        is_number = all(value is None or isinstance(value, int) for value in values)
        if name in ("operator", "state", "split_id", "position", "payload", "committable"):
            is_number = False
        columns[name] = pa.array(values, pa.int64() if is_number else pa.string())
    return pa.table(columns)


def _place_of(row: Row) -> tuple[Any, ...]:
    namespace = (0, 0, 0) if row.namespace is None else (1, *row.namespace)
    inner = b"" if row.inner is None else encoded_key(row.inner)
    return (row.key_group, namespace, encoded_key(row.key), inner)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same: NaN is, although it equals nothing."""
    is_equal = not (spreads(one) or spreads(other)) and bool(one == other)
    return is_equal or pickle_value(one) == pickle_value(other)


def _compared(mine: Iterator[tuple[Any, Any]], theirs: Iterator[tuple[Any, Any]]) -> tuple[int, int, int, int]:
    only_here = only_there = different = same = 0
    left, right = next(mine, None), next(theirs, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            only_here += 1
            left = next(mine, None)
        elif left is None or right[0] < left[0]:
            only_there += 1
            right = next(theirs, None)
        else:
            is_same = _is_same(left[1], right[1])
            same += is_same
            different += not is_same
            left, right = next(mine, None), next(theirs, None)
    return only_here, only_there, different, same


class _BuildingReader:
    """A reader whose rows hold what objects consist of: dataclasses and named tuples as dicts, sets as lists."""

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader

    def rows(self, state: StoredState, selection: Selection, unpickle: Any) -> Iterator[Any]:
        for row in self._reader.rows(state, selection, unpickle):
            yield row._replace(key=plain_value(row.key), inner=plain_value(row.inner), value=plain_value(row.value))
