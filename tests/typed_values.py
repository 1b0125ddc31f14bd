"""Random nested types as a program writes them, with values that are of them; what "the same value" means."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict, get_args, get_origin, is_typeddict

import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
LONGEST = dt.timedelta(days=100_000_000)
ATOMS = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, TEXTS),
    (bytes, st.binary(max_size=4)),
    (Decimal, st.decimals()),
    (dt.date, st.dates()),
    (dt.time, st.times().map(lambda time: time.replace(fold=0))),
    (dt.datetime, st.datetimes(allow_imaginary=False).map(lambda time: time.replace(fold=0))),
    (dt.timedelta, st.timedeltas(-LONGEST, LONGEST)),
]
KEYS = [pair for pair in ATOMS if pair[0] not in (float, Decimal)]


def _of_names(parts):
    return {f"a{index}": part for index, part in enumerate(parts)}


def _tuples(parts):
    return tuple[tuple(hint for hint, _ in parts)], st.tuples(*(values for _, values in parts))


def _dicts(parts):
    names = _of_names(parts)
    hint = TypedDict("Drawn", {name: hint for name, (hint, _) in names.items()})
    return hint, st.tuples(*(values for _, values in parts)).map(lambda row: dict(zip(names, row, strict=True)))


def _dataclasses(parts):
    names = _of_names(parts)
    kind = dataclasses.make_dataclass("Drawn", [(name, hint) for name, (hint, _) in names.items()])
    return kind, st.builds(kind, **{name: values for name, (_, values) in names.items()})


def _named_tuples(parts):
    names = _of_names(parts)
    kind = NamedTuple("Drawn", [(name, hint) for name, (hint, _) in names.items()])
    return kind, st.builds(kind, **{name: values for name, (_, values) in names.items()})


def _lists(part):
    hint, values = part
    return list[hint], st.lists(values, max_size=3)


def _maps(key, part):
    return dict[key[0], part[0]], st.dictionaries(key[1], part[1], max_size=3)


def _optional(part):
    hint, values = part
    return hint | None, st.none() | values


def _types_of(atoms, makers):
    def nested(inner):
        several = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            st.builds(_optional, inner),
            st.builds(_lists, inner),
            st.builds(_maps, st.sampled_from(KEYS), inner),
            *(st.builds(make, several) for make in makers),
        )

    return st.recursive(st.sampled_from(atoms), nested, max_leaves=6)


TYPES = _types_of(ATOMS, (_tuples, _dicts, _dataclasses, _named_tuples))
"""A hint, and a strategy of values of it."""

COLUMN_TYPES = _types_of([pair for pair in ATOMS if pair[0] is not Decimal], (_tuples, _dicts))
"""Those whose values streams and data sets give back from columns: no classes, no Decimals of any scale."""


def _has_fields(hint: Any) -> bool:
    return any(get_origin(part) is tuple or is_typeddict(part) for part in get_args(hint))


@st.composite
def typed_columns(draw: Any, types: Any = TYPES, max_size: int = 5) -> tuple[Any, list[Any]]:
    """A hint and some values of it."""
    hint, values = draw(types)
    # The type of records with fields holds no None: there are no fields in it.
    assume(types is not COLUMN_TYPES or type(None) not in get_args(hint) or not _has_fields(hint))
    return hint, draw(st.lists(values, max_size=max_size))


def same(one: Any, other: Any) -> bool:
    """Equal in value and type at every level; NaN equals NaN, 0.0 is not -0.0, and 1.0 as a Decimal is not 1.00."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and repr(one) == repr(other))
    if isinstance(one, (Decimal, uuid.UUID, dt.datetime)):
        return repr(one) == repr(other)
    return bool(one == other)


def same_columns(one: pa.Array, other: pa.Array) -> bool:
    """Equal in type and values; Arrow's own comparison says that NaN differs from NaN."""
    return one.type.equals(other.type) and same(one.to_pylist(), other.to_pylist())


def through_steps(env, hint, values):
    """The records behind two steps of a declared type, a shuffle and one more."""
    typed = env.from_collection(values).map(lambda value: value, output_type=hint)
    chained = typed.filter(lambda value: True).map(lambda value: value, output_type=hint)
    return chained.rebalance().map(lambda value: value, output_type=hint).collect()


def check_data_set(env, hint, values):
    """See that records come back from a data set as they were."""
    found = through_steps(env, hint, values)
    assert sorted(map(repr, found)) == sorted(map(repr, values))
    ordered = sorted(found, key=repr), sorted(values, key=repr)
    assert all(map(same, *ordered))
