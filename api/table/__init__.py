"""Tables and SQL over streams and bounded data.

``TableEnvironment.create(mode="streaming")`` begins a program; ``execute_sql`` creates tables and asks queries.
`environment` runs statements (`catalog_verbs` those about names, `table_descriptors` describe tables without text),
`table` has the verbs of the Table API, which write queries of `headrace.table.expressions` (`functions` and
`aggregate_functions` are functions of Python, `inserting` has statement sets). `catalog` knows names, `file_catalog`
keeps them in a folder, `shown` tells of them, `statement_tables` makes plans of the tables that a statement names,
`connectors` is what tables are connected to. `execution` runs plans as `settings` say, by the streams that `lowering`
makes of them; `result` gives rows, `live_table` is a table that changes while it is shown, `notebook` has the magics.
Statements are parsed and bound in `headrace.sql`.

May import: `headrace.sql`, `headrace.stream`, `headrace.dataset`, `headrace.connectors`, `headrace.jobs`,
`headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `environment`.
"""

from typing import Any

from .aggregate_functions import AggregateFunction, TableAggregateFunction, udaf, udtaf
from .environment import TableEnvironment
from .expressions.expression import Expression, call, col, expr, lit
from .expressions.grouped_tables import (
    AggregatedTable,
    AggregatedWindows,
    GroupedTable,
    OverWindowedTable,
    WindowedTable,
    WindowGroupedTable,
)
from .expressions.table_windows import (
    CURRENT_RANGE,
    CURRENT_ROW,
    UNBOUNDED_RANGE,
    UNBOUNDED_ROW,
    GroupWindow,
    Over,
    OverWindow,
    Session,
    Slide,
    Tumble,
    row_interval,
)
from .functions import ScalarFunction, TableFunction, udf, udtf
from .inserting import StatementSet
from .result import TableResult
from .table import Table, TablePipeline
from .table_descriptors import DataTypes, EnvironmentSettings, FormatDescriptor, Schema, TableDescriptor

__all__ = [
    "CURRENT_RANGE",
    "CURRENT_ROW",
    "UNBOUNDED_RANGE",
    "UNBOUNDED_ROW",
    "AggregateFunction",
    "AggregatedTable",
    "AggregatedWindows",
    "DataTypes",
    "EnvironmentSettings",
    "Expression",
    "FormatDescriptor",
    "GroupWindow",
    "GroupedTable",
    "Over",
    "OverWindow",
    "OverWindowedTable",
    "ScalarFunction",
    "Schema",
    "Session",
    "Slide",
    "StatementSet",
    "Table",
    "TableAggregateFunction",
    "TableDescriptor",
    "TableEnvironment",
    "TableFunction",
    "TablePipeline",
    "TableResult",
    "Tumble",
    "WindowGroupedTable",
    "WindowedTable",
    "call",
    "col",
    "expr",
    "lit",
    "row_interval",
    "udaf",
    "udf",
    "udtaf",
    "udtf",
]


def load_ipython_extension(shell: Any) -> None:
    """Register ``%sql`` and ``%%sql``: ``%load_ext headrace.table``."""
    from .notebook import load

    load(shell)
