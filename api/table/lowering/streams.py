"""From a plan to streams: what each of its nodes is on a stream that may never end.

A node whose input only gains rows stays cheap: groups keep their aggregates, joins their rows. Where rows are updated
or taken back, that is known from the plan (`takes_back`), and operators keep what they need to take them back too.

Source: Flink's ``StreamPhysicalRel`` and its rules, ``FlinkChangelogModeInferenceProgram``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.engine.errors import ProgramError
from headrace.engine.graph.transformations import OperatorTransformation, Transformation, inputs_of
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.optimizer.stream_traits import is_in_order, read_as_streams
from headrace.engine.plan.plan import Node

from ...stream.data_stream import DataStream
from . import groups, joins, rows, windows
from .builder import Lowerings, StreamBuilder

__all__ = ["Streams"]

_LOWERINGS: Lowerings = {
    **rows.LOWERINGS,
    **groups.LOWERINGS,
    **joins.LOWERINGS,
    **windows.LOWERINGS,
}


class Streams(StreamBuilder):
    """Makes the streams of a program's plans; a node that two plans share is one stream."""

    def of(self, node: Node) -> DataStream:
        """Return the stream of a node: columns of its schema.

        Raises:
            ProgramError: If it cannot be run on a stream.
        """
        # Inputs first, so that a long chain of nodes does not exhaust Python's stack.
        stack = [node]
        while stack:
            below = [one for one in read_as_streams(stack[-1]) if id(one) not in self._made]
            if below and id(stack[-1]) not in self._made:
                stack += below[::-1]
            else:
                self._lower(stack.pop())
        return self._made[id(node)]

    def _lower(self, node: Node) -> None:
        if id(node) not in self._made:
            lower = _LOWERINGS.get(type(node))
            if lower is None:
                message = f"{node.name} cannot be run on a stream"
                raise ProgramError(message, hint="TableEnvironment.create(mode='batch') runs it")
            first = self.env.new_id()
            stream = self._made[id(node)] = lower(self, node)
            planned = self.planned(node)
            if planned is not None:
                give_uids([stream.transformation], first, planned.uid)

    @contextmanager
    def writing(self, number: int, root: Node) -> Iterator[None]:
        """Give what is added inside, for a root's rows, the ids of its sink; rows in order have one writer."""
        first = self.env.new_id()
        yield
        if is_in_order(root):
            for one in self.env.added_behind(first):
                one.parallelism, one.is_parallel = 1, False
        if self.upgrade is not None:
            give_uids(self.env.added_behind(first), first, self.upgrade.sinks[number].uid)


def give_uids(ends: Iterable[Transformation], first: int, uid: str) -> None:
    """Give operators ids of their own: those that lead to some ends and were added behind a number.

    The first one that keeps state by key, or reads, has the id itself, so that it is what the plan calls it.
    """
    found: dict[int, OperatorTransformation] = {}
    stack = list(ends)
    while stack:
        one = stack.pop()
        if one.transformation_id > first:
            if isinstance(one, OperatorTransformation) and one.uid is None:
                found[one.transformation_id] = one
            stack += inputs_of(one)
    taken: set[str] = set()
    for _, one in sorted(found.items()):
        role = type(one.operator).__name__
        name = uid if uid not in taken and not isinstance(one.operator, SelectColumns) else f"{uid}/{role}"
        number = 1
        while name in taken:
            number += 1
            name = f"{uid}/{role}.{number}"
        taken.add(name)
        one.uid = name
