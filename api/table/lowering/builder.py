"""What the streams of a plan are made with: verbs that many nodes have in common, and what they refuse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.engine.columns.expressions import col
from headrace.engine.errors import ProgramError
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.operators.mini_batch import MiniBatch
from headrace.engine.optimizer.stream_traits import event_times, has_event_time, is_in_order, takes_back
from headrace.engine.optimizer.tuning.choices import MiniBatches
from headrace.engine.optimizer.upgrades.upgrade import Planned, Upgrade
from headrace.engine.plan.plan import GroupKey, Node, Order

from ...stream.data_stream import DataStream
from ...stream.environment import StreamExecutionEnvironment
from ..connectors.changelog import behind

__all__ = [
    "Lowerings",
    "StreamBuilder",
    "StreamingSettings",
    "columns_of",
    "named",
    "names_of",
    "orders_of",
    "refuse_changes",
    "require_event_time",
]

_MOST_OF_A_NAME = 80


class StreamingSettings(Protocol):
    """What SET has said, as far as streams are made by it; `headrace.table.settings.Settings` is it."""

    @property
    def mini_batches(self) -> MiniBatches | None:
        """How rows wait in front of operators; None if they do not."""
        ...

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; the default if nothing was said."""
        ...


class StreamBuilder(ABC):
    """What the streams of a plan are made with: the program, its settings, and verbs that nodes have in common.

    Args:
        env: The program.
        settings: What SET has said.
        upgrade: Under which ids and names operators keep their state; None for those that follow from their place in
            the program, and from the names of columns.
        token: What tells this start of the query from others, for operators that give all their rows once more.
    """

    def __init__(
        self,
        env: StreamExecutionEnvironment,
        settings: StreamingSettings,
        upgrade: Upgrade | None = None,
        token: str = "",
    ) -> None:
        self.env = env
        self.settings = settings
        # After so long without a row a part of the input holds no other back; 0 for never.
        self.idle_timeout_ms: int = settings.value("table.exec.source.idle-timeout", 0)
        self._mini_batches = settings.mini_batches
        self.upgrade = upgrade
        self._token = token
        # By the id of their nodes.
        self._made: dict[int, DataStream] = {}

    @abstractmethod
    def of(self, node: Node) -> DataStream:
        """Return the stream of a node: columns of its schema."""

    def planned(self, node: Node) -> Planned | None:
        """Return what was planned for a node that goes on from a savepoint, or will be gone on from."""
        return None if self.upgrade is None else self.upgrade.of(node)

    def keys_of(self, node: Node, side: int, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of a key in an order of their own: key groups depend on it."""
        planned = self.planned(node)
        return names if planned is None or planned.keeps is None else planned.keeps.keys[side]

    def prepared(self, node: Node, operator: Any) -> Any:
        """Return the operator: it keeps its state under the names of the plan, and rows may wait in front of it."""
        planned = self.planned(node)
        if planned is not None and planned.keeps is not None:
            operator.stored = planned.keeps.stored_names(planned.names)
            if planned.replays:
                operator.replays = self._token
        if self._mini_batches is not None and self._mini_batches.wait_for(node):
            return MiniBatch(operator, self._mini_batches.latency_ms, self._mini_batches.size)
        return operator

    def in_order(self, node: Node, stream: DataStream) -> DataStream:
        """Return the columns in the order of the node's."""
        names = node.schema.names if node.schema is not None else []
        if stream.known_columns is None or stream.known_columns.names == names:
            return stream
        return behind(stream, SelectColumns({name: col(name) for name in names}), node.name, node.schema)

    def input_of(self, node: Node, index: int = 0) -> DataStream:
        """Return the stream of an input."""
        return self.of(node.inputs[index])

    def columnar(self, node: Node, operator: Any, stream: DataStream, columns: pa.Schema | None = None) -> DataStream:
        """Put an operator behind a stream; it gives columns of the node's schema, or others."""
        made = stream.transform(type(node).__name__, operator, None, node.name, known_columns=columns or node.schema)
        return named(made, node)

    def row_by_row(self, node: Node, operator: Any) -> DataStream:
        """Put an operator of rows one by one behind the node's input.

        What is in order stays so: a row is not taken back before it has come.
        """
        if not (takes_back(node.inputs[0]) or is_in_order(node.inputs[0])):
            return self.columnar(node, operator, self.input_of(node))
        return self.right_behind(node, operator)

    def right_behind(self, node: Node, operator: Any) -> DataStream:
        """Put an operator right behind the node's input, with as many subtasks."""
        return named(behind(self.input_of(node), operator, node.name, node.schema), node)

    def keyed(self, node: Node, operator: Any, stream: DataStream, keys: tuple[str, ...]) -> DataStream:
        """Put an operator behind a stream by key; without keys it has one subtask."""
        columns = operator.output_schema()
        operator = self.prepared(node, operator)
        if keys:
            return self.columnar(node, operator, stream.key_by(*keys), columns)
        made = self.columnar(node, operator, stream, columns)
        made.force_non_parallel()
        return made

    def keyed_inputs(
        self, node: Node, operator: Any, keys: Sequence[tuple[str, ...]], columns: pa.Schema | None = None
    ) -> DataStream:
        """Put an operator behind all inputs, each by its key; it gives the node's columns, or others."""
        first, *others = (self.input_of(node, at).key_by(*names) for at, names in enumerate(keys))
        made = first.transform("join", operator, None, node.name, others=others, known_columns=columns or node.schema)
        return named(made, node)


Lowerings = Mapping[type, Callable[[StreamBuilder, Any], DataStream]]
"""What makes the stream of a node, by the node's type."""


def named(stream: DataStream, node: Node) -> DataStream:
    """Give a stream the name of its node."""
    return stream.name(node.name[:_MOST_OF_A_NAME])


def columns_of(node: Node) -> pa.Schema:
    """Return the columns of a node; all nodes of tables have some."""
    assert node.schema is not None
    return node.schema


def names_of(key: GroupKey | None) -> tuple[str, ...]:
    """Return the columns of a key; none without one."""
    return () if key is None else key.names or ()


def orders_of(orders: tuple[Order, ...]) -> list[tuple[str, bool, None]]:
    """Return orders as operators have them, nulls where Flink has them."""
    found: list[tuple[str, bool, None]] = []
    for order in orders:
        assert order.column is not None
        found.append((order.column, order.ascending, None))
    return found


def require_event_time(rows: Node, node: Node, time: str | None = None) -> None:
    """See that rows have an event time.

    Args:
        rows: The node that gives them.
        node: The one that needs it.
        time: The column that it must be; None for any.

    Raises:
        ProgramError: If they have none, or another one.
    """
    if not has_event_time(rows) or (time is not None and time not in event_times(rows)):
        is_other = has_event_time(rows)
        what = f"{time!r} is not the event time of these rows" if is_other else "these rows have no event time"
        below = f"put {node.name.partition(':')[0]} below joins, DISTINCT and LIMIT"
        message = f"{node.name}: {what} on a stream"
        raise ProgramError(message, hint=f"{below}; behind a join by event time it is the left side's")


def refuse_changes(node: Node, rows: Node, hint: str) -> None:
    """See that rows only come.

    Raises:
        ProgramError: If they are updated or taken back.
    """
    if takes_back(rows):
        message = f"{node.name} takes rows that only come; those below it are updated or taken back"
        raise ProgramError(message, hint=hint)
