"""A sink that writes rows by key to a service that has no transactions.

What came later, or has the greater order, is what stays. Records of one subtask reach the service in their order, one
request at a time; what is not known to be written is part of every checkpoint and is sent again after a failure. With
an order key that changes nothing, as the service compares; without one a key has older values for a while.

Records of one key keep their order if they come to one subtask: ``key_by`` the key.
"""

from __future__ import annotations

from headrace.engine.connectors.async_sinks import AsyncSink
from headrace.engine.kernel.config import parse_duration_ms

from .keyed import KeyedRecords
from .options import UpsertOptions

__all__ = ["UpsertSink"]

BUFFERED_BATCHES = 4
"""So many requests' records wait before no more are taken."""


class UpsertSink(AsyncSink):
    """To be derived from, with a `create_writer`.

    Args:
        place: What is written to, for people.
        records: Makes entries of records.
        options: How they are brought there.
    """

    def __init__(self, place: str, records: KeyedRecords, options: UpsertOptions) -> None:
        timeout_ms = parse_duration_ms(options.request_timeout)
        super().__init__(
            element_converter=records,
            max_batch_size=options.batch_size,
            max_buffered_requests=BUFFERED_BATCHES * options.batch_size + 1,
            max_batch_size_in_bytes=options.batch_bytes,
            max_record_size_in_bytes=options.batch_bytes,
            max_time_in_buffer_ms=max(1, parse_duration_ms(options.batch_interval)),
            # The client gives a request up before, so that no thread is held for nothing.
            request_timeout_ms=3 * timeout_ms + 1_000,
            # Where a part of a request is sent again, an ordered sink sends what was behind it again, too: without
            # keys that would be there twice.
            ordered=bool(records.key),
            max_in_flight_requests=1,
        )
        self.place = place
        self.records = records
        self.options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place})"
