"""Collections of MongoDB: a sink by key, with the newest record of each, a source of all documents, and lookups.

``pip install 'headrace[mongodb]'`` brings the driver, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.connectors.upserts`, `headrace.formats`, `headrace.engine`,
`headrace.state`. Start reading at `sink`, and at `source`.
"""

from ..upserts import OrderKey, UpsertOptions
from .client import MongodbClient
from .lookup import MongodbLookup
from .sink import MongodbSink
from .source import MongodbSource

__all__ = ["MongodbClient", "MongodbLookup", "MongodbSink", "MongodbSource", "OrderKey", "UpsertOptions"]
