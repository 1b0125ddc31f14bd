"""Families: contract (a sink that writes by key passes all checks) and mutation (each check can fail)."""

from __future__ import annotations

import itertools

import ledger_sink
import pytest
from ledger_sink import Ledger, LedgerSink

from headrace.testing.upsert_contract import UPSERT_CONTRACT, UpsertSubject

_names = itertools.count()


def ledger(writer=None):
    name = f"ledger {next(_names)}"
    service = Ledger(name)

    def sink(order, options):
        return LedgerSink(name, options, order, writer)

    bad = {"k": 2, "at": 1, "v": "text", "gone": False}
    return UpsertSubject(sink, service.rows, bad=bad, server=service)


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_a_sink_that_is_right_passes(check):
    check(ledger())


@pytest.mark.parametrize(
    ("name", "caught_by"),
    [
        ("WritesWhatComesLast", "keeps_the_newest"),
        ("ForgetsWhatIsGone", "keeps_the_newest"),
        ("KeepsTheLarger", "keeps_the_last_without_an_order"),
        ("DoesNotDelete", "deletes"),
        ("WritesWhatComesLast", "shuts_out_an_attempt_that_was_replaced"),
        ("LetsOldAttemptsIn", "shuts_out_an_attempt_that_was_replaced"),
        ("PassesOverWhatIsRefused", "names_what_is_refused"),
        ("RefusesAllWithOne", "passes_over_what_it_is_told_to"),
        ("DropsWhatFindsNobody", "waits_for_its_service"),
    ],
)
def test_a_sink_that_is_wrong_is_caught(name, caught_by, monkeypatch):
    monkeypatch.setattr("headrace.testing.upsert_contract.PATIENCE_S", 0.5)
    (check,) = [check for check in UPSERT_CONTRACT if check.__name__ == caught_by]
    with pytest.raises(AssertionError):
        check(ledger(getattr(ledger_sink, name)))
