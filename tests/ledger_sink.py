"""A sink by key as somebody else would write it, its service, and ways to get it wrong."""

from __future__ import annotations

import sys

import cloudpickle

from headrace.connectors.upserts import KeyedRecords, Refused, SinkAwayError, UpsertSink, UpsertSinkWriter
from headrace.engine.errors import SinkError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Ledger:
    """A table in memory that compares: by key the number of what was written last, and the row, None if it is gone."""

    ledgers = {}

    def __init__(self, name):
        self.entries = {}
        self.newest_attempt = (0, 0)
        self.is_away = False
        self.ledgers[name] = self

    def rows(self):
        return {key: (row["at"], row["v"]) for key, (_, row) in self.entries.items() if row is not None}

    def stop(self):
        self.is_away = True

    def start(self):
        self.is_away = False

    pause, resume = stop, start


class LedgerRecords(KeyedRecords):
    def key_of(self, values):
        return values[0]

    def value_of(self, row):
        return row


class LedgerSink(UpsertSink):
    def __init__(self, name, options, order=None, writer=None):
        super().__init__(f"ledger {name!r}", LedgerRecords("k", "gone", order), options)
        self.name, self.writer = name, writer or LedgerWriter

    def create_writer(self):
        return self.writer(self.name, self.place, self.options)


class LedgerWriter(UpsertSinkWriter):
    """Without an order a row's number is made of the attempt, and of how many it has written."""

    def __init__(self, name, place, options):
        super().__init__(place, options)
        self.name = name

    def open(self, context):
        self.attempt = tuple(map(int, context.get_attempt().split(".")))
        super().open(context)

    def connect(self):
        from ledger_sink import Ledger  # the one that has the ledgers

        self.ledger, self.num_written = Ledger.ledgers[self.name], 0
        if self.attempt < self.ledger.newest_attempt:
            message = "a newer attempt writes"
            raise SinkError(message)
        self.ledger.newest_attempt = self.attempt

    def number_of(self, order):
        self.num_written += 1
        return (*self.attempt, self.num_written) if order is None else (order,)

    def apply(self, entries):
        if self.ledger.is_away:
            message = "the ledger is away"
            raise SinkAwayError(message)
        for entry in entries:
            key, order, row = entry
            if row is not None and not isinstance(row["v"], int):
                yield Refused(entry, "no number")
                continue
            self.put(key, self.number_of(order), row)

    def put(self, key, number, row):
        before = self.ledger.entries.get(key)
        if before is None or len(before[0]) != len(number) or before[0] <= number:
            self.ledger.entries[key] = number, row


# ----------------------------------------------------------------------------------------------------- ways to be wrong
class WritesWhatComesLast(LedgerWriter):
    def put(self, key, number, row):
        self.ledger.entries[key] = number, row


class ForgetsWhatIsGone(LedgerWriter):
    """A deletion leaves nothing that a late row could be compared with."""

    def put(self, key, number, row):
        super().put(key, number, row)
        if self.ledger.entries[key][1] is None:
            del self.ledger.entries[key]


class KeepsTheLarger(LedgerWriter):
    """Of two rows without an order."""

    def number_of(self, order):
        return (0,) if order is None else (order,)

    def put(self, key, number, row):
        before = self.ledger.entries.get(key)
        if number == (0,) and before and before[1] and row and before[1]["v"] > row["v"]:
            return
        super().put(key, number, row)


class DoesNotDelete(LedgerWriter):
    def put(self, key, number, row):
        if row is not None:
            super().put(key, number, row)


class LetsOldAttemptsIn(LedgerWriter):
    def connect(self):
        from ledger_sink import Ledger

        self.ledger, self.num_written = Ledger.ledgers[self.name], 0


class PassesOverWhatIsRefused(LedgerWriter):
    def apply(self, entries):
        list(super().apply(entries))
        return []


class RefusesAllWithOne(LedgerWriter):
    def apply(self, entries):
        refused = [entry for entry in entries if entry[2] is not None and not isinstance(entry[2]["v"], int)]
        if refused:
            return [Refused(entry, "no number") for entry in entries]
        return super().apply(entries)


class DropsWhatFindsNobody(LedgerWriter):
    def apply(self, entries):
        return [] if self.ledger.is_away else super().apply(entries)
