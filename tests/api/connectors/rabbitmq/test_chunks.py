"""Chunks of RabbitMQ's streams, as a publisher may have made them: cut off, larger than they say, bombs.

Risks and families: memory; messages that are cut off and given all the same; errors that are none of the format.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import pytest

from headrace.connectors.rabbitmq.protocol.stream_client import _chunk_of

MESSAGES = [b"hello", b"x0", b"x1", b"x2"]


def entry_of(message):
    return struct.pack(">I", len(message)) + message


def batch_of(messages, *, claims=None, size=None):
    raw = b"".join(map(entry_of, messages)) if isinstance(messages, list) else messages
    stream = zlib.compressobj(wbits=31)
    packed = stream.compress(raw) + stream.flush()
    head = struct.pack(">BHII", 0x90, claims or len(messages), len(raw) if size is None else size, len(packed))
    return head + packed


def chunk_of(data, num_entries=2, num_records=4):
    head = struct.pack(">bbHIqQQIII", 0x50, 0, num_entries, num_records, 0, 1, 5, zlib.crc32(data), len(data), 0)
    return b"\0" + head + bytes(4) + data


GOOD = entry_of(MESSAGES[0]) + batch_of(MESSAGES[1:])


def test_batches_are_read():
    assert _chunk_of(chunk_of(GOOD)).messages == MESSAGES


def test_what_is_damaged_is_an_error():
    rng = random.Random(1)
    for _ in range(2_000):
        data = bytearray(GOOD)
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            del data[rng.randrange(len(data)) :]
        try:
            found = _chunk_of(chunk_of(bytes(data))).messages
        except ValueError:
            continue
        assert len(found) == 4  # of other bytes, as the publisher has sent them


@pytest.mark.parametrize("size", [0, 17, 19, 1 << 32, -1])
def test_a_batch_has_as_many_bytes_as_it_says(size):
    data = entry_of(MESSAGES[0]) + batch_of(MESSAGES[1:], size=size % (1 << 32))
    with pytest.raises(ValueError, match="the chunk at offset 5 cannot be read: a batch of messages"):
        _chunk_of(chunk_of(data))


def test_a_batch_does_not_take_more_memory_than_it_says():
    data = batch_of(bytes(64 << 20), claims=1, size=1_000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="other bytes than it says"):
            _chunk_of(chunk_of(data, 1, 1))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
