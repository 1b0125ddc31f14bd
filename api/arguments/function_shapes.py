"""What type checkers know of user functions: which records they take and which they give, by their methods.

A transformation takes a callable or an object with one method. The protocols here are such objects, so the hints of
``map`` and the like go on to the stream that it returns, whether the function's class names its types
(``MapFunction[int, str]``) or not. A type that is not named is any type. Nothing of this counts when a program runs.

Source: the type parameters of PyFlink's and Flink's functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from headrace.engine.columns.expressions import Expression
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import Tagged
from headrace.state.type_variables import IN, IN1, IN2, OUT, T

__all__ = [
    "AppliesToAll",
    "AppliesToWindow",
    "AsksOutside",
    "CoFlatMaps",
    "CoGroupOf",
    "CoGroups",
    "CoMaps",
    "CombineGroupOf",
    "CombinesGroup",
    "CrossOf",
    "Crosses",
    "FilterOf",
    "Filters",
    "FlatMapOf",
    "FlatMaps",
    "GetsKey",
    "JoinOf",
    "Joins",
    "KeyOf",
    "MapOf",
    "MapPartitionOf",
    "Maps",
    "MapsPartition",
    "ProcessOf",
    "ProcessesAll",
    "ProcessesBroadcast",
    "ProcessesElements",
    "ProcessesPairs",
    "ProcessesTwo",
    "ProcessesWindow",
    "ReduceGroupOf",
    "ReducesGroup",
]

_First = TypeVar("_First")
_Second = TypeVar("_Second")
_New = TypeVar("_New")


class GetsKey(Protocol[IN]):
    """A KeySelector."""

    def get_key(self, value: IN, /) -> Any: ...


_Field: TypeAlias = str | int | Expression

KeyOf: TypeAlias = Callable[[T], Any] | GetsKey[T] | KeySelector | _Field | Sequence[_Field]
"""What says the key of records: a function, or fields by their names, positions in tuples or columns."""


class Maps(Protocol[IN, OUT]):
    """A MapFunction."""

    def map(self, value: IN, /) -> OUT: ...


class FlatMaps(Protocol[IN, OUT]):
    """A FlatMapFunction."""

    def flat_map(self, value: IN, /) -> Iterable[OUT] | None: ...


class Filters(Protocol[IN]):
    """A FilterFunction."""

    def filter(self, value: IN, /) -> bool: ...


class ProcessesElements(Protocol[IN, OUT]):
    """A ProcessFunction or a KeyedProcessFunction."""

    def process_element(self, value: IN, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...


class ProcessesWindow(Protocol[IN, OUT]):
    """A ProcessWindowFunction."""

    def process(self, key: Any, context: Any, elements: Iterable[IN], /) -> Iterable[OUT | Tagged] | None: ...


class ProcessesAll(Protocol[IN, OUT]):
    """A ProcessAllWindowFunction: it knows no key."""

    def process(self, context: Any, elements: Iterable[IN], /) -> Iterable[OUT | Tagged] | None: ...


class AppliesToWindow(Protocol[IN, OUT]):
    """A WindowFunction."""

    def apply(self, key: Any, window: Any, inputs: Iterable[IN], /) -> Iterable[OUT] | None: ...


class AppliesToAll(Protocol[IN, OUT]):
    """An AllWindowFunction: it knows no key."""

    def apply(self, window: Any, inputs: Iterable[IN], /) -> Iterable[OUT] | None: ...


class AsksOutside(Protocol[IN, OUT]):
    """An AsyncFunction."""

    def async_invoke(self, value: IN, /) -> Awaitable[Iterable[OUT] | None] | Iterable[OUT] | None: ...


class CoMaps(Protocol[IN1, IN2, OUT]):
    """A CoMapFunction."""

    def map1(self, value: IN1, /) -> OUT: ...

    def map2(self, value: IN2, /) -> OUT: ...


class CoFlatMaps(Protocol[IN1, IN2, OUT]):
    """A CoFlatMapFunction."""

    def flat_map1(self, value: IN1, /) -> Iterable[OUT] | None: ...

    def flat_map2(self, value: IN2, /) -> Iterable[OUT] | None: ...


class ProcessesTwo(Protocol[IN1, IN2, OUT]):
    """A CoProcessFunction or a KeyedCoProcessFunction."""

    def process_element1(self, value: IN1, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...

    def process_element2(self, value: IN2, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...


class ProcessesBroadcast(Protocol[IN1, IN2, OUT]):
    """A BroadcastProcessFunction or a KeyedBroadcastProcessFunction."""

    def process_element(self, value: IN1, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...

    def process_broadcast_element(self, value: IN2, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...


class Joins(Protocol[IN1, IN2, OUT]):
    """A JoinFunction."""

    def join(self, first: IN1, second: IN2, /) -> OUT: ...


class CoGroups(Protocol[_First, _Second, OUT]):
    """A CoGroupFunction."""

    def co_group(self, first: list[_First], second: list[_Second], /) -> Iterable[OUT] | None: ...


class ProcessesPairs(Protocol[IN1, IN2, OUT]):
    """A ProcessJoinFunction."""

    def process_element(self, left: IN1, right: IN2, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...


# ---------------------------------------------------------------------------------------------------- of data sets only


class MapsPartition(Protocol[IN, OUT]):
    """A MapPartitionFunction."""

    def map_partition(self, values: Iterator[IN], /) -> Iterable[OUT] | None: ...


class ReducesGroup(Protocol[IN, OUT]):
    """A GroupReduceFunction."""

    def reduce(self, values: Iterator[IN], /) -> Iterable[OUT] | None: ...


class CombinesGroup(Protocol[IN, OUT]):
    """A GroupCombineFunction."""

    def combine(self, values: Iterator[IN], /) -> Iterable[OUT] | None: ...


class Crosses(Protocol[IN1, IN2, OUT]):
    """A CrossFunction."""

    def cross(self, first: IN1, second: IN2, /) -> OUT: ...


# ------------------------------------------------------------------------------------ objects or callables, by one name

MapOf: TypeAlias = Callable[[_First], _New] | Maps[_First, _New]
FlatMapOf: TypeAlias = Callable[[_First], Iterable[_New] | None] | FlatMaps[_First, _New]
FilterOf: TypeAlias = Callable[[_First], bool] | Filters[_First]
MapPartitionOf: TypeAlias = Callable[[Iterator[_First]], Iterable[_New] | None] | MapsPartition[_First, _New]
ReduceGroupOf: TypeAlias = Callable[[Iterator[_First]], Iterable[_New] | None] | ReducesGroup[_First, _New]
CombineGroupOf: TypeAlias = (
    Callable[[Iterator[_First]], Iterable[_New] | None] | ReducesGroup[_First, _New] | CombinesGroup[_First, _New]
)
JoinOf: TypeAlias = Callable[[_First, _Second], _New] | Joins[_First, _Second, _New]
CrossOf: TypeAlias = Callable[[_First, _Second], _New] | Crosses[_First, _Second, _New]
CoGroupOf: TypeAlias = Callable[[list[_First], list[_Second]], Iterable[_New] | None] | CoGroups[_First, _Second, _New]
ProcessOf: TypeAlias = Callable[[_First, Any], Iterable[_New | Tagged] | None] | ProcessesElements[_First, _New]
