"""A table of Delta Lake as a sink, exactly once.

Writers leave Parquet files in the table's folder, finished before each barrier; when a checkpoint is complete, one
committer for all subtasks adds them to the table as one version (`headrace.connectors.lake.committing`).

Source: Flink's connector for Delta Lake, ``DeltaSink``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import SinkWriter
from headrace.engine.connectors.sink_protocols import GlobalCommitter
from headrace.engine.errors import ConfigurationError

from ...arguments.places import lasting_place
from ...formats.schemas import schema_of
from ..files.parts import Compression
from ..lake.committing import LakeCommitter
from ..lake.options import require_writing
from ..lake.writing import LakeWriter
from .client import DeltaAccess, delta

__all__ = ["DeltaSink"]


class DeltaSink:
    """Writes rows into a table of Delta Lake.

    Args:
        uri: The table's folder: a local path or a URI.
        schema: The table's columns, with which it is made if it is not there; None: it must be there.
        partition_by: The columns (integers, texts, dates) that a table that is made is partitioned by.
        key: Columns by which changes are applied: a row with a key that is there takes its place, and one whose field
            ``$deleted`` is true takes it away. The stream must be keyed by them. Empty: rows are added.
        max_part_bytes: A file is finished when it has this many bytes (about), even between checkpoints.
        compression: Of the files.
        storage_options: Of deltalake's access to the table's log, as for ``DeltaTable``. Data files are written through
            ``pyarrow.fs``, as those of `FileSink`, which finds what it needs in the environment.

    Guarantees: exactly once with checkpoints: one version of the table for each that has rows. Without checkpoints the
    rows appear when the job ends.

    Raises:
        ConfigurationError: If an argument has an illegal value, or ``deltalake`` is not installed.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        partition_by: str | Sequence[str] = (),
        key: str | Sequence[str] = (),
        max_part_bytes: int = 128 << 20,
        compression: Compression = "snappy",
        storage_options: Mapping[str, str] = {},
    ) -> None:
        delta()
        folders = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._key = (key,) if isinstance(key, str) else tuple(key)
        columns = schema_of(schema)
        require_writing(columns, folders, self._key, max_part_bytes)
        if not str(uri):
            message = "uri must not be empty"
            raise ConfigurationError(message)
        self._access = DeltaAccess(lasting_place(uri, "the folder of a table"), dict(storage_options), columns, folders)
        self._max_part_bytes = max_part_bytes
        self._compression: Compression = compression

    def __repr__(self) -> str:
        return f"DeltaSink({self._access.uri!r})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return LakeWriter(self._access, self._key, self._max_part_bytes, self._compression)

    def create_global_committer(self) -> GlobalCommitter:
        """Make the committer of all."""
        return LakeCommitter(self._access, self._key)
