"""What the local executor holds in memory, and what it lays on disk.

The results of a plan's nodes are lists of record batches. As long as there is room they stay where they were made;
beyond that they are written to files of the local disk and mapped, so that the system reads what is looked at and
forgets it again. Operators see batches in either case.

Some operators have to see a partition whole: they sort it, join it, or hand out its groups. One whose partition does
not fit is refused before it begins, since a process that has taken too much is killed without a word.

Source: Flink's managed memory of batch operators and its spilling ``NormalizedKeySorter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.state.files.spilling import mapped_on_disk

from ..errors import ProgramError
from ..plan.plan import (
    CoGroup,
    CombineGroup,
    ConditionJoin,
    Cross,
    First,
    Join,
    Node,
    OverGroups,
    ReduceGroup,
    SemiJoin,
    Sort,
    SortPartition,
)

__all__ = ["Memory", "held_inputs"]

Partition = list[pa.RecordBatch]

_HELD_INPUTS: dict[type[Node], tuple[int, ...]] = {
    CoGroup: (0, 1),
    ConditionJoin: (1,),
    Cross: (1,),
    Join: (0, 1),
    OverGroups: (0,),
    SemiJoin: (0, 1),
    Sort: (0,),
    SortPartition: (0,),
}


def held_inputs(node: Node) -> tuple[int, ...]:
    """Return which inputs of a node lie in memory whole, a partition at a time."""
    if isinstance(node, (CombineGroup, ReduceGroup)):
        return () if node.is_sorted else (0,)
    if isinstance(node, First):
        return (0,) if node.orders and not node.is_sorted else ()
    return _HELD_INPUTS.get(type(node), ())


_SMALLEST_FILE_BYTES = 1 << 20
"""Less is not worth a file, unless it is all that there is."""


class Memory:
    """The room that a job has.

    Args:
        limit_bytes: How much its records may take, beside what is there already; None for no limit.
        directory: Where records go that do not fit; None for the system's directory for temporary files.
    """

    def __init__(self, limit_bytes: int | None, directory: str | None = None) -> None:
        self._limit = limit_bytes
        self._directory = directory
        # What the program itself held before.
        self._before = pa.total_allocated_bytes()
        # How much has been written to disk so far.
        self.num_spilled_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room left."""
        return self._limit is not None and pa.total_allocated_bytes() - self._before > self._limit

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Partition:
        """Return all batches, those for which there is no room lying on disk.

        Raises:
            StorageError: If the disk is full, too.
        """
        held: Partition = []
        pending: Partition = []
        num_bytes = 0
        for batch in batches:
            pending.append(batch)
            num_bytes += batch.nbytes
            if num_bytes >= _SMALLEST_FILE_BYTES and self.is_full:
                held += self._on_disk(pending)
                pending, num_bytes = [], 0
        return held + pending

    def _on_disk(self, batches: Partition) -> Partition:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        written = sink.getvalue()
        self.num_spilled_bytes += written.size
        stream = pa.py_buffer(mapped_on_disk(memoryview(written), self._directory))
        return list(pa.ipc.open_stream(stream))

    def check_room(self, node: Node, inputs: Sequence[Partition]) -> None:
        """Refuse an operator whose partition does not fit.

        Raises:
            ProgramError: If it does not.
        """
        if self._limit is None:
            return
        needed = sum(batch.nbytes for index in held_inputs(node) for batch in inputs[index])
        if needed > self._limit:
            what = "its second input" if isinstance(node, (ConditionJoin, Cross)) else "a partition"
            message = (
                f"operator {node.name!r} has to hold {what} of {needed:,} bytes in memory, "
                f"and the local executor has room for {self._limit:,}"
            )
            hint = (
                'a higher parallelism makes smaller partitions; memory_bytes=... allows more; executor="spark" spills'
            )
            raise ProgramError(message, hint=hint, operator=node.name)
