"""WebSocket as source and as sink: exactly once from servers that go on behind a cursor, at least once into those that
acknowledge.

``pip install 'headrace[websocket]'`` brings the client, which nothing here imports before it is needed.

May import: `headrace.connectors.http`, `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`,
`headrace.state`. Start reading at `source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ..http.client import basic_auth
from ..messages.tls import Tls
from .sink import WebSocketSink
from .source import WebSocketSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "MessageFormat",
    "TextMessages",
    "Tls",
    "WebSocketSink",
    "WebSocketSource",
    "basic_auth",
]
