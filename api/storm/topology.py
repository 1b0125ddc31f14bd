"""Topologies: how spouts and bolts are put together, by the names of Storm's ``TopologyBuilder``.

    builder = TopologyBuilder()
    builder.set_spout("sentences", Sentences(), 2)
    builder.set_bolt("split", ShellBolt("python3", "split.py", outputs=["word"]), 4).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), 4).fields_grouping("split", Fields("word"))
    topology = builder.create_topology(env)
    topology.stream("count").print()
    env.execute("word count")

Source: Storm's ``TopologyBuilder``, ``InputDeclarer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.engine.errors import ProgramError, nearest
from headrace.engine.functions.side_outputs import OutputTag
from headrace.state.values.durations import parse_duration_ms

from ..arguments.checks import whole
from ..stream.data_stream import DataStream
from .bolt_operator import BoltOperator, Retries
from .components import Bolt, ShellBolt, ShellSpout, Spout
from .groupings import sent_to, taken_tag
from .layout import DEFAULT_STREAM, Component, Grouping, Layout, Stream, Subscription, streams_of
from .spout_source import SpoutSource, TuplesOfRecords, TuplesOfSpout

if TYPE_CHECKING:
    from ..stream.environment import StreamExecutionEnvironment

__all__ = ["BoltDeclarer", "SpoutDeclarer", "Topology", "TopologyBuilder"]

_Declarer = TypeVar("_Declarer", bound="SpoutDeclarer")


class SpoutDeclarer:
    """What can be said of a component when it has been set."""

    def __init__(self, name: str, what: Any, streams: dict[str, Stream], num_tasks: int) -> None:
        self._name = name
        self._what = what
        self._streams = streams
        self._num_tasks = num_tasks
        self._conf: dict[str, Any] = {}
        self._inputs: dict[tuple[str, str], Subscription] = {}

    def add_configuration(self: _Declarer, key: str, value: Any) -> _Declarer:
        """Set something for this component alone, as ``topology.tick.tuple.freq.secs``."""
        self._conf[key] = value
        return self

    def add_configurations(self: _Declarer, conf: Mapping[str, Any]) -> _Declarer:
        """Set several things."""
        self._conf.update(conf)
        return self

    def set_num_tasks(self: _Declarer, value: int) -> _Declarer:
        """Set the number of tasks, which is the parallelism: each has a subtask of its own."""
        whole("the number of tasks", value, 1, None)
        self._num_tasks = value
        return self

    def set_max_spout_pending(self: _Declarer, value: int) -> _Declarer:
        """Say how many messages of a task may be emitted and not acknowledged."""
        whole("the number of messages", value, 1, None)
        return self.add_configuration("topology.max.spout.pending", value)

    def _component(self) -> Component:
        return Component(self._name, self._streams, self._num_tasks, dict(self._conf), tuple(self._inputs.values()))


class BoltDeclarer(SpoutDeclarer):
    """The same of a bolt, which also says what it takes."""

    def shuffle_grouping(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Return tuples are dealt out evenly, in turn."""
        return self._take(component_id, stream_id, Grouping("SHUFFLE"))

    def none_grouping(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Deal tuples out in any way; as `shuffle_grouping`."""
        return self._take(component_id, stream_id, Grouping("NONE"))

    def fields_grouping(self, component_id: str, *fields: Any) -> BoltDeclarer:
        """Send tuples with equal values of some fields to one task.

        Args:
            component_id: Whose.
            *fields: The fields, as ``Fields("word")``; before them a stream, if it is not the default one.
        """
        return self._take_by_fields(component_id, fields, "FIELDS")

    def partial_key_grouping(self, component_id: str, *fields: Any) -> BoltDeclarer:
        """Send tuples with equal values of some fields to one of two tasks, the one that has got less; else as
        `fields_grouping`.
        """
        return self._take_by_fields(component_id, fields, "PARTIAL_KEY")

    def all_grouping(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give each tuple to each task."""
        return self._take(component_id, stream_id, Grouping("ALL"))

    def global_grouping(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give all tuples to the first task."""
        return self._take(component_id, stream_id, Grouping("GLOBAL"))

    def direct_grouping(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Let those that emit a tuple say which task gets it; the stream must be declared direct."""
        return self._take(component_id, stream_id, Grouping("DIRECT"))

    def local_or_shuffle_grouping(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give a tuple to the task in the same slot, if there is one; else as `shuffle_grouping`."""
        return self._take(component_id, stream_id, Grouping("LOCAL_OR_SHUFFLE"))

    def custom_grouping(self, component_id: str, *_arguments: Any) -> BoltDeclarer:
        """Refuse: there are no groupings of one's own.

        Raises:
            ProgramError: Always.
        """
        message = f"bolt {self._name!r} asks for a grouping of its own on {component_id!r}; there is none"
        raise ProgramError(message, hint="declare the stream direct, and choose the task when you emit")

    def _take_by_fields(self, component_id: str, fields: tuple[Any, ...], kind: str) -> BoltDeclarer:
        stream, names = DEFAULT_STREAM, fields
        if len(fields) > 1 and isinstance(fields[0], str) and not isinstance(fields[1], str):
            stream, names = fields[0], fields[1:]
        flat = tuple(name for one in names for name in ([one] if isinstance(one, str) else one))
        if not flat:
            message = f"bolt {self._name!r} groups {component_id!r} by no field"
            raise ProgramError(message, hint='fields_grouping("split", Fields("word"))')
        return self._take(component_id, stream, Grouping(kind, flat))

    def _take(self, component_id: str, stream: str, grouping: Grouping) -> BoltDeclarer:
        if (component_id, stream) in self._inputs:
            message = f"bolt {self._name!r} takes stream {stream!r} of {component_id!r} twice"
            raise ProgramError(message)
        self._inputs[component_id, stream] = Subscription(component_id, stream, self._name, grouping)
        return self


class TopologyBuilder:
    """Gathers the components of a topology."""

    def __init__(self) -> None:
        self._spouts: dict[str, SpoutDeclarer] = {}
        self._bolts: dict[str, BoltDeclarer] = {}

    def set_spout(
        self,
        component_id: str,
        spout: Spout | ShellSpout | DataStream,
        parallelism_hint: int = 1,
        *,
        outputs: Any = None,
    ) -> SpoutDeclarer:
        """Add a spout.

        Args:
            component_id: Its name.
            spout: Of Python, an external program, or a stream: its records are tuples then, which are read again after
                a failure as the stream's source says.
            parallelism_hint: How many tasks it has.
            outputs: Names of fields, and streams, that it emits to; None for what it says itself. A stream needs the
                names of its fields.

        Raises:
            ProgramError: If there is one of that name, it is no spout, or its outputs are not declared.
        """
        streams = self._checked(component_id, spout, (Spout, ShellSpout, DataStream), "a spout", outputs)
        if isinstance(spout, DataStream) and set(streams) != {DEFAULT_STREAM}:
            message = f"spout {component_id!r} is a stream: it needs the names of its fields, and has no other streams"
            raise ProgramError(message, hint='set_spout("lines", stream, outputs=["line"])')
        whole("parallelism_hint", parallelism_hint, 1, None)
        declarer = self._spouts[component_id] = SpoutDeclarer(component_id, spout, streams, parallelism_hint)
        return declarer

    def set_bolt(
        self, component_id: str, bolt: Bolt | ShellBolt, parallelism_hint: int = 1, *, outputs: Any = None
    ) -> BoltDeclarer:
        """Add a bolt; what it takes is said of what this gives. Else as `set_spout`."""
        streams = self._checked(component_id, bolt, (Bolt, ShellBolt), "a bolt", outputs)
        whole("parallelism_hint", parallelism_hint, 1, None)
        declarer = self._bolts[component_id] = BoltDeclarer(component_id, bolt, streams, parallelism_hint)
        return declarer

    def _checked(self, name: str, what: Any, kinds: tuple[type, ...], kind: str, outputs: Any) -> dict[str, Stream]:
        if not isinstance(name, str) or not name or name.startswith("__"):
            message = f"a component is named by a text that does not begin with __; got {name!r}"
            raise ProgramError(message)
        if name in self._spouts or name in self._bolts:
            message = f"there is a component {name!r} already"
            raise ProgramError(message)
        if not isinstance(what, kinds):
            message = f"component {name!r} must be {kind}, of {', '.join(one.__name__ for one in kinds)}; got {what!r}"
            hint = f"Pass {what.__name__}()." if isinstance(what, type) and issubclass(what, kinds) else None
            raise ProgramError(message, hint=hint)
        return streams_of(getattr(what, "outputs", None) if outputs is None else outputs, name)

    def create_topology(
        self,
        env: StreamExecutionEnvironment,
        conf: Mapping[str, Any] | None = None,
        *,
        name: str = "topology",
        max_retries: int = 10,
        retry_pause: Any = "100 ms",
        max_pending: int = 5_000,
    ) -> Topology:
        """Write the topology down as a program of an environment; ``env.execute`` runs it.

        Args:
            env: Where.
            conf: Settings of Storm, which components see; those that mean something here are on the page of the guide.
            name: Of the topology; its operators' uids are made of it.
            max_retries: How often a bolt is given a tuple again that it has failed.
            retry_pause: How long after the first failure: milliseconds or text; twice that after each further one.
            max_pending: How many tuples that it has not acknowledged a task of a bolt may have.

        Raises:
            ProgramError: If a bolt takes nothing, or what is not there, if the components are in a loop, or a setting
                is of the wrong kind.
        """
        whole("max_retries", max_retries, 0, None)
        retries = Retries(max_retries, parse_duration_ms(retry_pause))
        whole("max_pending", max_pending, 1, None)
        layout = Layout(name, [one._component() for one in (*self._spouts.values(), *self._bolts.values())], conf or {})
        _check(layout, self._bolts)
        emitted: dict[str, DataStream] = {}
        for component, spout in self._spouts.items():
            emitted[component] = _add_spout(env, layout, component, spout)
        for component in _in_order(layout, list(self._bolts)):
            bolt = self._bolts[component]
            operator = BoltOperator(bolt._what, layout, component, retries, max_pending)
            sources = {one.source: None for one in layout.components[component].inputs}
            inputs = [sent_to(emitted[source], component) for source in sources]
            given = inputs[0].union(*inputs[1:]) if len(inputs) > 1 else inputs[0]
            emitted[component] = _placed(given.transform(component, operator), layout, component)
        return Topology(layout, emitted)


def _add_spout(env: StreamExecutionEnvironment, layout: Layout, component: str, declarer: SpoutDeclarer) -> DataStream:
    spout = declarer._what
    layout.number(component, "topology.max.spout.pending", 0)  # refused here, not where it runs
    if isinstance(spout, DataStream):
        if spout.get_execution_environment() is not env:
            message = f"spout {component!r} is a stream of another environment"
            raise ProgramError(message)
        return _placed(spout.transform(component, TuplesOfRecords(layout, component)), layout, component)
    messages = env.from_source(SpoutSource(spout, layout, component), None, component)
    messages.set_parallelism(layout.components[component].num_tasks).uid(f"{layout.name}.{component}.spout")
    return _placed(messages.transform(f"tuples of {component}", TuplesOfSpout(layout, component)), layout, component)


def _placed(stream: DataStream, layout: Layout, component: str) -> DataStream:
    return stream.set_parallelism(layout.components[component].num_tasks).uid(f"{layout.name}.{component}")


def _check(layout: Layout, bolts: Mapping[str, BoltDeclarer]) -> None:
    if not layout.components:
        message = "the topology has no component"
        raise ProgramError(message)
    for component in layout.components.values():
        if component.name in bolts and not component.inputs:
            message = f"bolt {component.name!r} takes nothing"
            raise ProgramError(message, hint='say what: .shuffle_grouping("sentences")')
        for one in component.inputs:
            if one.source not in layout.components:
                message = f"bolt {component.name!r} takes something of {one.source!r}, which is not in the topology"
                raise ProgramError(message, hint=nearest(one.source, list(layout.components)))
            stream = layout.stream(one.source, one.stream)
            if stream.direct != (one.grouping.kind == "DIRECT"):
                is_or_not = "is" if stream.direct else "is not"
                message = (
                    f"stream {one.stream!r} of {one.source!r} {is_or_not} direct; bolt {component.name!r} takes it by"
                )
                message += f" {one.grouping.kind.lower()} grouping"
                raise ProgramError(message, hint="a direct stream, and none else, is taken by direct_grouping")
            for name in one.grouping.fields:
                if name not in stream.fields:
                    message = f"bolt {component.name!r} groups stream {one.stream!r} of {one.source!r} by {name!r}"
                    message += f", which is none of its fields: {', '.join(stream.fields)}"
                    raise ProgramError(message, hint=nearest(name, list(stream.fields)))


def _in_order(layout: Layout, bolts: list[str]) -> list[str]:
    """The bolts, each behind those that it takes something of."""
    ordered: list[str] = []
    waiting = list(bolts)
    while waiting:
        ready = [name for name in waiting if not any(one.source in waiting for one in layout.components[name].inputs)]
        if not ready:
            message = (
                f"the topology has a loop, through {', '.join(map(repr, sorted(waiting)))}; topologies here have none"
            )
            raise ProgramError(message, hint="streams have loops that checkpoints know: DataStream.iterate")
        ordered += ready
        waiting = [name for name in waiting if name not in ready]
    return ordered


class Topology:
    """A topology in a program."""

    def __init__(self, layout: Layout, emitted: dict[str, DataStream]) -> None:
        self._layout = layout
        self._emitted = emitted

    def stream(self, component_id: str, stream_id: str = DEFAULT_STREAM) -> DataStream:
        """Return what a component emits to a stream, as a stream of dicts by the names of its fields; to be asked for
        before the program is executed.

        Raises:
            ProgramError: If there is no such component, or it has declared no such stream.
        """
        if component_id not in self._emitted:
            message = f"the topology has no component {component_id!r}"
            raise ProgramError(message, hint=nearest(component_id, list(self._emitted)))
        self._layout.stream(component_id, stream_id)
        self._layout.taken.add((component_id, stream_id))
        return self._emitted[component_id].get_side_output(OutputTag(taken_tag(stream_id)))
