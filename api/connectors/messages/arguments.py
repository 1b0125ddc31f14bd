"""Arguments that sources and sinks of servers have in common, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.engine.errors import ConfigurationError
from headrace.state.values.durations import parse_duration_ms

__all__ = ["columns_of", "names_of", "patience_s_of", "remember_ms_of", "since_ms_of"]

MOST_DIGITS = 15
"""Of milliseconds since the epoch: the year 33,658."""


def names_of(what: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of what a source reads: one, or several.

    Raises:
        ConfigurationError: If there is none, or one of them twice, or something that is no name.
    """
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        message = f"a source reads {what}, each once; got {given!r}"
        raise ConfigurationError(message)
    return names


def columns_of(metadata: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return what is added to records of what the server says of them, by the columns' names."""
    return dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}


def patience_s_of(patience: int | str) -> float:
    """Return how long a server may be away, in seconds.

    Raises:
        ConfigurationError: If it is no duration, or less than none.
    """
    patience_ms = parse_duration_ms(patience)
    if patience_ms < 0:
        message = f"patience must not be negative; got {patience!r}"
        raise ConfigurationError(message)
    return patience_ms / 1_000


def remember_ms_of(remember: int | str, least_ms: int, hint: str) -> int:
    """Return how long ids of messages are known, in milliseconds.

    Raises:
        ConfigurationError: If it is no duration, or less than what the hint gives a reason for.
    """
    remember_ms = parse_duration_ms(remember)
    if remember_ms < least_ms:
        message = f"remember must be {least_ms // 1_000} s at least; got {remember!r}"
        raise ConfigurationError(message, hint=hint)
    return remember_ms


def since_ms_of(start: str) -> int:
    """When messages must have come, epoch milliseconds; 0 for whenever.

    Raises:
        ConfigurationError: If that is no beginning.
    """
    text = start.removeprefix("timestamp:") if isinstance(start, str) else ""
    if text != start and text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    if start not in ("earliest", "latest"):
        message = f"start must be earliest, latest, or timestamp: and epoch milliseconds; got {start!r}"
        raise ConfigurationError(message)
    return 0
