"""OVER over changes: each row with what its partition comes to, kept up to date.

Rows may be in any order, frames may go beyond the row, and rows may be taken back: when a partition changes, the
columns of its rows are computed anew, and those that have other ones are updated. So it keeps all rows, and a batch
costs as much as the partitions that it touches are large. Rows in the order of event time that only come are given once
by `headrace.engine.timed.over_by_time`, which waits for them and keeps little.

Rows that are equal in the order stay as they have come; of equal rows that which has come first is taken back.

Invariant: what is out are the rows that remain, with what a batch job would give for them.

Source: Flink's ``NonTimeRangeUnboundedPrecedingFunction`` and ``NonTimeRowsUnboundedPrecedingFunction``, which take
aggregates of all rows before alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..frames.frame_calls import Frame, output_type
from ..functions.operator import FRAME_LOOPS, OperatorContext
from ..operators.column_operators import naming_operator
from .by_key import OneInput
from .changes import check_names, require_one_subtask

if TYPE_CHECKING:
    from .partition_rows import ChangingOverState

__all__ = ["ChangingOver"]


class ChangingOver(OneInput):
    """Passes rows, each with columns of its place, its neighbours or its frame in its partition, and updates them.

    Args:
        partition_keys: Names of the partition's columns, by which the input is keyed; none for one partition, in one
            subtask.
        orders: What rows are ordered by: column, whether the smallest comes first, and whether null comes first (None
            for Flink's default: first if ascending, else last); none for the order of arrival.
        columns: What is computed, by the name of its column: places, neighbours or aggregates.
        input_schema: Type of the records.
        frame: Which rows aggregates see; None for all up to the row and those that are equal to it in the order, or,
            where there is none, all of the partition.

    Raises:
        ProgramError: If a column is not there or a name is taken.
        TypeMismatchError: If something does not exist for the types.
    """

    compiled_loops = FRAME_LOOPS

    def __init__(
        self,
        partition_keys: Sequence[str],
        orders: Sequence[tuple[str, bool, bool | None]],
        columns: Mapping[str, Any],
        *,
        input_schema: pa.Schema,
        frame: Frame | None = None,
        ttl_ms: int = 0,
    ) -> None:
        super().__init__(input_schema)
        self.partition_keys = tuple(partition_keys)
        self.orders = tuple(orders)
        self.columns = dict(columns)
        self.frame = frame
        self.ttl_ms = ttl_ms
        check_names("partition by", self.partition_keys, input_schema)
        check_names("order by", [column for column, _, _ in self.orders], input_schema)
        if frame is not None and self.orders:
            frame.in_units_of(self._schema.field(self.orders[-1][0]).type)
        taken = [name for name in self.columns if name in input_schema.names]
        if taken:
            message = f"column {taken[0]!r} is there already; the new one needs another name"
            raise ProgramError(message)
        new = [pa.field(name, output_type(one, self._schema)) for name, one in self.columns.items()]
        self._output = pa.schema([*self._schema, *new])

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._output

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            if not self.partition_keys:
                require_one_subtask(context)
            from .partition_rows import ChangingOverState

            new = {name: (one, self._output.field(name).type) for name, one in self.columns.items()}
            self._state: ChangingOverState = ChangingOverState(
                context, self._schema, self.partition_keys, self.orders, new, self.frame, self.ttl_ms
            )

    def __repr__(self) -> str:
        orders = ", ".join(f"{column} {'asc' if ascending else 'desc'}" for column, ascending, _ in self.orders)
        return f"ChangingOver({', '.join(self.partition_keys)}; {orders}; {', '.join(self.columns)}; {self.frame})"
