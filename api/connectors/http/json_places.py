"""Parts of a text in JSON, as they stand there: a record's text is what the server has sent, digit by digit.

Source: RFC 6901, "JavaScript Object Notation (JSON) Pointer"; RFC 8259.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Any

from headrace.engine.errors import ConfigurationError
from headrace.state.checkpoints.manifest_schema import is_text

__all__ = ["Pointer"]

_DECODER = JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


class Pointer:
    """Where in a text something is.

    Args:
        text: A JSON pointer: ``""`` for all of it, ``/data/items``, ``/page/next``.

    Raises:
        ConfigurationError: If it is none.
    """

    def __init__(self, text: str) -> None:
        is_right = isinstance(text, str) and (not text or text.startswith("/"))
        if not is_right or re.search(r"~(?![01])", text):
            message = f"a JSON pointer is empty, or begins with /; got {text!r}"
            raise ConfigurationError(message, hint="/data/items for the items in the data")
        self._text = text
        self._tokens = [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]

    def __str__(self) -> str:
        return self._text

    def value(self, text: str) -> Any:
        """Return what is there; None if nothing is.

        Raises:
            ValueError: If the text is not JSON.
        """
        start = self._start(text)
        return None if start is None else _DECODER.raw_decode(text, start)[0]

    def cursor(self, text: str) -> str | None:
        """Return the text that is there, or the digits of the number, as they stand there; None for anything else, and
        ``""``.

        Raises:
            ValueError: If the text is not JSON, or what is there cannot be kept.
        """
        start = self._start(text)
        if start is None:
            return None
        value, end = _DECODER.raw_decode(text, start)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        found = value if isinstance(value, str) else text[start:end]
        if not is_text(found):
            message = f"the text at {self._text!r} has halves of characters"
            raise ValueError(message)
        return found or None

    def elements(self, text: str) -> list[str] | None:
        """Return the texts of the elements of the array that is there; None if there is no array.

        Raises:
            ValueError: If the text is not JSON.
        """
        start = self._start(text)
        if start is None or text[start] != "[":
            return None
        return [text[begin:end] for begin, end in _elements(text, start)]

    def _start(self, text: str) -> int | None:
        """Where it begins.

        Raises:
            ValueError: If the text is not JSON.
        """
        start = _behind_blanks(text, 0)
        try:
            end = _DECODER.raw_decode(text, start)[1]
        except RecursionError as error:
            message = "it is nested too deeply"
            raise ValueError(message) from error
        if _behind_blanks(text, end) != len(text):
            message = "there is something behind its end"
            raise ValueError(message)
        for token in self._tokens:
            found = _member(text, start, token)
            if found is None:
                return None
            start = found
        return start


def _behind_blanks(text: str, start: int) -> int:
    found = _BLANKS.match(text, start)
    assert found is not None
    return found.end()


def _member(text: str, start: int, token: str) -> int | None:
    """Where a member of an object or an array begins; of several with one name the last one counts, as for parsers."""
    if text[start] == "[":
        if not re.fullmatch(r"0|[1-9][0-9]{0,15}", token):
            return None
        for number, (begin, _) in enumerate(_elements(text, start)):
            if number == int(token):
                return begin
        return None
    if text[start] != "{":
        return None
    found = None
    for name, begin in _members(text, start):
        if name == token:
            found = begin
    return found


def _elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    place = _behind_blanks(text, start + 1)
    while text[place] != "]":
        end = _DECODER.raw_decode(text, place)[1]
        yield place, end
        place = _behind_blanks(text, end)
        if text[place] == ",":
            place = _behind_blanks(text, place + 1)


def _members(text: str, start: int) -> Iterator[tuple[str, int]]:
    place = _behind_blanks(text, start + 1)
    while text[place] != "}":
        name, place = scanstring(text, place + 1, True)
        place = _behind_blanks(text, _behind_blanks(text, place) + 1)  # the colon
        yield name, place
        place = _behind_blanks(text, _DECODER.raw_decode(text, place)[1])
        if text[place] == ",":
            place = _behind_blanks(text, place + 1)
