"""Loops over arrays, compiled by numba for types that are known.

Compiled code is cached beside the file that it is of or, if that folder cannot be written, in the user's cache folder
(or ``NUMBA_CACHE_DIR``); without any of them it is compiled anew in each process.

Loops that go over texts byte by byte take ten times as long as those that move them at once, and what numba makes of
slices is no faster; so what bytes need is written here for the compiler: nothing checks that places are in the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["compiled", "copy_bytes", "word_at"]


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for types that are known, when the module is imported: no record waits for a compiler."""

    def made_of(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            made: Callable[..., Any] = numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # there is no folder that a cache could be written to
            made = numba.njit(signature, nogil=True)(function)
        return made

    return made_of


@intrinsic
def copy_bytes(_context: Any, target: Any, at: Any, source: Any, start: Any, length: Any) -> Any:
    """Write ``source[start : start + length]`` to ``target[at : at + length]``, of two arrays of bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at, of, start, length = arguments
        places = [
            builder.gep(context.make_array(kind)(context, builder, array).data, [place])
            for kind, array, place in ((signature.args[0], to, at), (signature.args[2], of, start))
        ]
        cgutils.raw_memcpy(builder, *places, length, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@intrinsic
def word_at(_context: Any, data: Any, place: Any) -> Any:
    """Return the eight bytes of an array from a place on, as a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        first = builder.gep(context.make_array(signature.args[0])(context, builder, array).data, [place])
        word = context.get_value_type(types.uint64)
        return builder.load(builder.bitcast(first, word.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate
