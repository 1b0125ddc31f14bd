"""What is costly and stands twice is computed once: where it is, where it must not be, and that rows are the same.

Families: plans; rows against batch mode, which has no such rule; what would fail if it were computed for other records.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from headrace.engine.columns.expressions import col
from headrace.engine.errors import HeadraceError
from headrace.sql.functions.operators import Guarded
from headrace.table import TableEnvironment, udf

WORDS = ["apple", "Google", "", "BAIDU", "x=1&y=2", "12", "7", None, "Straße", "a/b/c", "//"]
TABLE = pa.table({"i": list(range(60)), "s": [random.Random(3 + i).choice(WORDS) for i in range(60)]})
TEXTS = (
    "LOWER(s)", "UPPER(s)", "SPLIT_INDEX(s, '/', 1)", "SPLIT_INDEX(s, '/', 0)", "REGEXP_EXTRACT(s, '([a-z]+)=(.)', 2)",
    "SUBSTRING(s, 2)", "REPLACE(s, 'a', 'b')", "CONCAT(s, '!')", "shout(s)",
)  # fmt: skip


def environment(mode):
    options = {"actor_system": "sim", "seed": 0} if mode == "streaming" else {}
    env = TableEnvironment.create(mode=mode, parallelism=2, **options)
    env.create_temporary_view("t", TABLE)
    env.create_temporary_function("shout", udf(lambda text: None if text is None else f"{text}!", result_type="STRING"))
    return env


def rows(env, query):
    table = env.execute_sql(query).to_arrow()
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def plan_of(query):
    with environment("streaming") as env:
        return env.explain_sql(query).partition("== Plan of streams ==")[2]


@pytest.mark.parametrize(
    ("query", "computed"),
    [
        ("SELECT LOWER(s) AS a, CHAR_LENGTH(LOWER(s)) AS b FROM t", "LOWER(col('s'))"),
        ("SELECT SPLIT_INDEX(s, '/', 0), SPLIT_INDEX(s, '/', 1) FROM t", "SPLIT(col('s'), '/')"),
        ("SELECT i, UPPER(s) FROM t WHERE UPPER(s) <> 'X'", "UPPER(col('s'))"),
        ("SELECT i FROM t WHERE LOWER(s) = 'a' OR LOWER(s) = 'b'", "LOWER(col('s'))"),
        ("SELECT i FROM t WHERE i > 3 AND LOWER(s) = 'a' OR LOWER(s) = 'b'", "LOWER(col('s'))"),
        ("SELECT CASE WHEN LOWER(s) = 'a' THEN LOWER(s) END FROM t", "LOWER(col('s'))"),
        ("SELECT UPPER(LOWER(s)), CONCAT(UPPER(LOWER(s)), s) FROM t", "UPPER(LOWER(col('s')))"),
    ],
)
def test_what_stands_twice_is_computed_once(query, computed):
    plan = plan_of(query)
    assert f"compute {computed}" in plan
    assert plan.count("computed once") == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT LOWER(s) AS a, UPPER(s) AS b FROM t",
        "SELECT i + 1 AS a, (i + 1) * 2 AS b FROM t",
        "SELECT CASE WHEN i < 3 THEN LOWER(s) ELSE '' END, CASE WHEN i > 3 THEN LOWER(s) ELSE '' END FROM t",
        "SELECT LOWER('A') AS a, LOWER('A') AS b, i FROM t",
        "SELECT i FROM t WHERE i > 3 AND shout(s) = 'a!' OR i < 3 AND shout(s) = 'b!'",
    ],
)
def test_and_nothing_else_is(query):
    assert "computed once" not in plan_of(query)


def test_what_only_some_records_can_bear_is_not_computed_for_all():
    query = """
        SELECT i, CASE WHEN s IN ('12', '7') THEN CAST(s AS INT) ELSE 0 END AS a,
               CASE WHEN s IN ('12', '7') THEN CAST(s AS INT) + 1 ELSE 0 END AS b
        FROM t
    """
    with environment("streaming") as stream, environment("batch") as batch:
        assert rows(stream, query) == rows(batch, query)
        with pytest.raises(HeadraceError):
            rows(stream, "SELECT CAST(s AS INT) AS a, CAST(s AS INT) + 1 AS b FROM t")


NUMBER = "LOWER(CAST(CAST(s AS INT) AS STRING))"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT i, {NUMBER} AS a FROM t WHERE s IN ('12', '7') AND {NUMBER} = '7'",
        f"SELECT s NOT IN ('12', '7') OR {NUMBER} = '7' AS a, s NOT IN ('12', '7') OR {NUMBER} = '12' AS b FROM t",
        f"SELECT i FROM t WHERE s NOT IN ('12', '7') OR {NUMBER} = '7' OR CONCAT({NUMBER}, '') = '12'",
        f"SELECT i FROM t WHERE s IN ('12', '7') AND 0.5 * i > 3 AND {NUMBER} = '7'",
    ],
)
def test_what_and_and_or_keep_from_failing_is_not_computed_before(query):
    with environment("streaming") as stream, environment("batch") as batch:
        assert rows(stream, query) == rows(batch, query)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_those_of_batch_mode(seed):
    draw = random.Random(seed)
    with environment("streaming") as stream, environment("batch") as batch:
        for _ in range(3):
            few = draw.choices(TEXTS, k=2)
            one, other = draw.choice(few), draw.choice(few)
            branch = f"CASE WHEN {one} = 'apple' THEN {other} WHEN i < 30 THEN {one} ELSE s END"
            condition = draw.choice(
                [f"{one} <> 'x'", f"{one} IS NOT NULL OR {other} = 'b'", "i > 5", f"{other} = {one}"]
            )
            values = draw.sample([one, other, branch, f"CONCAT({one}, {other})", "i"], k=4)
            named = ", ".join(f"{value} AS c{number}" for number, value in enumerate(values))
            query = f"SELECT {named} FROM t WHERE {condition}"
            assert rows(stream, query) == rows(batch, query), query


@pytest.mark.parametrize("num_texts", [30, 2_000])
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_parts_of_texts_that_repeat_or_not(mode, num_texts):
    """Texts that come several times are cut up once."""
    random_one = random.Random(num_texts)
    cut = ["/".join(random_one.choices(["a", "", "bb", "é"], k=random_one.randrange(6))) for _ in range(num_texts)]
    texts = [random_one.choice([*cut, None]) if num_texts < 100 else f"{cut[i]}/{i}" for i in range(2_000)]
    data = pa.table({"s": texts, "place": [i % 4 - 1 for i in range(2_000)], "by": ["/b"[i % 2] for i in range(2_000)]})

    def part(text, separator, place):
        parts = text.split(separator) if text else []
        return parts[place] if 0 <= place < len(parts) else None

    wanted = Counter(
        (text, part(text, "/", 0), part(text, "/", i % 4 - 1), part(text, "/b"[i % 2], 1))
        for i, text in enumerate(texts) if part(text, "/", 2) is not None
    )  # fmt: skip
    with environment(mode) as env:
        env.create_temporary_view("texts", data)
        query = """SELECT s, SPLIT_INDEX(s, '/', 0), SPLIT_INDEX(s, '/', place), SPLIT_INDEX(s, `by`, 1)
                   FROM texts WHERE SPLIT_INDEX(s, '/', 2) IS NOT NULL"""
        assert rows(env, query) == wanted


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_parts_of_texts_that_are_all_null(mode):
    """Many rows, none of which has a text: there is nothing to cut up, once or several times."""
    with environment(mode) as env:
        env.create_temporary_view("texts", pa.table({"s": pa.nulls(5_000, pa.string())}))
        assert rows(env, "SELECT SPLIT_INDEX(s, '/', 0), SPLIT_INDEX(s, '/', 1) FROM texts") == {(None, None): 5_000}


@pytest.mark.parametrize("mode", ["streaming", "batch"])
@pytest.mark.parametrize("separator", ["`by`", "CAST(NULL AS STRING)"])
def test_parts_between_separators_that_are_all_null(mode, separator):
    with environment(mode) as env:
        env.create_temporary_view("texts", pa.table({"s": ["a/b", "c"], "by": pa.nulls(2, pa.string())}))
        assert rows(env, f"SELECT s, SPLIT_INDEX(s, {separator}, 0) FROM texts") == Counter(
            [("a/b", None), ("c", None)]
        )


def test_a_guard_is_one_with_other_operands_too():
    guard = Guarded("and", (col("a"), col("b")))
    assert type(guard.with_children((col("c"), col("d")))) is Guarded
