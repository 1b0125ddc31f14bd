"""Iterations: a step, written with data sets, that is run again and again.

A step function is called with placeholders when the program is written, not once per superstep. If what it gives has
another type than what it was given, it is called a second time with placeholders of arbitrary objects, so a step of
plain Python functions needs no declaration.

Source: Flink's ``IterativeDataSet``, ``DeltaIteration``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.functions.accumulators import Accumulator
from headrace.engine.plan.plan import (
    FORWARD,
    BulkIteration,
    Convergence,
    DeltaIteration,
    GroupKey,
    IterationInput,
    Ship,
    ShipKind,
)
from headrace.state.type_variables import T1

from ..arguments.checks import whole
from .dataset import DataSet
from .record_types import is_same_type

__all__ = ["DeltaIterationBuilder", "IterativeDataSet", "bulk_iteration", "delta_iteration"]


def _checked(
    max_iterations: int, aggregators: Mapping[str, Any], convergence: tuple[str, Any] | None
) -> Convergence | None:
    whole("max_iterations", max_iterations, 0, None)
    for name, aggregator in aggregators.items():
        if not isinstance(aggregator, Accumulator):
            message = f"aggregator {name!r} must be an Accumulator such as LongCounter(); got {aggregator!r}"
            raise ProgramError(message)
    if convergence is None:
        return None
    pair: Any = convergence
    if not isinstance(pair, tuple) or len(pair) != 2:
        message = f"convergence is the name of an aggregator and a function of superstep and value; got {convergence!r}"
        raise ProgramError(message)
    name, criterion = pair
    if name not in aggregators:
        message = f"convergence looks at aggregator {name!r}, but there are {sorted(aggregators)}"
        raise ProgramError(message)
    if not callable(getattr(criterion, "is_converged", criterion)):
        message = f"a convergence criterion is a function of superstep and value; got {criterion!r}"
        raise ProgramError(message)
    return Convergence(name, criterion)


def _placeholder(data: DataSet, role: str, schema: pa.Schema | None) -> IterationInput:
    environment = data.get_execution_environment()
    return IterationInput(id=environment.new_id(), name=role, schema=schema, role=role)


def _as_data_set(what: str, value: Any) -> DataSet:
    if not isinstance(value, DataSet):
        message = f"{what} must be a data set; got {value!r}"
        raise ProgramError(message)
    return value


def _fitting(what: str, data: DataSet, schema: pa.Schema | None) -> DataSet:
    """The data set as one of a type, if it is or can be held to be.

    Raises:
        TypeMismatchError: If it has another type.
    """
    if is_same_type(data.schema, schema):
        return data
    if data.schema is None or schema is None:
        return data.with_schema(schema)
    message = f"{what} must be of the type it began with, {_shown(schema)}; it is {_shown(data.schema)}"
    raise TypeMismatchError(message, hint="select or cast the fields, or take the type away by as_type before")


def _shown(schema: pa.Schema) -> str:
    return f"({', '.join(f'{field.name}: {field.type}' for field in schema)})"


# ----------------------------------------------------------------------------------------------------------------- bulk


class IterativeDataSet(DataSet[T1]):
    """The last result inside of a bulk iteration. Made by ``iterate`` without a step, closed by ``close_with``."""

    _start: DataSet[T1]
    _max_iterations: int
    _aggregators: dict[str, Any]
    _convergence: tuple[str, Any] | None

    @classmethod
    def begin(
        cls,
        start: DataSet[T1],
        max_iterations: int,
        aggregators: Mapping[str, Any],
        convergence: tuple[str, Any] | None,
    ) -> IterativeDataSet[T1]:
        """Begin an iteration."""
        whole("max_iterations", max_iterations, 0, None)
        loop = cls(start.get_execution_environment(), _placeholder(start, "partial", start.schema))
        loop._start = start
        loop._max_iterations = max_iterations
        loop._aggregators = dict(aggregators)
        loop._convergence = convergence
        return loop

    def register_aggregator(self, name: str, aggregator: Accumulator) -> IterativeDataSet[T1]:
        """Add an aggregator, which functions of the step ask for by name."""
        self._aggregators[name] = aggregator
        return self

    def register_aggregation_convergence_criterion(
        self, name: str, aggregator: Accumulator, criterion: Any
    ) -> IterativeDataSet[T1]:
        """Add an aggregator, and end when ``criterion(superstep, value)`` is true."""
        self._aggregators[name] = aggregator
        self._convergence = (name, criterion)
        return self

    def close_with(self, result: DataSet[T1], termination: DataSet | None = None) -> DataSet[T1]:
        """Say what the step gives; the result of the iteration.

        Args:
            result: The next partial result; of the type that the iteration began with.
            termination: Ends the iteration in the superstep in which it has no record.
        """
        head = self.take_node()
        assert isinstance(head, IterationInput)
        fitting = _fitting("the result of a step", _as_data_set("the result of a step", result), head.schema)
        return _bulk(
            self._start, head, fitting, termination, self._max_iterations, self._aggregators, self._convergence
        )


def _bulk(
    start: DataSet,
    head: IterationInput,
    result: DataSet,
    termination: DataSet | None,
    max_iterations: int,
    aggregators: Mapping[str, Any],
    convergence: tuple[str, Any] | None,
) -> DataSet:
    checked = _checked(max_iterations, aggregators, convergence)
    environment = start.get_execution_environment()
    for other in (result, *(() if termination is None else (termination,))):
        environment.require_same(start, other)
    first = start if is_same_type(start.schema, head.schema) else start.with_schema(head.schema)
    node = BulkIteration(
        id=environment.new_id(),
        name="iterate",
        inputs=(first.take_node(),),
        schema=head.schema,
        ships=(FORWARD,),
        head=head,
        result=result.take_node(),
        max_iterations=max_iterations,
        termination=None if termination is None else termination.take_node(),
        aggregators=dict(aggregators),
        convergence=checked,
    )
    return DataSet(environment, node)


def bulk_iteration(
    start: DataSet,
    max_iterations: int,
    step: Callable[[DataSet], Any],
    aggregators: Mapping[str, Any],
    convergence: tuple[str, Any] | None,
) -> DataSet:
    """See ``DataSet.iterate``."""
    environment = start.get_execution_environment()
    for schema in (start.schema, None):
        head = _placeholder(start, "partial", schema)
        given = step(DataSet(environment, head))
        result, termination = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        _as_data_set("the result of a step", result)
        if termination is not None:
            _as_data_set("a termination criterion", termination)
        if is_same_type(result.schema, schema) or schema is None:
            fitting = _fitting("the result of a step", result, schema)
            return _bulk(start, head, fitting, termination, max_iterations, aggregators, convergence)
    message = "unreachable: arbitrary objects fit every type"
    raise AssertionError(message)


# ---------------------------------------------------------------------------------------------------------------- delta


class DeltaIterationBuilder:
    """A delta iteration that waits for its step. Made by ``iterate_delta`` without one."""

    _parts: tuple[DataSet, DataSet]
    _placeholders: tuple[DataSet, DataSet]
    _key: GroupKey
    _max_iterations: int
    _aggregators: dict[str, Any]
    _convergence: tuple[str, Any] | None

    @classmethod
    def begin(
        cls,
        solution: DataSet,
        workset: DataSet,
        max_iterations: int,
        key: GroupKey,
        aggregators: Mapping[str, Any],
        convergence: tuple[str, Any] | None,
    ) -> DeltaIterationBuilder:
        """Begin an iteration."""
        environment = solution.get_execution_environment()
        environment.require_same(solution, workset)
        whole("max_iterations", max_iterations, 0, None)
        loop = cls()
        loop._parts = (solution, workset)
        loop._placeholders = (
            DataSet(environment, _placeholder(solution, "solution", solution.schema)),
            DataSet(environment, _placeholder(workset, "workset", workset.schema)),
        )
        loop._key = key
        loop._max_iterations = max_iterations
        loop._aggregators = dict(aggregators)
        loop._convergence = convergence
        return loop

    def get_solution_set(self) -> DataSet:
        """Return the solution set inside of the step."""
        return self._placeholders[0]

    def get_workset(self) -> DataSet:
        """Return the workset inside of the step."""
        return self._placeholders[1]

    def register_aggregator(self, name: str, aggregator: Accumulator) -> DeltaIterationBuilder:
        """Add an aggregator, which functions of the step ask for by name."""
        self._aggregators[name] = aggregator
        return self

    def register_aggregation_convergence_criterion(
        self, name: str, aggregator: Accumulator, criterion: Any
    ) -> DeltaIterationBuilder:
        """Add an aggregator, and end when ``criterion(superstep, value)`` is true."""
        self._aggregators[name] = aggregator
        self._convergence = (name, criterion)
        return self

    def close_with(self, delta: DataSet, next_workset: DataSet) -> DataSet:
        """Say what the step gives; the result is the solution set.

        Args:
            delta: What changes the solution set, of its type.
            next_workset: Of the workset's type.
        """
        heads = [data.take_node() for data in self._placeholders]
        fitting = (
            _fitting("the delta", _as_data_set("the delta", delta), heads[0].schema),
            _fitting("the next workset", _as_data_set("the next workset", next_workset), heads[1].schema),
        )
        return _delta(
            self._parts, heads, fitting, self._key, self._max_iterations, self._aggregators, self._convergence
        )


def _delta(
    parts: tuple[DataSet, DataSet],
    heads: Any,
    given: tuple[DataSet, DataSet],
    key: GroupKey,
    max_iterations: int,
    aggregators: Mapping[str, Any],
    convergence: tuple[str, Any] | None,
) -> DataSet:
    checked = _checked(max_iterations, aggregators, convergence)
    environment = parts[0].get_execution_environment()
    for other in given:
        environment.require_same(parts[0], other)
    inputs = [
        (data if is_same_type(data.schema, head.schema) else data.with_schema(head.schema)).take_node()
        for data, head in zip(parts, heads, strict=True)
    ]
    node = DeltaIteration(
        id=environment.new_id(),
        name="iterate_delta",
        inputs=tuple(inputs),
        schema=heads[0].schema,
        ships=(Ship(ShipKind.HASH, key), FORWARD),
        key=key,
        solution=heads[0],
        workset=heads[1],
        delta=given[0].take_node(),
        next_workset=given[1].take_node(),
        max_iterations=max_iterations,
        aggregators=dict(aggregators),
        convergence=checked,
    )
    return DataSet(environment, node)


def delta_iteration(
    solution: DataSet,
    workset: DataSet,
    max_iterations: int,
    key: GroupKey,
    step: Callable[[DataSet, DataSet], tuple[DataSet, DataSet]],
    aggregators: Mapping[str, Any],
    convergence: tuple[str, Any] | None,
) -> DataSet:
    """See ``DataSet.iterate_delta``."""
    environment = solution.get_execution_environment()
    environment.require_same(solution, workset)
    whole("max_iterations", max_iterations, 0, None)
    schemas = [solution.schema, workset.schema]
    while True:
        heads = [
            _placeholder(data, role, schema)
            for data, role, schema in zip((solution, workset), ("solution", "workset"), schemas, strict=True)
        ]
        given: Any = step(DataSet(environment, heads[0]), DataSet(environment, heads[1]))
        if not isinstance(given, tuple) or len(given) != 2:
            message = f"the step of a delta iteration gives the delta and the next workset; got {given!r}"
            raise ProgramError(message)
        parts = (_as_data_set("the delta", given[0]), _as_data_set("the next workset", given[1]))
        fits = [
            is_same_type(data.schema, schema) or schema is None for data, schema in zip(parts, schemas, strict=True)
        ]
        if all(fits):
            fitting = (_fitting("the delta", parts[0], schemas[0]), _fitting("the next workset", parts[1], schemas[1]))
            return _delta((solution, workset), heads, fitting, key, max_iterations, aggregators, convergence)
        schemas = [schema if fit else None for schema, fit in zip(schemas, fits, strict=True)]
