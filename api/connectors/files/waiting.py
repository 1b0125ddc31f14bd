"""Records of a file sink that wait for more: in checkpoints, until they are enough for a file.

A part is closed at every barrier, so a short interval makes small files. With `FileCompaction` what has come since the
last barrier is no file yet if it is little: it stays in the writer's state, folder by folder, and is written once there
is enough of it, or once it has waited for so long. What waits is in every checkpoint and nowhere else: so nothing of it
can be left behind, be committed twice or get lost, whatever dies; and it is dealt out over the writers like other state
when their number changes.

Source: Flink's ``FileCompactStrategy`` and ``DefaultRollingPolicy``. There small files are made and then brought
together; here they are not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.errors import CheckpointCorruptError, ConfigurationError
from headrace.state.keyed.descriptors import ListStateDescriptor
from headrace.state.values.durations import parse_duration_ms

from ...formats.folders import FOLDERS
from ...formats.prepared_rows import from_ipc, to_ipc

__all__ = ["WAITING", "FileCompaction", "WaitingRecords"]

WAITING: ListStateDescriptor = ListStateDescriptor("waiting")
"""State of a writer: tuples of folder, times of the first and the last record, number of records, and the records."""


_MAX_FILES_WAITING = 4
"""The records of so many files wait in one writer, in all of its folders together."""


@dataclass(frozen=True)
class FileCompaction:
    """When records become a file, if there are few of them.

    Attributes:
        file_size: Of records that make a file, in bytes of memory: fewer make one only when their time has come. Up to
            four times as much may wait in a subtask that writes to many folders, and is in each checkpoint.
        rollover_interval: How long records wait at most: milliseconds, or text such as ``"30 min"``. What they wait for
            besides is the next checkpoint.
        inactivity_interval: How long they wait for others to come.
    """

    file_size: int = 16 << 20
    rollover_interval: int | str = "30 min"
    inactivity_interval: int | str = "30 min"

    def __post_init__(self) -> None:
        if self.file_size < 1:
            message = f"file_size of a compaction must be at least 1; got {self.file_size}"
            raise ConfigurationError(message)
        for name in ("rollover_interval", "inactivity_interval"):
            if self._ms(name) < 1:
                message = f"{name} of a compaction must be at least a millisecond; got {getattr(self, name)!r}"
                raise ConfigurationError(message)

    def is_due(self, num_bytes: int, first_ms: int, last_ms: int, now_ms: int) -> bool:
        """Return whether records become a file.

        Args:
            num_bytes: How large they are.
            first_ms: When the first of them came.
            last_ms: When the last one came.
            now_ms: The time.
        """
        return (
            num_bytes >= self.file_size
            or now_ms - first_ms >= self._ms("rollover_interval")
            or now_ms - last_ms >= self._ms("inactivity_interval")
        )

    def _ms(self, name: str) -> int:
        return parse_duration_ms(getattr(self, name))


@dataclass
class _Folder:
    """What waits for one folder."""

    first_ms: int
    last_ms: int
    batches: list[Batch] = field(default_factory=list)
    num_bytes: int = 0


class WaitingRecords:
    """What waits in one writer, by folder.

    Args:
        compaction: When it becomes a file; None for at once, when only what a checkpoint brings has waited.
    """

    def __init__(self, compaction: FileCompaction | None) -> None:
        self._compaction = compaction
        self._folders: dict[str, _Folder] = {}
        self._num_bytes = 0

    def add(self, folder: str, batch: Batch, now_ms: int) -> str | None:
        """Take records; gives the folder, if there is one, whose records are to become a file now.

        That is theirs if there are enough in it; or the fullest one, if many folders have a little.
        """
        waiting = self._folders.setdefault(folder, _Folder(now_ms, now_ms))
        waiting.last_ms = max(waiting.last_ms, now_ms)
        waiting.batches.append(batch)
        waiting.num_bytes += batch.nbytes
        self._num_bytes += batch.nbytes
        if self._is_due(waiting, now_ms):
            return folder
        if self._compaction is not None and self._num_bytes > _MAX_FILES_WAITING * self._compaction.file_size:
            return max(self._folders, key=lambda name: self._folders[name].num_bytes)
        return None

    def due(self, now_ms: int, *, is_end: bool) -> list[str]:
        """Return the folders whose records become files now; all at the end."""
        return [name for name, waiting in self._folders.items() if is_end or self._is_due(waiting, now_ms)]

    def take(self, folder: str) -> list[Batch]:
        """Give the records of a folder away, in the order in which they came."""
        waiting = self._folders.pop(folder)
        self._num_bytes -= waiting.num_bytes
        return waiting.batches

    def _is_due(self, waiting: _Folder, now_ms: int) -> bool:
        compaction = self._compaction
        return compaction is None or compaction.is_due(waiting.num_bytes, waiting.first_ms, waiting.last_ms, now_ms)

    def to_state(self) -> list[Any]:
        """Return what waits, as elements of a list that may be dealt out."""
        return [
            (folder, waiting.first_ms, waiting.last_ms, num_rows, records)
            for folder, waiting in self._folders.items()
            for num_rows, records in _stored(waiting.batches)
        ]

    def restore(self, elements: Any) -> None:
        """Take what a checkpoint holds.

        Raises:
            CheckpointCorruptError: If it is something else.
        """
        for element in elements:
            try:
                folder, first_ms, last_ms, num_rows, records = element
                _require_folder(folder)
                waiting = self._folders.setdefault(folder, _Folder(first_ms, last_ms))
                waiting.first_ms = min(waiting.first_ms, first_ms)
                waiting.last_ms = max(waiting.last_ms, last_ms)
                batches = list(_restored(num_rows, records))
            except (TypeError, ValueError) as error:
                message = f"records of a file sink that wait in a checkpoint cannot be decoded: {error!r:.200}"
                raise CheckpointCorruptError(message) from error
            waiting.batches += batches
            num_bytes = sum(batch.nbytes for batch in batches)
            waiting.num_bytes += num_bytes
            self._num_bytes += num_bytes


def _require_folder(folder: Any) -> None:
    """A folder out of a checkpoint, which anybody may have written, is one of partitions: it leads nowhere else."""
    if type(folder) is not str or (folder and FOLDERS.fullmatch(folder) is None):
        message = f"{folder!r:.200} is no folder of a partition"
        raise ValueError(message)


def _stored(batches: list[Batch]) -> Iterator[tuple[int, Any]]:
    """Records as a checkpoint holds them: columns as Arrow's bytes, one piece for each schema; rows as they are."""
    gathered: list[Batch] = []

    def piece() -> tuple[int, bytes]:
        return sum(batch.num_rows for batch in gathered), to_ipc([batch.columns for batch in gathered])

    for batch in batches:
        if gathered and (batch.has_rows or not batch.columns.schema.equals(gathered[0].columns.schema)):
            yield piece()
            gathered = []
        if batch.has_rows:
            yield batch.num_rows, list(batch.rows)
        else:
            gathered.append(batch)
    if gathered:
        yield piece()


def _restored(num_rows: int, records: Any) -> Iterator[Batch]:
    if isinstance(records, bytes):
        for batches in from_ipc([records], num_rows, state=WAITING.name):
            yield from map(Batch.of_columns, batches)
    elif isinstance(records, list) and len(records) == num_rows:
        yield Batch.of_rows(records)
    else:
        message = f"{num_rows} records, as {type(records).__name__}"
        raise ValueError(message)
