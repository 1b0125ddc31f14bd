"""The environment of table programs: tables are created, queries are asked, results are written.

One program is about streams or about bounded data, by ``mode``; the same statements mean the same table in both. In
streaming mode a query is a job of the engine, in batch mode a plan of data sets, on this process or on Spark.

Source: PyFlink's ``TableEnvironment``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ProgramError, nearest
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.optimizer.stream_traits import takes_back
from headrace.engine.plan.plan import Node
from headrace.state.credentials import masked

from ..arguments.absent_names import absence_of
from ..arguments.checks import require_instance
from ..dataset import ExecutionEnvironment
from ..dataset.dataset import DataSet
from ..sql.functions.contract import Function, Typed, literal_of
from ..sql.functions.registry import FunctionRegistry, SqlFunction
from ..sql.hints import table_options
from ..sql.parsing.errors import SqlError, SqlText
from ..sql.parsing.parser import parse_script, parse_statements, pieces_of
from ..sql.parsing.statements import (
    CompilePlan,
    CreateCatalog,
    CreateDatabase,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    ExecutePlan,
    Explain,
    ExplainJob,
    ExplainUpgrade,
    Insert,
    InsertSet,
    Query,
    Reset,
    Set,
    Show,
    Statement,
    StopJob,
    Use,
)
from ..sql.parsing.understood import require_understood
from ..sql.query import QueryBinder
from ..sql.relations import Builder, Relation
from ..stream.data_stream import DataStream
from ..stream.environment import StreamExecutionEnvironment
from .aggregate_functions import UserDefinedAggregateFunction
from .catalog import Catalogs, CatalogTable, CatalogView, TemporaryTable, TemporaryView, table_entry
from .catalog_verbs import CatalogVerbs, quoted_path
from .compiled_plans import plan_exists, read_plan, write_plan
from .connectors.changelog import ChangelogColumns, behind
from .connectors.program_rows import GivenTable
from .execution import Execution
from .file_catalog import catalog_of
from .functions import UserDefinedFunction, UserDefinedTableFunction
from .inserting import Insertion, StatementSet, rows_of_table, without_conflicts
from .lowering.streams import Streams
from .result import StatementResult, TableResult
from .settings import Settings, TableConfig
from .shown import described, shown
from .statement_tables import StatementTables
from .table import Table
from .table_descriptors import EnvironmentSettings, fields_of
from .upgrading import RESULT, sink_of

__all__ = ["TableEnvironment"]


class TableEnvironment(CatalogVerbs):
    """Where table programs begin. Made by `create`."""

    def __init__(self, mode: str, parallelism: int | None, options: Mapping[str, Any]) -> None:
        self._catalogs = Catalogs()
        self._functions = FunctionRegistry()
        self._functions.add(
            Function("CURRENT_DATABASE", "CURRENT_DATABASE()", self._current_database, 0, 0, "The current database.")
        )
        self._unnamed: list[GivenTable] = []
        self._execution = Execution(mode, parallelism, options)

    if not TYPE_CHECKING:  # who checks types says himself that there is no such method

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(absence_of("TableEnvironment", name), name=name, obj=self)

    @staticmethod
    def create(
        mode: str | EnvironmentSettings = "streaming", parallelism: int | None = None, **options: Any
    ) -> TableEnvironment:
        """Make an environment.

        Args:
            mode: ``streaming`` or ``batch``; or PyFlink's ``EnvironmentSettings.in_streaming_mode()``.
            parallelism: Of all operators; None for the default.
            **options: In streaming mode those of `StreamExecutionEnvironment.get_execution_environment`; in batch mode
                ``executor``: ``local`` (default) or ``spark``.

        Raises:
            ConfigurationError: If there is no such mode or option.
        """
        if isinstance(mode, EnvironmentSettings):
            return TableEnvironment(mode.mode, parallelism, {**mode.options, **options})
        return TableEnvironment(mode, parallelism, options)

    @property
    def stream_environment(self) -> StreamExecutionEnvironment:
        """What jobs of streaming mode are made in: checkpoints, state backend and restarts are set there.

        Raises:
            ProgramError: In batch mode.
        """
        return self._execution.streams()

    @property
    def data_set_environment(self) -> ExecutionEnvironment:
        """What plans of batch mode are made in; data sets of it can be tables."""
        return self._execution.data_sets

    @property
    def mode(self) -> str:
        """How queries run now: ``streaming`` or ``batch``."""
        return self._execution.mode

    @property
    def settings(self) -> Settings:
        """What SET has said."""
        return self._execution.settings

    def close(self) -> None:
        """Let go of the cluster, if one was started."""
        self._execution.close()

    def __enter__(self) -> TableEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _current_database(self) -> Typed:
        return literal_of(self._catalogs.current[1], pa.string())

    # ------------------------------------------------------------------------------------------------------- statements

    def execute_sql(self, text: str) -> TableResult:
        """Run a statement. An INSERT runs to its end.

        Args:
            text: One statement.

        Returns:
            The rows of a query, which is run when they are asked for; else what the statement tells.

        Raises:
            SqlError: If it cannot be run, with the place in the text.
        """
        statements = parse_statements(text)
        if len(statements) != 1:
            message = f"execute_sql takes one statement; got {len(statements)}"
            raise _at_second(text, message, hint="execute_script takes several")
        source = SqlText(text)
        with source.not_too_deep():
            return self._execute(statements[0], source)

    def execute_script(self, text: str) -> list[TableResult]:
        """Run statements that semicolons separate, one after the other."""
        results = []
        for one, source in parse_script(text):
            with source.not_too_deep():
                results.append(self._execute(one, source))
        return results

    def sql_query(self, text: str) -> Table:
        """Return a query as a table, to go on with."""
        statements = parse_statements(text)
        if len(statements) != 1 or not isinstance(statements[0], Query):
            message = "sql_query takes one query"
            raise _at_second(text, message)
        source = SqlText(text)
        with source.not_too_deep():
            return Table(self._bound(statements[0], source), self)

    def explain_sql(self, text: str) -> str:
        """Return how a query or INSERT would be run."""
        statements = parse_statements(text)
        if len(statements) == 1 and isinstance(statements[0], Explain):
            statements = [statements[0].statement]
        if len(statements) != 1 or not isinstance(statements[0], (Query, Insert, InsertSet)):
            message = "queries and INSERT statements can be explained"
            raise _at_second(text, message)
        source = SqlText(text)
        with source.not_too_deep():
            return self._explained(statements[0], source)

    def _execute(self, statement: Statement, text: SqlText) -> TableResult:
        done = StatementResult.of_texts("result", ["OK"])
        if isinstance(statement, Query):
            return self._execution.result_of(self._bound(statement, text))
        if isinstance(statement, Insert):
            return self._execution.write(self._inserts(statement, text), [masked(text.text.strip())])
        if isinstance(statement, InsertSet):
            return self._execution.write(self._inserts(statement, text), [masked(text.text.strip())])
        if isinstance(statement, CompilePlan):
            return self._compile_plan(statement, text)
        if isinstance(statement, ExecutePlan):
            return self._execute_plan(statement.place)
        if isinstance(statement, ExplainUpgrade):
            return self._explained_upgrade(statement, text)
        if isinstance(statement, CreateTable):
            self._create_table(statement, text)
        elif isinstance(statement, CreateView):
            self._create_view(statement, text)
        elif isinstance(statement, Drop):
            self._drop(statement)
        elif isinstance(statement, CreateCatalog):
            self._create_catalog(statement)
        elif isinstance(statement, CreateDatabase):
            self._catalogs.create_database(statement.name, if_not_exists=statement.if_not_exists)
        elif isinstance(statement, Use):
            self._catalogs.use(statement.kind, statement.name)
        elif isinstance(statement, StopJob):
            return self._execution.stop_job(statement)
        elif isinstance(statement, Set):
            return self._set(statement, text)
        elif isinstance(statement, Reset):
            with text.at(statement.place):
                self._execution.settings.reset(statement.key)
        elif isinstance(statement, Describe):
            return self._described(statement.name)
        elif isinstance(statement, Show):
            jobs = self._execution.shown_jobs
            return shown(statement, self._catalogs, self._functions, jobs)
        elif isinstance(statement, ExplainJob):
            return StatementResult.of_texts("result", self._execution.analyzed_job(statement.job))
        elif statement.analyzes:
            return StatementResult.of_texts("result", self._analyzed(statement.statement, text))
        else:
            return StatementResult.of_texts("result", self._explained(statement.statement, text).splitlines())
        return done

    # --------------------------------------------------------------------------------------------------- tables, views

    def _create_table(self, statement: CreateTable, text: SqlText) -> None:
        if statement.if_not_exists and self._is_there(statement):
            return
        if statement.like is not None:
            like = self._catalogs.table(statement.like).statement
            taken = {one.name for one in statement.columns}
            statement = replace(
                statement,
                columns=(*(one for one in like.columns if one.name not in taken), *statement.columns),
                watermark=statement.watermark or like.watermark,
                primary_key=statement.primary_key or like.primary_key,
                partitioned_by=statement.partitioned_by or like.partitioned_by,
                options={**like.options, **statement.options},
            )
        entry = table_entry(self._catalogs.completed(statement), text)
        tables = self._tables()
        # Computed columns and the watermark are checked where they are written.
        tables.made(statement.name, entry, self._queries(text, tables))
        self._catalogs.add(statement.name, entry, is_temporary=statement.is_temporary)

    def _create_view(self, statement: CreateView, text: SqlText) -> None:
        if statement.if_not_exists and self._is_there(statement):
            return
        entry = CatalogView(statement, text, self._catalogs.current)
        tables = self._tables()
        tables.made(statement.name, entry, self._queries(text, tables))
        self._catalogs.add(statement.name, entry, is_temporary=statement.is_temporary)

    def _is_there(self, statement: CreateTable | CreateView) -> bool:
        path = self._catalogs.path_of(statement.name)
        return path in self._catalogs.temporary if statement.is_temporary else self._catalogs.find(path) is not None

    def _drop(self, statement: Drop) -> None:
        if statement.kind == "function":
            if not self._functions.drop(statement.name) and not statement.if_exists:
                message = f"there is no function {statement.name!r} of this program"
                raise SqlError(message)
            return
        if statement.kind == "catalog":
            self._catalogs.drop_catalog(statement.name, if_exists=statement.if_exists)
        elif statement.kind == "database":
            self._catalogs.drop_database(statement.name, if_exists=statement.if_exists, is_cascade=statement.is_cascade)
        else:
            self._catalogs.drop(
                statement.kind, statement.name, if_exists=statement.if_exists, is_temporary=statement.is_temporary
            )

    def _create_catalog(self, statement: CreateCatalog) -> None:
        if not (statement.if_not_exists and statement.name in self._catalogs.catalogs):
            self._catalogs.create_catalog(statement.name, catalog_of(statement.name, statement.options))

    def create_temporary_view(self, name: str, rows: Any, event_time: str | None = None, delay: Any = 0) -> None:
        """Give rows a name, to be asked for in SQL.

        Args:
            name: Of the view.
            rows: A `Table` of this environment, or what `from_rows` takes.
            event_time: The column that is the event time; a stream's own stays if it is the same, and a table's does.
            delay: How far behind it the watermark is: milliseconds, or a text such as ``"4 s"``.
        """
        if isinstance(rows, Table):
            if event_time is not None:
                message = "a Table has the event time of its rows"
                raise ProgramError(message, hint="say it where they come from: from_rows(..., event_time=...)")
            self._catalogs.add(name, TemporaryView(rows.relation_in(self)), is_temporary=True)
            return
        self._catalogs.add(name, self._temporary(GivenTable.of(rows), event_time, delay), is_temporary=True)

    def create_view(self, view_path: str, table: Table, ignore_if_exists: bool = False) -> None:
        """Keep a table of this environment in a catalog as a view; one in files has views of CREATE VIEW alone.

        Raises:
            SqlError: If the name is taken, unless that is ignored, or the catalog keeps texts.
        """
        require_instance("a view is of a Table", Table, table)
        if not (ignore_if_exists and self._catalogs.find(self._catalogs.path_of(view_path)) is not None):
            self._catalogs.add(view_path, TemporaryView(table.relation_in(self)), is_temporary=False)

    def create_temporary_function(
        self, name: str, function: UserDefinedFunction | UserDefinedTableFunction | UserDefinedAggregateFunction
    ) -> None:
        """Give a function of Python a name in SQL; made by `udf`, `udtf` or `udaf`."""
        if isinstance(function, UserDefinedAggregateFunction):
            self._functions.add_aggregate(function.named(name))
            return
        if isinstance(function, UserDefinedTableFunction):
            self._functions.add_table_function(function.named(name))
            return
        require_instance("a function is made by udf(...), udtf(...) or udaf(...)", UserDefinedFunction, function)
        self._functions.add(function.named(name))

    create_temporary_system_function = create_temporary_function

    def from_path(self, name: str) -> Table:
        """Return a table or view of the catalog."""
        return self.sql_query(f"SELECT * FROM {quoted_path(name)}")

    def from_rows(self, rows: Any, event_time: str | None = None, delay: Any = 0) -> Table:
        """Return rows at hand as a table.

        Args:
            rows: An Arrow table, a data frame of pandas, a data set of Ray, a `DataSet` of `data_set_environment` or,
                in streaming mode, a `DataStream` of `stream_environment` whose columns are known.
            event_time: The column that is the event time; a stream's own stays if it is the same.
            delay: How far behind it the watermark is: milliseconds, or a text such as ``"4 s"``.

        Raises:
            ProgramError: If they are no rows, or have no such column.
        """
        return self._given(self._temporary(GivenTable.of(rows), event_time, delay))

    from_arrow = from_pandas = from_data_stream = from_data_set = from_rows

    def from_elements(self, rows: Iterable[Sequence[Any]], names: Sequence[str] | str | pa.DataType) -> Table:
        """Return tuples of Python as a table.

        Args:
            rows: The tuples.
            names: Of the columns, whose types are those of the values; or a ROW type: ``"ROW<a INT, b STRING>"``.

        Raises:
            ProgramError: If it is another type.
        """
        fields = fields_of(names) if isinstance(names, (str, pa.DataType)) else [(name, None) for name in names]
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        arrays = {name: pa.array(column, kind) for (name, kind), column in zip(fields, columns, strict=True)}
        return self.from_rows(pa.table(arrays))

    def from_changelog_stream(
        self, stream: DataStream, kind_column: str = "op", event_time: str | None = None, delay: Any = 0
    ) -> Table:
        """Return a stream of changes as a table.

        Args:
            stream: Its records have known columns.
            kind_column: The one that says what a change is: ``+I``, ``-U``, ``+U``, ``-D``. The table is without it.
            event_time: As in `from_rows`.
            delay: As in `from_rows`.

        Guarantees:
            Changes stay in the order in which each subtask of the stream has them; what takes a row back must come
            behind it there.
        """
        return self._given(self._temporary(GivenTable.of_changes(stream, kind_column), event_time, delay))

    def to_data_stream(self, table: Table) -> DataStream:
        """Return a table as a stream of columns.

        Raises:
            ProgramError: If its rows are updated or taken back; `to_changelog_stream` says how.
        """
        root = self._root(table)
        if takes_back(root):
            message = "rows of the table are updated or taken back, and a stream has rows that only come"
            raise ProgramError(message, hint="to_changelog_stream gives the changes")
        return Streams(self.stream_environment, self.settings).of(root)

    def to_changelog_stream(self, table: Table, kind_column: str = "op") -> DataStream:
        """Return the changes of a table as a stream of columns; the first one says what each is."""
        root = self._root(table)
        assert root.schema is not None
        if kind_column in root.schema.names:
            message = f"the table has a column {kind_column!r} of its own"
            raise ProgramError(message, hint="name another one: kind_column=...")
        schema = pa.schema([pa.field(kind_column, pa.string()), *root.schema])
        return behind(
            Streams(self.stream_environment, self.settings).of(root), ChangelogColumns(kind_column), "changes", schema
        )

    def to_data_set(self, table: Table) -> DataSet:
        """Return a table of batch mode as a data set of `data_set_environment`."""
        if self._execution.mode != "batch":
            message = "streaming mode has no data sets"
            raise ProgramError(message, hint="to_data_stream gives a stream")
        return DataSet(self._execution.data_sets, self._root(table))

    def _root(self, table: Table) -> Node:
        return self._execution.optimized((self._execution.named(table.relation),))[0]

    def get_config(self) -> TableConfig:
        """Return the settings of later statements, as SET has them."""
        return TableConfig(self._execution.settings)

    def create_statement_set(self) -> StatementSet:
        """Return a set of INSERTs that become one job."""
        return StatementSet(self)

    def _temporary(self, connector: GivenTable, event_time: str | None, delay: Any) -> TemporaryTable:
        schema = connector.schema
        if event_time is not None and event_time not in schema.names:
            message = f"there is no column {event_time!r}"
            raise ProgramError(message, hint=nearest(event_time, schema.names))
        return TemporaryTable(connector, schema, event_time, parse_duration_ms(delay))

    def _given(self, rows: TemporaryTable) -> Table:
        given = rows.connector
        assert isinstance(given, GivenTable)
        if not given.is_at_hand:
            self._unnamed.append(given)
            given.unnamed = self._unnamed
        tables = self._tables()
        return Table(tables.made("given", rows, self._queries(SqlText(""), tables)), self)

    # ---------------------------------------------------------------------------------------------------- what there is

    def _described(self, name: str) -> TableResult:
        columns = self._bound(parse_statements(f"SELECT * FROM {quoted_path(name)}")[0], SqlText(name)).scope.columns
        return described(columns)

    def _set(self, statement: Set, text: SqlText) -> TableResult:
        if statement.key is None:
            return StatementResult(self._execution.settings.as_table())
        assert statement.value is not None
        with text.at(statement.place):
            self._execution.settings.set(statement.key, statement.value)
        return StatementResult.of_texts("result", ["OK"])

    def _analyzed(self, statement: Query | Insert | InsertSet, text: SqlText) -> list[str]:
        if isinstance(statement, Query):
            return self._execution.analyzed(self._bound(statement, text))
        tables = self._tables()
        inserts = statement.inserts if isinstance(statement, InsertSet) else (statement,)
        return self._execution.analyzed_writing([self._insert(one, text, tables) for one in inserts])

    def _explained(self, statement: Query | Insert | InsertSet, text: SqlText) -> str:
        tables = self._tables()
        roots: tuple[Node, ...]
        if isinstance(statement, Query):
            roots = (self._execution.named(self._queries(text, tables).bind(statement.tree)),)
        else:
            inserts = statement.inserts if isinstance(statement, InsertSet) else (statement,)
            roots = tuple(self._insert(one, text, tables)[1].node for one in inserts)
        return self._execution.explained(roots)

    def _inserts(self, statement: Insert | InsertSet, text: SqlText) -> list[tuple[CatalogTable, Relation]]:
        tables = self._tables()
        return [
            self._insert(one, text, tables)
            for one in (statement.inserts if isinstance(statement, InsertSet) else (statement,))
        ]

    def _compile_plan(self, statement: CompilePlan, text: SqlText) -> TableResult:
        if not (statement.if_not_exists and plan_exists(statement.place)):
            inserts = self._inserts(statement.statement, text)
            plan = self._execution.compiled(inserts, statement.text)
            write_plan(plan, statement.place, overwrites=statement.overwrites)
        return self._execute_plan(statement.place) if statement.executes else StatementResult.of_texts("result", ["OK"])

    def _execute_plan(self, place: str) -> TableResult:
        plan = read_plan(place)
        text = SqlText(plan.statements[0])
        statements = parse_statements(text.text)
        if len(statements) != 1 or not isinstance(statements[0], (Insert, InsertSet)):
            message = f"{place} holds no INSERT"
            raise SqlError(message)
        return self._execution.write(self._inserts(statements[0], text), plan.statements, plan)

    def _explained_upgrade(self, statement: ExplainUpgrade, text: SqlText) -> TableResult:
        of = statement.statement
        if isinstance(of, Query):
            root = self._execution.named(self._queries(text, self._tables()).bind(of.tree))
            return self._execution.explained_upgrade(statement.savepoint, (root,), (RESULT,), ())
        bound = self._inserts(of, text)
        roots, sinks = tuple(rows.node for _, rows in bound), [sink_of(table) for table, _ in bound]
        return self._execution.explained_upgrade(statement.savepoint, roots, sinks, [masked(text.text.strip())])

    # ---------------------------------------------------------------------------------------------------------- running

    def _builder(self) -> Builder:
        return Builder(self._execution.new_id)

    def _tables(self) -> StatementTables:
        return StatementTables(self._catalogs, self._builder())

    def _queries(self, text: SqlText, tables: StatementTables) -> QueryBinder:
        return QueryBinder(tables, self._functions, self._builder(), text)

    def _bound(self, statement: Any, text: SqlText) -> Relation:
        return self._queries(text, self._tables()).bind(statement.tree)

    def _insert(self, statement: Insert, text: SqlText, tables: StatementTables) -> Insertion:
        """The table, and the rows with its columns."""
        table = self._catalogs.table(statement.table)
        if statement.hinted is not None:
            with text.at(statement.hinted):
                table = table.with_options(table_options(statement.hinted, text))
        relation = self._queries(text, tables).bind(statement.query.tree)
        with text.at(statement.query.tree):
            rows = rows_of_table(table, statement.columns, relation, self._builder())
        if statement.conflict is None:
            return table, rows
        with text.at(statement.conflict.place):
            optimized = self._execution.optimized((rows.node,))[0]
            is_batch = self._execution.mode == "batch"
            rows = without_conflicts(table, rows, statement.conflict, self._builder(), optimized, is_batch=is_batch)
        return table, rows

    def result_of(self, relation: Relation) -> TableResult:
        """Return the rows of a query."""
        return self._execution.result_of(relation)

    def relation_of(self, text: str, tables: dict[str, Relation], functions: Iterable[SqlFunction]) -> Relation:
        """Return the rows of a query over tables by name; for verbs of `Table`."""
        statement = parse_statements(text)[0]
        if not isinstance(statement, Query):
            message = f"a verb makes a query; this is none: {text}"
            raise SqlError(message)
        source = SqlText(text)
        require_understood(statement.tree, source)
        queries = QueryBinder(self._tables(), self._functions.beside(functions), self._builder(), source)
        return queries.bind(statement.tree, tables)

    def insert_rows(self, table: str, relation: Relation) -> TableResult:
        """Write rows into a table, to their end; for `Table.execute_insert`."""
        return self.write_all([self.insert_into(table, relation)])

    def insert_into(self, table: str, relation: Relation) -> Insertion:
        """Return rows as they are written into a table; for `StatementSet`."""
        found = self._catalogs.table(table)
        return found, rows_of_table(found, (), relation, self._builder())

    def insert_of(self, text: str) -> Insertion:
        """Return the table and the rows of an INSERT; for `StatementSet`."""
        statements = parse_statements(text)
        if len(statements) != 1 or not isinstance(statements[0], Insert):
            message = "add_insert_sql takes one INSERT"
            raise SqlError(message)
        return self._insert(statements[0], SqlText(text), self._tables())

    def write_all(self, inserts: list[Insertion]) -> TableResult:
        """Write rows into tables in one job, to their end; for `StatementSet`."""
        return self._execution.write(inserts)

    def explained_writing(self, inserts: Sequence[Insertion]) -> str:
        """Return how rows are made that are written; for `StatementSet`."""
        return self._execution.explained(tuple(rows.node for _, rows in inserts))

    def explained(self, relation: Relation) -> str:
        """Return how rows are made; for `Table.explain`."""
        return self._execution.explained((self._execution.named(relation),))

    def drawn(self, relation: Relation) -> str:
        """Return how rows are made, as a drawing; for notebooks that show a `Table`."""
        return self._execution.drawn((self._execution.named(relation),))


def _at_second(text: str, message: str, *, hint: str | None = None) -> SqlError:
    """An error at the second statement of a text, or at the first if it is the only one."""
    pieces, source = pieces_of(text) or [""], SqlText(text)
    second = pieces[min(1, len(pieces) - 1)]
    return source.error(message, source.place_at(len(second) - len(second.lstrip())), hint=hint)
