"""A table of Delta Lake as a source: one version, or each new one as it comes.

Source: Flink's connector for Delta Lake, ``DeltaSource``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from ...arguments.places import absolute_place
from ..lake.options import follow_ms_of, require_reading, time_of
from ..lake.reading import OnChange
from ..lake.source import LakeSource
from .client import DeltaAccess, delta
from .reading import ReadableDelta

__all__ = ["DeltaSource"]


class DeltaSource(LakeSource):
    """Reads a table of Delta Lake.

    Args:
        uri: The table's folder: a local path or a URI.
        columns: Which to read: names, or a schema (or a mapping from names to types) that also says as which types;
            None for all.
        version: Whose rows are read; None for the newest when the job begins.
        as_of: The same by time: a `datetime`, or text in ISO 8601.
        follow: Look for new versions this often (milliseconds, or text such as ``"10 s"``), without end; None reads one
            version and ends.
        start: Where following begins: ``"full"``, with the rows that are there; ``"latest"``, behind the newest
            version; a number, behind that version.
        on_change: What a version that takes rows away means to who follows: ``"fail"``, or ``"skip"`` passes it over.
        storage_options: As for `DeltaSink`.

    Guarantees: exactly once with checkpoints; files are never changed, so what is read again is the same.

    Raises:
        ConfigurationError: If an argument has an illegal value, or ``deltalake`` is not installed.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        columns: Sequence[str] | pa.Schema | Mapping[str, Any] | None = None,
        version: int | None = None,
        as_of: datetime | str | None = None,
        follow: object = None,
        start: str | int = "full",
        on_change: OnChange = "fail",
        storage_options: Mapping[str, str] = {},
    ) -> None:
        delta()
        follow_ms = follow_ms_of(follow)
        require_reading(follow_ms, start, on_change, version, as_of)
        access = DeltaAccess(absolute_place(uri), dict(storage_options))
        moment = time_of(as_of)
        table = ReadableDelta(access, version, None if moment is None else moment.isoformat(), start)
        super().__init__(table, columns, follow_ms, on_change)
