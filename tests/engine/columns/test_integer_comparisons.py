"""Family: property (a rewritten condition is that of the products, for all records)."""

from __future__ import annotations

import operator
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.engine.columns.expressions import Call, col, lit
from headrace.engine.columns.integer_comparisons import of_integers

FACTORS = st.decimals(Decimal("-99"), Decimal("99"), places=3)
WHOLE = st.integers(-(2**63), 2**63 - 1)
BOUNDS = st.one_of(st.integers(-(10**6), 10**6), WHOLE, st.decimals(-(10**9), 10**9, places=2))
COMPARISONS = st.sampled_from([operator.gt, operator.ge, operator.lt, operator.le, operator.eq])
INTS = (pa.int8(), pa.int32(), pa.int64())


def near(factor, bound):
    """Integers whose products are near a bound."""
    middle = int(bound / factor) if factor else 0
    return [one for one in range(middle - 2, middle + 3) if -(2**63) <= one < 2**63]


@given(FACTORS, BOUNDS, COMPARISONS, st.booleans(), st.booleans(), st.sampled_from(INTS), st.lists(WHOLE, max_size=3))
@example(Decimal("0.908"), 1_000_000, operator.gt, False, True, pa.int64(), [])
@example(Decimal("0.001"), 2**63 - 1, operator.lt, False, True, pa.int64(), [2**63 - 1])
@example(Decimal("2.000"), 6, operator.ge, True, False, pa.int64(), [3])
@settings(max_examples=examples(150), deadline=None)
def test_a_condition_is_the_same_for_all_records(factor, bound, compare, is_mirrored, is_cast, kind, more):
    most = 2 ** (kind.bit_width - 1)
    values = [one for one in (*near(factor, bound), *more, 0, -most, most - 1) if -most <= one < most]
    batch = pa.record_batch({"price": pa.array([*values, None], kind)})
    price = col("price").cast(pa.decimal128(19, 0)) if is_cast else col("price")
    product = lit(factor) * price if is_mirrored else price * lit(factor)
    one = compare(lit(bound), product) if is_mirrored else compare(product, lit(bound))
    condition = (one & ~(col("price") < 0)) | one
    assert of_integers(condition, batch.schema).evaluate(batch).equals(condition.evaluate(batch))


def test_products_are_not_made():
    schema = pa.schema([("price", pa.int64())])
    product = lit(Decimal("0.908")) * col("price").cast(pa.decimal128(19, 0))
    found = of_integers((product > 1_000_000) & (product < 50_000_000), schema)
    assert found.is_same_as((col("price") > 1_101_321) & (col("price") < 55_066_080))


PRICE = col("price").cast(pa.decimal128(19, 0))


@pytest.mark.parametrize(
    "condition",
    [
        lit(Decimal("0.908")) * PRICE > 0.5,
        lit(Decimal("0.908")) * PRICE > lit(None, pa.int64()),
        lit(Decimal("-0.908")) * PRICE > 1,
        lit(Decimal("0.908")) * PRICE > col("price"),
        lit(Decimal("0." + "1" * 20)) * PRICE > 1,  # its digits are cut off
        lit(Decimal("0.908")) * col("price").cast(pa.decimal128(5, 0)) > 1,  # it may fail
        lit(Decimal("0.908")) * col("text").cast(pa.decimal128(19, 0)) > 1,
        lit(Decimal("0.001")) * PRICE < 2**62,
        lit(2) * col("price") > 1,  # it may overflow
    ],
    ids=repr,
)
def test_what_may_differ_stays(condition):
    schema = pa.schema([("price", pa.int64()), ("text", pa.string())])
    assert isinstance(condition, Call)
    assert of_integers(condition, schema).is_same_as(condition)
