"""The data files of a job's checkpoints: how they are called, written, brought back and checked.

A file is immutable and named by the execution attempt that wrote it. Which files belong to which checkpoint is said by
manifests, and what may be deleted by `headrace.state.checkpoints.storage`. A file that is read has the size and the
SHA-256 that its manifest says, or it is not read at all.

Source: Flink's ``CheckpointStreamFactory`` and ``FileStateHandle``.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import BinaryIO

from ..errors import CheckpointCorruptError, DamagedFileError, NotFoundError, StorageError, TypeMismatchError
from ..files.filesystem import FileSystem, join_confined
from ..files.local import storage_errors
from ..files.local_directories import LocalDirectory, LocalFile
from ..identifiers import ExecutionAttemptId, OperatorId
from .snapshot import KEYED_KINDS, FileKind, RestoredPart, SnapshotPart, StateFile

__all__ = ["DataFiles"]


_PIECE_BYTES = 1 << 20
"""Large files are read and written in pieces of this size."""


class DataFiles:
    """The data files in one job's folder. All calls block; every one may raise StorageError.

    Args:
        fs: The file system.
        root: Path of the folder in it.
        uri: The same as a URI, for errors.
    """

    def __init__(self, fs: FileSystem, root: str, uri: str) -> None:
        self._fs = fs
        self._root = root
        self._uri = uri

    def write_part(
        self, checkpoint_id: int, attempt: ExecutionAttemptId, operator: OperatorId, part: SnapshotPart
    ) -> StateFile:
        """Write one state of one subtask. Called by slots, off the mailbox.

        Guarantees: durable when it returns. The name holds epoch, attempt and subtask, so that no other run ever
        writes the same file; doing it again replaces it with the same content.

        Raises:
            TypeMismatchError: If a value cannot be stored; names operator and state.
        """
        if part.reused is not None:
            return part.reused
        groups = part.metadata.get("key_groups") if part.kind in KEYED_KINDS else None
        name = f"{attempt.epoch}.{attempt.attempt}-{attempt.subtask}-{_file_name(part.state)}.{part.kind.value}"
        if part.file is not None:
            path = f"shared/{_file_name(operator)}/{checkpoint_id}-{name}-{os.path.basename(part.file.path)}"
            size, sha256 = self._store_file(part.file.path, path)
        else:
            try:
                data = part.write()
            except TypeMismatchError as error:
                error.context = {"operator": str(operator), "state": part.state, **error.context}
                raise
            suffix = "" if part.kind is FileKind.DATABASE else ".arrow"
            path = f"chk-{checkpoint_id}/{_file_name(operator)}/{name}{suffix}"
            self._fs.write_bytes(self._path(path), data)
            size, sha256 = len(data), hashlib.sha256(data).hexdigest()
        return StateFile(
            path=path,
            size=size,
            sha256=sha256,
            state=part.state,
            kind=part.kind,
            metadata=part.metadata,
            key_groups=None if groups is None else (groups[0], groups[1]),
        )

    def _store_file(self, source: str, path: str) -> tuple[int, str]:
        """Copy a local file into the folder, in pieces; gives its size and hash."""
        try:
            with open(source, "rb") as file, self._fs.open_output(self._path(path)) as output:
                return _copy(file, output, source)
        except OSError as error:
            message = f"could not copy a file of local state: {error.strerror or error}"
            raise StorageError(message, operation="copy", path=source) from error

    @staticmethod
    def is_shared(file: StateFile) -> bool:
        """Return whether a file is one of those that are copied to the local disk, in pieces, and not read into
        memory.
        """
        return file.path.startswith("shared/")

    def restore_part(
        self,
        file: StateFile,
        source_subtask: int,
        directory: LocalDirectory | None,
        stored: tuple[int, StateFile] | None = None,
    ) -> RestoredPart:
        """Bring a file of a checkpoint to a subtask that restores from it, and verify it.

        Args:
            file: The file.
            source_subtask: The subtask that wrote it.
            directory: Where shared files go.
            stored: See `headrace.state.keyed.contract.RestoredPart`.

        Raises:
            CheckpointCorruptError: As `read_part`.
            StorageError: Also if the local disk fails.
        """
        if directory is None or not self.is_shared(file):
            return RestoredPart(file.state, file.kind, file.metadata, self.read_part(file), source_subtask)
        # Operators of one chain have databases of their own, whose files are named alike but for the folder.
        folder, name = file.path.split("/")[-2:]
        target = os.path.join(directory.path, f"{source_subtask}-{folder}-{name}")
        self.fetch_part(file, target)
        local = LocalFile(target, directory)
        return RestoredPart(file.state, file.kind, file.metadata, b"", source_subtask, local, stored)

    def fetch_part(self, file: StateFile, target: str) -> None:
        """Copy a file that a manifest names to the local disk and verify it, in pieces.

        Args:
            file: The file.
            target: Where to; must not exist.

        Raises:
            CheckpointCorruptError: As `read_part`.
            StorageError: Also if the local disk fails.
        """
        try:
            with open(target, "xb") as output:
                self._check_content(file, *self._copied(file, output))
        except OSError as error:
            message = f"could not copy a file of a checkpoint: {error.strerror or error}"
            raise StorageError(message, operation="copy", path=target) from error

    def _copied(self, file: StateFile, target: BinaryIO | None) -> tuple[int, str]:
        """Read a file to its end, or a byte further than it should have, in pieces; gives its size and hash."""
        path = self._path(file.path)
        try:
            with self._fs.open_input(path) as source:
                return _copy(source, target, path, file.size + 1)
        except (NotFoundError, DamagedFileError) as error:
            raise self._unreadable(file, error) from error

    def _unreadable(self, file: StateFile, error: StorageError) -> CheckpointCorruptError:
        if isinstance(error, NotFoundError):
            message = f"a file of a checkpoint is missing: {file.path}"
        else:
            message = f"a file of a checkpoint is damaged: {file.path}: {error.message}"
        return CheckpointCorruptError(message, path=self._uri, state=file.state)

    def read_part(self, file: StateFile) -> bytes:
        """Read a file that a manifest names and verify it.

        Raises:
            CheckpointCorruptError: If it is missing, or its size or SHA-256 is not the manifest's.
        """
        try:
            data = self._fs.read_bytes(self._path(file.path), file.size)
        except (NotFoundError, DamagedFileError) as error:
            raise self._unreadable(file, error) from error
        self._check_content(file, len(data), hashlib.sha256(data).hexdigest())
        return data

    def _check_content(self, file: StateFile, size: int, sha256: str) -> None:
        self._check_size(file, size)
        if sha256 != file.sha256:
            message = f"a file of a checkpoint does not have the content it was written with: {file.path}"
            raise CheckpointCorruptError(message, path=self._uri, state=file.state)

    def check(self, file: StateFile) -> None:
        """Read a file that a manifest names to its end and verify it.

        Raises:
            CheckpointCorruptError: As `read_part`.
        """
        self._check_content(file, *self._copied(file, None))

    def check_size(self, file: StateFile, checkpoint_id: int) -> None:
        """See that a file of a checkpoint is there and as large as it should be, without reading it.

        Raises:
            CheckpointCorruptError: If not.
        """
        try:
            size = self._fs.size(self._path(file.path))
        except NotFoundError as error:
            message = f"a file of checkpoint {checkpoint_id} is missing: {file.path}"
            hint = "a manifest must stay in the folder of its job; copy the folder as a whole"
            raise CheckpointCorruptError(message, hint=hint, path=self._uri) from error
        except DamagedFileError as error:
            raise self._unreadable(file, error) from error
        self._check_size(file, size)

    def _check_size(self, file: StateFile, size: int) -> None:
        if size != file.size:
            message = f"a file of a checkpoint has {size} bytes; its manifest says {file.size}: {file.path}"
            raise CheckpointCorruptError(message, path=self._uri, state=file.state)

    def _path(self, relative: str) -> str:
        return join_confined(self._root, relative)


def _file_name(text: str) -> str:
    """A name for a file that tells people what it is and is unique for the text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', text)[:40]}-{digest}"


def _copy(source: BinaryIO, target: BinaryIO | None, path: str, max_bytes: int | None = None) -> tuple[int, str]:
    """Read a file to its end, or so far, in pieces, and write it on; gives its size and hash."""
    digest, size = hashlib.sha256(), 0
    while True:
        with storage_errors("read", path):
            piece = source.read(_PIECE_BYTES if max_bytes is None else min(_PIECE_BYTES, max_bytes - size))
        if not piece:
            break
        digest.update(piece)
        size += len(piece)
        if target is not None:
            target.write(piece)
    return size, digest.hexdigest()
