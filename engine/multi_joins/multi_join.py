"""The multi-way join: a chain of inner and left joins whose inputs have one key in common, as one operator.

The rows of each input are kept once, by the common key; what the first joins of the chain come to is kept nowhere. A
batch of one input is a difference of the result: it is matched with the inputs before its own, and what comes of that
with those behind it (`multi_join_state`).

What is out is what the chain of joins would give, `headrace.engine.changelog.join`; a batch comes to a net change. If
all joins are inner ones the kinds of rows are passed on, so that insert-only inputs give insertions alone.

Invariant: what is out is the join of the rows that have come and were not taken back.

Source: Flink's ``StreamingMultiJoinOperator``; FLIP-516.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..changelog.by_key import ByKey
from ..changelog.changes import check_names
from ..columns.conditions import require_condition
from ..columns.records import Batch, RowKinds
from ..functions.operator import OperatorContext
from ..operators.columnar import naming_operator
from .join_step import JoinStep

if TYPE_CHECKING:
    from ..tables.columns import Integers
    from .multi_join_state import MultiJoinState

__all__ = ["MultiJoin"]


class MultiJoin(ByKey):
    """Joins keyed inputs, one after the other. Emits the columns of the projection, without event times.

    Args:
        keys: Names of the key's columns of each input, by which it is keyed; their types are the same.
        steps: How the second input is joined, the third ...
        schemas: Types of the records of each input.
        projection: The columns of the result: input, column there, name in the result.

    Raises:
        ProgramError: If columns are not there, keys do not fit each other, names collide, or nothing is projected.
        TypeMismatchError: If a condition is none.
    """

    def __init__(
        self,
        keys: Sequence[Sequence[str]],
        steps: Sequence[JoinStep],
        *,
        schemas: Sequence[pa.Schema],
        projection: Sequence[tuple[int, str, str]],
    ) -> None:
        super().__init__(schemas)
        self.keys = [tuple(one) for one in keys]
        self.steps = tuple(steps)
        self.projection = [(at, column, name) for at, column, name in projection]
        self._check()

    def _check(self) -> None:
        num_inputs = len(self.schemas)
        if num_inputs < 2 or len(self.keys) != num_inputs or len(self.steps) != num_inputs - 1:
            message = f"a join of {num_inputs} inputs needs as many keys, and a step for each but the first"
            raise ProgramError(message)
        kinds = []
        for names, schema in zip(self.keys, self._plain, strict=True):
            check_names("keys", names, schema)
            kinds.append([schema.field(name).type for name in names])
        if not kinds[0] or any(one != kinds[0] for one in kinds):
            message = f"keys of a join must be of one type in all inputs; got {kinds}"
            raise ProgramError(message, hint="cast some of them")
        given = [name for _, _, name in self.projection]
        if not given or len(set(given)) < len(given):
            message = f"a projection needs a column, and a name once; got {self.projection}"
            raise ProgramError(message)
        for columns in (self.projection, *(step.columns for step in self.steps)):
            for at, schema in enumerate(self._plain):
                check_names("projection", [column for of, column, _ in columns if of == at], schema)
        for number, step in enumerate(self.steps):
            if any(not 0 < one <= number for one in step.needs) or any(at > number + 1 for at, _, _ in step.columns):
                message = f"step {number} of a join reads inputs behind it: {step}"
                raise ProgramError(message)
            if step.condition is not None:
                require_condition(step.condition, step.condition.output_type(self._schema_of(step.columns)), "join")

    def _schema_of(self, columns: Sequence[tuple[int, str, str]]) -> pa.Schema:
        return pa.schema([(name, self._plain[at].field(column).type) for at, column, name in columns])

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._schema_of(self.projection)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            from .multi_join_state import MultiJoinState

            self._state: MultiJoinState = MultiJoinState(context, self.keys, self._plain, self.steps, self.projection)

    def _keys_of(self, columns: pa.RecordBatch, input_index: int) -> list[pa.Array]:
        return [columns.column(name) for name in self.keys[input_index]]

    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        return self._state.process(part, signs, kinds, input_index)

    def __repr__(self) -> str:
        how = ["left" if step.is_left else "inner" for step in self.steps]
        return f"MultiJoin({', '.join(how)}: {' = '.join(', '.join(names) for names in self.keys)})"
