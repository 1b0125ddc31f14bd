"""From a plan to streams: what each of its nodes is on a stream that may never end.

A node whose input only gains rows stays cheap: groups keep their aggregates, joins their rows. Where rows are updated
or taken back, that is known from the plan (`takes_back`), and operators keep what they need to take them back too.

Source: Flink's ``StreamPhysicalRel`` and its rules, ``FlinkChangelogModeInferenceProgram``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate
from headrace.engine.changelog.normalize import ChangelogNormalize
from headrace.engine.changelog.one_row import OneRow
from headrace.engine.changelog.over import ChangingOver
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.expressions import Expression, col
from headrace.engine.errors import ProgramError
from headrace.engine.functions.aggregates.built_in import first
from headrace.engine.functions.timestamps import ComputedTimestamps
from headrace.engine.graph.transformations import OperatorTransformation, Transformation, inputs_of
from headrace.engine.joins.async_lookup_join import AsyncLookupJoinOfTables, missing_keys_again
from headrace.engine.joins.lookup_join import LookupJoinOfTables
from headrace.engine.joins.lookup_questions import LookupTerms
from headrace.engine.kernel.config import CheckpointingMode
from headrace.engine.multi_joins.join_step import JoinChain, result_tag
from headrace.engine.multi_joins.multi_join import MultiJoin as MultiJoinOperator
from headrace.engine.operators.arrival import StampRows
from headrace.engine.operators.columnar import FilterColumns as FilterOperator
from headrace.engine.operators.columnar import SelectColumns
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.expanding import ExpandRows
from headrace.engine.operators.mini_batch import MiniBatch
from headrace.engine.optimizer.growth import ttls_of
from headrace.engine.optimizer.stream_traits import (
    event_times,
    has_event_time,
    is_in_order,
    is_temporal_sort,
    is_timed,
    read_as_streams,
    renamed_below,
    takes_back,
)
from headrace.engine.optimizer.upgrades.upgrade import Planned, Upgrade
from headrace.engine.plan.plan import (
    Aggregation,
    Distinct,
    FilterColumns,
    Node,
    Order,
    OverGroups,
    Select,
    Sort,
    TableSource,
    Union,
    walk,
)
from headrace.engine.plan.table_nodes import (
    EventTime,
    Expand,
    IntervalJoin,
    JoinResult,
    LocalAggregation,
    LookupJoin,
    LookupWay,
    MultiJoin,
    ProcessingTime,
    ProjectedJoin,
    Scan,
    SharedJoins,
    TableJoin,
    TemporalJoin,
    TopN,
    WindowAggregation,
    WindowKind,
    WindowRows,
    WindowSpec,
)
from headrace.engine.timed.interval_join import IntervalJoinOfTables
from headrace.engine.timed.over import OverAggregate
from headrace.engine.timed.sort import TemporalSort
from headrace.engine.timed.temporal_join import TemporalJoinOfTables
from headrace.engine.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

from ..stream.data_stream import DataStream
from ..stream.environment import StreamExecutionEnvironment
from .connectors.changelog import behind
from .connectors.contract import TableConnector
from .settings import Settings

__all__ = ["Streams", "give_uids"]

_MOST_OF_A_NAME = 80
_QUESTIONS_AT_ONCE = 10
_TIMEOUT_MS = 180_000


class Streams:
    """Makes the streams of a program's plans; a node that two plans share is one stream.

    Args:
        env: The program.
        settings: What SET has said.
        upgrade: Under which ids and names operators keep their state; None for those that follow from their place in
            the program, and from the names of columns.
        token: What tells this start of the query from others, for operators that give all their rows once more.
    """

    def __init__(
        self, env: StreamExecutionEnvironment, settings: Settings, upgrade: Upgrade | None = None, token: str = ""
    ) -> None:
        self._env = env
        self._settings = settings
        # After so long without a row a part of the input holds no other back; 0 for never.
        self._idle_timeout_ms: int = settings.value("table.exec.source.idle-timeout", 0)
        self._mini_batches = settings.mini_batches
        self._upgrade = upgrade
        self._token = token
        self._made: dict[int, DataStream] = {}

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
            first = self._env.new_id()
            stream = self._made[id(node)] = lower(self, node)
            planned = self._planned(node)
            if planned is not None:
                give_uids([stream.transformation], first, planned.uid)

    @contextmanager
    def writing(self, number: int, root: Node) -> Iterator[None]:
        """Give what is added inside, for a root's rows, the ids of its sink; rows in order have one writer."""
        first = self._env.new_id()
        yield
        if is_in_order(root):
            for one in self._env.added_behind(first):
                one.parallelism, one.is_parallel = 1, False
        if self._upgrade is not None:
            give_uids(self._env.added_behind(first), first, self._upgrade.sinks[number].uid)

    def _planned(self, node: Node) -> Planned | None:
        return None if self._upgrade is None else self._upgrade.of(node)

    def _keys(self, node: Node, side: int, names: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of a key in an order of their own: key groups depend on it."""
        planned = self._planned(node)
        return names if planned is None or planned.keeps is None else planned.keeps.keys[side]

    def _prepared(self, node: Node, operator: Any) -> Any:
        """The operator, which keeps its state under the names of the plan, and in front of which rows may wait."""
        planned = self._planned(node)
        if planned is not None and planned.keeps is not None:
            operator.stored = planned.keeps.stored_names(planned.names)
            if planned.replays:
                operator.replays = self._token
        if self._mini_batches is not None and self._mini_batches.wait_for(node):
            return MiniBatch(operator, self._mini_batches.latency_ms, self._mini_batches.size)
        return operator

    def _in_order(self, node: Node, stream: DataStream) -> DataStream:
        """The columns in the order of the node's."""
        names = node.schema.names if node.schema is not None else []
        if stream.known_columns is None or stream.known_columns.names == names:
            return stream
        return behind(stream, SelectColumns({name: col(name) for name in names}), node.name, node.schema)

    def _input(self, node: Node, index: int = 0) -> DataStream:
        return self.of(node.inputs[index])

    def _columnar(self, node: Node, operator: Any, stream: DataStream, columns: pa.Schema | None = None) -> DataStream:
        """An operator that gives columns of the node's schema, or others."""
        made = stream.transform(type(node).__name__, operator, None, node.name, known_columns=columns or node.schema)
        return made.name(node.name[:_MOST_OF_A_NAME])

    def _row_by_row(self, node: Node, operator: Any) -> DataStream:
        """An operator of rows one by one. What is in order stays so: a row is not taken back before it has come."""
        if not (takes_back(node.inputs[0]) or is_in_order(node.inputs[0])):
            return self._columnar(node, operator, self._input(node))
        return behind(self._input(node), operator, node.name, node.schema).name(node.name[:_MOST_OF_A_NAME])

    # -- rows ----------------------------------------------------------------------------------------------------------

    def scan(self, node: Scan) -> DataStream:
        assert node.schema is not None
        columns = {name: col(name).cast(node.schema.field(name).type) for name in node.schema.names}
        stream = node.table.stream(self._env, node.schema, self._times_of(node, columns))
        if takes_back(node):
            return behind(stream, SelectColumns(columns), node.name, node.schema)
        return self._columnar(node, SelectColumns(columns), stream)

    def _times_of(self, node: Scan, columns: dict[str, Expression]) -> WatermarkStrategy | None:
        """How a source finds the times of its rows, which come as the connector has them."""
        if node.time is None:
            return None
        steps = node.time.steps or ({node.time.column: col(node.time.column)},)
        read = frozenset[str]().union(*(value.columns_used() for value in steps[0].values()))
        steps = ({name: columns[name] for name in sorted(read)}, *steps)
        return self._watermarks(node.time.delay_ms, ComputedTimestamps(steps, node.time.column))

    def _watermarks(self, delay_ms: int, times: Any) -> WatermarkStrategy:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay_ms).with_timestamp_assigner(times)
        return strategy.with_idleness(self._idle_timeout_ms) if self._idle_timeout_ms else strategy

    def values(self, node: TableSource) -> DataStream:
        return self._env.from_collection(node.table)

    def event_time(self, node: EventTime) -> DataStream:
        if node.is_of_source:
            return self._input(node)
        return self._input(node).assign_timestamps_and_watermarks(self._watermarks(node.delay_ms, node.column))

    def processing_time(self, node: ProcessingTime) -> DataStream:
        if takes_back(node.inputs[0]):
            message = "PROCTIME() is of rows that only come; those below it are updated or taken back"
            raise ProgramError(message, hint="a row that is taken back would have another time than when it came")
        stream = self._input(node)
        if node.sets_time:
            stream = stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_ingestion_time())
        return self._columnar(node, StampRows(node.column, of_event_time=node.sets_time), stream)

    def filter(self, node: FilterColumns) -> DataStream:
        return self._row_by_row(node, FilterOperator(node.condition))

    def select(self, node: Select) -> DataStream:
        return self._row_by_row(node, SelectColumns(node.columns, keep=node.keep, event_time=_time_of_source(node)))

    def expand(self, node: Expand) -> DataStream:
        return self._row_by_row(node, ExpandRows(node.expansion))

    def union(self, node: Union) -> DataStream:
        streams = [self.of(one) for one in node.inputs]
        if not takes_back(node):
            return streams[0].union(*streams[1:])
        # What takes a row back is equal to it: by their values both go to one subtask, in order.
        assert node.schema is not None
        keyed = [stream.key_by(*node.schema.names) for stream in streams]
        united = DataStream.union(*keyed)
        return self._columnar(node, SelectColumns({name: col(name) for name in node.schema.names}), united)

    def sort(self, node: Sort) -> DataStream:
        """By event time rows go out in order; any other order is made when a result that has ended is given."""
        if not is_temporal_sort(node):
            return self._input(node)
        schema = node.inputs[0].schema
        assert schema is not None
        return self._keyed(node, TemporalSort(_orders(node.orders), input_schema=schema), self._input(node), ())

    # -- groups --------------------------------------------------------------------------------------------------------

    def aggregation(self, node: Aggregation) -> DataStream:
        keys = () if node.key is None else node.key.names or ()
        return self._grouped(node, keys, dict(node.aggregates))

    def local_aggregation(self, node: LocalAggregation) -> DataStream:
        assert node.schema is not None
        operator = LocalGroupAggregate(
            node.keys, node.aggregates, input_schema=node.schema, takes_back=takes_back(node), adapts=node.adapts
        )
        return behind(self._input(node), operator, node.name, node.schema).name(node.name[:_MOST_OF_A_NAME])

    def distinct(self, node: Distinct) -> DataStream:
        assert node.schema is not None
        return self._grouped(node, tuple(node.schema.names), {})

    def _grouped(self, node: Node, keys: tuple[str, ...], aggregates: dict[str, Any]) -> DataStream:
        schema = node.inputs[0].schema
        assert schema is not None
        keys = self._keys(node, 0, keys)
        (ttl_ms,) = ttls_of(node)
        operator = GroupAggregate(
            keys, aggregates, input_schema=schema, takes_back=takes_back(node.inputs[0]), ttl_ms=ttl_ms
        )
        return self._in_order(node, self._keyed(node, operator, self._input(node), keys))

    def top(self, node: TopN) -> DataStream:
        schema = node.inputs[0].schema
        assert schema is not None
        keys = self._keys(node, 0, () if node.key is None else node.key.names or ())
        (ttl_ms,) = ttls_of(node)
        if node.of_upserts:
            upserts = ChangelogNormalize(keys, input_schema=schema, ttl_ms=ttl_ms)
            return self._keyed(node, upserts, self._input(node), keys)
        if node.refuses_others:
            self._require_cuts(node)
            return self._keyed(node, OneRow(keys, input_schema=schema, ttl_ms=ttl_ms), self._input(node), keys)
        operator = Rank(
            keys, _orders(node.orders), input_schema=schema, limit=node.limit - node.offset, offset=node.offset,
            number=node.number, takes_back=takes_back(node.inputs[0]), ties_keep_last=node.latest_first,
            ttl_ms=ttl_ms,
        )  # fmt: skip
        return self._keyed(node, operator, self._input(node), keys)

    def _require_cuts(self, node: Node) -> None:
        """See that there are moments at which all rows are known: aligned barriers, or the end.

        Raises:
            ProgramError: If there are none.
        """
        config, what = self._env.get_checkpoint_config(), "ON CONFLICT DO ERROR looks for conflicts at checkpoints"
        if not config.is_checkpointing_enabled():
            if any(isinstance(one, Scan) and not one.table.is_bounded for one in walk(node)):
                message = f"{what}, and none are taken"
                raise ProgramError(message, hint="SET 'execution.checkpointing.interval' = '10 s'")
        elif config.is_unaligned_checkpoints_enabled():
            message = f"{what}, and unaligned ones leave rows out"
            raise ProgramError(message, hint="SET 'execution.checkpointing.unaligned.enabled' = 'false'")
        elif config.get_checkpointing_mode() is not CheckpointingMode.EXACTLY_ONCE:
            message = f"{what}, and those of 'at_least_once' have some rows of the next one"
            raise ProgramError(message, hint="SET 'execution.checkpointing.mode' = 'exactly_once'")

    def _keyed(self, node: Node, operator: Any, stream: DataStream, keys: tuple[str, ...]) -> DataStream:
        columns = operator.output_schema()
        operator = self._prepared(node, operator)
        if keys:
            return self._columnar(node, operator, stream.key_by(*keys), columns)
        made = self._columnar(node, operator, stream, columns)
        made.force_non_parallel()
        return made

    # -- joins ---------------------------------------------------------------------------------------------------------

    def join(self, node: TableJoin) -> DataStream:
        left_schema, right_schema = (one.schema for one in node.inputs)
        assert left_schema is not None
        assert right_schema is not None
        left_ttl_ms, right_ttl_ms = ttls_of(node)
        operator = ChangelogJoin(
            *self._keys_of_join(node), node.how, left_schema=left_schema, right_schema=right_schema,
            projection=node.projection, condition=node.condition, ttls_ms=(left_ttl_ms, right_ttl_ms),
        )  # fmt: skip
        return self._joined(node, operator)

    def multi_join(self, node: MultiJoin) -> DataStream:
        return self._joined_at_once(node, (JoinChain.of_all(node.steps, node.projection),))

    def shared_joins(self, node: SharedJoins) -> DataStream:
        return self._joined_at_once(node, node.chains)

    def _joined_at_once(self, node: MultiJoin | SharedJoins, chains: Sequence[JoinChain]) -> DataStream:
        keys = [self._keys(node, at, key.names or ()) for at, key in enumerate(node.keys)]
        schemas = [one.schema for one in node.inputs if one.schema is not None]
        operator = MultiJoinOperator(keys, chains, schemas=schemas)
        columns = operator.output_schema()
        return self._keyed_inputs(node, self._prepared(node, operator), keys, columns)

    def join_result(self, node: JoinResult) -> DataStream:
        """The rows of the first join are the output of what makes all of them, those of others its side outputs."""
        joins = self._input(node)
        if node.number == 0:
            return joins
        result = joins.get_side_output(result_tag(node.number))
        result.known_columns = node.schema
        return result

    def temporal_join(self, node: TemporalJoin) -> DataStream:
        for one in node.inputs:
            if takes_back(one):
                message = f"{node.name} takes rows that only come; those below it are updated or taken back"
                hint = "put it below GROUP BY, Top-N or outer joins"
                if any(isinstance(below, TopN) and below.of_upserts for below in walk(one)):
                    hint = "a table of 'kafka' with PRIMARY KEY and WATERMARK reads the same topic as versions"
                raise ProgramError(message, hint=hint)
            self._require_event_time(one, node, node.times[0] if one is node.inputs[0] else None)
        schemas = (node.inputs[0].schema, node.inputs[1].schema)
        assert schemas[0] is not None
        assert schemas[1] is not None
        operator = TemporalJoinOfTables(
            self._keys_of_join(node),
            node.times,
            schemas=(schemas[0], schemas[1]),
            is_left=node.how == "left",
            projection=node.projection,
            condition=node.condition,
            ttl_ms=max(ttls_of(node)),
        )
        return self._joined(node, operator)

    def lookup_join(self, node: LookupJoin) -> DataStream:
        if takes_back(node.inputs[0]):
            message = f"{node.name} takes rows that only come; those below it are updated or taken back"
            raise ProgramError(message, hint="a row that is taken back may find others than when it came: join without "
                               "FOR SYSTEM_TIME AS OF, or put the lookup below")  # fmt: skip
        steps: list[Any] = []
        table, below = node.inputs[1], node.right_key.names or ()
        while not isinstance(table, Scan):
            if isinstance(table, Select):
                steps.insert(0, SelectColumns(table.columns, keep=table.keep).select)
                below = tuple(str(renamed_below(table, name)) for name in below)
            elif isinstance(table, FilterColumns):
                steps.insert(0, FilterOperator(table.condition).passed)
            else:
                assert isinstance(table, EventTime)
            table = table.inputs[0]
        connector: TableConnector = table.table
        schemas = (node.inputs[0].schema, node.inputs[1].schema)
        assert table.schema is not None
        assert schemas[0] is not None
        assert schemas[1] is not None
        terms = LookupTerms(
            (node.left_key.names or (), node.right_key.names or ()), below, steps=steps,
            schemas=(schemas[0], schemas[1]), is_left=node.how == "left", projection=node.projection,
            condition=node.condition,
        )  # fmt: skip
        lookup, cache = connector.lookup(below, table.schema), connector.lookup_cache
        operator: Any = LookupJoinOfTables(lookup, terms, cache)
        if node.way is not None:
            operator = self._prepared(node, self._asynchronous(node.way, lookup, terms, cache))
        return self._columnar(node, operator, self._input(node))

    def _asynchronous(self, way: LookupWay, lookup: Any, terms: LookupTerms, cache: Any) -> AsyncLookupJoinOfTables:
        """What the hint of a table does not say the settings do."""
        is_ordered, capacity, timeout_ms = way.is_ordered, way.capacity, way.timeout_ms
        if is_ordered is None:
            is_ordered = self._settings.value("table.exec.async-lookup.output-mode", "ordered") == "ordered"
        if capacity is None:
            capacity = self._settings.value("table.exec.async-lookup.buffer-capacity", _QUESTIONS_AT_ONCE)
        if timeout_ms is None:
            timeout_ms = self._settings.value("table.exec.async-lookup.timeout", _TIMEOUT_MS)
        return AsyncLookupJoinOfTables(
            lookup, terms, cache, ordered=is_ordered or not way.is_async, capacity=capacity if way.is_async else 1,
            timeout_ms=timeout_ms, retry=None if way.retry is None else missing_keys_again(*way.retry),
        )  # fmt: skip

    def interval_join(self, node: IntervalJoin) -> DataStream:
        schemas = (node.inputs[0].schema, node.inputs[1].schema)
        assert schemas[0] is not None
        assert schemas[1] is not None
        operator = IntervalJoinOfTables(
            node.how, self._keys_of_join(node), node.times,
            (node.low_ms, node.high_ms), schemas=(schemas[0], schemas[1]), projection=node.projection,
            condition=node.condition,
        )  # fmt: skip
        return self._joined(node, operator)

    def _keys_of_join(self, node: ProjectedJoin) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self._keys(node, 0, node.left_key.names or ()), self._keys(node, 1, node.right_key.names or ())

    def _joined(self, node: ProjectedJoin, operator: Any) -> DataStream:
        return self._keyed_inputs(node, self._prepared(node, operator), self._keys_of_join(node))

    def _keyed_inputs(
        self, node: Node, operator: Any, keys: Sequence[tuple[str, ...]], columns: pa.Schema | None = None
    ) -> DataStream:
        """An operator of several inputs, each of which goes by its key; it gives the node's columns, or others."""
        first, *others = (self._input(node, at).key_by(*names) for at, names in enumerate(keys))
        made = first.transform("join", operator, None, node.name, others=others, known_columns=columns or node.schema)
        return made.name(node.name[:_MOST_OF_A_NAME])

    # -- windows -------------------------------------------------------------------------------------------------------

    def windows(self, node: WindowRows) -> DataStream:
        if node.window.kind is WindowKind.SESSION:
            message = "rows of SESSION windows are known on a stream only where they are grouped by them"
            raise ProgramError(message, hint="GROUP BY window_start, window_end and the columns of PARTITION BY")
        from headrace.engine.optimizer.window_rows import PutIntoWindows, WindowsOfBatch

        assert node.schema is not None
        self._refuse_changes(node)
        windows = WindowsOfBatch(node.window, node.names, node.schema)
        return self._columnar(node, PutIntoWindows(windows, node.names[2]), self._input(node))

    def window_aggregation(self, node: WindowAggregation) -> DataStream:
        self._refuse_changes(node)
        self._require_event_time(node.inputs[0], node, node.window.time_column)
        assert node.schema is not None
        keys = () if node.key is None else node.key.names or ()
        aggregates = dict(node.aggregates) or {"$one": first(col(keys[0]))}
        stream, assigner = self._input(node), _assigner(node.window)
        schema = node.inputs[0].schema
        assert schema is not None
        stored = self._names_of_window(node)
        if stored and keys:
            keys = self._keys(node, 0, keys)
            added = {stored[name]: col(name) for name in keys}
            schema = pa.schema([*schema, *(pa.field(stored[name], schema.field(name).type) for name in keys)])
            stream = self._columnar(node, SelectColumns(added, keep=True), stream, schema)
            keys = tuple(added)
        named = {stored.get(name, name): one for name, one in aggregates.items()}
        aggregates = {name: named[name] for name in sorted(named)}
        start = "window_start"
        if node.window.kind is WindowKind.CUMULATE:
            stream, schema, start = self._in_steps(node, stream)
            keys = (*keys, start)
        windows: Any = stream.key_by(*keys).window(assigner) if keys else stream.window_all(assigner)
        border = pa.timestamp("ms")
        fields = [*((name, schema.field(name).type) for name in keys), ("window_start", border), ("window_end", border)]
        fields += [(name, one.output_type(schema)) for name, one in aggregates.items()]
        made = windows.aggregate(**aggregates, output_type=pa.schema([pa.field(*one) for one in fields]))
        columns: dict[str, Expression] = {}
        borders = dict(zip(node.names, (start, "window_end", "window_time"), strict=True))
        for field in node.schema:
            columns[field.name] = col(stored.get(field.name, field.name))
            if field.name in borders:
                name = borders[field.name]
                value = col("window_end").to_epoch_ms() - 1 if name == "window_time" else col(name).to_epoch_ms()
                columns[field.name] = _time_of(value, field.type)
        return self._columnar(node, SelectColumns(columns), made)

    def _names_of_window(self, node: WindowAggregation) -> dict[str, str]:
        """What keys and results are called in the state of windows."""
        planned = self._planned(node)
        if planned is None or planned.keeps is None or self._upgrade is None:
            return {}
        columns = self._upgrade.identities[node].columns
        known = [*planned.keeps.keys[0], *node.aggregates]
        return {name: f"{i}~{columns[name][:8]}" for i, name in enumerate(sorted(known, key=lambda one: columns[one]))}

    def _in_steps(self, node: WindowAggregation, stream: DataStream) -> tuple[DataStream, pa.Schema, str]:
        """Rows once for each cumulating window, at its end: apart by its start, they tumble by its step.

        Returns:
            The rows, their columns, and the column that is the start of the window.
        """
        from headrace.engine.optimizer.window_rows import PutIntoWindows, WindowsOfBatch

        schema = stream.known_columns or node.inputs[0].schema
        assert schema is not None
        names = ("$start", "$end", "$time")
        time = pa.timestamp("ms")  # Whole seconds would put the time of a window into a step before its own.
        schema = pa.schema([*schema, *(pa.field(name, time) for name in (names[0], names[2]))])
        operator = PutIntoWindows(WindowsOfBatch(node.window, names, schema), names[2])
        made = stream.transform("cumulate", operator, None, node.name, known_columns=schema)
        return made.name(node.name[:_MOST_OF_A_NAME]), schema, names[0]

    def _require_event_time(self, rows: Node, node: Node, time: str | None = None) -> None:
        if not has_event_time(rows) or (time is not None and time not in event_times(rows)):
            is_other = has_event_time(rows)
            what = f"{time!r} is not the event time of these rows" if is_other else "these rows have no event time"
            below = f"put {node.name.partition(':')[0]} below joins, DISTINCT and LIMIT"
            message = f"{node.name}: {what} on a stream"
            raise ProgramError(message, hint=f"{below}; behind a join by event time it is the left side's")

    def _refuse_changes(self, node: Node) -> None:
        if takes_back(node.inputs[0]):
            message = f"{node.name} takes rows that only come; those below it are updated or taken back"
            raise ProgramError(message, hint="put the windows below GROUP BY, Top-N or outer joins")

    def over(self, node: OverGroups) -> DataStream:
        schema = node.inputs[0].schema
        assert schema is not None
        keys = self._keys(node, 0, () if node.key is None else node.key.names or ())
        operator: Any
        (ttl_ms,) = ttls_of(node)
        if is_timed(node):
            time = node.orders[0].column
            assert time is not None
            self._require_event_time(node.inputs[0], node)
            operator = OverAggregate(keys, time, node.columns, input_schema=schema, frame=node.frame, ttl_ms=ttl_ms)
        else:
            orders = _orders(node.orders)
            operator = ChangingOver(keys, orders, node.columns, input_schema=schema, frame=node.frame, ttl_ms=ttl_ms)
        return self._keyed(node, operator, self._input(node), keys)


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


def _orders(orders: tuple[Order, ...]) -> list[tuple[str, bool, None]]:
    """Orders as operators have them, nulls where Flink has them."""
    found: list[tuple[str, bool, None]] = []
    for order in orders:
        assert order.column is not None
        found.append((order.column, order.ascending, None))
    return found


def _assigner(window: WindowSpec) -> WindowAssigner:
    if window.kind is WindowKind.TUMBLE:
        return TumblingEventTimeWindows.of(window.size_ms, window.offset_ms)
    if window.kind is WindowKind.CUMULATE:
        return TumblingEventTimeWindows.of(window.step_ms, window.offset_ms % window.step_ms)
    if window.kind is WindowKind.HOP:
        return SlidingEventTimeWindows.of(window.size_ms, window.step_ms, window.offset_ms)
    return EventTimeSessionWindows.with_gap(window.size_ms)


def _time_of(milliseconds: Expression, kind: pa.DataType) -> Expression:
    """Milliseconds since 1970 as a time of a type; whole seconds are rounded towards the past."""
    return (milliseconds // 1_000 if kind.unit == "s" else milliseconds.to_timestamp()).cast(kind)


_LOWERINGS: dict[type, Callable[[Streams, Any], DataStream]] = {
    Scan: Streams.scan,
    TableSource: Streams.values,
    EventTime: Streams.event_time,
    ProcessingTime: Streams.processing_time,
    FilterColumns: Streams.filter,
    Select: Streams.select,
    Expand: Streams.expand,
    Union: Streams.union,
    Sort: Streams.sort,
    LocalAggregation: Streams.local_aggregation,
    Aggregation: Streams.aggregation,
    Distinct: Streams.distinct,
    TopN: Streams.top,
    TableJoin: Streams.join,
    MultiJoin: Streams.multi_join,
    SharedJoins: Streams.shared_joins,
    JoinResult: Streams.join_result,
    TemporalJoin: Streams.temporal_join,
    IntervalJoin: Streams.interval_join,
    LookupJoin: Streams.lookup_join,
    WindowRows: Streams.windows,
    WindowAggregation: Streams.window_aggregation,
    OverGroups: Streams.over,
}


def _time_of_source(node: Select) -> pa.Field | None:
    """The column that a projection right above a table would compute, and that its source has found: the event time."""
    below = node.inputs[0]
    if not isinstance(below, Scan) or below.time is None or len(below.time.steps) != 1 or node.schema is None:
        return None
    column = below.time.column
    value = node.columns.get(column)
    if value is None or not value.is_same_as(below.time.steps[0][column]):
        return None
    field = node.schema.field(column)
    return field if pa.types.is_timestamp(field.type) and field.type.unit == "ms" else None
