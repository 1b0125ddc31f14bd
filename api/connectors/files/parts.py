"""The files that a file sink fills, in each format; a *part* for each folder at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.columns.write_mode import WriteMode
from headrace.engine.errors import SinkError, StorageError

from ...formats.containers.sequence_files import SequenceEncoder, SequenceSettings
from ...formats.containers.typed_files import columns_encoder
from ...formats.contract import RecordEncoder, columns_to_write
from ...formats.csv_records import CsvEncoder
from ...formats.json_lines import JsonEncoder
from .waiting import FileCompaction

__all__ = [
    "WRITE_ERRORS",
    "Compression",
    "FileSinkSettings",
    "NewerOutput",
    "OpenParts",
    "Part",
    "failing",
    "open_part",
]

WRITE_ERRORS = (OSError, StorageError, pa.ArrowException)
"""What storage and formats raise where something cannot be written."""

MAX_OPEN_PARTS = 64
"""Of one subtask: records for more folders at a time make more and smaller files."""

Compression = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]
NewerOutput = Literal["error", "keep", "delete"]


@dataclasses.dataclass(frozen=True)
class FileSinkSettings:
    """What all writers of a file sink know; ``schema`` is of what is in files."""

    format: Literal["parquet", "orc", "avro", "csv", "jsonl", "seq"]
    location: str
    max_part_bytes: int
    max_part_rows: int | None
    schema: pa.Schema | None = None
    has_header: bool = True
    delimiter: str = ","
    compression: str = "snappy"
    mode: WriteMode = "error"
    on_newer_output: NewerOutput = "error"
    partition_by: tuple[str, ...] = ()
    compaction: FileCompaction | None = None
    sequence: SequenceSettings = dataclasses.field(default_factory=SequenceSettings)
    is_private: bool = False
    """On a local disk: what is made is for its owner alone."""


class Part(Protocol):
    """One staged file being filled."""

    path: str
    num_rows: int

    @property
    def num_bytes(self) -> int:
        """About how large the file is by now."""
        ...

    def write(self, batch: Batch) -> bool:
        """Take records; False if they do not fit into this part but would into a new one."""
        ...

    def finish(self) -> int:
        """Make the file complete and durable; gives its size in bytes."""
        ...

    def abandon(self) -> None:
        """Close without finishing."""
        ...


class _EncodedPart:
    """A part whose encoder gives bytes."""

    def __init__(self, path: str, stream: Any, encoder: RecordEncoder) -> None:
        self.path = path
        self.num_rows = 0
        self.num_bytes = 0
        self._stream = stream
        self._encoder = encoder

    def write(self, batch: Batch) -> bool:
        self._append(self._encoder.encode(batch))
        self.num_rows += batch.num_rows
        return True

    def _append(self, data: bytes) -> None:
        self._stream.write(data)
        self.num_bytes += len(data)

    def finish(self) -> int:
        self._append(self._encoder.finish())
        self._stream.close()
        return self.num_bytes

    def abandon(self) -> None:
        self._stream.close()


class _ColumnsPart:
    """A part whose encoder writes columns into the stream."""

    def __init__(self, path: str, stream: Any, settings: FileSinkSettings) -> None:
        self.path = path
        self.num_rows = 0
        self._stream = stream
        self._schema = settings.schema
        self._encoder = columns_encoder(settings.format, stream, settings.compression)

    @property
    def num_bytes(self) -> int:
        return int(self._stream.tell()) + self._encoder.gathered_bytes

    def write(self, batch: Batch) -> bool:
        columns = columns_to_write(batch, self._schema)
        if not self._encoder.write(columns):
            return False
        self.num_rows += columns.num_rows
        return True

    def finish(self) -> int:
        self._encoder.finish()
        size = int(self._stream.tell())
        self._stream.close()
        return size

    def abandon(self) -> None:
        self._encoder.abandon()
        self._stream.close()


def open_part(path: str, stream: Any, settings: FileSinkSettings) -> Part:
    """Begin a part in a stream of bytes."""
    if settings.format in ("parquet", "orc", "avro"):
        return _ColumnsPart(path, stream, settings)
    if settings.format == "jsonl":
        return _EncodedPart(path, stream, JsonEncoder())
    if settings.format == "seq":
        return _EncodedPart(path, stream, SequenceEncoder(settings.sequence, settings.schema))
    encoder = CsvEncoder(settings.delimiter, has_header=settings.has_header, schema=settings.schema)
    return _EncodedPart(path, stream, encoder)


class OpenParts:
    """The parts being filled, one for each folder; at most so many are open at a time.

    Args:
        finish: Makes the part of a folder complete.
    """

    def __init__(self, finish: Callable[[str, Part], None]) -> None:
        self._finish = finish
        # By folder; the one used last is the last.
        self._parts: dict[str, Part] = {}

    def of(self, folder: str, begin: Callable[[], Part]) -> Part:
        """Return the part of a folder, which is begun if there is none; the one used longest ago makes room for it."""
        part = self._parts.pop(folder, None)
        if part is None:
            if len(self._parts) == MAX_OPEN_PARTS:
                self.finish(next(iter(self._parts)))
            part = begin()
        self._parts[folder] = part
        return part

    def finish(self, folder: str) -> None:
        """Have the part of a folder made complete."""
        self._finish(folder, self._parts.pop(folder))

    def finish_all(self) -> None:
        """Have all parts made complete."""
        for folder in list(self._parts):
            self.finish(folder)

    def abandon(self) -> list[tuple[str, Part]]:
        """Close all parts without finishing; return them with their folders: what there is of them is to be deleted."""
        parts, self._parts = self._parts, {}
        for part in parts.values():
            with contextlib.suppress(*WRITE_ERRORS):  # it is thrown away; whatever failed before has been told
                part.abandon()
        return list(parts.items())


@contextlib.contextmanager
def failing(what: str, **place: Any) -> Iterator[None]:
    """Make what storage or a format raises inside a SinkError.

    Args:
        what: What could not be done.
        **place: Where: operator, subtask, path.
    """
    try:
        yield
    except WRITE_ERRORS as error:
        message = f"{what}: {error}"
        raise SinkError(message, **place) from error
