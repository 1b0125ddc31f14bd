"""Key groups: properties (agreement of both faces, equality, partitions) and golden hashes that pin the format."""

# ruff: noqa: DTZ001 - naive datetimes are keys too
from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import os
import pickle
import subprocess
import sys
import uuid
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.state.errors import TypeMismatchError
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import KeyGroupRange, key_group_range, key_groups_of, subtask_of
from headrace.state.values.serde import pylist_from_array

UTC = dt.timezone.utc
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Place:
    x: int
    name: str


class Plain:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __eq__(self, other):
        return (self.a, self.b) == (other.a, other.b)

    def __hash__(self):
        return hash((self.a, self.b))


def of(kinds, values):
    """Columns: lists of values and nulls, each with one of the Arrow types."""
    return st.tuples(st.lists(st.none() | values), st.sampled_from(kinds))


THIS_AGE = (dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))  # what 64 bits of nanoseconds hold


def column_cases():
    return st.one_of(
        of([pa.int64()], INT64),
        of([pa.int8(), pa.int32()], st.integers(-128, 127)),
        of([pa.uint64()], st.integers(0, 2**64 - 1)),
        of([pa.bool_()], st.booleans()),
        of([pa.float64()], st.floats()),
        of([pa.float32()], st.floats(width=32)),
        of([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], TEXT),
        of([pa.binary(), pa.large_binary()], st.binary(max_size=30)),
        of([pa.binary(5)], st.binary(min_size=5, max_size=5)),
        of([pa.date32(), pa.date64()], st.dates()),
        of([pa.timestamp("us")], st.datetimes()),
        of([pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns")], st.datetimes(*THIS_AGE)),
        of(
            [pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin")],
            st.datetimes(*THIS_AGE, timezones=st.just(UTC)),
        ),
        of([pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")], INT64),
        of([pa.duration("us")], st.timedeltas(dt.timedelta(-1000), dt.timedelta(1000))),
        of([pa.time64("us"), pa.time32("ms")], st.times()),
        of([pa.decimal128(12, 3)], st.decimals(-1000, 1000, places=3)),
        of([pa.null()], st.none()),
    )


@given(column_cases(), st.integers(0, 3))
@settings(max_examples=examples(200))
@example(([-1], pa.duration("ns")), 0)
def test_both_faces_of_a_column_hash_alike(case, offset):
    values, kind = case
    column = pa.array(values, kind).slice(offset)
    np.testing.assert_array_equal(hash_columns([column]), hash_keys(pylist_from_array(column)))


@given(st.lists(st.tuples(st.none() | INT64, st.none() | TEXT, st.floats())))
def test_several_columns_hash_as_the_tuple(rows):
    columns = [
        pa.array([row[i] for row in rows], kind) for i, kind in enumerate((pa.int64(), pa.string(), pa.float64()))
    ]
    np.testing.assert_array_equal(hash_columns(columns), hash_keys(rows))


def _is_reflexive(value):
    try:
        hash(value)
    except TypeError:  # signalling NaN
        return False
    return value == value


KEYS = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | st.booleans()
    | TEXT
    | st.binary()
    | st.datetimes()
    | st.dates()
    | st.decimals(),
    lambda inner: st.tuples(inner, inner) | st.tuples(inner) | st.frozensets(inner.filter(_is_reflexive), max_size=3),
    max_leaves=5,
)


@given(st.lists(KEYS.filter(lambda key: "sNaN" not in repr(key)), max_size=8))
def test_a_key_hashes_alike_alone_and_among_others(keys):
    """Whatever shares a batch with it, and after pickling."""
    together = hash_keys(keys)
    assert [int(hash_keys([key])[0]) for key in keys] == together.tolist()
    np.testing.assert_array_equal(hash_keys(pickle.loads(pickle.dumps(keys))), together)


@given(
    st.lists(
        st.one_of(
            st.integers(-10, 10), st.integers(2**53 - 2, 2**53 + 2), st.integers(2**63 - 2, 2**64 + 2), st.just(10**40)
        ),
        min_size=1,
    )
)
def test_equal_numbers_hash_equal(numbers):
    for number in numbers:
        twins = [number, Decimal(number), Fraction(number)]
        if float(number) == number:
            twins += [float(number), complex(number), np.float64(number)]
        if number in (0, 1):
            twins += [bool(number), np.bool_(number)]
        if abs(number) < 2**63:
            twins.append(np.int64(number))
        assert len(set(hash_keys(twins).tolist())) == 1


def test_equal_values_of_other_types_hash_equal():
    pair = namedtuple("pair", "a b")
    for one, other in [
        (1, Level.LOW),
        (0.0, -0.0),
        (float("nan"), -math.nan),
        (0.5, Fraction(1, 2)),
        (0.5, Decimal("0.50")),
        ((1, 2), pair(1.0, 2)),
        (frozenset({1, 2, "c"}), frozenset({"c", 2.0, True})),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(2020, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
        (np.str_("a"), "a"),
        (np.datetime64("2020-01-01T00:00:00", "ns"), dt.datetime(2020, 1, 1)),
        (Place(1, "a"), Place(1.0, "a")),
        (Plain("aa", 1), Plain("".join(["a", "a"]), 1.0)),
        (uuid.UUID(int=7), uuid.UUID(int=7)),
    ]:
        assert hash_keys([one])[0] == hash_keys([other])[0], (one, other)


def test_different_kinds_of_keys_part_ways():
    keys = [
        0,
        None,
        "",
        b"",
        (),
        (0,),
        ("",),
        (None,),
        "0",
        b"0",
        dt.date(1970, 1, 1),
        dt.datetime(1970, 1, 1),
        frozenset(),
        Color.RED,
        Color.BLUE,
    ]
    keys += [
        dt.datetime(1970, 1, 1, tzinfo=UTC),
        dt.time(0),
        dt.timedelta(0),
        Place(0, ""),
        Plain(0, ""),
        "\x00",
        "\x00\x00",
        (0, 0),
        ((0,), 0),
        0.5,
        math.nan,
        math.inf,
    ]
    assert len(set(hash_keys(keys).tolist())) == len(keys)


def test_an_object_hashes_alike_whichever_of_its_equal_parts_are_the_same_object():
    text = "some text"
    copy = "".join(["some ", "text"])
    assert hash_keys([Plain(text, text)])[0] == hash_keys([Plain(text, copy)])[0]


@pytest.mark.parametrize("key", [[1], {"a": 1}, {1}, ([1],), bytearray(b"a"), np.array([1])], ids=repr)
def test_an_unhashable_key_is_refused(key):
    with pytest.raises(TypeMismatchError, match="a key must be hashable"):
        hash_keys([1, key])


def test_a_struct_that_is_a_tuple_hashes_as_the_tuple():
    keys = [(1, "a"), (2, None), None, (1, "a")]
    column = pa.array([None if key is None else {"f0": key[0], "f1": key[1]} for key in keys])
    for start in (0, 1):
        np.testing.assert_array_equal(hash_columns([column.slice(start)]), hash_keys(keys[start:]))


def test_a_nested_column_is_refused_as_key():
    with pytest.raises(TypeMismatchError, match="a key must be hashable"):
        hash_columns([pa.array([[1]])])


def test_a_key_without_state_is_refused():
    with pytest.raises(TypeMismatchError, match="no stable hash"):
        hash_keys([(i for i in ())])


def test_texts_that_utf8_cannot_hold_hash_like_others_beside_them():
    assert hash_keys(["\ud800", "a"])[1] == hash_keys(["a"])[0]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 255, 256, 257, 300])
def test_every_character_of_a_text_counts(length):
    text = "x" * length
    others = [text + "y", *(text[:i] + "z" + text[i + 1 :] for i in range(0, length, 5))]
    hashes = hash_keys([text, *others]).tolist()
    assert len(set(hashes)) == len(hashes)


def test_hashes_never_change():
    """They are part of the checkpoint format."""
    keys: list = [
        0,
        -1,
        2**70,
        1.5,
        None,
        "",
        "user-17",
        "ü" * 200,
        b"raw",
        (1, "a"),
        dt.date(2024, 2, 29),
        dt.datetime(2024, 2, 29, 1),
        Decimal("0.1"),
    ]
    assert hash_keys(keys).tolist() == [
        16294208416658607535,
        16490336266968443936,
        3307212252367569545,
        7607990721988332969,
        7809847782465536322,
        10820085304512511443,
        2903071103602172755,
        618182949911704273,
        16964100761143786705,
        2142315971989099580,
        7223226211559333839,
        6314967133377408153,
        13116810483267202678,
    ]


def test_hashes_are_the_same_in_another_process():
    """In spite of hash randomisation."""
    keys = "['a', ('b', 1), frozenset('abc')]"
    code = f"from headrace.state.keys.hashing import hash_keys; print(hash_keys({keys}).tolist())"
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "5"},
    )
    assert output.stdout.strip() == str(hash_keys(["a", ("b", 1), frozenset("abc")]).tolist())


# ------------------------------------------------------------------------------------------------------------- ranges
@given(st.integers(1, 300), st.data())
def test_ranges_partition_all_key_groups_and_invert_subtask_of(max_parallelism, data):
    parallelism = data.draw(st.integers(1, max_parallelism))
    groups = np.arange(max_parallelism, dtype=np.int32)
    owners = subtask_of(groups, max_parallelism, parallelism)
    covered = []
    for subtask in range(parallelism):
        owned = key_group_range(max_parallelism, parallelism, subtask)
        covered += range(owned.start, owned.end + 1)
        assert owners[owned.start : owned.end + 1].tolist() == [subtask] * len(range(owned.start, owned.end + 1))
        assert len(range(owned.start, owned.end + 1)) in (
            max_parallelism // parallelism,
            -(-max_parallelism // parallelism),
        )
    assert covered == groups.tolist()


@given(st.lists(TEXT | INT64), st.integers(1, 32768))
def test_a_key_keeps_its_key_group_whatever_the_parallelism(keys, max_parallelism):
    groups = key_groups_of(hash_keys(keys), max_parallelism)
    assert ((groups >= 0) & (groups < max_parallelism)).all()
    assert groups.dtype == np.int32


def test_sequential_keys_spread_evenly():
    for keys in (
        range(12_800),
        [f"user-{i}" for i in range(12_800)],
        [(i, "a") for i in range(12_800)],
        [float(i) / 8 for i in range(12_800)],
    ):
        counts = np.bincount(key_groups_of(hash_keys(list(keys)), 128), minlength=128)
        assert counts.min() > 50
        assert counts.max() < 170


def test_a_range_knows_what_it_contains():
    owned = KeyGroupRange(2, 4)
    assert [group for group in range(7) if owned.contains(group)] == [2, 3, 4]
    assert owned.overlaps(4, 9)
    assert not owned.overlaps(5, 9)
    assert len(KeyGroupRange(3, 2)) == 0
    assert len(owned) == 3
    assert pickle.loads(pickle.dumps(owned)) == owned
