"""How one input of a multi-way join is joined with those before it."""

from __future__ import annotations

from dataclasses import dataclass

from ..columns.expressions import Expression

__all__ = ["JoinStep"]


@dataclass(frozen=True)
class JoinStep:
    """How an input is joined with those before it: by the common key, and more.

    Attributes:
        is_left: Whether rows of those before it go on with nulls if nothing matches them.
        needs: Inputs before it whose rows must be there, by which it was joined; without one nothing matches.
        condition: What else must be true; None for nothing.
        columns: What the condition reads: input, column there, name in the condition.
    """

    is_left: bool
    needs: tuple[int, ...] = ()
    condition: Expression | None = None
    columns: tuple[tuple[int, str, str], ...] = ()
