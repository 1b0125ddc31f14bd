"""Tables of HBase: a sink of rows by row key, and a source of all rows, region by region.

``pip install 'headrace[hbase]'`` brings the client, happybase, which nothing here imports before it is needed. It asks
HBase's Thrift server.

May import: `headrace.connectors.messages`, `headrace.connectors.upserts`, `headrace.formats`, `headrace.engine`,
`headrace.state`. Start reading at `sink`, and at `source`.
"""

from ..upserts import OrderKey, UpsertOptions
from .gateway import HbaseClient
from .sink import HbaseSink
from .source import HbaseSource

__all__ = ["HbaseClient", "HbaseSink", "HbaseSource", "OrderKey", "UpsertOptions"]
