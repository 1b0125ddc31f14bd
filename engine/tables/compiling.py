"""Loops over arrays, compiled by numba for types that are known.

Compiled code is cached beside the file that it is of or, if that folder cannot be written, in the user's cache folder
(or ``NUMBA_CACHE_DIR``); without any of them it is compiled anew in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled"]


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for types that are known, when the module is imported: no record waits for a compiler."""

    def made_of(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            made: Callable[..., Any] = numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # there is no folder that a cache could be written to
            made = numba.njit(signature, nogil=True)(function)
        return made

    return made_of
