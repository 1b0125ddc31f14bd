"""Values as JSON text: what each kind becomes (examples), and that the text is JSON whatever comes (property)."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.errors import TypeMismatchError
from headrace.state.values.json_text import json_text

NUMBER = uuid.UUID(int=5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x00\xff", '"AP8="'),
        (math.nan, "null"),
        ([1, math.inf, {"a": -math.inf}], '[1,null,{"a":null}]'),
        (Decimal("1.50"), '"1.50"'),
        (NUMBER, f'"{NUMBER}"'),
        (dt.datetime(2020, 1, 2, 3, tzinfo=dt.timezone.utc), '"2020-01-02T03:00:00+00:00"'),
        (dt.date(2020, 1, 2), '"2020-01-02"'),
        (dt.timedelta(milliseconds=1500), "1.5"),
        ({"z": "ü"}, '{"z":"ü"}'),
        ((1, {2}), "[1,[2]]"),
    ],
    ids=repr,
)
def test_what_json_has_no_form_for_is_written_alike_by_everybody(value, text):
    assert json_text(value) == text
    assert json_text(value, repr) == text


def test_an_object_is_refused_or_shown():
    with pytest.raises(TypeMismatchError, match="json has no form"):
        json_text({"a": object})
    assert json_text({"a": [object], "b": math.nan}, repr) == """{"a":["<class 'object'>"],"b":null}"""


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals()
VALUES = st.recursive(
    SCALARS | st.timedeltas() | st.datetimes() | st.dates() | st.uuids(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_every_plain_value_is_json_that_others_read(value):
    def refuse(constant):
        raise AssertionError(constant)

    json.loads(json_text(value), parse_constant=refuse)
