"""Aggregates and grouping: both forms of each aggregate against each other and plain Python, however cut and merged.

The risk is disagreement between the columnar and the row path, and state that depends on how records were cut into
batches.
"""

# ruff: noqa: DTZ001 - times without a zone are what Arrow gives and takes for UTC

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.expressions import col
from headrace.engine.columns.grouping import Groups
from headrace.engine.functions.aggregates import built_in as agg
from headrace.engine.functions.aggregates.by_row import RowAggregates
from headrace.engine.functions.aggregates.contract import ColumnarAggregates
from headrace.state.errors import ProgramError, TypeMismatchError, UserFunctionError

NAN = float("nan")

INTEGERS = st.none() | st.integers(-5, 5) | st.integers(-(2**50), 2**50)
FLOATS = st.none() | st.sampled_from([NAN, 0.0, -0.0]) | st.floats(-1e6, 1e6, width=32)
TEXTS = st.none() | st.sampled_from(["", "a", "b", "ab", "zebra", "ä"])
TIMES = st.none() | st.datetimes(datetime.datetime(1960, 1, 1), datetime.datetime(2030, 1, 1))
DATES = st.none() | st.dates(datetime.date(1960, 1, 1), datetime.date(2030, 1, 1))
BOOLS = st.none() | st.booleans()
DECIMALS = st.none() | st.decimals(-1000, 1000, places=2)

KINDS = {
    "int64": (INTEGERS, pa.int64()),
    "int8": (st.none() | st.integers(-128, 127), pa.int8()),
    "uint64": (st.none() | st.integers(0, 2**64 - 1), pa.uint64()),
    "float": (FLOATS, pa.float64()),
    "float32": (FLOATS, pa.float32()),
    "text": (TEXTS, pa.string()),
    "large_text": (TEXTS, pa.large_string()),
    "time": (TIMES, pa.timestamp("us")),
    "date": (DATES, pa.date32()),
    "bool": (BOOLS, pa.bool_()),
    "decimal": (DECIMALS, pa.decimal128(10, 2)),
}
NUMBERS = ("int64", "int8", "float", "float32", "bool", "decimal")

EVERYWHERE = {
    "n": agg.count(),
    "values": agg.count("v"),
    "smallest": agg.min("v"),
    "largest": agg.max("v"),
    "earliest": agg.first("v"),
    "latest": agg.last("v"),
    "kinds": agg.count_distinct("v"),
}
ON_NUMBERS = {"total": agg.sum("v"), "mean": agg.avg("v")}


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(left, Decimal):
        return left == right
    return left == right and (left is None) == (right is None)


def by_key(rows, specifications):
    """The row form, in one go."""
    function = RowAggregates(specifications)
    accumulators = {}
    for row in rows:
        accumulators[row["k"]] = function.add(row, accumulators.get(row["k"], function.create_accumulator()))
    return {key: function.get_result(accumulator) for key, accumulator in accumulators.items()}


def batch_of(rows, value_type, key_type=None):
    key_type = pa.int64() if key_type is None else key_type
    return pa.RecordBatch.from_arrays(
        [pa.array([row["k"] for row in rows], key_type), pa.array([row["v"] for row in rows], value_type)],
        names=["k", "v"],
    )


def columnar(rows, value_type, specifications, cuts, merge_order):
    """The columnar form: partial results per piece, merged two by two in a given order, then finalised."""
    aggregates = ColumnarAggregates(specifications)
    names = ["k", *aggregates.part_names]
    runs = []
    borders = [0, *sorted(cuts), len(rows)]
    for low, high in pairwise(borders):
        if low == high:
            continue
        batch = batch_of(rows[low:high], value_type)
        groups = Groups.of([batch.column(0)])
        parts = aggregates.from_records(groups, batch, low)
        runs.append(pa.RecordBatch.from_arrays([groups.take_keys(batch.column(0)), *parts], names=names))
    while len(runs) > 1:
        place = merge_order.pop() % (len(runs) - 1) if merge_order else 0
        both = pa.concat_batches(runs[place : place + 2])
        groups = Groups.of([both.column(0)])
        columns = [groups.take_keys(both.column(0)), *aggregates.merge(groups, both)]
        runs[place : place + 2] = [pa.RecordBatch.from_arrays(columns, names=names)]
    if not runs:
        return {}
    results = aggregates.finalise([runs[0].column(name) for name in aggregates.part_names])
    table = pa.RecordBatch.from_arrays([runs[0].column(0), *results], names=["k", *specifications])
    return {row.pop("k"): row for row in table.to_pylist()}


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_both_forms_agree_however_records_are_cut_and_merged(data, kind):
    values, value_type = KINDS[kind]
    keys = st.none() | st.integers(-2, 2) | st.sampled_from([2**62, -(2**62)])
    rows = data.draw(st.lists(st.fixed_dictionaries({"k": keys, "v": values}), max_size=25))
    # What the columns can hold is what the row path gets, too: float32 is narrower than Python's float.
    rows = batch_of(rows, value_type).to_pylist()
    specifications = {**EVERYWHERE, **(ON_NUMBERS if kind in NUMBERS else {})}
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    order = data.draw(st.lists(st.integers(0, 100), max_size=6))
    expected = by_key(rows, specifications)
    result = columnar(rows, value_type, specifications, cuts, order)
    assert result.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            assert same(result[key][name], value), (key, name, result[key][name], value)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(INTEGERS | FLOATS, max_size=20), st.integers(0, 20))
def test_row_accumulators_merge_and_are_never_changed(values, cut):
    function = RowAggregates({**EVERYWHERE, **ON_NUMBERS})
    whole = function.create_accumulator()
    history = [(whole, pickle.dumps(whole))]
    for value in values:
        whole = function.add({"v": value}, whole)
        history.append((whole, pickle.dumps(whole)))
    assert all(pickle.dumps(accumulator) == image for accumulator, image in history)
    left, right = function.create_accumulator(), function.create_accumulator()
    for value in values[:cut]:
        left = function.add({"v": value}, left)
    for value in values[cut:]:
        right = function.add({"v": value}, right)
    merged = function.get_result(function.merge(left, right))
    expected = function.get_result(whole)
    assert all(same(merged[name], expected[name]) for name in expected)


SEVERAL_TYPES = [st.integers(-5, 5), st.sampled_from([2**62, -(2**63), 7]), FLOATS, INTEGERS | FLOATS | st.booleans()]


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), st.sampled_from(SEVERAL_TYPES), st.integers(0, 20))
def test_records_that_are_added_together_count_as_those_added_one_by_one(data, kind, cut):
    values = data.draw(st.lists(kind, max_size=20))
    function = RowAggregates({**EVERYWHERE, **ON_NUMBERS})
    one_by_one = together = function.create_accumulator()
    for value in values:
        one_by_one = function.add({"v": value}, one_by_one)
    for some in (values[:cut], values[cut:]):
        before = pickle.dumps(together)
        image, together = together, function.add_all([{"v": value} for value in some], together)
        assert pickle.dumps(image) == before
    for name, spec in function.specifications.items():
        place = list(function.specifications).index(name)
        assert same(outcome(spec, together[place]), outcome(spec, one_by_one[place])), name


@pytest.mark.parametrize(
    "values", [[0.1] * 11, [1e16] + [1.0] * 20, [1.5] + [10**308] * 20, [5, 5, 1, 0.2, 0.1, 0.1, 0.3]]
)
def test_results_do_not_depend_on_how_records_are_cut(values):
    function = RowAggregates({"sum": agg.sum("v"), "avg": agg.avg("v")})
    rows = [{"v": value} for value in values]
    found = set()
    for length in (1, 3, 4, len(rows)):
        accumulator = function.create_accumulator()
        for start in range(0, len(rows), length):
            accumulator = function.add_all(rows[start : start + length], accumulator)
        found.add(repr([outcome(s, a) for s, a in zip(function.specifications.values(), accumulator, strict=True)]))
    assert len(found) == 1


def test_integers_of_numpy_do_not_wrap():
    function = RowAggregates({"sum": agg.sum("v")})
    rows = [{"v": np.int64(2**62)}] * 3
    one_by_one = function.create_accumulator()
    for row in rows:
        one_by_one = function.add(row, one_by_one)
    assert one_by_one == function.add_all(rows, function.create_accumulator()) == (3 * 2**62,)


def outcome(spec, accumulator):
    try:
        return spec.result(accumulator)
    except UserFunctionError as error:
        return error.message


def test_a_record_without_the_field_is_told_with_those_that_it_has():
    function = RowAggregates({"total": agg.sum("v")})
    with pytest.raises(ProgramError, match="field 'v' does not exist; the record's fields are 'w'"):
        function.add_all([{"v": 1}, {"w": 2}], function.create_accumulator())


def python_oracle(values):
    known = [value for value in values if value is not None]
    numbers = [value for value in known if value == value]
    return {
        "n": len(values),
        "values": len(known),
        "smallest": min(numbers) if numbers else (NAN if known else None),
        "largest": max(numbers) if numbers else (NAN if known else None),
        "earliest": known[0] if known else None,
        "latest": known[-1] if known else None,
        "kinds": len(set(numbers)) + (len(numbers) < len(known)),
        "total": math.fsum(known) if known else None,
        "mean": math.fsum(known) / len(known) if known else None,
    }


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(FLOATS, max_size=20))
def test_results_are_those_of_plain_python(values):
    rows = [{"k": 0, "v": value} for value in values]
    result = by_key(rows, {**EVERYWHERE, **ON_NUMBERS}).get(0)
    if values:
        expected = python_oracle(values)
        assert all(same(result[name], expected[name]) for name in expected)


# -- grouping ----------------------------------------------------------------------------------------------------------


KEY_COLUMNS = [
    (st.none() | st.integers(-3, 3), pa.int64()),
    (st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63)]), pa.int64()),
    (st.integers(0, 2**64 - 1), pa.uint64()),
    (TEXTS, pa.string()),
    (st.none() | st.sampled_from([0.0, 1.5, NAN]), pa.float64()),
    (BOOLS, pa.bool_()),
    (TIMES, pa.timestamp("ms")),
    (DATES, pa.date32()),
    (DECIMALS, pa.decimal128(10, 2)),
    (
        st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": TEXTS}),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
    (st.none(), pa.null()),
    (TEXTS, pa.dictionary(pa.int32(), pa.string())),
    (st.none() | st.binary(max_size=2), pa.binary()),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_equal_keys_and_only_they_share_a_group(data):
    kinds = data.draw(st.lists(st.sampled_from(KEY_COLUMNS), min_size=1, max_size=4))
    num_rows = data.draw(st.integers(1, 12))
    columns = [pa.array(data.draw(st.lists(v, min_size=num_rows, max_size=num_rows)), t) for v, t in kinds]
    groups = Groups.of(columns)
    keys = [tuple(map(repr, row)) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    codes = groups.codes.tolist()
    for i in range(num_rows):
        for j in range(i):
            assert (codes[i] == codes[j]) == (keys[i] == keys[j])
    taken = [tuple(map(repr, row)) for row in zip(*(groups.take_keys(c).to_pylist() for c in columns), strict=True)]
    assert sorted(taken) == sorted(set(keys))
    counts = groups.reduce("count_all", None).to_pylist()
    assert counts == [keys.count(key) for key in taken]


def test_zero_has_one_sign_and_nan_is_one_key():
    other_nan = np.frombuffer(np.uint64(0x7FF8000000000001).tobytes(), np.float64)[0]
    assert len(Groups.of([pa.array([0.0, -0.0])])) == 1
    assert len(Groups.of([pa.array(np.array([np.nan, other_nan]))])) == 1


def test_many_wide_key_columns_do_not_overflow():
    rng = np.random.default_rng(3)
    columns = [pa.array(rng.integers(-(2**62), 2**62, 3000)) for _ in range(8)]
    assert len(Groups.of(columns)) == 3000


def test_lists_are_no_keys():
    with pytest.raises(TypeMismatchError, match="plain value"):
        Groups.of([pa.array([[1], [2]])])


def test_no_rows_make_no_groups():
    groups = Groups.of([pa.array([], pa.int64()), pa.array([], pa.string())])
    assert len(groups) == 0
    assert groups.reduce("sum", pa.array([], pa.int64())).to_pylist() == []


# -- limits and errors -------------------------------------------------------------------------------------------------


def sum_of(values):
    aggregates = ColumnarAggregates({"total": agg.sum("v")})
    batch = batch_of([{"k": 0, "v": value} for value in values], pa.int64())
    groups = Groups.of([batch.column(0)])
    return aggregates.finalise(aggregates.from_records(groups, batch, 0))[0].to_pylist()[0]


@given(st.lists(st.sampled_from([2**63 - 1, -(2**63), 1, -1, 2**62, -(2**62)]), min_size=1, max_size=8))
def test_integer_sums_are_exact_or_fail(values):
    function = RowAggregates({"total": agg.sum("v")})
    accumulator = function.create_accumulator()
    for value in values:
        accumulator = function.add({"v": value}, accumulator)
    if -(2**63) <= sum(values) < 2**63:
        assert sum_of(values) == sum(values)
        assert function.get_result(accumulator) == {"total": sum(values)}
    else:
        with pytest.raises(UserFunctionError, match="does not fit int64"):
            sum_of(values)
        with pytest.raises(UserFunctionError, match="does not fit int64"):
            function.get_result(accumulator)


def test_averages_of_epoch_nanoseconds_do_not_overflow():
    now_ns = 1_700_000_000_000_000_000
    rows = [{"k": 0, "v": now_ns}] * 100
    assert columnar(rows, pa.int64(), {"mean": agg.avg("v")}, [], [])[0]["mean"] == pytest.approx(now_ns)


def test_sums_of_decimals_have_38_digits():
    rows = [{"k": 0, "v": Decimal("99999999.99")}] * 1000
    expected = Decimal("99999999.99") * 1000
    assert columnar(rows, pa.decimal128(10, 2), {"total": agg.sum("v")}, [500], [])[0]["total"] == expected
    assert by_key(rows, {"total": agg.sum("v")})[0]["total"] == expected


DECIMALS = [
    Decimal(f"{sign}{digits}") for digits in ("9e19", "9" * 20, "0.000000000000000001", "123.5") for sign in "+-"
]


@given(st.lists(st.sampled_from(DECIMALS), min_size=1, max_size=6))
def test_sums_of_decimals_are_exact_or_fail_in_both_forms(values):
    kind = pa.decimal128(38, 18)
    rows = [{"k": 0, "v": value} for value in pa.array(values, kind).to_pylist()]
    exact = sum(map(Fraction, values))
    if exact * 10**18 < 10**38 and all(abs(sum(map(Fraction, values[:n]))) < 10**20 for n in range(len(values) + 1)):
        assert columnar(rows, kind, {"total": agg.sum("v")}, [], [])[0]["total"] == exact
        assert by_key(rows, {"total": agg.sum("v")})[0]["total"] == exact
    elif abs(exact) >= 10**20:
        with pytest.raises(UserFunctionError, match="sum of decimals does not fit"):
            columnar(rows, kind, {"total": agg.sum("v")}, [], [])
        with pytest.raises(UserFunctionError, match="sum of decimals does not fit"):
            by_key(rows, {"total": agg.sum("v")})


def test_a_sum_of_one_decimal_is_that_decimal():
    value = Decimal("1234567890123456789012345678.1234567890")
    rows = [{"k": 0, "v": value}]
    assert by_key(rows, {"total": agg.sum("v")})[0]["total"] == value
    assert columnar(rows, pa.decimal128(38, 10), {"total": agg.sum("v")}, [], [])[0]["total"] == value


@pytest.mark.parametrize(
    ("values", "kind", "error"),
    [
        ([2**64 - 1], pa.uint64(), UserFunctionError),
        ([Decimal(10) ** 40], pa.decimal256(50, 0), UserFunctionError),
        (["a"], pa.string(), TypeMismatchError),
    ],
)
def test_what_cannot_be_summed_is_an_error_that_names_the_field_in_both_forms(values, kind, error):
    rows = [{"k": 0, "v": value} for value in values]
    for form in (lambda: columnar(rows, kind, {"t": agg.sum("v")}, [], []), lambda: by_key(rows, {"t": agg.sum("v")})):
        with pytest.raises(error) as raised:
            form()
        assert "col('v')" in str(raised.value)


def test_count_distinct_keeps_few_sets():
    function = agg.count_distinct("v")
    accumulator = function.create()
    for value in range(1000):
        accumulator = function.add(accumulator, value % 700)
    assert function.result(accumulator) == 700
    assert len(accumulator) <= 10


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int32()), ("f", pa.float32()), ("s", pa.string()), ("z", pa.null())])


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (agg.count(), pa.int64()),
        (agg.count("s"), pa.int64()),
        (agg.sum("v"), pa.int64()),
        (agg.sum("f"), pa.float64()),
        (agg.avg("v"), pa.float64()),
        (agg.min("s"), pa.string()),
        (agg.max("v"), pa.int32()),
        (agg.first("f"), pa.float32()),
        (agg.last("s"), pa.string()),
        (agg.count_distinct("s"), pa.int64()),
        (agg.max(col("v") * 2.5), pa.float64()),
        (agg.max("z"), pa.null()),
    ],
)
def test_types_of_results(aggregate, expected):
    assert aggregate.output_type(SCHEMA) == expected


def test_wrong_arguments_are_named():
    with pytest.raises(TypeMismatchError, match=r"sum\(col\('s'\)\) is for numbers"):
        agg.sum("s").output_type(SCHEMA)
    with pytest.raises(ProgramError, match="'w' does not exist"):
        agg.max("w").output_type(SCHEMA)
    with pytest.raises(ProgramError, match="at least one aggregate"):
        RowAggregates({})
    with pytest.raises(ProgramError, match="must be an aggregate"):
        ColumnarAggregates({"n": len})


def test_only_aggregates_without_order_are_mergeable():
    assert ColumnarAggregates({"a": agg.sum("v"), "b": agg.count_distinct("v")}).is_mergeable
    assert not ColumnarAggregates({"a": agg.sum("v"), "b": agg.first("v")}).is_mergeable


def test_row_form_reads_dicts_tuples_values_and_expressions():
    def result(aggregate, *records):
        function = pickle.loads(pickle.dumps(RowAggregates({"r": aggregate})))
        accumulator = function.create_accumulator()
        for record in records:
            accumulator = function.add(record, accumulator)
        return function.get_result(accumulator)["r"]

    assert result(agg.sum("v"), {"v": 1}, {"v": 2}) == 3
    assert result(agg.sum("f1"), ("a", 1), ("b", 2)) == 3
    assert result(agg.sum("value"), 1, 2) == 3
    assert result(agg.sum(col("v") * 2), {"v": 1}, {"v": None}, {"v": 2}) == 6
    with pytest.raises(ProgramError, match="'w' does not exist; the record's fields are 'v'"):
        result(agg.sum("w"), {"v": 1})
    with pytest.raises(ProgramError, match="does not exist in a record of type int"):
        result(agg.sum("w"), 1)
