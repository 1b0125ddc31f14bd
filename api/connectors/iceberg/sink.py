"""A table of Apache Iceberg as a sink, exactly once.

Writers leave Parquet files in the table's folder of data, finished before each barrier; when a checkpoint is complete,
one committer for all subtasks adds them to the table as one snapshot (`headrace.connectors.lake.committing`).

Source: Iceberg's connector for Flink, ``IcebergSink``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import SinkWriter
from headrace.engine.connectors.sink_protocols import GlobalCommitter

from ...formats.schemas import schema_of
from ..files.parts import Compression
from ..lake.committing import LakeCommitter
from ..lake.options import require_writing
from ..lake.writing import LakeWriter
from .client import IcebergAccess, iceberg
from .options import require_catalog, require_table

__all__ = ["IcebergSink"]


class IcebergSink:
    """Writes rows into a table of Apache Iceberg.

    Args:
        table: ``namespace.name``.
        catalog: The catalog's properties, as for ``pyiceberg.catalog.load_catalog``: ``type`` (``sql``, ``rest`` ...),
            ``uri``, ``warehouse`` and so on. Every slot uses them.
        schema: The table's columns, with which it is made if it is not there; None: it must be there.
        partition_by: The columns whose values are the partitions of a table that is made. A table that is there is
            written by its own partition spec, whatever its transforms are.
        key: Columns by which changes are applied: a row with a key that is there takes its place, and one whose field
            ``$deleted`` is true takes it away. The stream must be keyed by them. Empty: rows are added.
        max_part_bytes: A file is finished when it has this many bytes (about), even between checkpoints.
        compression: Of the files.

    Guarantees: exactly once with checkpoints: one commit to the table for each that has rows. Without checkpoints the
    rows appear when the job ends.

    Raises:
        ConfigurationError: If an argument has an illegal value, or ``pyiceberg`` is not installed.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, str],
        schema: pa.Schema | Mapping[str, Any] | None = None,
        partition_by: str | Sequence[str] = (),
        key: str | Sequence[str] = (),
        max_part_bytes: int = 128 << 20,
        compression: Compression = "zstd",
    ) -> None:
        iceberg()
        require_table(table)
        columns = schema_of(schema)
        partitions = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._key = (key,) if isinstance(key, str) else tuple(key)
        require_writing(columns, partitions, self._key, max_part_bytes)
        self._access = IcebergAccess(require_catalog(catalog), table, columns, partitions)
        self._max_part_bytes = max_part_bytes
        self._compression: Compression = compression

    def __repr__(self) -> str:
        return f"IcebergSink({self._access.table!r})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return LakeWriter(self._access, self._key, self._max_part_bytes, self._compression)

    def create_global_committer(self) -> GlobalCommitter:
        """Make the committer of all."""
        return LakeCommitter(self._access, self._key)
