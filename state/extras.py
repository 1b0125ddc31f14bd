"""Packages that only a part of Headrace needs: they are imported where that part is used, and nowhere before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .errors import ConfigurationError

__all__ = ["needs"]


@contextlib.contextmanager
def needs(message: str, extra: str) -> Iterator[None]:
    """Say what is to be installed if an import inside finds nothing.

    Args:
        message: What needs which package.
        extra: Headrace's extra that brings it.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(message, hint=f"pip install 'headrace[{extra}]'") from error
