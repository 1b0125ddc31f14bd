"""What a plain pickle may name, and what is made of it; nothing that it names is ever looked up.

A *recipe* makes the value of a date, a Decimal, a set, a number of numpy from what their pickles hold beside the name.
It checks the types of all that it is given, and has what may cost more than its opcode counted.

Source: the ``__reduce__`` of Python's and numpy's plain types.
"""

from __future__ import annotations

import collections
import datetime
import struct
from collections.abc import Callable
from typing import Any, Protocol

from .plain_values import decimal_of, fixed_zone, fraction_of, numpy_of
from .reading_costs import ReadingCosts

__all__ = ["RECIPES", "NotPlainError", "Unfinished", "numpy_type"]


class NotPlainError(ValueError):
    """A pickle that holds more than plain values, or more than it may."""


class Unfinished:
    """What a recipe makes in two steps: a type of numpy, a UUID; the second one gives the value.

    Attributes:
        kind: Of which recipe.
        value: The value, or what is known of it.
        is_done: Whether both steps are done.
        slots: Where in the memo it is.
    """

    __slots__ = ("is_done", "kind", "slots", "value")

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind = kind
        self.value = value
        self.is_done = False
        self.slots: list[int] = []


class Opener(Protocol):
    """The part of a reader that recipes use."""

    costs: ReadingCosts

    def open(self, data: bytes) -> Any:
        """Open a pickle in the one that is read."""


def _one(arguments: tuple[Any, ...], *kinds: type) -> Any:
    """The one argument, of one of these types."""
    (value,) = arguments
    if type(value) not in kinds:
        message = f"a {type(value).__name__} where a {kinds[0].__name__} must be"
        raise NotPlainError(message)
    return value


def numpy_type(text: str, state: Any) -> str:
    """Return the text of a type with its byte order; its state must be what numpy writes for one without fields."""
    if type(state) is not tuple or len(state) not in (8, 9) or state[0] not in (3, 4):
        message = "a type of numpy with another state than plain ones have"
        raise NotPlainError(message)
    order, rest, units = state[1], state[2:7], state[8:]
    if order not in ("<", ">", "|", "=") or rest != (None, None, None, -1, -1) or type(state[7]) is not int or state[7]:
        message = "a type of numpy with another state than plain ones have"
        raise NotPlainError(message)
    if text in ("m8", "M8"):
        (_, (unit, count, numerator, denominator)) = units[0]
        if not isinstance(unit, bytes) or (count, numerator, denominator) not in ((1, 1, 1), (1, 1, 0)):
            message = "a time of numpy of another unit than plain ones have"
            raise NotPlainError(message)
        text = f"{text}[{unit.decode('ascii')}]"
    elif units:
        message = "a type of numpy with metadata"
        raise NotPlainError(message)
    return text if order == "|" else f"{'<' if order == '=' else order}{text}"


def _dtype(_opener: Opener, text: Any, align: Any = False, copy: Any = True) -> Unfinished:
    if type(text) is not str or align not in (False, 0) or copy not in (True, 1):
        message = "a type of numpy that is not plain"
        raise NotPlainError(message)
    return Unfinished("dtype", text)


def _scalar(_opener: Opener, kind: Any, data: Any) -> Any:
    if type(kind) is not Unfinished or kind.kind != "dtype" or not kind.is_done or type(data) is not bytes:
        message = "no plain number of numpy"
        raise NotPlainError(message)
    return numpy_of(kind.value, data)


def _set(opener: Opener, *arguments: Any) -> set[Any]:
    items = _one(arguments, list) if arguments else []
    opener.costs.check_keys(items)
    return set(items)


def _frozenset(opener: Opener, *arguments: Any) -> frozenset[Any]:
    items = _one(arguments, list) if arguments else []
    opener.costs.check_keys(items)
    return frozenset(items)


def _ordered(_opener: Opener) -> collections.OrderedDict[Any, Any]:
    return collections.OrderedDict()


def _encoded(_opener: Opener, text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding != "latin1":
        message = "bytes in another form than pickle writes"
        raise NotPlainError(message)
    return text.encode("latin1")


def _bytearray(_opener: Opener, *arguments: Any) -> bytearray:
    return bytearray(_one(arguments, bytes) if arguments else b"")


def _complex(_opener: Opener, real: Any, imaginary: Any) -> complex:
    return complex(_one((real,), float), _one((imaginary,), float))


def _zone_of(zone: Any) -> datetime.timezone | None:
    if zone is not None and type(zone) is not datetime.timezone:
        message = "no plain time zone"
        raise NotPlainError(message)
    return zone


def _date(_opener: Opener, *arguments: Any) -> datetime.date:
    year, month, day = struct.unpack(">HBB", _one(arguments, bytes))
    return datetime.date(year, month, day)


def _datetime(_opener: Opener, data: Any, zone: Any = None) -> datetime.datetime:
    year, month, day, hour, minute, second, rest = struct.unpack(">HBBBBB3s", _one((data,), bytes))
    micros = int.from_bytes(rest, "big")
    found = datetime.datetime(year, month & 0x7F, day, hour, minute, second, micros, tzinfo=_zone_of(zone))
    return found.replace(fold=month >> 7)


def _time(_opener: Opener, data: Any, zone: Any = None) -> datetime.time:
    hour, minute, second, micros = struct.unpack(">BBB3s", _one((data,), bytes))
    micros = int.from_bytes(micros, "big")
    return datetime.time(hour & 0x7F, minute, second, micros, _zone_of(zone), fold=hour >> 7)


def _duration(_opener: Opener, days: Any, seconds: Any, microseconds: Any) -> datetime.timedelta:
    return datetime.timedelta(*(_one((part,), int) for part in (days, seconds, microseconds)))


def _zone(_opener: Opener, *arguments: Any) -> datetime.timezone:
    offset = _one(arguments, datetime.timedelta)
    return fixed_zone(offset // datetime.timedelta(microseconds=1))


def _uuid_safety(_opener: Opener, *arguments: Any) -> None:
    """How safe a UUID is tells nothing about its value."""
    if arguments and type(arguments[0]) not in (int, type(None)):
        message = "no safety of a UUID"
        raise NotPlainError(message)


def _fraction(*arguments: Any) -> Any:
    if len(arguments) == 2 and all(type(part) is int for part in arguments):  # Python 3.12
        numerator, denominator = arguments
        return fraction_of(f"{numerator}/{denominator}")
    return fraction_of(_one(arguments, str))


RECIPES: dict[str, Callable[..., Any]] = {
    "builtins.bytearray": _bytearray,
    "builtins.complex": _complex,
    "builtins.set": _set,
    "builtins.frozenset": _frozenset,
    "_codecs.encode": _encoded,
    "collections.OrderedDict": _ordered,
    "datetime.date": _date,
    "datetime.datetime": _datetime,
    "datetime.time": _time,
    "datetime.timedelta": _duration,
    "datetime.timezone": _zone,
    "decimal.Decimal": lambda _opener, *arguments: decimal_of(_one(arguments, str)),
    "fractions.Fraction": lambda _opener, *arguments: _fraction(*arguments),
    "uuid.SafeUUID": _uuid_safety,
    "numpy.dtype": _dtype,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    # What an opaque value was written as.
    "pickle.loads": lambda opener, *arguments: opener.open(_one(arguments, bytes)),
    "_pickle.loads": lambda opener, *arguments: opener.open(_one(arguments, bytes)),
}
"""What a plain pickle may name, and what is made of it; nothing that it names is ever looked up."""
