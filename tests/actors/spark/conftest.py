"""One Spark for all tests of this folder; at its end no Java process of ours may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from spark_kit import canonical, java_children, rounded

from headrace import ExecutionEnvironment

PARALLELISM = 3


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """An executor in a session of two executors, so that exchanges cross processes and one can be lost."""
    pytest.importorskip("raydp")
    from headrace.actors.ray.java import ADD_OPENS
    from headrace.actors.spark.executor import SparkExecutor
    from headrace.actors.spark.session import QUICK_START

    executor = SparkExecutor(
        address="local",
        num_executors=2,
        executor_cores=1,
        executor_memory_bytes=700 << 20,
        start_timeout_ms=240_000,
        local_iteration_bytes=0,
        configs={f"spark.{part}.extraJavaOptions": f"{ADD_OPENS} {QUICK_START}" for part in ("driver", "executor")},
    )
    ExecutionEnvironment(executor, PARALLELISM, options={}).generate_sequence(1, 3).count()  # it starts now
    yield executor
    executor.close()
    assert not java_children()


@pytest.fixture
def with_small_iterations(spark: Any) -> Iterator[Callable[[int], ExecutionEnvironment]]:
    """Makes environments of the same session that run iterations up to a size in this process."""
    from headrace.actors.spark.executor import SparkExecutor

    made = []

    def make(local_iteration_bytes: int) -> ExecutionEnvironment:
        made.append(SparkExecutor(local_iteration_bytes=local_iteration_bytes))
        return ExecutionEnvironment(made[-1], PARALLELISM, options={})

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def on_spark(spark: Any) -> ExecutionEnvironment:
    return ExecutionEnvironment(spark, PARALLELISM, options={})


@pytest.fixture
def local() -> ExecutionEnvironment:
    return ExecutionEnvironment.get_execution_environment("local", PARALLELISM)


Program = Callable[[ExecutionEnvironment], Any]


@pytest.fixture
def same(on_spark: ExecutionEnvironment, local: ExecutionEnvironment) -> Callable[..., list[Any]]:
    """Runs a program on both executors; the records must be the same, in any order unless one is promised."""

    def compare(program: Program, *, in_order: bool = False) -> list[Any]:
        expected, found = program(local).collect(), program(on_spark).collect()
        if in_order:
            assert list(map(repr, map(rounded, found))) == list(map(repr, map(rounded, expected)))
        else:
            assert canonical(found) == canonical(expected)
        return found

    return compare


@pytest.fixture
def table() -> pa.Table:
    """Nulls, NaN, both zeros, and skew: most keys are 1."""
    n = 240
    keys = [None if i % 17 == 0 else 1 if i % 3 else i % 7 for i in range(n)]
    values = [
        None if i % 11 == 0 else float("nan") if i % 13 == 0 else (-0.0 if i % 2 else 0.0) if i % 5 == 0 else i / 4
        for i in range(n)
    ]
    texts = [None if i % 19 == 0 else "é" * (i % 3) + str(i % 10) for i in range(n)]
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.float64()), "s": texts, "i": range(n)})
