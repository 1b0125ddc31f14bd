"""What happens to output that is where a program writes, for streams and data sets alike."""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import ConfigurationError

__all__ = ["OUTPUT_EXISTS_HINT", "WriteMode", "check_write_mode"]

WriteMode = Literal["error", "append", "overwrite"]
"""``error`` refuses to run, ``append`` leaves what is there, ``overwrite`` replaces it."""

OUTPUT_EXISTS_HINT = "mode='append' adds to what is there, mode='overwrite' replaces it"


def check_write_mode(mode: str) -> None:
    """See that a mode is one.

    Raises:
        ConfigurationError: If not.
    """
    if mode not in get_args(WriteMode):
        message = f"mode must be one of {', '.join(get_args(WriteMode))}; got {mode!r}"
        raise ConfigurationError(message)
