"""What a column would change of a value without a word: found before it is sent, and refused by name.

Databases round digits behind the point and fractions of seconds, cut blanks at the end of texts, fill texts and bytes
up, and keep so many bits of whole numbers in a float. A `ColumnCheck` finds such values in a column of records. What a
column would change of every value, or of most, is refused before the first record (`Dialect.takes`); what does not
fit at all is refused by the server.

Source: "Numeric Types", "Date/Time Types" and "Character Types" of PostgreSQL's documentation; "Data Types" of
MariaDB's; "Datatypes In SQLite".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

__all__ = [
    "ColumnCheck",
    "blanks_at_the_end",
    "blanks_beyond",
    "digits_beyond",
    "filled_bytes",
    "fractions_beyond",
    "no_numbers",
    "number_like",
    "other_spellings",
    "padded_texts",
    "short_years",
    "wide_integers",
]


@dataclass(frozen=True)
class ColumnCheck:
    """Finds values that a column would change.

    Attributes:
        changed: Which of some values they are, as booleans; nulls for nulls.
        told: Says of one, as a scalar, what would become of it: ``would round 3.14 to 1 digits behind the point``.
        hint: What may be done.
    """

    changed: Callable[[pa.Array], pa.Array]
    told: Callable[[pa.Scalar], str]
    hint: str

    def first_in(self, values: pa.Array) -> tuple[int, str] | None:
        """Return the place of the first one, and what would become of it; None if there is none.

        Of lists their elements are looked at, and the place is that of the list.
        """
        places = np.arange(len(values))
        while kinds.is_list(values.type) or kinds.is_large_list(values.type) or kinds.is_fixed_size_list(values.type):
            # Lists of a fixed size have elements where they are null, which are left out of what is looked at.
            places, values = places[pc.is_valid(values).to_numpy(zero_copy_only=False)], values.drop_null()
            if kinds.is_fixed_size_list(values.type):
                values = values.cast(pa.list_(values.type.value_type))
            places = places[pc.list_parent_indices(values).to_numpy(zero_copy_only=False)]
            values = values.flatten()
        found = np.flatnonzero(pc.fill_null(self.changed(values), fill_value=False).to_numpy(zero_copy_only=False))
        return (int(places[found[0]]), self.told(values[int(found[0])])) if len(found) else None


# -------------------------------------------------------------------------------------------------------------- numbers
def wide_integers(kind: pa.DataType, bits: int) -> ColumnCheck | None:
    """Of a float that keeps so many bits of a whole number."""
    if kind.bit_width < bits:
        return None
    return ColumnCheck(
        functools.partial(_are_wide, bits),
        lambda value: f"would round {value.as_py()}: it keeps {bits} bits",
        "declare it as BIGINT, or cast in the program",
    )


def _are_wide(bits: int, values: pa.Array) -> pa.Array:
    bounds = pc.min_max(values)
    least, greatest = bounds["min"], bounds["max"]
    if not least.is_valid or -(1 << bits) <= least.as_py() <= greatest.as_py() <= 1 << bits:
        return pa.array(np.zeros(len(values), bool))
    return pa.array([value is not None and _num_bits(abs(value)) > bits for value in values.to_pylist()], pa.bool_())


def _num_bits(value: int) -> int:
    """How many bits a number has without the zeros at its end, which a float's exponent says."""
    return (value // (value & -value)).bit_length() if value else 0


def digits_beyond(kind: pa.DataType, scale: int) -> ColumnCheck | None:
    """Of a decimal with so many digits behind the point; fewer than 0 for tens, hundreds ..."""
    if scale >= (kind.scale if kinds.is_decimal(kind) else 0):
        return None
    return ColumnCheck(
        functools.partial(_have_digits, scale),
        lambda value: f"would round {value.as_py()} to {scale} digits behind the point",
        "round it in the program, or declare the column with more digits",
    )


_MOST_DIGITS = 76
"""Of a decimal of Arrow's."""


def _have_digits(scale: int, values: pa.Array) -> pa.Array:
    kind = values.type
    if scale < 0 or kind.bit_width < 128:
        # Arrow rounds no decimal of fewer bits, and none to more digits before the point than its type has.
        behind = kind.scale if kinds.is_decimal(kind) else 0
        values = values.cast(pa.decimal256(_MOST_DIGITS, behind))
        scale = max(scale, behind - _MOST_DIGITS + 1)
    return pc.not_equal(pc.round(values, ndigits=scale, round_mode="towards_zero"), values)


def no_numbers() -> ColumnCheck:
    """Of a float that has no NaN."""
    return ColumnCheck(pc.is_nan, lambda _value: "would keep NaN as NULL", "write NULL, or a number of your own")


def short_years() -> ColumnCheck:
    """Of MariaDB's YEAR."""
    return ColumnCheck(
        lambda values: pc.and_(pc.greater_equal(values, 1), pc.less_equal(values, 99)),
        lambda value: f"would take {value.as_py()} for a year of this century or the last",
        "write years with all of their digits",
    )


# ---------------------------------------------------------------------------------------------------------------- times
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""By unit, digits of a fraction of a second."""


def fractions_beyond(kind: pa.DataType, digits: int = 6) -> ColumnCheck | None:
    """Of a time, or a length of time, with so many digits of fractions of seconds: no database here has more than 6."""
    if digits >= _DIGITS[kind.unit]:
        return None
    return ColumnCheck(
        functools.partial(_have_fractions, 10 ** (_DIGITS[kind.unit] - digits)),
        lambda value: f"would round or cut the fraction of {_moment(value)}: it keeps {digits} digits",
        "cut it in the program, or declare it with 6 digits, as TIMESTAMP(6)",
    )


def _moment(value: pa.Scalar) -> str:
    if kinds.is_duration(value.type):
        return f"{value.value} {value.type.unit}"
    return str(value.cast(pa.string()).as_py())


def _have_fractions(step: int, values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.int32() if kinds.is_time32(values.type) else pa.int64())
    return pa.array(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False) % step != 0)


# ------------------------------------------------------------------------------------------------------ texts and bytes
def blanks_beyond(limit: int, *, of_bytes: bool = False) -> ColumnCheck:
    """Of a text that loses blanks behind so many letters, or bytes of UTF-8; other letters there the server refuses."""
    size = pc.binary_length if of_bytes else pc.utf8_length
    return ColumnCheck(
        lambda values: pc.and_(pc.ends_with(values, " "), pc.greater(size(values), limit)),
        lambda value: f"would cut blanks at the end of a text of {len(value.as_py())} letters",
        "cut them in the program, or declare a longer VARCHAR",
    )


def padded_texts(length: int) -> ColumnCheck:
    """Of a text that is filled up with blanks, which are read, to so many letters."""
    cut = blanks_beyond(length)
    return ColumnCheck(
        lambda values: pc.or_(pc.less(pc.utf8_length(values), length), cut.changed(values)),
        lambda value: (
            cut.told(value)
            if len(value.as_py()) > length
            else f"would add blanks to a text of {len(value.as_py())} letters"
        ),
        f"declare it as VARCHAR({length}) or TEXT, or write {length} letters",
    )


def blanks_at_the_end(remedy: str) -> ColumnCheck:
    """Of a key whose column overlooks them."""
    return ColumnCheck(
        lambda values: pc.ends_with(values, " "),
        lambda _value: "overlooks blanks at the end of a key: keys that differ in them would be one row",
        remedy or "cut them in the program, or declare another type",
    )


_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"


def number_like() -> ColumnCheck:
    """Of a text that SQLite makes a number of: ``1.50``, or a UUID of digits alone."""
    return ColumnCheck(
        lambda values: pc.match_substring_regex(values, _NUMBER),
        lambda value: f"would make a number of the text {value.as_py()!r}",
        "declare it as TEXT",
    )


_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def other_spellings() -> ColumnCheck:
    """Of a UUID that is a key, in capitals or without hyphens: the database takes it for the same."""
    return ColumnCheck(
        lambda values: pc.invert(pc.match_substring_regex(values, _UUID)),
        lambda value: f"would spell {value.as_py()!r} otherwise: keys that differ in that would be one row",
        "write keys in small letters and with hyphens, as Python's str(uuid.UUID(...))",
    )


def filled_bytes(length: int) -> ColumnCheck:
    """Of MariaDB's BINARY, which fills up with zeros."""
    return ColumnCheck(
        lambda values: pc.less(pc.binary_length(values), length),
        lambda value: f"would add zeros to {len(value.as_py())} bytes",
        "declare it as VARBINARY",
    )
