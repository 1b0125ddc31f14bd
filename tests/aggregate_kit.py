"""Aggregates that tests of groups ask for by name: built-in ones, of different values, and functions of Python."""

from __future__ import annotations

import pyarrow as pa
from changelog_oracles import trace_of

from headrace.engine.columns.expressions import col
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.functions.aggregates.distinct import VALUE, OfDistinct
from headrace.engine.functions.aggregates.user_defined import UserAggregate
from headrace.sql.functions.contract import Typed
from headrace.sql.functions.rows import as_row


class Traces:
    """A function of Python whose accumulators are changed in place."""

    def create_accumulator(self):
        return {"sum": 0, "seen": []}

    def accumulate(self, accumulator, value):
        self.add(accumulator, value, 1)

    def retract(self, accumulator, value):
        self.add(accumulator, value, -1)

    def add(self, accumulator, value, sign):
        if value is not None:
            accumulator["sum"] += sign * trace_of(value)
            accumulator["seen"] = [value]

    def get_value(self, accumulator):
        return accumulator["sum"]


class MergedTraces(Traces):
    def merge(self, accumulator, others):
        accumulator["sum"] += sum(other["sum"] for other in others)


def aggregate_of(name, argument, kind):
    if name == "sum_distinct":
        return OfDistinct(f.sum(VALUE), argument, kind)
    if name == "user_of_distinct":
        row, kind = as_row(Typed(argument, kind))[:2]
        return OfDistinct(UserAggregate("u", Traces(), col(VALUE), kind, 1, pa.int64(), None), row, kind)
    if name.startswith("user"):
        row, kind = as_row(Typed(argument, kind))[:2]
        function = MergedTraces() if name == "user" else Traces()
        return UserAggregate("u", function, row, kind, 1, pa.int64(), None)
    return getattr(f, name)(argument)
