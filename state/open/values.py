"""Values of a checkpoint for those who only look at it: what is plain is built, what would need code stays closed.

A checkpoint holds pickles where a value is of no plain type, or where values of several types share a column. Building
one may run anybody's code, so mere readers do not: `open_pickle` builds what consists of Python's own plain
types, by a reader of its own (`headrace.state.reading.plain_pickle`), and gives everything else back as an `Opaque`
value. An opaque value can be written into a checkpoint again as it is: it becomes the object it was when a job restores
it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from ..reading.plain_pickle import NotPlainError, read_plain_pickle
from ..reading.stored_pickles import pickle_value
from ..values.packed import PICKLED, encode_packed

__all__ = ["Fields", "Opaque", "Unpickle", "open_pickle", "packed", "pickled"]

Unpickle = Callable[[bytes], Any]
"""What becomes of the bytes of a pickled value: `open_pickle`, or `unpickle_value`."""


class Opaque:
    """A pickled value that has not been built.

    Args:
        data: Its pickle.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Opaque({len(self.data)} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled it is the value itself: building it gives that, and never this class.
        return pickle.loads, (self.data,)


class Fields(dict[str, Any]):
    """What an object consists of, by name: a record however its values look, never a map."""


def pickled(value: Any) -> bytes:
    """Return the pickle of a value, opaque or not.

    Raises:
        TypeMismatchError: If it cannot be pickled.
    """
    return value.data if isinstance(value, Opaque) else pickle_value(value)


def packed(value: Any) -> bytes:
    """Return a value as `headrace.state.values.packed.encode_packed` has it, opaque or not.

    Raises:
        TypeMismatchError: If it cannot be stored.
    """
    return bytes([PICKLED]) + value.data if isinstance(value, Opaque) else encode_packed(value)


def open_pickle(data: bytes) -> Any:
    """Build a pickled value if it is plain, without running anything that it names; else give it as `Opaque`."""
    try:
        return read_plain_pickle(data, _open_inner)
    except NotPlainError:  # the bytes are what there is
        return Opaque(data)


def _open_inner(data: bytes) -> Any:
    try:
        return read_plain_pickle(data, Opaque)
    except NotPlainError:
        return Opaque(data)
