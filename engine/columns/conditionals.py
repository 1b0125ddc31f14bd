"""``when ... then ... otherwise``: expressions of which one branch counts for each record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import UserFunctionError

from .expressions import Call, Expression, expression_of, lit, repr_operand
from .kernels import Value, compute

__all__ = ["Case", "When", "if_else", "when"]


class Case(Call):
    """``CASE WHEN``: the value of the first condition that is true; an expression at every step, null if nothing fits.

    Made by `when` and `When.then`, extended by ``when`` and ``otherwise``.
    """

    __slots__ = ()

    def __init__(self, arguments: tuple[Expression, ...]) -> None:
        super().__init__("case", arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return Case, (self.arguments,)

    def with_children(self, children: tuple[Expression, ...]) -> Expression:
        return Case(children)

    def when(self, condition: Any) -> When:
        """Add a branch, looked at when all conditions before it are not true."""
        return When(expression_of(condition), self.arguments[:-1])

    def otherwise(self, value: Any) -> Case:
        """Say what the value is if no condition is true."""
        return Case((*self.arguments[:-1], expression_of(value)))

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        try:
            return super()._evaluate(batch)
        except UserFunctionError:
            # A branch failed on records that may not be its own: look again, giving each branch only what reaches it.
            return self._evaluate_guarded(batch)

    def _evaluate_guarded(self, batch: pa.RecordBatch) -> pa.Array:
        pc = compute()
        output_type = self.output_type(batch.schema)
        remaining = np.arange(batch.num_rows)
        taken: list[np.ndarray] = []
        parts: list[pa.Array] = []
        rest = batch
        for condition, value in zip(self.arguments[0:-1:2], self.arguments[1:-1:2], strict=True):
            chosen = pc.fill_null(condition.evaluate(rest), False).to_numpy(zero_copy_only=False)
            taken.append(remaining[chosen])
            parts.append(value.evaluate(rest.filter(pa.array(chosen))).cast(output_type))
            remaining = remaining[~chosen]
            rest = rest.filter(pa.array(~chosen))
        taken.append(remaining)
        parts.append(self.arguments[-1].evaluate(rest).cast(output_type))
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(taken))))

    def __repr__(self) -> str:
        operands = [repr_operand(argument) for argument in self.arguments]
        branches = [f"when({c}).then({v})" for c, v in zip(operands[0:-1:2], operands[1:-1:2], strict=True)]
        return ".".join([*branches, f"otherwise({operands[-1]})"])


class When:
    """A condition that waits for its value; not an expression yet."""

    __slots__ = ("_branches", "_condition")

    def __init__(self, condition: Expression, branches: tuple[Expression, ...] = ()) -> None:
        self._condition = condition
        self._branches = branches

    def then(self, value: Any) -> Case:
        """Say what the value is if the condition is true."""
        return Case((*self._branches, self._condition, expression_of(value), lit(None)))


def when(condition: Any) -> When:
    """Begin a case distinction.

    >>> when(col("n") > 0).then("some").otherwise("none")
    when((col('n') > 0)).then('some').otherwise('none')
    """
    return When(expression_of(condition))


def if_else(condition: Any, then: Any, otherwise: Any) -> Case:
    """``then`` where the condition is true, ``otherwise`` where it is false or null."""
    return when(condition).then(then).otherwise(otherwise)
