"""JSON from storage: read strictly, for it may come from anybody.

Python's reader takes more than JSON has: ``NaN``, infinities, a name twice in one object, numbers of any length and
any depth that its stack allows. Whatever is written by Headrace has none of these, so that what has is damaged.

Source: RFC 8259, section 9; RFC 7493 (I-JSON).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from .read_limits import MAX_DEPTH

__all__ = ["MAX_RECORD_BYTES", "parse_json"]

MAX_RECORD_BYTES = 1 << 20
"""The largest small record: a lease's, the header of a job store's entry."""

_MAX_DIGITS = 1_000


def parse_json(data: bytes | str, *, max_bytes: int = MAX_RECORD_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Read a JSON document.

    Args:
        data: The document, UTF-8.
        max_bytes: How long it may be.
        max_depth: How deep it may be nested.

    Raises:
        ValueError: If it is no such document, or one beyond the limits; with the position where there is one.
    """
    if len(data) > max_bytes:
        message = f"a document of {len(data):,} bytes; {max_bytes:,} are allowed"
        raise ValueError(message)
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        message = f"it is nested more than {max_depth} deep"
        raise ValueError(message) from None
    _check_depth(value, max_depth)
    return value


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            item
            for container in level
            for item in (
                container.values() if type(container) is dict else container if type(container) is list else ()
            )
            if type(item) in (dict, list)
        ]
        if not level:
            return
    message = f"it is nested more than {max_depth} deep"
    raise ValueError(message)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        message = f"an object has the name {twice!r:.80} twice"
        raise ValueError(message)
    return found


def _int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        message = f"a number of {len(digits)} digits"
        raise ValueError(message)
    return int(digits)


def _float(text: str) -> float:
    number = float(text) if len(text) <= _MAX_DIGITS else math.inf
    if not math.isfinite(number):
        message = f"a number that is none: {text:.40}"
        raise ValueError(message)
    return number


def _constant(text: str) -> float:
    message = f"a number that is none: {text}"
    raise ValueError(message)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant)
