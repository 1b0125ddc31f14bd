"""The Table API: verbs mean what the queries mean that say the same, in both modes, and streams go in and out.

Risks: an expression is written so that SQL reads it otherwise (differential: Python's own operators); a verb that is
another query than it says (differential: SQL); changes that lose their kind on the way (end to end).
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import JobFailedError, ProgramError
from headrace.table import (
    CURRENT_ROW,
    UNBOUNDED_ROW,
    Over,
    Session,
    Slide,
    TableEnvironment,
    Tumble,
    call,
    col,
    expr,
    lit,
    row_interval,
    udf,
)

BIDS = pa.table({
    "item": ["lamp", "lamp", "desk", None, "desk", "lamp"],
    "price": [12, 15, 40, 19, 44, None],
    "at": pa.array([1_000, 4_000, 11_000, 12_000, 27_000, 28_000]).cast(pa.timestamp("ms")),
})  # fmt: skip
LISTED = pa.table({"thing": ["lamp", "desk", "chair"], "list_price": [20, 50, 70]})


def environment(mode="batch", **options):
    t = TableEnvironment.create(mode=mode, parallelism=2, **options)
    t.create_temporary_view("bids", BIDS, event_time="at")
    t.create_temporary_view("listed", LISTED)
    return t


@pytest.fixture(params=["batch", "streaming"])
def t(request):
    options = {"actor_system": "local"} if request.param == "streaming" else {}
    with environment(request.param, **options) as made:
        yield made


def bag(table):
    return Counter(tuple(map(str, row.values())) for row in table.to_pylist())


VERBS = {
    "columns of expressions": (
        lambda bids, _: bids.select("item", (col("price") * 2 + 1).alias("p"), col("item").upper_case),
        "SELECT item, price * 2 + 1 AS p, UPPER(item) FROM bids",
    ),
    "conditions": (
        lambda bids, _: bids.where((col("price") > 12) & ~(col("item") == "desk") | col("price").is_null),
        "SELECT * FROM bids WHERE price > 12 AND NOT item = 'desk' OR price IS NULL",
    ),
    "conditions in SQL": (
        lambda bids, _: bids.filter("price BETWEEN 15 AND 40").select(expr("price % 7 AS rest")),
        "SELECT price % 7 AS rest FROM bids WHERE price BETWEEN 15 AND 40",
    ),
    "groups": (
        lambda bids, _: bids.group_by(col("item")).select(
            col("item"),
            col("price").sum.alias("s"),
            col("price").distinct.count,
            col("price").max.filter(col("price") < 42),
        ),
        """SELECT item, SUM(price) AS s, COUNT(DISTINCT price), MAX(price) FILTER (WHERE price < 42)
        FROM bids GROUP BY item""",
    ),
    "groups by a computed key": (
        lambda bids, _: bids.group_by((col("price") % 2).alias("odd")).select(col("odd"), lit(1).count),
        "SELECT price % 2, COUNT(1) FROM bids GROUP BY price % 2",
    ),
    "all rows as a group": (
        lambda bids, _: bids.group_by().select(col("price").sum, col("item").count),
        "SELECT SUM(price), COUNT(item) FROM bids",
    ),
    "windows that tumble": (
        lambda bids, _: (
            bids.window(Tumble.over(lit(10).seconds).on(col("at")).alias("w"))
            .group_by(col("w"), col("item"))
            .select(col("item"), col("w").start, col("w").end, col("w").rowtime, col("price").sum)
        ),
        """SELECT item, TUMBLE_START(at, INTERVAL '10' SECOND), TUMBLE_END(at, INTERVAL '10' SECOND),
        TUMBLE_ROWTIME(at, INTERVAL '10' SECOND), SUM(price) FROM bids
        GROUP BY TUMBLE(at, INTERVAL '10' SECOND), item""",
    ),
    "windows that slide": (
        lambda bids, _: (
            bids.window(Slide.over(lit(10).seconds).every(lit(5).seconds).on(col("at")).alias("w"))
            .group_by(col("w"))
            .select(col("w").start, lit(1).count)
        ),
        """SELECT HOP_START(at, INTERVAL '5' SECOND, INTERVAL '10' SECOND), COUNT(1) FROM bids
        GROUP BY HOP(at, INTERVAL '5' SECOND, INTERVAL '10' SECOND)""",
    ),
    "sessions": (
        lambda bids, _: (
            bids.window(Session.with_gap(lit(5).second).on(col("at")).alias("s"))
            .group_by(col("item"), col("s"))
            .select(col("item"), col("s").end, col("price").count)
        ),
        """SELECT item, SESSION_END(at, INTERVAL '5' SECOND), COUNT(price) FROM bids
        GROUP BY item, SESSION(at, INTERVAL '5' SECOND)""",
    ),
    "aggregates over windows": (
        lambda bids, _: bids.over_window(
            Over.partition_by("item").order_by(col("at")).preceding(row_interval(1)).alias("w"),
            Over.partition_by("item").order_by(col("at")).preceding(UNBOUNDED_ROW).following(CURRENT_ROW).alias("all"),
        ).select(col("item"), col("price").sum.over(col("w")), col("price").count.over(col("all"))),
        """SELECT item, SUM(price) OVER (PARTITION BY item ORDER BY at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW),
        COUNT(price) OVER (PARTITION BY item ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM bids""",
    ),
    "joins": (
        lambda bids, listed: bids.join(listed, col("item") == col("thing")).select("item", "price", "list_price"),
        "SELECT item, price, list_price FROM bids JOIN listed ON item = thing",
    ),
    "joins that keep the left": (
        lambda bids, listed: bids.left_outer_join(listed, (col("item") == col("thing")) & (col("price") > 14)),
        "SELECT * FROM bids LEFT JOIN listed ON item = thing AND price > 14",
    ),
    "joins that keep the right": (
        lambda bids, listed: bids.right_outer_join(listed, col("item") == col("thing")),
        "SELECT * FROM bids RIGHT JOIN listed ON item = thing",
    ),
    "joins that keep both": (
        lambda bids, listed: bids.full_outer_join(listed, col("item") == col("thing")),
        "SELECT * FROM bids FULL JOIN listed ON item = thing",
    ),
    "unions": (
        lambda bids, listed: bids.select("item").union_all(listed.select("thing")),
        "SELECT item FROM bids UNION ALL SELECT thing FROM listed",
    ),
    "unions of different rows": (
        lambda bids, listed: bids.select("item").union(listed.select("thing")),
        "SELECT item FROM bids UNION SELECT thing FROM listed",
    ),
    "different rows": (lambda bids, _: bids.select("item").distinct(), "SELECT DISTINCT item FROM bids"),
    "the first rows of an order": (
        lambda bids, _: bids.where("price IS NOT NULL").order_by(col("price").desc).limit(2, offset=1),
        "SELECT * FROM bids WHERE price IS NOT NULL ORDER BY price DESC LIMIT 2 OFFSET 1",
    ),
    "columns that come, go and change names": (
        lambda bids, _: (
            bids.add_columns((col("price") + 1).alias("q"))
            .drop_columns("at")
            .rename_columns(col("q").alias("z"))
            .add_or_replace_columns((col("price") * 10).alias("price"), "1 AS one")
        ),
        "SELECT item, price * 10 AS price, price + 1 AS z, 1 AS one FROM bids",
    ),
    "other names": (lambda bids, _: bids.alias("a", "b"), "SELECT item AS a, price AS b, at FROM bids"),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_means_what_its_query_means(name):
    verb, query = VERBS[name]
    t = environment()
    made = verb(t.from_path("bids"), t.from_path("listed"))
    same = t.sql_query(query)
    assert bag(made.to_arrow()) == bag(same.to_arrow()) != Counter()
    named = [one for one in same.schema.names if not one.startswith("EXPR$")]
    assert [one for one in made.schema.names if one in named] == named
    assert made.schema.types == same.schema.types


def test_verbs_run_on_streams_too():
    with environment("streaming", actor_system="local") as t:
        best = (
            t.from_path("bids")
            .join(t.from_path("listed"), col("item") == col("thing"))
            .group_by(col("item"))
            .select(
                col("item"), col("price").max.alias("best"), (col("list_price").max - col("price").max).alias("room")
            )
        )
        assert bag(best.to_arrow()) == Counter({("lamp", "15", "5"): 1, ("desk", "44", "6"): 1})


numbers = st.integers(-20, 20)


@st.composite
def expressions(draw, depth=4):
    """An expression of the Table API, and what Python makes of it for a row."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from("ab"))
            return col(name), lambda row: row[name]
        number = draw(numbers)
        return lit(number), lambda row: number
    (left, left_of), (right, right_of) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    operator = draw(st.sampled_from(["+", "-", "*", "neg", "case", "between"]))
    if operator == "+":
        return left + right, lambda row: left_of(row) + right_of(row)
    if operator == "-":
        return left - right, lambda row: left_of(row) - right_of(row)
    if operator == "*":
        return left * right, lambda row: left_of(row) * right_of(row)
    if operator == "neg":
        return -left, lambda row: -left_of(row)
    if operator == "between":
        return left.between(right, left).then(1, 0), lambda row: int(right_of(row) <= left_of(row))
    both = ((left < right) | (left == 3)) & ~(right == 0)
    return (
        both.then(left, right),
        lambda row: (
            left_of(row)
            if (left_of(row) < right_of(row) or left_of(row) == 3) and right_of(row) != 0
            else right_of(row)
        ),
    )


@pytest.mark.hypothesis
@given(made=expressions(), rows=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3))
def test_expressions_mean_what_python_means_by_them(made, rows):
    expression, of_row = made
    t = TableEnvironment.create(mode="batch", parallelism=1)
    table = t.from_arrow(
        pa.table({name: pa.array(column) for name, column in zip("ab", zip(*rows, strict=True), strict=True)})
    )
    wanted = [of_row(dict(zip("ab", row, strict=True))) for row in rows]
    assert table.select(expression.cast("BIGINT")).to_arrow().column(0).to_pylist() == wanted


LITERALS = [
    None, True, -7, 3.5, -1e-7, 1e300, float("inf"), Decimal("12.50"), "it's", "", b"\x00ab", dt.date(2026, 1, 2),
    dt.datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - a TIMESTAMP has no zone
    dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc),
    dt.timedelta(days=1, milliseconds=5),
]  # fmt: skip


def test_literals_come_out_as_they_went_in():
    t = environment()
    found = t.from_path("listed").limit(1).select(*map(lit, LITERALS)).to_arrow()
    assert [column[0].as_py() for column in found.columns] == LITERALS


def test_functions_of_python_are_called_without_a_name(t):
    plus = udf(lambda value: None if value is None else value + 1, result_type="BIGINT")
    twice = udf(lambda value: None if value is None else value * 2, result_type="BIGINT")
    rows = t.from_path("bids").select(plus(col("price")), twice(plus(col("price"))), call(plus, 4)).to_arrow()
    assert bag(rows) == Counter((str(p and p + 1), str(p and (p + 1) * 2), "5") for p in BIDS["price"].to_pylist())


def test_rows_at_hand_are_tables(t):
    frame = LISTED.to_pandas()
    for table in (
        t.from_arrow(LISTED),
        t.from_pandas(frame),
        t.from_elements(frame.itertuples(index=False), frame.columns),
    ):
        assert bag(table.to_arrow()) == bag(LISTED)


def test_a_data_set_goes_in_and_out():
    t = environment()
    data = t.data_set_environment.from_arrow(LISTED)
    table = t.from_data_set(data).where("list_price > 20").select("thing")
    assert sorted(t.to_data_set(table).map(lambda row: row["thing"]).collect()) == ["chair", "desk"]


def test_a_stream_goes_in_and_out():
    with environment("streaming", actor_system="local") as t:
        stream = t.stream_environment.from_collection(LISTED)
        table = t.from_data_stream(stream).where(col("list_price") > 20)
        found = t.to_data_stream(table).map(lambda row: (row["thing"], row["list_price"])).execute_and_collect()
        assert sorted(found) == [("chair", 70), ("desk", 50)]


def test_rows_that_change_are_no_plain_stream():
    with environment("streaming", actor_system="local") as t:
        table = t.from_path("bids").group_by("item").select("item", col("price").sum)
        with pytest.raises(ProgramError, match="to_changelog_stream"):
            t.to_data_stream(table)


CHANGES = [("+I", "a", 1), ("+I", "b", 5), ("-U", "a", 1), ("+U", "a", 2), ("-D", "b", 5), ("+I", "c", 7)]


def changes_of(env, rows=CHANGES):
    kinds, keys, values = zip(*rows, strict=True)
    return env.from_collection(pa.table({"op": kinds, "k": keys, "v": values}))


def test_changes_go_in_and_out():
    with environment("streaming", actor_system="local") as t:
        table = t.from_changelog_stream(changes_of(t.stream_environment))
        sums = table.where("v < 7").group_by().select(col("v").sum.alias("v"), col("k").count.alias("n"))
        assert sums.to_arrow().to_pylist() == [{"v": 2, "n": 1}]
        seen = Counter()
        for row in t.to_changelog_stream(table, "kind").execute_and_collect():
            seen[row["k"], row["v"]] += 1 if row["kind"] in ("+I", "+U") else -1
        assert +seen == Counter({("a", 2): 1, ("c", 7): 1})


def test_a_change_of_no_kind_is_an_error():
    with environment("streaming", actor_system="local") as t:
        table = t.from_changelog_stream(changes_of(t.stream_environment, [("+I", "a", 1), ("insert", "a", 2)]))
        with pytest.raises(JobFailedError, match=r"column 'op' says what a change is.*got 'insert'"):
            table.to_arrow()


def test_a_statement_set_writes_several_tables_in_one_job(t, tmp_path):
    for name in ("cheap", "dear"):
        t.execute_sql(
            f"CREATE TABLE {name} (item STRING, price BIGINT) WITH "
            f"('connector' = 'filesystem', 'path' = '{tmp_path / name}', 'format' = 'json')"
        )
    bids = t.from_path("bids")
    done = t.create_statement_set()
    done.add_insert("cheap", bids.where("price < 20").select("item", "price"))
    done.add_insert_sql("INSERT INTO dear SELECT item, price FROM bids WHERE price >= 20").execute()
    written = {
        name: sum(len(file.read_text().splitlines()) for file in (tmp_path / name).rglob("*") if file.is_file())
        for name in ("cheap", "dear")
    }
    assert written == {"cheap": 3, "dear": 2}
    with pytest.raises(ProgramError, match="the statement set is empty"):
        done.execute()


def test_a_statement_set_goes_by_places_whatever_columns_are_called(t, tmp_path):
    for name in ("called", "swapped", "by_name", "verbs"):
        t.execute_sql(
            f"CREATE TABLE {name} (item STRING, label STRING) WITH "
            f"('connector' = 'filesystem', 'path' = '{tmp_path / name}', 'format' = 'json')"
        )
    cheap = "FROM bids WHERE item = 'desk'"
    writes = t.create_statement_set()
    writes.add_insert_sql(f"INSERT INTO called SELECT item AS a, 'x' AS b {cheap}")
    writes.add_insert_sql(f"INSERT INTO swapped SELECT item AS label, 'x' AS item {cheap}")
    writes.add_insert_sql(f"INSERT INTO by_name (label, item) SELECT 'x' AS item, item AS label {cheap}")
    desk = t.from_path("bids").where("item = 'desk'")
    writes.add_insert("verbs", desk.select(col("item").alias("label"), lit("x").alias("item")))
    plan = writes.explain()
    assert plan.count("select a, b") >= 1
    writes.execute()
    for name in ("called", "swapped", "by_name", "verbs"):
        files = [file for file in (tmp_path / name).rglob("*") if file.is_file()]
        rows = {line for file in files for line in file.read_text().splitlines()}
        assert {(row["item"], row["label"]) for row in map(json.loads, rows)} == {("desk", "x")}, name
    with pytest.raises(ProgramError, match="the statement set is empty"):
        writes.explain()


def test_a_statement_set_writes_with_the_options_of_its_statements(t, tmp_path):
    t.execute_sql(
        "CREATE TABLE written (item STRING) WITH "
        f"('connector' = 'filesystem', 'path' = '{tmp_path / 'one'}', 'format' = 'json')"
    )
    hinted = f"INSERT INTO written /*+ OPTIONS('path' = '{tmp_path / 'two'}') */ SELECT item FROM bids"
    t.create_statement_set().add_insert_sql(hinted).execute()
    assert not (tmp_path / "one").exists()
    assert [file for file in (tmp_path / "two").rglob("*") if file.is_file()]


MISTAKES = [
    (
        lambda b, _: b.select(col("prize")),
        r"no column 'prize'[\s\S]*SELECT `prize`[\s\S]*\^[\s\S]*did you mean 'price'",
    ),
    (lambda b, _: b.select(col("price").alias("x") + 1), "cannot be part of an expression"),
    (lambda b, _: b.join(b), "two columns 'item'"),
    (lambda b, _: b.select(object()), "no literal of SQL"),
    (lambda b, _: b.select(lit(BIDS)), "no literal of SQL"),
    (lambda b, _: b.select(), "one column at least"),
    (lambda b, _: b.where(col("price")), "expected a condition"),
    (lambda b, _: b.select(col("w").start), "'w' is no window"),
    (lambda b, _: b.select(col("price").sum.over(col("w"))), "'w' is no window"),
    (lambda b, _: b.window(Tumble.over(lit(1).minutes).on(col("at")).alias("w")).group_by(col("item")), r"col\('w'\)"),
    (lambda b, _: b.window(Tumble.over(lit(1).minutes).alias("w")).group_by(col("w")).select("1"), "has no time"),
    (lambda b, _: b.select(col("at") + (col("price") + 1).minutes), "literal number of units"),
    (lambda b, _: b.limit(-1), "0 or more"),
    (lambda b, _: b.drop_columns("prize"), "no column 'prize'"),
    (lambda b, _: b.add_columns(col("item").upper_case.alias("item")), "two columns 'item'"),
    (lambda b, _: b.union(environment().from_path("bids")), "another environment"),
    (lambda b, _: b.where((col("price") > 1) and (col("price") < 9)), "write & for and"),
    (lambda b, _: b.select(col("a`b")), "back-tick"),
    (lambda b, _: b.order_by(col("price")).execute_insert("nowhere"), "no table 'nowhere'"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_told_where_it_is_made(number):
    make, message = MISTAKES[number]
    t = environment()
    with pytest.raises(ProgramError, match=message):
        make(t.from_path("bids"), t.from_path("listed"))


def test_a_table_says_what_it_is(capsys):
    t = environment()
    t.from_path("listed").print_schema()
    assert capsys.readouterr().out == "(\n  `thing` STRING,\n  `list_price` BIGINT\n)\n"
    assert "where" in t.from_path("listed").where("list_price > 20").explain()


def test_one_table_is_written_by_several_queries(t, tmp_path):
    rows = t.from_path("bids").select("item")
    options = f"'connector' = 'filesystem', 'path' = '{tmp_path}', 'format' = 'parquet'"
    t.execute_sql(f"CREATE TABLE twice (item STRING) WITH ({options})")
    t.create_statement_set().add_insert("twice", rows).add_insert("twice", rows.where("item = 'desk'")).execute()
    items = BIDS["item"].to_pylist()
    assert bag(t.from_path("twice").to_arrow()) == Counter((str(one),) for one in [*items, "desk", "desk"])
