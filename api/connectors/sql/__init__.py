"""Tables of a database as a sink: exactly once by transactions or by keys, or at least once; read for SQL, too.

May import: `headrace.formats`, `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `sink`.
"""

from .sink import SqlExecutionOptions, SqlSink

__all__ = ["SqlExecutionOptions", "SqlSink"]
