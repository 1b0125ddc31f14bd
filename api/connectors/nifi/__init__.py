"""Apache NiFi: flow files pulled from output ports and pushed to input ports, by its site-to-site protocol over HTTP.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`site_to_site`, then `reader`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ..messages.tls import Tls
from .sink import NiFiSink
from .source import NiFiSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "MessageFormat",
    "NiFiSink",
    "NiFiSource",
    "TextMessages",
    "Tls",
]
