"""The table that a changelog comes to.

Families: oracle (a list from which equal rows are taken), property (random types, changelogs, cuts).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from changelog_kit import KINDS, Changelog, batch_of, canonical, cut, multiset

from headrace.engine.changelog import final_table
from headrace.engine.changelog.final_table import FinalTable, apply_changes
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import UserFunctionError


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_those_that_remain(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(final_table, "_FOLD_ROWS", rng.choice([0, 30, 1_000_000]))
    changelog = Changelog(rng, rng.choices(list(KINDS), k=rng.randint(1, 4)))
    table = FinalTable(changelog.schema)
    for _ in range(4):
        for part in cut(rng, changelog.changes(40)):
            table.add(batch_of(part, changelog.schema))
        rows = [tuple(row.values()) for row in table.rows().to_pylist()]
        assert multiset(rows) == multiset(changelog.live)
        if len(set(map(canonical, rows))) == len(rows):
            assert list(map(canonical, rows)) == list(map(canonical, changelog.live))


def test_a_row_that_is_not_there_cannot_be_taken_back():
    schema = pa.schema([("v", pa.int64())])
    for changes in ([(3, (1,))], [(0, (1,)), (3, (1,)), (3, (1,))], [(3, (1,)), (0, (1,))], [(0, (2,)), (1, (1,))]):
        with pytest.raises(UserFunctionError, match=r"takes back what is not there: \{'v': 1\}"):
            apply_changes([batch_of([(RowKind(kind), row) for kind, row in changes], schema)])


def test_nothing_is_an_empty_table():
    schema = pa.schema([("v", pa.int64())])
    assert apply_changes([], schema) == schema.empty_table()
    assert apply_changes([Batch.of_rows([])], schema) == schema.empty_table()
