"""Tables and SQL over streams and bounded data.

``TableEnvironment.create(mode="streaming")`` begins a program; ``execute_sql`` creates tables and asks queries.
`environment` runs statements, `catalog` knows names, `connectors` what tables are connected to, `streams` makes streams
of plans. Statements are parsed and bound in ``headrace.sql``.

May import: ``headrace.sql``, ``headrace.stream``, ``headrace.dataset``, ``headrace.connectors``. Start reading at
`environment`.
"""

from .environment import TableEnvironment
from .functions import udf
from .result import TableResult
from .table import Table

__all__ = ["Table", "TableEnvironment", "TableResult", "udf"]
