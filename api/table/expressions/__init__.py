"""Expressions of the Table API, what makes them, under the names of ``pyflink.table.expressions``, and groups of rows.

`expression` is the piece of a query that all verbs take, `sql_calls` its methods that call functions of SQL,
`literals` writes literals, `rendering` is the query that is being written; `makers` has the functions that make
expressions, `table_windows` windows of groups and of OVER, `grouped_tables` what is selected of groups and windows.

May import: `headrace.sql.functions`, `headrace.sql.parsing`, `headrace.arguments`, `headrace.engine`,
`headrace.state`. Start reading at `expression`.
"""

from . import makers
from .makers import *  # noqa: F403 - all that it has, and nothing else

__all__ = makers.__all__
