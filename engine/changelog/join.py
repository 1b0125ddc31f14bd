"""The regular join: all rows of two inputs, by equal keys and maybe a further condition, kept up to date.

Both inputs are kept whole. Each batch is matched with the rows of the other input that there are, so that every pair is
found once, when its second row comes. A key that is null, or has a part that is null, matches nothing.

An outer join keeps for each row of a preserved side how many rows match it: the row goes out with nulls while there are
none. Semi and anti joins keep the same of the left rows, and give those that have matches, or none. What a batch comes
to is net: a row that gets its first match and loses it within a batch does not move.

An inner join passes the kind of the row that came, so that insert-only inputs give insertions alone; the others give +I
and -D, but for left rows of semi and anti joins.

Invariant: what is out is the join of the rows that have come and were not taken back.

Source: Flink's ``StreamingJoinOperator`` and ``StreamingSemiAntiJoinOperator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..columns.conditions import require_condition
from ..columns.expressions import Expression
from ..columns.records import Batch, RowKinds
from ..functions.operator import KeyFields, OperatorContext
from ..operators.column_operators import naming_operator
from .by_key import ByKey
from .changes import check_names
from .join_type import JoinType

if TYPE_CHECKING:
    from ..tables.columns import Integers
    from .join_state import JoinState

__all__ = ["ChangelogJoin"]


class ChangelogJoin(ByKey):
    """Joins two keyed inputs; 0 is the left one. Emits the columns of the projection, without event times.

    Args:
        left_keys: Names of the key's columns on the left, by which that input is keyed.
        right_keys: Those on the right, of the same types.
        how: The kind of join: ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``.
        left_schema: Type of the left records.
        right_schema: Type of the right records.
        projection: The columns of the result: side (0 or 1), column there, name in the result. Of semi and anti joins
            those of side 1 are no columns of the result; the condition may read them.
        condition: What else must be true of a pair, by names of the projection.
        ttls_ms: How long rows of either side are kept that are not written, by the clock; 0 for ever.

    Raises:
        ProgramError: If columns are not there, keys do not fit each other, names collide, or nothing is projected.
        TypeMismatchError: If the condition is none.
    """

    def __init__(
        self,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        how: str,
        *,
        left_schema: pa.Schema,
        right_schema: pa.Schema,
        projection: Sequence[tuple[int, str, str]],
        condition: Expression | None = None,
        ttls_ms: tuple[int, int] = (0, 0),
    ) -> None:
        kinds = [kind.value for kind in JoinType]
        if how not in kinds:
            message = f"a join is one of {kinds}; got {how!r}"
            raise ProgramError(message)
        super().__init__((left_schema, right_schema))
        self.join_type = JoinType(how)
        self.keys = (tuple(left_keys), tuple(right_keys))
        self.projection = [(side, column, name) for side, column, name in projection]
        self.condition = condition
        self.ttls_ms = ttls_ms
        self._check_keys()
        self._check_projection()

    def _check_keys(self) -> None:
        left, right = self.keys
        if not left or len(left) != len(right):
            message = f"both sides of a join need keys, and as many: {list(left)} and {list(right)}"
            raise ProgramError(message)
        fields = []
        for what, names, schema in zip(("left keys", "right keys"), self.keys, self._plain, strict=True):
            check_names(what, names, schema)
            fields.append([schema.field(name) for name in names])
        for one, other in zip(*fields, strict=True):
            if one.type != other.type:
                message = f"keys of a join must be of one type; {one.name} is {one.type}, {other.name} is {other.type}"
                raise ProgramError(message, hint="cast one of them")

    def _check_projection(self) -> None:
        for side, schema in enumerate(self.schemas):
            check_names("projection", [column for of, column, _ in self.projection if of == side], schema)
        names = [name for _, _, name in self.projection]
        if len(set(names)) < len(names) or not {side for side, _, _ in self.projection} <= {0, 1}:
            message = f"a projection needs sides 0 and 1, and a name once; got {self.projection}"
            raise ProgramError(message)
        if not self.output_schema().names:
            message = "a join needs a column of its result"
            raise ProgramError(message)
        if self.condition is not None:
            require_condition(self.condition, self.condition.output_type(self._pair_schema()), "join")

    def _pair_schema(self) -> pa.Schema:
        return pa.schema([(name, self._plain[side].field(column).type) for side, column, name in self.projection])

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        pairs = self._pair_schema()
        sides = {0} if self.join_type.gives_left_rows else {0, 1}
        return pa.schema([pairs.field(name) for side, _, name in self.projection if side in sides])

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        """Where a row may stand beside nulls, the other side's key is none of its own."""
        if tuple(keys) != self.keys:
            return frozenset()
        sides = [side for side in (0, 1) if self._is_always_there(side)]
        parts = [[(side, self.keys[side][at]) for side in sides] for at in range(len(self.keys[0]))]
        names = [[name for side, column, name in self.projection if (side, column) in part] for part in parts]
        return frozenset(product(*names))

    def _is_always_there(self, side: int) -> bool:
        """Whether each row of the result has one of this side."""
        if self.join_type.gives_left_rows:
            return side == 0
        return not self.join_type.preserves[1 - side]

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            from .join_state import JoinState

            self._state: JoinState = JoinState(
                context, self.join_type, self.keys, self._plain, self.projection, self.condition,
                self.ttls_ms,
            )  # fmt: skip

    def _keys_of(self, columns: pa.RecordBatch, input_index: int) -> list[pa.Array]:
        return self._state.key_columns(columns, input_index)

    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        return self._state.process(part, signs, kinds, input_index)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{left} = {right}" for left, right in zip(*self.keys, strict=True))
        return f"ChangelogJoin({self.join_type.value}: {pairs})"
