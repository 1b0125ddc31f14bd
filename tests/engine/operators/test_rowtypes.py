"""Declared types at run time: columns of exactly that type, or an error that names field and record. Example tests."""

import pyarrow as pa
import pytest

from headrace.engine.columns.records import Batch
from headrace.engine.errors import TypeMismatchError
from headrace.engine.operators.row_types import DeclaredRows

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.float64())])


class Collecting:
    """A context whose output keeps what is emitted."""

    def __init__(self):
        self.output = self
        self.emitted = []

    def emit(self, batch):
        self.emitted.append(batch)


def declared(batch, schema=SCHEMA):
    operator = DeclaredRows(schema)
    context = Collecting()
    operator.open(context)
    operator.process_batch(batch, 0)
    (emitted,) = context.emitted
    return emitted


def test_rows_get_columns_of_the_declared_type_and_stay_rows():
    rows = [{"k": "a", "n": 1}, {"k": None, "n": 2.5}]
    batch = declared(Batch.of_rows(rows))
    assert batch.columns.schema == SCHEMA
    assert batch.rows is rows


def test_columns_are_cast_and_put_in_the_declared_order():
    batch = declared(Batch.of_columns(pa.record_batch({"n": pa.array([1, 2]), "k": pa.array(["a", "b"])})))
    assert batch.columns.to_pylist() == [{"k": "a", "n": 1.0}, {"k": "b", "n": 2.0}]
    assert batch.columns.schema == SCHEMA


def test_columns_of_the_declared_type_pass_untouched():
    batch = Batch.of_columns(pa.RecordBatch.from_pylist([{"k": "a", "n": 1.0}], schema=SCHEMA))
    assert declared(batch) is batch


def test_a_row_that_does_not_fit_is_named():
    with pytest.raises(TypeMismatchError, match="field 'n'") as caught:
        declared(Batch.of_rows([{"k": "a", "n": 1.0}, {"k": "b", "n": "two"}]))
    assert caught.value.context["row"] == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"k": ["a"]}, r"the records' fields are \['k'\], declared are \['k', 'n'\]"),
        ({"k": ["a"], "n": [1.0], "more": [1]}, "the records' fields are"),
        ({"k": ["a"], "n": ["one"]}, "records do not fit the declared type"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, reason):
    with pytest.raises(TypeMismatchError, match=reason):
        declared(Batch.of_columns(pa.record_batch(columns)))


def test_tuples_and_values_keep_their_shape():
    pairs = pa.schema([("f0", pa.string()), ("f1", pa.int64())], metadata={"headrace.row": "tuple"})
    assert Batch.of_columns(declared(Batch.of_rows([("a", 1)]), pairs).columns).rows == [("a", 1)]
    values = pa.schema([("value", pa.int64())], metadata={"headrace.row": "value"})
    assert Batch.of_columns(declared(Batch.of_rows([1, None]), values).columns).rows == [1, None]


@pytest.mark.parametrize(("found", "wanted"), [(None, "UTC"), ("UTC", None)])
def test_columns_neither_lose_a_zone_nor_are_given_one(found, wanted):
    times = pa.record_batch({"value": pa.array([0], pa.timestamp("us", found))})
    with pytest.raises(TypeMismatchError, match="field 'value' is of type timestamp"):
        declared(Batch.of_columns(times), pa.schema([("value", pa.timestamp("us", wanted))]))
