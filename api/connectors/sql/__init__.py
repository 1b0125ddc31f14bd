"""Tables of a database as a sink: exactly once by transactions or by keys, or at least once.

As a source a table is read once, or followed by a column that grows: `source`.

May import: `headrace.formats`, `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `sink`.
"""

from .following import GrowingColumn
from .jdbc import JdbcConnection
from .ranges import KeyRanges
from .sink import SqlExecutionOptions, SqlSink
from .source import SqlSource

__all__ = ["GrowingColumn", "JdbcConnection", "KeyRanges", "SqlExecutionOptions", "SqlSink", "SqlSource"]
