"""What a function says that it takes, beside what the records in front of it are known to be.

Only what can never fit is refused: a text where numbers come, a number where records with fields come. Numbers of all
kinds are of one kind here, and so are dicts, tuples and classes with fields; what a hint or the records leave open is
not looked at.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.errors import TypeMismatchError
from headrace.state.values.type_sources import hints_of

__all__ = ["check_taken"]

_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((int, float, complex, decimal.Decimal), "a number"),
    ((str,), "a text"),
    ((bytes, bytearray), "bytes"),
    ((datetime.date,), "a date or a time"),
    ((datetime.time,), "a time of day"),
    ((datetime.timedelta,), "a duration"),
    ((Mapping, tuple), "a record with fields"),
    ((list, set, frozenset), "a list or a set"),
)


def check_taken(step: str, function: Any, method: str, known: pa.Schema | None) -> None:
    """Refuse a function whose first parameter has a hint that the records cannot fit.

    Args:
        step: The operator's name, for the error.
        function: A callable, or a function object.
        method: The method that counts if ``function`` has it.
        known: The records' columns; None if nothing is known of them.

    Raises:
        TypeMismatchError: Names the step, the hint, and what the records are.
    """
    if known is None or not len(known):
        return
    comes = _kind_of_records(known)
    hint = _first_hint(getattr(function, method, function))
    taken = _kinds_of_hint(hint)
    if comes is not None and taken is not None and comes not in taken:
        name = getattr(function, "__qualname__", type(function).__name__)
        what = str(known.field(0).type) if _is_value(known) else f"({', '.join(f'{f.name}: {f.type}' for f in known)})"
        message = f"{name} takes {' or '.join(sorted(taken))}, by its hint; the records are {comes}: {what}"
        raise TypeMismatchError(message, operator=step)


def _first_hint(function: Any) -> Any:
    """The hint of the first parameter; None if there is none, or it is that of another function.

    What wraps a function has its hints, and may take something else: a text that it makes a record of.
    """
    if isinstance(function, type):
        return None
    target = function if hasattr(function, "__code__") or hasattr(function, "__func__") else function.__call__
    if hasattr(function, "__wrapped__") or hasattr(target, "__wrapped__"):
        return None
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return None
    return hints_of(target).get(names[0]) if names else None


def _kinds_of_hint(hint: Any) -> frozenset[str] | None:
    """The kinds that a hint leaves; None if it may be anything."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        members = [_kinds_of_hint(one) for one in typing.get_args(hint) if one is not type(None)]
        return None if None in members else frozenset().union(*(one for one in members if one is not None))
    kind = origin or hint
    if not isinstance(kind, type):
        return None
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return frozenset(("a record with fields",))
    return next((frozenset((name,)) for classes, name in _KINDS if issubclass(kind, classes)), None)


def _is_value(known: pa.Schema) -> bool:
    return (known.metadata or {}).get(b"headrace.row") == b"value"


def _kind_of_records(known: pa.Schema) -> str | None:
    if not _is_value(known):
        return "a record with fields"
    kind, is_ = known.field(0).type, pa.types
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind) or is_.is_boolean(kind):
        return "a number"
    if is_.is_string(kind) or is_.is_large_string(kind):
        return "a text"
    return None
