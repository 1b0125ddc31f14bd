"""An aggregate of the different values of a group: each counts once.

Parts are lists of different values; what they come to is computed when the result is asked for. Operators over changes
keep counts of values instead, and tell the inner aggregate which ones appear and vanish
(`headrace.engine.changelog.accumulators.group_accumulators`).

Source: SQL:2016, ``DISTINCT`` in a call of an aggregate; Flink's ``DistinctAggregateFunction``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ...columns.expressions import Expression
from ...columns.grouping import Groups
from .contract import Aggregate, ColumnarAggregates, Part
from .statistics import Collected

__all__ = ["VALUE", "OfDistinct"]

VALUE = "value"
"""The column that the inner aggregate reads."""


class OfDistinct(Collected):
    """Another aggregate, of different values.

    Args:
        inner: An aggregate of the column `VALUE`; it passes over nulls.
        argument: The values.
        kind: Their type.
    """

    name = "distinct"
    parts = (Part("values", "distinct", "union"),)

    def __init__(self, inner: Aggregate, argument: Expression, kind: pa.DataType) -> None:
        super().__init__(argument)
        self.inner = inner
        self.kind = kind

    def __repr__(self) -> str:
        return f"{self.inner!r} of distinct {self.argument!r}"

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        import pyarrow.compute as pc

        lists = parts[0]
        # A null for each group, which the inner aggregate passes over: groups without values have a result, too.
        codes = np.concatenate([pc.list_parent_indices(lists).to_numpy(), np.arange(len(lists))]).astype(np.int64)
        values = pa.concat_arrays([pc.list_flatten(lists).cast(self.kind), pa.nulls(len(lists), self.kind)])
        batch = pa.record_batch({VALUE: values})
        columns = ColumnarAggregates({"inner": self.inner})
        return columns.finalise(columns.from_records(Groups(codes, len(lists)), batch, 0))[0]

    def result(self, accumulator: tuple[tuple[Any, ...], ...]) -> Any:
        values = pa.array(super().result(accumulator), self.kind)
        some = Groups(np.zeros(len(values), np.int64), 1)
        lists = some.reduce("distinct", values) if len(values) else pa.array([[]], pa.list_(self.kind))
        return self.finalise([lists])[0].as_py()
