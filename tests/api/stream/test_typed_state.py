"""Types of state, side outputs, broadcast streams and windows' functions: checked by mypy as test_typed_programs.py is.

Functions that are wrong on purpose are never run; the lines at which mypy must find it have its error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from typing_extensions import assert_type

from headrace import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    DataStream,
    KeyedProcessFunction,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReducingState,
    ReducingStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueState,
    ValueStateDescriptor,
    WindowFunction,
)


class Order(NamedTuple):
    customer: str
    amount: int


LATE = OutputTag("late", int)
LIMITS = MapStateDescriptor("limits", str, int)


@pytest.fixture
def env() -> Iterator[StreamExecutionEnvironment]:
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as made:
        yield made


def orders(env: StreamExecutionEnvironment) -> DataStream[Order]:
    return env.from_elements(Order("a", 1), Order("b", 2), Order("a", 3))


def customer_of(order: Order) -> str:
    return order.customer


# ------------------------------------------------------------------------------------------------------------- state


class Sum(AggregateFunction[int, int, str]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return f"={accumulator}"


def larger(one: Order, other: Order) -> Order:
    return max(one, other)


class Ledger(KeyedProcessFunction[str, Order, "tuple[int, int, Order | None, str | None]"]):
    """Has state of every kind."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, 0))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Order))
        self.amounts = runtime_context.get_list_state(ListStateDescriptor("amounts", int))
        self.by_amount = runtime_context.get_map_state(MapStateDescriptor("by_amount", int, Order))
        self.largest = runtime_context.get_reducing_state(ReducingStateDescriptor("largest", larger))
        self.sum = runtime_context.get_aggregating_state(AggregatingStateDescriptor("sum", Sum()))
        self.either: ListState[int | str] = runtime_context.get_list_state(ListStateDescriptor("either", int | str))
        self.any = runtime_context.get_state(ValueStateDescriptor("any", Types.INT()))
        assert_type(self.any, ValueState[Any])
        assert_type(self.count, ValueState[int])
        assert_type(self.last, "ValueState[Order | None]")
        assert_type(self.amounts, ListState[int])
        assert_type(self.by_amount, MapState[int, Order])
        assert_type(self.largest, ReducingState[Order])
        assert_type(self.sum, AggregatingState[int, str])

    def process_element(
        self, value: Order, ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[int, int, Order | None, str | None]]:
        self.count.update(self.count.value() + 1)
        self.last.update(value)
        self.amounts.add(value.amount)
        self.by_amount.put(value.amount, value)
        self.largest.add(value)
        self.sum.add(value.amount)
        yield self.count.value(), sum(self.amounts.get()), self.by_amount.get(1), self.sum.get()


class Wrong(KeyedProcessFunction[str, Order, int]):
    """Every line with an error is one of a program that does not know what it keeps."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))
        self.names = runtime_context.get_list_state(ListStateDescriptor("names", str))
        self.known = runtime_context.get_map_state(MapStateDescriptor("known", str, int))
        self.sum = runtime_context.get_aggregating_state(AggregatingStateDescriptor("sum", Sum()))
        self.other: ValueState[str] = runtime_context.get_state(ValueStateDescriptor("other", int, 0))  # type: ignore[arg-type]
        self.first = runtime_context.get_state(ListStateDescriptor("first", int))  # type: ignore[arg-type]

    def process_element(self, value: Order, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        yield self.count.value() + 1  # type: ignore[operator]
        self.count.update("one")  # type: ignore[arg-type]
        self.names.add(value)  # type: ignore[arg-type]
        self.known.put(1, 1)  # type: ignore[arg-type]
        yield self.known.get("a") + 1  # type: ignore[operator]
        self.sum.add("one")  # type: ignore[arg-type]


def test_state_is_of_the_type_that_its_descriptor_declares(env: StreamExecutionEnvironment) -> None:
    found = orders(env).key_by(customer_of).process(Ledger())
    assert_type(found, "DataStream[tuple[int, int, Order | None, str | None]]")
    assert sorted(found.execute_and_collect(), key=repr) == [
        (1, 1, Order("a", 1), "=1"),
        (1, 2, None, "=2"),
        (2, 4, Order("a", 1), "=4"),
    ]


# ------------------------------------------------------------------------------------------------------ side outputs


class Split(ProcessFunction[Order, str]):
    def process_element(self, value: Order, ctx: ProcessFunction.Context) -> Iterator[str]:
        ctx.output(LATE, value.amount)
        yield value.customer


class WrongSplit(ProcessFunction[Order, str]):
    def process_element(self, value: Order, ctx: ProcessFunction.Context) -> Iterator[str]:
        ctx.output(LATE, value.customer)  # type: ignore[misc]
        yield value.amount  # type: ignore[misc]


def test_a_side_output_has_the_type_of_its_tag(env: StreamExecutionEnvironment) -> None:
    assert_type(LATE, OutputTag[int])
    assert_type(OutputTag("late", Types.INT()), OutputTag[Any])
    split = orders(env).process(Split())
    late = split.get_side_output(LATE)
    assert_type(late, DataStream[int])
    assert sorted(late.execute_and_collect()) == [1, 2, 3]
    late.map(str.upper)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- broadcast


class Limited(BroadcastProcessFunction[Order, "tuple[str, int]", str]):
    def process_element(self, value: Order, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[str]:
        limits = ctx.get_broadcast_state(LIMITS)
        assert_type(limits.get(value.customer), "int | None")
        limits.get(value.amount)  # type: ignore[arg-type]
        yield value.customer

    def process_broadcast_element(self, value: tuple[str, int], ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(LIMITS).put(*value)
        ctx.get_broadcast_state(LIMITS).put(value[0], value[0])  # type: ignore[arg-type]


def test_broadcast_state_and_both_streams_have_types(env: StreamExecutionEnvironment) -> None:
    limits = env.from_elements(("a", 1))
    stream = orders(env)
    assert_type(stream.connect(limits.broadcast(LIMITS)).process(Limited()), DataStream[str])
    stream.map(customer_of).connect(limits.broadcast(LIMITS)).process(Limited())  # type: ignore[arg-type]
    stream.connect(env.from_elements("a").broadcast(LIMITS)).process(Limited())  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- windows


class Total(ProcessWindowFunction[Order, "tuple[str, int]"]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[Order]
    ) -> Iterator[tuple[str, int]]:
        seen = context.global_state().get_state(ValueStateDescriptor("seen", int, 0))
        in_window = context.window_state().get_list_state(ListStateDescriptor("in window", str))
        assert_type((seen, in_window), "tuple[ValueState[int], ListState[str]]")
        yield key, sum(order.amount for order in elements)


class Largest(WindowFunction[Order, Order]):
    def apply(self, key: str, window: Any, inputs: Iterable[Order]) -> Iterator[Order]:
        yield max(inputs)


def amounts_of(key: str, window: Any, inputs: Iterable[Order]) -> list[int]:
    return [order.amount for order in inputs]


def all_amounts_of(window: Any, inputs: Iterable[Order]) -> list[int]:
    return [order.amount for order in inputs]


class Everything(ProcessAllWindowFunction[Order, int]):
    def process(self, context: ProcessWindowFunction.Context, elements: Iterable[Order]) -> Iterator[int]:
        yield sum(order.amount for order in elements)


def test_functions_of_windows_take_what_the_stream_is_of(env: StreamExecutionEnvironment) -> None:
    minute = TumblingEventTimeWindows.of("1 min")
    windows = orders(env).key_by(customer_of).window(minute)
    assert_type(windows.process(Total()), "DataStream[tuple[str, int]]")
    assert_type(windows.apply(Largest()), DataStream[Order])
    assert_type(windows.apply(amounts_of), DataStream[int])
    assert_type(windows.process(lambda key, context, found: [len(list(found))]), DataStream[int])
    assert_type(orders(env).window_all(minute).apply(lambda window, found: [len(list(found))]), DataStream[int])
    assert_type(orders(env).window_all(minute).apply(all_amounts_of), DataStream[int])
    assert_type(windows.reduce(larger, amounts_of), DataStream[int])
    assert_type(windows.reduce(larger, Largest()), DataStream[Order])
    assert_type(orders(env).window_all(minute).process(Everything()), DataStream[int])
    assert_type(windows.side_output_late_data(OutputTag("late orders", Order)).reduce(larger), DataStream[Order])
    windows.side_output_late_data(LATE)  # type: ignore[arg-type]
    amounts = orders(env).map(lambda order: order.amount)
    numbers = amounts.key_by(lambda amount: amount).window(minute)
    numbers.process(Total())  # type: ignore[arg-type]
    numbers.apply(Largest())  # type: ignore[arg-type]
    numbers.apply(amounts_of)  # type: ignore[arg-type]
    numbers.aggregate(Sum(), Largest())  # type: ignore[arg-type]
    windows.aggregate(Sum())  # type: ignore[arg-type]
    amounts.window_all(minute).process(Everything())  # type: ignore[arg-type]
