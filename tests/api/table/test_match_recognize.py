"""MATCH_RECOGNIZE: the node that a statement becomes, what EXPLAIN shows of it, and how it is refused.

Families: example (each part of the node against what the text says), property (patterns that are drawn as trees are
read back from their texts), error (places and hints).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headrace.engine.optimizer.growth import Growth, states_of
from headrace.engine.plan.match_nodes import (
    AfterMatch,
    Choice,
    MatchRecognize,
    OneAfterOther,
    Repeated,
    Variable,
    variables_of,
)
from headrace.engine.plan.plan import walk
from headrace.sql.match import _PatternText
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

QUERY = """SELECT T.symbol, fall, n + 1 AS m, e FROM ticker
    MATCH_RECOGNIZE (
        PARTITION BY symbol ORDER BY ts, price
        MEASURES FIRST(A.price) - LAST(B.price, 1) AS fall, COUNT(B.*) AS n, AVG(B.price * 2) AS a, MATCH_ROWTIME() AS e
        ONE ROW PER MATCH
        AFTER MATCH SKIP TO LAST B
        PATTERN (A B+? (C | D){2,} E?) WITHIN INTERVAL '1' HOUR
        DEFINE B AS B.price < A.price AND PREV(B.price) IS NOT NULL, C AS SUM(C.price) > 3
    ) AS T WHERE n > 2"""


def environment(mode="streaming", end=""):
    options = {"actor_system": "local"} if mode == "streaming" else {}
    made = TableEnvironment.create(mode=mode, parallelism=2, **options)
    made.execute_sql(f"""CREATE TABLE ticker (
        symbol STRING, price INT, ts TIMESTAMP(3), other TIMESTAMP(3), WATERMARK FOR ts AS ts
    ) WITH ('connector' = 'datagen'{end})""")
    return made


@pytest.fixture(scope="module")
def env():
    with environment() as made:
        yield made


def node_of(env, query):
    (found,) = [one for one in walk(*env._execution._rewritten((env.sql_query(query).relation.node,))) if
                isinstance(one, MatchRecognize)]  # fmt: skip
    return found


def test_the_node_has_what_the_text_says(env):
    node = node_of(env, QUERY)
    assert node.key.names == ("symbol",)
    assert [(one.column, one.ascending) for one in node.orders] == [("ts", True), ("price", True)]
    assert str(node.pattern) == "A B+? (C | D){2,} E?"
    assert list(variables_of(node.pattern)) == ["A", "B", "C", "D", "E"]
    assert (node.after, node.within_ms) == (AfterMatch("last", "B"), 3_600_000)
    assert list(node.definitions) == ["B", "C"]
    assert list(node.measures) == ["fall", "n", "a", "e"]
    assert node.schema == pa.schema([
        ("symbol", pa.string()), ("fall", pa.int32()), ("n", pa.int64()), ("a", pa.int32()), ("e", pa.timestamp("ms")),
    ])  # fmt: skip
    looks = {name: (one.how, one.variable, one.offset) for name, one in node.looks.items()}
    read = {name: [looks[column] for column in sorted(value.columns_used())]
            for name, value in (*node.definitions.items(), *node.measures.items())}  # fmt: skip
    assert read == {
        "B": [("last", "A", 0), ("last", "B", 0), ("prev", "B", 1)], "C": [("aggregate", "C", 0)],
        "fall": [("first", "A", 0), ("last", "B", 1)], "n": [("aggregate", "B", 0)],
        "a": [("aggregate", "B", 0)] * len(read["a"]), "e": [("rowtime", None, 0)],
    }  # fmt: skip
    assert len(read["a"]) >= 1


@pytest.mark.parametrize(
    ("clause", "after"),
    [("", AfterMatch()), ("AFTER MATCH SKIP PAST LAST ROW", AfterMatch()),
     ("AFTER MATCH SKIP TO NEXT ROW", AfterMatch("next")), ("AFTER MATCH SKIP TO FIRST C", AfterMatch("first", "C")),
     ("AFTER MATCH SKIP TO A", AfterMatch("last", "A"))],
)  # fmt: skip
def test_where_the_next_match_may_begin(env, clause, after):
    assert node_of(env, QUERY.replace("AFTER MATCH SKIP TO LAST B", clause)).after == after


def test_its_rows_have_the_event_time_that_is_asked_for(env):
    inner = QUERY.replace("T.symbol, fall, n + 1 AS m, e", "*").replace("WHERE n > 2", "")
    windows = """SELECT window_start, COUNT(*) FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR({}), INTERVAL '1' HOUR))
        GROUP BY window_start, window_end"""
    assert "match A B+?" in env.explain_sql(f"WITH r AS ({inner}) {windows.format('e')}")
    with pytest.raises(SqlError, match="windows need a time"):
        env.explain_sql(f"WITH r AS ({inner}) {windows.format('n')}")


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_plan_shows_it_and_running_it_is_refused(mode):
    with environment(mode, ", 'number-of-rows' = '10'") as env:
        plan = env.explain_sql(QUERY)
        written, _, run = plan.partition("== Plan of")
        for part in ("symbol, ts asc, price asc, skip to last B, within 3600000 ms", "* B where", "* measures fall, n"):
            assert part in written
            assert part in run
        env.execute_sql("CREATE TABLE out (a STRING, b INT, c BIGINT, d TIMESTAMP(3)) WITH ('connector' = 'blackhole')")
        for query in (QUERY, f"INSERT INTO out {QUERY}"):
            with pytest.raises(SqlError, match="MATCH_RECOGNIZE is not supported") as refused:
                env.execute_sql(query)
            assert (refused.value.line, refused.value.column) == (2, 5)
            assert "LAG" in refused.value.hint
        env.execute_sql(f"CREATE VIEW falls AS {QUERY}")
        with pytest.raises(SqlError, match="MATCH_RECOGNIZE is not supported"):
            env.execute_sql("SELECT * FROM falls")


@pytest.mark.parametrize(("query", "growth"), [(QUERY, Growth.PER_TIME), (QUERY.replace("WITHIN INTERVAL '1' HOUR", ""),
                                                                          Growth.UNBOUNDED)])  # fmt: skip
def test_a_plan_says_how_its_state_would_grow(env, query, growth):
    (state,) = [one for one in states_of(node_of(env, query)) if isinstance(one.node, MatchRecognize)]
    assert state.growth is growth
    assert (state.remedy is not None and "WITHIN" in state.remedy) == (growth is Growth.UNBOUNDED)


# ------------------------------------------------------------------------------------------------------------- patterns
def drawn(rng, depth=0):
    kind = rng.choice(["variable"] * (1 + depth) + ["choice", "sequence", "repeated"])
    if kind == "variable":
        return Variable(rng.choice(["A", "B", "Up", "x_1"]))
    if kind == "repeated":
        least, most = rng.choice([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (4, None), (0, 5)])
        return Repeated(_not_repeated(drawn(rng, depth + 1)), least, most, rng.random() < 0.7)
    parts = [drawn(rng, depth + 1) for _ in range(rng.randint(2, 3))]
    same = Choice if kind == "choice" else OneAfterOther
    flat = [inner for one in parts for inner in (one.parts if isinstance(one, same) else (one,))]
    return same(tuple(flat))


def _not_repeated(part):
    """``A**`` is no pattern."""
    return _not_repeated(part.part) if isinstance(part, Repeated) else part


def test_patterns_are_read_as_they_are_written():
    rng = random.Random(5)
    for _ in range(300):
        pattern = drawn(rng)
        assert _PatternText(str(pattern)).pattern() == pattern
    assert str(_PatternText("((A))  (B|C) D{ 1 , 3 }?").pattern()) == "A (B | C) D{1,3}?"
    assert _PatternText("A{,3}").pattern() == Repeated(Variable("A"), 0, 3)


# --------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("old", "new", "place", "message", "hint"),
    [
        ("B.price < A", "B.price < Z", (8, 31), "there is no variable 'Z'", "A, B, C, D, E"),
        ("C AS SUM", "F AS SUM", (8, 70), "there is no variable 'F'", None),
        ("TO LAST B", "TO LAST X", (6, 34), "there is no variable 'X'", None),
        ("ORDER BY ts, price", "ORDER BY price", (3, 38), "goes by event time", "WATERMARK"),
        ("ORDER BY ts, price", "ORDER BY other", (3, 38), "goes by event time", None),
        ("ORDER BY ts, price", "", (2, 5), "MATCH_RECOGNIZE needs ORDER BY", None),
        ("ONE ROW PER", "ALL ROWS PER", (5, 9), "ALL ROWS PER MATCH is not supported", "ONE ROW"),
        ("PATTERN (A B+?", "PATTERN (^ A B+?", (7, 18), "'\\^' was not expected", "anchors"),
        ("PATTERN (A B+?", "PATTERN (PERMUTE(A, B) B+?", (7, 18), "PERMUTE is not supported", None),
        ("PATTERN (A B+?", "PATTERN ({- A -} B+?", (7, 18), "was not expected in a pattern", None),
        ("PATTERN (A B+?", "PATTERN (A B{3,2}", (7, 18), "is no number of times", None),
        ("PATTERN (A B+?", "PATTERN (A | | B+?", (7, 18), "has a variable at least", None),
        ("AVG(B.price * 2)", "AVG(B.price + A.price)", None, "is of one variable", None),
        ("AVG(B.price * 2)", "AVG(B.prize)", None, "table 'B' has no column 'prize'", "'price'"),
        ("AVG(B.price * 2)", "AVG(DISTINCT B.price)", None, "neither DISTINCT nor FILTER", None),
        ("AVG(B.price * 2)", "AVG()", None, "AVG needs an argument", None),
        ("AVG(B.price * 2) AS a", "AVG(B.price)", None, "a measure has a name", None),
        ("FIRST(A.price)", "FIRST(A.price, B.price)", None, "a number of rows", None),
        ("PARTITION BY symbol", "PARTITION BY UPPER(symbol)", None, "takes columns", "in a view"),
        ("C AS SUM(C.price) > 3", "C AS SUM(C.price)", None, "expected a condition", None),
        ("FROM ticker", "FROM ticker AS a JOIN ticker AS b ON a.price = b.price", None, "is of one table", "in a view"),
        ("MEASURES FIRST", "MEASURES FINAL FIRST", None, "WINDOW FRAME is not supported", None),
    ],
)  # fmt: skip
def test_mistakes_are_shown_in_their_place(env, old, new, place, message, hint):
    assert old in QUERY
    with pytest.raises(SqlError, match=message) as refused:
        env.explain_sql(QUERY.replace(old, new, 1))
    if place is not None:
        assert (refused.value.line, refused.value.column) == place
    if hint is not None:
        assert hint in refused.value.hint
