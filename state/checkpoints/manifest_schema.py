"""What the parts of a manifest may be: every field that anybody reads is checked here, once, before anybody does.

The facts of a file (its metadata) are checked where they are there: which ones a file must have its reader knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..reading.read_limits import MAX_DEPTH
from .snapshot import FileKind

__all__ = ["MAX_PARALLELISM", "check_metadata", "is_count", "is_counts", "is_schema", "is_text", "require"]

MAX_PARALLELISM = 1 << 15
"""How many key groups there are at most."""

_MAX_COUNT = 2**63


def require(condition: bool, what: str, value: Any) -> None:
    """Refuse a value.

    Raises:
        ValueError: Unless the condition holds.
    """
    if not condition:
        message = f"impossible {what}: {value!r:.200}"
        raise ValueError(message)


def is_count(value: Any, below: int = _MAX_COUNT) -> bool:
    """Return whether a value is a number from zero on; truth values are none."""
    return type(value) is int and 0 <= value < below


def is_counts(value: Any) -> bool:
    """Return whether a value is a dict of numbers by name."""
    return type(value) is dict and all(is_count(number) for number in value.values())


def is_text(value: Any) -> bool:
    """Return whether a value is a text that can be written anywhere."""
    if type(value) is not str:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def is_schema(value: Any, depth: int = 0) -> bool:
    """Return whether a value is a schema of stored values (`headrace.state.keyed.evolution`)."""
    if value is None or is_text(value):
        return True
    if type(value) is not dict or depth > MAX_DEPTH:
        return False
    if "record" in value:
        fields = value["record"]
        return type(fields) is list and all(
            type(field) is list and len(field) == 2 and is_text(field[0]) and is_schema(field[1], depth + 1)
            for field in fields
        )
    if len(value) != 1:
        return False
    ((kind, inner),) = value.items()
    if kind == "opaque":
        return is_text(inner)
    if kind in ("list", "optional"):
        return is_schema(inner, depth + 1)
    if kind in ("tuple", "map"):
        return (
            type(inner) is list
            and all(is_schema(part, depth + 1) for part in inner)
            and not (kind == "map" and len(inner) != 2)
        )
    return False


def _is_key_groups(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) == 2
        and all(is_count(group, MAX_PARALLELISM) for group in value)
        and value[0] <= value[1]
    )


def _is_max_parallelism(value: Any) -> bool:
    return is_count(value, MAX_PARALLELISM + 1) and value > 0


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(map(is_text, value))


def _is_states(value: Any) -> bool:
    return type(value) is list and all(_is_state(state) for state in value)


def _is_state(state: Any) -> bool:
    if type(state) is not dict or not {"name", "id", "kind"} <= set(state):
        return False
    if (
        not is_text(state["name"])
        or not is_count(state["id"], 1 << 16)
        or state["kind"] not in (FileKind.KEYED, FileKind.COLUMNAR)
    ):
        return False
    needed = {"key_columns", "schema"} if state["kind"] == FileKind.COLUMNAR else {"descriptor", "windowed"}
    return needed <= set(state) and all(_FACTS[name](fact) for name, fact in state.items() if name in _FACTS)


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


_KINDS = re.compile(r"[a-z][a-z-]{0,40}")

_FACTS: Mapping[str, Callable[[Any], bool]] = {
    "backend": is_text,
    "columns": is_text,
    "consumers": lambda value: type(value) is list and all(map(is_count, value)),
    "descriptor": lambda value: type(value) is str and _KINDS.fullmatch(value) is not None,
    "exchange": is_text,
    "files": _is_texts,
    "format_version": is_count,
    "input_index": is_count,
    "key_columns": _is_texts,
    "key_groups": _is_key_groups,
    "map_key_schema": is_schema,
    "max_parallelism": _is_max_parallelism,
    "name": is_text,
    "parallelism": lambda value: is_count(value) and value > 0,
    "queryable": _optional(is_text),
    "schema": is_text,
    "side": lambda value: value in ("input", "output"),
    "state": is_text,
    "states": _is_states,
    "target": is_text,
    "ttl": _is_flag,
    "ttl_ms": _optional(is_count),
    "value_schema": is_schema,
    "value_type": _optional(is_text),
    "windowed": _is_flag,
}
"""What facts may be that are known; others are left as they are."""


def check_metadata(metadata: Any, kind: FileKind) -> None:
    """Check the facts of a file.

    Raises:
        ValueError: If one is not what it must be.
    """
    require(type(metadata) is dict, "metadata", metadata)
    for name, fact in metadata.items():
        check = _FACTS.get(name)
        if check is not None:
            require(check(fact), f"{name} of a {kind} file", fact)
