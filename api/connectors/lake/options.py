"""What arguments of sinks and sources of tables must be, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, nearest

__all__ = ["require_writing"]


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
