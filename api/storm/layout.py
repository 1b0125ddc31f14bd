"""What every task of a topology knows of it: components, their streams and who takes these, tasks and their numbers.

Tasks are numbered from 1, those of a component one after the other, components in the order of their names, as in
Storm; the numbers do not change while a topology runs.

Source: Storm's ``TopologyContext``, ``GeneralTopologyContext``, ``OutputFieldsDeclarer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.errors import ProgramError, nearest

__all__ = [
    "DEFAULT_STREAM", "SYSTEM_COMPONENT", "SYSTEM_TASK", "TICK_STREAM", "Component", "Fields", "Grouping", "Layout",
    "Stream", "Subscription", "streams_of",
]  # fmt: skip

DEFAULT_STREAM = "default"
SYSTEM_COMPONENT, SYSTEM_TASK, TICK_STREAM = "__system", -1, "__tick"
"""Where tuples come from that no component has emitted."""


class Fields(tuple[str, ...]):
    """Names of fields: ``Fields("word", "count")``."""

    __slots__ = ()

    def __new__(cls, *names: str) -> Fields:
        return super().__new__(cls, names)


@dataclass(frozen=True)
class Stream:
    """A stream that a component emits to.

    Args:
        fields: Names of the fields of its tuples, in their order.
        name: Its name.
        direct: Whether its tuples say by themselves which task gets them.

    Raises:
        ProgramError: If a name is no text or comes twice.
    """

    fields: tuple[str, ...]
    name: str = DEFAULT_STREAM
    direct: bool = False

    def __post_init__(self) -> None:
        given: Any = self.fields
        fields = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "fields", fields)
        if not all(isinstance(name, str) and name for name in (*fields, self.name)):
            message = f"a stream and its fields are named by texts that are not empty; got {self!r}"
            raise ProgramError(message)
        if len(set(fields)) < len(fields):
            message = f"a field of stream {self.name!r} is there twice: {', '.join(fields)}"
            raise ProgramError(message)


def streams_of(outputs: Any, component: str) -> dict[str, Stream]:
    """Return the streams that a component says it emits to, by name.

    Args:
        outputs: Names of fields of the default stream, or streams, or both; None for none.
        component: Its name, for errors.

    Raises:
        ProgramError: If it is something else, or a stream is there twice.
    """
    if outputs is None:
        return {}
    if isinstance(outputs, (str, Stream)):
        outputs = [outputs]
    given = list(outputs) if isinstance(outputs, Iterable) else []
    if not given or not all(isinstance(one, (str, Stream)) for one in given):
        message = f"outputs of component {component!r} must be names of fields, or streams; got {outputs!r}"
        raise ProgramError(message)
    names = tuple(one for one in given if isinstance(one, str))
    streams = [*([Stream(names)] if names else []), *(one for one in given if isinstance(one, Stream))]
    found = {stream.name: stream for stream in streams}
    if len(found) < len(streams):
        message = f"component {component!r} declares a stream twice: {', '.join(stream.name for stream in streams)}"
        raise ProgramError(message)
    return found


@dataclass(frozen=True)
class Grouping:
    """How the tuples of a stream are dealt out over the tasks of a bolt; names are those of Storm's protocol."""

    kind: str
    fields: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As the protocol tells it to programs."""
        return {"type": self.kind, "fields": list(self.fields)} if self.fields else {"type": self.kind}


@dataclass(frozen=True)
class Subscription:
    """That a bolt takes a stream of a component."""

    source: str
    stream: str
    consumer: str
    grouping: Grouping


@dataclass(frozen=True)
class Component:
    """A spout or a bolt.

    Attributes:
        name: Its id.
        streams: What it emits to, by name.
        num_tasks: How many tasks it has.
        conf: What was set for it alone.
        inputs: What it takes; a spout takes nothing.
    """

    name: str
    streams: dict[str, Stream]
    num_tasks: int
    conf: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Subscription, ...] = ()


class Layout:
    """A topology.

    Args:
        name: Its name.
        components: All of them.
        conf: What was set for all of them.
    """

    def __init__(self, name: str, components: Iterable[Component], conf: Mapping[str, Any]) -> None:
        self.name = name
        self.components = {one.name: one for one in sorted(components, key=lambda one: one.name)}
        self._conf = dict(conf)
        self._first_tasks: dict[str, int] = {}
        number = 1
        for component in self.components.values():
            self._first_tasks[component.name] = number
            number += component.num_tasks
        self._num_tasks = number - 1
        # Streams that the program takes out of the topology: (component, stream).
        self.taken: set[tuple[str, str]] = set()

    @property
    def tracks(self) -> bool:
        """Whether it is kept which tuples are acknowledged; Storm's topologies without ackers do not."""
        return self._conf.get("topology.acker.executors") != 0

    def conf_of(self, component: str) -> dict[str, Any]:
        """Return the settings that a component sees."""
        return {"topology.name": self.name, **self._conf, **self.components[component].conf}

    def number(self, component: str, key: str, default: float) -> float:
        """Return a setting that is a number.

        Raises:
            ProgramError: If it is none, or less than none.
        """
        value = self.conf_of(component).get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            message = f"{key} of component {component!r} must be a number that is not negative; got {value!r}"
            raise ProgramError(message)
        return value

    def task(self, component: str, index: int) -> int:
        """Return the number of a component's task, of the ``index``-th from 0."""
        return self._first_tasks[component] + index

    def owner_of(self, task: int) -> tuple[str, int] | None:
        """Whose a task is, and which of its tasks from 0; None if there is no such task."""
        for name, first in self._first_tasks.items():
            if first <= task < first + self.components[name].num_tasks:
                return name, task - first
        return None

    def component_of(self, task: int) -> str:
        """Whose a task is; Storm's own name for what is of no component."""
        owner = self.owner_of(task)
        return SYSTEM_COMPONENT if owner is None else owner[0]

    def consumers_of(self, component: str, stream: str) -> list[Subscription]:
        """Return the bolts that take a stream."""
        return [
            one
            for other in self.components.values()
            for one in other.inputs
            if (one.source, one.stream) == (component, stream)
        ]

    def consumers(self, component: str) -> list[str]:
        """Return the bolts that take something of a component."""
        return [
            other.name for other in self.components.values() if any(one.source == component for one in other.inputs)
        ]

    def stream(self, component: str, stream: str) -> Stream:
        """Return a stream that a component has declared.

        Raises:
            ProgramError: If it has not.
        """
        declared = self.components[component].streams
        if stream not in declared:
            message = f"component {component!r} has declared no stream {stream!r}"
            hint = nearest(stream, list(declared)) or f"its streams are: {', '.join(declared) or 'none'}"
            raise ProgramError(message, hint=hint)
        return declared[stream]

    def context_of(self, component: str, task: int) -> dict[str, Any]:
        """Return what the protocol tells a program of its place."""
        own = self.components[component]
        targets: dict[str, dict[str, Any]] = {stream: {} for stream in own.streams}
        for stream in own.streams:
            for one in self.consumers_of(component, stream):
                targets[stream][one.consumer] = one.grouping.as_json()
        groupings: dict[str, dict[str, Any]] = {}
        fields: dict[str, dict[str, Any]] = {}
        for one in own.inputs:
            groupings.setdefault(one.source, {})[one.stream] = one.grouping.as_json()
            fields.setdefault(one.source, {})[one.stream] = list(self.stream(one.source, one.stream).fields)
        return {
            "task->component": {str(number): self.component_of(number) for number in range(1, self._num_tasks + 1)},
            "taskid": task,
            "componentid": component,
            "stream->target->grouping": targets,
            "streams": list(own.streams),
            "stream->outputfields": {name: list(stream.fields) for name, stream in own.streams.items()},
            "source->stream->grouping": groupings,
            "source->stream->fields": fields,
        }
