"""Values that share their parts: ``x = [x, x]`` sixty times over is sixty lists, and 2**60 for who goes through them.

Pickles and deep copies keep what is shared. A walk that goes wherever a part stands (MessagePack, columns, JSON, a
repr, a copy part by part) would not end. Such a walk asks `spreads` first.
"""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

from ..errors import raise_from_outside

__all__ = ["LEAVES", "MUCH", "shown", "spreads", "types_of"]

_FREE = 1 << 10
"""Values of no more parts are gone through as they are: that takes microseconds."""

MUCH = 1 << 20
"""The same, for those who refuse a value that spreads, and do not take another way."""

_FACTOR = 16
"""What a value may be larger than its distinct parts."""

_MOST = 1 << 60

_MAX_LEVELS = 1_000
"""What has more levels contains itself, maybe."""

_CONTAINERS = (list, tuple, dict, set, frozenset)
_TEXTS = (str, bytes, bytearray)
LEAVES = frozenset(
    (
        *(int, float, str, bytes, bool, complex, type(None), bytearray),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal),
    )
)
"""Types of values without parts."""

_are_leaves = LEAVES.issuperset


def types_of(values: Iterable[Any]) -> set[type]:
    """Return the types that values are exactly of. Most batches have one: counting it is faster than a set of all."""
    kinds = list(map(type, values))
    return {kinds[0]} if kinds and kinds.count(kinds[0]) == len(kinds) else set(kinds)


def spreads(value: Any, free: int = _FREE) -> bool:
    """Return whether a value is far larger than its distinct parts, or contains itself.

    Args:
        value: Any value. Looked into are containers and dataclasses.
        free: A value of so many parts is small, whatever it shares.
    """
    if type(value) in _CONTAINERS and _are_leaves(map(type, value.values() if type(value) is dict else value)):
        return False
    # The parts of one depth, and in how many places each of them stands: None if in one.
    level, places, weight, depth = [value], None, 0, 0
    while level:
        parts = list(map(_parts_of, level))
        if places is None:
            weight += len(level) + sum(map(len, parts))
        else:
            weight += sum(num * (1 + len(inner)) for num, inner in zip(places, parts, strict=True))
        depth += 1
        if weight > free or depth > _MAX_LEVELS:
            return _spreads(value)
        level, places = _next_level(parts, places)
    return False


def _next_level(parts: list[Collection[Any]], places: list[int] | None) -> tuple[list[Any], list[int] | None]:
    """What has parts itself. Where there is much of it each is looked at once, in however many places it stands."""
    level = []
    if places is None:
        level = [part for part in chain.from_iterable(parts) if type(part) not in LEAVES]
        if len(level) <= _FREE:
            return level, None
    if places is None:
        counts: dict[int, int] = Counter(map(id, level))
        if len(counts) == len(level):
            return level, None
        distinct = {id(part): part for part in level}
    else:
        counts, distinct = {}, {}
        for num, inner in zip(places, parts, strict=True):
            for part in inner:
                if type(part) not in LEAVES:
                    distinct[id(part)] = part  # kept from here on, so that no other part takes its place
                    counts[id(part)] = counts.get(id(part), 0) + num
    return list(distinct.values()), [counts[one] for one in distinct]


def _parts_of(value: Any) -> Collection[Any]:
    kind = type(value)
    if kind is list or kind is tuple:
        return value
    if isinstance(value, dict):
        return value.values() if _are_leaves(map(type, value)) else [*value, *value.values()]
    if isinstance(value, _CONTAINERS):
        return value
    fields = getattr(kind, "__dataclass_fields__", None)
    return [getattr(value, name, None) for name in fields] if type(fields) is dict else ()


def _spreads(value: Any) -> bool:
    """The same by a look at each distinct part, once."""
    # By identity: what is known of a part, 0 while it is gone through; and the parts, so that no other takes its place.
    weights: dict[int, int] = {}
    kept: list[Any] = []
    distinct = 0
    stack: list[tuple[Any, list[Any] | None]] = [(value, None)]
    while stack:
        part, inner = stack.pop()
        if inner is None:
            if (known := weights.get(id(part))) is not None:
                if not known:
                    return True  # it contains itself
                continue
            parts = _parts_of(part)
            inner = [one for one in parts if type(one) not in LEAVES]
            weights[id(part)] = 0
            kept.append(part)
            distinct += 1 + len(parts)
            leaves = 1 + len(parts) - len(inner)
            if not inner:
                weights[id(part)] = leaves
                continue
            stack.append((part, inner))
            stack.extend((one, None) for one in inner)
        else:
            leaves = 1 + len(_parts_of(part)) - len(inner)
            weights[id(part)] = min(leaves + sum(weights[id(one)] for one in inner), _MOST)
    return weights[id(value)] > _FACTOR * distinct


def shown(value: Any, length: int = 200) -> str:
    """Return the beginning of a value's repr for an error; whatever the value is, and however large.

    Args:
        value: The value, a user's.
        length: How many characters there are at most.
    """
    name = f"<a {type(value).__qualname__}>"
    try:
        beginning = _beginning(value, [length])
        if spreads(beginning, MUCH):
            return name
        text = repr(beginning)
    except BaseException as error:  # the error that shows it says more than this one
        raise_from_outside(error)
        return name
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _beginning(value: Any, room: list[int]) -> Any:
    """The value with so many of its parts that its repr has more characters than there is room for, or all of them.

    Args:
        value: Texts and containers are cut; what is in other objects is not looked at.
        room: How many characters are left, at least one for each part; counted down.
    """
    room[0] -= 1
    kind = type(value)
    if kind in _TEXTS:
        part = value[: max(room[0], 0) + 1]
        room[0] -= len(part)
        return part
    if kind is dict:
        cut = {}
        for key, inner in value.items():
            if room[0] < 0:
                break
            first = _beginning(key, room)
            cut[first] = _beginning(inner, room)
        return cut
    if kind not in _CONTAINERS:
        return value
    parts = []
    for inner in value:
        if room[0] < 0:
            break
        parts.append(_beginning(inner, room))
    return kind(parts)
