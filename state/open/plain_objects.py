"""What objects consist of: plain values in their place, for tables of snapshots and answers to clients."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from ..reading.stored_pickles import pickle_value
from ..values.sharing import spreads
from .reader import encoded_key
from .values import Fields, Opaque

__all__ = ["plain_value"]


def plain_value(value: Any) -> Any:
    """Give what an object consists of: dataclasses and named tuples by field, sets as lists, enums as their values.

    What shares its parts, or contains itself, stays closed.
    """
    return Opaque(pickle_value(value)) if spreads(value) else _plain(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Fields((field.name, _plain(getattr(value, field.name))) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        parts = [_plain(part) for part in value]
        return tuple(parts) if fields is None else Fields(zip(fields, parts, strict=True))
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return [_plain(part) for part in sorted(value, key=encoded_key)]
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}  # keys stay hashable
    return value.value if isinstance(value, enum.Enum) else value
