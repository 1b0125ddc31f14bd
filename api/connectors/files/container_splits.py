"""One split of a file that says in its header what it holds, being read: SequenceFiles of Hadoop, files of Avro.

Such files have marks where reading may begin, and so are read in ranges of bytes, as text is. Their records have no
lines: a bad one is told by its byte, or by that of the block that it was compressed in.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import ConfigurationError
from headrace.state.files.filesystem import FileSystem

from ...formats.blocks import RecordFile
from ...formats.containers.typed_files import container_records_of
from ...formats.contract import ContainedRecords, Rejected
from .settings import FileSettings
from .splits import TextSplit

__all__ = ["ContainerSplit"]


class ContainerSplit(TextSplit):
    """The records behind the marks in a range of bytes, up to the first mark behind it; the position is as of text."""

    _format: ContainedRecords  # type: ignore[assignment]

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext) -> None:
        try:
            super().__init__(split, settings, context)
        except ConfigurationError as error:  # the file has a type or a codec that is not known
            error.context.update(path=self._path, split=split.split_id)
            raise

    def _make_file(self, fs: FileSystem) -> RecordFile:
        return RecordFile(fs, self._path, is_compressed=False)

    def _make_format(self) -> tuple[ContainedRecords, int, None]:  # type: ignore[override]
        records = container_records_of(self._settings.format, self._file, self._settings.columns)
        return records, records.first_byte, None

    def _next_block(self) -> bytes:
        return self._file.block_between_marks(self._format, self._byte, self._end)

    def _pieces(self, block: bytes) -> Iterator[Batch | Rejected]:
        with self._reading:
            yield from self._format.pieces(block)
