"""State backends for tests, by name: made, snapshotted and restored alike, on a manual clock.

A backend joins the contract's tests by an entry in `MAKERS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.state.backends.choice import make_keyed_backend
from headrace.state.backends.heap.backend import HeapKeyedStateBackend
from headrace.state.backends.rocksdb.backend import RocksDBKeyedStateBackend
from headrace.state.backends.rocksdb.database import SlotMemory
from headrace.state.checkpoints.snapshot import RestoredPart, SnapshotPart
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import KeyGroupRange, key_group_range, key_groups_of, subtask_of

MAX_PARALLELISM = 16
START_MS = 1_000_000
OPERATOR = OperatorId("counter")

Maker = Callable[[OperatorId, KeyGroupRange, int, Callable[[], int], Path], Any]


MAKERS: dict[str, Maker] = {
    "heap": lambda operator, owned, max_parallelism, now_ms, _folder: HeapKeyedStateBackend(
        operator, owned, max_parallelism, now_ms
    ),
    # Of two cached entries nearly every access goes through the database.
    "rocksdb-uncached": lambda operator, owned, max_parallelism, now_ms, folder: RocksDBKeyedStateBackend(
        operator,
        0,
        owned,
        max_parallelism,
        now_ms,
        SlotMemory.of_slot("uncached", 16 << 20),
        str(folder / "local"),
        max_cached_entries=2,
    ),
    "rocksdb": lambda operator, owned, max_parallelism, now_ms, folder: make_keyed_backend(
        "rocksdb",
        operator,
        0,
        owned,
        max_parallelism,
        now_ms,
        managed_memory_bytes=16 << 20,
        local_directory=str(folder / "local"),
    ),
}


def owner(key: Any, parallelism: int) -> int:
    """The subtask a key belongs to."""
    groups = key_groups_of(hash_keys([key]), MAX_PARALLELISM)
    return int(subtask_of(groups, MAX_PARALLELISM, parallelism)[0])


class BackendKit:
    """Makes backends of one kind and closes them at the end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.now_ms = START_MS
        self._folder = folder
        self._made: list[Any] = []
        self._num_closed = 0

    def make(self, subtask: int = 0, parallelism: int = 1, max_parallelism: int = MAX_PARALLELISM) -> Any:
        """A fresh backend of one subtask."""
        owned = key_group_range(max_parallelism, parallelism, subtask)
        folder = self._folder / str(self._num_closed + len(self._made))
        backend = MAKERS[self.name](OPERATOR, owned, max_parallelism, lambda: self.now_ms, folder)
        self._made.append(backend)
        return backend

    def written(self, parts: list[SnapshotPart], source_subtask: int = 0) -> list[RestoredPart]:
        """What a restore would read of a snapshot; the metadata goes through JSON, as it does through the manifest."""
        return [
            RestoredPart(part.state, part.kind, json.loads(json.dumps(part.metadata)), part.write(), source_subtask)
            for part in parts
        ]

    def restored(self, parts: list[RestoredPart], subtask: int = 0, parallelism: int = 1) -> Any:
        """A backend that starts from these."""
        backend = self.make(subtask, parallelism)
        backend.restore(parts)
        return backend

    def again(self, backend: KeyedStateBackend) -> Any:
        """A fresh backend from a snapshot of one that owns all keys."""
        return self.restored(self.written(backend.snapshot()))

    def num_units(self, backend: Any, descriptor: StateDescriptor, *, windowed: bool = False) -> int:
        """How many values, list elements or map entries are really held, expired or not."""
        table = backend.table(descriptor, windowed=windowed)
        held = [stored for namespace in table.namespaces() for stored in table.namespace(namespace).values()]
        return sum(len(list(descriptor.layout.parts(stored))) for stored in held)

    def reset(self) -> None:
        """Begin a further example of a property: close what was made, set the clock back."""
        self.close()
        self.now_ms = START_MS

    def close(self) -> None:
        """Close what was made; twice, which must do nothing."""
        made, self._made = self._made, []
        self._num_closed += len(made)
        for backend in [*made, *made]:
            backend.close()
