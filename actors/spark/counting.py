"""What subtasks count, on its way to the driver: a Spark accumulator whose value is a dictionary.

Keys say what was counted where (kind, node, subtask, superstep), so a subtask that runs twice, because an executor was
lost or a stage was computed again, replaces what it said before.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.engine.functions.accumulators import AccumulatorPart, merged_parts
from headrace.state.reading.program_pickles import load_program

__all__ = ["accumulators_in", "aggregates_in", "counter", "forget"]


class _NewestCounts:
    """Says how dictionaries are added up: what is added later wins. PySpark calls both, by these names.

    Source: ``pyspark.AccumulatorParam``, of which it need not be derived.
    """

    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:
        return {}

    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:
        value1.update(value2)
        return value1


def counter(context: Any) -> Any:
    """Return a new accumulator of a SparkContext."""
    return context.accumulator({}, _NewestCounts())


def forget(counted: Any) -> None:
    """Let go of an accumulator; PySpark keeps every one for the life of the process."""
    from pyspark.accumulators import _accumulatorRegistry

    _accumulatorRegistry.pop(counted.aid, None)


def accumulators_in(
    counted: Any, local: Iterable[Mapping[str, AccumulatorPart]] = ()
) -> dict[str, tuple[AccumulatorPart, ...]]:
    """Return the program's accumulators, by name.

    Args:
        counted: The accumulator.
        local: Reports of subtasks that ran in this process.
    """
    remote = (report for place, report in counted.value.items() if place[0] == "accumulators")
    return merged_parts([*remote, *local])


def aggregates_in(counted: Any, iteration: int, superstep: int, empty: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the aggregators of a superstep have come to; takes them out.

    Args:
        counted: The accumulator.
        iteration: Id of the iteration.
        superstep: Which superstep of it.
        empty: The aggregators, never filled.
    """
    totals = {name: load_program(pickle.dumps(aggregator)) for name, aggregator in empty.items()}
    places = [place for place in counted.value if place[0] == "aggregators" and place[3:] == (iteration, superstep)]
    for place in sorted(places):
        for name, part in load_program(counted.value.pop(place)).items():
            if name in totals:
                totals[name].merge(part)
    return {name: total.get_local_value() for name, total in totals.items()}
