"""Expressions as conditions: of filters and joins, of streams and data sets, of what is pushed into sources.

A condition is true, false or null for a record, and null is not true.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import TypeMismatchError
from .expressions import Expression

__all__ = ["require_condition", "where_true"]


def require_condition(condition: Expression, kind: pa.DataType, what: str = "filter") -> None:
    """See that an expression of a type is a condition.

    Args:
        condition: The expression, for the error.
        kind: Its type; that of null is one.
        what: What needs a condition.

    Raises:
        TypeMismatchError: If it is none.
    """
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        message = f"a {what} needs a condition that is true or false; {condition!r} is {kind}"
        raise TypeMismatchError(message)


def where_true(condition: Expression, columns: pa.RecordBatch, what: str = "filter") -> npt.NDArray[np.bool_]:
    """Return for each record whether a condition is true.

    Raises:
        TypeMismatchError: If it is no condition.
    """
    mask = condition.evaluate(columns)
    require_condition(condition, mask.type, what)
    if pa.types.is_null(mask.type):
        return np.zeros(columns.num_rows, np.bool_)
    chosen: npt.NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return chosen
