"""Topics of Apache Kafka, as source and as sink: exactly once, or at least once.

``pip install 'headrace[kafka]'`` brings the client, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`source`, and at `sink`.
"""

from ...formats.avro_messages import AvroMessages
from ...formats.change_messages import DebeziumMessages
from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from ...formats.protobuf_messages import ProtobufMessages
from ...formats.schema_registry import SchemaRegistry
from .offsets import KafkaOffsets
from .sink import KafkaSink
from .source import KafkaSource

__all__ = [
    "AvroMessages",
    "BytesMessages",
    "CsvMessages",
    "DebeziumMessages",
    "JsonMessages",
    "KafkaOffsets",
    "KafkaSink",
    "KafkaSource",
    "MessageFormat",
    "ProtobufMessages",
    "SchemaRegistry",
    "TextMessages",
]
