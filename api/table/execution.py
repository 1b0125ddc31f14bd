"""Runs plans of tables: as jobs of streams, or as data sets.

What a program's settings say counts while one plan is run, and is gone afterwards, so that RESET leaves nothing behind.

Source: Flink's ``Planner`` and ``Executor``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import Call
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.optimizer.growth import SETTING, Growth, states_of, ttl_text, ttls_of, with_time_to_live
from headrace.engine.optimizer.optimizer import optimize
from headrace.engine.optimizer.plan_text import explain_tree
from headrace.engine.optimizer.stream_traits import is_temporal_sort, takes_back
from headrace.engine.optimizer.table_rules import as_data_sets, as_streams
from headrace.engine.optimizer.tuning.choices import Phases, Tuning
from headrace.engine.optimizer.tuning.rules import as_tuned
from headrace.engine.optimizer.tuning.shared_joins import SHARING
from headrace.engine.optimizer.upgrades.stored_plan import StoredPlan
from headrace.engine.optimizer.upgrades.upgrade import SinkOfPlan
from headrace.engine.optimizer.upsert_keys import upsert_keys
from headrace.engine.partitions.wire_records import ordered
from headrace.engine.plan.match_nodes import MatchRecognize
from headrace.engine.plan.plan import Node, Order, Select, Sort, walk
from headrace.engine.plan.run_watch import RunWatch
from headrace.engine.plan.table_nodes import Scan, TopN

from ..dataset import ExecutionEnvironment
from ..dataset.dataset import DataSet
from ..dataset.live_run import live_output
from ..jobs.client import JobClient
from ..jobs.notebook_output import LiveOutput
from ..jobs.plan_picture import draw_nodes
from ..sql.parsing.errors import SqlError
from ..sql.parsing.statements import StopJob
from ..sql.relations import Builder, Relation, renamed
from ..stream.collected_rows import CollectedRows
from ..stream.environment import StreamExecutionEnvironment
from .analysis import analyzed_batches, analyzed_job
from .catalog import CatalogTable
from .compiled_plans import refuse_rows_at_hand, require_same, ttls_as_compiled
from .connectors.changelog import ChangelogBlocks, batch_of_block, behind
from .connectors.contract import Options, TableConnector
from .connectors.ends import BlackholeTable
from .inserting import is_told_apart
from .live_table import live_table
from .lowering.streams import Streams
from .result import RowsResult, StatementResult, TableResult
from .settings import Settings
from .upgrading import RESULT, Beginning, beginning_of, sink_of

__all__ = ["Execution"]

_MODES = ("streaming", "batch")
_LOG = logging.getLogger("headrace.table")
_BOUND_BY = "; to bound it, "


class Execution:
    """Runs plans of one program.

    Args:
        mode: ``streaming`` or ``batch``, until ``SET 'execution.runtime-mode'`` says otherwise.
        parallelism: Of all operators; None for the default.
        options: In streaming mode those of `StreamExecutionEnvironment.get_execution_environment`; in batch mode
            ``executor``.

    Raises:
        ConfigurationError: If there is no such mode or option.
    """

    def __init__(self, mode: str, parallelism: int | None, options: Mapping[str, Any]) -> None:
        if mode not in _MODES:
            message = f"mode is one of {', '.join(_MODES)}; got {mode!r}"
            raise ConfigurationError(message)
        unknown = [name for name in options if mode == "batch" and name != "executor"]
        if unknown:
            message = f"batch mode has no option {unknown[0]!r}; it has executor"
            raise ConfigurationError(message)
        self.settings = Settings()
        self._mode = mode
        self._parallelism = parallelism
        # Numbers the nodes of plans, and runs those of batch mode; starts nothing before a job does.
        self.data_sets = ExecutionEnvironment.get_execution_environment(
            options.get("executor", "local") if mode == "batch" else "local", parallelism
        )
        # Made with the first use: a program may stay in one mode.
        self._streams: StreamExecutionEnvironment | None = None
        self._stream_options = dict(options) if mode == "streaming" else {}
        # INSERTs that were not waited for, in the order of their submission.
        self.jobs: list[JobClient] = []
        if mode == "streaming":
            self.streams()

    @property
    def mode(self) -> str:
        """How plans are run now: ``streaming`` or ``batch``."""
        return str(self.settings.value("execution.runtime-mode", self._mode))

    def streams(self) -> StreamExecutionEnvironment:
        """Return what jobs of streaming mode are made in.

        Raises:
            ProgramError: In batch mode.
        """
        if self.mode == "batch":
            message = "batch mode has no streams"
            raise ProgramError(message)
        if self._streams is None:
            self._streams = StreamExecutionEnvironment.get_execution_environment(**self._stream_options)
            if self._parallelism is not None:
                self._streams.set_parallelism(self._parallelism)
        return self._streams

    def new_id(self) -> int:
        """Return a number for a node of a plan."""
        return self.data_sets.new_id()

    def close(self) -> None:
        """Let go of the cluster, if one was started."""
        self.data_sets.close()
        if self._streams is not None:
            self._streams.close()

    # ----------------------------------------------------------------------------------------------------------- plans

    def optimized(self, roots: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return plans as they are run.

        Raises:
            ProgramError: If the mode cannot run one of them.
        """
        made = self._rewritten(roots)
        for node in walk(*made):
            if isinstance(node, MatchRecognize):
                raise node.refused
        return made

    def _rewritten(self, roots: tuple[Node, ...]) -> tuple[Node, ...]:
        """Plans as they are shown, also where nothing can run them yet."""
        shares = self.settings.value("table.optimizer.reuse-sub-plan-enabled", default=True)
        if self.mode == "streaming":
            multi_joins = self.settings.value("table.optimizer.multi-join.enabled", default=False)
            streams = as_streams(self.new_id, shares=shares, multi_joins=multi_joins)
            # Rules go by the time to live; what they make has it, too.
            ttl_ms: int = self.settings.value(SETTING, 0)
            made = optimize(with_time_to_live(roots, ttl_ms), rules=(*streams, *as_tuned(self.new_id, self._tuning())))
            return with_time_to_live(made, ttl_ms)
        return optimize(roots, rules=as_data_sets(self.new_id, self._source, _now_ms, shares=shares))

    def _tuning(self) -> Tuning:
        return Tuning(
            Phases(self.settings.value("table.optimizer.agg-phase-strategy", Phases.AUTO.value)),
            int(self.settings.value("parallelism.default", self.streams().get_parallelism())),
            self.settings.mini_batches,
            self.settings.num_buckets,
            self.settings.value(SHARING, default=False),
        )

    def explained(self, roots: tuple[Node, ...]) -> str:
        """Return plans, as they are written and as they are run, for people."""
        optimized = self._rewritten(roots)
        is_stream = self.mode == "streaming"
        plan = explain_tree(optimized, _changes_of if is_stream else None)
        title = "== Plan of streams ==" if is_stream else "== Plan of data sets =="
        parts = [f"== Logical plan ==\n{explain_tree(roots)}", f"{title}\n{plan}"]
        states = states_of(*optimized) if is_stream else ()
        lines = [f"{one}{'' if one.remedy is None else f'{_BOUND_BY}{one.remedy}'}" for one in states]
        if lines:
            parts.append("\n".join(["== State ==", *lines]))
        return "\n\n".join(parts)

    def drawn(self, roots: tuple[Node, ...]) -> str:
        """Return plans as they are run, as a drawing for a notebook."""
        optimized = self._rewritten(roots)
        if self.mode == "streaming":
            return draw_nodes(optimized, lambda node: _changes_of(node).partition(", ")[0], "the plan of streams")
        return draw_nodes(optimized, lambda node: node.operator, "the plan of data sets")

    def explained_upgrade(
        self, path: str, roots: tuple[Node, ...], sinks: Sequence[SinkOfPlan], statements: Sequence[str]
    ) -> TableResult:
        """Return what becomes of the state of a savepoint if a query goes on from it.

        Raises:
            ProgramError: In batch mode, or if the savepoint does not say what its state is about.
            CheckpointError: If it cannot be read.
        """
        env = self.streams()
        with self.settings.applied_to(env):
            key_file = env.get_checkpoint_config().get_key_file()
        return StatementResult(beginning_of(self.optimized(roots), sinks, statements, path, key_file).explained())

    def named(self, relation: Relation) -> Node:
        """Return the rows without helpers, if there are any."""
        names = [one.column for one in relation.scope.columns]
        if relation.node.schema is not None and relation.node.schema.names == names:
            return relation.node
        return Builder(self.new_id).selected(relation.node, renamed(relation, names))

    def _source(self, scan: Scan) -> Node:
        """The rows of a table in batch mode."""
        table: TableConnector = scan.table
        assert scan.schema is not None
        if not table.is_bounded:
            message = f"{scan.name} has no end; batch mode reads tables that have one"
            raise ProgramError(message)
        return table.data_set(self.data_sets, scan.schema).take_node()

    # --------------------------------------------------------------------------------------------------------- queries

    def result_of(self, relation: Relation) -> TableResult:
        """Return the rows of a query. The settings are those of now, whenever the rows are asked for."""
        root = self.optimized((self.named(relation),))[0]
        assert root.schema is not None
        schema, settings = root.schema, self.settings.copy()
        if self.mode == "batch":
            return RowsResult(
                schema,
                lambda: self._batches(root, settings),
                live=lambda _result, limit: self._live_batches(root, settings, limit),
            )
        _warn_of_growth((root,))
        orders, env = _orders_of(root), self.streams()
        return RowsResult(
            schema,
            lambda: self._changes(root, schema, settings, env),
            _sorter(orders) if orders else None,
            live=lambda result, limit: self._live_changes(result, root, settings, env, limit),
        )

    def _changes(
        self, root: Node, schema: pa.Schema, settings: Settings, env: StreamExecutionEnvironment
    ) -> Iterator[Batch]:
        """Run a query over streams; leaving it before its end cancels the job."""
        with self._collected(root, settings, env) as rows:
            for block in rows:
                yield batch_of_block(block, schema)

    def _collected(self, root: Node, settings: Settings, env: StreamExecutionEnvironment) -> CollectedRows:
        """Begin a query over streams; its blocks of changes come one by one."""
        with settings.applied_to(env):
            beginning = self._beginning((root,), (RESULT,), (), settings, env)
            streams = Streams(env, settings, beginning.upgrade, beginning.token)
            blocks = behind(streams.of(root), ChangelogBlocks(), "changelog")
            beginning.require_positions(env.get_stream_graph, settings.accepted)
            rows: CollectedRows = blocks.execute_and_collect(settings.value("pipeline.name", "query"))
        return rows

    def _live_changes(
        self, result: TableResult, root: Node, settings: Settings, env: StreamExecutionEnvironment, limit: int
    ) -> LiveOutput:
        with env.changed_apart():
            env.set_progress_listener(lambda view: None)  # what one looks at is the table
            rows = self._collected(root, settings, env)
        return live_table(result, rows, limit)

    def _live_batches(self, root: Node, settings: Settings, limit: int) -> LiveOutput:
        return live_output(lambda watch: self._batch_table(root, settings, watch), limit)

    def _beginning(
        self,
        roots: tuple[Node, ...],
        sinks: Sequence[SinkOfPlan],
        statements: Sequence[str],
        settings: Settings,
        env: StreamExecutionEnvironment,
    ) -> Beginning:
        """What plans begin with; the next job goes on from there."""
        path = env.get_restore_path()
        beginning = beginning_of(roots, sinks, statements, path, env.get_checkpoint_config().get_key_file())
        beginning.require(settings.accepted)
        env.set_plan(beginning.plan)
        if path is not None:
            env.allow_non_restored_state()  # all that is lost has been looked at
        return beginning

    def _batch_table(self, root: Node, settings: Settings, watch: RunWatch | None = None) -> pa.Table:
        with self._set_up_for_batches(settings):
            return DataSet(self.data_sets, root).to_arrow(watch=watch)

    def _batches(self, root: Node, settings: Settings) -> Iterator[Batch]:
        table = self._batch_table(root, settings)
        for batch in table.combine_chunks().to_batches():
            yield Batch.of_columns(batch)

    @contextmanager
    def _set_up_for_batches(self, settings: Settings) -> Iterator[None]:
        before = self.data_sets.get_parallelism()
        self.data_sets.set_parallelism(settings.value("parallelism.default", before))
        try:
            yield
        finally:
            self.data_sets.set_parallelism(before)

    # ---------------------------------------------------------------------------------------------------------- writing

    def compiled(self, inserts: list[tuple[CatalogTable, Relation]], statement: str) -> StoredPlan:
        """Return the plan of a statement, as `write` would run it.

        Raises:
            ProgramError: In batch mode, or if the plan could not be run by another program.
        """
        self.streams()
        roots = self.optimized(tuple(relation.node for _, relation in inserts))
        refuse_rows_at_hand(roots)
        return beginning_of(roots, [sink_of(table) for table, _ in inserts], [statement], None).upgrade.plan

    def write(
        self,
        inserts: list[tuple[CatalogTable, Relation]],
        statements: Sequence[str] = (),
        compiled: StoredPlan | None = None,
    ) -> TableResult:
        """Run queries into tables, as one job, to its end (unless ``table.dml-sync`` is false).

        Args:
            inserts: Each table with the rows for it.
            statements: The texts that say so, if there are any, without secrets.
            compiled: The plan that it must have; None for any.
        """
        roots = self.optimized(tuple(relation.node for _, relation in inserts))
        if compiled is not None:
            self.streams()
            sinks = [sink_of(table) for table, _ in inserts]
            fresh = beginning_of(roots, sinks, statements, None, version=compiled.version)
            require_same(compiled, fresh.upgrade.plan)
            roots = with_time_to_live(roots, 0, ttls_as_compiled(compiled, fresh.upgrade))
        if self.mode == "batch":
            with self._set_up_for_batches(self.settings):
                self._write_batches(inserts, roots)
            return StatementResult.of_texts("result", ["OK"])
        client = self._write_streams(inserts, roots, statements)
        if self.settings.value("table.dml-sync", default=True):
            _wait_for(client)
            return StatementResult(pa.table({"result": ["OK"]}), client)
        self.jobs.append(client)
        return StatementResult.of_job(client)

    def _write_batches(self, inserts: list[tuple[CatalogTable, Relation]], roots: tuple[Node, ...]) -> None:
        with self.data_sets.all_sinks_or_none():
            for table, rows in self._rows_of_tables(inserts, roots):
                table.connector.write_data_set(rows, table.statement.name)
        if self.data_sets.has_sinks:
            self.data_sets.execute(self._name_of(inserts))

    def _write_streams(
        self, inserts: list[tuple[CatalogTable, Relation]], roots: tuple[Node, ...], statements: Sequence[str] = ()
    ) -> JobClient:
        """Begin to write, as one job."""
        env = self.streams()
        for (table, _), root in zip(inserts, roots, strict=True):
            if takes_back(root) and not table.connector.takes_changes:
                message = (
                    f"table {table.statement.name!r} takes rows that only come; those of the query are updated or "
                    "taken back"
                )
                raise ProgramError(message, hint="write to a connector that takes changes, or aggregate in windows")
            if takes_back(root) and table.connector.applies_by_key:
                _require_key(root, table)
        _warn_of_growth(roots)
        with self.settings.applied_to(env):
            sinks = [sink_of(table) for table, _ in inserts]
            beginning = self._beginning(roots, sinks, statements, self.settings, env)
            streams = Streams(env, self.settings, beginning.upgrade, beginning.token)
            for (table, _), root, number in zip(inserts, roots, range(len(roots)), strict=True):
                assert root.schema is not None
                stream = streams.of(root)
                with streams.writing(number, root):
                    table.connector.write_stream(stream, root.schema, table.statement.name)
            beginning.require_positions(env.get_stream_graph, self.settings.accepted)
            return env.execute_async(self._name_of(inserts))

    def _name_of(self, inserts: list[tuple[CatalogTable, Relation]]) -> str:
        """What the job is called that writes tables."""
        tables = ", ".join(table.statement.name for table, _ in inserts)
        return str(self.settings.value("pipeline.name", f"insert into {tables}"))

    def _rows_of_tables(
        self, inserts: list[tuple[CatalogTable, Relation]], roots: tuple[Node, ...]
    ) -> Iterator[tuple[CatalogTable, DataSet]]:
        """Each table with all that is written into it."""
        found: dict[int, tuple[CatalogTable, list[DataSet]]] = {}
        for (table, _), root in zip(inserts, roots, strict=True):
            found.setdefault(id(table.connector), (table, []))[1].append(DataSet(self.data_sets, root))
        for table, (first, *more) in found.values():
            yield table, first.union(*more) if more else first

    # -------------------------------------------------------------------------------------------------------- analysis

    def analyzed(self, relation: Relation) -> list[str]:
        """Run a query to its end without its rows, and return what its operators have done.

        Raises:
            ProgramError: If it has no end.
        """
        roots = self.optimized((self.named(relation),))
        if self.mode == "batch":
            return self._analyzed_batches(roots, lambda: DataSet(self.data_sets, roots[0]).count())
        env, forget = self.streams(), BlackholeTable(Options({}, "a query"), pa.schema([]), ())
        _require_end(roots)
        with self.settings.applied_to(env):
            assert roots[0].schema is not None
            forget.write_stream(Streams(env, self.settings).of(roots[0]), roots[0].schema, "result")
            client = env.execute_async(self.settings.value("pipeline.name", "query"))
        return self._analyzed_client(client)

    def analyzed_writing(self, inserts: list[tuple[CatalogTable, Relation]]) -> list[str]:
        """Write, to the end, and return what the operators have done.

        Raises:
            ProgramError: As `write`, and if there is no end.
        """
        roots = self.optimized(tuple(relation.node for _, relation in inserts))
        if self.mode == "batch":
            return self._analyzed_batches(roots, lambda: self._write_batches(inserts, roots))
        _require_end(roots)
        return self._analyzed_client(self._write_streams(inserts, roots))

    def _analyzed_client(self, client: JobClient) -> list[str]:
        _wait_for(client)
        return analyzed_job(client.view())

    def _analyzed_batches(self, roots: tuple[Node, ...], run: Callable[[], Any]) -> list[str]:
        with self._set_up_for_batches(self.settings):
            run()
        result = self.data_sets.get_last_job_execution_result()
        return analyzed_batches(roots, result.statistics.get("nodes", {}), result.net_runtime_ms / 1_000)

    def analyzed_job(self, job: str) -> list[str]:
        """Return what a job that was not waited for has done so far.

        Raises:
            SqlError: If there is none with the id.
        """
        return analyzed_job(self._job(job).view())

    # ------------------------------------------------------------------------------------------------------------ jobs

    def shown_jobs(self) -> TableResult:
        """Return the jobs of INSERTs that were not waited for."""
        views = [client.view() for client in self.jobs]
        started = pa.array([view.started_ms for view in views], pa.timestamp("ms"))
        texts = {
            "job id": [view.job_id for view in views],
            "job name": [view.name for view in views],
            "status": [view.state.value for view in views],
        }
        columns = {name: pa.array(values, pa.string()) for name, values in texts.items()}
        return StatementResult(pa.table({**columns, "start time": started}))

    def stop_job(self, statement: StopJob) -> TableResult:
        """End one of them in order.

        Raises:
            SqlError: If there is none with the id.
        """
        client = self._job(statement.job)
        if statement.with_savepoint:
            place = client.stop_with_savepoint(drain=statement.with_drain)
            return StatementResult.of_texts("savepoint path", [place])
        client.stop(drain=statement.with_drain)
        return StatementResult.of_texts("result", ["OK"])

    def _job(self, job: str) -> JobClient:
        """The one of `jobs` whose id begins so."""
        found = [client for client in self.jobs if str(client.get_job_id()).startswith(job)]
        if len(found) != 1:
            message = f"{job!r} names {len(found) or 'no'} job{'s' if found else ''} of this program"
            raise SqlError(message, hint="SHOW JOBS lists them")
        return found[0]


def _require_key(root: Node, table: CatalogTable) -> None:
    """See that the PRIMARY KEY tells the rows of a query apart: else a change would be applied to another row.

    Raises:
        ProgramError: If that is not known.
    """
    if is_told_apart(root, table):
        return
    own, found = table.connector.primary_key, upsert_keys(root)
    known = f"they are by {' or '.join('(' + ', '.join(key) + ')' for key in found)}" if found else "nothing tells them"
    message = f"PRIMARY KEY ({', '.join(own)}) of table {table.statement.name!r} does not tell the query's rows apart"
    raise ProgramError(message, hint=f"{known}; GROUP BY the key's columns, or say which row is written: {_CONFLICT}")


_CONFLICT = "ON CONFLICT DO DEDUPLICATE (the last, which keeps all), DO NOTHING (the first) or DO ERROR (the job ends)"


def _require_end(roots: tuple[Node, ...]) -> None:
    """See that what is to be run to its end has one.

    Raises:
        ProgramError: If a table has none.
    """
    for node in walk(*roots):
        if isinstance(node, Scan) and not node.table.is_bounded:
            message = f"{node.name} has no end, and EXPLAIN ANALYZE runs a statement to its end"
            hint = "SET 'table.dml-sync' = 'false', start it by INSERT, and EXPLAIN ANALYZE JOB 'its id' (SHOW JOBS)"
            raise ProgramError(message, hint=hint)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _wait_for(client: JobClient) -> None:
    """Follow a job to its end; Ctrl-C cancels it, and the cluster stays for the next one."""
    try:
        client.result()
    except KeyboardInterrupt:
        client.cancel()
        raise


def _warn_of_growth(roots: tuple[Node, ...]) -> None:
    """Say which state of queries over streams grows as long as they run."""
    for state in states_of(*roots):
        if state.growth is Growth.UNBOUNDED:
            _LOG.warning("the state of %s%s%s", state, _BOUND_BY, state.remedy)


def _changes_of(node: Node) -> str:
    """Which changes a node gives, as Flink writes them, which columns tell its rows apart, and its time to live."""
    changes = "[I,UB,UA,D]" if takes_back(node) else "[I]"
    keys = " or ".join(f"({', '.join(key)})" for key in upsert_keys(node))
    ttl = ttl_text(ttls_of(node))
    return ", ".join([changes, *([f"key {keys}"] if keys else []), *([f"time to live {ttl}"] if ttl else [])])


def _orders_of(root: Node) -> tuple[Order, ...]:
    """The order in which a stream's final table is given: that of its columns.

    Raises:
        ProgramError: If it goes by a column that is not selected.
    """
    rows, names = root, {}
    if isinstance(root, Select) and isinstance(root.inputs[0], (Sort, TopN)):
        rows = root.inputs[0]
        names = {value.structure[1]: name for name, value in root.columns.items() if value.structure[0] == "col"}
    if not isinstance(rows, (Sort, TopN)):
        return ()
    if rows is root:
        return rows.orders
    names |= _null_helpers(rows, names)
    hidden = [order for order in rows.orders if order.column not in names]
    if hidden and (isinstance(rows, TopN) or is_temporal_sort(rows)):
        return ()  # which rows there are is right; what their order goes by is not among them
    if hidden:
        message = "on a stream ORDER BY goes by columns of the result"
        raise ProgramError(message, hint="select what it goes by, too")
    return tuple(Order(names[order.column], order.ascending) for order in rows.orders)


_IS_NULL = "$is null "
"""In front of a column's name: whether its values are NULL, which NULLS FIRST and NULLS LAST go by."""


def _null_helpers(rows: Sort | TopN, names: dict[Any, str]) -> dict[Any, str]:
    """What helpers of NULLS FIRST and NULLS LAST are called: they say of a column of the result where it is NULL."""
    below = rows.inputs[0]
    if not isinstance(below, Select):
        return {}
    chosen = {value.structure: names[name] for name, value in below.columns.items() if name in names}
    chosen |= {("col", name): names[name] for name in names if below.keep and name not in below.columns}
    asked = {
        helper: value.arguments[0].structure
        for helper, value in below.columns.items()
        if isinstance(value, Call) and value.function == "is_null"
    }
    return {helper: f"{_IS_NULL}{chosen[of]}" for helper, of in asked.items() if of in chosen}


def _sorter(orders: tuple[Order, ...]) -> Callable[[pa.Table], pa.Table]:
    def sort(table: pa.Table) -> pa.Table:
        if table.num_rows == 0:
            return table
        batch = table.combine_chunks().to_batches()[0]
        for name in [str(order.column) for order in orders if str(order.column).startswith(_IS_NULL)]:
            batch = batch.append_column(name, batch.column(name.removeprefix(_IS_NULL)).is_null())
        return table.take(pa.array(ordered(Batch.of_columns(batch), orders)))

    return sort
