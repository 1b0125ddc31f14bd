"""Numbers that sinks make: greater than all before, and none for who was replaced.

Risks and families: attempts, subtasks and jobs that reserve in any order (random lives against a list), clocks that go
back, cells that others change, texts that are none of a cell.
"""

from __future__ import annotations

import random
import time

import pytest

from headrace.connectors.upserts import Numbers, SinkAwayError, WriterPlace
from headrace.engine.errors import SinkError, SinkFencedError


class Cell:
    """A text that others change at times between reading and replacing."""

    def __init__(self):
        self.text = None
        self.before_replace = lambda: None

    def read(self):
        return self.text

    def replace(self, old, new):
        self.before_replace()
        if self.text != old:
            return False
        self.text = new
        return True


def numbers_of(cell, subtask=0, parallelism=2, attempt=(1, 0), sink="job/op", **options):
    return Numbers(cell, WriterPlace(sink, subtask, parallelism, attempt), **{"block": 3, **options})


def test_a_block_that_is_reserved_later_is_above_all_before():
    """Whoever reserves: attempts of one job, and of others."""
    rng, cell = random.Random(5), Cell()
    writers, last_of = [], []
    taken = []
    for step in range(600):
        if not writers or rng.random() < 0.1:
            writers.append(numbers_of(cell, rng.randrange(2), 2, (1, step), rng.choice(("a/op", "b/op"))))
            last_of.append(-1)
        place = rng.randrange(len(writers))
        before = cell.text
        try:
            number = writers[place].take()
        except SinkFencedError:
            continue
        assert number > last_of[place]
        assert number not in taken
        if cell.text != before:  # a new block
            assert number > max(taken, default=-1)
        taken.append(number)
        last_of[place] = number
    assert len(taken) > 100


def test_numbers_begin_above_the_clock_and_never_go_back_with_it(monkeypatch):
    cell = Cell()
    now_us = time.time_ns() // 1_000
    first = numbers_of(cell).take()
    assert now_us <= first < now_us + 60_000_000
    monkeypatch.setattr(time, "time_ns", lambda: 5_000)
    assert numbers_of(cell, attempt=(1, 1)).take() > first
    assert 5 <= numbers_of(Cell()).take() < 10


def test_what_replaces_an_attempt_shuts_it_out():
    cell = Cell()
    old = numbers_of(cell, attempt=(1, 3))
    old_numbers = [old.take(), old.take()]
    new = numbers_of(cell, attempt=(1, 4))
    newest = new.take()
    late = old.take()  # of the block that it has
    assert max(*old_numbers, late) < newest
    with pytest.raises(SinkFencedError, match="a newer attempt"):
        old.take()
    numbers_of(cell, subtask=1, attempt=(1, 3)).take()  # another subtask goes on: it was not restarted
    with pytest.raises(SinkFencedError):
        numbers_of(cell, attempt=(0, 9)).take()  # of an older leader
    numbers_of(cell, attempt=(0, 9), sink="other/op").take()


def test_at_another_parallelism_any_newer_attempt_shuts_out_all_older_ones():
    cell = Cell()
    wide = [numbers_of(cell, subtask, 4, (1, 1)) for subtask in range(4)]
    for one in wide[:3]:
        one.take()
    numbers_of(cell, 0, 2, (1, 2)).take()
    for one in (wide[3], numbers_of(cell, 1, 4, (1, 1))):
        with pytest.raises(SinkFencedError):
            one.take()
    narrow = numbers_of(cell, 1, 2, (1, 2))
    narrow.take()
    numbers_of(cell, 3, 4, (1, 3)).take()  # as wide as at first
    with pytest.raises(SinkFencedError):
        numbers_of(cell, 2, 4, (1, 1)).take()
    for _ in range(2):
        narrow.take()
    with pytest.raises(SinkFencedError):
        narrow.take()


def test_whoever_is_second_tries_again_above_the_first():
    cell = Cell()
    other = numbers_of(cell, subtask=1)
    found = []

    def be_faster():
        cell.before_replace = lambda: None
        found.append(other.take())

    cell.before_replace = be_faster
    assert numbers_of(cell).take() > found[0] + 2


def test_a_sink_that_has_written_nothing_for_long_is_forgotten(monkeypatch):
    cell = Cell()
    numbers_of(cell, sink="old/op").take()
    numbers_of(cell, sink="new/op").take()
    assert "old/op" in cell.text
    later = time.time_ns() + 31 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    numbers_of(cell, sink="new/op").take()
    assert "old/op" not in cell.text


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"last": 1}', '{"last": true, "sinks": {}}', '{"last": 1, "sinks": {"a": 1}}', "[" * 100_000,
     '{"last": 1, "sinks": {"a": {"oldest": [1], "parallelism": 1, "last": 1, "attempts": {}}}}'],
)  # fmt: skip
def test_a_text_that_is_none_of_a_cell_is_an_error(text):
    cell = Cell()
    cell.text = text
    with pytest.raises(SinkError, match="cannot be read"):
        numbers_of(cell).take()
    assert cell.text == text


def test_a_cell_that_is_away_is_asked_again():
    cell = Cell()
    numbers = numbers_of(cell)

    def be_away():
        cell.before_replace = lambda: None
        raise SinkAwayError("away")  # noqa: EM101

    cell.before_replace = be_away
    with pytest.raises(SinkAwayError):
        numbers.take()
    numbers.take()
