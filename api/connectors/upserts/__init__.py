"""What sinks that write rows by key have in common: keys, order, deletions, requests, and what a service refuses.

A connector says what a record's entry is and how entries are sent; batches, their bounds, the order, retries, pauses
and what belongs to a checkpoint are those of `headrace.engine.connectors.async_sinks`.

May import: `headrace.engine`, `headrace.state`. Start reading at `sink`.
"""

from .keyed import Entry, KeyedColumns, KeyedRecords
from .numbering import NumberCell, Numbers, WriterPlace
from .options import UpsertOptions
from .order import OrderKey
from .sink import UpsertSink
from .writer import Refused, SinkAwayError, UpsertSinkWriter

__all__ = [
    "Entry",
    "KeyedColumns",
    "KeyedRecords",
    "NumberCell",
    "Numbers",
    "OrderKey",
    "Refused",
    "SinkAwayError",
    "UpsertOptions",
    "UpsertSink",
    "UpsertSinkWriter",
    "WriterPlace",
]
