"""Pieces of a stream on their way from the thread to the task: many small ones come as one, in order, errors behind.

Risks and families: records lost or given before an error is told (equivalence with the pieces one by one).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.http.stream_reader import RECORDS_AT_ONCE, Place, Reading, StreamRecord, StreamThread
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import SourceError


class Played(StreamThread):
    """Gets what it is given, in the thread of the test."""

    def __init__(self):
        super().__init__(Reading(Split("a", {"url": "http://a"}, None)), "played", 1.0)

    def connect(self):
        return

    work = disconnect = interrupt = connect


def records_of(first, number):
    return [
        StreamRecord("http://a", None, Place(None, index + 1), b"%d" % index) for index in range(first, first + number)
    ]


@given(st.lists(st.integers(1, 700), max_size=20), st.booleans(), st.booleans())
def test_small_pieces_come_together_and_none_is_lost(sizes, ends, fails):
    thread, sent = Played(), 0
    for size in sizes:
        thread.hand_on(records_of(sent, size))
        sent += size
    if ends:
        thread.hand_on([], is_last=True)
    if fails:
        thread.failed(SourceError("away"))
    taken = []
    while (ends and not (taken and taken[-1].is_last)) or sum(piece.num_messages for piece in taken) < sent:
        taken.append(thread.take())
    bodies = [int(record.body) for piece in taken for record in piece.records]
    assert bodies == list(range(sent))
    assert [piece.is_last for piece in taken].count(True) == ends
    assert len(taken) <= sent // RECORDS_AT_ONCE + 1, "each but the last has as many as it may"
    if fails:
        with pytest.raises(SourceError, match="away"):
            thread.take()
    else:
        assert thread.take() is None
