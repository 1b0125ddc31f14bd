"""File systems: the few operations that checkpoints and transactional sinks are built from, over every kind of storage.

A `FileSystem` promises what its users rely on: a file that was written is whole and durable when the call returns, a
file written by ``write_bytes`` or ``create_exclusive`` never has its final name while it is half written, ``rename``
replaces atomically, and ``create_exclusive`` lets exactly one of several racing callers win. Where a kind of storage
cannot promise one of these, its class says so. Errors are `StorageError` with the operation and path; an error does
not say that nothing happened.

Paths are absolute within their file system, with ``/``; relative paths of requests and manifests go through
`join_confined` first.

Source: Flink's ``FileSystem`` and ``RecoverableWriter`` contracts.
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO, Protocol

from ..credentials import secret_in
from ..errors import ConfigurationError, StorageError
from .arrow import ArrowFileSystem
from .hdfs import HDFS_SCHEMES, HdfsFileSystem
from .local import LocalFileSystem
from .memory import MemoryFileSystem
from .objects import OBJECT_SCHEMES, ObjectFileSystem

__all__ = [
    "FileSystem",
    "absolute_uri",
    "filesystem_for",
    "join_confined",
    "join_uri",
    "place_of",
    "store_of",
]


class FileSystem(Protocol):
    """Where files live.

    Contract (*asserted* by the contract tests for local and memory; see `ArrowFileSystem` for what others lack):
        * Parent directories are made as needed and mean nothing: an empty one may or may not exist.
        * Missing files raise NotFoundError where a file is needed; deleting what is not there does nothing.
        * Every other failure is a StorageError whose context has ``operation`` and ``path``.
        * Safe to use from several threads.
    """

    def read_bytes(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the content of a file.

        Args:
            path: The file.
            max_bytes: How large it may be; no more is ever read.

        Raises:
            NotFoundError: If there is none.
            DamagedFileError: If it is larger, a directory, or on blocks that cannot be read.
        """
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

    def require_exclusive_create(self, directory: str) -> None:
        """Make sure that `create_exclusive` keeps its promise here: what would elect two leaders is refused at start.

        Args:
            directory: Below which files may be made, and deleted again, to find out.

        Raises:
            ConfigurationError: If it does not.
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
        """Return all files below the directory ``prefix``, at any depth: sorted pairs of path and size in bytes.

        Those of one directory are what was in it at one moment: where a file is only ever deleted after another one was
        made, one of both is there.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file (not a directory) at ``path``."""
        ...

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises NotFoundError."""
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


_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def absolute_uri(place: str | os.PathLike[str]) -> str:
    """Return a path or URI as every machine sees it: relative paths are those of this process.

    Args:
        place: A path, or a URI; ``file:/path`` is one, as Flink writes them.

    Raises:
        ConfigurationError: If it is empty, a URI that has lost a slash, or one that holds a password or a key: places
            are shown in views and logs and written into manifests.
    """
    text = os.fspath(place)
    if not text:
        message = "a directory must be a path or a URI; got an empty string"
        raise ConfigurationError(message)
    if "://" in text:
        if found := secret_in(text):
            scheme = text.partition(":")[0]
            message = f"a place must not hold credentials, as it is shown and stored; got {found} in a URI of {scheme}"
            hint = "set them in the environment of all machines, as AWS_ACCESS_KEY_ID, or give these a role"
            raise ConfigurationError(message, hint=hint)
        return text
    if match := _ONE_SLASH.match(text):
        if match[1] == "file":
            return f"file://{text[len('file:') :]}"
        message = f"a URI has two slashes behind its scheme; got {text!r}"
        hint = f"give URIs as text, pathlib takes a slash away; a folder of that name is ./{text}"
        raise ConfigurationError(message, hint=hint)
    return os.path.abspath(os.path.expanduser(text))


def filesystem_for(uri: str, *, is_private: bool = False) -> tuple[FileSystem, str]:
    """Find the file system of a URI and the path in it.

    Args:
        uri: A local path (relative ones are taken from the working directory), ``file://``, ``memory://<store>/...``,
            object stores (`headrace.state.files.objects`): ``s3://``, ``gs://``, ``az://`` ..., ``hdfs://``, or any URI
            that ``pyarrow.fs`` or, if installed, ``fsspec`` knows.
        is_private: Whether what is made on a local disk is for its owner alone (`LocalFileSystem`).

    Returns:
        The file system and the absolute path in it, without a slash at its end.

    Raises:
        ConfigurationError: If nothing knows the scheme, or as of `absolute_uri`.
    """
    uri = absolute_uri(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalFileSystem(is_private=is_private), uri
    if scheme == "file":
        if not rest.startswith("/"):
            message = f"a file URI must have an absolute path and no host; got {uri!r}"
            raise ConfigurationError(message)
        return LocalFileSystem(is_private=is_private), os.path.abspath(rest)
    if scheme == "memory":
        name, _, path = rest.partition("/")
        return MemoryFileSystem.named(name), path.rstrip("/")
    if scheme in OBJECT_SCHEMES:
        return ObjectFileSystem.from_uri(uri)
    if scheme in HDFS_SCHEMES:
        return HdfsFileSystem.from_uri(uri)
    return ArrowFileSystem.from_uri(uri)


def place_of(uri: str) -> tuple[str, ...]:
    """Return a location as parts that can be compared: a folder's parts are the first ones of all that lies in it.

    Args:
        uri: As of `filesystem_for`. Links of the local disk are resolved; of anything else only the text counts.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        scheme, rest = "", os.path.realpath(os.path.expanduser(rest if separator else uri))
    else:
        rest = rest.partition("?")[0]
    return (scheme, *(part for part in rest.split("/") if part not in ("", ".")))


def store_of(uri: str) -> tuple[str, str, str]:
    """Return which store a location is in: scheme, host and options; two in one store need no other access."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        return "", "", ""
    path, _, query = rest.partition("?")
    return scheme, path.partition("/")[0], query
