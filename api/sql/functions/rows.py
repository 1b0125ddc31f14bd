"""Rows of values: ROW(x, ...), whose fields are called EXPR$0, EXPR$1.

Source: Flink's documentation ("Value Construction Functions").
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..parsing.errors import SqlError
from .contract import KernelCall, Typed, as_arrays

__all__ = ["as_row"]


def as_row(*values: Typed) -> Typed:
    """Return a row of values; it is never null itself.

    Raises:
        SqlError: If there are none.
    """
    if not values:
        message = "a ROW has one field at least"
        raise SqlError(message)
    kind = pa.struct([(f"EXPR${i}", one.kind) for i, one in enumerate(values)])
    return Typed(KernelCall("ROW", _rows_of, tuple(one.expression for one in values), kind), kind)


def _rows_of(*values: Any) -> pa.Array:
    arrays = as_arrays(values)
    return pa.StructArray.from_arrays(arrays, names=[f"EXPR${i}" for i in range(len(arrays))])
