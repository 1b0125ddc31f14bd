"""Apache NiFi: flow files pulled from output ports and pushed to input ports, by its site-to-site protocol over HTTP.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`site_to_site`, then `port_reader`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ..messages.tls import Tls
from .port_sink import NiFiSink
from .port_source import NiFiSource

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
