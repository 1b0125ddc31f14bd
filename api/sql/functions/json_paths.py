"""Paths into JSON: the part of JSONPath that is known, and how it is followed.

A path is ``lax`` or ``strict`` (if nothing is said), ``$``, and steps: ``.name``, ``['name']``, ``[0]``, ``[-1]`` (from
the end), ``[*]`` and ``.*``. What a lax path does not find is empty; for a strict one that is an error. Filters, slices
and ``..`` are refused. A path with a star finds a list, whatever is in it.

Source: Flink's ``SqlJsonUtils``; Jayway JsonPath, which it calls.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

__all__ = ["JsonPath", "NotFoundError", "json_of", "parsed_json", "path_of", "whole_text"]

_STEP = re.compile(
    r"""\.?\[\s*(?P<index>-?\d+)\s*\]|\.?\[\s*(?P<all>\*)\s*\]|\.(?P<each>\*)"""
    r"""|\.?\[\s*'(?P<single>(?:[^'\\]|\\.)*)'\s*\]|\.?\[\s*"(?P<double>(?:[^"\\]|\\.)*)"\s*\]"""
    r"""|\.(?P<name>[^.\[\]*?()@'"\s]+)"""
)
_STAR = object()


class NotFoundError(LookupError):
    """A path leads nowhere."""


@dataclass(frozen=True)
class JsonPath:
    """A path.

    Attributes:
        is_strict: Whether it is an error if it leads nowhere.
        steps: Names of fields, places in arrays, or a star.
    """

    is_strict: bool
    steps: tuple[Any, ...]

    @property
    def is_definite(self) -> bool:
        """Whether it leads to one place."""
        return _STAR not in self.steps

    def find(self, document: Any) -> Any:
        """Return what is there.

        Raises:
            NotFoundError: If nothing is.
        """
        found = [document]
        for i, step in enumerate(self.steps):
            is_definite = _STAR not in self.steps[:i]
            found = [one for value in found for one in _followed(value, step)]
            if not found and is_definite and step is not _STAR:
                message = f"there is no {step!r}"
                raise NotFoundError(message)
        return found[0] if self.is_definite else found


def _followed(value: Any, step: Any) -> list[Any]:
    if step is _STAR:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    is_there = isinstance(value, list) and -len(value) <= step < len(value)
    return [value[step]] if is_there else []


@cache
def path_of(text: str) -> JsonPath:
    """Return the path that a text says.

    Raises:
        ValueError: If it is none, or more than is known.
    """
    mode, rest = re.fullmatch(r"\s*(lax\b|strict\b)?\s*(.*?)\s*", text, re.IGNORECASE | re.DOTALL).groups()  # type: ignore[union-attr]
    if rest and not rest.startswith("$"):
        rest = f"$.{rest}"
    place, steps = 1, []
    while rest and place < len(rest):
        found = _STEP.match(rest, place)
        if found is None:
            message = f"the path {text!r} is not supported at {rest[place:]!r}; .name, ['name'], [0], [*] and .* are"
            raise ValueError(message)
        steps.append(_step(found))
        place = found.end()
    if not rest:
        message = "a path begins with $"
        raise ValueError(message)
    return JsonPath((mode or "").lower() != "lax", tuple(steps))


def _step(found: re.Match[str]) -> Any:
    if found["all"] or found["each"]:
        return _STAR
    if found["index"]:
        return int(found["index"])
    quoted = found["single"] if found["single"] is not None else found["double"]
    return found["name"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def _refuse(name: str) -> Any:
    message = f"{name} is no JSON"
    raise ValueError(message)


def parsed_json(text: str) -> Any:
    """Return the value of a JSON text, with its numbers as they are written.

    Raises:
        ValueError: If it is none.
    """
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except RecursionError:
        message = "the JSON is nested too deep"
        raise ValueError(message) from None


def whole_text(text: str) -> str:
    """Return a text with a question mark for what is half a character."""
    return text.encode("utf-8", "replace").decode()


def json_of(value: Any) -> str:
    """Return a value of `parsed_json` as compact JSON, fields in the order of their names."""
    if isinstance(value, str):
        return json.dumps(whole_text(value), ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{{','.join(f'{json_of(name)}:{json_of(value[name])}' for name in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(json_of, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
