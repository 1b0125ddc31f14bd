"""A table under way: a query that nothing has been asked of yet, and verbs that make further ones of it.

Each verb writes a small query over the tables before it (`table`; `left` and `right` of two) and has it bound, so that
a mistake is told where it is made, with the query that the verb has written.

Source: PyFlink's ``Table``.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.engine.errors import HeadraceError, ProgramError, nearest
from headrace.engine.optimizer.stream_traits import event_times

from ..arguments.absent_names import absence_of
from ..arguments.checks import require_instance
from ..jobs.notebook_output import LiveOutput
from ..sql.functions.registry import SqlFunction
from ..sql.parsing.sql_types import sql_name
from ..sql.relations import Relation
from .expressions.expression import Expression, col
from .expressions.grouped_tables import (
    AggregatedTable,
    Given,
    GroupedTable,
    OverWindowedTable,
    WindowedTable,
    expression_of,
    listed,
    require_apart,
    spread,
)
from .expressions.rendering import Rendering, quoted
from .expressions.table_windows import GroupWindow, OverWindow
from .result import TableResult

__all__ = ["Program", "Table", "TablePipeline"]


class Program(Protocol):
    """What tables need of their environment: `headrace.table.TableEnvironment`."""

    def relation_of(self, text: str, tables: dict[str, Relation], functions: Iterable[SqlFunction]) -> Relation:
        """Return the rows of a query over tables by name."""
        ...

    def result_of(self, relation: Relation) -> TableResult:
        """Return what rows come to."""
        ...

    def insert_rows(self, table: str, relation: Relation) -> TableResult:
        """Write rows into a table, to their end."""
        ...

    def explained(self, relation: Relation) -> str:
        """Return how rows are made."""
        ...

    def drawn(self, relation: Relation) -> str:
        """Return how rows are made, as SVG."""
        ...


class _Ordered(NamedTuple):
    """Rows in an order, and which of them are left."""

    table: Table
    orders: tuple[Given, ...]
    first: int = 0
    end: int | None = None


class Table:
    """A query; made by `TableEnvironment.from_path`, `TableEnvironment.sql_query` and by verbs of other tables.

    Expressions are made by `col`, `lit`, `call`; a text in place of one is SQL: ``t.where("price > 10")``.
    """

    def __init__(self, relation: Relation, program: Program) -> None:
        self.relation = relation
        self._program = program
        # The rows before they were put in an order and cut, what it goes by, and the places of the rows that are left:
        # from the first on, before the second (None for all). None without an order.
        self._order: _Ordered | None = None

    def relation_in(self, program: Program) -> Relation:
        """Return the rows, for a query of an environment.

        Raises:
            ProgramError: If the table is of another one.
        """
        if program is not self._program:
            message = "the other table is of another environment"
            raise ProgramError(message)
        return self.relation

    @property
    def schema(self) -> pa.Schema:
        """The columns, by the names of the query."""
        return pa.schema([pa.field(one.name, one.kind) for one in self.relation.scope.columns])

    def __getattr__(self, name: str) -> Expression:
        """Return a column that no attribute hides: ``table.price`` is ``col("price")``."""
        names = [] if name.startswith("_") or name == "relation" else self.schema.names
        if name not in names:
            raise AttributeError(absence_of("Table", name), name=name, obj=self)
        return col(name)

    def print_schema(self) -> None:
        """Write the columns and their types to standard output."""
        lines = [f"  `{one.name}` {sql_name(one.type)}" for one in self.schema]
        sys.stdout.write("(\n" + ",\n".join(lines) + "\n)\n")

    def _repr_html_(self) -> str:
        columns = ", ".join(f"{one.name} {sql_name(one.type)}" for one in self.schema)
        try:
            drawing = self._program.drawn(self.relation)
        except HeadraceError as error:  # it cannot be run as things are
            drawing = html.escape(error.message)
        return f"<div><b>Table</b> of {html.escape(columns)}<br>{drawing}</div>"

    # -- columns -------------------------------------------------------------------------------------------------------

    def select(self, *columns: Given) -> Table:
        """Return rows of computed columns; ``"*"`` stands for all that there are."""
        return self._selected(columns)

    def add_columns(self, *columns: Given) -> Table:
        """Return the rows with further columns behind.

        Raises:
            SqlError: If there is a column of that name.
        """
        made = self._selected(["*", *columns])
        require_apart(self.schema.names, made.schema.names[len(self.schema) :], "add_or_replace_columns replaces it")
        return made

    def add_or_replace_columns(self, *columns: Given) -> Table:
        """Return the rows with further columns; one of a name that is there takes its place."""
        chosen = self._columns_of(columns)
        new = self._selected(chosen).schema.names
        given = dict(zip(new, chosen, strict=True))
        kept = [given.pop(name, col(name)).alias(name) for name in self.schema.names]
        return self._selected([*kept, *given.values()])

    def rename_columns(self, *columns: Expression) -> Table:
        """Return the rows with other names for some columns: ``col("a").alias("b")``."""
        new = self._selected(columns).schema.names
        old = [self._column_of(one) for one in columns]
        names = dict(zip(old, new, strict=True))
        return self._selected([col(name).alias(names.get(name, name)) for name in self.schema.names])

    def drop_columns(self, *columns: Given) -> Table:
        """Return the rows without some columns."""
        dropped = {self._column_of(one) for one in self._columns_of(columns)}
        return self._selected([col(name) for name in self.schema.names if name not in dropped])

    def alias(self, *names: str) -> Table:
        """Return the rows with other names for the first columns."""
        there = self.schema.names
        if len(names) > len(there):
            message = f"the table has {len(there)} columns and gets {len(names)} names"
            raise ProgramError(message)
        pairs = [*zip(there, names, strict=False), *((name, name) for name in there[len(names) :])]
        return self._selected([col(old).alias(new) for old, new in pairs])

    def _columns_of(self, given: Iterable[Given]) -> list[Expression]:
        return [each for one in map(expression_of, given) for each in one.columns_among(self.schema.names)]

    def _column_of(self, expression: Expression) -> str:
        name = expression.column if expression.column is not None else repr(expression)
        if name not in self.schema.names:
            message = f"the table has no column {name!r}"
            raise ProgramError(message, hint=nearest(name, self.schema.names))
        return name

    # -- rows ----------------------------------------------------------------------------------------------------------

    def where(self, condition: Given) -> Table:
        """Return the rows for which a condition is true."""
        rendering = self.rendering()
        return self.queried(f"SELECT * FROM `table` WHERE {expression_of(condition).sql(rendering)}", rendering)

    def filter(self, condition: Given) -> Table:
        """Return the rows for which a condition is true; another name of `where`."""
        return self.where(condition)

    def distinct(self) -> Table:
        """Return each row once."""
        return self.queried("SELECT DISTINCT * FROM `table`")

    def order_by(self, *orders: Given) -> Table:
        """Return the rows in an order: ``col("price").desc``. On a stream it counts for `fetch` and final tables.

        NULL is last and, with ``desc``, first, as in PyFlink; in a text (``"price DESC"``) it is where SQL has it.
        """
        ordered = self._in_order(orders, "")
        ordered._order = _Ordered(self, orders)
        return ordered

    def fetch(self, count: int) -> Table:
        """Return the first rows, of the order if `order_by` stands before it."""
        return self.limit(count)

    def offset(self, count: int) -> Table:
        """Return the rows behind the first ones, of the order if `order_by` stands before it."""
        return self._cut(_whole(count), None)

    def limit(self, count: int, offset: int = 0) -> Table:
        """Return some rows behind some others, of the order if `order_by` stands before it."""
        return self._cut(_whole(offset), _whole(count))

    def _cut(self, skipped: int, count: int | None) -> Table:
        before = self._order or _Ordered(self, ())
        first = before.first + skipped
        ends = [one for one in (before.end, None if count is None else first + count) if one is not None]
        end = min(ends, default=None)
        cut = f"{'' if end is None else f' LIMIT {max(end - first, 0)}'} OFFSET {first}"
        made = before.table._in_order(before.orders, cut)
        made._order = _Ordered(before.table, before.orders, first, end) if before.orders else None
        return made

    def _in_order(self, orders: Sequence[Given], cut: str) -> Table:
        rendering = self.rendering()
        texts = [text for one in orders for text in self._order_texts(one, rendering)]
        order = f" ORDER BY {', '.join(texts)}" if texts else ""
        return self.queried(f"SELECT * FROM `table`{order}{cut}", rendering)

    def _order_texts(self, given: Given, rendering: Rendering) -> list[str]:
        """An order, or several, as SQL writes it; an event time is never NULL, and orders of it alone pass rows on."""
        if isinstance(given, str):
            return [given]
        times = event_times(self.relation.node)
        not_null = {one.name for one in self.relation.scope.columns if one.column in times}
        columns = given.columns_among(self.schema.names)
        ends = [
            "" if one.column in not_null else f" NULLS {'FIRST' if one.is_descending else 'LAST'}" for one in columns
        ]
        return [one.sql(rendering) + end for one, end in zip(columns, ends, strict=True)]

    # -- groups --------------------------------------------------------------------------------------------------------

    def group_by(self, *keys: Given) -> GroupedTable[Table]:
        """Group the rows; `GroupedTable.select` says what becomes of the groups."""
        return GroupedTable(self, keys)

    def aggregate(self, function: Given) -> AggregatedTable[Table]:
        """Aggregate all rows by one function; see `GroupedTable.aggregate`."""
        return self.group_by().aggregate(function)

    def flat_aggregate(self, function: Given) -> AggregatedTable[Table]:
        """Aggregate all rows by one function that gives rows; see `GroupedTable.flat_aggregate`."""
        return self.group_by().flat_aggregate(function)

    def window(self, window: GroupWindow) -> WindowedTable[Table]:
        """Put the rows into windows, to be grouped by them: `Tumble`, `Slide`, `Session`."""
        return WindowedTable(self, window)

    def over_window(self, *windows: OverWindow) -> OverWindowedTable[Table]:
        """Say which rows aggregates look at for each row: `Over`."""
        return OverWindowedTable(self, windows)

    # -- two tables ----------------------------------------------------------------------------------------------------

    def join(self, right: Table, on: Given | None = None) -> Table:
        """Return pairs of rows for which a condition is true. The names of their columns differ."""
        return self._joined(right, "CROSS JOIN" if on is None else "JOIN", on)

    def left_outer_join(self, right: Table, on: Given | None = None) -> Table:
        """Return pairs of rows, and rows of this table without a partner, with NULL for one."""
        return self._joined(right, "LEFT JOIN", "TRUE" if on is None else on)

    def right_outer_join(self, right: Table, on: Given) -> Table:
        """Return pairs of rows, and rows of the other table without a partner."""
        return self._joined(right, "RIGHT JOIN", on)

    def full_outer_join(self, right: Table, on: Given) -> Table:
        """Return pairs of rows, and rows of both tables without a partner."""
        return self._joined(right, "FULL JOIN", on)

    def _joined(self, right: Table, word: str, on: Given | None) -> Table:
        require_apart(self.schema.names, right.schema.names, "rename_columns or alias gives other names")
        rendering = self.rendering(right)
        condition = "" if on is None else f" ON {expression_of(on).sql(rendering)}"
        return self.queried(f"SELECT * FROM `left` {word} `right`{condition}", rendering, right)

    # -- rows of rows --------------------------------------------------------------------------------------------------

    def map(self, function: Given) -> Table:
        """Return what a function gives for each row, and nothing else; the fields of a ROW are columns.

        Args:
            function: ``f(col("a")).alias("b")``; ``alias("b", "c")`` names the columns of a ROW.
        """
        given = expression_of(function)
        return spread(self._selected([given]), given.names)

    def flat_map(self, function: Expression) -> Table:
        """Return the rows that a table function gives for each row, and nothing else.

        Args:
            function: ``f(col("a")).alias("b", "c")`` of one made by `udtf`.
        """
        made = self._with_rows(function, "CROSS JOIN", "")
        return made.select(*map(col, made.schema.names[len(self.schema) :]))

    def join_lateral(self, function: Expression, on: Given | None = None) -> Table:
        """Return each row with those that a table function gives for it.

        Args:
            function: ``f(col("a")).alias("b", "c")`` of one made by `udtf`; the names of its columns are new ones.
            on: What must be true of a row that is made; None takes all.
        """
        made = self._with_rows(function, "CROSS JOIN", "")
        return made if on is None else made.where(on)

    def left_outer_join_lateral(self, function: Expression) -> Table:
        """Return each row with those that a table function gives for it, with NULL where it gives none."""
        return self._with_rows(function, "LEFT JOIN", " ON TRUE")

    def _with_rows(self, function: Expression, word: str, condition: str) -> Table:
        require_instance("a table function is called: f(col(...))", Expression, function)
        rendering = self.rendering()
        called = function.without_name(rendering)
        names = f"({', '.join(map(quoted, function.names))})" if function.names else ""
        text = f"SELECT * FROM `table` {word} LATERAL TABLE({called}) AS `$rows`{names}{condition}"
        made = self.queried(text, rendering)
        require_apart(self.schema.names, made.schema.names[len(self.schema) :], "alias names the function's columns")
        return made

    # -- both tables ---------------------------------------------------------------------------------------------------

    def union(self, right: Table) -> Table:
        """Return the rows of both, each once."""
        return self._with("UNION", right)

    def union_all(self, right: Table) -> Table:
        """Return the rows of both."""
        return self._with("UNION ALL", right)

    def intersect(self, right: Table) -> Table:
        """Return the rows that both have, each once."""
        return self._with("INTERSECT", right)

    def intersect_all(self, right: Table) -> Table:
        """Return the rows that both have, as often as both do."""
        return self._with("INTERSECT ALL", right)

    def minus(self, right: Table) -> Table:
        """Return the rows that only this table has, each once."""
        return self._with("EXCEPT", right)

    def minus_all(self, right: Table) -> Table:
        """Return the rows of this table, each as much less often as the other one has it."""
        return self._with("EXCEPT ALL", right)

    def _with(self, words: str, right: Table) -> Table:
        return self.queried(f"SELECT * FROM `left` {words} SELECT * FROM `right`", Rendering(), right)

    # -- results -------------------------------------------------------------------------------------------------------

    def execute(self) -> TableResult:
        """Return the rows; they are made when they are asked for."""
        return self._program.result_of(self.relation)

    def live(self, limit: int = 50) -> LiveOutput:
        """Show the table below the cell of a notebook, as its rows come; see `TableResult.live`."""
        return self.execute().live(limit)

    def execute_insert(self, table: str) -> TableResult:
        """Write the rows into a table of the catalog, to their end."""
        return self._program.insert_rows(table, self.relation)

    def insert_into(self, table: str) -> TablePipeline:
        """Return what writes the rows into a table of the catalog, once it is executed or added to a statement set."""
        return TablePipeline(self, table)

    def explain(self) -> str:
        """Return how the rows are made."""
        return self._program.explained(self.relation)

    def print_explain(self) -> None:
        """Write how the rows are made to standard output."""
        sys.stdout.write(f"{self.explain()}\n")

    def to_arrow(self) -> pa.Table:
        """Run the query to its end and return the table that it comes to."""
        return self.execute().to_arrow()

    def to_pandas(self) -> Any:
        """Return the same as a pandas data frame."""
        return self.execute().to_pandas()

    # -- queries -------------------------------------------------------------------------------------------------------

    def _selected(self, columns: Sequence[Given]) -> Table:
        if not columns:
            message = "a table has one column at least"
            raise ProgramError(message)
        rendering = self.rendering()
        return self.queried(f"SELECT {listed(columns, rendering)} FROM `table`", rendering)

    def rendering(self, right: Table | None = None) -> Rendering:
        """Return a query over this table, or over this and another one, to be written."""
        of = "`table`" if right is None else "`left` CROSS JOIN `right`"

        def kind_of(text: str, rendering: Rendering) -> pa.DataType:
            return self.queried(f"SELECT {text} FROM {of}", rendering, right).schema.field(0).type

        return Rendering([*self.schema.names, *([] if right is None else right.schema.names)], kind_of)

    def queried(self, text: str, rendering: Rendering | None = None, right: Table | None = None) -> Table:
        """Return the rows of a query over ``table``, or over ``left`` and ``right``: this one and another one."""
        tables = {"table": self.relation} if right is None else {"left": self.relation, "right": self._beside(right)}
        functions = [] if rendering is None else rendering.named_functions()
        tables |= {} if rendering is None else {name: self._beside(one) for name, one in rendering.tables.items()}
        return Table(self._program.relation_of(text, tables, functions), self._program)

    def _beside(self, right: Table) -> Relation:
        require_instance("the other table is a Table", Table, right)
        return right.relation_in(self._program)


class TablePipeline:
    """Rows that are to be written into a table; made by `Table.insert_into`.

    Args:
        rows: The rows.
        table: The name of the table.
    """

    def __init__(self, rows: Table, table: str) -> None:
        self.rows = rows
        self.table = table

    def execute(self) -> TableResult:
        """Write them, to their end."""
        return self.rows.execute_insert(self.table)

    def explain(self) -> str:
        """Return how the rows are made."""
        return self.rows.explain()


def _whole(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        message = f"a number of rows is 0 or more; got {count!r}"
        raise ProgramError(message)
    return count
