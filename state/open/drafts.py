"""What a snapshot is to hold, operator by operator, and how that becomes the files of a checkpoint.

A draft says what is new in an operator and what of the edited snapshot is dropped. Files of states that were not
touched are copied as they are, hash by hash; others are written by the same code that writes a job's checkpoints. Of a
state database single states cannot be copied: it is opened, changed and written anew as soon as one of them changes.

Invariant: a subtask's files hold its own key groups, and nothing that was dropped.

Source: Flink's State Processor API (``StateBootstrapTransformation``, ``OperatorStateSpec``); FLIP-43.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..backends.heap.tables import HeapTable
from ..checkpoints.manifest import OperatorState
from ..checkpoints.snapshot import OPERATOR_KINDS, FileKind, OperatorSnapshot, SnapshotPart, StateFile
from ..checkpoints.state_files import FORMAT_VERSION, write_state_file
from ..checkpoints.storage import CheckpointStorage
from ..errors import CheckpointCorruptError
from ..files.filesystem import join_confined
from ..files.local_directories import LocalDirectory
from ..identifiers import ExecutionAttemptId, OperatorId, VertexId
from ..keyed.contract import Namespace
from ..keys.key_groups import key_group_range, subtask_of
from ..values.encoding import encode_values
from .stored_states import StoredState, states_of

__all__ = ["DraftFiles", "OperatorDraft", "StateDraft"]

_PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class StateDraft:
    """A state that is to be written.

    Attributes:
        name: Its name.
        kind: Of its files; keyed state is ``FileKind.KEYED``, whatever the backend.
        form: The facts to store with it.
        held: Of keyed state: what each (namespace, key) holds. Of broadcast state: the entries.
        key_groups: Of keyed state: of each of them, in order.
        elements: Of lists: by subtask.
    """

    name: str
    kind: FileKind
    form: dict[str, Any]
    held: dict[Any, Any] = field(default_factory=dict)
    key_groups: Any = None
    elements: dict[int, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class OperatorDraft:
    """An operator as it is to be.

    Attributes:
        uid: Its uid in the new snapshot.
        source: What the snapshot that is edited has of it; None for a new operator.
    """

    uid: OperatorId
    name: str
    parallelism: int
    max_parallelism: int
    source: OperatorState | None = None
    # States by whether they are keyed, and name: a keyed one and another may share a name.
    dropped: set[tuple[bool, str]] = field(default_factory=set)
    states: dict[tuple[bool, str], StateDraft] = field(default_factory=dict)

    @property
    def recorded(self) -> dict[str, StoredState]:
        """All states that the edited snapshot has of it, by their labels."""
        return {} if self.source is None else states_of(self.source)

    @property
    def known(self) -> dict[str, StoredState]:
        """The recorded states that are not dropped."""
        recorded = self.recorded.items()
        return {label: state for label, state in recorded if (state.is_keyed, state.name) not in self.dropped}

    @property
    def drops_keyed(self) -> bool:
        """Whether a recorded keyed state is dropped."""
        return any(state.is_keyed and (True, state.name) in self.dropped for state in self.recorded.values())


class DraftFiles:
    """Writes the files of drafts.

    Args:
        target: Where the snapshot goes.
        source: Where the edited snapshot is; None for a fresh one.
        checkpoint_id: The snapshot's.
        writes: How often it has been written anew, this time included: part of the names of its files.
        backend: ``heap`` or ``rocksdb``: of operators without keyed state.
        directory: For state databases under construction; the caller closes it.
    """

    def __init__(
        self,
        target: CheckpointStorage,
        source: CheckpointStorage | None,
        checkpoint_id: int,
        writes: int,
        backend: str,
        directory: LocalDirectory,
    ) -> None:
        self._target = target
        self._source = source
        self._checkpoint_id = checkpoint_id
        self._writes = writes
        self._backend = backend
        self._directory = directory

    def write(self, draft: OperatorDraft) -> OperatorState:
        """Write what all subtasks of an operator hold.

        Raises:
            CheckpointCorruptError: If a file that is carried over is damaged.
            StorageError: If a file system fails.
        """
        sources = {} if draft.source is None else {snapshot.subtask: snapshot for snapshot in draft.source.subtasks}
        keyed = [state for state in draft.states.values() if state.kind is FileKind.KEYED]
        kinds = {state.backend for state in draft.recorded.values() if state.is_keyed}
        backend = kinds.pop() if len(kinds) == 1 else self._backend
        is_rewritten = backend == "rocksdb" and (bool(keyed) or draft.drops_keyed)
        snapshots = []
        for subtask in range(draft.parallelism):
            attempt = ExecutionAttemptId(0, self._writes, VertexId(draft.uid), subtask)
            files: list[StateFile] = []
            held = sources[subtask].files if subtask in sources else ()
            for file in held:
                if file.kind is FileKind.DATABASE:
                    is_kept = not is_rewritten
                else:
                    is_kept = (file.kind not in OPERATOR_KINDS, file.state) not in draft.dropped
                if is_kept:
                    files.append(self._copied(file))
            parts: list[SnapshotPart] = list(_operator_parts(draft, subtask))
            if is_rewritten:
                databases = [file for file in held if file.kind is FileKind.DATABASE]
                local = self._directory.make_child(f"subtask-{subtask}")
                files += self._database_files(draft, attempt, keyed, databases, local)
                local.close()
            else:
                parts += _heap_parts(draft, subtask, keyed)
            files += self._written(draft, attempt, parts)
            if files:
                snapshots.append(OperatorSnapshot(draft.uid, subtask, tuple(files)))
        return OperatorState(draft.uid, draft.name, draft.parallelism, draft.max_parallelism, tuple(snapshots))

    def _written(
        self, draft: OperatorDraft, attempt: ExecutionAttemptId, parts: Iterable[SnapshotPart]
    ) -> list[StateFile]:
        return [self._target.data_files.write_part(self._checkpoint_id, attempt, draft.uid, part) for part in parts]

    def _copied(self, file: StateFile) -> StateFile:
        """Copy a file of the edited snapshot, in pieces, and verify it on the way."""
        assert self._source is not None
        storage, target = self._source, self._target
        digest, size = hashlib.sha256(), 0
        with (
            storage.fs.open_input(join_confined(storage.root, file.path)) as source,
            target.fs.open_output(join_confined(target.root, file.path)) as output,
        ):
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                output.write(piece)
        if (size, digest.hexdigest()) != (file.size, file.sha256):
            message = f"a file of a checkpoint does not have the content it was written with: {file.path}"
            raise CheckpointCorruptError(message, path=storage.uri, state=file.state)
        return file

    def _database_files(
        self,
        draft: OperatorDraft,
        attempt: ExecutionAttemptId,
        keyed: list[StateDraft],
        databases: list[StateFile],
        directory: LocalDirectory,
    ) -> list[StateFile]:
        """Write one subtask's state database: what it had, without what is dropped, and what is new."""
        from ..backends.rocksdb.backend import RocksDBKeyedStateBackend
        from ..backends.rocksdb.database import SlotMemory

        subtask = attempt.subtask
        owned = key_group_range(draft.max_parallelism, draft.parallelism, subtask)
        memory = SlotMemory(64 << 20)
        backend = RocksDBKeyedStateBackend(
            draft.uid, subtask, owned, draft.max_parallelism, lambda: 0, memory, directory.path
        )
        try:
            if databases:
                assert self._source is not None
                fetched = directory.make_child("fetched")
                backend.restore([self._source.data_files.restore_part(file, subtask, fetched) for file in databases])
            for is_keyed, name in draft.dropped:
                if is_keyed:
                    backend.drop_state(name)
            for state in keyed:
                table = backend.stored_table(state.name, state.form)
                for namespace, key, stored in _owned_by(state, draft, subtask):
                    table.namespace(namespace)[key] = stored
            return self._written(draft, attempt, backend.snapshot())
        finally:
            backend.close()


def _owned_by(state: StateDraft, draft: OperatorDraft, subtask: int) -> Iterator[tuple[Namespace, Any, Any]]:
    """What a subtask holds of a keyed state."""
    owners = subtask_of(np.asarray(state.key_groups, np.int32), draft.max_parallelism, draft.parallelism)
    for ((namespace, key), stored), owner in zip(state.held.items(), owners.tolist(), strict=True):
        if owner == subtask:
            yield namespace, key, stored


def _heap_parts(draft: OperatorDraft, subtask: int, keyed: list[StateDraft]) -> Iterator[SnapshotPart]:
    owned = key_group_range(draft.max_parallelism, draft.parallelism, subtask)
    for state in keyed:
        table = HeapTable(state.name, state.form)
        for namespace, key, stored in _owned_by(state, draft, subtask):
            table.namespace(namespace)[key] = stored
        facts = {
            "format_version": FORMAT_VERSION,
            "state": state.name,
            "kind": table.kind.value,
            "key_groups": [owned.start, owned.end],
            "max_parallelism": draft.max_parallelism,
        }
        part = table.snapshot(facts, draft.max_parallelism, lambda: 0)
        if part is not None:
            yield part


def _operator_parts(draft: OperatorDraft, subtask: int) -> Iterator[SnapshotPart]:
    for state in draft.states.values():
        facts = {"format_version": FORMAT_VERSION, "state": state.name, "kind": state.kind.value, **state.form}
        if state.kind is FileKind.BROADCAST:
            columns = {"key": list(state.held), "value": list(state.held.values())}
        elif state.kind in (FileKind.LIST, FileKind.UNION) and state.elements.get(subtask):
            columns = {"value": state.elements[subtask]}
        else:
            continue
        yield SnapshotPart(state.name, state.kind, facts, functools.partial(_operator_file, facts, columns))


def _operator_file(facts: dict[str, Any], columns: dict[str, list[Any]]) -> bytes:
    encoded = {name: encode_values(values) for name, values in columns.items()}
    encodings = {f"{name}_encoding": encoding for name, (_, encoding) in encoded.items()}
    return write_state_file(pa.table({name: array for name, (array, _) in encoded.items()}), {**facts, **encodings})
