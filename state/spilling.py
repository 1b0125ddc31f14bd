"""Bytes that do not fit in memory, on the local disk of the machine that works with them.

A spill file belongs to whoever made it and to nobody else: it has no name in its directory, so it is gone with its
process, however that ends, and there is nothing to clean up.

Source: Flink's ``FileIOChannel`` and ``SpillingBuffer``.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO, NamedTuple

from headrace.state.errors import StorageError

__all__ = ["SpillFile", "SpillPlace"]


class SpillPlace(NamedTuple):
    """Where something lies in a spill file."""

    offset: int
    length: int


class SpillFile:
    """An unnamed file that is written at its end and read anywhere.

    Args:
        directory: Where, on this machine; None for the system's directory for temporary files.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        # Made by the first write.
        self._file: IO[bytes] | None = None
        self.num_bytes = 0

    def write(self, data: bytes) -> SpillPlace:
        """Keep bytes, until the file is closed.

        Raises:
            StorageError: If they cannot be written.
        """
        place = SpillPlace(self.num_bytes, len(data))
        try:
            if self._file is None:
                if self._directory is not None:
                    os.makedirs(self._directory, exist_ok=True)
                self._file = tempfile.TemporaryFile(prefix="headrace-spill-", dir=self._directory)  # noqa: SIM115
            self._file.seek(place.offset)
            self._file.write(data)
        except OSError as error:
            message = f"records that do not fit in memory cannot be written to the local disk: {error}"
            directory = self._directory or tempfile.gettempdir()
            raise StorageError(message, directory=directory, spilled_bytes=self.num_bytes) from error
        self.num_bytes += len(data)
        return place

    def read(self, place: SpillPlace) -> bytes:
        """What was written there.

        Raises:
            StorageError: If it cannot be read.
        """
        try:
            assert self._file is not None
            self._file.seek(place.offset)
            data = self._file.read(place.length)
        except OSError as error:
            message = f"records cannot be read back from the local disk: {error}"
            raise StorageError(message) from error
        if len(data) != place.length:
            message = f"records cannot be read back from the local disk: {len(data)} bytes of {place.length} are there"
            raise StorageError(message)
        return data

    def close(self) -> None:
        """Let go of the file and all that is in it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
