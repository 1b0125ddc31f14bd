"""RabbitMQ: streams as source and sink, exactly once; queues as source, exactly once with ids, and as sink.

``pip install 'headrace[rabbitmq]'`` brings the client of queues, which nothing here imports before it is needed;
streams need none.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`queue_source`, and at `stream_source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from .queue_sink import RabbitQueueSink
from .queue_source import RabbitQueueSource
from .stream_sink import RabbitStreamSink
from .stream_source import RabbitStreamSource

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "MessageFormat",
    "RabbitQueueSink",
    "RabbitQueueSource",
    "RabbitStreamSink",
    "RabbitStreamSource",
    "TextMessages",
]
