"""Types go from step to step of a program of data sets: checked by mypy as those of streams are, and run.

Lines that are wrong on purpose have the error that mypy must find; see tests/api/stream/test_typed_programs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from typing_extensions import assert_type

from headrace import (
    DataSet,
    ExecutionEnvironment,
    FlatJoinFunction,
    GroupReduceFunction,
    JoinFunction,
    MapFunction,
    MapPartitionFunction,
    TypeMismatchError,
    col,
    count,
)
from headrace.dataset import GroupedDataSet, IterativeDataSet


class Order(NamedTuple):
    customer: str
    amount: int


@pytest.fixture
def env() -> Iterator[ExecutionEnvironment]:
    with ExecutionEnvironment.get_execution_environment("local", parallelism=2) as made:
        yield made


def orders(env: ExecutionEnvironment) -> DataSet[Order]:
    return env.from_elements(Order("a", 1), Order("b", 2), Order("a", 3))


class Amount(MapFunction[Order, int]):
    def map(self, value: Order) -> int:
        return value.amount


class Sizes(MapPartitionFunction[Order, int]):
    def map_partition(self, values: Iterator[Order]) -> Iterator[int]:
        yield sum(1 for _ in values)


class Total(GroupReduceFunction[Order, "tuple[str, int]"]):
    def reduce(self, values: Iterator[Order]) -> Iterator[tuple[str, int]]:
        found = list(values)
        yield found[0].customer, sum(order.amount for order in found)


class Both(FlatJoinFunction[Order, int, str]):
    def join(self, first: Order, second: int) -> Iterator[str]:
        yield first.customer * second


class Named(JoinFunction[Order, int, str]):
    def join(self, first: Order, second: int) -> str:
        return first.customer * second


def amount_of(order: Order) -> int:
    return order.amount


def larger_of_two(order: Order) -> Order:
    return max(order, Order("a", 2), key=amount_of)


def larger(one: Order, other: Order) -> Order:
    return max(one, other)


def test_sources_of_sets_say_what_they_give(env: ExecutionEnvironment) -> None:
    assert_type(env.from_collection([1, 2]), DataSet[int])
    assert_type(env.from_elements("a"), DataSet[str])
    assert_type(env.from_elements(Order("a", 1), type_info=Order), DataSet[Any])  # columns do not make an Order
    assert_type(env.generate_sequence(1, 2), DataSet[int])


def test_records_of_sets_go_from_step_to_step(env: ExecutionEnvironment) -> None:
    data = orders(env)
    assert_type(data.map(amount_of), DataSet[int])
    assert_type(data.map(lambda order: order.amount), DataSet[int])
    assert_type(data.map(Amount()), DataSet[int])
    assert_type(data.flat_map(lambda order: order.customer.split()), DataSet[str])
    assert_type(data.filter(lambda order: order.amount > 1).rebalance().name("large"), DataSet[Order])
    assert_type(data.map_partition(Sizes()), DataSet[int])
    assert_type(data.reduce(larger), DataSet[Order])
    assert_type(data.distinct(amount_of).sort(amount_of).first(2), DataSet[Order])
    assert_type(data.union(data.map(amount_of)), "DataSet[Order | int]")
    assert_type(data.map(amount_of).minus(env.from_elements(1)), DataSet[int])
    assert_type(data.map(larger_of_two, output_type=Order), DataSet[Any])  # columns do not make an Order
    assert sorted(data.map(larger_of_two, output_type=Order).collect()) == [("a", 2), ("a", 3), ("b", 2)]
    groups = data.group_by(lambda order: order.customer)
    assert_type(groups, GroupedDataSet[Order])
    assert_type(groups.sort_group(amount_of).first(1), DataSet[Order])
    assert_type(groups.reduce_group(Total()), "DataSet[tuple[str, int]]")
    assert_type(groups.reduce_group(lambda found: [order.amount for order in found]), DataSet[int])
    rows = data.map(lambda order: {"customer": order.customer, "amount": order.amount})
    assert_type(rows.group_by("customer").aggregate(n=count()), DataSet[dict[str, Any]])
    assert_type(rows.with_columns(double=col("amount") * 2), DataSet[dict[str, Any]])


def test_two_sets_keep_both_types(env: ExecutionEnvironment) -> None:
    data, numbers = orders(env), env.from_elements(1, 2)
    joined = data.join(numbers).where(amount_of).equal_to(lambda number: number)
    assert_type(joined.with_(lambda order, number: order.amount + number), DataSet[int])
    assert_type(joined.with_(Both()), DataSet[str])
    assert_type(joined.with_(Named()), DataSet[str])
    assert_type(joined.map(lambda pair: pair[0].amount + pair[1]), DataSet[int])
    outer = data.left_outer_join(numbers).where(lambda order: order.amount).equal_to(lambda number: number + 0)
    assert_type(outer.collect(), "list[tuple[Order, int | None]]")
    assert sorted(outer.collect()) == [(Order("a", 1), 1), (Order("a", 3), None), (Order("b", 2), 2)]
    both = data.co_group(numbers).where(amount_of).equal_to(lambda number: number)
    assert_type(both.with_(lambda found, them: [len(found) + sum(them)]), DataSet[int])
    assert_type(data.cross(numbers).with_(lambda order, number: order.amount * number), DataSet[int])
    assert_type(data.semi_join(numbers).where(amount_of).equal_to(lambda number: number), DataSet[Order])


def test_loops_keep_the_type(env: ExecutionEnvironment) -> None:
    numbers = env.from_elements(1, 2)
    assert_type(numbers.iterate(3, lambda partial: partial.map(lambda number: number + 1)), DataSet[int])
    assert_type(numbers.iterate(3), IterativeDataSet[int])


def test_what_does_not_fit_a_set_is_found_where_it_is_written(env: ExecutionEnvironment) -> None:
    """Most of it does not fail while the program is written down: only a type checker knows."""
    data, numbers = orders(env), env.from_elements(1, 2)
    data.map(str.upper)  # type: ignore[arg-type]
    data.map(lambda order: order.amonut)  # type: ignore[attr-defined]
    with pytest.raises(TypeMismatchError, match=r"amount_of takes a record .* \(operator 'map'"):
        data.map(amount_of).map(amount_of)  # type: ignore[arg-type]
    data.group_by(lambda order: order.costumer)  # type: ignore[attr-defined]
    numbers.group_by(lambda number: number).reduce_group(Total())  # type: ignore[arg-type]
    data.reduce(lambda one, other: one.amount)  # type: ignore[arg-type, return-value]
    joined = data.join(numbers).where(amount_of).equal_to(lambda number: number)
    joined.with_(lambda order, number: number.amount)  # type: ignore[attr-defined]
    outer = data.left_outer_join(numbers).where(amount_of).equal_to(lambda number: number)
    outer.with_(lambda order, number: order.amount + number)  # type: ignore[operator]
    with pytest.raises(AttributeError, match="no attribute"):
        data.maps(amount_of)  # type: ignore[attr-defined]
