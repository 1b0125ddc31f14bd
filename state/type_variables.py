"""Type variables for type checkers: what functions take and give, what state holds, what streams and data sets are of.

A type that is not named is any type; when a program runs the variables mean nothing. Where a type is declared for the
run, as ``value_type: type[T] | Declared``, a class says it to the checker, too: ``int``, ``list[str]``, a dataclass.

Source: the type parameters of PyFlink's and Flink's functions, by their names.
"""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, _SpecialForm

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it, and defaults, on every Python

    ACC = TypeVar("ACC", default=Any)
    IN = TypeVar("IN", contravariant=True, default=Any)
    IN1 = TypeVar("IN1", contravariant=True, default=Any)
    IN2 = TypeVar("IN2", contravariant=True, default=Any)
    KEY = TypeVar("KEY", contravariant=True, default=Any)
    OUT = TypeVar("OUT", covariant=True, default=Any)
    T = TypeVar("T", default=Any)
    T1 = TypeVar("T1", covariant=True, default=Any)
    T2 = TypeVar("T2", covariant=True, default=Any)
    UK = TypeVar("UK", default=Any)
    UV = TypeVar("UV", default=Any)
    W = TypeVar("W", contravariant=True, default=Any)
else:
    from typing import TypeVar

    ACC, IN, IN1, IN2, KEY = map(TypeVar, ("ACC", "IN", "IN1", "IN2", "KEY"))
    OUT, T, T1, T2, UK, UV, W = map(TypeVar, ("OUT", "T", "T1", "T2", "UK", "UV", "W"))

__all__ = ["ACC", "IN", "IN1", "IN2", "KEY", "OUT", "T1", "T2", "UK", "UV", "Declared", "T", "W"]


class _HasColumns(Protocol):
    """A type that says what its columns are, as those of ``Types`` do."""

    @property
    def arrow_type(self) -> Any: ...


Declared: TypeAlias = UnionType | _SpecialForm | _HasColumns | None
"""What declares a type for the run that checkers cannot know by it, or none. Arrow's types are any to them."""
