"""Changes in a chain: who takes them passes their kinds on or applies them, and nobody else is handed any.

Family: equality with the same records beside their kinds, cut in Python.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import OperatorHarness

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import TypeMismatchError
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.column_operators import FilterColumns, SelectColumns
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.row_operators import (
    FilterOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
    ProcessOperator,
    TimestampsAndWatermarksOperator,
)
from headrace.engine.operators.row_types import DeclaredRows
from headrace.engine.task.chain import ChainLink

SCHEMA = pa.schema([("n", pa.int64())])
KINDS = [RowKind(n % 4) for n in range(10)]


def changes(face):
    if face == "rows":
        batch = Batch.of_rows([{"n": n} for n in range(10)])
    else:
        batch = Batch.of_columns(pa.record_batch({"n": list(range(10))}, SCHEMA))
    return batch.with_row_kinds(np.array(KINDS, np.int8))


def fed(operator, batch):
    """What an operator makes of a batch, as a link of a chain."""
    harness = OperatorHarness(operator, subtask=1, parallelism=3)
    link = ChainLink("op", "op", harness.operator, 1, 3, MetricGroup())
    link.process_batch(batch, 0)
    return [element for element in harness.output.elements if isinstance(element, Batch)]


@pytest.mark.parametrize("face", ["rows", "columns"])
@pytest.mark.parametrize(
    "operator",
    [
        FilterOperator(lambda record: record["n"] % 3 > 0),
        FilterColumns(col("n") % 3 > 0),
        SelectColumns({"n": col("n")}),
        DeclaredRows(SCHEMA),
        TimestampsAndWatermarksOperator(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record["n"])
        ),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_what_takes_changes_passes_their_kinds_on(operator, face):
    given = fed(operator, changes(face))
    got = [(row["n"], kind) for batch in given for row, kind in zip(batch.rows, batch.row_kinds, strict=True)]
    passes = "Filter" in type(operator).__name__
    assert got == [(n, KINDS[n]) for n in range(10) if not passes or n % 3 > 0]


@pytest.mark.parametrize(
    "operator",
    [
        MapOperator(lambda record: record),
        FlatMapOperator(lambda record: [record]),
        MapBatchesOperator(lambda batch: batch),
        ProcessOperator(lambda record, context: [record]),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_functions_that_would_not_see_the_kind_are_given_no_changes(operator):
    with pytest.raises(TypeMismatchError, match=r"takes records that are inserted; it was given a change \(-D\)") as e:
        fed(operator, changes("rows"))
    assert e.value.context["operator"] == "op"
    assert e.value.context["subtask"] == "2/3"
    assert fed(operator, changes("rows").with_row_kinds(None))[0].num_rows == 10
