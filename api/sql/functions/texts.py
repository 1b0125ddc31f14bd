"""Functions of texts. Places count characters from 1, as SQL does.

Source: Flink's documentation ("String Functions").
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.kernels import Value, compute

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import cast_to, is_number, is_text, together
from .contract import Function, KernelCall, Typed, literal_of, made, require, row_by_row
from .operators import call, concatenated

__all__ = ["FUNCTIONS", "substring", "trimmed"]

_TEXT = pa.string()
_INT = pa.int32()
_PARTS = pa.list_(_TEXT)


def _text(value: Typed) -> Typed:
    return cast_to(require(value, is_text, "a text"), _TEXT)


def _number(value: Typed) -> Typed:
    return cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())


def _rows(name: str, function: Any, kind: pa.DataType, *operands: Typed, sees_nulls: bool = False) -> Typed:
    return made(name, row_by_row(function, kind, sees_nulls=sees_nulls), kind, *operands)


# -- parts of a text ---------------------------------------------------------------------------------------------------


def substring(value: Typed, start: Typed, length: Typed | None = None) -> Typed:
    """SUBSTRING: from a place, counted from the end if it is negative."""
    options = {"start": _whole(start)} | ({} if length is None else {"length": _whole(length)})
    return made("SUBSTRING", _substring, _TEXT, _text(value), **options)


def _whole(value: Typed) -> Typed:
    return require(value, pa.types.is_integer, "an integer")


def _substring(value: Value, start: int, length: int | None = None) -> Value:
    pc = compute()
    if length is not None and length < 0:
        return pa.nulls(len(value), _TEXT)
    first = max(start - 1, 0) if start >= 0 else start
    if first < 0:
        size = pc.utf8_length(value)
        # Beyond its begin nothing is found, as in Flink.
        inside = pc.greater_equal(size, -first)
        stop = None if length is None or first + length >= 0 else first + length
        return pc.if_else(inside, pc.utf8_slice_codeunits(value, first, stop), pa.scalar("", _TEXT))
    return pc.utf8_slice_codeunits(value, first, None if length is None else first + length)


def trimmed(value: Typed, side: str = "BOTH", characters: Typed | None = None) -> Typed:
    """TRIM: without these characters (blanks) at its ends."""
    given = literal_of(" ", _TEXT) if characters is None else _text(characters)
    return made(f"TRIM {side}", _TRIMS[side], _TEXT, _text(value), characters=given)


_TRIMS: dict[str, Callable[..., Value]] = {
    "BOTH": lambda value, characters: compute().utf8_trim(value, characters=characters),
    "LEADING": lambda value, characters: compute().utf8_ltrim(value, characters=characters),
    "TRAILING": lambda value, characters: compute().utf8_rtrim(value, characters=characters),
}


def _parts_of(value: Value, separator: str) -> Value:
    """The parts between separators; an empty text has none. Without a separator texts are split at blanks."""
    pc = compute()
    parts = pc.split_pattern(value, separator) if separator else pc.split_pattern_regex(value, r"\s")
    is_empty = pc.equal(value, "")
    return pc.if_else(is_empty, pa.scalar(None, parts.type), parts) if pc.any(is_empty).as_py() else parts


def _part_at(parts: pa.Array, index: int) -> pa.Array:
    lengths = compute().list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False)
    starts = np.asarray(parts.offsets)[:-1].astype(np.int64)
    return parts.values.take(pa.array(starts + index, mask=(lengths <= index) | (index < 0)))


def _bind_split_index(value: Typed, separator: Typed, index: Typed) -> Typed:
    if pa.types.is_integer(separator.kind) and separator.constant is not None:
        separator = literal_of(chr(separator.constant.as_py()), _TEXT)
    # In two steps, so that several parts of one text are looked for once.
    parts = made("SPLIT", _parts_of, _PARTS, _text(value), separator=_text(separator))
    return made("SPLIT_INDEX", _part_at, _TEXT, parts, index=_whole(index))


def _left(text: str, size: int) -> str:
    return text[: max(size, 0)]


def _right(text: str, size: int) -> str:
    return text[-size:] if size > 0 else ""


# -- places in a text --------------------------------------------------------------------------------------------------


def _place(text: str, part: str, start: int = 1) -> int:
    return text.find(part, max(start - 1, 0)) + 1 if part else 1


def _nth_place(text: str, part: str, start: int = 1, nth: int = 1) -> int:
    """INSTR: from the end if the start is negative."""
    if start == 0 or nth < 1:
        return 0
    place = start - 1 if start > 0 else len(text) + start
    for _ in range(nth):
        place = text.find(part, place) if start > 0 else text.rfind(part, 0, max(place, -1) + len(part))
        if place < 0:
            return 0
        place += 1 if start > 0 else -1
    return place if start > 0 else place + 2


def _bind_locate(part: Typed, value: Typed, start: Typed | None = None) -> Typed:
    more = [] if start is None else [_number(start)]
    return _rows("LOCATE", _place, _INT, _text(value), _text(part), *more)


def _bind_position(part: Typed, value: Typed) -> Typed:
    return _rows("POSITION", _place, _INT, _text(value), _text(part))


def _bind_instr(value: Typed, part: Typed, *numbers: Typed) -> Typed:
    return _rows("INSTR", _nth_place, _INT, _text(value), _text(part), *map(_number, numbers))


# -- what a text becomes -----------------------------------------------------------------------------------------------


def _pad(text: str, length: int, pad: str, *, left: bool) -> str | None:
    if length < 0 or not pad:
        return None
    missing = length - len(text)
    filling = (pad * (missing // len(pad) + 1))[:missing] if missing > 0 else ""
    return (filling + text if left else text + filling)[:length]


def _padded_left(text: str, length: int, pad: str) -> str | None:
    return _pad(text, length, pad, left=True)


def _padded_right(text: str, length: int, pad: str) -> str | None:
    return _pad(text, length, pad, left=False)


def _joined(separator: str | None, *parts: str | None) -> str | None:
    return None if separator is None else separator.join(part for part in parts if part is not None)


def _overlay(text: str, other: str, start: int, length: int) -> str:
    if start < 1 or start > len(text):
        return text
    # Nothing follows if nothing is replaced: Flink's rule.
    return text[: start - 1] + other + (text[start - 1 + length :] if length > 0 else "")


def _bind_overlay(value: Typed, other: Typed, start: Typed, length: Typed | None = None) -> Typed:
    size = call("length", _text(other)) if length is None else _number(length)
    return _rows("OVERLAY", _overlay, _TEXT, _text(value), _text(other), _number(start), size)


def _repeated(text: str, count: int) -> str:
    return text * max(count, 0)


def _translated(text: str | None, characters: str | None, others: str | None) -> str | None:
    if text is None or not characters:
        return text
    meant: dict[int, str | None] = {}
    for character, other in zip_longest(characters, (others or "")[: len(characters)]):
        meant.setdefault(ord(character), other)
    return text.translate(meant)


def _in_capitals(text: str) -> str:
    """INITCAP: words are of letters and digits of ASCII."""
    result, is_inside = [], False
    for character in text:
        result.append(character.lower() if is_inside else character.upper())
        is_inside = character.isascii() and character.isalnum()
    return "".join(result)


def _replaced(value: Value, part: str, replacement: str) -> Value:
    if not part:  # stands between all characters
        return compute().replace_substring_regex(value, "", replacement.replace("\\", "\\\\"))
    return compute().replace_substring(value, part, replacement)


def _bind_replace(value: Typed, part: Typed, replacement: Typed) -> Typed:
    return made("REPLACE", _replaced, _TEXT, _text(value), part=_text(part), replacement=_text(replacement))


# -- what a text is ----------------------------------------------------------------------------------------------------


def _begins(value: Value, part: Any) -> Value:
    return compute().starts_with(value, part)


def _ends(value: Value, part: Any) -> Value:
    return compute().ends_with(value, part)


def _of_part(name: str, kernel: Callable[..., Value], meaning: str) -> Function:
    def bind(value: Typed, part: Typed) -> Typed:
        both = together([value, part])
        if not (is_text(both[0].kind) or pa.types.is_binary(both[0].kind)):
            message = f"expected two texts or two BYTES; got {sql_name(both[0].kind)}"
            raise SqlError(message)
        # `together` keeps a literal that has the type already.
        return made(name, kernel, pa.bool_(), both[0], part=both[1])

    return Function(name, f"{name}(text, part)", bind, 2, 2, meaning)


def _is_decimal(text: str | None) -> bool:
    if text is None:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return not any(character in "_nN" for character in text)


def _all_of(function: str) -> Callable[[Value], Value]:
    """A kernel that says whether all characters are such, of which there is one at least."""
    return lambda value: compute().fill_null(compute().call_function(function, [value]), False)


def _asked(name: str, kernel: Callable[[Value], Value], meaning: str, *, of_numbers: bool) -> Function:
    """IS_DIGIT and its like: never null."""

    def bind(value: Typed) -> Typed:
        if is_number(value.kind):
            return call("is_not_null", value) if of_numbers else literal_of(False, pa.bool_())
        return made(name, kernel, pa.bool_(), _text(value))

    return Function(name, f"{name}(text)", bind, 1, 1, meaning)


# -- several texts -----------------------------------------------------------------------------------------------------


def _chosen(place: int | None, *values: Any) -> Any:
    return None if place is None or not 1 <= place <= len(values) else values[place - 1]


def _bind_elt(place: Typed, *values: Typed) -> Typed:
    same = together(values)
    return _rows("ELT", _chosen, same[0].kind, _number(place), *same, sees_nulls=True)


def _by_arrow(name: str, function: str, meaning: str, kind: pa.DataType = _TEXT, differs: str = "") -> Function:
    quick = _OF_ASCII.get(function, function)

    def kernel(value: Value) -> Value:
        return compute().call_function(quick if _is_ascii(value) else function, [value])

    def bind(value: Typed) -> Typed:
        return Typed(KernelCall(name, kernel, (_text(value).expression,), kind), kind)

    return Function(name, f"{name}(text)", bind, 1, 1, meaning, differs)


_OF_ASCII = {"utf8_upper": "ascii_upper", "utf8_lower": "ascii_lower", "utf8_length": "binary_length"}
"""What does the same for texts of ASCII letters, many times as fast."""


def _is_ascii(value: Value) -> bool:
    if isinstance(value, pa.Scalar):
        return bool(value.is_valid and value.as_py().isascii())
    _, offsets, letters = value.buffers()
    if letters is None or not len(value):
        return True
    first, last = np.frombuffer(offsets, np.int32)[[value.offset, value.offset + len(value)]]
    if first and not value.offset:  # there Arrow's ascii_lower and ascii_upper give texts behind the end of their bytes
        return False
    return bool((np.frombuffer(letters, np.uint8)[first:last] < 128).all())


def _of_numbers(name: str, usage: str, function: Any, meaning: str, count: int = 1) -> Function:
    """A function of a text, a number, and perhaps another text."""

    def bind(value: Typed, number: Typed, *texts: Typed) -> Typed:
        return _rows(name, function, _TEXT, _text(value), _number(number), *map(_text, texts))

    return Function(name, usage, bind, 1 + count, 1 + count, meaning)


def _bind_concat_ws(*texts: Typed) -> Typed:
    return _rows("CONCAT_WS", _joined, _TEXT, *map(_text, texts), sees_nulls=True)


def _bind_translate(*texts: Typed) -> Typed:
    return _rows("TRANSLATE", _translated, _TEXT, *map(_text, texts), sees_nulls=True)


def _trim_function(name: str, side: str, where: str) -> Function:
    def bind(value: Typed, characters: Typed | None = None) -> Typed:
        return trimmed(value, side, characters)

    meaning = f"The text without these characters (blanks, if it is not said) {where}."
    return Function(name, f"{name}(text[, characters])", bind, 1, 2, meaning)


_SIMPLE_CASES = "a letter whose capital is two letters stays ('ß')"

FUNCTIONS = (
    _by_arrow("UPPER", "utf8_upper", "The text in capitals.", differs=_SIMPLE_CASES),
    _by_arrow("LOWER", "utf8_lower", "The text in small letters."),
    _by_arrow("REVERSE", "utf8_reverse", "The text backwards."),
    _by_arrow("CHAR_LENGTH", "utf8_length", "How many characters it has.", _INT),
    _by_arrow("CHARACTER_LENGTH", "utf8_length", "How many characters it has.", _INT),
    Function("INITCAP", "INITCAP(text)", lambda value: _rows("INITCAP", _in_capitals, _TEXT, _text(value)), 1, 1,
             "Every word with a capital, and small letters behind."),
    _of_numbers("LPAD", "LPAD(text, length, pad)", _padded_left, "The text filled in front, or cut, to a length.", 2),
    _of_numbers("RPAD", "RPAD(text, length, pad)", _padded_right, "The text filled behind, or cut, to a length.", 2),
    _of_numbers("LEFT", "LEFT(text, length)", _left, "The first characters."),
    _of_numbers("RIGHT", "RIGHT(text, length)", _right, "The last characters."),
    _of_numbers("REPEAT", "REPEAT(text, count)", _repeated, "The text several times."),
    Function("CONCAT", "CONCAT(text, ...)", concatenated, 1, None, "The texts one after the other; null if one is."),
    Function("CONCAT_WS", "CONCAT_WS(separator, text, ...)", _bind_concat_ws, 1, None,
             "The texts with a separator between; nulls are skipped."),
    Function("SUBSTR", "SUBSTR(text, start[, length])", substring, 2, 3,
             "The characters from a place on, counted from the end if it is negative."),
    Function("SUBSTRING", "SUBSTRING(text FROM start [FOR length])", substring, 2, 3,
             "The characters from a place on, counted from the end if it is negative."),
    Function("TRIM", "TRIM([BOTH | LEADING | TRAILING] [characters FROM] text)", trimmed, 1, 1,
             "The text without these characters (blanks, if it is not said) at its ends."),
    _trim_function("BTRIM", "BOTH", "at both ends"),
    _trim_function("LTRIM", "LEADING", "in front"),
    _trim_function("RTRIM", "TRAILING", "behind"),
    Function("REPLACE", "REPLACE(text, part, replacement)", _bind_replace, 3, 3, "The text with every part replaced."),
    Function("OVERLAY", "OVERLAY(text PLACING other FROM start [FOR length])", _bind_overlay, 3, 4,
             "The text with another one in place of some characters."),
    Function("TRANSLATE", "TRANSLATE(text, characters, others)", _bind_translate, 3, 3,
             "The text with each character replaced by the one at its place in others, or left out."),
    Function("POSITION", "POSITION(part IN text)", _bind_position, 2, 2,
             "The place of the first such part, from 1; 0 if there is none."),
    Function("LOCATE", "LOCATE(part, text[, start])", _bind_locate, 2, 3,
             "The place of the first such part from a place on; 0 if there is none."),
    Function("INSTR", "INSTR(text, part[, start[, nth]])", _bind_instr, 2, 4,
             "The place of the nth such part from a place on; if that is negative, from the end; else 0."),
    _of_part("STARTSWITH", _begins, "Whether a text, or BYTES, begin with a part."),
    _of_part("ENDSWITH", _ends, "Whether a text, or BYTES, end with a part."),
    Function("SPLIT_INDEX", "SPLIT_INDEX(text, separator, index)", _bind_split_index, 3, 3,
             "The part between separators with a number, from 0; null if there is none."),
    Function("ELT", "ELT(place, text, ...)", _bind_elt, 2, None, "The text at a place, from 1; null if there is none."),
    _asked("IS_ALPHA", _all_of("utf8_is_alpha"), "Whether there are only letters; never null.", of_numbers=False),
    _asked("IS_DIGIT", _all_of("utf8_is_digit"), "Whether there are only digits; never null.", of_numbers=True),
    _asked("IS_DECIMAL", row_by_row(_is_decimal, pa.bool_(), sees_nulls=True), "Whether it is a number; never null.",
           of_numbers=True),
)  # fmt: skip
