"""Decimals in expressions: exact, rounded as SQL says, or refused. Oracle: Python's fractions."""

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import UserFunctionError, col, lit

TYPES = st.builds(lambda p, s: pa.decimal128(p, min(p, s)), st.integers(1, 38), st.integers(0, 38))


def batch(**columns):
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rounded(value, scale):
    """Halves away from zero."""
    scaled = abs(value) * 10**scale
    whole = int(scaled + Fraction(1, 2))
    return Fraction(whole if value >= 0 else -whole, 10**scale)


def fits(value, kind):
    return abs(value * 10**kind.scale) < 10**kind.precision


def check(expression, data, exact, kind):
    """The value that an expression must give: rounded to the scale, or refused if whole digits do not fit."""
    wanted = rounded(exact, kind.scale)
    if fits(wanted, kind):
        made = expression.evaluate(data)
        made.validate(full=True)
        assert made.type == kind
        assert Fraction(made[0].as_py()) == wanted
    else:
        with pytest.raises(UserFunctionError):
            expression.evaluate(data)


@st.composite
def decimals(draw):
    kind = draw(TYPES)
    digits = draw(st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1))
    return pa.array([Decimal(digits).scaleb(-kind.scale, _context())], kind)


def _context():
    import decimal

    return decimal.Context(prec=80)


@given(decimals(), TYPES)
@example(pa.array([Decimal(340_283)]), pa.decimal128(33, 33))  # just above 2**128 when scaled
def test_a_decimal_is_cast_exactly_or_refused(values, kind):
    check(col("v").cast(kind), batch(v=values), Fraction(values[0].as_py()), kind)


@given(st.floats(allow_nan=False, allow_infinity=False), TYPES)
def test_a_float_is_cast_as_its_shortest_text(value, kind):
    for values in (pa.array([value]), pa.array([repr(value)])):
        check(col("v").cast(kind), batch(v=values), Fraction(Decimal(repr(value))), kind)


@given(st.integers(-(2**63), 2**63 - 1), TYPES)
def test_an_integer_is_cast_exactly_or_refused(value, kind):
    check(col("v").cast(kind), batch(v=pa.array([value])), Fraction(value), kind)


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", " 1", "", "1e", "٣"])
def test_a_text_that_is_no_number_is_refused(text):
    for values in ([text], [text, "1e300", "1e-300"]):
        with pytest.raises(UserFunctionError):
            col("v").cast(pa.decimal128(9, 2)).evaluate(batch(v=pa.array(values)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_no_decimal(value):
    with pytest.raises(UserFunctionError):
        col("v").cast(pa.decimal128(9, 2)).evaluate(batch(v=pa.array([value])))


def result_type(precision, scale):
    """Spark's rule for what would need more than 38 digits."""
    if precision <= 38:
        return pa.decimal128(precision, scale)
    return pa.decimal128(38, max(38 - (precision - scale), min(scale, 6)))


@given(decimals(), decimals())
def test_arithmetic_has_sparks_types_and_exact_values(left, right):
    data = batch(a=left, b=right)
    (p1, s1), (p2, s2) = ((array.type.precision, array.type.scale) for array in (left, right))
    a, b = (Fraction(array[0].as_py()) for array in (left, right))
    scale = max(s1, s2)
    wide = max(p1 - s1, p2 - s2) + scale + 1
    check(col("a") + col("b"), data, a + b, result_type(wide, scale))
    check(col("a") - col("b"), data, a - b, result_type(wide, scale))
    check(col("a") * col("b"), data, a * b, result_type(p1 + p2 + 1, s1 + s2))
    quotient = max(6, s1 + p2 + 1)
    if b:
        check(col("a") / col("b"), data, a / b, result_type(p1 - s1 + s2 + quotient, quotient))
    else:
        with pytest.raises(UserFunctionError, match="by zero"):
            (col("a") / col("b")).evaluate(data)
    assert (col("a") < col("b")).evaluate(data)[0].as_py() is (a < b)
    assert (col("a") == col("b")).evaluate(data)[0].as_py() is (a == b)


@given(decimals(), st.one_of(decimals(), st.integers(-(2**63), 2**63 - 1)))
@example(pa.array([Decimal(1)], pa.decimal128(38, 0)), pa.array([Decimal("0.1")], pa.decimal128(38, 38)))
def test_decimals_are_compared_exactly_whatever_their_types(left, right):
    both = batch(one=left, other=right if isinstance(right, pa.Array) else pa.array([right]))
    one, other = (Fraction(column[0].as_py()) for column in both.columns)
    for other_side in (col("other"), lit(both.column("other")[0].as_py())):
        assert (col("one") < other_side).evaluate(both).to_pylist() == [one < other]
        assert (col("one") == other_side).evaluate(both).to_pylist() == [one == other]
        assert (other_side < col("one")).evaluate(both).to_pylist() == [other < one]


def test_types_do_not_depend_on_whether_there_are_records():
    schema = pa.schema([("d", pa.decimal128(15, 2)), ("n", pa.int64())])
    full = pa.RecordBatch.from_pylist([{"d": Decimal("0.05"), "n": 3}], schema=schema)
    for expression in (1 - col("d"), col("d") * (1 + col("d")), col("d") / 3, col("n") * col("d"), lit(2) * col("d")):
        assert expression.output_type(schema) == expression.evaluate(full).type


def test_the_discounted_and_taxed_price_of_tpc_h():
    kind = pa.decimal128(15, 2)
    data = batch(**{name: pa.array([Decimal(v)], kind) for name, v in (("p", "123.45"), ("d", "0.05"), ("t", "0.08"))})
    value = (col("p") * (1 - col("d")) * (1 + col("t"))).evaluate(data)
    assert value.type == pa.decimal128(38, 6)
    assert value[0].as_py() == Decimal("126.659700")


def test_nulls_stay_nulls():
    kind = pa.decimal128(38, 10)
    data = batch(a=pa.nulls(2, kind), n=pa.nulls(2), t=pa.array([None, "1.5"]))
    for expression in (
        col("a") * col("a"),
        col("a") / col("n"),
        col("n") + col("a"),
        col("a").cast(pa.decimal128(4, 1)),
    ):
        assert expression.evaluate(data).to_pylist() == [None, None]
    assert col("t").cast(pa.decimal128(4, 1)).evaluate(data).to_pylist() == [None, Decimal("1.5")]


@pytest.mark.parametrize(
    ("expression", "fits", "does_not"),
    [
        (col("a").floor(), "-8.5", "-9.5"),
        (col("a").ceil(), "8.5", "9.5"),
        (col("a").round(), "9.4", "9.5"),
        (col("a").round(-1), "4.9", "5.0"),
    ],
)
def test_what_needs_a_digit_more_than_there_are_is_refused_and_not_0(expression, fits, does_not):
    def evaluated(text):
        return expression.evaluate(pa.record_batch({"a": pa.array([Decimal(text)], pa.decimal128(2, 1))})).to_pylist()

    assert evaluated(fits) == [{"-8.5": -9, "8.5": 9, "9.4": 9, "4.9": 0}[fits]]
    with pytest.raises(UserFunctionError, match="failed"):
        evaluated(does_not)


def test_small_decimals_are_written_digit_by_digit():
    values = [Decimal("1E-18"), Decimal("-1.5"), None]
    batch = pa.record_batch({"a": pa.array(values, pa.decimal128(38, 18))})
    texts = col("a").cast(pa.string()).evaluate(batch).to_pylist()
    assert texts == ["0.000000000000000001", "-1.500000000000000000", None]
