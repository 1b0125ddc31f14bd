"""A table of Apache Iceberg as a source: one snapshot, or each new one as it comes.

Source: Iceberg's connector for Flink, ``IcebergSource``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from ..lake.options import follow_ms_of, require_reading, time_of
from ..lake.reading import OnChange
from ..lake.source import LakeSource
from .client import IcebergAccess, iceberg
from .options import require_catalog, require_table
from .reading import ReadableIceberg

__all__ = ["IcebergSource"]


class IcebergSource(LakeSource):
    """Reads a table of Apache Iceberg.

    Args:
        table: ``namespace.name``.
        catalog: As for `IcebergSink`.
        columns: Which to read: names, or a schema (or a mapping from names to types) that also says as which types;
            None for all.
        version: The id of the snapshot whose rows are read; None for the newest when the job begins.
        as_of: The same by time: a `datetime`, or text in ISO 8601.
        follow: Look for new snapshots this often (milliseconds, or text such as ``"10 s"``), without end; None reads
            one snapshot and ends.
        start: Where following begins: ``"full"``, with the rows that are there; ``"latest"``, behind the newest
            snapshot; a number, behind that snapshot.
        on_change: What a snapshot that takes rows away means to who follows: ``"fail"``, or ``"skip"`` passes it over.

    Guarantees: exactly once with checkpoints; files are never changed, so what is read again is the same.

    Raises:
        ConfigurationError: If an argument has an illegal value, or ``pyiceberg`` is not installed.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, str],
        columns: Sequence[str] | pa.Schema | Mapping[str, Any] | None = None,
        version: int | None = None,
        as_of: datetime | str | None = None,
        follow: object = None,
        start: str | int = "full",
        on_change: OnChange = "fail",
    ) -> None:
        iceberg()
        require_table(table)
        follow_ms = follow_ms_of(follow)
        require_reading(follow_ms, start, on_change, version, as_of)
        access = IcebergAccess(require_catalog(catalog), table)
        moment = time_of(as_of)
        as_of_ms = None if moment is None else round(moment.timestamp() * 1_000)
        super().__init__(ReadableIceberg(access, version, as_of_ms, start), columns, follow_ms, on_change)
