"""Random nested types as the types of data sets: every record comes back as it was, however steps are chained."""

from __future__ import annotations

import pyarrow as pa
from campaigns import examples
from hypothesis import given, settings
from typed_values import COLUMN_TYPES, check_data_set, typed_columns

from headrace import ExecutionEnvironment
from headrace.engine.columns.records import Batch
from headrace.engine.partitions.wire_records import conform, gathered


@settings(max_examples=examples(40))
@given(typed_columns(COLUMN_TYPES))
def test_records_of_a_declared_type_come_back_as_they_were(typed):
    hint, values = typed
    for chains in (True, False):
        env = ExecutionEnvironment.get_execution_environment("local", 2, optimize=chains)
        check_data_set(env, hint, values)


PAIRS = pa.schema([("f0", pa.int32()), ("f1", pa.string())], {"headrace.row": "tuple"})


def test_records_that_are_exactly_of_a_type_stay_and_know_it():
    rows = [(1, "a"), (None, None)]
    batch = conform(Batch.of_rows(rows), PAIRS)
    assert batch.rows is rows
    assert batch.has_columns
    assert batch.columns.schema.equals(PAIRS, check_metadata=True)
    assert conform(batch, PAIRS) is batch


def test_records_that_are_not_quite_of_a_type_make_the_way():
    mutable = pa.schema([("a", pa.int32())])
    assert conform(Batch.of_rows([{"a": 1}]), mutable).rows[0] == {"a": 1}
    assert not conform(Batch.of_rows([{"a": 1}]), mutable).is_of_rows
    assert not conform(Batch.of_rows([(1.0, "a")]), PAIRS).is_of_rows
    assert repr(conform(Batch.of_rows([(1.0, "a")]), PAIRS).rows) == "[(1, 'a')]"


def test_a_whole_partition_is_held_as_columns():
    batches = [conform(Batch.of_rows([(n, "a")]), PAIRS) for n in range(3)]
    whole = gathered(batches, PAIRS)
    assert not whole.is_of_rows
    assert whole.rows == [(n, "a") for n in range(3)]
