"""How large what is read may be: memory against the size of stored data, and numbers in names.

A few kilobytes can be made to stand for gigabytes: compressed buffers, dictionaries, shared parts of a pickle. Whatever
Headrace reads is held to limits *before* memory is taken. What lies in a file as it is in memory has no limit but the
file's size.

Source: zip bombs; protobuf's and Thrift's limits of message sizes and depths.
"""

from __future__ import annotations

import functools
import os
import re

from ..errors import ConfigurationError

__all__ = [
    "MAX_DEPTH",
    "MAX_EXPANDED_VARIABLE",
    "MAX_FACTOR",
    "check_expansion",
    "expansion_limit",
    "max_expanded_bytes",
    "number_in",
]

_NUMBER = re.compile("[0-9]{1,18}")

MAX_DEPTH = 100
"""How deep stored values may be nested: lists in lists, JSON in JSON, tuples of keys."""

MAX_FACTOR = 1_000
"""How many times its own size data may grow; the first `_FREE_BYTES` are free."""

MAX_EXPANDED_VARIABLE = "HEADRACE_MAX_EXPANDED_BYTES"
"""The environment variable that sets how many bytes anything may grow to, whatever its size."""

_FREE_BYTES = 64 << 20
_DEFAULT_EXPANDED_BYTES = 4 << 30


def number_in(text: str) -> int | None:
    """Return the number that a name, or a part of one, consists of; None if it is anything else.

    Only 1 to 18 digits of ASCII are one: ``str.isdigit`` also takes ``"²"``, which `int` refuses, and 5,000 digits.
    """
    return int(text) if _NUMBER.fullmatch(text) else None


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> int:
    number = number_in(text)
    if not number:
        message = f"{MAX_EXPANDED_VARIABLE} must be a number of bytes; got {text!r}"
        raise ConfigurationError(message)
    return number


def max_expanded_bytes() -> int:
    """Return how many bytes compressed or shared data may grow to in one read.

    Raises:
        ConfigurationError: If the environment variable holds something else.
    """
    text = os.environ.get(MAX_EXPANDED_VARIABLE, "")
    return _parsed(text) if text else _DEFAULT_EXPANDED_BYTES


def expansion_limit(stored_bytes: int) -> int:
    """Return how many bytes may come of what takes ``stored_bytes``."""
    limit = min(max(_FREE_BYTES, MAX_FACTOR * stored_bytes), max_expanded_bytes())
    return max(limit, stored_bytes)


def check_expansion(num_bytes: int, stored_bytes: int) -> None:
    """See that what takes ``stored_bytes`` may become ``num_bytes``.

    Raises:
        ValueError: If not.
    """
    limit = expansion_limit(stored_bytes)
    if num_bytes > limit:
        message = f"{stored_bytes:,} bytes would grow to {num_bytes:,}; {limit:,} are allowed"
        raise ValueError(message)
