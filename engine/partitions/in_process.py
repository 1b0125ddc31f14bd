"""The reference executor: runs a plan in process, on Arrow, by the book (`headrace.engine.plan.plan`).

It is the oracle of the tests and the quick way for small data: no JVM, no threads, nothing kept between jobs. Data sets
are lists of partitions, partitions lists of wire batches, so that everything that depends on partitioning (combiners,
ships, empty partitions) happens as it would on many machines. Where two executions may differ (order, ties), this one
always gives the same.

A node's result is dropped when it will not be read again. In an iteration whatever depends on its placeholders lives
for one superstep, everything else is computed once; so memory does not grow with the number of supersteps.

Source: Flink's ``CollectionExecutor``; the iteration rules are those of ``IterationHeadTask``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from headrace.state.errors import StorageError

from ..columns.records import MAX_BATCH_ROWS
from ..errors import ConfigurationError, HeadraceError, InternalError, ProgramError
from ..functions.accumulators import AccumulatorPart, merged_parts
from ..functions.contract import Function
from ..functions.operator import add_place, place_of
from ..plan.iteration_nodes import iteration_names
from ..plan.plan import (
    BulkIteration,
    Cache,
    CoGroup,
    Collect,
    Count,
    DeltaIteration,
    ExecutionResult,
    FileSource,
    ForeignSource,
    Iteration,
    IterationInput,
    Join,
    KeyMatch,
    Node,
    Repartition,
    SequenceSource,
    Ship,
    ShipKind,
    TableSource,
    Union,
    WriteFiles,
    walk,
    wire_schema,
)
from ..plan.run_watch import RunWatch
from ..protocol.states import StageState
from ..protocol.views import StageView
from . import drivers, supersteps
from .context import TaskContext
from .outputs import results_of
from .scopes import Partition, Partitions, Scope, copied
from .shipping import shipped_to
from .solution import solution_side
from .sources import read_source
from .spilling import Memory, held_inputs
from .two_inputs import co_group_probe, probe
from .wire_records import conform, decode, encoded

__all__ = ["DEFAULT_PARALLELISM", "InProcessExecutor", "Run"]

Caches = MutableMapping[Any, Partitions]

DEFAULT_PARALLELISM = 4
"""More than one, so that a program that only works with one partition is found out early."""


_FIRST_PIECE, _PIECE_S = 256, 0.1
"""Rows at once of functions that are called for each record, at first, and the time that those may take."""

_LONGEST_CHAIN = 64
"""Each node of a chain takes a few frames of Python's stack, which has room for 1,000."""


class InProcessExecutor:
    """Runs plans in the calling thread.

    Args:
        resolve: Gives the records of a `ForeignSource` as a table; None if nothing can.
        room: Says how many bytes the records of a job that begins may take in memory; None for no limit.
        clock: Seconds, by which it tells how long nodes took.
    """

    def __init__(
        self,
        resolve: Callable[[ForeignSource], pa.Table] | None = None,
        room: Callable[[], int | None] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._resolve = resolve
        self._room = room
        self._clock = clock
        self._is_closed = False
        # What is kept between jobs, as long as somebody has the token.
        self._caches: Caches = WeakKeyDictionary()

    def execute(
        self,
        sinks: tuple[Node, ...],
        *,
        parallelism: int | None = None,
        cached_files: Mapping[str, str] | None = None,
        watch: RunWatch | None = None,
    ) -> ExecutionResult:
        """Run a plan; see `headrace.engine.plan.plan.Executor`."""
        if self._is_closed:
            message = "the executor has been closed"
            raise ProgramError(message)
        number = DEFAULT_PARALLELISM if parallelism is None else parallelism
        if number < 1:
            message = f"parallelism must be at least 1; got {number}"
            raise ConfigurationError(message)
        memory = Memory(None if self._room is None else self._room())
        run = Run(
            sinks,
            number,
            cached_files or {},
            self._resolve,
            None if watch is None else lambda _batch: watch.require_running(),
            caches=self._caches,
            memory=memory,
            clock=self._clock,
            told=watch,
        )
        return run.result()

    def close(self) -> None:
        """Refuse further plans."""
        self._is_closed = True
        self._caches.clear()


class Run:
    """One job.

    Args:
        sinks: The roots of the plan.
        parallelism: Partitions of whatever does not say.
        cached_files: Local paths by name.
        resolve: See `InProcessExecutor`.
        watch: Is told of every batch that is made; may raise to end the run.
        caches: What `Cache` nodes have kept.
        memory: The room that there is.
        clock: As of `InProcessExecutor`.
        told: Is told of nodes as they are computed; None for nobody.
    """

    def __init__(
        self,
        sinks: tuple[Node, ...],
        parallelism: int,
        cached_files: Mapping[str, str],
        resolve: Callable[[ForeignSource], pa.Table] | None = None,
        watch: Callable[[pa.RecordBatch], None] | None = None,
        caches: Caches | None = None,
        memory: Memory | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        told: RunWatch | None = None,
    ) -> None:
        self._sinks = sinks
        self._told = told
        self._clock = clock
        self.memory = memory or Memory(None)
        self.parallelism = parallelism
        self._cached_files = cached_files
        self._resolve = resolve
        self._watch = watch
        self._caches: Caches = WeakKeyDictionary() if caches is None else caches
        # What subtasks have counted so far, and what is told of iterations, by name.
        self.reports: list[dict[str, AccumulatorPart]] = []
        self.iterations: dict[str, Any] = {}
        # By node, its rows, and the seconds of it and of what ran in one with it; of all supersteps together.
        self.nodes: dict[int, dict[str, Any]] = {}
        self.iteration_names = iteration_names(walk(*sinks))
        # Of iterations whose course somebody else wants to follow, by id.
        self.followed: dict[int, supersteps.Progress] = {}
        # How many nodes read the result of a node; roots of step plans are read by their iteration.
        self._num_readers: dict[int, int] = {}
        # Nodes that belong to, or are read in, a step plan: their results are not counted down.
        self._is_pinned: set[int] = set()
        for node in walk(*sinks):
            for parent in node.parents:
                self._num_readers[parent.id] = self._num_readers.get(parent.id, 0) + 1
            for root in node.step_roots:
                self._num_readers[root.id] = self._num_readers.get(root.id, 0) + 1
                self._is_pinned.update(inner.id for inner in walk(root))
        self._num_left = dict(self._num_readers)

    def result(self) -> ExecutionResult:
        """Run the plan."""
        job = Scope()
        values = results_of(self._sinks, lambda sink: self._run_sink(sink, job))
        statistics: dict[str, Any] = {"nodes": self.nodes}
        if self.iterations:
            statistics["iterations"] = self.iterations
        if self.memory.num_spilled_bytes:
            statistics["spilled_bytes"] = self.memory.num_spilled_bytes
        return ExecutionResult(values, merged_parts(self.reports), statistics)

    def _run_sink(self, sink: Node, job: Scope) -> Any:
        partitions = self.get(sink.inputs[0], job)
        result: Any
        if isinstance(sink, Collect):
            batches = [batch for partition in partitions for batch in partition]
            result = pa.Table.from_batches(batches, wire_schema(sink.schema))
        elif isinstance(sink, Count):
            result = sum(_num_rows(partition) for partition in partitions)
        elif isinstance(sink, WriteFiles):
            began = self._clock()
            self._tell_begun([sink])
            parts = (sink.files.write(sink, i, "0", partition) for i, partition in enumerate(partitions))
            result = [name for names in parts for name in names]
            self._tell([sink], partitions, self._clock() - began)
        else:
            message = f"{sink!r} is no sink"
            raise InternalError(message)
        self._count_down(sink, job)
        return result

    # ------------------------------------------------------------------------------------------------------- demand

    def get(self, node: Node, scope: Scope) -> Partitions:
        """Return the result of a node, computed with all that it needs if it is not there."""
        stack = [node]
        while stack:
            current = stack[-1]
            home = scope.home_of(current)
            if current.id in home.results:
                stack.pop()
                continue
            if isinstance(current, Cache) and current.token in self._caches:
                home.results[current.id] = self._caches[current.token]
                stack.pop()
                continue
            chain = self._chain_to(current, scope)
            needed = [*chain[0].inputs, *(other for link in chain for _name, other in link.broadcasts)]
            missing = [
                other
                for other in needed
                if other.id not in scope.home_of(other).results and self._looked_up(current, other, scope) is None
            ]
            if missing:
                stack += missing
                continue
            began = self._clock()
            self._tell_begun(chain)
            home.results[current.id] = self._compute(chain, scope)
            self._tell(chain, home.results[current.id], self._clock() - began)
            for link in chain:
                self._count_down(link, scope)
            stack.pop()
        return scope.home_of(node).results[node.id]

    def _tell_begun(self, chain: Sequence[Node]) -> None:
        if self._told is not None:
            self._told.require_running()
            before = self.nodes.get(chain[-1].id, {"rows": 0, "seconds": 0.0})
            self._told.tell(_stage_of(chain, StageState.RUNNING, before, 0))

    def _tell(self, chain: Sequence[Node], result: Partitions, seconds: float) -> None:
        """Note how many rows a node has, and how long that took with those that ran in one with it."""
        node = chain[-1]
        before = self.nodes.get(node.id, {"rows": 0, "seconds": 0.0})
        rows = sum(_num_rows(partition) for partition in result)
        now = self.nodes[node.id] = {"rows": before["rows"] + rows, "seconds": before["seconds"] + seconds}
        if self._told is not None:
            self._told.tell(_stage_of(chain, StageState.FINISHED, now, len(result)))

    def _count_down(self, reader: Node, scope: Scope) -> None:
        for parent in reader.parents:
            self._num_left[parent.id] -= 1
            if not self._num_left[parent.id] and parent.id not in self._is_pinned:
                scope.home_of(parent).results.pop(parent.id, None)

    def _chain_to(self, node: Node, scope: Scope) -> list[Node]:
        """The nodes that run as one with ``node`` at the end.

        One that holds its input whole is the first: how much that is must be known before it begins.
        """
        chain = [node]
        while len(chain) < _LONGEST_CHAIN and drivers.can_follow(chain[0]) and not held_inputs(chain[0]):
            before = chain[0].inputs[0]
            is_private = self._num_readers[before.id] == 1 and scope.home_of(before) is scope.home_of(node)
            if not is_private or not drivers.is_runnable(before) or self._side(before, scope) is not None:
                break
            if before.id in scope.home_of(before).results:
                break
            chain.insert(0, before)
        return chain

    def _side(self, node: Node, scope: Scope) -> int | None:
        """Which input of a node is a solution set that can be looked up."""
        delta = scope.home_of(node).delta
        return None if delta is None else solution_side(node, delta[0].solution, delta[0].key)

    def _looked_up(self, node: Node, other: Node, scope: Scope) -> int | None:
        side = self._side(node, scope)
        return side if side is not None and node.inputs[side] is other else None

    # ------------------------------------------------------------------------------------------------------ running

    def _compute(self, chain: Sequence[Node], scope: Scope) -> Partitions:
        node = chain[0]
        if isinstance(node, BulkIteration):
            return supersteps.bulk(self, node, scope, self._progress_of(node))
        if isinstance(node, DeltaIteration):
            return supersteps.delta(self, node, scope, self._progress_of(node))
        if isinstance(node, IterationInput):
            return self._bound(node, scope)
        if isinstance(node, (TableSource, SequenceSource, FileSource, ForeignSource)):
            return read_source(node, node.parallelism or self.parallelism, self.memory, self._resolve)
        side = self._side(node, scope)
        if side is not None and isinstance(node, KeyMatch):
            return self._probe(node, side, scope)
        inputs = [scope.home_of(parent).results[parent.id] for parent in node.inputs]
        if isinstance(node, Union):
            return [partition for partitions in inputs for partition in partitions]
        if node.combine:
            inputs[0] = self._run(
                node, [inputs[0]], scope, lambda context, streams: drivers.combine(node, context, streams[0])
            )
        count = self._num_partitions(node, inputs)
        shipped = [
            shipped_to(ship, partitions, drivers.input_schema(node, index), count, node.name, self.memory)
            for index, (ship, partitions) in enumerate(zip(node.ships, inputs, strict=True))
        ]
        if isinstance(node, Cache):
            self._caches[node.token] = shipped[0]
        if isinstance(node, (Cache, Repartition)):
            return shipped[0]
        return [
            self._run_chain(chain, subtask, count, [partitions[subtask] for partitions in shipped], scope)
            for subtask in range(count)
        ]

    def _num_partitions(self, node: Node, inputs: Sequence[Partitions]) -> int:
        for ship, partitions in zip(node.ships, inputs, strict=True):
            if ship.kind is ShipKind.FORWARD:
                return len(partitions)
        if any(ship.kind is ShipKind.GATHER for ship in node.ships):
            return 1
        return node.parallelism or self.parallelism

    def _context(self, node: Node, subtask: int, count: int, scope: Scope) -> TaskContext:
        home = scope.home_of(node)
        broadcasts = {}
        for name, other in node.broadcasts:
            partitions = scope.home_of(other).results[other.id]
            batches = [batch for partition in partitions for batch in partition]
            broadcasts[name] = (pa.Table.from_batches(batches, wire_schema(other.schema)), other.schema)
        return TaskContext(
            node.name, f"dataset-{node.id}", subtask, count, "local", broadcasts, self._cached_files, home.context()
        )

    def _run_chain(
        self, chain: Sequence[Node], subtask: int, count: int, inputs: Sequence[Partition], scope: Scope
    ) -> Partition:
        self.memory.check_room(chain[0], inputs)
        contexts = [self._context(node, subtask, count, scope) for node in chain]
        nodes = [_own_functions(node) for node in chain]
        read = self._in_pieces if drivers.may_be_cut(chain) else iter
        sources = [read(partition) for partition in inputs]
        made = drivers.apply_chain(nodes, contexts, sources)
        try:
            result = self.memory.kept(made if self._watch is None else self._watched(made))
        except StorageError as error:
            add_place(error, place_of(chain[-1].name, subtask, count), None)
            raise
        self._report(contexts)
        return result

    def _in_pieces(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        """Cut batches so that a function called for each record is asked about an end a few times a second."""
        if self._told is None:
            yield from partition
            return
        num_rows = _FIRST_PIECE
        for batch in partition:
            offset = 0
            while offset < batch.num_rows:
                self._told.require_running()
                began = self._clock()
                piece = batch.slice(offset, num_rows)
                yield piece
                seconds = self._clock() - began
                offset += piece.num_rows
                num_rows = max(num_rows // 2, 1) if seconds > _PIECE_S else min(2 * num_rows, MAX_BATCH_ROWS)

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self._watch is not None
        for batch in batches:
            self._watch(batch)
            yield batch

    def _progress_of(self, node: Iteration) -> supersteps.Progress:
        return self.followed.get(node.id) or supersteps.Progress()

    def _run(
        self,
        node: Node,
        inputs: Sequence[Partitions],
        scope: Scope,
        make: Callable[[TaskContext, list[Iterator[pa.RecordBatch]]], Iterator[pa.RecordBatch]],
    ) -> Partitions:
        """Run something other than the node's own function on partitions that lie side by side."""
        count = len(inputs[0])
        results = []
        for subtask in range(count):
            context = self._context(node, subtask, count, scope)
            self.memory.check_room(node, [partitions[subtask] for partitions in inputs])
            results.append(self.memory.kept(make(context, [iter(partitions[subtask]) for partitions in inputs])))
            self._report([context])
        return results

    def _report(self, contexts: Sequence[TaskContext]) -> None:
        for context in contexts:
            if len(context.accumulators):
                self.reports.append(context.accumulators.report(context.name))

    # --------------------------------------------------------------------------------------------------- iterations

    def _bound(self, node: IterationInput, scope: Scope) -> Partitions:
        """A solution set that is read whole; the other placeholders are bound when a superstep begins."""
        delta = scope.home_of(node).delta
        if delta is None or node.id != delta[0].solution.id:
            message = f"{node!r} is not bound: it is used outside of its iteration"
            raise InternalError(message)
        return [list(part.batches()) for part in delta[1]]

    def _probe(self, node: KeyMatch, side: int, scope: Scope) -> Partitions:
        """A join or co-group with the solution set: the other input's keys are looked up in its index."""
        delta = scope.home_of(node).delta
        assert delta is not None
        parts = delta[1]
        other = node.inputs[1 - side]
        key = node.right_key if side == 0 else node.left_key
        partitions = scope.home_of(other).results[other.id]
        ship = node.ships[1 - side]
        if ship.kind is not ShipKind.FORWARD:
            ship = Ship(ShipKind.HASH, key)
        shipped = shipped_to(ship, partitions, other.schema, len(parts), node.name, self.memory)
        results: Partitions = []
        for subtask, part in enumerate(parts):
            if isinstance(node, CoGroup):  # a join looks up record by record
                asked = [shipped[subtask], []]
                self.memory.check_room(node, asked if side == 1 else asked[::-1])
            context = self._context(node, subtask, len(parts), scope)
            records = (decode(batch, other.schema) for batch in shipped[subtask])
            own: Any = _own_functions(node)
            run: Any = probe if isinstance(node, Join) else co_group_probe
            made = (conform(batch, node.schema) for batch in run(own, context, records, side, part.lookup))
            try:
                results.append(self.memory.kept(encoded(made, node.schema)))
            except HeadraceError as error:
                add_place(error, place_of(node.name, subtask, len(parts)), None)
                raise
            self._report([context])
        return results


def _num_rows(partition: Partition) -> int:
    return sum(batch.num_rows for batch in partition)


def _own_functions(node: Node) -> Node:
    """The node with function objects of its own, as a subtask on another machine would have; plain functions stay."""
    function = getattr(node, "function", None)
    if function is None or isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type)):
        return node
    if not isinstance(function, Function) and not callable(getattr(function, "open", None)):
        return node
    try:
        own = copied(function)
    except Exception as error:
        message = f"a function cannot be sent to a subtask: {error!r}"
        raise ProgramError(message, operator=node.name, hint="make what cannot be pickled in open()") from error
    return replace(node, function=own)  # type: ignore[call-arg]


def _stage_of(chain: Sequence[Node], state: StageState, told: Mapping[str, Any], num_partitions: int) -> StageView:
    """Nodes that run as one, for those who look."""
    name = " -> ".join(node.name for node in chain)
    rows, duration_ms = told["rows"], round(told["seconds"] * 1_000)
    inputs = [*chain[0].inputs, *(other for link in chain for _name, other in link.broadcasts)]
    return StageView(
        chain[-1].id,
        name,
        state,
        num_partitions,
        num_partitions,
        num_running=int(state is StageState.RUNNING),  # partitions come one after the other
        rows=rows,
        duration_ms=duration_ms,
        inputs=tuple(dict.fromkeys(node.id for node in inputs)),
    )
