"""What becomes of records that a service by key does not take: for now, for good, for ever.

Risks and families: a job that goes on for ever with one record; a record that is skipped though the service would take
it later.
"""

from __future__ import annotations

import pytest
from upsert_kit import harness_of

from headrace.connectors.cassandra.client import _answer_of
from headrace.connectors.upserts import KeyedRecords, Refused, UpsertOptions, UpsertSink, UpsertSinkWriter
from headrace.engine.errors import SinkError


class Rows(KeyedRecords):
    def key_of(self, values):
        return values[0]

    def value_of(self, row):
        return row


REFUSALS: dict[int, int] = {}
"""How often a key is not taken; writers are copied, so it is kept here."""
TAKEN: list[int] = []


class Writer(UpsertSinkWriter):
    """Takes all but what it is told to refuse."""

    def connect(self):
        return

    def get_size_in_bytes(self, request_entry):
        return 1

    def apply(self, entries):
        for entry in entries:
            left = REFUSALS.get(entry[0], 0)
            if left:
                REFUSALS[entry[0]] = left - 1
                yield Refused(entry, "not now", is_for_now=True)
            else:
                TAKEN.append(entry[2]["n"])


class Sink(UpsertSink):
    def create_writer(self):
        return Writer(self.place, self.options)


def write(refusals, rows, patience):
    REFUSALS.clear()
    REFUSALS.update(refusals)
    TAKEN.clear()
    options = UpsertOptions(batch_size=3, batch_interval="1 ms", patience=patience)
    harness = harness_of(Sink("a table", Rows("key"), options))
    harness.process(rows)
    harness.operator.end_input(0)
    for _ in range(100):
        harness.do_all_work()
        harness.pass_time(1_000)
        if not harness.operator.has_pending:
            return
    message = "it goes on for ever"
    raise AssertionError(message)


ROWS = [{"key": number, "n": number} for number in range(9)]


@pytest.mark.parametrize("key", [0, 1, 2, 8])
def test_a_record_that_is_never_taken_ends_the_job(key):
    # Others are sent with it, and taken again and again, but in requests that become smaller: at last it is alone.
    with pytest.raises(SinkError, match="takes nothing now: not now; nothing was taken for"):
        write({key: 1_000_000}, ROWS, patience=0)


def test_a_record_that_is_taken_at_last_is_written():
    write({0: 5, 1: 3, 4: 4, 8: 2}, ROWS, patience="1 min")
    assert sorted(set(TAKEN)) == list(range(9))


def test_what_a_replica_could_not_do_is_no_refusal():
    cassandra = pytest.importorskip("cassandra")
    from cassandra import protocol

    for error in (
        cassandra.WriteFailure("failed"), cassandra.ReadFailure("failed"), cassandra.CDCWriteFailure("full"),
        protocol.ServerError(0, "error", None), cassandra.WriteTimeout("late", write_type=0),
    ):  # fmt: skip
        assert _answer_of(error).is_away, error
    for error in (
        cassandra.InvalidRequest("no"),
        cassandra.Unauthorized("no"),
        protocol.SyntaxException(0, "no", None),
    ):
        assert not _answer_of(error).is_away, error
