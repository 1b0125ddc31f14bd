"""Folds of one field: what is folded together is what is folded one record after the other.

Family: differential. Records of all kinds and values, equal ones, NaN, negative zeros, numbers that lose digits when
they are added; batches cut at random. Results must be equal to the last bit, of the same types, and fields in order.
"""

from __future__ import annotations

import math
from decimal import Decimal
from unittest import mock

import numpy as np
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness

from headrace.engine.functions.keys import KeySelector
from headrace.engine.operators.field_reducer import FieldReducer
from headrace.engine.operators.process import KeyedReduceOperator
from headrace.engine.windows.assigners import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from headrace.engine.windows.window_operator import WindowOperator

MODES = ("sum", "min", "max", "min_by", "max_by")
FLOATS = st.sampled_from((0.1, 0.2, 0.3, 1e16, -1e16, -0.0, 0.0, math.nan, math.inf, 1.5))
VALUES = st.one_of(
    st.lists(st.integers(-3, 3), min_size=1, max_size=4),
    st.lists(FLOATS, min_size=1, max_size=4),
    st.lists(FLOATS | st.integers(-3, 3) | st.just(10**400), min_size=1, max_size=4),
    st.lists(st.sampled_from(("a", "b", "ü", "", "a\U0001f600", "a\uffff")), min_size=1, max_size=4),
    st.lists(st.none() | st.booleans() | st.integers(0, 2), min_size=1, max_size=4),
    st.lists(st.sampled_from((Decimal("1.5"), np.int64(3), 2, 2.5)), min_size=1, max_size=4),
)


class Tagged(dict):
    """A dict of a user's own class."""


def records_of(kind, values, keys):
    for place, (key, value) in enumerate(zip(keys, values, strict=False)):
        as_dict = {"k": key, "v": value, "place": place}
        yield {
            "dict": as_dict,
            "tuple": (key, value, place),
            "lacking": {"k": key, "place": place} if place == 3 else as_dict,
            "own": Tagged(as_dict),
            "mixed": Tagged(as_dict) if place % 2 else as_dict,
        }[kind]


KINDS = st.sampled_from(("dict", "tuple", "lacking", "own", "mixed"))
BATCHES = st.lists(VALUES, min_size=1, max_size=4)
KEYS = st.lists(st.integers(0, 1), min_size=16, max_size=16)


def exactly(results):
    """Equal for what is equal to the last bit: types, signs of zeros, order of fields."""
    return repr([(type(result), result) for result in results])


def one_by_one(mode, kind, batches, keys):
    """What each record gives, and at last each key has; or how it fails."""
    reducer = FieldReducer(mode, 1 if kind == "tuple" else "v")
    contents, given = {}, []
    with mock.patch.object(FieldReducer, "_plain", return_value=None):
        for batch in batches:
            for record, key in zip(batch, keys, strict=False):
                contents[key] = reducer.reduce(contents[key], record) if key in contents else record
                given.append(contents[key])
    return given, contents


def together(mode, kind, batches, keys):
    reducer = FieldReducer(mode, 1 if kind == "tuple" else "v")
    contents, contents_of_each, given = {}, {}, []
    for batch in batches:
        of_batch = keys[: len(batch)]
        before = exactly(contents.items())
        if not reducer.fold(contents, of_batch, batch):
            assert exactly(contents.items()) == before, "nothing is done"
            for key, record in zip(of_batch, batch, strict=True):
                contents[key] = reducer.reduce(contents[key], record) if key in contents else record
        made = reducer.fold_each(contents_of_each, of_batch, batch)
        if made is None:
            made = []
            for key, record in zip(of_batch, batch, strict=True):
                known = contents_of_each
                known[key] = reducer.reduce(known[key], record) if key in known else record
                made.append(known[key])
        given += made
    assert exactly(contents.items()) == exactly(contents_of_each.items())
    return given, contents


def outcome(run, *arguments):
    try:
        given, contents = run(*arguments)
    except Exception as error:
        return repr(error)
    return exactly(given), exactly(contents.items())


@settings(max_examples=examples(2_000), deadline=None)
@given(st.sampled_from(MODES), KINDS, BATCHES, KEYS)
def test_folding_together_is_folding_one_by_one(mode, kind, values, keys):
    batches = [list(records_of(kind, batch, keys)) for batch in values]
    assert outcome(together, mode, kind, batches, keys) == outcome(one_by_one, mode, kind, batches, keys)


@pytest.mark.parametrize("mode", MODES)
def test_plain_records_are_folded_together(mode):
    for field, rows in (("v", [{"v": 1}, {"v": 2}]), (1, [("a", 1.0), ("a", 2)])):
        contents = {}
        assert FieldReducer(mode, field).fold(contents, [0, 0], rows)
        assert list(contents) == [0]
        assert FieldReducer(mode, field).fold_each({}, [0, 0], rows) is not None
    assert not FieldReducer(mode, "v").fold({}, [0], [{"v": None}])
    assert not FieldReducer(mode, "v").fold({0: {"v": Decimal(1)}}, [0], [{"v": 1}])


def test_records_are_never_changed():
    rows = [{"v": 1, "w": "x"}, {"v": 2, "w": "y"}, {"v": 0, "w": "z"}]
    contents = {0: rows[0]}
    FieldReducer("sum", "v").fold(contents, [0, 0], rows[1:])
    FieldReducer("min", "v").fold_each(contents, [0, 0], rows[1:])
    assert rows == [{"v": 1, "w": "x"}, {"v": 2, "w": "y"}, {"v": 0, "w": "z"}]


def operators(mode):
    key, reducer = KeySelector.of_field("k"), FieldReducer(mode, "v")
    yield KeyedReduceOperator(key, reducer)
    for assigner in (
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(10, 4),
        EventTimeSessionWindows.with_gap(4),
    ):
        yield WindowOperator(key, assigner, reduce=reducer, allowed_lateness_ms=5)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(MODES), st.lists(st.lists(FLOATS, min_size=1, max_size=12), min_size=1, max_size=4), KEYS)
def test_operators_give_what_they_gave_record_by_record(mode, values, keys):
    batches = [list(records_of("dict", batch, keys)) for batch in values]
    for together, apart in zip(operators(mode), operators(mode), strict=True):
        found = []
        for operator, is_plain in ((together, True), (apart, False)):
            harness = OperatorHarness(operator)
            with mock.patch.object(FieldReducer, "_plain", FieldReducer._plain if is_plain else lambda *_: None):
                for number, batch in enumerate(batches):
                    harness.process(batch, [7 * number + place * place % 13 for place in range(len(batch))])
                    harness.watermark(7 * number)
                harness.watermark(1_000)
            found.append(exactly(harness.take()))
        assert found[0] == found[1]
