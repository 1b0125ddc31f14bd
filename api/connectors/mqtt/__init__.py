"""MQTT: topics of a broker as source and as sink, at least once.

``pip install 'headrace[mqtt]'`` brings the client, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ..messages.tls import Tls
from .sink import MqttSink
from .source import MqttSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "MessageFormat",
    "MqttSink",
    "MqttSource",
    "TextMessages",
    "Tls",
]
