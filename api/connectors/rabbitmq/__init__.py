"""RabbitMQ: streams as source and sink, exactly once; queues as source, exactly once with ids, and as sink.

``pip install 'headrace[rabbitmq]'`` brings the client of queues, which nothing here imports before it is needed;
streams need none.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at `queues.source`, and at
`streams.source`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from .queues.sink import RabbitQueueSink
from .queues.source import RabbitQueueSource
from .streams.sink import RabbitStreamSink
from .streams.source import RabbitStreamSource

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
