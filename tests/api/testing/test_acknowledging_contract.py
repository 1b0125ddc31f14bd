"""Families: contract (a source that acknowledges passes all checks) and mutation (each check can fail)."""

from __future__ import annotations

import itertools

import post_source
import pytest
from post_source import Post, PostSource

from headrace.testing.acknowledging_contract import ACKNOWLEDGING_CONTRACT, AcknowledgingSubject

_names = itertools.count()


def post(reader=None):
    name = f"post {next(_names)}"
    service = Post(name)
    return AcknowledgingSubject(
        PostSource(name, reader), number=int, send=service.send, num_left=service.num_left,
        narrow=PostSource(name, reader, most_open=10), server=service,
    )  # fmt: skip


@pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
def test_a_source_that_is_right_passes(check):
    check(post())


@pytest.mark.parametrize(
    ("name", "caught_by"),
    [
        ("AcknowledgesAtOnce", "acknowledges_nothing_before"),
        ("AcknowledgesItsSnapshot", "acknowledges_nothing_before"),
        ("AcknowledgesAllThere", "acknowledges_what_its_checkpoint_holds"),
        ("NeverAcknowledges", "acknowledges_behind_a_complete_checkpoint"),
        ("KnowsNothing", "knows_what_comes_again"),
        ("ForgetsWhatItKnows", "knows_what_comes_again"),
        ("LeavesWhatItKnows", "knows_what_comes_again"),
        ("KnowsWhatItNeverGave", "gives_again_what_no_checkpoint_holds"),
        ("TakesMoreThanItMay", "goes_on_behind_what_may_be_open"),
        ("StopsWhereItMayTakeNoMore", "goes_on_behind_what_may_be_open"),
        ("KnowsNothing", "survives_the_service"),
    ],
)
def test_a_source_that_is_wrong_is_caught(name, caught_by, monkeypatch):
    monkeypatch.setattr("headrace.testing.sources.harness.PATIENCE_S", 0.5)
    (check,) = [check for check in ACKNOWLEDGING_CONTRACT if check.__name__ == caught_by]
    with pytest.raises(AssertionError):
        check(post(getattr(post_source, name)))
