"""Where results of nodes live while a plan runs in this process: for the job, or for one superstep of an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.state.reading.program_pickles import dump_program, load_program

from ..functions.accumulators import Accumulator
from ..plan.plan import DeltaIteration, Node
from .context import Superstep
from .solution import SolutionSet

__all__ = ["Partition", "Partitions", "Scope", "copied"]

Partition = list[pa.RecordBatch]
Partitions = list[Partition]


class Scope:
    """Where results live: the job, or one superstep of an iteration."""

    def __init__(
        self,
        parent: Scope | None = None,
        changing: set[int] | None = None,
        aggregators: Mapping[str, Any] | None = None,
    ) -> None:
        self.parent = parent
        # Ids of the nodes whose results belong to the superstep; None in the job's scope, where all others belong.
        self.changing = changing
        # By the id of the node.
        self.results: dict[int, Partitions] = {}
        # Templates of aggregators, what they came to in the last superstep, and this superstep's shares.
        self.templates = dict(aggregators or {})
        self.previous: dict[str, Any] = {}
        self.shares: list[dict[str, Accumulator]] = []
        self.superstep = 0
        # Of a delta iteration: the iteration and its solution set.
        self.delta: tuple[DeltaIteration, list[SolutionSet]] | None = None

    def for_supersteps(self, changing: set[int], aggregators: Mapping[str, Any]) -> Scope:
        """Return the scope of an iteration in this one."""
        return Scope(self, changing, aggregators)

    def home_of(self, node: Node) -> Scope:
        """Return where the result of a node belongs."""
        scope = self
        while scope.parent is not None and scope.changing is not None and node.id not in scope.changing:
            scope = scope.parent
        return scope

    def begin_superstep(self, bindings: dict[int, Partitions]) -> None:
        """Forget the superstep before; placeholders stand for something else."""
        self.superstep += 1
        self.results = dict(bindings)
        self.shares = []

    def end_superstep(self) -> None:
        """Let go of its results and put the shares of aggregators together."""
        self.results = {}
        merged: dict[str, Any] = {}
        for name, template in self.templates.items():
            total = copied(template)
            for share in self.shares:
                total.merge(share[name])
            merged[name] = total.get_local_value()
        self.previous = merged
        self.shares = []

    def context(self) -> Superstep | None:
        """For a function that runs in this scope."""
        if self.parent is None:
            return None
        share = {name: copied(template) for name, template in self.templates.items()}
        self.shares.append(share)
        return Superstep(self.superstep, share, self.previous)


def copied(value: Any) -> Any:
    """Return a copy of something that a program has handed in, as another process would have it."""
    return load_program(dump_program(value))
