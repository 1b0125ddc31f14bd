"""HDFS as a `headrace.state.files.filesystem.FileSystem`, through ``hdfs-native``, which needs no Java.

``hdfs://namenode:8020/path``, ``hdfs://nameservice/path`` or ``hdfs:///path``; what the latter two mean is in the files
of ``HADOOP_CONF_DIR``. The client (``pip install 'headrace[hdfs]'``) is not imported before it is needed.

Source: Hadoop's ``ClientProtocol`` (``rename2``), and Flink's ``HadoopFileSystem``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import threading
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from ..errors import ConfigurationError, StorageError
from ..extras import needs
from .client_streams import ClientOutput, RangedInput
from .local import at_most, storage_errors

__all__ = ["HDFS_SCHEMES", "HdfsFileSystem"]

HDFS_SCHEMES = ("hdfs", "viewfs")
_READ_BYTES = 1 << 20
_WRITE_BYTES = 1 << 20


class HdfsFileSystem:
    """A name node's files. Paths begin with ``/``.

    Files are written under a temporary name (``.<name>.<random>.tmp``) beside their own, closed, and then renamed:
    HDFS renames at one moment, and refuses an existing target if it is told to. A crash can leave temporary files,
    never half a file. What is written is durable as HDFS means it: on as many data nodes as it replicates to.

    Args:
        authority: ``hdfs://namenode:8020``.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._client = _connected(authority)

    @classmethod
    def from_uri(cls, uri: str) -> tuple[HdfsFileSystem, str]:
        """Find the file system of a URI, and the path in it.

        Raises:
            ConfigurationError: If the client is not installed, or knows no such name node.
        """
        scheme, _, rest = uri.partition("://")
        host, _, path = rest.partition("/")
        return cls(f"{scheme}://{host}"), f"/{path.strip('/')}".rstrip("/")

    def read_bytes(self, path: str, max_bytes: int | None = None) -> bytes:
        with self.open_input(path) as file, _errors("read", path):
            return at_most(file, max_bytes, path)

    def write_bytes(self, path: str, data: bytes) -> None:
        with _errors("write", path):
            temporary = self._write_temporary(path, data)
            self._client.rename(temporary, path, overwrite=True)

    def create_exclusive(self, path: str, data: bytes) -> None:
        with _errors("create", path):
            if self.exists(path):  # spares a file; what counts is the rename
                raise FileExistsError
            temporary = self._write_temporary(path, data)
            try:
                self._client.rename(temporary, path, overwrite=False)
            except (FileExistsError, FileNotFoundError):
                if self.exists(temporary):
                    self._client.delete(temporary, recursive=False)
                    raise
                # it has been renamed: only the first answer got lost

    def require_exclusive_create(self, directory: str) -> None:
        """Do nothing: it is exclusive, as the name node renames one after another."""

    def rename(self, source: str, target: str) -> None:
        with _errors("rename", source):
            self._make_parent(target)
            if source != target or not self.exists(source):
                self._client.rename(source, target, overwrite=True)

    def delete(self, path: str) -> None:
        if self.exists(path):
            self._delete(path, recursive=False)

    def delete_directory(self, path: str) -> None:
        self._delete(path or "/", recursive=True)

    def _delete(self, path: str, *, recursive: bool) -> None:
        with _errors("delete", path), contextlib.suppress(FileNotFoundError):
            self._client.delete(path, recursive=recursive)

    def list_files(self, prefix: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        directories = [prefix or "/"]
        with _errors("list", prefix):
            while directories:
                with contextlib.suppress(FileNotFoundError):  # one that is gone meanwhile has nothing
                    for status in list(self._client.list_status(directories.pop(), recursive=False)):
                        if status.isdir:
                            directories.append(status.path)
                        elif status.path != prefix:
                            found.append((status.path, int(status.length)))
        return sorted(found)

    def exists(self, path: str) -> bool:
        with _errors("stat", path):
            try:
                return not self._client.get_file_info(path or "/").isdir
            except FileNotFoundError:
                return False

    def size(self, path: str) -> int:
        with _errors("stat", path):
            return self._file(path).length

    def open_input(self, path: str) -> BinaryIO:
        with _errors("open", path):
            return io.BufferedReader(_Input(self._client.read(path), path), _READ_BYTES)

    def open_output(self, path: str) -> BinaryIO:
        with _errors("open", path):
            return cast("BinaryIO", io.BufferedWriter(ClientOutput(self._create(path), path, _errors), _WRITE_BYTES))

    def _file(self, path: str) -> Any:
        status = self._client.get_file_info(path or "/")
        if status.isdir:
            raise FileNotFoundError(path)
        return status

    def _create(self, path: str) -> Any:
        return self._client.create(path, _package().WriteOptions(overwrite=True, create_parent=True))

    def _write_temporary(self, path: str, data: bytes) -> str:
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
        with self._create(temporary) as file:
            file.write(data)
        return temporary

    def _make_parent(self, path: str) -> None:
        self._client.mkdirs(path.rpartition("/")[0] or "/", 0o755, create_parent=True)

    def __repr__(self) -> str:
        return f"HdfsFileSystem({self._authority!r})"


class _Input(RangedInput):
    """A file of HDFS to read."""

    def __init__(self, inner: Any, path: str) -> None:
        super().__init__(len(inner))
        self._inner = inner
        self._path = path

    def read_range(self, start: int, count: int) -> Any:
        with _errors("read", self._path):
            return self._inner.read_range(start, count)


_clients_lock = threading.Lock()
_clients: dict[str, Any] = {}


def _connected(authority: str) -> Any:
    """The client of a name node; one for each in a process."""
    package = _package()
    with _clients_lock:
        client = _clients.get(authority)
        if client is None:
            try:
                client = package.Client(authority)
            except Exception as error:  # of any type: what the client makes of Hadoop's configuration
                message = f"cannot use {authority!r}: {_first_line(error)}"
                hint = "name the host, as hdfs://namenode:8020/path, or set HADOOP_CONF_DIR on all machines"
                raise ConfigurationError(message, hint=hint) from error
            _clients[authority] = client
        return client


@functools.cache
def _package() -> Any:
    """The client's module.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("HDFS needs the package hdfs-native", "hdfs"):
        import hdfs_native
    return hdfs_native


@contextlib.contextmanager
def _errors(operation: str, path: str) -> Iterator[None]:
    """Turn the client's errors, which hold a Java stack, into `StorageError` and its kinds."""
    with storage_errors(operation, path):
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except (OSError, RuntimeError, ValueError) as error:
            message = f"could not {operation} a file: {_first_line(error)}"
            raise StorageError(message, operation=operation, path=path) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()
