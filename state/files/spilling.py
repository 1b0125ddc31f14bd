"""Bytes that do not fit in memory, on the local disk of the machine that works with them.

A spill file belongs to the process that made it alone: it has no name in its directory, so it is gone with its
process, however that ends, and there is nothing to clean up. A directory that is made for it is its owner's alone.

Source: Flink's ``FileIOChannel`` and ``SpillingBuffer``.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO, NamedTuple

from ..errors import StorageError
from .local import make_directories

__all__ = ["SpillFile", "SpillPlace", "mapped_on_disk"]

_HINT = "make room there, or name another folder: RocksDBStateBackend(local_directory=...), or TMPDIR"


class SpillPlace(NamedTuple):
    """Where something lies in a spill file."""

    offset: int
    length: int


class SpillFile:
    """An unnamed file that is written at its end and read anywhere.

    Args:
        directory: Where, on this machine; None for the system's directory for temporary files.

    Attributes:
        num_bytes: How much has been written.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        # Made by the first write. Nothing is buffered: what a full disk refuses, it refuses in `write`.
        self._file: IO[bytes] | None = None
        self.num_bytes = 0

    def write(self, data: bytes | memoryview) -> SpillPlace:
        """Keep bytes, until the file is closed.

        Raises:
            StorageError: If they cannot be written.
        """
        place = SpillPlace(self.num_bytes, len(data))
        try:
            if self._file is None:
                if self._directory is not None:
                    make_directories(os.path.abspath(self._directory), 0o700)
                self._file = tempfile.TemporaryFile(  # noqa: SIM115
                    prefix="headrace-spill-", dir=self._directory, buffering=0
                )
            self._file.seek(place.offset)
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            directory = self._directory or _temporary_directory()
            message = f"records that do not fit in memory cannot be written to the local disk, to {directory}: {error}"
            raise StorageError(message, hint=_HINT, directory=directory, spilled_bytes=self.num_bytes) from error
        self.num_bytes += len(data)
        return place

    def read(self, place: SpillPlace) -> bytes:
        """Return what was written there.

        Raises:
            StorageError: If it cannot be read.
        """
        data = bytearray()
        try:
            assert self._file is not None
            self._file.seek(place.offset)
            while len(data) < place.length and (piece := self._file.read(place.length - len(data))):
                data += piece
        except OSError as error:
            message = f"records cannot be read back from the local disk: {error}"
            raise StorageError(message, directory=self._directory or _temporary_directory()) from error
        if len(data) != place.length:
            message = f"records cannot be read back from the local disk: {len(data)} bytes of {place.length} are there"
            raise StorageError(message, directory=self._directory or _temporary_directory())
        return bytes(data)

    def mapped(self, place: SpillPlace) -> memoryview:
        """Return what was written there, without reading it; it stays when the file is closed.

        Raises:
            StorageError: If the system maps no more files.
        """
        before = place.offset % mmap.ALLOCATIONGRANULARITY
        try:
            assert self._file is not None
            mapping = mmap.mmap(
                self._file.fileno(), before + place.length, access=mmap.ACCESS_READ, offset=place.offset - before
            )
        except OSError as error:
            message = f"records on the local disk cannot be mapped: {error}"
            raise StorageError(message, directory=self._directory or _temporary_directory()) from error
        return memoryview(mapping)[before:]

    def close(self) -> None:
        """Let go of the file and all that is in it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _temporary_directory() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # no such folder can be written to
        return os.environ.get("TMPDIR", "/tmp")


def mapped_on_disk(data: bytes | memoryview, directory: str | None = None) -> memoryview:
    """Return the same bytes, lying on the local disk: the system reads what is looked at, and forgets it when room is
    needed.

    The file has no name, and goes when the view is no longer held.

    Args:
        data: At least one byte.
        directory: As of `SpillFile`.

    Raises:
        StorageError: If they cannot be written.
    """
    file = SpillFile(directory)
    try:
        return file.mapped(file.write(data))
    finally:
        file.close()
