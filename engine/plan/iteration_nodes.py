"""What a plan does again and again: a step plan between placeholders and roots, run once per superstep.

Source: Flink's ``BulkIterationBase``, ``DeltaIterationBase``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .nodes import GroupKey, Node

__all__ = [
    "BulkIteration",
    "Convergence",
    "DeltaIteration",
    "Iteration",
    "IterationInput",
    "iteration_names",
]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IterationInput(Node):
    """Stands in a step plan for what changes from superstep to superstep: no inputs, bound by the iteration's executor.

    Attributes:
        role: ``partial`` (bulk: the previous result), ``workset`` or ``solution`` (delta iteration).
    """

    role: str


@dataclass(frozen=True, eq=False)
class Convergence:
    """Ends an iteration when ``criterion(superstep, aggregate)`` is true, after a superstep (the first is 1).

    Attributes:
        aggregator: Name of the aggregator that is looked at.
        criterion: Callable, or an object with ``is_converged``.
    """

    aggregator: str
    criterion: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Iteration(Node):
    """Runs a step plan again and again, at most ``max_iterations`` times.

    Nodes of the step plan that do not depend on a placeholder are computed once. Functions know the superstep and the
    aggregators through their runtime context: what subtasks aggregate in a superstep is merged at its end and can be
    read in the next; aggregators are reset in between. An executor cuts lineage at every superstep: memory must not
    grow with their number.

    Attributes:
        max_iterations: At most so many supersteps.
        aggregators: Accumulators (never filled, only copied) by name.
        convergence: See `Convergence`; None for none.
    """

    max_iterations: int
    aggregators: Mapping[str, Any] = field(default_factory=dict)
    convergence: Convergence | None = None

    @property
    def ends_by_itself(self) -> bool:
        """Whether it is to end before its limit, so that to reach the limit means that it was cut short."""
        return self.convergence is not None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class BulkIteration(Iteration):
    """Puts its input through a step plan again and again.

    Superstep n (from 1) binds ``head`` to the result of superstep n - 1 (the input, at first) and runs ``result``. The
    iteration ends after ``max_iterations`` supersteps; or after one in which ``termination`` gave no record; or when
    ``convergence`` says so. The output is the last ``result``. With ``max_iterations`` 0 it is the input.

    Attributes:
        head: The placeholder.
        result: Root of the step plan.
        termination: Root of the termination criterion; None for none.
    """

    head: IterationInput
    result: Node
    termination: Node | None = None

    @property
    def ends_by_itself(self) -> bool:
        return self.convergence is not None or self.termination is not None

    @property
    def placeholders(self) -> tuple[IterationInput, ...]:
        """The head."""
        return (self.head,)

    @property
    def step_roots(self) -> tuple[Node, ...]:
        """The result, and the termination criterion if there is one."""
        return (self.result,) if self.termination is None else (self.result, self.termination)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DeltaIteration(Iteration):
    """Keeps a solution set, one record per key, and changes it from superstep to superstep.

    Inputs: the initial solution set and the initial workset. A superstep binds ``solution`` and ``workset``, runs
    ``delta`` and ``next_workset``, then puts the records of ``delta`` into the solution set, replacing those with the
    same key. The iteration ends when the workset is empty, after ``max_iterations`` supersteps, or by ``convergence``.
    The output is the solution set. Two different records of one key, in a delta or in the initial solution set, are
    refused: which of them would stay depended on where they lie.

    A join or co-group of something with ``solution`` by the iteration's own key is a look-up in the solution set's
    index: only keys that the other side has are visited (inner join, or outer on the other side).

    Attributes:
        key: Of the solution set.
        solution: The placeholder of the solution set.
        workset: The placeholder of the workset.
        delta: Root of what changes the solution set; of the solution set's type.
        next_workset: Root of the next workset; of the workset's type.
    """

    key: GroupKey
    solution: IterationInput
    workset: IterationInput
    delta: Node
    next_workset: Node

    @property
    def ends_by_itself(self) -> bool:
        return True

    @property
    def placeholders(self) -> tuple[IterationInput, ...]:
        """Solution set and workset."""
        return (self.solution, self.workset)

    @property
    def step_roots(self) -> tuple[Node, ...]:
        """Of what changes the solution set, and of the next workset."""
        return (self.delta, self.next_workset)


def iteration_names(nodes: Iterable[Node]) -> dict[int, str]:
    """Return what statistics call the iterations of a plan, by id: their names, the second of a name ``name (2)``, and
    so on.

    Args:
        nodes: All nodes of the plan, parents first.
    """
    names: dict[int, str] = {}
    for node in nodes:
        if not isinstance(node, Iteration) or node.id in names:
            continue
        name, number = node.name, 1
        while name in names.values():
            number += 1
            name = f"{node.name} ({number})"
        names[node.id] = name
    return names
