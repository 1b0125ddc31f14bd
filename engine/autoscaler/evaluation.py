"""What a job's vertices can do and what they are asked to do, and how many slots that takes.

Of each vertex is measured what a record costs: the time in which its tasks were busy, by the records that they took in.
One over that is its true processing rate, at which one task would run that is always busy. What is asked of a source is
what arrives: what it has read, and by how much its backlog has grown. What is asked of the others follows from the
sources, along the graph, by the measured ratio of records in to records in.

A slot's load is the sum of the shares of its time that its tasks are asked for. It may not be all of a slot's time that
tasks can have: messages take some, and what is measured as busy may be too little. So where a job has work that waits
and yet is less than fully busy, what its fullest slot was busy is all that there is, and counts as full.

Source: FLIP-271; ``ScalingMetricEvaluator`` and ``JobVertexScaler`` of Flink's Kubernetes operator, where each vertex
is scaled by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.state.identifiers import VertexId

from ..kernel.autoscaler_settings import AutoscalerSettings
from .topology import Group, Topology

__all__ = ["Evaluation", "Observation", "VertexEvaluation", "VertexTotals", "evaluate", "load", "slots_for"]

MIN_USABLE = 0.05
"""However little a job was busy when it was held up, its slots are not taken to have less than this to give."""

HELD_UP = 0.1
"""A source that waits for credit for this share of its time gives less than there is."""


@dataclass(frozen=True, slots=True)
class VertexTotals:
    """What the tasks of a vertex have done since they were deployed, in all.

    Attributes:
        num_tasks: How many there are.
        records_in: Records taken in; of a source, read.
        busy_ms: Time in steps.
        backpressured_ms: Time in which they waited for credit.
        elapsed_ms: Time since their deployment.
        pending_records: Of a source: records that are there and not read yet; None if it does not know.
    """

    num_tasks: int
    records_in: float
    busy_ms: float
    backpressured_ms: float
    elapsed_ms: float
    pending_records: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What all vertices had done at one moment."""

    at_ms: int
    vertices: Mapping[VertexId, VertexTotals]


@dataclass(frozen=True, slots=True)
class VertexEvaluation:
    """One vertex over a window. Rates are records a second, of all its tasks together.

    Attributes:
        parallelism: How many tasks it has.
        rate: What it has taken in.
        target_rate: What it is asked for.
        catch_up_rate: What it is asked for beside that, to work off the backlog.
        restart_rate: The same for what a restart adds to the backlog.
        true_rate: What one task could take in that is always busy; None if it was not busy.
        busy: Share of their time that its tasks were busy, 0 to 1.
        backlog: Of a source; None if it does not know.
    """

    parallelism: int
    rate: float
    target_rate: float
    catch_up_rate: float
    restart_rate: float
    true_rate: float | None
    busy: float
    backlog: float | None = None

    def work(self, utilization: float, *, with_restart: bool) -> float:
        """Return how many tasks it would keep busy, if they are to be so for this share of their time."""
        if self.true_rate is None:  # busy with timers, maybe, without a record
            return self.busy * self.parallelism / utilization
        asked = self.target_rate / utilization + self.catch_up_rate
        return (asked + (self.restart_rate if with_restart else 0.0)) / self.true_rate

    def as_numbers(self) -> dict[str, float]:
        """For the record of a decision, by the names of Flink's metrics in snake_case."""
        numbers = {
            "parallelism": float(self.parallelism),
            "rate": self.rate,
            "target_data_rate": self.target_rate,
            "catch_up_data_rate": self.catch_up_rate,
            "busy": self.busy,
        }
        if self.true_rate is not None:
            numbers["true_processing_rate"] = self.true_rate * self.parallelism
        if self.backlog is not None:
            numbers["lag"] = self.backlog
        return {name: round(value, 3) for name, value in numbers.items()}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A job over a window.

    Attributes:
        vertices: All of them.
        is_held_up: Whether work waits, so that the job runs as fast as it can.
        usable: By group, the share of a slot's time that tasks can have: below 1 only where work waits.
    """

    vertices: Mapping[VertexId, VertexEvaluation]
    is_held_up: bool
    usable: Mapping[str, float]


def evaluate(
    topology: Topology, first: Observation, last: Observation, settings: AutoscalerSettings
) -> Evaluation | None:
    """Compare two observations of one deployment; None if they say nothing, as some task has not run in between."""
    measured: dict[VertexId, VertexEvaluation] = {}
    is_held_up = False
    for vertex, inputs in topology.inputs.items():
        before, after = first.vertices.get(vertex), last.vertices.get(vertex)
        if before is None or after is None or after.elapsed_ms <= before.elapsed_ms:
            return None
        elapsed_ms = (after.elapsed_ms - before.elapsed_ms) / after.num_tasks
        records = max(after.records_in - before.records_in, 0.0)
        busy_ms = max(after.busy_ms - before.busy_ms, 0.0)
        rate = 1_000 * records / elapsed_ms
        asked = _arriving(before, after, rate, last.at_ms - first.at_ms, settings)
        if inputs:
            asked = _propagated([measured[one] for one in inputs], rate)
        elif _is_held_up(before, after, rate, settings):
            is_held_up = True
        measured[vertex] = VertexEvaluation(
            after.num_tasks,
            rate,
            *asked,
            true_rate=1_000 * records / busy_ms if busy_ms and records else None,
            busy=min(busy_ms / (elapsed_ms * after.num_tasks), 1.0),
            backlog=None if inputs else after.pending_records,
        )
    return Evaluation(measured, is_held_up, _usable(topology, measured, is_held_up=is_held_up))


def _arriving(
    before: VertexTotals, after: VertexTotals, rate: float, window_ms: int, settings: AutoscalerSettings
) -> tuple[float, float, float]:
    """What is asked of a source: what arrives, what works off its backlog, and what a restart adds."""
    catch_up_ms = settings.catch_up_duration_ms
    target, catch_up = rate, 0.0
    if before.pending_records is not None and after.pending_records is not None and window_ms > 0:
        target = max(rate + 1_000 * (after.pending_records - before.pending_records) / window_ms, 0.0)
        catch_up = 1_000 * after.pending_records / catch_up_ms if catch_up_ms else 0.0
    return target, catch_up, target * settings.restart_time_ms / catch_up_ms if catch_up_ms else 0.0


def _is_held_up(before: VertexTotals, after: VertexTotals, rate: float, settings: AutoscalerSettings) -> bool:
    """Whether a source had more to give, all the time."""
    waited_ms = after.backpressured_ms - before.backpressured_ms
    if waited_ms >= HELD_UP * (after.elapsed_ms - before.elapsed_ms):
        return True
    least = min(before.pending_records or 0.0, after.pending_records or 0.0)
    return least > 0 and 1_000 * least > rate * settings.lag_threshold_ms


def _propagated(inputs: list[VertexEvaluation], rate: float) -> tuple[float, float, float]:
    """What is asked of a vertex, as its inputs are asked for more or less than they give.

    Of several inputs each is taken to have given a part of what came in as large as its part of what they took in.
    """
    given = sum(one.rate for one in inputs)
    if given <= 0:
        return rate, 0.0, 0.0
    ratio = rate / given
    return (
        ratio * sum(one.target_rate for one in inputs),
        ratio * sum(one.catch_up_rate for one in inputs),
        ratio * sum(one.restart_rate for one in inputs),
    )


def _usable(topology: Topology, measured: Mapping[VertexId, VertexEvaluation], *, is_held_up: bool) -> dict[str, float]:
    """By group; where work waits the fullest slot of all is what holds it up, and cannot give more than it has."""
    widths = {vertex: one.parallelism for vertex, one in measured.items()}
    busy_tasks = {vertex: one.busy * one.parallelism for vertex, one in measured.items()}
    busiest = {group.name: max(_slot_loads(group, widths, busy_tasks)) for group in topology.groups}
    fullest = max(busiest, key=busiest.__getitem__, default="")
    return {
        name: min(max(busy, MIN_USABLE), 1.0) if is_held_up and name == fullest else 1.0
        for name, busy in busiest.items()
    }


def _slot_loads(group: Group, parallelism: Mapping[VertexId, int], work: Mapping[VertexId, float]) -> list[float]:
    """The load of each slot of a group, if tasks share their vertex's work evenly; laid out as tasks are."""
    size = max(parallelism[vertex] for vertex in group.vertices)
    slots = [0.0] * size
    for vertex in group.vertices:
        width = parallelism[vertex]
        for subtask in range(width):
            slots[subtask * size // width] += work[vertex] / width
    return slots


def load(
    evaluation: Evaluation,
    group: Group,
    parallelism: Mapping[VertexId, int],
    utilization: float,
    *,
    with_restart: bool,
    only_free: bool = False,
) -> float:
    """Return what is asked of a group's fullest slot at a parallelism, by what it has to give: above 1 it is too much.

    Args:
        evaluation: What was measured.
        group: The group.
        parallelism: Of its vertices.
        utilization: The share of their time that tasks are to be busy.
        with_restart: Whether the backlog grows by a restart.
        only_free: Whether the work of vertices that are left as they are is not counted.
    """
    work = {
        vertex: 0.0
        if only_free and unit.is_fixed
        else evaluation.vertices[vertex].work(utilization, with_restart=with_restart)
        for unit in group.units
        for vertex in unit.members
    }
    return max(_slot_loads(group, parallelism, work)) / evaluation.usable[group.name]


def slots_for(evaluation: Evaluation, group: Group, utilization: float) -> int:
    """Return the least number of slots with which none is asked for too much; the largest useful one if there is none.

    A slot is never relieved of a vertex that is left as it is, a source that cannot be split as a rule. So what may be
    scaled gets no more than twice the slots that it would need by itself, however full such a vertex makes its slot.
    """
    by_itself = _least_slots(evaluation, group, utilization, only_free=True)
    return min(_least_slots(evaluation, group, utilization, only_free=False), 2 * by_itself)


def _least_slots(evaluation: Evaluation, group: Group, utilization: float, *, only_free: bool) -> int:
    for number in range(group.low, group.high):
        at = group.at(number)
        if load(evaluation, group, at, utilization, with_restart=True, only_free=only_free) <= 1.0:
            return number
    return group.high
