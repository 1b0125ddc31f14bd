"""HTTP as source, by pages, server-sent events and lines, and as sink; exactly once where the server plays its part.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`page_source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ..messages.tls import Tls
from .client import basic_auth
from .page_source import HttpPageSource
from .sink import HttpSink
from .stream_source import HttpEventSource, HttpLineSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "HttpEventSource",
    "HttpLineSource",
    "HttpPageSource",
    "HttpSink",
    "JsonMessages",
    "MessageFormat",
    "TextMessages",
    "Tls",
    "basic_auth",
]
