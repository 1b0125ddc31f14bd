"""How one input of a multi-way join is joined with those before it, and which joins one operator makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..columns.expressions import Expression

__all__ = ["JoinChain", "JoinStep", "result_tag"]


@dataclass(frozen=True)
class JoinStep:
    """How an input is joined with those before it: by the common key, and more.

    Attributes:
        how: ``inner``; ``left``: rows of those before it go on with nulls if nothing matches them; ``semi`` and
            ``anti``: they go on alone, if something matches them, or nothing.
        needs: Inputs before it whose rows must be there, by which it was joined; without one nothing matches.
        condition: What else must be true; None for nothing.
        columns: What the condition reads: input, column there, name in the condition.
    """

    how: str
    needs: tuple[int, ...] = ()
    condition: Expression | None = None
    columns: tuple[tuple[int, str, str], ...] = ()

    @property
    def counts_matches(self) -> bool:
        """Whether rows come or go with the first and the last row that matches them."""
        return self.how != "inner"

    @property
    def gives_pairs(self) -> bool:
        """Whether rows of the input are part of the result."""
        return self.how in ("inner", "left")


@dataclass(frozen=True)
class JoinChain:
    """Inputs of an operator, joined one after the other.

    Attributes:
        inputs: Their numbers in the operator, each once; steps and columns count from 0 in this order.
        steps: How all but the first are joined.
        projection: The columns of the result: input, column there, name in the result.
    """

    inputs: tuple[int, ...]
    steps: tuple[JoinStep, ...]
    projection: tuple[tuple[int, str, str], ...]

    @classmethod
    def of_all(cls, steps: Sequence[JoinStep], projection: Sequence[tuple[int, str, str]]) -> JoinChain:
        """Return all inputs in their order."""
        return cls(tuple(range(len(steps) + 1)), tuple(steps), tuple(projection))

    @property
    def columns(self) -> list[tuple[int, str, str]]:
        """Everything that is read of the inputs."""
        return [*self.projection, *(entry for step in self.steps for entry in step.columns)]

    @property
    def passes_kinds(self) -> bool:
        """Whether rows of the result come and go as rows of inputs do."""
        return not any(step.counts_matches for step in self.steps)

    @property
    def takes_back(self) -> bool:
        """Whether rows of the result may go although none of an input does."""
        return any(step.how in ("left", "anti") for step in self.steps)


def result_tag(number: int) -> str:
    """Return the side output of a result; the first one has the main output."""
    return f"result {number}"
