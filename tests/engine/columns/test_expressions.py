"""Expressions: random trees against evaluation in plain Python (property), each kernel against examples, and errors.

The risk is semantics: nulls, division, overflow, rounding, guarded branches. The oracle works record by record in
Python.
"""

# ruff: noqa: DTZ001 - times without a zone are what Arrow gives and takes for UTC

from __future__ import annotations

import datetime
import math
import pickle
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.conditionals import if_else, when
from headrace.engine.columns.expressions import coalesce, col, concat, lit
from headrace.state.errors import ProgramError, TypeMismatchError, UserFunctionError


def batch_of(**columns):
    return pa.RecordBatch.from_pydict(columns)


def evaluated(expression, **columns):
    return expression.evaluate(batch_of(**columns)).to_pylist()


# -- random trees ------------------------------------------------------------------------------------------------------


class Failed(Exception):
    pass


def checked(value):
    if not -(2**63) <= value < 2**63:
        raise Failed
    return value


def null_strict(function):
    return lambda *operands: lambda row: _strict(function, [operand(row) for operand in operands])


def _strict(function, values):
    return None if None in values else function(*values)


def _first_value(left, right):
    # Both are evaluated first, so that a failing operand fails even where it is not needed, as it does on columns.
    return right if left is None else left


def floor_division(a, b):
    if b == 0:
        raise Failed
    return checked(a // b)


def modulo(a, b):
    if b == 0:
        raise Failed
    return a % b


def kleene_and(a, b):
    def function(row):
        left, right = a(row), b(row)
        if left is False or right is False:
            return False
        return None if left is None or right is None else True

    return function


def kleene_or(a, b):
    def function(row):
        left, right = a(row), b(row)
        if left is True or right is True:
            return True
        return None if left is None or right is None else False

    return function


NUMBER_OPERATORS = [
    (lambda a, b: a + b, null_strict(lambda a, b: checked(a + b))),
    (lambda a, b: a - b, null_strict(lambda a, b: checked(a - b))),
    (lambda a, b: a * b, null_strict(lambda a, b: checked(a * b))),
    (lambda a, b: a // b, null_strict(floor_division)),
    (lambda a, b: a % b, null_strict(modulo)),
    (lambda a, b: coalesce(a, b), lambda a, b: lambda row: _first_value(a(row), b(row))),
]
COMPARISONS = [
    (lambda a, b: a == b, null_strict(lambda a, b: a == b)),
    (lambda a, b: a != b, null_strict(lambda a, b: a != b)),
    (lambda a, b: a < b, null_strict(lambda a, b: a < b)),
    (lambda a, b: a <= b, null_strict(lambda a, b: a <= b)),
    (lambda a, b: a > b, null_strict(lambda a, b: a > b)),
    (lambda a, b: a >= b, null_strict(lambda a, b: a >= b)),
]
LOGIC = [(lambda a, b: a & b, kleene_and), (lambda a, b: a | b, kleene_or)]


def leaves():
    columns = st.sampled_from(["x", "y", "z"]).map(lambda name: (col(name), lambda row: row[name]))
    constants = st.integers(-5, 5).map(lambda value: (lit(value), lambda row: value))
    return columns | constants


def joined(operators, operands):
    def build(drawn):
        (make, oracle), (left, left_oracle), (right, right_oracle) = drawn
        return make(left, right), oracle(left_oracle, right_oracle)

    return st.tuples(st.sampled_from(operators), operands, operands).map(build)


def conditions(numbers):
    negated = joined(COMPARISONS, numbers).map(
        lambda pair: (~pair[0], lambda row: None if pair[1](row) is None else not pair[1](row))
    )
    missing = numbers.map(lambda pair: (pair[0].is_null(), lambda row: pair[1](row) is None))
    simple = joined(COMPARISONS, numbers) | negated | missing
    return simple | joined(LOGIC, simple)


def cases(numbers):
    def build(drawn):
        (condition, condition_oracle), (then, then_oracle), (other, other_oracle) = drawn
        return (
            when(condition).then(then).otherwise(other),
            lambda row: then_oracle(row) if condition_oracle(row) else other_oracle(row),
        )

    return st.tuples(conditions(numbers), numbers, numbers).map(build)


NUMBERS = st.recursive(leaves(), lambda inner: joined(NUMBER_OPERATORS, inner) | cases(inner), max_leaves=8)
VALUES = st.none() | st.integers(-4, 4) | st.integers(-(2**40), 2**40)
ROWS = st.lists(st.fixed_dictionaries({"x": VALUES, "y": VALUES, "z": VALUES}), max_size=12)
SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("z", pa.int64())])


@settings(max_examples=examples(300), deadline=None)
@given(NUMBERS | conditions(NUMBERS), ROWS)
def test_random_trees_give_what_python_gives(pair, rows):
    expression, oracle = pair
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    try:
        expected = [oracle(row) for row in rows]
    except Failed:
        with pytest.raises(UserFunctionError):
            expression.evaluate(batch)
        return
    result = expression.evaluate(batch)
    assert result.to_pylist() == expected
    if rows:
        assert expression.output_type(SCHEMA) == result.type


@settings(max_examples=examples(100), deadline=None)
@given(NUMBERS, ROWS, st.integers(0, 12))
def test_cutting_a_batch_changes_nothing(pair, rows, cut):
    expression, _oracle = pair
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    try:
        whole = expression.evaluate(batch).to_pylist()
    except UserFunctionError:
        return
    head, tail = batch.slice(0, cut), batch.slice(min(cut, len(rows)))
    assert expression.evaluate(head).to_pylist() + expression.evaluate(tail).to_pylist() == whole


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        ),
        max_size=10,
    )
)
def test_floats_divide_as_in_python(pairs):
    batch = pa.RecordBatch.from_arrays(
        [pa.array([a for a, _ in pairs], pa.float64()), pa.array([b for _, b in pairs], pa.float64())], names=["a", "b"]
    )
    for make in (lambda a, b: a / b, lambda a, b: a // b, lambda a, b: a % b):
        result = make(col("a"), col("b")).evaluate(batch).to_pylist()
        for (a, b), value in zip(pairs, result, strict=True):
            if a is None or b is None:
                assert value is None
            elif b != 0:
                assert value == make(a, b)
            else:
                assert not math.isfinite(value)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_division_of_integers_is_true_division_and_floor_division_rounds_down():
    assert evaluated(col("a") / col("b"), a=[7, -7], b=[2, 2]) == [3.5, -3.5]
    assert evaluated(col("a") // 2, a=[7, -7, None]) == [3, -4, None]
    assert evaluated(col("a") % 3, a=[7, -7]) == [1, 2]
    assert evaluated(10 - col("a"), a=[7]) == [3]
    assert evaluated(2 ** col("a"), a=[10]) == [1024]
    assert evaluated(-col("a"), a=[10, None]) == [-10, None]


def test_large_integers_mix_with_floats():
    large = 2**60 + 1
    assert evaluated(col("a") + 0.5, a=[large]) == [float(large)]
    assert evaluated(col("a") > 0.5, a=[large]) == [True]
    assert evaluated(col("a") / 2, a=[large]) == [large / 2]


def test_small_integer_types_compute_in_64_bits():
    batch = pa.RecordBatch.from_arrays([pa.array([100], pa.int8())], names=["a"])
    result = (col("a") * 100).evaluate(batch)
    assert result.type == pa.int64()
    assert result.to_pylist() == [10_000]


@pytest.mark.parametrize("expression", [col("a") + 1, col("a") * 2, col("a") // 0, col("a") % 0, -(col("a") * -1 - 1)])
def test_values_out_of_domain_fail_and_name_the_expression(expression):
    with pytest.raises(UserFunctionError, match=r"col\('a'\)"):
        expression.evaluate(batch_of(a=[2**63 - 1]))


def test_a_null_divisor_does_not_fail():
    assert evaluated(col("a") // col("b"), a=[1, None, 4], b=[None, 0, 2]) == [None, None, 2]


def test_division_by_zero_in_floats_follows_ieee():
    assert evaluated(col("a") / 0, a=[1, -1]) == [math.inf, -math.inf]


def test_rounding():
    assert evaluated(col("a").round(), a=[0.5, 1.5, -0.5, 2.4]) == [1.0, 2.0, -1.0, 2.0]
    assert evaluated(col("a").round(1), a=[0.25, 7.0]) == [0.3, 7.0]
    assert evaluated(col("a").floor(), a=[1.5, -1.5]) == [1.0, -2.0]
    assert evaluated(col("a").ceil(), a=[1.5, -1.5]) == [2.0, -1.0]
    assert evaluated(col("a").round(), a=[3]) == [3]
    assert evaluated(col("a").floor(), a=[3]) == [3]
    assert evaluated(col("a").abs(), a=[-3, None]) == [3, None]


def test_decimals_stay_decimals():
    values = [Decimal("1.10"), None]
    assert evaluated(col("a") + col("a"), a=values) == [Decimal("2.20"), None]
    assert evaluated(col("a") * 2, a=values) == [Decimal("2.20"), None]


# -- logic -------------------------------------------------------------------------------------------------------------


def test_logic_is_three_valued():
    a = [True, True, True, False, False, False, None, None, None]
    b = [True, False, None] * 3
    assert evaluated(col("a") & col("b"), a=a, b=b) == [True, False, None, False, False, False, None, False, None]
    assert evaluated(col("a") | col("b"), a=a, b=b) == [True, True, True, True, False, None, True, None, None]
    assert evaluated(~col("a"), a=[True, None]) == [False, None]


def test_isin_is_sqls():
    assert evaluated(col("a").isin([1, 2]), a=[1, 3, None]) == [True, False, None]
    assert evaluated(col("a").isin([1, None]), a=[1, 3, None]) == [True, None, None]
    assert evaluated(col("a").isin([]), a=[1, None]) == [False, None]


def test_between_takes_both_ends():
    assert evaluated(col("a").between(1, 3), a=[0, 1, 3, 4, None]) == [False, True, True, False, None]


def test_null_tests_and_replacements():
    assert evaluated(col("a").is_null(), a=[1, None]) == [False, True]
    assert evaluated(col("a").is_not_null(), a=[1, None]) == [True, False]
    assert evaluated(col("a").fill_null(0), a=[1, None]) == [1, 0]
    assert evaluated(coalesce(col("a"), col("b"), 9), a=[None, None, 1], b=[2, None, 3]) == [2, 9, 1]


def test_a_branch_sees_only_its_records():
    ratio = when(col("b") != 0).then(col("a") // col("b")).otherwise(-1)
    assert evaluated(ratio, a=[6, 6, 6], b=[2, 0, None]) == [3, -1, -1]
    nested = if_else(col("b") > 0, if_else(col("b") > 1, col("a") // (col("b") - 1), 0), col("a") // (col("b") - 1))
    assert evaluated(nested, a=[6, 6, 6], b=[0, 1, 2]) == [-6, 0, 6]


def test_case_takes_the_first_true_condition_and_null_is_not_true():
    size = when(col("a") > 10).then("large").when(col("a") > 5).then("middle")
    assert evaluated(size, a=[20, 7, 1, None]) == ["large", "middle", None, None]
    assert evaluated(if_else(col("a"), 1, 2.5), a=[True, False, None]) == [1.0, 2.5, 2.5]
    assert evaluated(if_else(lit(True), lit(1), lit(2)), a=[0, 0]) == [1, 1]


# -- structs, types, text, time ----------------------------------------------------------------------------------------


def test_fields_of_a_null_struct_are_null():
    assert evaluated(col("s").field("x"), s=[{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]) == [1, None, None]
    with pytest.raises(ProgramError, match="'z'"):
        evaluated(col("s").field("z"), s=[{"x": 1}])
    with pytest.raises(TypeMismatchError):
        evaluated(col("s").field("z"), s=[1])


def test_casts():
    assert evaluated(col("a").cast("int64"), a=["12", None]) == [12, None]
    assert evaluated(col("a").cast(int), a=[2.9, -2.9, None]) == [2, -2, None]
    assert evaluated(col("a").cast(str), a=[1, None]) == ["1", None]
    assert evaluated(col("a").cast(pa.float32()), a=[2**60 + 1]) == [float(2**60)]
    with pytest.raises(UserFunctionError, match="cast"):
        evaluated(col("a").cast(int), a=["twelve"])
    with pytest.raises(ProgramError, match="there is no type"):
        col("a").cast("number")


def test_text():
    a = ["Straße", "abc", None, ""]
    assert evaluated(col("a").upper(), a=["abc", None]) == ["ABC", None]
    assert evaluated(col("a").lower(), a=["ABC", None]) == ["abc", None]
    assert evaluated(col("a").length(), a=a) == [6, 3, None, 0]
    assert evaluated(col("a").contains("b"), a=a) == [False, True, None, False]
    assert evaluated(col("a").starts_with("ab"), a=a) == [False, True, None, False]
    assert evaluated(col("a").ends_with("c"), a=a) == [False, True, None, False]
    assert evaluated(col("a").replace("b", "xx"), a=a) == ["Straße", "axxc", None, ""]
    assert evaluated(col("a").like("a_c%"), a=a) == [False, True, None, False]
    assert evaluated(col("a").concat("-", col("a")), a=["x", None]) == ["x-x", None]
    assert evaluated(concat("a", "b"), a=[1, 2]) == ["ab", "ab"]
    assert evaluated(col("a") + "!", a=["x", None]) == ["x!", None]


@given(st.text(max_size=8), st.integers(-9, 9), st.none() | st.integers(0, 9))
def test_substr_is_a_slice(text, start, length):
    start = max(start, -len(text))
    tail = text[start:]
    assert evaluated(col("a").substr(start, length), a=[text]) == [tail if length is None else tail[:length]]


@pytest.mark.parametrize("different", [40, 3_000, None])
def test_a_part_of_texts_that_come_again_is_that_of_texts_that_do_not(different):
    def text_of(number):
        number = number if different is None else number * 7919 % different
        return None if number % 11 == 0 else f"user={number}" + f"&id={number * 3}" * (number % 3)

    texts = [text_of(number) for number in range(5_000)]
    wanted = [None if text is None or "id=" not in text else text.rpartition("=")[2] for text in texts]
    array = pa.array([None, "id=7", *texts])[2:]
    assert evaluated(col("a").regexp_extract(r"id=(\d+)$", 1), a=array) == wanted


def test_regexp_extract():
    a = ["id=42;user=ann", "none", None]
    assert evaluated(col("a").regexp_extract(r"id=(\d+)", 1), a=a) == ["42", None, None]
    assert evaluated(col("a").regexp_extract(r"(?P<k>user)=([a-z(]+)", 2), a=a) == ["ann", None, None]
    assert evaluated(col("a").regexp_extract(r"\(?(?:id)=([0-9]{2})"), a=a) == ["id=42", None, None]
    with pytest.raises(ProgramError, match="group must be between"):
        evaluated(col("a").regexp_extract("a", 1), a=a)


TIME = datetime.datetime(2024, 2, 29, 13, 45, 59, 123000)
EPOCH_MS = int(TIME.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)


@pytest.mark.parametrize("value", [TIME, EPOCH_MS])
def test_parts_of_times(value):
    parts = [
        (col("t").year(), 2024),
        (col("t").month(), 2),
        (col("t").day(), 29),
        (col("t").hour(), 13),
        (col("t").minute(), 45),
        (col("t").second(), 59),
        (col("t").day_of_week(), TIME.isoweekday()),
        (col("t").to_epoch_ms(), EPOCH_MS),
        (col("t").to_timestamp(), TIME),
    ]
    for expression, expected in parts:
        assert evaluated(expression, t=[value, None]) == [expected, None]


@given(st.integers(-(10**13), 10**13))
def test_truncation_rounds_to_the_past(time_ms):
    for unit, length in (("second", 1000), ("minute", 60_000), ("hour", 3_600_000), ("day", 86_400_000)):
        assert evaluated(col("t").truncate(unit), t=[time_ms]) == [time_ms - time_ms % length]


def test_truncation_keeps_the_type():
    assert evaluated(col("t").truncate("month"), t=[TIME]) == [datetime.datetime(2024, 2, 1)]
    assert evaluated(col("t").truncate("week"), t=[datetime.date(2024, 2, 29)]) == [datetime.date(2024, 2, 26)]
    with pytest.raises(ProgramError, match="fortnight"):
        col("t").truncate("fortnight")


def test_microseconds_before_the_epoch_round_to_the_past():
    assert evaluated(col("t").to_epoch_ms(), t=[datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]) == [-1]


# -- the trees ---------------------------------------------------------------------------------------------------------


def test_repr_reads_like_the_program():
    assert repr(col("price") * 2) == "(col('price') * 2)"
    assert repr(~(col("a") > 1) & col("b").is_null()) == "((~(col('a') > 1)) & col('b').is_null())"
    assert repr(if_else(col("a"), 1, None)) == "when(col('a')).then(1).otherwise(None)"
    assert repr(col("a").substr(1, 2).alias("b")) == "col('a').substr(1, 2).alias('b')"
    assert repr(coalesce(col("a"), "x")) == "coalesce(col('a'), 'x')"
    assert repr(col("a").cast("int32")) == "col('a').cast(int32)"


def test_trees_are_pickled_and_hashed_by_structure():
    tree = when(col("a").field("b") > lit(1.5)).then(col("c").isin([1, None])).otherwise(lit(None))
    copy = pickle.loads(pickle.dumps(tree))
    assert copy.is_same_as(tree)
    assert hash(copy) == hash(tree)
    assert repr(copy) == repr(tree)
    assert not lit(1).is_same_as(lit(True))
    assert not lit(1).is_same_as(lit(1.0))
    assert not col("a").isin([1]).is_same_as(col("a").isin([2]))
    assert tree.columns_used() == {"a", "c"}


def test_truth_of_a_tree_is_refused_with_a_hint():
    with pytest.raises(ProgramError, match="use &"):
        bool(col("a") == 1)
    with pytest.raises(ProgramError, match="not known"):
        assert 0 < col("a") < 1


def test_names_of_results():
    assert col("a").output_name == "a"
    assert (col("a") + 1).output_name is None
    assert (col("a") + 1).alias("b").output_name == "b"


def test_unknown_columns_are_named_with_those_there_are():
    with pytest.raises(ProgramError, match="'b' does not exist; the columns are 'a'"):
        evaluated(col("b"), a=[1])


@pytest.mark.parametrize("expression", [col("a") + "x", col("a") & True, col("a").lower(), col("a") > "x", -col("t")])
def test_wrong_types_are_named_with_the_expression(expression):
    with pytest.raises(TypeMismatchError, match="cannot be applied to"):
        expression.evaluate(batch_of(a=[1], t=["x"]))


def test_literals_need_a_type():
    with pytest.raises(TypeMismatchError):
        lit(object())


def test_no_records_cannot_fail():
    assert evaluated(lit(1) // lit(0), a=[]) == []
    assert (lit(1) // lit(0)).output_type(pa.schema([("a", pa.int64())])) == pa.int64()
    with pytest.raises(UserFunctionError, match="by zero"):
        evaluated(lit(1) // lit(0), a=[1])


def test_literals_fill_the_batch():
    assert evaluated(lit("x"), a=[1, 2]) == ["x", "x"]
    assert evaluated(lit(None), a=[1, 2]) == [None, None]
    assert evaluated(lit(1) + lit(2), a=[]) == []


def test_sliced_batches_are_read_at_their_offset():
    batch = batch_of(a=[1, 2, 3, 4], s=[{"x": i} for i in range(4)]).slice(2, 2)
    assert (col("a") // 2).evaluate(batch).to_pylist() == [1, 2]
    assert col("s").field("x").evaluate(batch).to_pylist() == [2, 3]


TEXT = col("b")


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        (pa.string(), expression)
        for expression in (
            TEXT.fill_null("-"),
            TEXT.isin(["a", None]),
            TEXT.like("a%"),
            TEXT.contains("a"),
            TEXT.starts_with("a"),
            TEXT.ends_with("a"),
            TEXT.upper(),
            TEXT.lower(),
            TEXT.length(),
            TEXT.replace("a", "b"),
            TEXT.substr(1),
            TEXT.regexp_extract("(a)", 1),
            TEXT + "x",
            "x" + TEXT,
            TEXT == "x",
            concat(TEXT, "x"),
            coalesce(TEXT, "x"),
            if_else(col("n") > 1, TEXT, "x"),
            if_else(col("n") > 1, "x", TEXT),
        )
    ]
    + [(pa.int64(), expression) for expression in (TEXT.fill_null(1.5), TEXT.isin([1]), -(TEXT + 1) // 2)]
    + [(pa.bool_(), expression) for expression in (~TEXT, TEXT & (col("n") > 1), if_else(TEXT, 1, 2))]
    + [(pa.timestamp("us"), expression) for expression in (TEXT.year(), TEXT.truncate("day"))]
    + [(pa.struct([("x", pa.int64())]), TEXT.field("x"))],
)
def test_nulls_of_no_type_are_nulls_of_the_type_that_is_meant(kind, expression):
    # What a batch of records without a declared type shows of a field that happens to be null in all of them.
    expected = evaluated(expression, b=pa.nulls(2, kind), n=[1, 2])
    assert evaluated(expression, b=pa.nulls(2), n=[1, 2]) == expected


@pytest.mark.parametrize("seed", range(20))
def test_cases_of_texts_are_those_of_a_loop(seed):
    """Several branches of texts are chosen at once; constants, nulls and conditions that are null among them."""
    rng = random.Random(seed)
    num_rows, num_branches = rng.choice([1, 30]), rng.randint(1, 4)
    asked = [[rng.choice([True, False, None]) for _ in range(num_rows)] for _ in range(num_branches)]
    texts = [[rng.choice(["", "a", "é", None]) for _ in range(num_rows)] for _ in range(num_branches + 1)]
    is_constant = [rng.random() < 0.4 for _ in texts]
    columns = {f"c{i}": pa.array(column, pa.bool_()) for i, column in enumerate(asked)}
    columns |= {f"t{i}": pa.array(column, pa.string()) for i, column in enumerate(texts)}
    values = [lit(texts[i][0], pa.string()) if constant else col(f"t{i}") for i, constant in enumerate(is_constant)]
    case = when(col("c0")).then(values[0])
    for i in range(1, num_branches):
        case = case.when(col(f"c{i}")).then(values[i])
    given = case.otherwise(values[-1]).evaluate(pa.RecordBatch.from_pydict(columns))

    def expected(row):
        branch = next((i for i in range(num_branches) if asked[i][row]), num_branches)
        return texts[branch][0 if is_constant[branch] else row]

    assert given.type == pa.string()
    assert given.to_pylist() == [expected(row) for row in range(num_rows)]
