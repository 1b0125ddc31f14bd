"""Functions of texts.

Positions count characters from 1, as SQL does. Regular expressions are RE2's, which know no look-around and no
references back; Java's, which Flink takes, know both.

Source: Flink's documentation ("String Functions").
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pyarrow as pa

from headrace.engine.columns.kernels import Value, compute

from ..parsing.errors import SqlError
from .coercion import cast_to, is_text
from .contract import Function, KernelCall, Typed, constant, require, row_by_row
from .operators import call, concatenated

__all__ = ["FUNCTIONS", "like", "similar", "substring", "trimmed"]

_TEXT = pa.string()
_INT = pa.int32()


def _text(value: Typed) -> Typed:
    return cast_to(require(value, is_text, "a text"), _TEXT)


def _number(value: Typed) -> Typed:
    return cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())


def _made(name: str, kernel: Any, kind: pa.DataType, *arguments: Typed, **options: Any) -> Typed:
    return Typed(KernelCall(name, kernel, tuple(one.expression for one in arguments), kind, **options), kind)


# -- kernels -----------------------------------------------------------------------------------------------------------


def _arrow(value: Value, function: str) -> Value:
    return compute().call_function(function, [value])


def _split_index(value: Value, separator: str, index: int) -> Value:
    pc = compute()
    if index < 0:
        return pa.nulls(len(value), _TEXT)
    parts = pc.split_pattern(value, separator)
    has_part = pc.greater(pc.list_value_length(parts), index)
    # Where there is no such part a row is given one that is not used.
    known = pc.if_else(pc.fill_null(has_part, False), parts, pa.scalar([""] * (index + 1), pa.list_(_TEXT)))
    return pc.if_else(pc.fill_null(has_part, False), pc.list_element(known, index), pa.scalar(None, _TEXT))


def _substring(value: Value, start: int, length: int | None) -> Value:
    pc = compute()
    if length is not None and length < 0:
        return pa.nulls(len(value), _TEXT)
    first = start - 1 if start > 0 else start
    if start == 0:
        first = 0
    if first < 0:
        size = pc.utf8_length(value)
        # Beyond its begin nothing is found, as in Flink.
        inside = pc.greater_equal(size, -first)
        stop = None if length is None or first + length >= 0 else first + length
        return pc.if_else(inside, pc.utf8_slice_codeunits(value, first, stop), pa.scalar("", _TEXT))
    return pc.utf8_slice_codeunits(value, first, None if length is None else first + length)


def _position(needle: Value, value: Value) -> Value:
    return row_by_row(lambda part, text: text.find(part) + 1, _INT)(needle, value)


def _trim(value: Value, characters: str, side: str) -> Value:
    pc = compute()
    trim = {"BOTH": pc.utf8_trim, "LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}[side]
    return trim(value, characters=characters)


def _regexp_replace(value: Value, pattern: str, replacement: str) -> Value:
    return compute().replace_substring_regex(value, pattern, re.sub(r"\$(\d)", r"\\\1", replacement))


def _matches(value: Value, pattern: str) -> Value:
    return compute().match_substring_regex(value, pattern)


def _pad(text: str, length: int, pad: str, *, left: bool) -> str | None:
    if length < 0 or not pad:
        return None
    missing = length - len(text)
    filling = (pad * (missing // len(pad) + 1))[:missing] if missing > 0 else ""
    return (filling + text if left else text + filling)[:length]


def _hash(text: str, algorithm: str) -> str:
    return hashlib.new(algorithm, text.encode(), usedforsecurity=False).hexdigest()


def _concat_ws(separator: str, *parts: str | None) -> str:
    return separator.join(part for part in parts if part is not None)


def _joined(*values: Value) -> Value:
    num_rows = max(len(value) for value in values if not isinstance(value, pa.Scalar))
    columns = [[v.as_py()] * num_rows if isinstance(v, pa.Scalar) else v.to_pylist() for v in values]
    rows = [None if row[0] is None else _concat_ws(*row) for row in zip(*columns, strict=True)]
    return pa.array(rows, _TEXT)


def _overlay(text: str, other: str, start: int, length: int) -> str:
    if start < 1 or start > len(text):
        return text
    return text[: start - 1] + other + text[start - 1 + max(length, 0) :]


def _like_pattern(pattern: str, escape: str | None) -> str:
    """The pattern of LIKE with the escape that Arrow knows."""
    result = []
    characters = iter(pattern)
    for character in characters:
        if escape is not None and character == escape:
            following = next(characters, None)
            if following not in ("%", "_", escape):
                message = f"the escape {escape!r} in {pattern!r} stands before nothing that can be escaped"
                raise SqlError(message)
            result.append(f"\\{following}" if following in "%_\\" else following)
        else:
            result.append("\\\\" if character == "\\" else character)
    return "".join(result)


# -- what SQL writes with words ----------------------------------------------------------------------------------------


def like(value: Typed, pattern: Typed, escape: Typed | None = None) -> Typed:
    """LIKE: ``%`` any text, ``_`` any character."""
    given = constant(pattern, "the pattern of LIKE")
    escaped = None if escape is None else constant(escape, "the escape of LIKE")
    if given is None:
        return Typed(value.expression.is_null() & ~value.expression.is_null(), pa.bool_())
    return call("like", _text(value), pattern=_like_pattern(given, escaped))


def similar(value: Typed, pattern: Typed) -> Typed:
    """SIMILAR TO: SQL's regular expressions, which match the whole text."""
    given = constant(pattern, "the pattern of SIMILAR TO")
    translated = re.sub(r"[.^$\\]", lambda found: "\\" + found.group(), given).replace("%", ".*").replace("_", ".")
    return _made("SIMILAR", _matches, pa.bool_(), _text(value), pattern=f"^(?s:{translated})$")


def substring(value: Typed, start: Typed, length: Typed | None = None) -> Typed:
    """SUBSTRING: from a position, counted from the end if it is negative."""
    if start.constant is not None and (length is None or length.constant is not None):
        size = None if length is None else constant(length, "the length")
        return _made("SUBSTRING", _substring, _TEXT, _text(value), start=constant(start, "the start"), length=size)
    pieces = [_text(value), _number(start), *([] if length is None else [_number(length)])]
    return _made("SUBSTRING", row_by_row(_substring_of, _TEXT), _TEXT, *pieces)


def _substring_of(text: str, start: int, length: int | None = None) -> str | None:
    return _substring(pa.array([text]), start, length)[0].as_py()


def trimmed(value: Typed, side: str = "BOTH", characters: Typed | None = None) -> Typed:
    """TRIM: without these characters (blanks) at its ends."""
    given = " " if characters is None else constant(characters, "what is trimmed")
    return _made(f"TRIM {side}", _trim, _TEXT, _text(value), characters=given, side=side)


# -- calls -------------------------------------------------------------------------------------------------------------


def _split(value: Typed, separator: Typed, index: Typed) -> Typed:
    options = {"separator": constant(separator, "the separator"), "index": constant(index, "the index")}
    return _made("SPLIT_INDEX", _split_index, _TEXT, _text(value), **options)


def _regexp_extract(value: Typed, pattern: Typed, group: Typed | None = None) -> Typed:
    number = 0 if group is None else constant(group, "the group")
    return call("regexp_extract", _text(value), pattern=constant(pattern, "the pattern"), group=number)


def _replace_by_pattern(value: Typed, pattern: Typed, replacement: Typed) -> Typed:
    options = {"pattern": constant(pattern, "the pattern"), "replacement": constant(replacement, "the replacement")}
    return _made("REGEXP_REPLACE", _regexp_replace, _TEXT, _text(value), **options)


def _replace(value: Typed, text: Typed, replacement: Typed) -> Typed:
    options = {"text": constant(text, "the text"), "replacement": constant(replacement, "the replacement")}
    return call("replace", _text(value), **options)


def _repeated(text: str, count: int) -> str:
    return text * max(count, 0)


def _rows(name: str, function: Any, kind: pa.DataType, *arguments: Typed, **options: Any) -> Typed:
    return _made(name, row_by_row(function, kind), kind, *arguments, **options)


def _arrow_function(name: str, function: str, kind: pa.DataType = _TEXT) -> Function:
    return Function(
        name, f"{name}(text)", lambda value: _made(name, _arrow, kind, _text(value), function=function), 1, 1
    )


def _hash_function(name: str, algorithm: str) -> Function:
    return Function(
        name, f"{name}(text)", lambda value: _rows(name, _hash, _TEXT, _text(value), algorithm=algorithm), 1, 1
    )


def _padding(name: str, *, left: bool) -> Function:
    def bind(value: Typed, length: Typed, pad: Typed) -> Typed:
        return _rows(name, _pad, _TEXT, _text(value), _number(length), _text(pad), left=left)

    return Function(name, f"{name}(text, length, pad)", bind, 3, 3)


def _to_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _from_base64(text: str) -> str:
    return base64.b64decode(text).decode()


FUNCTIONS = (
    _arrow_function("UPPER", "utf8_upper"),
    _arrow_function("LOWER", "utf8_lower"),
    _arrow_function("INITCAP", "utf8_title"),
    _arrow_function("REVERSE", "utf8_reverse"),
    _arrow_function("CHAR_LENGTH", "utf8_length", _INT),
    _arrow_function("CHARACTER_LENGTH", "utf8_length", _INT),
    _hash_function("MD5", "md5"),
    _hash_function("SHA1", "sha1"),
    _hash_function("SHA224", "sha224"),
    _hash_function("SHA256", "sha256"),
    _hash_function("SHA384", "sha384"),
    _hash_function("SHA512", "sha512"),
    _padding("LPAD", left=True),
    _padding("RPAD", left=False),
    Function("CONCAT", "CONCAT(text, ...)", concatenated, 1, None),
    Function("CONCAT_WS", "CONCAT_WS(separator, text, ...)",
             lambda *texts: _made("CONCAT_WS", _joined, _TEXT, *map(_text, texts)), 1, None),
    Function("SUBSTR", "SUBSTR(text, start[, length])", substring, 2, 3),
    Function("SUBSTRING", "SUBSTRING(text, start[, length])", substring, 2, 3),
    Function("LEFT", "LEFT(text, length)",
             lambda value, length: _rows("LEFT", lambda text, size: text[: max(size, 0)], _TEXT, _text(value),
                                         _number(length)), 2, 2),
    Function("RIGHT", "RIGHT(text, length)",
             lambda value, length: _rows("RIGHT", lambda text, size: text[-size:] if size > 0 else "", _TEXT,
                                         _text(value), _number(length)), 2, 2),
    Function("TRIM", "TRIM(text)", trimmed, 1, 1),
    Function("BTRIM", "BTRIM(text[, characters])", lambda value, chars=None: trimmed(value, "BOTH", chars), 1, 2),
    Function("LTRIM", "LTRIM(text)", lambda value: trimmed(value, "LEADING"), 1, 1),
    Function("RTRIM", "RTRIM(text)", lambda value: trimmed(value, "TRAILING"), 1, 1),
    Function("REPLACE", "REPLACE(text, part, replacement)", _replace, 3, 3),
    Function("REPEAT", "REPEAT(text, count)",
             lambda value, count: _rows("REPEAT", _repeated, _TEXT, _text(value), _number(count)), 2, 2),
    Function("OVERLAY", "OVERLAY(text PLACING other FROM start [FOR length])",
             lambda *given: _rows("OVERLAY", _overlay, _TEXT, _text(given[0]), _text(given[1]), _number(given[2]),
                                  _number(given[3]) if len(given) > 3 else call("length", _text(given[1]))), 3, 4),
    Function("POSITION", "POSITION(part IN text)",
             lambda needle, value: _made("POSITION", _position, _INT, _text(needle), _text(value)), 2, 2),
    Function("LOCATE", "LOCATE(part, text)",
             lambda needle, value: _made("LOCATE", _position, _INT, _text(needle), _text(value)), 2, 2),
    Function("INSTR", "INSTR(text, part)",
             lambda value, needle: _made("INSTR", _position, _INT, _text(needle), _text(value)), 2, 2),
    Function("STARTSWITH", "STARTSWITH(text, part)",
             lambda value, part: call("starts_with", _text(value), text=constant(part, "the part")), 2, 2),
    Function("ENDSWITH", "ENDSWITH(text, part)",
             lambda value, part: call("ends_with", _text(value), text=constant(part, "the part")), 2, 2),
    Function("SPLIT_INDEX", "SPLIT_INDEX(text, separator, index)", _split, 3, 3),
    Function("REGEXP", "REGEXP(text, pattern)",
             lambda value, pattern: _made("REGEXP", _matches, pa.bool_(), _text(value),
                                          pattern=constant(pattern, "the pattern")), 2, 2),
    Function("REGEXP_EXTRACT", "REGEXP_EXTRACT(text, pattern[, group])", _regexp_extract, 2, 3),
    Function("REGEXP_REPLACE", "REGEXP_REPLACE(text, pattern, replacement)", _replace_by_pattern, 3, 3),
    Function("ASCII", "ASCII(text)",
             lambda value: _rows("ASCII", lambda text: text.encode()[0] if text else 0, _INT, _text(value)), 1, 1),
    Function("CHR", "CHR(number)",
             lambda value: _rows("CHR", lambda number: chr(number % 256) if number >= 0 else "", _TEXT,
                                 _number(value)), 1, 1),
    Function("TO_BASE64", "TO_BASE64(text)", lambda value: _rows("TO_BASE64", _to_base64, _TEXT, _text(value)), 1, 1),
    Function("FROM_BASE64", "FROM_BASE64(text)",
             lambda value: _rows("FROM_BASE64", _from_base64, _TEXT, _text(value)), 1, 1),
)  # fmt: skip
