"""Indices of OpenSearch and Elasticsearch: a sink by document id, and a source of all documents at one point in time.

``pip install 'headrace[opensearch]'`` brings the client, which nothing here imports before it is needed. It is the one
of OpenSearch, for both: what is used of the protocol is the same, but for the address of a point in time; and
Elasticsearch's own client refuses servers of another major version.

May import: `headrace.connectors.messages`, `headrace.connectors.upserts`, `headrace.formats`, `headrace.engine`,
`headrace.state`. Start reading at `sink`, and at `source`.
"""

from ...formats.messages import JsonMessages
from ..upserts import OrderKey, UpsertOptions
from .client import SearchClient
from .sink import OpenSearchSink
from .source import OpenSearchSource

__all__ = ["JsonMessages", "OpenSearchSink", "OpenSearchSource", "OrderKey", "SearchClient", "UpsertOptions"]
