"""Amazon Kinesis Data Streams: streams as source, exactly once, and as sink, at least once.

``pip install 'headrace[kinesis]'`` brings AWS's client, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from .sink import KinesisSink
from .source import KinesisSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "KinesisSink",
    "KinesisSource",
    "MessageFormat",
    "TextMessages",
]
