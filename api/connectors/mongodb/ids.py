"""The order of ``_id`` of a collection, whatever their types: ranges of them as filters, and one as a position.

MongoDB orders values of different types by type, but a filter such as ``$gt`` finds values of one type alone. So what
is behind a value is what is greater among its like, or is of a type that comes later.

Source: MongoDB's "Comparison/Sort Order", "Comparison Query Operators".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headrace.engine.errors import SourceError

__all__ = ["Position", "decoded", "encoded", "range_filter"]

Position = str
"""An ``_id`` as BSON has it, in a document of its own, in hexadecimal."""

_BRACKETS: tuple[tuple[str, ...], ...] = (
    ("minKey",), ("null",), ("int", "long", "double", "decimal"), ("string",), ("object",), ("binData",), ("objectId",),
    ("bool",), ("date",), ("timestamp",), ("maxKey",),
)  # fmt: skip
"""Types that are compared by value, in the order of types. An ``_id`` is no array and no regular expression."""

_WITHOUT_ORDER = frozenset({0, 1, len(_BRACKETS) - 1})
"""Of these there is one value."""


def encoded(value: Any) -> Position:
    """Return an ``_id`` as a position."""
    import bson

    return bson.encode({"_id": value}).hex()


def decoded(position: Position, options: Any) -> Any:
    """Return the ``_id`` of a position.

    Args:
        position: As `encoded` gives it.
        options: Of the collection's values, as the driver has them.

    Raises:
        ValueError: If it is none.
    """
    import bson

    try:
        return bson.decode(bytes.fromhex(position), options)["_id"]
    except (bson.errors.BSONError, KeyError, TypeError) as error:
        message = f"{position[:80]!r} is no _id"
        raise ValueError(message) from error


def _bracket_of(value: Any) -> int:
    """Raises: SourceError: If such an ``_id`` cannot be gone on behind."""
    from bson import Code, DatetimeMS, DBRef, Decimal128, MaxKey, MinKey, ObjectId, Timestamp

    for kinds, bracket in (
        (MinKey, 0), (type(None), 1), (bool, 7), ((int, float, Decimal128), 2), (str, 3), ((Mapping, DBRef), 4),
        (bytes, 5), (ObjectId, 6), ((DatetimeMS, datetime), 8), (Timestamp, 9), (MaxKey, 10),
    ):  # fmt: skip
        if isinstance(value, kinds) and not isinstance(value, Code):  # which is a text for Python alone
            number = value.to_decimal() if isinstance(value, Decimal128) else value
            if bracket != 2 or number == number:
                return bracket
    message = f"documents cannot be read in the order of their _id, of which one is {value!r:.80}"
    raise SourceError(message)


def range_filter(start: Any, end: Any, *, has_start: bool) -> dict[str, Any]:
    """Return the filter of documents behind one ``_id`` up to another one, that one included.

    Args:
        start: Behind which; means nothing without ``has_start``.
        end: Up to which.
        has_start: Whether there is one.

    Raises:
        SourceError: If one of them is not a number.
    """
    last = _bracket_of(end)
    if not has_start:
        return _up_to(end, last)
    first = _bracket_of(start)
    if first == last and first not in _WITHOUT_ORDER:
        return {"_id": {"$gt": start, "$lte": end}}
    return {"$and": [_behind(start, first), _up_to(end, last)]}


def _of_types(brackets: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    names = [name for names in brackets for name in names]
    return {"_id": {"$type": names} if names else {"$in": []}}


def _behind(start: Any, bracket: int) -> dict[str, Any]:
    later = _BRACKETS[bracket + 1 :]
    if bracket in _WITHOUT_ORDER:
        return _of_types(later)
    return {"$or": [{"_id": {"$gt": start}}, _of_types(later)]}


def _up_to(end: Any, bracket: int) -> dict[str, Any]:
    if bracket in _WITHOUT_ORDER:
        return _of_types(_BRACKETS[: bracket + 1])
    return {"$or": [{"_id": {"$lte": end}}, _of_types(_BRACKETS[:bracket])]}
