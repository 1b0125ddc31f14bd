"""Changes of a table of PostgreSQL: what is in it, and then what its log says, exactly once.

``pip install 'headrace[postgresql]'`` brings the driver, which nothing here imports before it is needed.

May import: `headrace.connectors.sql`, whose types it has, `headrace.formats`, `headrace.arguments`, `headrace.engine`,
`headrace.state`. Start reading at `source`, then `enumerator` and `reader`.
"""

from .source import PostgresCdcSource

__all__ = ["PostgresCdcSource"]
