"""Expressions of SQL by themselves: bound and computed without a job."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import sqlglot

from headrace.sql.expressions import ExpressionBinder
from headrace.sql.functions.contract import Typed
from headrace.sql.functions.registry import FunctionRegistry
from headrace.sql.parsing.dialect import Flink
from headrace.sql.parsing.errors import SqlText
from headrace.sql.parsing.sql_types import sql_name
from headrace.sql.parsing.understood import require_understood
from headrace.sql.scope import Scope, ScopeColumn

ONE = pa.table({"x": [1]})


def bound(expression: str, schema: pa.Schema = ONE.schema) -> Typed:
    """The expression that a text means over columns."""
    statement = f"SELECT {expression}"
    text = SqlText(statement)
    tree = sqlglot.parse_one(statement, dialect=Flink)
    require_understood(tree, text)
    scope = Scope(ScopeColumn(None, field.name, field.name, field.type) for field in schema)
    return ExpressionBinder(scope, FunctionRegistry(), text).bind(tree.expressions[0])


def column_of(expression: str, table: pa.Table = ONE) -> pa.Array:
    """What an expression is for each row of a table."""
    made = bound(expression, table.schema)
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    found = made.expression.evaluate(batches[0])
    assert found.type == made.kind, (found.type, made.kind)
    return found


def value_of(expression: str) -> tuple[Any, str]:
    """The value of an expression for a row, and its type."""
    found = column_of(expression)
    return found.to_pylist()[0], sql_name(found.type)
