"""Files that a client library reads in ranges and writes in pieces, as files of Python.

A client has errors of its own; what turns them into those of `headrace.state.errors` is handed in.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["ClientOutput", "RangedInput"]


class RangedInput(io.RawIOBase, ABC):
    """A file that is read; subclasses read ranges of it.

    Args:
        size: Its bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._position = 0

    @abstractmethod
    def read_range(self, start: int, count: int) -> Any:
        """Return so many bytes, which are there, from a position on."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._position)
        if count <= 0:
            return 0
        data = memoryview(self.read_range(self._position, count))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class ClientOutput(io.RawIOBase):
    """A file that is written; whole and durable once it is closed.

    Args:
        inner: The client's object, with ``write`` and ``close``.
        path: For errors.
        errors: Turns the client's errors into ours, for an operation on a path.
    """

    def __init__(self, inner: Any, path: str, errors: Callable[[str, str], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._inner = inner
        self._path = path
        self._errors = errors
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._errors("write", self._path):
            self._inner.write(view)
        self._position += len(view)
        return len(view)

    def close(self) -> None:
        if self.closed:
            return
        try:
            with self._errors("write", self._path):
                self._inner.close()
        finally:
            super().close()
