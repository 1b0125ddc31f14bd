"""Encodings of rows: properties against Python's own equality and order, and the values one by one.

Risk covered: two equal keys that do not meet, two different keys that do (also as a prefix of a longer row), a value
that comes back changed.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import sys
import threading
import uuid
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.state.backends.rocksdb.row_encoding import (
    decode_key,
    decode_value,
    encode_key,
    encode_namespace,
    encode_value,
    is_plain,
    next_prefix,
    original_key,
    past_key,
    skip_key,
    split_namespace,
    split_row,
)
from headrace.state.errors import CheckpointCorruptError, CheckpointMismatchError, TypeMismatchError
from headrace.state.keys.hashing import hash_key, hash_keys


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Place:
    city: str
    number: int


class Name(str):
    __slots__ = ()


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(),
    st.text(st.sampled_from("\0\1a\xff")),
    st.binary(),
    st.decimals(-1000, 1000, places=2),
    st.fractions(-1000, 1000, max_denominator=1000),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.timezone.utc)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([*Color, *Level, Place("Ulm", 1), Place("Ulm", 2), Name("x"), int, len]),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.complex_numbers(allow_nan=False),
)
keys = st.recursive(
    atoms,
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)),
    max_leaves=5,
)


def same(one, other):
    """Equal, with all parts of the same types; NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    return one == other or one != one


def plain(key):
    """The key without NumPy's scalars, whose ``==`` rounds, and compares with tuples element by element."""
    if isinstance(key, np.generic):
        return key.item()
    return type(key)(map(plain, key)) if type(key) in (tuple, frozenset) else key


@given(keys, keys)
def test_keys_have_equal_encodings_if_and_only_if_they_are_equal(one, other):
    assert (encode_key(one) == encode_key(other)) == (plain(one) == plain(other))


short = st.text(st.sampled_from("\0\1a\xff"), max_size=3)
similar = short | short.map(lambda text: text.encode("latin-1")) | st.lists(short, max_size=2).map(tuple)
inner_parts = st.just(b"") | keys.map(encode_key)


@given(keys, keys, inner_parts, inner_parts)
@example("a", "a\0", encode_key(1), encode_key(2))
@example(b"", b"\0", b"", b"")
def test_the_rows_of_a_key_are_between_its_bounds_and_no_others(one, other, inner, another):
    first, second = encode_key(one), encode_key(other)
    assert first <= first + inner < past_key(first)
    assert first == second or not first <= second + another < past_key(first)


@given(similar, similar, inner_parts)
def test_the_rows_of_similar_texts_are_not_those_of_a_key(one, other, inner):
    first, second = encode_key(one), encode_key(other)
    assert first == second or not first <= second + inner < past_key(first)


@given(keys, inner_parts)
def test_the_end_of_any_key_is_found(key, rest):
    encoded = encode_key(key)
    assert skip_key(b"ab" + encoded + rest, 2) == 2 + len(encoded)


@given(keys, inner_parts)
def test_a_plain_key_comes_back_as_it_was(key, rest):
    if is_plain(key):
        again, end = decode_key(encode_key(key) + rest)
        assert same(again, key)
        assert end == len(encode_key(key))


@pytest.mark.parametrize(
    "values", [st.integers(), st.floats(allow_nan=False).filter(lambda x: not x.is_integer()), st.text(), st.binary()]
)
def test_encodings_sort_like_values(values):
    @given(values, values)
    def check(one, other):
        if isinstance(one, str):  # code points sort like their UTF-8, surrogates too
            assert (encode_key(one) < encode_key(other)) == (
                one.encode("utf-8", "surrogatepass") < other.encode("utf-8", "surrogatepass")
            )
        else:
            assert (encode_key(one) < encode_key(other)) == (one < other)

    check()


@pytest.mark.parametrize(
    "equal",
    [
        [1, 1.0, True, Decimal(1), Fraction(1), np.int64(1), np.float32(1), Level.LOW, 1 + 0j, Decimal("1.00")],
        [0, -0.0, False],
        [2.5, Decimal("2.5"), Fraction(5, 2), np.float64(2.5)],
        ["x", Name("x"), np.str_("x")],
        [b"x", np.bytes_(b"x")],
        [float("nan"), np.float64("nan")],
        [2**70, float(2**70), Decimal(2**70)],
        [(1, "a"), (1.0, "a"), (True, Name("a"))],
        [frozenset((1, 2)), frozenset((2.0, 1.0))],
        [Place("Ulm", 1), Place("Ulm", 1)],
    ],
)
def test_equal_keys_of_all_types_meet(equal):
    assert len({encode_key(key) for key in equal}) == 1


@given(keys)
def test_one_key_hashes_as_many_do(key):
    assert hash_key(key) == int(hash_keys([key])[0])


def test_a_key_without_stable_state_is_refused():
    with pytest.raises(TypeMismatchError, match="no stable encoding"):
        encode_key(
            object.__new__(type("Odd", (), {"__reduce_ex__": lambda self, _: 1 / 0 if False else (_ for _ in ())}))
        )


values = st.recursive(
    st.one_of(atoms, st.floats()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.tuples(st.integers())), inner, max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=5,
)


CET = datetime.timezone(datetime.timedelta(hours=1))
PLAIN = [
    *(None, 5, -(2**80), "x", b"x", (1, "a"), [1, (2, [3])], {"a": (1,)}, {1, 2}, frozenset((1, (2,))), 1 + 2j),
    *(Decimal("1.50"), Decimal("-1E+300"), Fraction(1, 3), uuid.UUID(int=1), (), {}, [{}, ()]),
    *(np.int64(1), np.float32(1.5), np.bool_(True), np.datetime64("2020-01-01", "us"), np.timedelta64(5, "s")),
    *(datetime.date(2020, 1, 1), datetime.time(1, 2, 3), datetime.time(1, tzinfo=CET), datetime.timedelta(-3, 4, 5)),
    *(datetime.datetime.fromisoformat("2020-01-01T00:00"), datetime.datetime(2020, 1, 1, tzinfo=CET)),
]


def fail(_data):
    pytest.fail("a plain value is pickled")


@given(values)
def test_a_value_comes_back_as_it_was(value):
    assert same(decode_value(encode_value(value)), value)


@given(values, keys)
def test_a_row_may_keep_its_key(value, key):
    data = encode_value(value, key, keeps_key=True)
    assert same(decode_value(data), value)
    kept, is_kept = original_key(data)
    assert is_kept
    assert same(kept, key)
    alone, again, _ = split_row(data)
    assert same(decode_value(alone), value)
    assert same(again, key)
    assert original_key(alone) == (None, False)


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_need_no_pickle(value):
    data = encode_value(value, value, keeps_key=True)
    assert data[0] & 0xF != 2
    for again in (decode_value(data, fail), original_key(data, fail)[0]):
        assert (repr(again), type(again)) == (repr(value), type(value))


@pytest.mark.parametrize("value", [bytearray(b"x"), Place("Ulm", 1), Name("x"), "\ud800"])
def test_other_values_are_pickled_and_keep_their_type(value):
    data = encode_value(value)
    assert data[0] == 2
    again = decode_value(data)
    assert (again, type(again)) == (value, type(value))


@pytest.mark.parametrize("data", [b"", b"\x07", b"\x00\xc1", b"\x00\x92\x01", b"\x00\xc7\x01\x63x"])
def test_what_is_no_row_is_corrupt(data):
    with pytest.raises(CheckpointCorruptError):
        decode_value(data)


def test_a_pickle_that_cannot_be_built_does_not_fit():
    with pytest.raises(CheckpointMismatchError):
        decode_value(b"\x02cno.such.module\nThing\n.")


@pytest.mark.parametrize("data", [b"", b"\xee", b"\x03abc", b"\x15\x00"])
def test_what_is_no_key_is_corrupt(data):
    with pytest.raises(CheckpointCorruptError):
        decode_key(data)


@given(st.none() | st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), st.binary())
def test_a_namespace_comes_back(namespace, rest):
    encoded = encode_namespace(namespace)
    assert split_namespace(b"abcd" + encoded + rest, 4) == (namespace, 4 + len(encoded))


@given(st.binary(min_size=1).filter(lambda data: data.strip(b"\xff")), st.binary(), st.binary())
def test_a_prefix_ends_where_the_next_one_begins(prefix, rest, other):
    assert prefix + rest < next_prefix(prefix)
    assert other.startswith(prefix) or not prefix <= other < next_prefix(prefix)


def test_threads_do_not_share_a_packer():
    """Two jobs of one process write rows at the same time; a packer that is asked for an extension holds half a row."""
    wrong = []

    def write(number):
        for count in range(3000):
            value = [number, count, Decimal(count), (count, count), datetime.date(2020, 1, 1)]
            try:
                if decode_value(encode_value(value)) != value:
                    wrong.append(value)
            except CheckpointCorruptError as error:
                wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
