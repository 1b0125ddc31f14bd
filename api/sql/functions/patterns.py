"""Patterns of texts: LIKE, SIMILAR TO, and regular expressions.

Regular expressions are RE2's, which know no look-around and no references back; Java's, which Flink takes, know both. A
pattern that is none is refused while the statement is planned, and fails the job if it is the value of a column.

Source: Flink's documentation ("Comparison Functions", "String Functions").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa

from headrace.engine.columns.kernels import KERNELS, Value, compute

from ..parsing.errors import SqlError
from .coercion import cast_to, is_text
from .contract import Function, Typed, made, require, row_by_row

__all__ = ["FUNCTIONS", "like", "similar"]

_TEXT = pa.string()
_TEXTS = pa.list_(pa.string())
_INT = pa.int32()


def _text(value: Typed) -> Typed:
    return cast_to(require(value, is_text, "a text"), _TEXT)


# -- LIKE and SIMILAR TO -----------------------------------------------------------------------------------------------


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


def like(value: Typed, pattern: Typed, escape: Typed | None = None) -> Typed:
    """LIKE: ``%`` any text, ``_`` any character."""
    options = {"pattern": _text(pattern)} | ({} if escape is None else {"escape": _text(escape)})
    return made("LIKE", _is_like, pa.bool_(), _text(value), **options)


def _is_like(value: Value, pattern: str, escape: str | None = None) -> Value:
    return compute().match_like(value, _like_pattern(pattern, escape))


def similar(value: Typed, pattern: Typed) -> Typed:
    """SIMILAR TO: SQL's regular expressions, which match the whole text."""
    return made("SIMILAR", _is_similar, pa.bool_(), _text(value), pattern=_text(pattern))


def _is_similar(value: Value, pattern: str) -> Value:
    translated = re.sub(r"[.^$\\]", lambda found: "\\" + found.group(), pattern)
    translated = translated.replace("%", ".*").replace("_", ".")
    return compute().match_substring_regex(value, f"^(?s:{translated})$")


# -- regular expressions -----------------------------------------------------------------------------------------------


def _matches(value: Value, pattern: str) -> Value:
    _compiled(pattern)
    # An empty pattern is found nowhere, as in Flink.
    found = compute().match_substring_regex(value, pattern)
    return found if pattern else compute().and_(found, pa.scalar(False))


def _replaced(value: Value, pattern: str, replacement: str) -> Value:
    _compiled(pattern)
    # What is put in is a text, as in Flink: $1 is no group.
    return compute().replace_substring_regex(value, pattern, replacement.replace("\\", "\\\\"))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern for functions that look at all matches; what RE2 refuses is refused here, too."""
    try:
        compute().match_substring_regex(pa.array([""]), pattern)
        return re.compile(pattern.replace("(?<", "(?P<"), re.ASCII)
    except (pa.ArrowInvalid, re.error) as error:
        message = f"the pattern {pattern!r} is not supported: {error}"
        raise ValueError(message) from error


def _extracted(value: Value, pattern: str, group: int = 0) -> Value:
    if not 0 <= group <= _compiled(pattern).groups:
        return pa.nulls(len(value), _TEXT)
    return KERNELS["regexp_extract"](value, pattern=pattern, group=group)


def _counted(text: str, pattern: str) -> int:
    return sum(1 for _match in _compiled(pattern).finditer(text))


def _first_place(text: str, pattern: str) -> int:
    match = _compiled(pattern).search(text)
    return 0 if match is None else match.start() + 1


def _all_matches(text: str, pattern: str, group: int = 1) -> list[str | None] | None:
    compiled = _compiled(pattern)
    if not 0 <= group <= compiled.groups:
        return None
    return [match.group(group) for match in compiled.finditer(text)]


def _looked_at(function: Callable[..., Any], kind: pa.DataType) -> Callable[..., Value]:
    """A kernel that looks at each text; a pattern that is none is refused even of no rows."""
    each = row_by_row(function, kind)

    def kernel(value: Value, pattern: str, **options: Any) -> Value:
        _compiled(pattern)
        return each(value, pattern=pattern, **options)

    return kernel


_ENGINE = "patterns are RE2's: no look-around, no references back; one that is none is an error and not NULL"


def _of_pattern(name: str, kernel: Callable[..., Value], kind: pa.DataType, meaning: str) -> Function:
    def bind(value: Typed, pattern: Typed) -> Typed:
        return made(name, kernel, kind, _text(value), pattern=_text(pattern))

    return Function(name, f"{name}(text, pattern)", bind, 2, 2, meaning, _ENGINE)


def _of_group(name: str, kernel: Callable[..., Value], kind: pa.DataType, meaning: str) -> Function:
    def bind(value: Typed, pattern: Typed, group: Typed | None = None) -> Typed:
        number = {} if group is None else {"group": require(group, pa.types.is_integer, "an integer")}
        return made(name, kernel, kind, _text(value), pattern=_text(pattern), **number)

    return Function(name, f"{name}(text, pattern[, group])", bind, 2, 3, meaning, _ENGINE)


def _replace_by_pattern(value: Typed, pattern: Typed, replacement: Typed) -> Typed:
    options = {"pattern": _text(pattern), "replacement": _text(replacement)}
    return made("REGEXP_REPLACE", _replaced, _TEXT, _text(value), **options)


FUNCTIONS = (
    _of_pattern("REGEXP", _matches, pa.bool_(), "Whether a part of a text matches."),
    _of_group("REGEXP_EXTRACT", _extracted, _TEXT,
              "The first match, or a group of it counted from 1; null if there is none."),
    _of_group("REGEXP_EXTRACT_ALL", _looked_at(_all_matches, _TEXTS), _TEXTS,
              "A group (the first one if it is not said, 0 the whole match) of every match, as an array."),
    _of_pattern("REGEXP_COUNT", _looked_at(_counted, _INT), _INT, "How often a text matches."),
    _of_pattern("REGEXP_INSTR", _looked_at(_first_place, _INT), _INT,
                "The place of the first match, from 1; 0 if there is none."),
    _of_pattern("REGEXP_SUBSTR", _extracted, _TEXT, "The first match; null if there is none."),
    Function("REGEXP_REPLACE", "REGEXP_REPLACE(text, pattern, replacement)", _replace_by_pattern, 3, 3,
             "The text with every match replaced; the replacement is a plain text.", _ENGINE),
)  # fmt: skip
