"""Several built-in aggregates at once on the row path, as one aggregate function of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa

from headrace.state.errors import ProgramError
from headrace.state.reading.read_limits import number_in
from headrace.state.values.sharing import types_of

from ...columns.expressions import Expression, col
from ..contract import AggregateFunction
from .contract import Aggregate, checked_aggregates

__all__ = ["RowAggregates"]


class RowAggregates(AggregateFunction):
    """Several aggregates as one function for the row path, with the methods of an ``AggregateFunction``.

    Records are dicts (or tuples with fields ``f0``, ``f1`` ..., or plain values with the one field ``value``); the
    result is a dict by the names given. Arguments that are plain columns cost a look-up per record; any other
    expression is evaluated for each record on its own, which is slow: compute it as a column first
    (`headrace.engine.operators.column_operators.SelectColumns`).

    Args:
        specifications: The aggregates by the name of their result.

    Raises:
        ProgramError: If there is none.
    """

    def __init__(self, specifications: Mapping[str, Aggregate]) -> None:
        self.specifications = checked_aggregates(specifications)
        self._steps: list[tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RowAggregates, (self.specifications,)

    def __repr__(self) -> str:
        return f"RowAggregates({', '.join(f'{name}={spec!r}' for name, spec in self.specifications.items())})"

    @property
    def is_mergeable(self) -> bool:
        """Whether it makes no difference in which groups records come."""
        return all(spec.is_mergeable for spec in self.specifications.values())

    def create_accumulator(self) -> tuple[Any, ...]:
        """Return the accumulators of no records."""
        return tuple(spec.create() for spec in self.specifications.values())

    def add(self, value: Any, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the accumulators with one more record.

        Raises:
            ProgramError: If the record lacks a field.
        """
        steps = self._steps
        if steps is None:
            steps = self._steps = [(spec.add, _getter(spec.argument)) for spec in self.specifications.values()]
        return tuple([add(old, get(value)) for (add, get), old in zip(steps, accumulator, strict=True)])

    def add_all(self, values: Sequence[Any], accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the accumulators with more records, in their order; a field of all of them at a time.

        Raises:
            ProgramError: If a record lacks a field.
        """
        specs = self.specifications.values()
        found = [values if spec.argument is None else _all_of(spec.argument, values) for spec in specs]
        return tuple([spec.add_all(old, of) for spec, old, of in zip(specs, accumulator, found, strict=True)])

    def merge(self, acc_a: tuple[Any, ...], acc_b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return one of two; the records of ``acc_b`` came later."""
        specs = self.specifications.values()
        return tuple([spec.merge(a, b) for spec, a, b in zip(specs, acc_a, acc_b, strict=True)])

    def get_result(self, accumulator: tuple[Any, ...]) -> dict[str, Any]:
        """Return the results by name."""
        return {
            name: spec.result(value)
            for (name, spec), value in zip(self.specifications.items(), accumulator, strict=True)
        }


def _getter(argument: Expression | None) -> Callable[[Any], Any]:
    if argument is None:
        return lambda _record: None
    structure = argument.structure
    if structure[0] != "col":
        return _evaluating(argument)
    name: str = structure[1]
    number = number_in(name[1:]) if name[:1] == "f" else None
    place = -1 if number is None else number

    def get(record: Any) -> Any:
        if isinstance(record, dict):
            try:
                return record[name]
            except KeyError:
                fields = ", ".join(repr(field) for field in record)
                message = f"field {name!r} does not exist; the record's fields are {fields or 'none'}"
                raise ProgramError(message) from None
        if isinstance(record, tuple) and 0 <= place < len(record):
            return record[place]
        if is_dataclass(record) and hasattr(record, name):
            return getattr(record, name)
        if name == "value" and not isinstance(record, tuple):
            return record
        message = f"field {name!r} does not exist in a record of type {type(record).__name__}"
        raise ProgramError(message)

    return get


def _all_of(argument: Expression, records: Sequence[Any]) -> list[Any]:
    """What an argument is for each of several records."""
    structure, kinds = argument.structure, types_of(records)
    if structure[0] == "col" and kinds == {dict}:
        try:
            return list(map(itemgetter(structure[1]), records))
        except KeyError:
            pass  # told below, with the record's fields
    return list(map(_getter(argument), records))


def _evaluating(argument: Expression) -> Callable[[Any], Any]:
    names = sorted(argument.columns_used())
    getters = [_getter(col(name)) for name in names]

    def get(record: Any) -> Any:
        values = [pa.array([getter(record)]) for getter in getters] or [pa.nulls(1)]
        return argument.evaluate(pa.RecordBatch.from_arrays(values, names=names or [""]))[0].as_py()

    return get
