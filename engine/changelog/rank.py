"""The first rows of each partition in an order (Top-N, ROW_NUMBER), kept up to date over changes.

Rows that are equal in that order stay as they have come, the earlier one first, unless it is said otherwise. What a
batch comes to is net. With the row's number in the result each place that has another row is an update; without it
rows that only change places give nothing, rows that leave the first ones are -D and those that take their place +I.
With a limit of 1 there is one place, so it is updates again.

An insert-only input keeps nothing but the rows that are among the first ones; a row that is behind the last of them is
dropped before anything else is done with it. An input that takes rows back keeps all of them.

With a limit of 1 this is deduplication: by time, the first or the last row of a key.

Invariant: what is out are the first rows of those that have come and were not taken back.

Source: Flink's ``AppendOnlyTopNFunction``, ``RetractableTopNFunction`` and ``RowTimeDeduplicateFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..functions.operator import KeyFields, OperatorContext
from ..operators.column_operators import naming_operator
from .by_key import ReplayingInput
from .changes import check_names, require_one_subtask

if TYPE_CHECKING:
    from .rank_state import RankState

__all__ = ["Rank"]


class Rank(ReplayingInput):
    """Passes the first rows of each partition. Emits the input's columns, and the row's number if it has a name.

    Args:
        partition_keys: Names of the partition's columns, by which the input is keyed; none for one partition, in one
            subtask.
        orders: What rows are ordered by: column, whether the smallest comes first, and whether null comes first (None
            for Flink's default: first if ascending, else last).
        input_schema: Type of the records.
        limit: How many rows are given.
        offset: How many are passed over before them.
        number: Name of the column for the row's number, from 1 on, as int64; None for none.
        takes_back: Whether changes may take rows back.
        ties_keep_last: Whether of rows that are equal in that order the later one comes first.
        ttl_ms: How long a partition is kept in which nothing changes, by the clock; 0 for ever.

    Raises:
        ProgramError: If a column is not there, the number's name is taken, or limit or offset mean nothing.
        TypeMismatchError: If a column has no order.
    """

    def __init__(
        self,
        partition_keys: Sequence[str],
        orders: Sequence[tuple[str, bool, bool | None]],
        *,
        input_schema: pa.Schema,
        limit: int,
        offset: int = 0,
        number: str | None = None,
        takes_back: bool,
        ties_keep_last: bool = False,
        ttl_ms: int = 0,
    ) -> None:
        super().__init__(input_schema, takes_back=takes_back)
        self.partition_keys = tuple(partition_keys)
        self.orders = tuple(orders)
        self.limit = limit
        self.offset = offset
        self.number = number
        self.ties_keep_last = ties_keep_last
        self.ttl_ms = ttl_ms
        check_names("partition by", self.partition_keys, input_schema)
        check_names("order by", [column for column, _, _ in self.orders], input_schema)
        if limit < 1 or offset < 0:
            message = f"a limit is at least 1, an offset at least 0; got {limit} and {offset}"
            raise ProgramError(message)
        if number is not None and number in input_schema.names:
            message = f"column {number!r} is there already; the row's number needs another name"
            raise ProgramError(message)

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._schema if self.number is None else self._schema.append(pa.field(self.number, pa.int64()))

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        return frozenset(keys)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            if not self.partition_keys:
                require_one_subtask(context)
            from .rank_state import RankState

            self._state: RankState = RankState(
                context,
                self._schema,
                self.partition_keys,
                self.orders,
                places=(self.offset, self.offset + self.limit),
                is_numbered=self.number is not None,
                takes_back=self.takes_back,
                ties_keep_last=self.ties_keep_last,
                ttl_ms=self.ttl_ms,
            )

    def __repr__(self) -> str:
        orders = ", ".join(f"{column} {'asc' if ascending else 'desc'}" for column, ascending, _ in self.orders)
        return f"Rank({', '.join(self.partition_keys)}; {orders}; {self.offset} + {self.limit})"
