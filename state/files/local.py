"""The local disk as a `headrace.state.files.filesystem.FileSystem`: durable files, whole under their names."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import AlreadyExistsError, DamagedFileError, NotFoundError, StorageError

__all__ = ["LocalFileSystem", "at_most", "make_directories", "storage_errors"]


class LocalFileSystem:
    """The local disk, or anything mounted there (NFS, a shared volume).

    Files are written under a temporary name (``.<name>.<random>.tmp``) in the target's directory, flushed to the disk
    and then linked or renamed; the directory is flushed last. A crash can leave temporary files, never half a file.
    ``create_exclusive`` uses a hard link, which is atomic on NFS too. Where hard links are not supported it falls back
    to ``O_EXCL``: still one winner, but a crash in the middle leaves a part of the file, which readers must recognise
    by its hash.

    Args:
        is_private: Whether what is made can be read and written by its owner alone, and not also read by others.
    """

    def __init__(self, *, is_private: bool = False) -> None:
        self._file_mode = 0o600 if is_private else 0o644
        self._directory_mode = 0o700 if is_private else 0o777

    def read_bytes(self, path: str, max_bytes: int | None = None) -> bytes:
        with storage_errors("read", path), open(path, "rb") as file:
            return at_most(file, max_bytes, path)

    def write_bytes(self, path: str, data: bytes) -> None:
        with storage_errors("write", path):
            with self._temporary(path, data) as temporary:
                os.replace(temporary, path)
            _flush_directory(os.path.dirname(path))

    def create_exclusive(self, path: str, data: bytes) -> None:
        with storage_errors("create", path):
            with self._temporary(path, data) as temporary:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    if not _is_same_file(temporary, path):  # else an NFS server did it, but its answer got lost
                        raise
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                        raise
                    _write_new(path, data, self._file_mode)
            _flush_directory(os.path.dirname(path))

    def require_exclusive_create(self, directory: str) -> None:
        """Do nothing: it is exclusive."""

    def rename(self, source: str, target: str) -> None:
        with storage_errors("rename", source):
            make_directories(os.path.dirname(target), self._directory_mode)
            os.replace(source, target)
            _flush_directory(os.path.dirname(target))
            if os.path.dirname(source) != os.path.dirname(target):
                _flush_directory(os.path.dirname(source))

    def delete(self, path: str) -> None:
        with storage_errors("delete", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    def delete_directory(self, path: str) -> None:
        with storage_errors("delete", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(path)

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []

        def fail(error: OSError) -> None:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise error

        with storage_errors("list", prefix):
            for directory, _, names in os.walk(prefix, onerror=fail):
                found += _with_sizes(directory, names)
        return sorted(found)

    def exists(self, path: str) -> bool:
        with storage_errors("stat", path):
            return os.path.isfile(path)

    def size(self, path: str) -> int:
        with storage_errors("stat", path):
            return os.stat(path).st_size

    def open_input(self, path: str) -> BinaryIO:
        with storage_errors("open", path):
            return open(path, "rb")

    def open_output(self, path: str) -> BinaryIO:
        with storage_errors("open", path):
            make_directories(os.path.dirname(path), self._directory_mode)
            return _DurableFile(path, self._file_mode)

    @contextlib.contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        """A flushed file of the content next to ``path``; gone afterwards, unless it was renamed."""
        directory, name = os.path.split(path)
        make_directories(directory, self._directory_mode)
        temporary = os.path.join(directory, f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            _write_new(temporary, data, self._file_mode)
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def __repr__(self) -> str:
        return "LocalFileSystem()"


@contextlib.contextmanager
def storage_errors(operation: str, path: str) -> Iterator[None]:
    """Turn the operating system's errors into `StorageError`, `NotFoundError` and `AlreadyExistsError`."""
    try:
        yield
    except NotADirectoryError as error:
        message = f"could not {operation} a file: {error.filename!r} is not a directory"
        raise NotFoundError(message, operation=operation, path=path) from error
    except FileNotFoundError as error:
        message = f"could not {operation} a file that does not exist"
        raise NotFoundError(message, operation=operation, path=path) from error
    except FileExistsError as error:
        message = f"could not {operation} a file: it exists"
        raise AlreadyExistsError(message, operation=operation, path=path) from error
    except OSError as error:
        message = f"could not {operation} a file: {error.strerror or error}"
        kind = DamagedFileError if operation in _READING and error.errno in _DAMAGE else StorageError
        raise kind(message, operation=operation, path=path) from error


_READING = ("read", "open", "stat")
_DAMAGE = frozenset((errno.EIO, errno.EISDIR, errno.ELOOP, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.ENXIO))
"""What says that a file is damaged, or none; anything else may pass."""


def at_most(file: BinaryIO, max_bytes: int | None, path: str) -> bytes:
    """Return all of an open file.

    Raises:
        DamagedFileError: If it has more than ``max_bytes``.
    """
    if max_bytes is None:
        return file.read()
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        message = f"could not read a file: it has more than the {max_bytes:,} bytes it may have"
        raise DamagedFileError(message, operation="read", path=path)
    return data


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:  # deleted meanwhile, so it was another one
        return False


def _with_sizes(directory: str, names: list[str]) -> list[tuple[str, int]]:
    """The files of a directory with their sizes, as it was at one moment.

    If one is deleted before its size is known, the names are read again: it may have gone only because another one had
    come, and a process that saw neither would take an older one for the newest.
    """
    while True:
        found: list[tuple[str, int]] = []
        try:
            for name in names:
                path = os.path.join(directory, name)
                try:
                    found.append((path, os.stat(path).st_size))
                except FileNotFoundError:
                    if not os.path.islink(path):  # a link to nothing is no file
                        raise
            return found
        except FileNotFoundError:
            try:
                with os.scandir(directory) as entries:
                    names = [entry.name for entry in entries if not entry.is_dir()]
            except (FileNotFoundError, NotADirectoryError):
                return []


def _write_new(path: str, data: bytes, mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(descriptor)


def _flush_directory(path: str) -> None:
    """Make names in a directory durable. Some file systems refuse; then names are durable with the files."""
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def make_directories(path: str, mode: int = 0o777) -> None:
    """Make a directory and its parents, all of them with this mode (`os.makedirs` gives parents any that the umask does
    not forbid); new names are flushed, or a crash could take them away with all their files.

    Raises:
        OSError: If it cannot be made, or a file is in its place.
    """
    if not path or os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError as error:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "a file is where a directory must be", path) from error
    _flush_directory(parent)


class _DurableFile(io.BufferedWriter):
    """A file whose ``close`` flushes content and name to the disk. It is never somebody's file that a link names."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(io.FileIO(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)))
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        with storage_errors("write", self._path):
            try:
                self.flush()
                os.fsync(self.fileno())
            finally:
                super().close()
            _flush_directory(os.path.dirname(self._path))
