"""What arguments of sinks and sources of tables must be, whatever the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, get_args

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, nearest
from headrace.engine.kernel.config import parse_duration_ms

from ...formats.schemas import schema_of
from .reading import OnChange

__all__ = ["columns_of", "follow_ms_of", "require_reading", "require_writing", "time_of"]


def require_writing(
    schema: pa.Schema | None, partition_by: Sequence[str], key: Sequence[str], max_part_bytes: int
) -> None:
    """See that a sink's arguments can be meant.

    Raises:
        ConfigurationError: If not.
    """
    if max_part_bytes < 1:
        message = f"max_part_bytes must be at least 1; got {max_part_bytes}"
        raise ConfigurationError(message)
    if partition_by and schema is None:
        message = "partition_by is for a table that is made: it needs the schema, too"
        raise ConfigurationError(message)
    for what, names in (("partition_by", partition_by), ("key", key)):
        if len(set(names)) < len(names):
            message = f"{what} names a column twice: {list(names)}"
            raise ConfigurationError(message)
        absent = [name for name in names if schema is not None and name not in schema.names]
        if absent and schema is not None:
            message = f"{what}: there is no column {absent[0]!r}"
            raise ConfigurationError(message, hint=nearest(absent[0], schema.names))


def columns_of(
    columns: Sequence[str] | pa.Schema | Mapping[str, Any] | None,
) -> tuple[tuple[str, ...] | None, pa.Schema | None]:
    """Return the names of columns that are to be read, and their types if those are given."""
    if columns is None:
        return None, None
    if isinstance(columns, (pa.Schema, Mapping)):
        schema = schema_of(columns)
        assert schema is not None
        return tuple(schema.names), schema
    return tuple(columns), None


def follow_ms_of(follow: object) -> int | None:
    """Return how often to look for new versions; None for never.

    Raises:
        ConfigurationError: If it is no duration.
    """
    if follow is None:
        return None
    interval_ms = parse_duration_ms(follow)
    if interval_ms < 1:
        message = f"follow must be at least 1 ms; got {follow!r}"
        raise ConfigurationError(message)
    return interval_ms


def time_of(as_of: datetime | str | None) -> datetime | None:
    """Return a moment; one without a time zone is in UTC.

    Raises:
        ConfigurationError: If it is none.
    """
    if as_of is None:
        return None
    try:
        moment = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    except ValueError as error:
        message = f"as_of is a time in ISO 8601; got {as_of!r}"
        raise ConfigurationError(message) from error
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


def require_reading(
    follow_ms: int | None, start: str | int, on_change: str, version: int | None, as_of: datetime | str | None
) -> None:
    """See that a source's arguments can be meant.

    Raises:
        ConfigurationError: If not.
    """
    if start not in ("full", "latest") and (isinstance(start, bool) or not isinstance(start, int)):
        message = f"start must be 'full', 'latest' or a version; got {start!r}"
        raise ConfigurationError(message)
    if follow_ms is None and start != "full":
        message = "start is for a source that follows"
        raise ConfigurationError(message, hint="version reads an older version once")
    if on_change not in get_args(OnChange):
        message = f"on_change must be one of {', '.join(get_args(OnChange))}; got {on_change!r}"
        raise ConfigurationError(message)
    if sum((version is not None, as_of is not None, start != "full")) > 1:
        message = "version, as_of and start say each where reading begins: one of them is enough"
        raise ConfigurationError(message)
