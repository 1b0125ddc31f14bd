"""Directories on the local disk that are gone when their owner is, however it ends.

A state database needs a directory of its own for as long as its subtask runs. Next to each directory lies a lock file
that its owner holds locked (``flock``): the system unlocks it when the process ends, by ``kill -9`` too, and never
before. A process that makes a directory first *sweeps* its neighbours: one whose lock is free has no owner and is
removed. That holds over reused process ids, over containers that share a disk and over a reboot. So a killed process
leaves its directory behind only until the next one of the same place starts, or until `sweep_local_directories` is
called.

::

    <root>/<label>-<random>.lock     held locked by the owner
           <label>-<random>/         the directory

A directory is also removed when nothing refers to it any more and when the process ends in order.

Source: flock(2); Flink's ``TaskManager`` working directory (FLIP-198), which is cleaned up in the same situations.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import uuid
import weakref
from dataclasses import dataclass

from ..errors import StorageError
from .local import make_directories
from .permissions import why_not_own

__all__ = ["LocalDirectory", "LocalFile", "default_local_root", "sweep_local_directories"]

_LOCK = re.compile(r"[A-Za-z0-9_.-]+\.lock")
_own_locks: set[str] = set()
"""Names of the lock files that this process holds; they are unique."""


def default_local_root() -> str:
    """Return where local directories lie if nothing else is set: below the system's directory for temporary files."""
    return os.path.join(tempfile.gettempdir(), f"headrace-state-{os.getuid()}")


class LocalDirectory:
    """A directory that is removed when it is closed, when nothing refers to it and, by others, after a crash.

    Args:
        path: The directory, which exists.
        remove: Removes it.
    """

    def __init__(self, path: str, lock: tuple[str, int] | None, parent: LocalDirectory | None = None) -> None:
        self.path = path
        # Keeps the directory around this one.
        self._parent = parent
        self._finalizer = weakref.finalize(self, _remove, path, lock)

    @classmethod
    def make(cls, root: str | None, label: str) -> LocalDirectory:
        """Make a directory below ``root`` (by default `default_local_root`), after a sweep.

        Args:
            root: The directory of directories; made if it is not there.
            label: For people; becomes part of the name.

        Raises:
            StorageError: If the disk does not allow it, or others can write to the default root.
        """
        is_default = root is None
        root = default_local_root() if root is None else root
        name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', label)[:60]}-{uuid.uuid4().hex[:12]}"
        path, lock_path = os.path.join(root, name), os.path.join(root, f"{name}.lock")
        try:
            make_directories(os.path.abspath(root), 0o700)
            reason = why_not_own(root) if is_default else None  # anybody can guess its name, in a place open to all
            if reason is not None:
                message = f"the default directory for local state is not safe: {reason}"
                hint = "remove it, or set another directory for local state"
                raise StorageError(message, hint=hint, operation="create", path=root)
            sweep_local_directories(root)
            lock = _locked(lock_path)
            try:
                _own_locks.add(f"{name}.lock")
                os.mkdir(path, 0o700)
            except BaseException:
                _remove(path, (lock_path, lock))
                raise
        except OSError as error:
            message = f"could not make a directory for local state: {error.strerror or error}"
            raise StorageError(message, operation="create", path=path) from error
        return cls(path, (lock_path, lock))

    def make_child(self, name: str) -> LocalDirectory:
        """Make a directory inside, to be removed earlier than this one.

        Raises:
            StorageError: If the disk does not allow it.
        """
        path = os.path.join(self.path, name)
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            message = f"could not make a directory for local state: {error.strerror or error}"
            raise StorageError(message, operation="create", path=path) from error
        return LocalDirectory(path, None, self)

    def close(self) -> None:
        """Remove the directory with all that is in it. A second call does nothing."""
        self._finalizer()


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file in a local directory, which exists at least as long as this does."""

    path: str
    directory: LocalDirectory

    def read(self) -> bytes:
        """Return its content.

        Raises:
            StorageError: If it cannot be read, e.g. because its directory was closed.
        """
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError as error:
            message = f"could not read a file of local state: {error.strerror or error}"
            raise StorageError(message, operation="read", path=self.path) from error


def _locked(path: str) -> int:
    """Make a lock file and lock it; gives its descriptor, which is not inherited by programs that are started."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_file(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # a sweep was faster: it took the file away between making and locking


def _is_file(path: str, descriptor: int) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(path: str, lock: tuple[str, int] | None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        _own_locks.discard(os.path.basename(lock[0]))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock[0])
        os.close(lock[1])


def sweep_local_directories(root: str | None = None) -> list[str]:
    """Remove the directories whose owners are gone. Called before a new one is made, and where a process was killed.

    Args:
        root: As given to `LocalDirectory.make`.

    Returns:
        The paths removed.
    """
    removed: list[str] = []
    try:
        if root is None:
            root = default_local_root()
            if why_not_own(root) is not None:
                return removed  # nothing of ours was ever put there
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    for name in filter(_LOCK.fullmatch, names):
        if name in _own_locks:
            continue
        lock_path = os.path.join(root, name)
        path = lock_path.removesuffix(".lock")
        try:
            descriptor = os.open(lock_path, os.O_RDWR)
        except (FileNotFoundError, PermissionError):
            continue  # gone meanwhile, or somebody else's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue  # its owner lives
        except OSError:
            os.close(descriptor)
            raise
        if _is_file(lock_path, descriptor):
            _remove(path, (lock_path, descriptor))
            removed.append(path)
        else:
            os.close(descriptor)
    return removed
