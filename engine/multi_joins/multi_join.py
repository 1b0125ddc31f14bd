"""The multi-way join: inputs that have one key in common, joined one after the other, as one operator.

The rows of each input are kept once, by the common key; what the first joins of a chain come to is kept nowhere. A
batch of one input is a difference of the result: it is matched with the inputs before its own, and these matches with
the inputs behind it (`chain_state`). Several chains may read one input: each has a result of its own, and the input's
rows are kept once for all of them (`multi_join_state`).

What is out is what the chain of joins would give, `headrace.engine.changelog.join`; a batch comes to a net change. If
all joins are inner ones the kinds of rows are passed on, so that insert-only inputs give insertions alone.

Invariant: what is out is the join of the rows that have come and were not taken back.

Source: Flink's ``StreamingMultiJoinOperator``; FLIP-516. Shared rows: the arrangements of differential dataflow.
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
from ..operators.column_operators import naming_operator
from .join_step import JoinChain, result_tag

if TYPE_CHECKING:
    from ..tables.columns import Integers
    from .multi_join_state import MultiJoinState

__all__ = ["MultiJoin"]


class MultiJoin(ByKey):
    """Joins keyed inputs. Emits the columns of each chain's projection, without event times: those of the first chain
    are its output, those of the others its side outputs (`result_tag`).

    Args:
        keys: Names of the key's columns of each input, by which it is keyed; their types are the same.
        chains: How inputs are joined; each input is in one of them at least.
        schemas: Types of the records of each input.

    Raises:
        ProgramError: If columns are not there, keys do not fit each other, names collide, or nothing is projected.
        TypeMismatchError: If a condition is none.
    """

    def __init__(
        self,
        keys: Sequence[Sequence[str]],
        chains: Sequence[JoinChain],
        *,
        schemas: Sequence[pa.Schema],
    ) -> None:
        super().__init__(schemas)
        self.keys = [tuple(one) for one in keys]
        self.chains = tuple(chains)
        self._check_inputs()
        for chain in self.chains:
            self._check(chain)

    def _check_inputs(self) -> None:
        num_inputs = len(self.schemas)
        if num_inputs < 2 or len(self.keys) != num_inputs:
            message = f"a join of {num_inputs} inputs needs as many keys, and two inputs"
            raise ProgramError(message)
        kinds = []
        for names, schema in zip(self.keys, self._plain, strict=True):
            check_names("keys", names, schema)
            kinds.append([schema.field(name).type for name in names])
        if not kinds[0] or any(one != kinds[0] for one in kinds):
            message = f"keys of a join must be of one type in all inputs; got {kinds}"
            raise ProgramError(message, hint="cast some of them")
        read = [at for chain in self.chains for at in chain.inputs]
        if set(read) != set(range(num_inputs)) or any(len(set(one.inputs)) < len(one.inputs) for one in self.chains):
            message = (
                f"chains read all inputs, and none of them an input twice; got {[one.inputs for one in self.chains]}"
            )
            raise ProgramError(message)

    def _check(self, chain: JoinChain) -> None:
        if len(chain.inputs) < 2 or len(chain.steps) != len(chain.inputs) - 1:
            message = f"a chain of {len(chain.inputs)} inputs needs a step for each but the first"
            raise ProgramError(message)
        given = [name for _, _, name in chain.projection]
        if not given or len(set(given)) < len(given):
            message = f"a projection needs a column, and a name once; got {chain.projection}"
            raise ProgramError(message)
        given_of = {0, *(at for at, step in enumerate(chain.steps, 1) if step.gives_pairs)}
        if any(at not in given_of for at, _, _ in chain.projection):
            message = f"rows of semi and anti joins are no part of the result; got {chain.projection}"
            raise ProgramError(message)
        for columns in (chain.projection, *(step.columns for step in chain.steps)):
            for at, number in enumerate(chain.inputs):
                check_names("projection", [column for of, column, _ in columns if of == at], self._plain[number])
        for number, step in enumerate(chain.steps):
            if any(not 0 < one <= number for one in step.needs) or any(at > number + 1 for at, _, _ in step.columns):
                message = f"step {number} of a join reads inputs behind it: {step}"
                raise ProgramError(message)
            if step.condition is not None:
                kind = step.condition.output_type(self._schema_of(chain, step.columns))
                require_condition(step.condition, kind, "join")

    def _schema_of(self, chain: JoinChain, columns: Sequence[tuple[int, str, str]]) -> pa.Schema:
        plain = [self._plain[number] for number in chain.inputs]
        return pa.schema([(name, plain[at].field(column).type) for at, column, name in columns])

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._schema_of(self.chains[0], self.chains[0].projection)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            from .multi_join_state import MultiJoinState

            self._state: MultiJoinState = MultiJoinState(context, self.keys, self._plain, self.chains)

    def _keys_of(self, columns: pa.RecordBatch, input_index: int) -> list[pa.Array]:
        return [columns.column(name) for name in self.keys[input_index]]

    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        for number, changes in self._state.process(part, signs, kinds, input_index):
            if number:
                self.context.output.emit_side(result_tag(number), changes)
            else:
                yield changes

    def __repr__(self) -> str:
        how = ["-".join(step.how for step in chain.steps) for chain in self.chains]
        return f"MultiJoin({', '.join(how)}: {' = '.join(', '.join(names) for names in self.keys)})"
