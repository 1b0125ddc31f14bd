"""The environment of table programs: tables are created, queries are asked, results are written.

One program is about streams or about bounded data, by ``mode``; the same statements mean the same table in both. In
streaming mode a query is a job of the engine, in batch mode a plan of data sets, on this process or on Spark.

Source: PyFlink's ``TableEnvironment``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, ProgramError, nearest
from headrace.engine.optimizer.explain import explain_tree
from headrace.engine.optimizer.optimizer import optimize
from headrace.engine.optimizer.tables import STREAM_RULES, as_data_sets
from headrace.engine.partitions.wire import ordered
from headrace.engine.plan.plan import Node, Order, Select, Sort
from headrace.engine.plan.table_nodes import Scan, TopN

from ..arguments.checks import require_instance
from ..dataset import ExecutionEnvironment
from ..dataset.dataset import DataSet
from ..sql.functions.coercion import cast_to
from ..sql.functions.contract import Typed
from ..sql.functions.registry import FunctionRegistry
from ..sql.parsing.errors import SqlError, SqlText
from ..sql.parsing.statements import (
    CreateTable,
    CreateView,
    Describe,
    Drop,
    Explain,
    Insert,
    Query,
    Reset,
    Set,
    Show,
    Statement,
    StatementSet,
    parse_statements,
)
from ..sql.parsing.types import sql_name
from ..sql.query import QueryBinder
from ..sql.relations import Builder, Relation, renamed
from ..stream.environment import StreamExecutionEnvironment
from .catalog import Catalog, CatalogTable, CatalogView, StatementTables, TemporaryTable
from .connectors.changelog import ChangelogBlocks, batch_of_block, behind
from .connectors.contract import TableConnector
from .connectors.given import GivenTable
from .connectors.registry import connector_of
from .functions import UserDefinedFunction
from .result import RowsResult, StatementResult, TableResult
from .streams import Streams, takes_back
from .table import Table

__all__ = ["TableEnvironment"]

_MODES = ("streaming", "batch")


class TableEnvironment:
    """Where table programs begin. Made by `create`."""

    def __init__(self, mode: str, parallelism: int | None, options: Mapping[str, Any]) -> None:
        self._mode = mode
        self._catalog = Catalog()
        self._functions = FunctionRegistry()
        self._settings: dict[str, str] = {}
        # Numbers the nodes of plans, and runs those of batch mode; starts nothing before a job does.
        self._data_sets = ExecutionEnvironment.get_execution_environment(
            options.get("executor", "local") if mode == "batch" else "local", parallelism
        )
        self._streams: StreamExecutionEnvironment | None = None
        if mode == "streaming":
            self._streams = StreamExecutionEnvironment.get_execution_environment(**options)
            if parallelism is not None:
                self._streams.set_parallelism(parallelism)

    @staticmethod
    def create(mode: str = "streaming", parallelism: int | None = None, **options: Any) -> TableEnvironment:
        """Make an environment.

        Args:
            mode: ``streaming`` or ``batch``.
            parallelism: Of all operators; None for the default.
            **options: In streaming mode those of `StreamExecutionEnvironment.get_execution_environment`; in batch mode
                ``executor``: ``local`` (default) or ``spark``.

        Raises:
            ConfigurationError: If there is no such mode or option.
        """
        if mode not in _MODES:
            message = f"mode is one of {', '.join(_MODES)}; got {mode!r}"
            raise ConfigurationError(message)
        unknown = [name for name in options if mode == "batch" and name != "executor"]
        if unknown:
            message = f"batch mode has no option {unknown[0]!r}; it has executor"
            raise ConfigurationError(message)
        return TableEnvironment(mode, parallelism, options)

    @property
    def stream_environment(self) -> StreamExecutionEnvironment:
        """What jobs of streaming mode are made in: checkpoints, state backend and restarts are set there.

        Raises:
            ProgramError: In batch mode.
        """
        if self._streams is None:
            message = "batch mode has no streams"
            raise ProgramError(message)
        return self._streams

    def close(self) -> None:
        """Let go of the cluster, if one was started."""
        self._data_sets.close()
        if self._streams is not None:
            self._streams.close()

    def __enter__(self) -> TableEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            raise SqlError(message, hint="execute_script takes several")
        return self._execute(statements[0], SqlText(text))

    def execute_script(self, text: str) -> list[TableResult]:
        """Run statements that semicolons separate, one after the other."""
        return [self._execute(one, SqlText(text)) for one in parse_statements(text)]

    def sql_query(self, text: str) -> Table:
        """Return a query as a table, to go on with."""
        statements = parse_statements(text)
        if len(statements) != 1 or not isinstance(statements[0], Query):
            message = "sql_query takes one query"
            raise SqlError(message)
        return Table(self._bound(statements[0], SqlText(text)), self.result_of)

    def explain_sql(self, text: str) -> str:
        """Return how a query or INSERT would be run."""
        statements = parse_statements(text)
        if len(statements) == 1 and isinstance(statements[0], Explain):
            statements = [statements[0].statement]
        if len(statements) != 1 or not isinstance(statements[0], (Query, Insert, StatementSet)):
            message = "queries and INSERT statements can be explained"
            raise SqlError(message)
        return self._explained(statements[0], SqlText(text))

    def _execute(self, statement: Statement, text: SqlText) -> TableResult:
        done = StatementResult.of_texts("result", ["OK"])
        if isinstance(statement, Query):
            return self.result_of(self._bound(statement, text))
        if isinstance(statement, Insert):
            return self._write([self._insert(statement, text, self._tables())])
        if isinstance(statement, StatementSet):
            tables = self._tables()
            return self._write([self._insert(one, text, tables) for one in statement.inserts])
        if isinstance(statement, CreateTable):
            self._create_table(statement, text)
        elif isinstance(statement, CreateView):
            self._create_view(statement, text)
        elif isinstance(statement, Drop):
            self._drop(statement)
        elif isinstance(statement, Set):
            return self._set(statement)
        elif isinstance(statement, Reset):
            self._settings = {} if statement.key is None else {
                key: value for key, value in self._settings.items() if key != statement.key
            }  # fmt: skip
        elif isinstance(statement, Describe):
            return self._describe(statement.name)
        elif isinstance(statement, Show):
            return self._show(statement)
        else:
            return StatementResult.of_texts("result", self._explained(statement.statement, text).splitlines())
        return done

    # --------------------------------------------------------------------------------------------------- tables, views

    def _create_table(self, statement: CreateTable, text: SqlText) -> None:
        if statement.if_not_exists and statement.name in self._catalog.entries:
            return
        if statement.like is not None:
            like = self._catalog.table(statement.like).statement
            taken = {one.name for one in statement.columns}
            statement = replace(
                statement,
                columns=(*(one for one in like.columns if one.name not in taken), *statement.columns),
                watermark=statement.watermark or like.watermark,
                primary_key=statement.primary_key or like.primary_key,
                partitioned_by=statement.partitioned_by or like.partitioned_by,
                options={**like.options, **statement.options},
            )
        names = [one.name for one in statement.columns]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled or not names:
            message = f"column {doubled[0]!r} is there twice" if doubled else "a table has columns"
            raise SqlError(message)
        metadata = [one.name for one in statement.columns if one.metadata is not None]
        if metadata:
            message = f"no connector tells metadata of records; column {metadata[0]!r} asks for some"
            raise SqlError(message)
        schema = pa.schema([pa.field(one.name, one.kind) for one in statement.columns if one.kind is not None])
        connector = connector_of(statement.name, statement.options, schema, statement.partitioned_by)
        entry = CatalogTable(statement, text, connector)
        probe = Catalog({**self._catalog.entries, statement.name: entry})
        builder = Builder(self._data_sets.new_id)
        # Computed columns and the watermark are checked where they are written.
        StatementTables(probe, builder).relation(statement.name, self._queries(text, StatementTables(probe, builder)))
        self._catalog.add(statement.name, entry)

    def _create_view(self, statement: CreateView, text: SqlText) -> None:
        if statement.if_not_exists and statement.name in self._catalog.entries:
            return
        relation = self._bound(statement.query, text)
        relation.scope.under(statement.name, statement.columns)
        self._catalog.add(statement.name, CatalogView(statement, text))

    def _drop(self, statement: Drop) -> None:
        if statement.kind == "function":
            if not self._functions.drop(statement.name) and not statement.if_exists:
                message = f"there is no function {statement.name!r} of this program"
                raise SqlError(message)
            return
        self._catalog.drop(statement.kind, statement.name, if_exists=statement.if_exists)

    def create_temporary_view(self, name: str, rows: Any, event_time: str | None = None, delay: Any = 0) -> None:
        """Give rows a name, to be asked for in SQL.

        Args:
            name: Of the view.
            rows: A `Table` of this environment, an Arrow table, a pandas data frame or, in streaming mode, a
                `DataStream` of columns.
            event_time: The column that is the event time; a stream's own stays if it is the same.
            delay: How far behind it the watermark is: milliseconds, or a text such as ``"4 s"``.
        """
        from headrace.engine.kernel.config import parse_duration_ms

        connector = GivenTable.of(rows)
        schema = connector.schema
        if event_time is not None and event_time not in schema.names:
            message = f"there is no column {event_time!r}"
            raise ProgramError(message, hint=nearest(event_time, schema.names))
        self._catalog.add(name, TemporaryTable(connector, schema, event_time, parse_duration_ms(delay)))

    def create_temporary_function(self, name: str, function: UserDefinedFunction) -> None:
        """Give a function of Python a name in SQL; made by `udf`."""
        require_instance("a function is made by udf(...)", UserDefinedFunction, function)
        self._functions.add(function.named(name))

    def from_path(self, name: str) -> Table:
        """Return a table or view of the catalog."""
        return self.sql_query(f"SELECT * FROM `{name}`")

    def from_arrow(self, table: pa.Table) -> Table:
        """Return rows at hand as a table."""
        return Table(self._given(GivenTable.of(table)), self.result_of)

    def _given(self, connector: GivenTable) -> Relation:
        catalog = Catalog({"given": TemporaryTable(connector, connector.schema)})
        tables = StatementTables(catalog, Builder(self._data_sets.new_id))
        relation = tables.relation("given", self._queries(SqlText(""), tables))
        assert relation is not None
        return relation

    # ---------------------------------------------------------------------------------------------------- what there is

    def list_tables(self) -> list[str]:
        """Return the names of tables and views."""
        return self._catalog.names()

    def _describe(self, name: str) -> TableResult:
        relation = self._bound(parse_statements(f"SELECT * FROM `{name}`")[0], SqlText(f"`{name}`"))
        columns = relation.scope.columns
        return StatementResult(pa.table({
            "name": [one.name for one in columns],
            "type": [sql_name(one.kind) for one in columns],
            "extras": ["event time" if one.is_event_time else "" for one in columns],
        }))  # fmt: skip

    def _show(self, statement: Show) -> TableResult:
        if statement.what == "create table":
            assert statement.name is not None
            return StatementResult.of_texts("result", [self._catalog.table(statement.name).text.text.strip()])
        if statement.what == "functions":
            return StatementResult.of_texts("function name", self._functions.names())
        kind = CatalogView if statement.what == "views" else None
        return StatementResult.of_texts(f"{statement.what[:-1]} name", self._catalog.names(kind))

    def _set(self, statement: Set) -> TableResult:
        if statement.key is None:
            return StatementResult(pa.table({"key": list(self._settings), "value": list(self._settings.values())}))
        message = f"there is no option {statement.key!r} yet"
        raise SqlError(message, hint="checkpoints, state and restarts are set on stream_environment")

    def _explained(self, statement: Query | Insert | StatementSet, text: SqlText) -> str:
        tables = self._tables()
        roots: tuple[Node, ...]
        if isinstance(statement, Query):
            roots = (self._named(self._queries(text, tables).bind(statement.tree)),)
        else:
            inserts = statement.inserts if isinstance(statement, StatementSet) else (statement,)
            roots = tuple(self._insert(one, text, tables)[1].node for one in inserts)
        optimized = self._optimized(roots)
        is_stream = self._mode == "streaming"
        plan = explain_tree(optimized, _changes_of if is_stream else None)
        title = "== Plan of streams ==" if is_stream else "== Plan of data sets =="
        return f"== Logical plan ==\n{explain_tree(roots)}\n\n{title}\n{plan}"

    # ---------------------------------------------------------------------------------------------------------- running

    def _tables(self) -> StatementTables:
        return StatementTables(self._catalog, Builder(self._data_sets.new_id))

    def _queries(self, text: SqlText, tables: StatementTables) -> QueryBinder:
        return QueryBinder(tables, self._functions, Builder(self._data_sets.new_id), text)

    def _bound(self, statement: Any, text: SqlText) -> Relation:
        return self._queries(text, self._tables()).bind(statement.tree)

    def _insert(self, statement: Insert, text: SqlText, tables: StatementTables) -> tuple[CatalogTable, Relation]:
        """The table, and the rows with its columns."""
        table = self._catalog.table(statement.table)
        relation = self._queries(text, tables).bind(statement.query.tree)
        schema = table.physical
        given = statement.columns or tuple(schema.names)
        unknown = [name for name in given if name not in schema.names]
        if unknown:
            message = f"table {statement.table!r} takes no column {unknown[0]!r}"
            raise SqlError(message, hint=nearest(unknown[0], schema.names))
        doubled = [name for name in given if given.count(name) > 1]
        if doubled:
            message = f"table {statement.table!r} gets column {doubled[0]!r} twice"
            raise SqlError(message)
        if len(given) != len(relation.scope.columns):
            message = (
                f"table {statement.table!r} gets {len(given)} columns; the query has {len(relation.scope.columns)}"
            )
            raise SqlError(message)
        values = dict(zip(given, renamed(relation, given).values(), strict=True))
        columns = {field.name: self._for_column(statement.table, field, values.get(field.name)) for field in schema}
        node = Builder(self._data_sets.new_id).selected(relation.node, columns)
        return table, Relation(node, relation.scope)

    def _for_column(self, table: str, field: pa.Field, value: Typed | None) -> Typed:
        from headrace.engine.columns.expressions import lit

        if value is None:
            return Typed(lit(None, field.type), field.type)
        if not _can_be_stored(value.kind, field.type):
            types = f"is {sql_name(field.type)}; the query gives {sql_name(value.kind)}"
            message = f"column {field.name!r} of table {table!r} {types}"
            raise SqlError(message, hint="CAST it")
        return cast_to(value, field.type)

    def _optimized(self, roots: tuple[Node, ...]) -> tuple[Node, ...]:
        rules = STREAM_RULES if self._mode == "streaming" else as_data_sets(self._data_sets.new_id, self._source)
        return optimize(roots, rules=rules)

    def _source(self, scan: Scan) -> Node:
        """The rows of a table in batch mode."""
        table: TableConnector = scan.table
        assert scan.schema is not None
        if not table.is_bounded:
            message = f"{scan.name} has no end; batch mode reads tables that have one"
            raise ProgramError(message)
        return table.data_set(self._data_sets, scan.schema).take_node()

    def result_of(self, relation: Relation) -> TableResult:
        """Return the rows of a query."""
        root = self._optimized((self._named(relation),))[0]
        assert root.schema is not None
        schema = root.schema
        if self._mode == "batch":
            return RowsResult(schema, lambda: self._batches(root))
        orders = _orders_of(root)
        return RowsResult(schema, lambda: self._changes(root, schema), _sorter(orders) if orders else None)

    def _named(self, relation: Relation) -> Node:
        """The rows without helpers, if there are any."""
        names = [one.column for one in relation.scope.columns]
        if relation.node.schema is not None and relation.node.schema.names == names:
            return relation.node
        return Builder(self._data_sets.new_id).selected(relation.node, renamed(relation, names))

    def _batches(self, root: Node) -> Iterator[Batch]:
        for batch in DataSet(self._data_sets, root).to_arrow().combine_chunks().to_batches():
            yield Batch.of_columns(batch)

    def _changes(self, root: Node, schema: pa.Schema) -> Iterator[Batch]:
        assert self._streams is not None
        blocks = behind(Streams(self._streams).of(root), ChangelogBlocks(), "changelog")
        with blocks.execute_and_collect("query") as rows:
            for block in rows:
                yield batch_of_block(block, schema)

    def _write(self, inserts: list[tuple[CatalogTable, Relation]]) -> TableResult:
        roots = self._optimized(tuple(relation.node for _, relation in inserts))
        if self._mode == "batch":
            for (table, _), root in zip(inserts, roots, strict=True):
                table.connector.write_data_set(DataSet(self._data_sets, root), table.statement.name)
            if self._data_sets.has_sinks:
                self._data_sets.execute()
            return StatementResult.of_texts("result", ["OK"])
        assert self._streams is not None
        streams = Streams(self._streams)
        for (table, _), root in zip(inserts, roots, strict=True):
            if takes_back(root) and not table.connector.takes_changes:
                message = (
                    f"table {table.statement.name!r} takes rows that only come; those of the query are updated or "
                    "taken back"
                )
                raise ProgramError(message, hint="write to a connector that takes changes, or aggregate in windows")
        for (table, _), root in zip(inserts, roots, strict=True):
            assert root.schema is not None
            table.connector.write_stream(streams.of(root), root.schema, table.statement.name)
        self._streams.execute(f"insert into {', '.join(table.statement.name for table, _ in inserts)}")
        return StatementResult.of_texts("result", ["OK"])


def _changes_of(node: Node) -> str:
    """Which changes a node gives, as Flink writes them."""
    return "[I,UB,UA,D]" if takes_back(node) else "[I]"


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
    hidden = [order for order in rows.orders if order.column not in names]
    if hidden and isinstance(rows, TopN):
        return ()  # which rows there are is right; what their order goes by is not among them
    if hidden:
        message = "on a stream ORDER BY goes by columns of the result"
        raise ProgramError(message, hint="select what it goes by, too")
    return tuple(Order(names[order.column], order.ascending) for order in rows.orders)


def _sorter(orders: tuple[Order, ...]) -> Callable[[pa.Table], pa.Table]:
    def sort(table: pa.Table) -> pa.Table:
        if table.num_rows == 0:
            return table
        batch = table.combine_chunks().to_batches()[0]
        return table.take(pa.array(ordered(Batch.of_columns(batch), orders)))

    return sort


def _can_be_stored(kind: pa.DataType, column: pa.DataType) -> bool:
    """Whether a column takes values of a type: its own, numbers for numbers, times for times, NULL.

    Integers take integers only: what others have behind the point would be lost.
    """
    if kind == column or pa.types.is_null(kind):
        return True
    is_ = pa.types
    numbers = [is_.is_integer(one) or is_.is_floating(one) or is_.is_decimal(one) for one in (kind, column)]
    times = [is_.is_timestamp(one) for one in (kind, column)]
    if is_.is_integer(column) and not is_.is_integer(kind):
        return False
    return all(numbers) or all(times) or (is_.is_struct(kind) and is_.is_struct(column))
