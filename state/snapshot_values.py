"""Values of a checkpoint for those who only look at it: what is plain is built, what would need code stays closed.

A checkpoint holds pickles where a value is of no plain type, or where values of several types share a column. Building
one may run anybody's code, so whoever merely reads does not: `open_pickle` builds what consists of Python's own plain
types, by an unpickler that knows no others, and gives everything else back as an `Opaque` value. An opaque value can be
written into a checkpoint again as it is: it becomes the object it was when a job restores it.

Source: the restricted unpickler of Python's ``pickle`` documentation.
"""

from __future__ import annotations

import collections
import datetime
import io
import pickle
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from headrace.state.value_encoding import pickle_value

__all__ = ["Fields", "Opaque", "Unpickle", "open_pickle", "pickled"]

Unpickle = Callable[[bytes], Any]
"""What becomes of the bytes of a pickled value: `open_pickle`, or `headrace.state.value_encoding.unpickle_value`."""


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
        # Pickled it is the value itself: whoever builds it gets that, and never meets this class.
        return pickle.loads, (self.data,)


class Fields(dict[str, Any]):
    """What an object consists of, by name: a record however its values look, never a map."""


def pickled(value: Any) -> bytes:
    """The pickle of a value, opaque or not.

    Raises:
        TypeMismatchError: If it cannot be pickled.
    """
    return value.data if isinstance(value, Opaque) else pickle_value(value)


def open_pickle(data: bytes) -> Any:
    """Build a pickled value if that runs no code but Python's own for plain types; else give it as `Opaque`."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # whatever is wrong with it: the bytes are what there is
        return Opaque(data)


class _PlainUnpickler(pickle.Unpickler):
    """Knows the names in `_PLAIN` and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _PLAIN[module, name]
        except KeyError:
            message = f"{module}.{name} is not plain"
            raise pickle.UnpicklingError(message) from None


def _numpy_scalar(dtype: Any, data: Any = None) -> Any:
    kind = np.dtype(dtype)
    if kind.hasobject or not isinstance(data, bytes):
        message = "not a plain number"
        raise pickle.UnpicklingError(message)
    return np.frombuffer(data, kind)[0]


_PLAIN: dict[tuple[str, str], Any] = {
    ("builtins", "bytearray"): bytearray,
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("datetime", "date"): datetime.date,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "time"): datetime.time,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): Decimal,
    ("fractions", "Fraction"): Fraction,
    ("uuid", "UUID"): uuid.UUID,
    ("uuid", "SafeUUID"): uuid.SafeUUID,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "scalar"): _numpy_scalar,
    ("numpy._core.multiarray", "scalar"): _numpy_scalar,
    # What an opaque value was written as.
    ("pickle", "loads"): open_pickle,
    ("_pickle", "loads"): open_pickle,
}
"""What a plain pickle may name."""
