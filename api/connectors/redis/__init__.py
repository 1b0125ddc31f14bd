"""Redis: streams as source and sink, exactly once; hashes and strings by key.

``pip install 'headrace[redis]'`` brings the client, which nothing here imports before it is needed.

May import: `headrace.connectors.messages`, `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at
`source`, and at `sink`.
"""

from ...formats.messages import BytesMessages, CsvMessages, JsonMessages, MessageFormat, TextMessages
from .sink import RedisSink
from .source import RedisStreamSource
from .targets import RedisHashes, RedisStream, RedisStrings

__all__ = [
    "BytesMessages",
    "CsvMessages",
    "JsonMessages",
    "MessageFormat",
    "RedisHashes",
    "RedisSink",
    "RedisStream",
    "RedisStreamSource",
    "RedisStrings",
    "TextMessages",
]
