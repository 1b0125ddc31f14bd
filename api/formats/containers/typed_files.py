"""Files that say themselves what their columns are, by the names of their formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

import pyarrow as pa

from headrace.state.files.filesystem import FileSystem

from ..blocks import RecordFile
from .avro_files import AvroEncoder, avro_records_of
from .orc_files import OrcEncoder, open_orc, stripe_batches
from .parquet_files import ParquetEncoder, open_parquet, row_group_batches, without_extensions
from .sequence_files import sequence_records_of

__all__ = ["CONTAINERS", "ColumnsEncoder", "batches_of", "columns_encoder", "columns_in", "container_records_of"]

CONTAINERS = frozenset({"avro", "sequence"})
"""Those that are cut by marks: `headrace.formats.contract.ContainedRecords`."""


def container_records_of(form: str, file: RecordFile, columns: Sequence[str] | None = None) -> Any:
    """Look at the beginning of a file; return how its records are cut and decoded.

    Args:
        form: The format.
        file: The file; it has to be opened anew afterwards.
        columns: Which to give, of a file of Avro; None for all.

    Raises:
        DamagedFileError: If it is none of the format.
        ConfigurationError: If it has something that is not known here, or lacks a column.
    """
    return avro_records_of(file, columns) if form == "avro" else sequence_records_of(file)


def columns_in(form: str, fs: FileSystem, path: str) -> pa.Schema:
    """Return the columns of a file's records, of which only an end is read.

    Raises:
        ArrowException, StorageError: If it cannot be read.
        ConfigurationError: If it has something that is not known here.
    """
    if form in CONTAINERS:
        with closing(RecordFile(fs, path, is_compressed=False)) as records:
            return container_records_of(form, records).schema
    with fs.open_input(path) as file:
        if form == "orc":
            return open_orc(file).schema.remove_metadata()
        with open_parquet(file) as parquet:
            return without_extensions(parquet.schema_arrow)


def batches_of(form: str, fs: FileSystem, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file of Parquet, ORC or Avro.

    Raises:
        ArrowException, StorageError: If it cannot be read.
    """
    if form in CONTAINERS:
        with closing(RecordFile(fs, path, is_compressed=False)) as records:
            contained = container_records_of(form, records)
            byte = contained.first_byte
            records.open_at(byte)
            while block := records.block_between_marks(contained, byte, None):
                yield from (piece.columns for piece in contained.pieces(block))
                byte += len(block)
        return
    with fs.open_input(path) as file:
        if form == "orc":
            stripes = open_orc(file)
            yield from stripe_batches(stripes, range(stripes.nstripes), None)
            return
        with open_parquet(file) as parquet:
            yield from row_group_batches(parquet, range(parquet.metadata.num_row_groups), None)


class ColumnsEncoder(Protocol):
    """Columns written into one file."""

    @property
    def gathered_bytes(self) -> int:
        """About how much is not written yet."""
        ...

    def write(self, columns: pa.RecordBatch) -> bool:
        """Take records; False if their types do not fit into the file.

        Raises:
            TypeMismatchError: If they have other columns than those before, or a value has no form in the file.
            ConfigurationError: If a column's type has none.
        """
        ...

    def finish(self) -> None:
        """Write what is left, and what ends the file."""
        ...

    def abandon(self) -> None:
        """Close without what is gathered."""
        ...


def columns_encoder(form: str, stream: Any, compression: Any) -> ColumnsEncoder:
    """Return what writes a file of Parquet, ORC or Avro."""
    kinds: dict[str, Any] = {"parquet": ParquetEncoder, "orc": OrcEncoder, "avro": AvroEncoder}
    encoder: ColumnsEncoder = kinds[form](stream, compression)
    return encoder
