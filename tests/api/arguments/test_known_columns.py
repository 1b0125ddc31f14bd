"""Mistakes in names and types are refused where they are written, if the records are known by then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import (
    ExecutionEnvironment,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    col,
    count,
)
from headrace import functions as f
from headrace.connectors.files import FileSource
from headrace.engine.errors import ProgramError, TypeMismatchError

ROWS = [{"price": 1, "shop": "x"}, {"price": 2, "shop": "y"}]


@dataclass
class Bid:
    price: int
    shop: str


def hinted(row: Any) -> Bid:
    return Bid(**row)


@pytest.fixture
def env():
    return StreamExecutionEnvironment.get_execution_environment("local")


def parquet(env, tmp_path, columns=None):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "bids.parquet")
    return env.from_source(FileSource.parquet(tmp_path / "bids.parquet", columns), None, "bids")


WAYS = {
    "rows": lambda env, _: env.from_collection(ROWS),
    "table": lambda env, _: env.from_collection(pa.Table.from_pylist(ROWS)),
    "parquet": parquet,
    "csv": lambda env, tmp_path: env.from_source(
        FileSource.csv(tmp_path / "bids.csv", {"price": "int64", "shop": "string"})
    ),
    "declared": lambda env, _: env.from_collection(ROWS).map(dict, output_type=Bid),
    "hinted": lambda env, _: env.from_collection(ROWS).map(hinted),
    "filtered": lambda env, _: env.from_collection(ROWS).filter(lambda row: True),
    "computed": lambda env, _: env.from_collection(ROWS).with_columns(twice=col("price") * 2),
    "united": lambda env, _: env.from_collection(ROWS).union(env.from_collection(ROWS)),
    "dealt out": lambda env, _: env.from_collection(ROWS).rebalance(),
}

MISTAKES = {
    "filter": lambda stream: stream.filter(col("prise") > 1),
    "select": lambda stream: stream.select("shop", double=col("prise") * 2),
    "key_by": lambda stream: stream.key_by("prise"),
    "key of several": lambda stream: stream.key_by("shop", "prise"),
    "sum": lambda stream: stream.key_by("shop").sum("prise"),
    "window on columns": lambda stream: (
        stream.key_by("shop").window(TumblingEventTimeWindows.of("1 s")).aggregate(top=f.max("prise"))
    ),
    "window on rows": lambda stream: (
        stream.key_by("shop").window(TumblingProcessingTimeWindows.of("1 s")).aggregate(top=f.max("prise"))
    ),
    "window over all": lambda stream: stream.window_all(TumblingEventTimeWindows.of("1 s")).aggregate(
        top=f.max("prise")
    ),
    "fold of a window": lambda stream: stream.key_by("shop").window(TumblingEventTimeWindows.of("1 s")).sum("prise"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("way", WAYS)
def test_a_field_that_is_not_there_is_refused_with_the_nearest_name(env, tmp_path, way, mistake):
    stream = WAYS[way](env, tmp_path)
    with pytest.raises(ProgramError, match=r"'prise'.*'price'(?s:.)*hint: did you mean 'price'\?"):
        MISTAKES[mistake](stream)


@pytest.mark.parametrize("way", WAYS)
def test_what_fits_is_not_refused(env, tmp_path, way):
    stream = WAYS[way](env, tmp_path)
    stream.filter(col("price") > 1).key_by("shop").sum("price")
    windows = stream.key_by("shop").window(TumblingEventTimeWindows.of("1 s"))
    windows.aggregate(n=count(), top=f.max("price")).filter(col("top") > col("n")).key_by("shop")


def test_the_result_of_a_window_has_the_columns_of_its_aggregates(env):
    windows = env.from_collection(ROWS).key_by("shop").window(TumblingEventTimeWindows.of("1 s"))
    with pytest.raises(ProgramError, match=r"'tip'.*'shop', 'window_start', 'window_end', 'top'"):
        windows.aggregate(top=f.max("price")).filter(col("tip") > 1)


def test_an_expression_that_does_not_fit_the_types_is_refused(env):
    with pytest.raises(TypeMismatchError, match="operator 'filter'"):
        env.from_collection(ROWS).filter(col("price"))
    with pytest.raises(TypeMismatchError, match="operator 'select'"):
        env.from_collection(ROWS).select(wrong=col("shop") * 2)


def test_a_union_of_different_types_is_refused(env):
    rows, numbers = env.from_collection(ROWS), env.from_collection([1, 2])
    with pytest.raises(ProgramError, match="union takes streams of one type"):
        rows.union(numbers)
    with pytest.raises(ProgramError, match="'price' is int64 in one and string in another"):
        rows.union(env.from_collection([{"price": "much", "shop": "x"}]))
    rows.union(env.from_collection([{"price": 1.5, "shop": "x"}]))  # a column can hold both
    rows.union(numbers.map(lambda n: n))  # nothing is known of the function's results


def test_only_some_columns_of_a_file(env, tmp_path):
    with pytest.raises(ProgramError, match=r"'price'.*'shop'"):
        parquet(env, tmp_path, ["shop"]).filter(col("price") > 1)


@pytest.mark.parametrize("rows", [[], [{"a": 1}, {"b": 2}], [{"a": 1}, 2], [{"a": None}], [object()]])
def test_what_is_not_known_is_left_to_the_run(env, rows):
    env.from_collection(rows).filter(col("x") > 1).key_by("y")


def test_a_file_that_is_not_there_is_left_to_the_run(env, tmp_path):
    env.from_source(FileSource.parquet(tmp_path / "none.parquet")).filter(col("x") > 1)


@pytest.mark.parametrize("method", ["window", "count_window", "reduce", "sum", "max_by", "interval_join"])
def test_what_needs_a_key_says_so(env, method):
    stream = env.from_collection(ROWS)
    with pytest.raises(AttributeError, match=rf"{method} needs a key; write key_by\(\.\.\.\)\.{method}"):
        getattr(stream, method)
    assert not hasattr(stream, method)
    assert hasattr(stream.key_by("shop"), method)


SET_STEPS = {
    "filter": lambda data: data.filter(col("shop") > 1),
    "select": lambda data: data.select(x=col("shop") * 2),
    "with_columns": lambda data: data.with_columns(x=col("prize") * 2),
    "aggregate": lambda data: data.group_by("price").aggregate(x=f.sum("shop")),
    "over": lambda data: data.over("price", x=f.sum("shop")),
    "join_where": lambda data: data.join_where(data, col("shop") + 1 > 2, suffix="_right"),
}


@pytest.mark.parametrize("step", SET_STEPS)
def test_a_mistake_in_a_data_set_names_its_step(step):
    data = ExecutionEnvironment.get_execution_environment("local").from_collection(ROWS)
    with pytest.raises((ProgramError, TypeMismatchError), match=rf"operator '{step}'"):
        SET_STEPS[step](data)


@pytest.mark.parametrize("declared", ["int", 42, [int]], ids=repr)
def test_state_is_declared_to_be_of_a_type_and_no_value(declared):
    for descriptor in (ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor):
        with pytest.raises(ProgramError, match=r"state 'kept' is declared to be of .*, which is a value and no type"):
            descriptor("kept", declared)
