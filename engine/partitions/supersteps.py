"""Iterations of the reference executor: superstep after superstep, with all that is alive between two of them in hand.

What a superstep leaves is a `Progress`: enough to go on with, here or elsewhere. So an executor of large data may have
an iteration run here as long as it is small, and take over between two supersteps when it has grown.

Source: Flink's ``IterationHeadTask``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..functions.accumulators import AccumulatorPart
from ..functions.user_function import raise_in_function
from ..plan.plan import (
    BulkIteration,
    Convergence,
    DeltaIteration,
    Iteration,
    Node,
    Ship,
    ShipKind,
    dependents_on,
)
from .context import TaskContext
from .scopes import Partitions, Scope
from .shipping import shipped_to
from .solution import SolutionSet
from .spilling import Memory

__all__ = ["Progress", "bulk", "delta", "has_converged", "told_of"]


class PlanRun(Protocol):
    """What an iteration needs of the run that it is part of; `headrace.engine.partitions.in_process.Run` has it.

    Attributes:
        parallelism: Partitions of whatever does not say.
        reports: What subtasks have counted so far.
        iterations: What is told of iterations in the end, by name.
        iteration_names: Their names, by id.
        memory: Where records are held.
    """

    parallelism: int
    reports: list[dict[str, AccumulatorPart]]
    iterations: dict[str, Any]
    iteration_names: dict[int, str]
    memory: Memory

    def get(self, node: Node, scope: Scope) -> Partitions:
        """Return the result of a node, computed now or before."""
        ...


def _nothing(_superstep: int, _size: int) -> None:
    """Ignore progress."""


@dataclass
class Progress:
    """How far an iteration is, between two supersteps.

    Attributes:
        superstep: The last one that has ended; 0 before the first.
        aggregates: What its aggregators came to.
        sizes: What is told of each superstep so far, by name.
        partial: Of a bulk iteration: the last result.
        solution: Of a delta iteration: the solution set.
        workset: Of a delta iteration: the next workset.
        num_reports: How many reports of subtasks belong to supersteps that have ended.
        begins: Called with the number of each superstep and the size of its input, before it.
    """

    superstep: int = 0
    aggregates: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    partial: Partitions | None = None
    solution: list[SolutionSet] | None = None
    workset: Partitions | None = None
    num_reports: int = 0
    begins: Callable[[int, int], None] = _nothing

    def note(self, **sizes: int) -> None:
        """Tell something of the superstep that has ended."""
        for name, size in sizes.items():
            self.sizes.setdefault(name, []).append(size)


def bulk(run: PlanRun, node: BulkIteration, scope: Scope, progress: Progress) -> Partitions:
    """Return the result of a bulk iteration."""
    roots = (node.result, *(() if node.termination is None else (node.termination,)))
    inner = scope.for_supersteps(dependents_on((node.head,), *roots), node.aggregators)
    progress.partial = scope.home_of(node.inputs[0]).results[node.inputs[0].id]
    progress.sizes.setdefault("result_sizes", [])
    has_ended = False
    while inner.superstep < node.max_iterations and not has_ended:
        progress.begins(inner.superstep + 1, _size(progress.partial))
        inner.begin_superstep({node.head.id: progress.partial})
        partial = run.get(node.result, inner)
        has_ended = node.termination is not None and not _size(run.get(node.termination, inner))
        inner.end_superstep()
        progress.partial = partial
        _ended(run, inner, progress)
        progress.note(result_sizes=_size(partial))
        has_ended |= has_converged(node.convergence, inner.superstep, inner.previous, node.name)
    run.iterations[run.iteration_names[node.id]] = told_of(node, progress, has_ended=has_ended)
    return progress.partial


def delta(run: PlanRun, node: DeltaIteration, scope: Scope, progress: Progress) -> Partitions:
    """Return the solution set of a delta iteration, in the end."""
    schema = node.inputs[0].schema
    count = node.parallelism or run.parallelism
    by_key = Ship(ShipKind.HASH, node.key)
    initial, progress.workset = (scope.home_of(parent).results[parent.id] for parent in node.inputs)
    parts = [SolutionSet(node.key, schema) for _ in range(count)]
    shipped = shipped_to(by_key, initial, schema, count, node.name, run.memory)
    _update(parts, shipped, "initial solution set", node.name)
    progress.solution = parts
    inner = scope.for_supersteps(
        dependents_on((node.solution, node.workset), node.delta, node.next_workset), node.aggregators
    )
    inner.delta = (node, parts)
    progress.sizes.update(workset_sizes=[], delta_sizes=[])
    is_converged = False
    while inner.superstep < node.max_iterations and not is_converged:
        size = _size(progress.workset)
        if not size:
            break
        progress.begins(inner.superstep + 1, size)
        inner.begin_superstep({node.workset.id: progress.workset})
        changes = run.get(node.delta, inner)
        workset = run.get(node.next_workset, inner)
        inner.end_superstep()
        shipped = shipped_to(by_key, changes, schema, count, node.name, run.memory)
        _update(parts, shipped, "delta", node.name, inner.superstep)
        progress.workset = workset
        _ended(run, inner, progress)
        progress.note(workset_sizes=size, delta_sizes=_size(changes))
        is_converged = has_converged(node.convergence, inner.superstep, inner.previous, node.name)
    has_ended = is_converged or not _size(progress.workset)
    run.iterations[run.iteration_names[node.id]] = told_of(node, progress, has_ended=has_ended)
    return [list(part.batches()) for part in parts]


def _ended(run: PlanRun, inner: Scope, progress: Progress) -> None:
    progress.superstep = inner.superstep
    progress.aggregates = inner.previous
    progress.num_reports = len(run.reports)


def _update(
    parts: list[SolutionSet], changes: Partitions, what: str, operator: str, superstep: int | None = None
) -> None:
    for part, batches in zip(parts, changes, strict=True):
        part.update(batches, what, operator, superstep)


def _size(partitions: Partitions) -> int:
    return sum(batch.num_rows for partition in partitions for batch in partition)


def has_converged(convergence: Convergence | None, superstep: int, aggregates: dict[str, Any], operator: str) -> bool:
    """Return what the convergence criterion says after a superstep; False if there is none.

    Raises:
        UserFunctionError: If it raises.
    """
    if convergence is None:
        return False
    criterion = getattr(convergence.criterion, "is_converged", convergence.criterion)
    try:
        return bool(criterion(superstep, aggregates.get(convergence.aggregator)))
    except BaseException as error:
        name = getattr(criterion, "__qualname__", repr(criterion))
        raise_in_function(error, name, TaskContext(operator))


def told_of(node: Iteration, progress: Progress, *, has_ended: bool) -> dict[str, Any]:
    """Return what statistics tell of an iteration.

    Args:
        node: The iteration.
        progress: How far it came.
        has_ended: Whether it ended by itself, and not by the limit of its supersteps.
    """
    told: dict[str, Any] = {"supersteps": progress.superstep, **progress.sizes}
    if node.ends_by_itself:
        told["is_converged"] = has_ended
    if node.aggregators:
        told["aggregates"] = dict(progress.aggregates)
    return told
