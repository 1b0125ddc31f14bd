"""An operator over changes gives all its rows once more: for a query that goes on from what it has kept and shows it
to somebody who has not seen it.

It is done once, before anything else goes out: with the first batch, when time passes, ahead of a barrier, or at the
end. What has been done is known by a token, which is kept: a job that fails before its first checkpoint starts from the
savepoint again, and all behind the operator with it; one that goes on from its own checkpoint does not repeat it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..functions.operator import OperatorContext

__all__ = ["Replay"]


class Replay:
    """Whether an operator has still to give all its rows.

    Args:
        context: The operator's.
        token: What tells this time from others; None to give nothing.
        give: Gives all rows.
    """

    def __init__(self, context: OperatorContext, token: str | None, give: Callable[[], None]) -> None:
        self._tokens = context.operator_state.union_list_state("replayed")
        self._token = token
        self._give = give
        self.is_due = token is not None and token not in self._tokens.get()

    @property
    def due_ms(self) -> int | None:
        """When it is to be done: at once, if it has to be."""
        return 0 if self.is_due else None

    def run(self) -> None:
        """Give the rows, if that is still to be done."""
        if self.is_due:
            self.is_due = False
            self._give()

    def snapshot(self) -> None:
        """Keep that it has been done."""
        self._tokens.update([] if self._token is None else [self._token])
