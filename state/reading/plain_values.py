"""Plain Python values of types that can be made to cost more than they weigh: built within limits.

``Fraction("1e300000000")`` is an integer of a gigabit, a set of numbers that hash alike takes years, a numpy type with
a crafted state reads any memory. Code that builds values from stored bytes does so here.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = [
    "MAX_EXPONENT",
    "MAX_FEW",
    "check_hashes",
    "decimal_of",
    "fixed_zone",
    "fraction_of",
    "is_fixed_zone",
    "numpy_of",
    "numpy_text",
]

MAX_DIGITS, MAX_EXPONENT = 4_000, 20_000
"""Of a fraction in text form; of a Decimal. Python's own context has 28 digits."""

_FRACTION = re.compile(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?", re.ASCII)
_DECIMAL = re.compile(r"-?(Infinity|s?NaN[0-9]{0,100}|[0-9]{0,20000}(\.[0-9]{0,20000})?(E[+-]?[0-9]{1,6})?)", re.ASCII)
_NUMPY = re.compile(r"[<>|=]?(b1|i[1248]|u[1248]|f[248]|c(8|16))|[<>]?[mM]8\[(Y|M|W|D|h|m|s|ms|us|ns)\]", re.ASCII)
"""The types of numpy's that are numbers or times of a unit: no objects, no fields, no shapes."""

_MAX_ALIKE = 1_000
"""So many keys may hash alike: tuples of -1 and -2 all do, so that a set of small vectors may have hundreds of them."""

MAX_FEW = 100
"""So many may also that take long to compare: a megabyte of keys is told apart in half a second then, and in 6 s with a
thousand. Fewer keys need not be looked at."""

_LIGHT = 16
"""Keys of no more parts are compared at once."""


def fraction_of(text: str) -> Fraction:
    """Return the fraction that Python writes as a text.

    Raises:
        ValueError: If it writes none so, or one of more than `MAX_DIGITS`.
    """
    if _FRACTION.fullmatch(text) is None:
        message = f"no fraction: {text[:40]!r}"
        raise ValueError(message)
    numerator, _, denominator = text.partition("/")
    if denominator and not int(denominator):
        message = "a fraction over zero"
        raise ValueError(message)
    return Fraction(int(numerator), int(denominator or 1))


def decimal_of(text: str) -> Decimal:
    """Return the Decimal that Python writes as a text.

    Raises:
        ValueError: If it writes none so, or one of a larger exponent than `MAX_EXPONENT`.
    """
    if _DECIMAL.fullmatch(text) is None or not any(character.isalnum() for character in text):
        message = f"no decimal: {text[:40]!r}"
        raise ValueError(message)
    number = Decimal(text)
    if number.is_finite() and abs(number.adjusted()) > MAX_EXPONENT:
        message = f"a decimal of exponent {number.adjusted()}"
        raise ValueError(message)
    return number


def is_fixed_zone(zone: Any) -> bool:
    """Return whether a time zone is no more than an offset."""
    return type(zone) is datetime.timezone and zone == datetime.timezone(zone.utcoffset(None)) and _is_nameless(zone)


def _is_nameless(zone: datetime.timezone) -> bool:
    return zone.tzname(None) == datetime.timezone(zone.utcoffset(None)).tzname(None)


def fixed_zone(offset_us: int) -> datetime.timezone:
    """Return the time zone of an offset.

    Raises:
        ValueError, OverflowError: If there is none.
    """
    offset = datetime.timedelta(microseconds=offset_us)
    return datetime.timezone(offset) if offset else datetime.timezone.utc


def numpy_text(value: np.generic) -> str | None:
    """Return how the type of a number of numpy is written; None if it is no plain one."""
    text = value.dtype.str
    return text if _NUMPY.fullmatch(text) else None


def numpy_of(text: str, data: bytes) -> np.generic:
    """Return a number of numpy.

    Args:
        text: Its type, as `numpy_text` gives it; no other is taken.
        data: Its bytes.

    Raises:
        ValueError: If the type is no plain one, or the bytes are not one number.
    """
    if _NUMPY.fullmatch(text) is None:
        message = f"no plain type of numpy: {text[:40]!r}"
        raise ValueError(message)
    kind = np.dtype(text)
    if len(data) != kind.itemsize:
        message = f"{len(data)} bytes for a number of type {text}"
        raise ValueError(message)
    number: np.generic = np.frombuffer(data, kind)[0]
    return number


def check_hashes(keys: Collection[Any], counts: Counter[int] | None = None) -> None:
    """See that keys of a set or dict can be told apart by their hashes.

    Args:
        keys: The keys, or those that are new.
        counts: How many keys are there already, by hash; these are added.

    Raises:
        ValueError: If too many hash alike: each would be compared with each.
        TypeError: If one cannot be hashed.
    """
    hashes = list(map(hash, keys))
    if counts is None:
        counts = Counter()
    counts.update(hashes)
    alike = max(map(counts.__getitem__, hashes), default=0)
    if alike > _MAX_ALIKE or (alike > MAX_FEW and any(map(_is_heavy, keys))):
        message = f"{alike} keys hash alike"
        raise ValueError(message)


def _is_heavy(key: Any) -> bool:
    """Whether a key has more than `_LIGHT` parts: items of tuples, words of numbers."""
    weight, parts = 0, [key]
    while parts and weight <= _LIGHT:
        part = parts.pop()
        kind = type(part)
        if kind is tuple or kind is frozenset:
            weight += len(part)
            parts += part if len(part) <= _LIGHT else ()
        elif kind is int:
            weight += part.bit_length() >> 6
        elif kind is Decimal:
            weight += len(part.as_tuple().digits) >> 4
    return weight > _LIGHT
