"""Files in memory as a `headrace.state.files.filesystem.FileSystem`, with faults: for tests and the simulator."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import BinaryIO

from ..errors import AlreadyExistsError, NotFoundError
from .local import at_most

__all__ = ["Fault", "MemoryFileSystem"]


Fault = Callable[[str, str], None]
"""Called as ``(operation, path)``; raises to fail the operation."""

_STORES: dict[str, MemoryFileSystem] = {}
_STORES_LOCK = threading.RLock()
"""Reentrant: a store may be forgotten by the garbage collector, at any moment of the thread that makes another."""


class MemoryFileSystem:
    """Files in this process's memory, for tests and the simulator: ``memory://<store>/<path>``.

    Attributes:
        files: Path to content, everything there is.
        fault: Called before every operation as ``(operation, path)`` and after every one that changed something as
            ``(operation + ".done", path)``; what it raises comes out of the operation. Failing afterwards models an
            answer that got lost. Operations: ``read write create rename delete list stat open``. None for no faults.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fault: Fault | None = None
        self._lock = threading.RLock()

    @classmethod
    def named(cls, name: str) -> MemoryFileSystem:
        """Return the store of that name in this process, made on first use."""
        with _STORES_LOCK:
            store = _STORES.get(name)
            if store is None:
                store = _STORES[name] = cls()
            return store

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop a store with its files; who still holds it keeps it alone."""
        with _STORES_LOCK:
            _STORES.pop(name, None)

    def read_bytes(self, path: str, max_bytes: int | None = None) -> bytes:
        self._meet_fault("read", path)
        data = self._content("read", path)
        return data if max_bytes is None else at_most(io.BytesIO(data), max_bytes, path)

    def write_bytes(self, path: str, data: bytes) -> None:
        self._meet_fault("write", path)
        with self._lock:
            self.files[path] = bytes(data)
        self._meet_fault("write.done", path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._meet_fault("create", path)
        with self._lock:
            if path in self.files:
                message = "could not create a file: it exists"
                raise AlreadyExistsError(message, operation="create", path=path)
            self.files[path] = bytes(data)
        self._meet_fault("create.done", path)

    def require_exclusive_create(self, directory: str) -> None:
        """Do nothing: it is exclusive."""

    def rename(self, source: str, target: str) -> None:
        self._meet_fault("rename", source)
        with self._lock:
            self.files[target] = self._content("rename", source)
            if source != target:
                del self.files[source]
        self._meet_fault("rename.done", source)

    def delete(self, path: str) -> None:
        self._meet_fault("delete", path)
        with self._lock:
            self.files.pop(path, None)
        self._meet_fault("delete.done", path)

    def delete_directory(self, path: str) -> None:
        self._meet_fault("delete", path)
        with self._lock:
            for name, _ in self._below(path):
                del self.files[name]
        self._meet_fault("delete.done", path)

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        self._meet_fault("list", prefix)
        with self._lock:
            return self._below(prefix)

    def exists(self, path: str) -> bool:
        self._meet_fault("stat", path)
        return path in self.files

    def size(self, path: str) -> int:
        self._meet_fault("stat", path)
        return len(self._content("stat", path))

    def open_input(self, path: str) -> BinaryIO:
        self._meet_fault("open", path)
        return io.BytesIO(self._content("open", path))

    def open_output(self, path: str) -> BinaryIO:
        self._meet_fault("open", path)
        return _MemoryFile(self, path)

    def _below(self, prefix: str) -> list[tuple[str, int]]:
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        return sorted((path, len(data)) for path, data in self.files.items() if path.startswith(start))

    def _content(self, operation: str, path: str) -> bytes:
        data = self.files.get(path)
        if data is None:
            message = f"could not {operation} a file that does not exist"
            raise NotFoundError(message, operation=operation, path=path)
        return data

    def _meet_fault(self, operation: str, path: str) -> None:
        if self.fault is not None:
            self.fault(operation, path)

    def __repr__(self) -> str:
        return f"MemoryFileSystem({len(self.files)} files)"


class _MemoryFile(io.BytesIO):
    """Becomes a file of its store when it is closed; one that its process leaves open when it dies never does."""

    def __init__(self, store: MemoryFileSystem, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.write_bytes(self._path, data)

    def __del__(self) -> None:
        """Close nothing: a simulated process that was killed must not write when its memory is collected."""
