"""What type checkers know of user functions: which records they take and which they give, by their methods.

A transformation takes a callable or an object with one method. The protocols here are such objects, so the hints of
``map`` and the like go on to the stream that comes of it, whether the function's class names its types
(``MapFunction[int, str]``) or not. A type that is not named is any type. Nothing of this counts when a program runs.

Source: the type parameters of PyFlink's and Flink's functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from headrace.engine.functions.given import IN, IN1, IN2, OUT, T
from headrace.engine.functions.side_outputs import Tagged

__all__ = [
    "Aggregates",
    "AppliesToWindow",
    "AsksOutside",
    "CoFlatMaps",
    "CoGroups",
    "CoMaps",
    "Filters",
    "FlatMaps",
    "GetsKey",
    "Joins",
    "Maps",
    "ProcessesBroadcast",
    "ProcessesElements",
    "ProcessesPairs",
    "ProcessesTwo",
    "ProcessesWindow",
    "Reduces",
]


class GetsKey(Protocol[IN]):
    """A KeySelector."""

    def get_key(self, value: IN, /) -> Any: ...


class Maps(Protocol[IN, OUT]):
    """A MapFunction."""

    def map(self, value: IN, /) -> OUT: ...


class FlatMaps(Protocol[IN, OUT]):
    """A FlatMapFunction."""

    def flat_map(self, value: IN, /) -> Iterable[OUT] | None: ...


class Filters(Protocol[IN]):
    """A FilterFunction."""

    def filter(self, value: IN, /) -> bool: ...


class Reduces(Protocol[T]):
    """A ReduceFunction."""

    def reduce(self, value1: T, value2: T, /) -> T: ...


class Aggregates(Protocol[IN, OUT]):
    """An AggregateFunction; of what kind its accumulators are is its own affair."""

    def create_accumulator(self) -> Any: ...

    def add(self, value: IN, accumulator: Any, /) -> Any: ...

    def get_result(self, accumulator: Any, /) -> OUT: ...


class ProcessesElements(Protocol[IN, OUT]):
    """A ProcessFunction or a KeyedProcessFunction."""

    def process_element(self, value: IN, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...


class ProcessesWindow(Protocol[OUT]):
    """A ProcessWindowFunction, or a ProcessAllWindowFunction, which knows no key."""

    def process(self, *arguments: Any, **named: Any) -> Iterable[OUT | Tagged] | None: ...


class AppliesToWindow(Protocol[OUT]):
    """A WindowFunction, or an AllWindowFunction, which knows no key."""

    def apply(self, *arguments: Any, **named: Any) -> Iterable[OUT] | None: ...


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


class CoGroups(Protocol[OUT]):
    """A CoGroupFunction."""

    def co_group(self, first: Any, second: Any, /) -> Iterable[OUT] | None: ...


class ProcessesPairs(Protocol[IN1, IN2, OUT]):
    """A ProcessJoinFunction."""

    def process_element(self, left: IN1, right: IN2, ctx: Any, /) -> Iterable[OUT | Tagged] | None: ...
