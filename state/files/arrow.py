"""All that ``pyarrow.fs`` and ``fsspec`` know, as a `FileSystem`."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..errors import AlreadyExistsError, ConfigurationError, StorageError
from .local import at_most, storage_errors

__all__ = ["ArrowFileSystem"]


class ArrowFileSystem:
    """Any file system of ``pyarrow.fs``, and through it any of ``fsspec``.

    What cannot be promised:
        * ``create_exclusive`` is not atomic: the file is looked for, written and read back. Who comes later is always
          refused; of callers within the same moment the last one wins, and the others are told so only if they
          read back its content. So leases are refused here (`require_exclusive_create`); two JobManagers of one job in
          that moment are kept apart by the cluster, not by the store.
        * ``write_bytes`` goes by temporary name and rename, over ``fsspec`` by one write.
        * ``rename`` over ``fsspec`` may be a copy followed by a deletion: both names may be there after a crash, never
          neither.

    Args:
        filesystem: A ``pyarrow.fs.FileSystem``.
    """

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem
        self._kind: str = filesystem.type_name
        # What fsspec is used for are object stores: they make a file visible only when its upload is complete.
        self._puts_atomically = self._kind.startswith("py::fsspec")

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

    def read_bytes(self, path: str, max_bytes: int | None = None) -> bytes:
        with self._mapped("read", path), self._fs.open_input_stream(path, compression=None) as file:
            return at_most(file, max_bytes, path)

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
            self._put(path, data)
        if self.read_bytes(path) != data:
            message = "could not create a file: somebody else did at the same time"
            raise AlreadyExistsError(message, operation="create", path=path)

    def require_exclusive_create(self, directory: str) -> None:
        """Refuse: it is not atomic."""
        message = f"files cannot be created exclusively through {self._kind}: two leaders could be elected at once"
        hint = "use s3://, gs://, az://, hdfs:// or a shared disk; or elect leaders in ZooKeeper: lease_store"
        raise ConfigurationError(message, hint=hint, path=directory)

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
        self._fs.move(source, target)

    def _make_parent(self, path: str) -> None:
        self._fs.create_dir(path.rpartition("/")[0], recursive=True)

    def _is_file(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).is_file)

    @contextlib.contextmanager
    def _mapped(self, operation: str, path: str) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            with storage_errors(operation, path):
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

        # Many of its file systems remember listings while the process lives: no leader would find the next one.
        filesystem, path = url_to_fs(uri, use_listings_cache=False)
    except (ImportError, ValueError):
        return None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path
