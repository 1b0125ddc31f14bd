"""Filter and select on columns: what passes, what is computed, and that event times stay with their records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.columns.expressions import col, lit
from headrace.engine.columns.records import Batch
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.column_operators import FilterColumns, SelectColumns
from headrace.state.errors import ProgramError, TypeMismatchError, UserFunctionError


class Collected:
    def __init__(self):
        self.batches = []

    def emit(self, batch):
        self.batches.append(batch)


class Context:
    name = "prices"
    subtask = 3
    parallelism = 4

    def __init__(self):
        self.output = Collected()
        self.metrics = MetricGroup()


def run(operator, *batches):
    context = Context()
    operator.open(context)
    for batch in batches:
        operator.process_batch(batch, 0)
    return context.output.batches


def batch_of(timestamps=None, **columns):
    times = None if timestamps is None else np.array(timestamps, np.int64)
    return Batch.of_columns(pa.RecordBatch.from_pydict(columns), times)


def test_a_filter_passes_what_is_true_with_its_event_time():
    (result,) = run(FilterColumns(col("a") > 1), batch_of([10, 20, 30], a=[1, 2, None]))
    assert result.rows == [{"a": 2}]
    assert result.timestamps.tolist() == [20]


def test_a_filter_emits_nothing_when_nothing_passes_and_the_same_batch_when_all_does():
    assert run(FilterColumns(col("a") > 5), batch_of(a=[1, None])) == []
    assert run(FilterColumns(lit(None)), batch_of(a=[1])) == []
    batch = batch_of(a=[1, 2])
    assert run(FilterColumns(lit(True)), batch) == [batch]


def test_a_filter_needs_a_condition():
    with pytest.raises(TypeMismatchError, match="needs a condition") as caught:
        run(FilterColumns(col("a") + 1), batch_of(a=[1]))
    assert caught.value.context == {"operator": "prices", "subtask": "4/4"}
    with pytest.raises(TypeMismatchError, match="needs a condition"):
        FilterColumns(col("a")).output_schema(pa.schema([("a", pa.int64())]))


def test_select_computes_new_records():
    select = SelectColumns({"double": col("a") * 2, "one": 1, "a": col("a")})
    (result,) = run(select, batch_of([5, 6], a=[1, None], b=["x", "y"]))
    assert result.rows == [{"double": 2, "one": 1, "a": 1}, {"double": None, "one": 1, "a": None}]
    assert result.timestamps.tolist() == [5, 6]
    schema = select.output_schema(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert schema.equals(result.columns.schema)


def test_added_columns_stand_behind_and_replaced_ones_in_place():
    operator = SelectColumns.with_columns({"a": col("a").cast("string"), "c": col("a") + col("b")})
    (result,) = run(operator, batch_of(a=[1], b=[2]))
    assert result.rows == [{"a": "1", "b": 2, "c": 3}]
    assert result.columns.schema.names == ["a", "b", "c"]


def test_a_column_of_event_times_is_made_of_those_that_records_have():
    columns = {"time": col("ms").cast(pa.timestamp("ms")), "next": col("ms") + 1}
    operator = SelectColumns(columns, event_time=pa.field("time", pa.timestamp("ms")))
    data = pa.RecordBatch.from_pydict({"ms": [1, 2, 3]})
    timed, = run(operator, Batch.of_columns(data, np.array([7, 8, 9])))  # fmt: skip
    assert timed.columns.column("time").cast(pa.int64()).to_pylist() == [7, 8, 9]
    assert timed.columns.schema == operator.output_schema(data.schema)
    assert timed.columns.column("next").to_pylist() == [2, 3, 4]
    without, = run(operator, Batch.of_columns(data))  # fmt: skip
    assert without.columns.column("time").cast(pa.int64()).to_pylist() == [1, 2, 3]


def test_rows_become_columns_and_tuples_become_dicts():
    (result,) = run(SelectColumns.with_columns({"s": col("f0") + col("f1")}), Batch.of_rows([(1, 2), (3, 4)]))
    assert result.rows == [{"f0": 1, "f1": 2, "s": 3}, {"f0": 3, "f1": 4, "s": 7}]


def test_a_declared_type_stands_above_what_the_rows_show():
    schema = pa.schema([("a", pa.float64())])
    (result,) = run(SelectColumns({"a": col("a")}, input_schema=schema), Batch.of_rows([{"a": None}]))
    assert result.columns.schema.field("a").type == pa.float64()


def test_errors_name_the_operator():
    with pytest.raises(UserFunctionError, match="operator 'prices', subtask 4/4"):
        run(SelectColumns({"x": col("a") // 0}), batch_of(a=[1]))
    with pytest.raises(ProgramError, match="at least one column"):
        SelectColumns({})
