"""Statements with mistakes: whatever comes is an answer, or an error of ours with a place; long ones need no depth.

Families: mutations of statements by seed; what has no end; depth; long chains and lists against a direct computation.
"""

from __future__ import annotations

import pytest
from campaigns import blocks, campaign
from statement_mutations import environment, mutated, outcome

from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

MUTATIONS_OF_A_BLOCK = 60


@pytest.fixture(scope="module")
def tables():
    with environment() as env:
        yield env


@pytest.fixture(scope="module")
def batch():
    with TableEnvironment.create(mode="batch", parallelism=1) as env:
        env.execute_sql(
            "CREATE VIEW t AS SELECT * FROM (VALUES (1, 'a'), (77, 'b'), (CAST(NULL AS INT), 'c')) AS v (i, s)"
        )
        yield env


@pytest.mark.parametrize("block", blocks(1, 12))
def test_a_mistake_is_an_answer_or_an_error_with_a_place(block, tables):
    for number in range(block * MUTATIONS_OF_A_BLOCK, (block + 1) * MUTATIONS_OF_A_BLOCK):
        statement = mutated(number)
        assert outcome(tables, statement) in ("planned", "refused"), f"{number}: {statement[:500]}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT 'abc", (1, 8)), ("SELECT 1,\n  `x", (2, 3)), ("SELECT 'it''s', /* no end", (1, 17)),
        ("SELECT 1 -- it's\n, 'x", (2, 3)), ("SELECT 1; SELECT 2", (1, 11)), ("", (1, 1)),
        ("SELECT " + "(" * 900 + "1" + ")" * 900, (1, 907)), ("SELECT " + "1 + " * 3000 + "1", (1, 1)),
    ],
)  # fmt: skip
def test_where_it_is(text, place, batch):
    with pytest.raises(SqlError) as raised:
        batch.execute_sql(text)
    assert (raised.value.line, raised.value.column) == place
    assert len(str(raised.value)) < 500


def test_types_that_are_called_in_each_other_are_read_soon(batch):
    """The parser reads each word twice: twenty are a million ways."""
    assert batch.execute_sql(f"SELECT {'ARRAY[' * 9}7{']' * 9} AS a").to_arrow().num_rows == 1
    for word, end in (("ARRAY[", "]"), ("ROW(", ")"), ("DATE(", ")")):
        with pytest.raises(SqlError, match="nested too deeply") as raised:
            batch.execute_sql(f"SELECT {word * 30}1{end * 30}")
        assert raised.value.column == 8 + 10 * len(word)


def rows(env, condition):
    return {row["s"] for row in env.execute_sql(f"SELECT s FROM t WHERE {condition}").to_arrow().to_pylist()}


@pytest.mark.parametrize("number", [3, 400, campaign(3000)])
def test_values_of_in_and_conditions_may_be_many(number, batch):
    numbers = ", ".join(str(one) for one in range(number))
    inside = {"a"} | ({"b"} if number > 77 else set())
    assert rows(batch, f"i IN ({numbers})") == inside
    assert rows(batch, f"i NOT IN ({numbers})") == {"a", "b"} - inside
    assert rows(batch, f"i NOT IN ({numbers}, NULL)") == set()
    assert rows(batch, f"(i IN ({numbers}, NULL)) IS NULL") == {"a", "b", "c"} - inside
    assert rows(batch, f"i IN ({numbers}, i)") == {"a", "b"}
    assert rows(batch, f"s IN ({', '.join(repr(f's{one}') for one in range(number))}, 'b')") == {"b"}
    assert rows(batch, " OR ".join(f"i = {one}" for one in range(number))) == inside
    assert rows(batch, " AND ".join(f"i <> {one}" for one in range(number))) == {"a", "b"} - inside


def test_the_left_of_a_long_chain_still_keeps_its_right_from_failing(batch):
    chain = " AND ".join(["i <> 1", *(f"i <> {one}" for one in range(2, 40)), "10 / (i - 1) >= 0"])
    assert rows(batch, chain) == {"b"}
