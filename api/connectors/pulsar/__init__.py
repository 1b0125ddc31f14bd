"""Pulsar: topics as source and as sink, exactly once.

``pip install 'headrace[pulsar]'`` brings the client, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from .sink import PulsarSink
from .source import PulsarSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "MessageFormat",
    "PulsarSink",
    "PulsarSource",
    "TextMessages",
]
