"""What a function of a data set may know while it runs: its place, broadcast sets, cached files, accumulators, the
superstep and the aggregators of the iteration it is in.

`TaskContext` is made by an executor for one node and subtask; it is plain data and can be sent to another process. A
rich function (one with ``open``) meets it as `DataSetRuntimeContext`.

Source: Flink's ``RuntimeContext``, ``IterationRuntimeContext``, ``DistributedCache``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from ..errors import ProgramError, StateAccessError
from ..functions.accumulators import Accumulator, Accumulators
from ..functions.runtime_context import RuntimeContext
from ..kernel.metrics import MetricGroup
from .wire_records import rows_of_table

__all__ = ["DataSetRuntimeContext", "DistributedCache", "Superstep", "TaskContext"]


@dataclass(slots=True)
class Superstep:
    """Where an iteration is.

    Attributes:
        number: From 1.
        aggregators: This subtask's own, empty at the start of the superstep; the executor merges them at its end.
        previous: What each aggregator came to in the superstep before; empty in the first.
    """

    number: int
    aggregators: dict[str, Accumulator] = field(default_factory=dict)
    previous: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TaskContext:
    """The place and surroundings of one subtask of one node.

    Attributes:
        name: The node's name.
        operator: A text that is unique to the node.
        subtask: From 0.
        parallelism: How many subtasks there are.
        job: The job's id.
        broadcasts: Wire tables by name, each with the schema of its records.
        cached_files: Local paths by name.
        superstep: Where the innermost iteration is; None outside of one.
        accumulators: What functions count; the executor asks them for a ``report`` when the subtask is done.
        metrics: Of the subtask.
    """

    name: str
    operator: str = ""
    subtask: int = 0
    parallelism: int = 1
    job: str = ""
    broadcasts: Mapping[str, tuple[pa.Table, pa.Schema | None]] = field(default_factory=dict)
    cached_files: Mapping[str, str] = field(default_factory=dict)
    superstep: Superstep | None = None
    accumulators: Accumulators = field(default_factory=Accumulators)
    metrics: MetricGroup = field(default_factory=MetricGroup)

    @property
    def attempt(self) -> str:
        """A data set is begun once."""
        return "0.0"

    @property
    def max_parallelism(self) -> int:
        """As ``parallelism``: a data set has no key groups."""
        return self.parallelism


class DistributedCache:
    """The files that the program registered, on this machine."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def get_file(self, name: str) -> str:
        """Return the local path of a file.

        Raises:
            ProgramError: If none of that name was registered.
        """
        path = self._paths.get(name)
        if path is None:
            message = f"there is no cached file {name!r}; there are {sorted(self._paths)}"
            raise ProgramError(message, hint="register it with env.register_cached_file(path, name)")
        return path


class DataSetRuntimeContext(RuntimeContext):
    """What ``open`` of a function of a data set is given."""

    __slots__ = ("_broadcasts", "_task")

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self._task = task
        # What has been decoded, by name.
        self._broadcasts: dict[str, list[Any]] = {}

    def get_broadcast_variable(self, name: str) -> list[Any]:
        """Return all records of a data set that ``with_broadcast_set`` gave to this operator, in any order.

        Raises:
            ProgramError: If there is none of that name.
        """
        if name not in self._broadcasts:
            if name not in self._task.broadcasts:
                message = f"there is no broadcast variable {name!r}; there are {sorted(self._task.broadcasts)}"
                raise ProgramError(
                    message, operator=self._task.name, hint=f"call .with_broadcast_set(data_set, {name!r})"
                )
            self._broadcasts[name] = rows_of_table(*self._task.broadcasts[name])
        return self._broadcasts[name]

    def has_broadcast_variable(self, name: str) -> bool:
        """Return whether there is one of that name."""
        return name in self._task.broadcasts

    def get_distributed_cache(self) -> DistributedCache:
        """Return the files that the program registered."""
        return DistributedCache(self._task.cached_files)

    def get_superstep_number(self) -> int:
        """Return the superstep of the iteration that the function is in, from 1.

        Raises:
            StateAccessError: If it is in none.
        """
        return self._superstep().number

    def get_iteration_aggregator(self, name: str) -> Accumulator:
        """Return this subtask's share of an aggregator of the iteration; ``add`` to it.

        Raises:
            StateAccessError: If the function is in no iteration.
            ProgramError: If the iteration has no aggregator of that name.
        """
        found = self._superstep().aggregators.get(name)
        if found is None:
            message = f"the iteration has no aggregator {name!r}; it has {sorted(self._superstep().aggregators)}"
            raise ProgramError(message, operator=self._task.name, hint="call register_aggregator on the iteration")
        return found

    def get_previous_iteration_aggregate(self, name: str) -> Any:
        """Return what all subtasks' shares came to in the superstep before; None in the first one.

        Raises:
            StateAccessError: If the function is in no iteration.
        """
        return self._superstep().previous.get(name)

    def _superstep(self) -> Superstep:
        if self._task.superstep is None:
            message = "supersteps and their aggregators exist only inside an iteration"
            raise StateAccessError(message, operator=self._task.name)
        return self._task.superstep

    def _state_of_key(self, descriptor: Any, kind: Any) -> NoReturn:
        message = "a function of a data set has no keyed state; it sees a whole group at once"
        raise StateAccessError(message, operator=self._task.name)
