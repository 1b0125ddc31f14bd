"""A table of Apache Hudi as a source: its rows, or each new commit as it comes.

Source: Hudi's connector for Flink, ``HoodieTableSource``, ``StreamReadMonitoringFunction``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.errors import ConfigurationError

from ...arguments.places import absolute_place
from ..lake.options import follow_ms_of, require_reading
from ..lake.source import LakeSource
from .client import HudiAccess, hudi
from .reading import ReadableHudi
from .timeline import number_of

__all__ = ["HudiSource"]

_KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")


class HudiSource(LakeSource):
    """Reads a table of Apache Hudi.

    Args:
        uri: The table's folder: a local path or a URI.
        columns: Which to read: names, or a schema (or a mapping from names to types) that also says as which types;
            None for all but Hudi's own (``_hoodie_commit_time`` ...), which can be named.
        follow: Look for new commits this often (milliseconds, or text such as ``"10 s"``), without end; None reads the
            rows that are there when the job begins, and ends.
        start: Where following begins: ``"full"``, with the rows that are there; ``"latest"``, behind the newest commit;
            a number, behind the commit of that instant or time (``20240229120000000``).
        on_change: What a commit that does more than to add rows means to who follows: ``"fail"``; ``"skip"`` passes it
            over; ``"rows"`` gives the rows that it changes as they are behind it, and fails where rows are deleted.
        table_type: What the table must be: ``COPY_ON_WRITE`` or ``MERGE_ON_READ``; None for either.
        storage_options: Of the library's access to the table (``aws_region`` ...). Base files are read through the
            file systems of Headrace, which find what they need in the environment.

    Guarantees: exactly once with checkpoints; files are never changed, so what is read again is the same. A commit
    whose files the cleaner has removed, or that is archived, before it was read fails the job.

    Raises:
        ConfigurationError: If an argument has an illegal value, or ``hudi`` is not installed.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        columns: Sequence[str] | pa.Schema | Mapping[str, Any] | None = None,
        follow: object = None,
        start: str | int = "full",
        on_change: Literal["fail", "skip", "rows"] = "fail",
        table_type: str | None = None,
        storage_options: Mapping[str, str] = {},
    ) -> None:
        hudi()
        follow_ms = follow_ms_of(follow)
        gives_changed = on_change == "rows"
        judged: Literal["fail", "skip"] = "skip" if on_change == "skip" else "fail"
        require_reading(follow_ms, start, judged if gives_changed else on_change, None, None)
        if table_type not in (None, *_KINDS):
            message = f"table_type must be one of {', '.join(_KINDS)}; got {table_type!r}"
            raise ConfigurationError(message)
        if isinstance(start, int):
            start = number_of(str(start))
        access = HudiAccess(absolute_place(uri), dict(storage_options), table_type)
        super().__init__(ReadableHudi(access, start, gives_changed), columns, follow_ms, judged)
