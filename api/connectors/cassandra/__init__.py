"""Tables of Cassandra: a sink of rows by primary key, a source of all rows, token by token, and rows by
partition for lookup joins.

``pip install 'headrace[cassandra]'`` brings the driver, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.connectors.upserts`, `headrace.formats`, `headrace.engine`,
`headrace.state`. Start reading at `sink`, and at `source`.
"""

from ..upserts import OrderKey, UpsertOptions
from .client import CassandraClient
from .lookup import CassandraLookup
from .sink import CassandraSink
from .source import CassandraSource

__all__ = ["CassandraClient", "CassandraLookup", "CassandraSink", "CassandraSource", "OrderKey", "UpsertOptions"]
