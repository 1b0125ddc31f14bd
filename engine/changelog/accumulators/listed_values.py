"""Values of groups in the order in which they came, of which any may be taken back.

Lists, percentiles, and first and last values over changes are made of them. Of equal values the earliest goes first; an
update takes a value back and adds another one, which is the last then. Nulls are passed over.

Source: Flink's ``ListAggWithRetractAggFunction``, ``ArrayAggFunction``, ``CollectAggFunction``,
``FirstValueWithRetractAggFunction``, ``LastValueWithRetractAggFunction``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.state.errors import UserFunctionError

from ...columns.grouping import Groups, comparable
from ...columns.kernels import compute
from ...functions.aggregates.contract import Aggregate
from ...tables.columns import Integers
from .contract import Touched, unknown_in
from .kept_columns import KeptColumns
from .value_arguments import ENDS

__all__ = ["ListedValues"]


class ListedValues(KeptColumns):
    """The lists of all groups, and what one aggregate makes of them.

    Args:
        aggregate: The aggregate.
        schema: Of the records.
        expires: Whether groups have a time to live: a value that is taken back and is not there is passed over then.
    """

    def __init__(self, aggregate: Aggregate, schema: pa.Schema, *, expires: bool = False) -> None:
        self._aggregate = aggregate
        self._expires = expires
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        self._kind = self._lifted(empty).type
        super().__init__([pa.field("values", pa.list_(self._kind))])

    def _lifted(self, batch: pa.RecordBatch) -> pa.Array:
        assert self._aggregate.argument is not None
        if self._aggregate.name in ENDS:
            return self._aggregate.argument.evaluate(batch)
        return self._aggregate.lift(batch, 0)[0]

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        held = self.state(touched.groups)[0]
        lengths = compute().list_value_length(held).fill_null(0).to_numpy()
        given = self._lifted(batch).cast(self._kind)
        signs = np.where(np.asarray(given.is_valid()), touched.all_signs, 0)
        if self._expires and (signs < 0).any():
            signs = self._known(held, lengths, given, touched.local, signs)
        added, taken = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
        groups = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), touched.local[added]])
        values = pa.concat_arrays([held.flatten(), given.take(pa.array(added))])
        if len(taken):
            kept = _without(groups, values, touched.local[taken], given.take(pa.array(taken)))
            groups, values = groups[kept], values.take(pa.array(kept))
        order = np.argsort(groups, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=len(lengths)))]).astype(np.int32)
        self.put(touched.groups, [pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(order)))])

    def _known(self, held: pa.Array, lengths: Integers, given: pa.Array, local: Integers, signs: Integers) -> Integers:
        """The signs of records, 0 for those that take back what is not there when they come."""
        owners = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), local])
        values = comparable(pa.concat_arrays([held.flatten(), given]))
        codes = Groups.of([pa.array(owners), values]).codes
        num_held = len(owners) - len(local)
        counts = np.bincount(codes[:num_held], minlength=int(codes.max()) + 1).astype(np.int64)
        unknown = unknown_in(counts, codes[num_held:].astype(np.int64), signs)
        return signs if unknown is None else np.where(unknown.is_ignored, 0, signs)

    def results(self, groups: Integers) -> pa.Array:
        lists = self.state(groups)[0]
        if self._aggregate.name not in ENDS:
            return self._aggregate.finalise([lists])
        lengths = compute().list_value_length(lists).fill_null(0).to_numpy()
        ends = np.cumsum(lengths)
        places = ends - lengths if self._aggregate.name == "first" else ends - 1
        return lists.flatten().take(pa.array(places, mask=lengths == 0))


def _without(groups: Integers, values: pa.Array, taken_of: Integers, taken: pa.Array) -> Integers:
    """The places of values that stay when others are taken back, each the earliest of those equal to it.

    Raises:
        UserFunctionError: If one is taken back that is not there.
    """
    both = [np.concatenate([groups, taken_of]), comparable(pa.concat_arrays([values, taken]))]
    codes = Groups.of([pa.array(both[0]), both[1]]).codes
    own, of_taken = codes[: len(groups)], codes[len(groups) :]
    num_codes = int(codes.max()) + 1
    missing = np.bincount(own, minlength=num_codes) < np.bincount(of_taken, minlength=num_codes)
    if missing.any():
        value = taken[int(np.argmax(missing[of_taken]))].as_py()
        message = f"a change takes back a value that is not there: {value!r:.400}"
        raise UserFunctionError(message)
    order = np.argsort(own, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=num_codes))])
    place = np.empty(len(own), np.int64)
    place[order] = np.arange(len(own)) - starts[own[order]]
    return np.flatnonzero(place >= np.bincount(of_taken, minlength=num_codes)[own])
