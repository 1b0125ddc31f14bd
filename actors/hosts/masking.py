"""Values that may be private, without what is to be hidden: what is made of records and of state before they are text.

Values of fields that are masked never become text; where fields are to be masked and a value has none that could be
told apart, only its type is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["without_hidden"]

MOST_DEPTH = 4
"""Of values within values that are looked at for fields."""

MASK = "***"


def without_hidden(value: Any, masked: frozenset[str], *, hides_values: bool) -> Any:
    """Return a value to be shown; what stands for a type has a ``repr`` that says so.

    Args:
        value: A record, or what a key holds.
        masked: Names of fields in lower case, whose values are hidden at any depth.
        hides_values: Whether only types are to be seen.
    """
    if hides_values or (masked and not isinstance(value, Mapping)):
        return _types(value) if isinstance(value, Mapping) else _Type(value)
    return _masked(value, masked, MOST_DEPTH) if masked else value


def _types(row: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): type(value).__name__ for name, value in row.items()}


def _masked(value: Any, masked: frozenset[str], depth: int) -> Any:
    """A value with the values of some fields hidden; what lies too deep for that is hidden as a whole."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple has fields, too
        value = dict(zip(value._fields, value, strict=False))
    elif isinstance(value, np.ndarray) and value.dtype.names is None:
        value = value.tolist()
    if not isinstance(value, (Mapping, list, tuple)):
        return value if isinstance(value, (str, bytes, int, float, bool, type(None))) or not masked else _plain(value)
    if not depth:
        return MASK
    if isinstance(value, Mapping):
        return {
            name: MASK if str(name).lower() in masked else _masked(inner, masked, depth - 1)
            for name, inner in value.items()
        }
    return [_masked(inner, masked, depth - 1) for inner in value]


def _plain(value: Any) -> Any:
    """A value that may have fields of its own, by its type alone, unless it is a number or a time."""
    is_number = isinstance(value, np.generic) and not isinstance(value, np.void)
    return value if is_number or type(value).__module__ in ("datetime", "decimal") else _Type(value)


class _Type:
    """Shown as a type."""

    def __init__(self, value: Any) -> None:
        self._name = type(value).__name__

    def __repr__(self) -> str:
        return f"<{self._name}>"
