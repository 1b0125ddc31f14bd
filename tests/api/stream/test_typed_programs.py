"""Types go from step to step of a program: this file is checked by mypy, strictly, in `.ci/run`, and run as any other.

What ``assert_type`` says is what mypy has found. A line that is wrong on purpose has ``type: ignore`` with the error
that mypy must find: an ignored error that is none is one itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from typing_extensions import assert_type

from headrace import (
    AggregateFunction,
    CoMapFunction,
    DataStream,
    EnumeratorContext,
    FilterFunction,
    FlatJoinFunction,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SplitEnumerator,
    StreamExecutionEnvironment,
    TimeWindow,
    TumblingEventTimeWindows,
    TypeMismatchError,
    WindowFunction,
    col,
    count,
)
from headrace.connectors.datagen import GeneratorSource, RateLimitedSource
from headrace.connectors.files import FileSource
from headrace.connectors.hybrid import HybridSource
from headrace.connectors.kafka import BytesMessages, JsonMessages, KafkaSource, TextMessages
from headrace.connectors.print import PrintSink

MINUTE = TumblingEventTimeWindows.of("1 min")
LATE: OutputTag[int] = OutputTag("late")


class Order(NamedTuple):
    customer: str
    amount: int


@pytest.fixture
def env() -> Iterator[StreamExecutionEnvironment]:
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as made:
        yield made


def orders(env: StreamExecutionEnvironment) -> DataStream[Order]:
    return env.from_elements(Order("a", 1), Order("b", 2), Order("a", 3))


# --------------------------------------------------------------------------------------------------------- functions


class Amount(MapFunction):  # its method says what it takes and gives
    def map(self, value: Order) -> int:
        return value.amount


class Customer(MapFunction[Order, str]):  # as in PyFlink
    def map(self, value: Order) -> str:
        return value.customer


class IsLarge(FilterFunction[Order]):
    def filter(self, value: Order) -> bool:
        return value.amount > 1


class Split(ProcessFunction[Order, str]):
    def process_element(self, value: Order, ctx: ProcessFunction.Context) -> Iterator[str | tuple[OutputTag[int], int]]:
        yield value.customer
        yield LATE, value.amount


class Twice(KeyedProcessFunction[str, Order, int]):
    def process_element(self, value: Order, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        yield value.amount
        yield value.amount


class Mean(AggregateFunction[Order, "tuple[int, int]", float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Order, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.amount, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Count(WindowFunction[Order, "tuple[str, int]", str, TimeWindow]):
    def apply(self, key: str, window: TimeWindow, inputs: Iterable[Order]) -> Iterator[tuple[str, int]]:
        yield key, sum(1 for _ in inputs)


class Rounded(WindowFunction[float, "tuple[str, int]", str, TimeWindow]):
    def apply(self, key: str, window: TimeWindow, inputs: Iterable[float]) -> Iterator[tuple[str, int]]:
        yield key, sum(map(round, inputs))


class Largest(ProcessWindowFunction):
    def process(self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[Order]) -> Iterator[Order]:
        yield max(elements, key=lambda order: order.amount)


class Lengths(CoMapFunction[Order, str, int]):
    def map1(self, value: Order) -> int:
        return value.amount

    def map2(self, value: str) -> int:
        return len(value)


class Both(FlatJoinFunction[Order, int, str]):
    def join(self, first: Order, second: int) -> Iterator[str]:
        yield first.customer * second


class Undeclared:
    """A source as the engine needs it, which says nothing of its records."""

    is_bounded = True

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        return GeneratorSource(lambda n: Order("a", n), count=1).create_enumerator(context)

    def create_reader(self) -> SourceReader:
        return GeneratorSource(lambda n: Order("a", n), count=1).create_reader()


class Orders(Undeclared, Source[Order]):
    pass


class Anything:
    def create_writer(self) -> SinkWriter:
        return PrintSink().create_writer()


class Archive(Anything, Sink[Order]):
    pass


def amount_of(order: Order) -> int:
    return order.amount


def letters(order: Order) -> list[str]:
    return list(order.customer)


async def asked(order: Order) -> float:
    return order.amount / 2


def larger(one: Order, other: Order) -> Order:
    return max(one, other)


# ------------------------------------------------------------------------------------------------------------- tests


def test_sources_say_what_they_give(env: StreamExecutionEnvironment) -> None:
    assert_type(env.from_collection([1, 2]), DataStream[int])
    assert_type(env.from_elements("a"), DataStream[str])
    assert_type(env.from_elements(Order("a", 1), type_info=Order), DataStream[Any])  # columns do not make an Order
    assert_type(env.from_sequence(1, 2), DataStream[int])
    assert_type(env.from_source(GeneratorSource(lambda n: Order("a", n), count=1)), DataStream[Order])
    assert_type(env.read_text_file("lines.txt"), DataStream[str])
    numbered = GeneratorSource(lambda n: Order("a", n), count=1)
    assert_type(env.from_source(RateLimitedSource(numbered, 10)), DataStream[Order])
    assert_type(env.from_source(HybridSource.builder(numbered).add_source(numbered).build()), DataStream[Order])
    assert_type(env.from_source(Orders()), DataStream[Order])
    assert_type(env.from_source(Undeclared()), DataStream[Any])
    assert_type(env.from_source(FileSource.text("lines.txt")), DataStream[str])
    assert_type(env.from_source(FileSource.csv("rows.csv", {"a": int})), DataStream[dict[str, Any]])
    assert_type(env.from_source(FileSource.json_lines("values.json")), DataStream[Any])
    assert_type(env.from_source(FileSource.parquet("rows.parquet")), DataStream[Any])  # tuples come back as tuples
    messages = KafkaSource("localhost:9092", "orders", value=TextMessages())
    assert_type(env.from_source(messages).map(str.upper), DataStream[str])
    assert_type(KafkaSource("localhost:9092", "orders", value=BytesMessages()), KafkaSource[bytes])
    columns = KafkaSource("localhost:9092", "orders", value=TextMessages(column="text"), metadata=["offset"])
    assert_type(columns, KafkaSource[dict[str, Any]])
    assert_type(KafkaSource("localhost:9092", "orders", value=JsonMessages()), KafkaSource[Any])


def test_sinks_say_what_they_take(env: StreamExecutionEnvironment) -> None:
    stream = orders(env)
    stream.sink_to(Archive())
    stream.sink_to(Anything())
    stream.map(amount_of).sink_to(Archive())  # type: ignore[arg-type]


def test_rows_go_from_step_to_step(env: StreamExecutionEnvironment) -> None:
    stream = orders(env)
    assert_type(stream.map(amount_of), DataStream[int])
    assert_type(stream.map(lambda order: order.amount), DataStream[int])
    assert_type(stream.map(Amount()), DataStream[int])
    assert_type(stream.map(Customer()), DataStream[str])
    assert_type(stream.flat_map(letters), DataStream[str])
    assert_type(stream.flat_map(lambda order: order.customer.split()), DataStream[str])
    assert_type(stream.filter(IsLarge()).filter(lambda order: order.amount > 1), DataStream[Order])
    assert_type(stream.process(Split()), DataStream[str])
    assert_type(stream.process(Split()).get_side_output(LATE), DataStream[int])
    assert_type(stream.map_async(asked), DataStream[float])
    assert_type(stream.map_async(amount_of), DataStream[int])
    assert_type(stream.rebalance().filter(IsLarge()).name("a").uid("a").set_parallelism(1), DataStream[Order])
    assert_type(stream.union(orders(env)), DataStream[Order])
    assert_type(stream.connect(env.from_elements(1)).map((amount_of, str)), "DataStream[int | str]")
    rows = stream.map(lambda order: {"amount": order.amount})
    assert_type(rows.filter(col("amount") > 1), DataStream[dict[str, int]])
    assert_type(rows.with_columns(double=col("amount") * 2), DataStream[dict[str, Any]])


def test_keys_and_windows_keep_the_type(env: StreamExecutionEnvironment) -> None:
    keyed = orders(env).key_by(lambda order: order.customer)
    assert_type(keyed, KeyedStream[Order])
    assert_type(keyed.reduce(larger), DataStream[Order])
    assert_type(keyed.sum(1), DataStream[Order])
    assert_type(keyed.map(Amount()), DataStream[int])
    assert_type(keyed.process(Twice()), DataStream[int])
    windows = keyed.window(MINUTE).allowed_lateness("1 s").side_output_late_data(OutputTag("late"))
    assert_type(windows.reduce(larger), DataStream[Order])
    assert_type(windows.max(1), DataStream[Order])
    assert_type(windows.aggregate(Mean()), DataStream[float])
    assert_type(windows.aggregate(Mean(), Rounded()), "DataStream[tuple[str, int]]")
    assert_type(keyed.window(MINUTE).aggregate(n=count()), DataStream[dict[str, Any]])
    assert_type(windows.apply(Count()), "DataStream[tuple[str, int]]")
    assert_type(windows.process(Largest()), DataStream[Order])
    assert_type(orders(env).window_all(MINUTE).aggregate(Mean()), DataStream[float])


def test_two_streams_keep_both_types(env: StreamExecutionEnvironment) -> None:
    stream, names = orders(env), env.from_elements("a", "b")
    assert_type(stream.connect(names).map(Lengths()), DataStream[int])
    assert_type(stream.connect(names).map((amount_of, str.upper)), "DataStream[int | str]")
    either = stream.connect(names).process((lambda order, ctx: [order.amount], lambda name, ctx: [name.upper()]))
    assert_type(either, "DataStream[int | str]")
    stream.connect(names).process((lambda order, ctx: [order.upper()], lambda name, ctx: [name]))  # type: ignore[attr-defined]
    assert_type(stream.connect(names).flat_map((letters, lambda name: [len(name)])), "DataStream[str | int]")
    numbers = env.from_elements(1, 2)
    loop = numbers.iterate()
    assert_type(loop.close_with(loop.map(lambda number: number + 1)), DataStream[int])
    loop.close_with(loop.map(str))  # type: ignore[arg-type]
    rates = stream.key_by(lambda order: order.amount).temporal_join(numbers.key_by(lambda number: number), how="left")
    rates.apply(lambda order, rate: order.amount * rate)  # type: ignore[operator]
    pairs = stream.join(numbers).where(lambda order: order.amount).equal_to(lambda number: number).window(MINUTE)
    assert_type(pairs.apply(lambda order, number: (order.customer, number)), "DataStream[tuple[str, int]]")
    assert_type(pairs.apply(Both()), DataStream[str])
    left, right = stream.key_by(lambda order: order.amount), numbers.key_by(lambda number: number)
    near = left.interval_join(right).between("-1 s", "1 s")
    assert_type(near.process(lambda order, number, ctx: [order.amount + number]), DataStream[int])


def test_records_come_back_with_their_type(env: StreamExecutionEnvironment) -> None:
    amounts = orders(env).map(Amount()).execute_and_collect(limit=3)
    assert_type(amounts, "list[int]")
    assert sorted(amounts) == [1, 2, 3]
    with orders(env).flat_map(letters).execute_and_collect() as found:
        rows = list(found)
    assert_type(rows, "list[str]")
    assert sorted(rows) == ["a", "a", "b"]


def test_what_does_not_fit_is_found_where_it_is_written(env: StreamExecutionEnvironment) -> None:
    """Most of it does not fail while the program is written down: only a type checker knows."""
    stream = orders(env)
    stream.map(str.upper)  # type: ignore[arg-type]
    stream.map(lambda order: order.amonut)  # type: ignore[attr-defined]
    stream.filter(lambda order: order.customer)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeMismatchError, match=r"amount_of takes a record .*, by its hint; the records are a number"):
        stream.map(amount_of).map(amount_of)  # type: ignore[arg-type]
    stream.key_by(lambda order: order.costumer)  # type: ignore[attr-defined]
    stream.key_by(lambda order: order.customer).window(MINUTE).reduce(lambda one, other: one.amount)  # type: ignore[arg-type, return-value]
    with pytest.raises(AttributeError, match="no attribute"):
        stream.maps(amount_of)  # type: ignore[attr-defined]
