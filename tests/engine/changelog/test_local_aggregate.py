"""When the first phase of groups folds. What that comes to is tested with the second one: `test_group_aggregate`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import OperatorHarness

from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate
from headrace.engine.columns.records import Batch
from headrace.engine.errors import UserFunctionError
from headrace.engine.functions.aggregates import built_in as f

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = 200
SUMS = {"n": f.count(), "s": f.sum("v")}


def harness(aggregates=SUMS, parallelism=2, adapts=True):
    operator = LocalGroupAggregate(["k"], aggregates, input_schema=SCHEMA, takes_back=False, adapts=adapts)
    return OperatorHarness(operator, parallelism=parallelism)


def batch(num_keys, num_values=1, rows=ROWS):
    columns = [pa.array(np.arange(rows) % num_keys), pa.array(np.arange(rows) % num_values)]
    return Batch.of_columns(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def sent(subject, *batches):
    """How many rows go on of each batch."""
    for one in batches:
        subject.operator.process_batch(one, 0)
    numbers = [one.num_rows for one in subject.output.elements]
    subject.output.elements.clear()
    return numbers


def test_batches_of_few_keys_are_folded():
    assert sent(harness(), *[batch(50)] * 40) == [50] * 40


def test_batches_of_many_keys_are_passed_on_and_tried_now_and_then():
    subject = harness()
    numbers = sent(subject, *[batch(100)] * 65)
    assert [number for number, one in enumerate(numbers) if one == 100] == [0, 32, 64]
    assert set(numbers) == {100, ROWS}
    # What has become worth it is found by such a try.
    assert sent(subject, *[batch(2)] * 33) == [ROWS] * 31 + [2] * 2


def test_many_values_of_few_keys_are_passed_on_unless_one_subtask_would_work_for_all():
    distinct = {"d": f.count_distinct("v")}
    assert sent(harness(distinct), batch(1, ROWS), batch(1, ROWS)) == [1, ROWS]
    assert sent(harness(distinct), batch(1, 5), batch(1, 5)) == [1, 1]
    assert sent(harness(distinct, parallelism=4), batch(1, ROWS), batch(1, ROWS)) == [1, 1]


def test_small_batches_are_passed_on():
    assert sent(harness(), batch(1, rows=63), batch(1, rows=64)) == [63, 1]
    assert sent(harness(adapts=False), batch(1, rows=2)) == [1]


def rows_of(values):
    return Batch.of_columns(pa.record_batch({"k": [1] * len(values), "v": values}, SCHEMA))


def test_a_sum_that_fits_may_have_parts_that_do_not():
    local, group = (
        harness({"s": f.sum("v")}, adapts=False),
        OperatorHarness(GroupAggregate(["k"], {"s": f.sum("v")}, input_schema=SCHEMA, takes_back=False)),
    )
    for values in ([-(2**62)] * 2, [2**62] * 3, [-1]):
        local.operator.process_batch(rows_of(values), 0)
    for folded in local.output.elements:
        group.operator.process_batch(folded, 0)
    assert [row["s"] for row in group.take_rows()][-1] == 2**62 - 1
    for values in ([2**62],) * 2:
        local.output.elements.clear()
        local.operator.process_batch(rows_of(values), 0)
    with pytest.raises(UserFunctionError, match="does not fit"):
        group.operator.process_batch(Batch.concat(local.output.elements * 2), 0)
