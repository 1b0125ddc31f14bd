"""Backends that are closed when their test has ended."""

from __future__ import annotations

import pytest
from rocksdb_kit import ALL, OPERATOR

from headrace.state.backends.rocksdb.backend import RocksDBKeyedStateBackend
from headrace.state.backends.rocksdb.database import SlotMemory


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "local")


@pytest.fixture
def make(folder):
    made = []

    def make_backend(owned=ALL, *, entries=100_000, memory=16 << 20):
        backend = RocksDBKeyedStateBackend(
            OPERATOR, 3, owned, 128, lambda: 0, SlotMemory.of_slot("slot", memory), folder, entries
        )
        made.append(backend)
        return backend

    yield make_backend
    for backend in made:
        backend.close()
