"""Which tasks get a tuple: chosen where it is emitted, as the emitter may ask for the tasks' numbers.

On its way to a bolt a tuple is a record `Sent`, which names the task that it goes to; the exchange between two
components only follows that. A component has one exchange to each bolt that takes something of it.

Source: Storm's ``GrouperFactory``, ``PartialKeyGrouping``, ``Task.getOutgoingTasks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ProgramError
from headrace.engine.functions.operator import Output
from headrace.state.keys.hashing import hash_key

from ..stream.data_stream import DataStream
from .layout import Grouping, Layout, Subscription

__all__ = ["Emission", "Router", "Sent", "emit_all", "sent_to", "taken_tag"]

Choice = Callable[[Sequence[Any]], Sequence[int]]
"""From a tuple's values to the places, among a bolt's tasks, of those that get it."""


class Sent(NamedTuple):
    """A tuple on its way to a task."""

    task: int
    """That has emitted it."""
    stream: str
    values: tuple[Any, ...]
    is_tracked: bool
    """Whether it is to be acknowledged: it was made from a message with an id, or from a stream that is read again."""
    target: int
    """Which of the bolt's tasks gets it, from 0."""


class Emission(NamedTuple):
    """A tuple as it was emitted."""

    task: int
    stream: str
    values: tuple[Any, ...]
    is_tracked: bool
    targets: tuple[tuple[str, int], ...]
    """The bolts that get it, and which of their tasks."""


class Router:
    """Chooses the tasks for the tuples of one task.

    Args:
        layout: The topology.
        component: Whose task it is.
        index: Which of its tasks, from 0.
        place: In which slot it runs, from 0: tasks of that place are its neighbours.
    """

    def __init__(self, layout: Layout, component: str, index: int, place: int) -> None:
        self._layout = layout
        self._component = component
        self.task = layout.task(component, index)
        self._choices: dict[str, list[tuple[Subscription, Choice]]] = {}
        for stream in layout.components[component].streams:
            self._choices[stream] = [
                (one, self._choice_of(one, index, place)) for one in layout.consumers_of(component, stream)
            ]

    def _choice_of(self, one: Subscription, index: int, place: int) -> Choice:
        num_tasks = self._layout.components[one.consumer].num_tasks
        key_of = _KeyOf(one, self._layout.stream(one.source, one.stream).fields)
        return _choice(one.grouping, num_tasks, key_of, index, place)

    def route(self, stream: str, values: Iterable[Any], *, is_tracked: bool, direct: int | None = None) -> Emission:
        """Choose who gets a tuple.

        Args:
            stream: The stream that it is emitted to.
            values: Its values.
            is_tracked: Whether it is to be acknowledged.
            direct: The number of the task that gets it; None for what the groupings say.

        Raises:
            ProgramError: If the stream is not declared, the tuple has another number of fields, or the task does not
                take it.
        """
        values = tuple(values)
        declared = self._layout.stream(self._component, stream)
        if len(values) != len(declared.fields):
            message = f"a tuple of stream {stream!r} has {len(declared.fields)} fields; {len(values)} values were given"
            raise ProgramError(message, hint=f"its fields are: {', '.join(declared.fields)}")
        targets: list[tuple[str, int]] = []
        if direct is not None:
            targets.append(self._directly(stream, direct))
        elif declared.direct:
            message = f"stream {stream!r} is direct: its tuples must name their task"
            raise ProgramError(message)
        else:
            for one, choose in self._choices[stream]:
                targets += [(one.consumer, target) for target in choose(values)]
        return Emission(self.task, stream, values, is_tracked and self._layout.tracks, tuple(targets))

    def _directly(self, stream: str, task: int) -> tuple[str, int]:
        owner = self._layout.owner_of(task)
        takers = {one.consumer for one, _ in self._choices[stream] if one.grouping.kind == "DIRECT"}
        if owner is None or owner[0] not in takers:
            message = f"task {task} does not take stream {stream!r} directly"
            raise ProgramError(message, hint="the bolt needs direct_grouping on a stream that is declared direct")
        return owner

    def task_ids(self, emission: Emission) -> list[int]:
        """Return the numbers of the tasks that get a tuple."""
        return [self._layout.task(consumer, target) for consumer, target in emission.targets]


class _KeyOf:
    """Finds what a stream is grouped by."""

    def __init__(self, one: Subscription, fields: tuple[str, ...]) -> None:
        self._one = one
        self._places = [fields.index(name) for name in one.grouping.fields]

    def __call__(self, values: Sequence[Any]) -> Any:
        try:
            key = tuple(_hashable(values[place]) for place in self._places)
            hash(key)
        except TypeError as error:
            one = self._one
            message = f"bolt {one.consumer!r} groups stream {one.stream!r} by {', '.join(one.grouping.fields)}; {error}"
            raise ProgramError(message) from error
        return key


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _choice(grouping: Grouping, num_tasks: int, key_of: _KeyOf, index: int, place: int) -> Choice:
    kind = grouping.kind
    if kind == "FIELDS" and grouping.fields:
        return lambda values: (hash_key(key_of(values)) % num_tasks,)
    if kind == "ALL":
        everyone = tuple(range(num_tasks))
        return lambda _values: everyone
    if kind == "GLOBAL":
        return lambda _values: (0,)
    if kind == "DIRECT":
        return lambda _values: ()
    if kind == "LOCAL_OR_SHUFFLE" and place < num_tasks:
        return lambda _values: (place,)
    if kind == "PARTIAL_KEY":
        return _PartialKey(num_tasks, key_of)
    return _InTurn(num_tasks, index)


class _InTurn:
    """Each task in its turn; those that emit begin at different ones."""

    def __init__(self, num_tasks: int, index: int) -> None:
        self._num_tasks = num_tasks
        self._next = index % num_tasks

    def __call__(self, _values: Sequence[Any]) -> tuple[int]:
        chosen, self._next = self._next, (self._next + 1) % self._num_tasks
        return (chosen,)


class _PartialKey:
    """Of two tasks for each key the one that this task has sent less to."""

    def __init__(self, num_tasks: int, key_of: _KeyOf) -> None:
        self._num_sent = [0] * num_tasks
        self._key_of = key_of

    def __call__(self, values: Sequence[Any]) -> tuple[int]:
        key, sent = self._key_of(values), self._num_sent
        first, second = hash_key(key) % len(sent), hash_key((key, 1)) % len(sent)
        chosen = first if sent[first] <= sent[second] else second
        sent[chosen] += 1
        return (chosen,)


# ---------------------------------------------------------------------------------------------------------- exchanges
def _to_tag(consumer: str) -> str:
    return f"to {consumer}"


def taken_tag(stream: str) -> str:
    """Return the side output of a stream that the program takes out of the topology: rows by the names of its
    fields.
    """
    return f"stream {stream}"


def emit_all(layout: Layout, component: str, emissions: Iterable[Emission], output: Output) -> None:
    """Send tuples of a component on their way."""
    outputs: dict[str, list[Any]] = {}
    for task, stream, values, is_tracked, targets in emissions:
        for consumer, target in targets:
            outputs.setdefault(_to_tag(consumer), []).append(Sent(task, stream, values, is_tracked, target))
        if (component, stream) in layout.taken:
            fields = layout.stream(component, stream).fields
            outputs.setdefault(taken_tag(stream), []).append(dict(zip(fields, values, strict=True)))
    for tag, rows in outputs.items():
        output.emit_side(tag, Batch.of_rows(rows).tangled())  # several may hold the values of one tuple


def sent_to(emitted: DataStream, consumer: str) -> DataStream:
    """Return the tuples of a component for a bolt, each on its way to its task."""
    return emitted.get_side_output(_to_tag(consumer)).partition_custom(_that_task, _TARGET)


_TARGET = itemgetter(Sent._fields.index("target"))


def _that_task(target: int, _num_tasks: int) -> int:
    return target
