"""The sources of a plan, read in this process.

Records of a table or a sequence are dealt out in runs of equal length, splits of files in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ..columns.records import MAX_BATCH_ROWS
from ..errors import ProgramError
from ..plan.plan import FileSource, ForeignSource, Node, SequenceSource, TableSource, wire_schema
from .scopes import Partitions
from .spilling import Memory

__all__ = ["read_source"]

_LONGEST_SEQUENCE = 1 << 28
"""2 GiB of integers; what is made of them is as large again."""


def read_source(
    node: Node, count: int, memory: Memory, resolve: Callable[[ForeignSource], pa.Table] | None
) -> Partitions:
    """Return the records of a source.

    Args:
        node: A source of a plan.
        count: How many partitions there are to be.
        memory: Where they are held.
        resolve: Gives the records of a `ForeignSource`; None if nothing can.
    """
    if isinstance(node, FileSource):
        splits = node.files.splits(node)
        return [
            memory.kept(batch for split in splits[i::count] for batch in node.files.read(node, split))
            for i in range(count)
        ]
    if isinstance(node, SequenceSource):
        return _dealt_out(_sequence(node), count)
    if isinstance(node, TableSource):
        return _dealt_out(node.table, count)
    assert isinstance(node, ForeignSource)
    if resolve is None:
        message = f"a source of kind {node.kind!r} cannot be read by the local executor"
        raise ProgramError(message, operator=node.name, hint='use executor="spark"')
    return _dealt_out(resolve(node), count)


def _sequence(node: SequenceSource) -> pa.Table:
    number = max(node.end - node.start + 1, 0)
    if number > _LONGEST_SEQUENCE:
        message = f"a sequence of {number:,} integers is too long for the local executor, which holds it in memory"
        raise ProgramError(message, operator=node.name, hint='use executor="spark"')
    integers = np.arange(number, dtype=np.int64) + node.start
    return pa.table({"value": integers}).cast(wire_schema(node.schema))


def _dealt_out(table: pa.Table, count: int) -> Partitions:
    """Runs of equal length."""
    partitions: Partitions = []
    whole, rest = divmod(table.num_rows, count)
    offset = 0
    for i in range(count):
        length = whole + (i < rest)
        part = table.slice(offset, length)
        partitions.append([batch for batch in part.to_batches(max_chunksize=MAX_BATCH_ROWS) if batch.num_rows])
        offset += length
    return partitions
