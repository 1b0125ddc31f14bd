"""File systems: the few operations that checkpoints and transactional sinks are built from, over every kind of storage.

A `FileSystem` promises what its users rely on: a file that was written is whole and durable when the call returns, a
file written by ``write_bytes`` or ``create_exclusive`` never has its final name while it is half written, ``rename``
replaces atomically, and ``create_exclusive`` lets exactly one of several racing callers win. Where a kind of storage
cannot promise one of these, its class says so. Errors are `StorageError` with the operation and path; an error does
not say that nothing happened.

Paths are absolute within their file system, with ``/``; relative paths of requests and manifests go through
`join_confined` first.

Source: Flink's ``FileSystem`` and ``RecoverableWriter`` contracts; DESIGN 6.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

from headrace.state.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError

__all__ = [
    "ArrowFileSystem",
    "FileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "filesystem_for",
    "join_confined",
    "join_uri",
    "place_of",
]


class FileSystem(Protocol):
    """Where files live.

    Contract (*asserted* by the contract tests for local and memory; see `ArrowFileSystem` for what others lack):
        * Parent directories are made as needed and mean nothing: an empty one may or may not exist.
        * Missing files raise NotFoundError where a file is needed; deleting what is not there does nothing.
        * Every other failure is a StorageError whose context has ``operation`` and ``path``.
        * Safe to use from several threads.
    """

    def read_bytes(self, path: str) -> bytes:
        """The content of a file. Raises NotFoundError."""
        ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Make or replace a file, atomically and durably."""
        ...

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Make a file, atomically and durably, if there is none; exactly one of several racing calls succeeds.

        Raises:
            AlreadyExistsError: If the file is there.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, atomically and durably; a file at ``target`` is replaced. Raises NotFoundError."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        ...

    def delete_directory(self, path: str) -> None:
        """Delete a directory with everything in it, if it is there."""
        ...

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        """All files below the directory ``prefix``, at any depth: sorted pairs of path and size in bytes."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file (not a directory) at ``path``."""
        ...

    def size(self, path: str) -> int:
        """A file's size in bytes. Raises NotFoundError."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """Open a file to read; seekable. Raises NotFoundError."""
        ...

    def open_output(self, path: str) -> BinaryIO:
        """Make or replace a file by writing to it. Durable once closed; what is at ``path`` before is undefined."""
        ...


def join_confined(root: str, relative: str) -> str:
    """Join a path from a request or a manifest to its root.

    Args:
        root: Absolute path of the directory it must not leave.
        relative: With ``/``, not empty, without ``.``, ``..``, empty parts, backslashes and NUL.

    Raises:
        StorageError: If ``relative`` is anything else.
    """
    parts = relative.split("/")
    if not relative or any(part in ("", ".", "..") for part in parts) or "\\" in relative or "\0" in relative:
        message = "a path must be relative and stay below its root"
        raise StorageError(message, path=relative)
    return f"{root.rstrip('/')}/{relative}" if root else relative


def join_uri(uri: str, relative: str) -> str:
    """Append to the path of a URI, before its query (``s3://bucket/dir?region=...``), or to a plain path."""
    if "://" not in uri:
        return f"{uri.rstrip('/')}/{relative}"
    base, mark, query = uri.partition("?")
    return f"{base.rstrip('/')}/{relative}{mark}{query}"


def filesystem_for(uri: str) -> tuple[FileSystem, str]:
    """Find the file system of a URI and the path in it.

    Args:
        uri: A local path (relative ones are taken from the working directory), ``file://``, ``memory://<store>/...``
            or any URI that ``pyarrow.fs`` or, if installed, ``fsspec`` knows: ``s3://``, ``gs://``, ``hdfs://`` ...

    Returns:
        The file system and the absolute path in it, without a slash at its end.

    Raises:
        ConfigurationError: If nothing knows the scheme.
    """
    if not uri:
        message = "a directory must be a path or a URI; got an empty string"
        raise ConfigurationError(message)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
    if scheme == "file":
        if not rest.startswith("/"):
            message = f"a file URI must have an absolute path and no host; got {uri!r}"
            raise ConfigurationError(message)
        return LocalFileSystem(), os.path.abspath(rest)
    if scheme == "memory":
        name, _, path = rest.partition("/")
        return MemoryFileSystem.named(name), path.rstrip("/")
    return ArrowFileSystem.from_uri(uri)


def place_of(uri: str) -> tuple[str, ...]:
    """A location as parts that can be compared: a folder's parts are the first ones of all that lies in it.

    Args:
        uri: As of `filesystem_for`. Links of the local disk are resolved; of anything else only the text counts.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        scheme, rest = "", os.path.realpath(os.path.expanduser(rest if separator else uri))
    else:
        rest = rest.partition("?")[0]
    return (scheme, *(part for part in rest.split("/") if part not in ("", ".")))


# --------------------------------------------------------------------------------------------------------- local disk
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

    def read_bytes(self, path: str) -> bytes:
        with _mapped("read", path), open(path, "rb") as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        with _mapped("write", path):
            with self._temporary(path, data) as temporary:
                os.replace(temporary, path)
            _flush_directory(os.path.dirname(path))

    def create_exclusive(self, path: str, data: bytes) -> None:
        with _mapped("create", path):
            with self._temporary(path, data) as temporary:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    if not os.path.samefile(temporary, path):  # else an NFS server did it, but its answer got lost
                        raise
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                        raise
                    _write_new(path, data, self._file_mode)
            _flush_directory(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        with _mapped("rename", source):
            _make_directories(os.path.dirname(target))
            os.replace(source, target)
            _flush_directory(os.path.dirname(target))
            if os.path.dirname(source) != os.path.dirname(target):
                _flush_directory(os.path.dirname(source))

    def delete(self, path: str) -> None:
        with _mapped("delete", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    def delete_directory(self, path: str) -> None:
        with _mapped("delete", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(path)

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []

        def fail(error: OSError) -> None:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise error

        with _mapped("list", prefix):
            for directory, _, names in os.walk(prefix, onerror=fail):
                for name in names:
                    path = os.path.join(directory, name)
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        found.append((path, os.stat(path).st_size))
        return sorted(found)

    def exists(self, path: str) -> bool:
        with _mapped("stat", path):
            return os.path.isfile(path)

    def size(self, path: str) -> int:
        with _mapped("stat", path):
            return os.stat(path).st_size

    def open_input(self, path: str) -> BinaryIO:
        with _mapped("open", path):
            return open(path, "rb")

    def open_output(self, path: str) -> BinaryIO:
        with _mapped("open", path):
            _make_directories(os.path.dirname(path))
            return _DurableFile(path)

    @contextlib.contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        """A flushed file of the content next to ``path``; gone afterwards, unless it was renamed."""
        directory, name = os.path.split(path)
        _make_directories(directory, self._directory_mode)
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
def _mapped(operation: str, path: str) -> Iterator[None]:
    """Turn the operating system's errors into Headrace's."""
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
        raise StorageError(message, operation=operation, path=path) from error


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


def _make_directories(path: str, mode: int = 0o777) -> None:
    """Make a directory and its parents; new names are flushed, or a crash could take them away with all their files."""
    if not path or os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_directories(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError as error:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "a file is where a directory must be", path) from error
    _flush_directory(parent)


class _DurableFile(io.BufferedWriter):
    """A file whose ``close`` flushes content and name to the disk."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        with _mapped("write", self._path):
            try:
                self.flush()
                os.fsync(self.fileno())
            finally:
                super().close()
            _flush_directory(os.path.dirname(self._path))


# --------------------------------------------------------------------------------------------------------- pyarrow.fs
class ArrowFileSystem:
    """Any file system of ``pyarrow.fs``, and through it any of ``fsspec``.

    What cannot be promised everywhere:
        * ``create_exclusive`` is atomic on HDFS, whose rename refuses an existing target. On object stores (S3, GCS,
          Azure) and over ``fsspec`` pyarrow has no conditional put: the file is looked for, written and read back. A
          caller that comes later is always refused; of callers within the same moment the last one wins, and the others
          are told so only if they read back its content. Two JobManagers of one job in that moment are kept apart by
          the cluster, not by the store.
        * ``write_bytes`` is atomic on object stores (a put is), and by temporary name and rename elsewhere.
        * ``rename`` on object stores is a copy followed by a deletion: both names may be there after a crash, never
          neither.

    Args:
        filesystem: A ``pyarrow.fs.FileSystem``.
    """

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem
        self._kind: str = filesystem.type_name
        # Object stores make a file visible only when its upload is complete.
        self._puts_atomically = self._kind in ("s3", "gcs", "abfs") or self._kind.startswith("py::fsspec")

    @classmethod
    def from_uri(cls, uri: str) -> tuple[ArrowFileSystem, str]:
        """Find the file system of a URI.

        Raises:
            ConfigurationError: If neither pyarrow nor fsspec knows its scheme.
        """
        from pyarrow import ArrowException, fs

        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except (ArrowException, OSError, ValueError) as error:
            found = _through_fsspec(uri)
            if found is None:
                message = f"cannot find a file system for {uri!r}: {error}"
                raise ConfigurationError(
                    message, hint="install fsspec and the package that serves this scheme"
                ) from error
            filesystem, path = found
        return cls(filesystem), path.rstrip("/")

    def read_bytes(self, path: str) -> bytes:
        with self._mapped("read", path), self._fs.open_input_stream(path, compression=None) as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        with self._mapped("write", path):
            if self._puts_atomically:
                self._put(path, data)
            else:
                temporary = self._write_temporary(path, data)
                self._replace(temporary, path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        if self.exists(path):
            message = "could not create a file: it exists"
            raise AlreadyExistsError(message, operation="create", path=path)
        with self._mapped("create", path):
            if self._kind == "hdfs":
                temporary = self._write_temporary(path, data)
                try:
                    self._fs.move(temporary, path)
                except OSError as error:
                    self._fs.delete_file(temporary)
                    if not self._is_file(path):
                        raise
                    message = "could not create a file: it exists"
                    raise AlreadyExistsError(message, operation="create", path=path) from error
                return
            self._put(path, data)
        if self.read_bytes(path) != data:
            message = "could not create a file: somebody else did at the same time"
            raise AlreadyExistsError(message, operation="create", path=path)

    def rename(self, source: str, target: str) -> None:
        with self._mapped("rename", source):
            self._make_parent(target)
            self._replace(source, target)

    def delete(self, path: str) -> None:
        with self._mapped("delete", path), contextlib.suppress(FileNotFoundError):
            if self._is_file(path):
                self._fs.delete_file(path)

    def delete_directory(self, path: str) -> None:
        with self._mapped("delete", path), contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(path)

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        from pyarrow import fs

        with self._mapped("list", prefix):
            selector = fs.FileSelector(prefix, allow_not_found=True, recursive=True)
            infos = self._fs.get_file_info(selector)
            return sorted((info.path, info.size) for info in infos if info.is_file)

    def exists(self, path: str) -> bool:
        with self._mapped("stat", path):
            return self._is_file(path)

    def size(self, path: str) -> int:
        with self._mapped("stat", path):
            info = self._fs.get_file_info(path)
            if not info.is_file:
                raise FileNotFoundError(path)
            return int(info.size)

    def open_input(self, path: str) -> BinaryIO:
        with self._mapped("open", path):
            return self._fs.open_input_file(path)

    def open_output(self, path: str) -> BinaryIO:
        with self._mapped("open", path):
            self._make_parent(path)
            return self._fs.open_output_stream(path, compression=None)

    def _put(self, path: str, data: bytes) -> None:
        self._make_parent(path)
        with self._fs.open_output_stream(path, compression=None) as file:
            file.write(data)

    def _write_temporary(self, path: str, data: bytes) -> str:
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
        self._put(temporary, data)
        return temporary

    def _replace(self, source: str, target: str) -> None:
        if self._kind == "hdfs" and self._is_file(target):  # its rename refuses an existing target
            self._fs.delete_file(target)
        self._fs.move(source, target)

    def _make_parent(self, path: str) -> None:
        if self._kind not in ("s3", "gcs", "abfs"):  # these have no directories
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)

    def _is_file(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).is_file)

    @contextlib.contextmanager
    def _mapped(self, operation: str, path: str) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            with _mapped(operation, path):
                yield
        except ArrowException as error:  # those that are no OSError
            message = f"could not {operation} a file: {error}"
            raise StorageError(message, operation=operation, path=path) from error

    def __repr__(self) -> str:
        return f"ArrowFileSystem({self._kind})"


def _through_fsspec(uri: str) -> tuple[Any, str] | None:
    """The URI's file system by fsspec, if that is installed and knows it."""
    from pyarrow import fs

    try:
        from fsspec.core import url_to_fs  # type: ignore[import-not-found,import-untyped,unused-ignore]

        filesystem, path = url_to_fs(uri)
    except (ImportError, ValueError):
        return None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path


# ------------------------------------------------------------------------------------------------------------- memory
Fault = Callable[[str, str], None]
"""Called as ``(operation, path)``; raises to fail the operation."""

_STORES: dict[str, MemoryFileSystem] = {}
_STORES_LOCK = threading.Lock()


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
        """The store of that name in this process, made on first use."""
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

    def read_bytes(self, path: str) -> bytes:
        self._meet_fault("read", path)
        return self._content("read", path)

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
    """Becomes a file of its store when it is closed."""

    def __init__(self, store: MemoryFileSystem, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.write_bytes(self._path, data)
