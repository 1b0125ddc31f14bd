"""Queries that go on from the savepoint of another query text."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign
from query_kit import FailsNowAndThen, multiset
from upgrade_kit import environment, explained, gone_on, in_batch_mode, kept, of_kind, stopped

from headrace import StreamExecutionEnvironment
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.errors import ProgramError
from headrace.engine.optimizer.upgrades.digests import digest_of
from headrace.engine.optimizer.upgrades.stored_plan import StoredPlan
from headrace.engine.optimizer.upgrades.upgrade import SinkOfPlan, planned
from headrace.sql.parsing.errors import SqlError
from headrace.state.checkpoints.snapshot import FileKind
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointCorruptError
from headrace.table import TableEnvironment, udf
from headrace.table.upgrading import Beginning

FIRST = """
    INSERT INTO nothing
    SELECT k, COUNT(*) AS n, SUM(v) AS s, COUNT(*) FILTER (WHERE w > 6) AS big FROM src WHERE w > 3 GROUP BY k
"""


@pytest.fixture(scope="module", params=["hashmap", campaign("rocksdb")])
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("upgrades")
    return stopped(folder, FIRST, request.param), request.param


SAME = [
    # Nothing but names, orders, and ways to say the same.
    """SELECT big AS b, total, key FROM (
           SELECT COUNT(*) FILTER (WHERE 6 < w) AS big, SUM(price) AS total, key, COUNT(*) AS number
           FROM (SELECT v AS price, k AS key, w FROM src) WHERE 3 < w GROUP BY key
       )""",
    campaign("SELECT k, COUNT(*) AS n FROM src WHERE w > 3 GROUP BY k HAVING COUNT(*) > 500"),
    # What reads the groups is made anew of them.
    "SELECT n, COUNT(*), MIN(k) FROM (SELECT k, COUNT(*) / 10 AS n FROM src WHERE w > 3 GROUP BY k) GROUP BY n",
    campaign("""SELECT * FROM (
           SELECT k, n, ROW_NUMBER() OVER (ORDER BY n DESC, k) AS place
           FROM (SELECT k, COUNT(*) AS n FROM src WHERE w > 3 GROUP BY k)
       ) WHERE place <= 3"""),
]


@pytest.mark.parametrize("query", SAME)
def test_what_is_the_same_goes_on_exactly(saved, query):
    assert multiset(gone_on(saved, query)) == multiset(in_batch_mode(query))
    _, rows = explained(saved[0], query)
    (group,) = [row for row in of_kind(rows, "aggregate") if row["verdict"] == "reuse"]
    assert group["kept"] == f"{len(kept(saved[0]))} keys"
    assert not [row for row in rows if row["asks"]]


@pytest.mark.parametrize("at", [{1, 14, 60}, campaign({1})])
def test_rows_come_once_more_once_whatever_fails(saved, tmp_path, at):
    """Before the first checkpoint all begins from the savepoint again; behind it nothing is repeated."""
    query = """
        SELECT n / 20 AS m, COUNT(*) AS c FROM (
            SELECT now_and_then(k) AS k, n FROM (SELECT k, COUNT(*) AS n FROM src WHERE w > 3 GROUP BY k)
        ) WHERE k >= 0 GROUP BY n / 20
    """
    path, backend = saved
    settings = {"execution.savepoint.path": path, "execution.checkpointing.interval": "20 ms",
                "execution.checkpointing.dir": str(tmp_path / "c"), "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "9", "restart-strategy.fixed-delay.delay": "1 ms"}  # fmt: skip
    with environment(2, backend, **settings) as env:
        env.create_temporary_function("now_and_then", udf(FailsNowAndThen(tmp_path / "calls", at), result_type="INT"))
        found = multiset(env.execute_sql(query).to_arrow())
    assert (tmp_path / "calls").stat().st_size > max(at)
    assert found == multiset(in_batch_mode(query.replace("now_and_then(k)", "k")))


def test_one_more_aggregate_begins_with_the_savepoint(saved):
    """The issue's case: one more aggregate and a changed filter, said before and allowed by the user."""
    path, _ = saved
    query = "SELECT k, COUNT(*) AS n, SUM(v) AS s, SUM(v + 1) AS later FROM src WHERE w > 6 GROUP BY k"
    _, rows = explained(path, query)
    (group,) = of_kind(rows, "aggregate")
    assert (group["verdict"], group["asks"]) == ("extend", "old-filter, partial")
    assert "sum((v + 1).cast(int32)) counts rows from the savepoint on" in group["details"]
    assert "groups keep what was counted under the old ones" in group["details"]
    with pytest.raises(ProgramError, match=r"without leave: .*old ones") as refused:
        gone_on(saved, query)
    assert "'old-filter, partial'" in refused.value.hint
    with pytest.raises(ProgramError, match="without leave"):
        gone_on(saved, query, **{"table.upgrade.accept": "partial"})
    found = {
        row["k"]: row for row in gone_on(saved, query, **{"table.upgrade.accept": "partial, old-filter"}).to_pylist()
    }
    before = kept(path)
    big = {row["k"]: row for row in in_batch_mode(
        "SELECT k, COUNT(*) AS n FROM src WHERE w > 6 GROUP BY k").to_pylist()}  # fmt: skip
    assert set(found) == set(big)
    for key, row in found.items():
        # On a busy machine a key may have come after the savepoint.
        old = before.get(key, {"n": 0, "s": 0, "count(when": 0})
        (counted,) = [count for text, count in old.items() if text.startswith("count(when")]
        later = big[key]["n"] - counted
        assert row["n"] == old["n"] + later
        assert row["later"] - later == row["s"] - old["s"]


@pytest.mark.campaign
def test_what_follows_from_the_groups_needs_no_leave(tmp_path):
    path = stopped(tmp_path, "INSERT INTO nothing SELECT k, MAX(v), 0, 0 FROM src GROUP BY k")
    query = "SELECT COUNT(*) AS n, k FROM src GROUP BY k"
    _, rows = explained(path, query)
    (group,) = of_kind(rows, "aggregate")
    assert (group["verdict"], group["asks"]) == ("extend", "")
    assert multiset(gone_on((path, "hashmap"), query)) == multiset(in_batch_mode(query))


def upgraded(tmp_path, statements, accept="", backend="hashmap"):
    """Run queries one after the other, each from the savepoint of the one before; gives the last result."""
    path = stopped(tmp_path / "1", statements[0], backend, after=0.2)
    for number, statement in enumerate(statements[1:-1]):
        settings = {"execution.savepoint.path": path, **({"table.upgrade.accept": accept} if accept else {})}
        path = stopped(tmp_path / str(number + 2), statement, backend, after=0.1, **settings)
    return path, gone_on((path, backend), statements[-1], **({"table.upgrade.accept": accept} if accept else {}))


@pytest.mark.campaign
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_an_aggregate_that_went_and_comes_again_begins_anew(tmp_path, backend):
    one = "INSERT INTO nothing SELECT k, SUM(v), COUNT(DISTINCT x), 0 FROM src GROUP BY k"
    other = "INSERT INTO nothing SELECT k, COUNT(*), 0, 0 FROM src GROUP BY k"
    again = "SELECT k, SUM(v) AS s, COUNT(DISTINCT x) AS d, COUNT(*) AS n FROM src GROUP BY k"
    _, found = upgraded(tmp_path, [one, other, again], "partial", backend)
    whole = {row["k"]: row for row in in_batch_mode(again).to_pylist()}
    for row in found.to_pylist():
        assert row["n"] == whole[row["k"]]["n"]
        # The second query alone took a tenth of all rows.
        assert (row["s"] or 0) < whole[row["k"]]["s"]
        assert row["d"] <= whole[row["k"]]["d"]


JOIN = """
    SELECT l.k, l.v, r.n FROM (SELECT k, v, x FROM src WHERE v < 20) AS l
    JOIN (SELECT x, COUNT(*) AS n FROM src GROUP BY x) AS r ON l.x = r.x
"""
CASES = [
    (f"INSERT INTO nothing SELECT k, n, v, 0 FROM ({JOIN})", f"SELECT v AS b, k AS a FROM ({JOIN})", "partial"),
    (
        "INSERT INTO nothing SELECT k, v, x, 0 FROM "
        "(SELECT k, v, x, ROW_NUMBER() OVER (PARTITION BY k ORDER BY x, v, ts) AS n FROM src) WHERE n <= 3",
        "SELECT y AS best, MAX(key) AS m, COUNT(*) AS c FROM (SELECT * FROM (SELECT x AS y, k AS key, "
        "ROW_NUMBER() OVER (PARTITION BY k ORDER BY x, v, ts) AS n FROM src) WHERE n <= 3) GROUP BY y",
        "",
    ),
    (
        "INSERT INTO nothing SELECT k, COUNT(*), SUM(v), 0 FROM TABLE(TUMBLE(TABLE src, DESCRIPTOR(ts), "
        "INTERVAL '1' SECOND)) GROUP BY k, w, window_start, window_end",
        "INSERT INTO nothing SELECT key, SUM(value), COUNT(*), 1 FROM TABLE(TUMBLE(TABLE renamed, DESCRIPTOR(at), "
        "INTERVAL '1' SECOND)) GROUP BY window_end, weight, window_start, key",
        "partial",
    ),
    (
        "INSERT INTO nothing SELECT DISTINCT k, x, w, v FROM src",
        "SELECT b, COUNT(*) AS n FROM (SELECT DISTINCT w AS b, k AS a, v AS d, x AS c FROM src) GROUP BY b",
        "",
    ),
]


@pytest.mark.parametrize(("first", "then", "accept"), [CASES[0], *(campaign(*case) for case in CASES[1:])])
def test_operators_go_on_under_other_names(tmp_path, first, then, accept):
    path = stopped(tmp_path, first)
    settings = {"execution.savepoint.path": path, **({"table.upgrade.accept": accept} if accept else {})}
    with environment(3, **settings) as env:
        env.execute_sql("CREATE VIEW renamed AS SELECT v AS value, w AS weight, k AS key, ts AS at FROM src")
        rows = env.execute_sql(f"EXPLAIN UPGRADE FROM '{path}' {then}").to_arrow().to_pylist()
        verdicts = {row["kind"]: row["verdict"] for row in rows}
        assert not {"partial", "lost"} & {row["verdict"] for row in rows if row["kind"] != "sink"}, rows
        assert verdicts["source"] == "reuse"
        if then.startswith("INSERT"):
            env.execute_sql("SET 'table.dml-sync' = 'true'")
            assert env.execute_sql(then).to_arrow().to_pylist() == [{"result": "OK"}]
        elif not accept:
            assert multiset(env.execute_sql(then).to_arrow()) == multiset(in_batch_mode(then))


def test_what_cannot_be_is_refused(saved):
    path, _ = saved
    _, rows = explained(path, "SELECT w, COUNT(*) FROM src GROUP BY w")
    assert [row["verdict"] for row in of_kind(rows, "aggregate")] == ["partial", "lost"]
    with pytest.raises(ProgramError, match="without leave") as refused:
        gone_on(saved, "SELECT w, COUNT(*) FROM src GROUP BY w")
    assert "'lost, partial'" in refused.value.hint
    accept = {"table.upgrade.accept": "partial", "execution.savepoint.ignore-unclaimed-state": "true"}
    found = gone_on(saved, "SELECT w, COUNT(*) AS n FROM src GROUP BY w", **accept)
    whole = {row["w"]: row["n"] for row in in_batch_mode("SELECT w, COUNT(*) AS n FROM src GROUP BY w").to_pylist()}
    assert all(0 < row["n"] < whole[row["w"]] for row in found.to_pylist())


def test_a_savepoint_of_streams_has_no_plan(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment("local")
    env.enable_checkpointing(20, directory=tmp_path)
    rows = env.from_source(ScriptedSource([1, Pause()], is_bounded=False), None, "s").execute_and_collect("j")
    assert next(rows) == 1
    path = rows.stop()
    env.close()
    with pytest.raises(ProgramError, match="does not say what its state is about"):
        explained(path, "SELECT k, COUNT(*) FROM src GROUP BY k")


def test_plans_are_checked_when_they_are_read(saved):
    _, manifest = CheckpointStorage.from_manifest(saved[0])
    good = manifest.plan
    assert StoredPlan.from_json(good, "x").to_json() == good
    assert StoredPlan.from_text(StoredPlan.from_json(good, "x").to_text().encode(), "x").to_json() == good
    operator = good["operators"][-2]
    wrong = [
        [], None, {}, {**good, "version": 0}, {**good, "generation": 0}, {**good, "operators": {}},
        {**good, "statements": [1]}, {**good, "operators": [operator, operator]},
        {**good, "operators": [{**operator, "uid": 7}]}, {**good, "operators": [{**operator, "more": 1}]},
        {**good, "operators": [{**operator, "parts": {"a": ["x"]}}]},
        {**good, "operators": [{**operator, "parts": {"a": ["x", ""], "b": ["x", ""]}}]},
    ]  # fmt: skip
    for one in wrong:
        with pytest.raises(CheckpointCorruptError):
            StoredPlan.from_json(one, "x")
    with pytest.raises(CheckpointCorruptError):
        StoredPlan.from_text(b"[" * 100_000, "x")


def test_records_in_flight_are_read_by_the_same_query_only(saved, monkeypatch):
    """An unaligned checkpoint has records under the names of its query: another one may mean others by them."""
    path, _ = saved
    storage, manifest = CheckpointStorage.from_manifest(path)
    whole = next(one for one in manifest.operators if one.subtasks and one.subtasks[0].files)
    snapshot = whole.subtasks[0]
    file = dataclasses.replace(snapshot.files[0], kind=FileKind.CHANNEL)
    unaligned = dataclasses.replace(
        manifest,
        operators=(*(one for one in manifest.operators if one is not whole), dataclasses.replace(
            whole, subtasks=(dataclasses.replace(snapshot, files=(*snapshot.files, file)), *whole.subtasks[1:])
        )),
    )  # fmt: skip
    monkeypatch.setattr(CheckpointStorage, "from_manifest", lambda *_: (storage, unaligned))
    other = FIRST.replace("FROM src", "FROM (SELECT k, w AS v, v AS w FROM src)")
    assert of_kind(explained(path, FIRST)[1], "aggregate")[0]["verdict"] == "reuse"
    for query in (other, FIRST.replace("w > 3", "w > 4")):
        with pytest.raises(ProgramError, match="on their way between operators"):
            explained(path, query)


def upgrade_of(query, stored=None, table="nothing", **settings):
    """What becomes of a query's state, on paper."""
    with environment(1, **settings) as env:
        root = env._root(env.sql_query(query))
        return planned((root,), (SinkOfPlan(lambda _: table, table),), (), stored)


def ids_of(query):
    """What the operators of a query are about, without sinks."""
    return sorted((one.uid, tuple(sorted(one.parts))) for one in upgrade_of(query).plan.operators if one.kind != "sink")


def verdicts(first, then, **tables):
    """By kind what becomes of the operators of a query in another one, and what has to be allowed."""
    found = upgrade_of(then, upgrade_of(first).plan, **tables)
    rows = [(one.kind, one.verdict.value) for one in found.operators if one.kind not in ("source", "watermark")]
    return sorted(rows), sorted(one.value for one in found.asks), found


GROUPED = "SELECT k, COUNT(*) AS n FROM src GROUP BY k"
ON_PAPER = [
    (GROUPED, GROUPED, "aggregate reuse, sink reuse", ""),
    (GROUPED, f"{GROUPED} HAVING COUNT(*) > 1", "aggregate reuse, sink rebuild", ""),
    (GROUPED, "SELECT k, COUNT(*) AS n, SUM(v) FROM src GROUP BY k", "aggregate extend, sink rebuild", "partial"),
    (GROUPED, f"{GROUPED}, w", "aggregate lost, aggregate partial, sink partial", "lost, partial"),
    (GROUPED, f"SELECT n, COUNT(*) FROM ({GROUPED}) GROUP BY n",
     "aggregate rebuild, aggregate reuse, sink rebuild", ""),
    # A group of rows that change is made anew of them, where it has one more aggregate.
    (f"SELECT n, COUNT(*) FROM ({GROUPED}) GROUP BY n", f"SELECT n, COUNT(*), MAX(k) FROM ({GROUPED}) GROUP BY n",
     "aggregate rebuild, aggregate reuse, sink rebuild", ""),
    # Of a join nobody can have all rows once more.
    (JOIN, f"SELECT k, SUM(n) FROM ({JOIN}) GROUP BY k",
     "aggregate partial, aggregate reuse, join reuse, sink partial", "partial"),
    # A table that keeps all that comes has rows of the old query, and would have others twice.
    ("SELECT k, v FROM src WHERE w > 1", "SELECT k, v FROM src WHERE w > 1", "sink reuse", ""),
    ("SELECT k, v FROM src WHERE w > 1", "SELECT k, v FROM src WHERE w > 2", "sink partial", "partial"),
    ("SELECT DISTINCT k, v FROM src", "SELECT DISTINCT v, k FROM src", "aggregate reuse, sink partial", "partial"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "then", "becomes", "asks"), ON_PAPER)
def test_what_becomes_of_operators(first, then, becomes, asks):
    rows, asked, _ = verdicts(first, then)
    assert ", ".join(" ".join(row) for row in rows) == becomes
    assert ", ".join(asked) == asks


def test_who_reads_what_is_made_anew_is_made_anew():
    """It gives all its rows as if they had just come: who has kept them would count them twice."""
    middle = f"SELECT n, COUNT(*) AS m{{}} FROM ({GROUPED}) GROUP BY n"
    outer = "SELECT m, COUNT(*) FROM ({}) GROUP BY m"
    rows, asked, found = verdicts(outer.format(middle.format("")), outer.format(middle.format(", MAX(k) AS more")))
    assert rows == [("aggregate", "rebuild"), ("aggregate", "rebuild"), ("aggregate", "reuse"), ("sink", "rebuild")]
    assert not asked
    assert [one.replays for one in found.operators if one.kind == "aggregate"] == [True, False, False]
    # A join has rows of both sides, and cannot have those of one once more.
    joined = "SELECT g.m, src.v FROM ({}) AS g JOIN src ON g.n = src.k"
    rows, asked, _ = verdicts(joined.format(middle.format("")), joined.format(middle.format(", MAX(k) AS more")))
    assert ("join", "partial") in rows
    assert asked == ["lost", "partial"]


def test_a_table_that_is_new_gets_all_rows_that_somebody_has():
    rows, asked, _ = verdicts("SELECT DISTINCT k, v FROM src", "SELECT DISTINCT v, k FROM src")
    assert (rows, asked) == ([("aggregate", "reuse"), ("sink", "partial")], ["partial"])
    found = upgrade_of("SELECT DISTINCT v, k FROM src", upgrade_of("SELECT DISTINCT k, v FROM src").plan, "other")
    assert [one.verdict.value for one in found.operators if one.kind == "sink"] == ["new", "lost"]
    assert [one.replays for one in found.operators if one.kind == "aggregate"] == [True]


def test_rows_that_it_has_not_been_given_are_not_taken_back():
    """A join does not give its rows once more, so no group can begin above it in the middle."""
    upgrade = verdicts(JOIN, f"SELECT k, SUM(n) FROM ({JOIN}) GROUP BY k")[2]
    with pytest.raises(ProgramError, match="take back rows"):
        Beginning(upgrade, "savepoint").require(frozenset(("partial", "lost", "old-filter")))


def test_several_relatives_are_not_taken_for_each_other():
    both = """SELECT a.k, a.n, b.m FROM (SELECT k, COUNT(*) AS n FROM src WHERE w > {} GROUP BY k) AS a
        JOIN (SELECT k, COUNT(*) AS m FROM src WHERE w < {} GROUP BY k) AS b ON a.k = b.k"""
    asks = [verdicts(both.format(5, 2), both.format(*one))[1] for one in [(5, 2), (6, 2), (5, 3), (6, 3)]]
    assert [("old-filter" in one, "lost" in one) for one in asks] == [
        (False, False), (True, False), (True, False), (False, True)
    ]  # fmt: skip


def test_a_table_is_read_by_as_many_sources_as_before():
    """Another one would begin at its beginning, below groups that have counted its rows."""
    query = """SELECT k, COUNT(*) AS n FROM src WHERE w > 3 GROUP BY k
        UNION ALL SELECT w, COUNT(*) AS n FROM (SELECT * FROM src) GROUP BY w"""
    shared = upgrade_of(query).plan
    (source,) = [one for one in shared.operators if one.kind == "source"]
    again = dataclasses.replace(source, uid=f"{source.uid}.2")
    twice = dataclasses.replace(shared, operators=(again, *shared.operators))
    assert not any(one.is_impossible for one in upgrade_of(query, shared).operators)
    refused = [one for one in upgrade_of(query, twice).operators if one.is_impossible]
    assert [one.kind for one in refused] == ["source"]
    assert "2 sources of this table, the query 1" in refused[0].details[-1]


def test_what_begins_anew_has_names_of_its_own():
    one, other = "SELECT k, SUM(v) FROM src GROUP BY k", GROUPED
    first = upgrade_of(one).plan
    second = upgrade_of(other, first).plan
    third = upgrade_of(one, second).plan
    assert [plan.generation for plan in (first, second, third)] == [1, 2, 3]
    names = [{part.name for op in plan.operators if op.kind == "aggregate" for part in op.parts.values()}
             for plan in (first, second, third)]  # fmt: skip
    assert not names[0] & names[2]
    assert len({op.uid for plan in (first, second, third) for op in plan.operators if op.kind == "aggregate"}) == 1


CHAIN = "SELECT a.v, b.w, c.x FROM src AS a JOIN src AS b ON a.k = b.k LEFT JOIN src AS c ON b.k = c.k AND c.v > a.v"


def test_a_join_of_many_goes_on_where_it_is_the_same_one():
    """Its rows are kept otherwise than those of joins one after the other."""
    on = {"table.optimizer.multi-join.enabled": "true"}
    renamed = """SELECT r.v, p.x, q.vv FROM (SELECT k AS a, w AS v FROM src) AS r JOIN (SELECT v AS vv, k AS b FROM src)
        AS q ON q.b = r.a LEFT JOIN (SELECT v AS u, x, k AS c FROM src) AS p ON p.c = r.a AND q.vv < p.u"""
    first = (
        "SELECT b.v, a.w, c.x FROM src AS a JOIN src AS b ON a.k = b.k LEFT JOIN src AS c ON a.k = c.k AND c.v > b.v"
    )
    before = upgrade_of(first, **on).plan
    for query in (first, renamed, renamed.replace("r.v, p.x, q.vv", "r.v, q.vv")):
        found = upgrade_of(query, before, **on)
        assert [one.verdict.value for one in found.operators if one.kind == "multi join"] == ["reuse"]
    for query, settings in ((first, {}), (CHAIN, on), (first.replace("LEFT ", ""), on)):
        asked = upgrade_of(query, before, **settings).asks
        assert {one.value for one in asked} == {"lost", "partial"}


ALIKE = [
    ("SELECT k, SUM(v) FROM src GROUP BY k", "SELECT SUM(b), a FROM (SELECT k AS a, v AS b FROM src) AS t GROUP BY a"),
    ("SELECT k FROM src WHERE v > 1 AND w < 2 GROUP BY k", "SELECT k FROM src WHERE w < 2 AND 1 < v GROUP BY k"),
    ("SELECT k, w, COUNT(*) FROM src GROUP BY k, w", "SELECT COUNT(*), w, k FROM src GROUP BY w, k"),
    ("SELECT k, MAX(v + w) FROM src GROUP BY k", "SELECT MAX(w + v), k FROM src GROUP BY k"),
    ("SELECT k, MAX(c) FROM (SELECT k, v * 2 AS c FROM src WHERE w > 1) GROUP BY k",
     "WITH a AS (SELECT * FROM src), b AS (SELECT v * 2 AS q, k AS r, w AS s FROM a) "
     "SELECT r, MAX(q) FROM b WHERE s > 1 GROUP BY r"),
    ("SELECT l.k, r.v FROM src AS l JOIN src AS r ON l.x = r.x AND l.w = r.w",
     "SELECT b.v, a.k FROM src AS a JOIN src AS b ON a.w = b.w AND a.x = b.x"),
    ("SELECT k, v FROM src WHERE w > 1 ORDER BY ts, v",
     "SELECT b, a FROM (SELECT w AS c, ts AS at, k AS a, v AS b FROM src) WHERE 1 < c ORDER BY at, b"),
]  # fmt: skip
UNLIKE = [
    ("SELECT k, SUM(v) FROM src GROUP BY k", "SELECT k, SUM(w) FROM src GROUP BY k"),
    ("SELECT k, COUNT(*) FROM src GROUP BY k", "SELECT w, COUNT(*) FROM src GROUP BY w"),
    ("SELECT k FROM src WHERE v > 1 GROUP BY k", "SELECT k FROM src WHERE v > 2 GROUP BY k"),
    ("SELECT k FROM src WHERE CAST(v AS STRING) <> ' at 0x1' GROUP BY k",
     "SELECT k FROM src WHERE CAST(v AS STRING) <> ' at 0x2' GROUP BY k"),
    (f"SELECT n FROM (VALUES {', '.join(f'({i})' for i in range(1_001))}) AS t (n) GROUP BY n",
     f"SELECT n FROM (VALUES {', '.join(f'({i})' for i in range(1_000))}, (7)) AS t (n) GROUP BY n"),
    ("SELECT k FROM src WHERE v > 1 GROUP BY k", "SELECT k FROM src WHERE v > 1.0 GROUP BY k"),
    ("SELECT k, MAX(v - w) FROM src GROUP BY k", "SELECT k, MAX(w - v) FROM src GROUP BY k"),
    ("SELECT k, SUM(v) FROM src GROUP BY k", "SELECT k, SUM(DISTINCT v) FROM src GROUP BY k"),
    ("SELECT k, COUNT(v) FROM src GROUP BY k", "SELECT k, COUNT(*) FROM src GROUP BY k"),
    ("SELECT l.k, r.v FROM src l JOIN src r ON l.x = r.x", "SELECT l.k, r.v FROM src l LEFT JOIN src r ON l.x = r.x"),
    ("SELECT l.k, r.v FROM src l JOIN src r ON l.x = r.x", "SELECT r.k, l.v FROM src l JOIN src r ON l.x = r.x"),
    ("SELECT k, v FROM src ORDER BY ts, v", "SELECT k, v FROM src ORDER BY ts, k"),
    ("SELECT k, v FROM src ORDER BY ts", "SELECT k, v FROM src ORDER BY ts DESC"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_ids_do_not_depend_on_how_it_is_said(one, other):
    assert ids_of(one) == ids_of(other)


def test_what_is_computed_once_for_several_is_the_same():
    """Where several read a costly value it is computed below them; that makes no other value."""
    costly = "CHAR_LENGTH(REGEXP_REPLACE(CAST(v AS STRING), '[0-4]+', 'x'))"
    one = upgrade_of(f"SELECT k, SUM({costly}) FROM src GROUP BY k").plan
    found = upgrade_of(f"SELECT k, SUM({costly}), MAX({costly}), MIN({costly} + 1) FROM src GROUP BY k", one)
    (group,) = [operator for operator in found.operators if operator.kind == "aggregate"]
    assert group.verdict.value == "extend"
    assert sum("from the savepoint on" in detail for detail in group.details) == 2


STORED_IDS = [
    ("SELECT k, COUNT(*), SUM(v), AVG(x), MIN(v), MAX(w), COUNT(DISTINCT w), STDDEV_POP(v), ARRAY_AGG(v) "
     "FROM src GROUP BY k", "ff53ea51eb9eaf0b"),
    ("SELECT k, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts), "
     "SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM src", "e216144c781c7523"),
    ("SELECT k, LAG(v) OVER (PARTITION BY k ORDER BY ts) FROM src", "b1e1fad0f02a0ddf"),
    ("SELECT k, u, COUNT(*) FROM src CROSS JOIN UNNEST(ARRAY[v, w]) AS t (u) GROUP BY k, u", "90bfe2184226d6db"),
]  # fmt: skip
"""What the ids of queries and of what they keep come to, as savepoints have them."""


@pytest.mark.parametrize(("query", "stored"), STORED_IDS)
def test_ids_are_those_that_savepoints_have(query, stored):
    """They are made of the names of classes and modules, too: one that moves takes the state of queries away."""
    assert digest_of(ids_of(query)) == stored


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_ids_tell_what_is_different(one, other):
    assert ids_of(one) != ids_of(other)


FILES = "CREATE TABLE t ({}) WITH ('connector' = 'filesystem', 'path' = '/nowhere', 'format' = '{}')"
TIMED = [
    FILES.format(f"k INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '{seconds}' SECOND", "csv")
    for seconds in (1, 5)
]
WINDOWS = """SELECT k, COUNT(*) FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '9' SECOND))
    GROUP BY k, window_start, window_end"""
ORDERS = {
    kind: [FILES.format(columns, kind) for columns in ("a INT, b INT", "b INT, a INT")] for kind in ("csv", "json")
}
OTHER_TABLES = [
    # A row that was late for the watermark of before is not counted, whatever the new one says.
    ([TIMED[0], TIMED[0]], WINDOWS, "watermark", "reuse", ""),
    (TIMED, WINDOWS, "watermark", "extend", "old-filter"),
    (TIMED, "SELECT k, COUNT(*) FROM t GROUP BY k", "watermark", "extend", ""),
    # CSV has no names: another order of columns is another meaning, another name is none.
    (ORDERS["csv"], "SELECT a, COUNT(*) FROM t GROUP BY a", "aggregate", "partial", "lost, partial"),
    (ORDERS["json"], "SELECT a, COUNT(*) FROM t GROUP BY a", "aggregate", "reuse", ""),
    ([ORDERS["csv"][0], FILES.format("a INT, c INT", "csv")], "SELECT a, COUNT(*) FROM t GROUP BY a", "aggregate",
     "reuse", ""),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "query", "kind", "verdict", "asks"), OTHER_TABLES)
def test_tables_that_mean_something_else_are_other_ones(tables, query, kind, verdict, asks):
    plan = None
    for script in tables:
        with TableEnvironment.create(parallelism=1, actor_system="local") as env:
            env.execute_sql(script)
            found = planned((env._root(env.sql_query(query)),), (SinkOfPlan(lambda _: "out", "out"),), (), plan)
        plan = found.plan
    assert next(one.verdict.value for one in found.operators if one.kind == kind) == verdict
    assert ", ".join(sorted(ask.value for ask in found.asks)) == asks


def test_a_table_with_names_is_written_by_them():
    """The same rows into columns of other names are other rows; their order makes no difference."""
    plan, becomes = None, []
    for query in (
        GROUPED,
        "SELECT k AS n, n AS k FROM ({})",
        "SELECT k AS k, n AS n FROM ({})",
        "SELECT n, k FROM ({})",
    ):
        with environment(1) as env:
            root = env._root(env.sql_query(query.format(GROUPED)))
            found = planned((root,), (SinkOfPlan(lambda _: "out", "out", str),), (), plan)
        plan = plan or found.plan
        becomes.append(found.sinks[0].verdict.value)
    assert becomes == ["new", "rebuild", "reuse", "reuse"]


COMPILED = "INSERT INTO nothing SELECT k, n, 0, 0 FROM grouped"
VIEW = "CREATE VIEW grouped AS SELECT k, COUNT(*) AS n FROM src WHERE w > {} GROUP BY k"


def test_a_plan_in_a_file_is_run_as_it_was_compiled_or_not_at_all(tmp_path):
    place = tmp_path / "plan.json"
    with environment(1, **{"table.dml-sync": "true"}) as env:
        env.execute_sql(VIEW.format(3))
        ok = [{"result": "OK"}]
        assert env.execute_sql(f"COMPILE PLAN '{place}' FOR {COMPILED}").to_arrow().to_pylist() == ok
        text = place.read_text()
        with pytest.raises(SqlError, match="there is a plan"):
            env.execute_sql(f"COMPILE PLAN '{place}' FOR {COMPILED}")
        env.execute_sql(f"COMPILE PLAN '{place}' IF NOT EXISTS FOR INSERT INTO nothing VALUES (1, 2, 3, 4)")
        assert place.read_text() == text
        assert env.execute_sql(f"EXECUTE PLAN '{place}'").to_arrow().to_pylist() == ok
        both = f"STATEMENT SET BEGIN {COMPILED}; INSERT INTO nothing SELECT DISTINCT k, x, x, x FROM src; END"
        env.execute_sql(f"COMPILE PLAN '{place}' OVERWRITE FOR {both}")
        assert [one.kind for one in StoredPlan.from_text(place.read_bytes(), "x").operators].count("sink") == 2
        second = tmp_path / "second.json"
        env.execute_sql(f"COMPILE AND EXECUTE PLAN '{second}' FOR {COMPILED}")
        assert second.read_text() == text
    with environment(1) as env:
        env.execute_sql(VIEW.format(4))
        with pytest.raises(ProgramError, match=r"planned otherwise.*group by k.* became .*group by k"):
            env.execute_sql(f"EXECUTE PLAN '{second}'")


def test_plans_that_mean_nothing_are_refused(tmp_path):
    place = tmp_path / "plan.json"
    with environment(1) as env:
        for statement, reason in [
            (f"EXECUTE PLAN '{place}'", "there is no plan"),
            (f"COMPILE PLAN '{place}' FOR SELECT 1", "can be compiled"),
            (f"COMPILE PLAN '{place}' FOR", "can be compiled"),
            (f"COMPILE PLAN '{place}' {COMPILED}", "expected FOR"),
        ]:
            with pytest.raises(SqlError, match=reason):
                env.execute_sql(statement)
        env.create_temporary_view("hand", pa.table({"k": pa.array([1], pa.int32())}))
        with pytest.raises(ProgramError, match="rows of this program"):
            env.execute_sql(f"COMPILE PLAN '{place}' FOR INSERT INTO nothing SELECT k, 1, 1, 1 FROM hand")
        for content in ("", "{}", "[" * 9_999, '{"version": 2}'):
            place.write_text(content)
            with pytest.raises(SqlError, match="not what COMPILE PLAN writes"):
                env.execute_sql(f"EXECUTE PLAN '{place}'")
        env.execute_sql(VIEW.format(3))
        env.execute_sql(f"COMPILE PLAN '{place}' OVERWRITE FOR {COMPILED}")
        place.write_text(place.read_text().replace(COMPILED, "DROP TABLE nothing"))
        with pytest.raises(SqlError, match="holds no INSERT"):
            env.execute_sql(f"EXECUTE PLAN '{place}'")


GAINING = [
    (
        "SELECT k, COUNT(*) AS n, SUM(v) AS s, MAX(x) AS m FROM TABLE(TUMBLE(TABLE src, DESCRIPTOR(ts), "
        "INTERVAL '0.1' SECOND)) GROUP BY k, w, window_start, window_end",
        "SELECT key, number, total, best FROM (SELECT SUM(b) AS total, MAX(a) AS best, COUNT(*) AS number, key "
        "FROM TABLE(TUMBLE(TABLE renamed, DESCRIPTOR(at), INTERVAL '0.1' SECOND)) "
        "GROUP BY window_end, c, key, window_start)",
    ),
    (
        "SELECT k, w AS n, COUNT(*) OVER (PARTITION BY k, w ORDER BY ts) AS s, x AS m FROM src",
        "SELECT key, c, COUNT(*) OVER (PARTITION BY c, key ORDER BY at) AS z, a FROM renamed",
    ),
    (
        "SELECT l.k AS k, l.x AS n, r.v AS s, r.x AS m FROM src AS l JOIN src AS r ON l.k = r.k AND l.w = r.w "
        "AND r.ts BETWEEN l.ts - INTERVAL '0.02' SECOND AND l.ts",
        "SELECT one.key, one.a, other.b, other.a FROM renamed AS one JOIN renamed AS other ON one.c = other.c "
        "AND other.key = one.key AND other.at BETWEEN one.at - INTERVAL '0.02' SECOND AND one.at",
    ),
]


@pytest.mark.parametrize("backend", ["hashmap", campaign("rocksdb")])
@pytest.mark.parametrize(("first", "then"), [GAINING[0], *(campaign(*case) for case in GAINING[1:])])
def test_what_both_queries_have_written_is_all_and_nothing_twice(tmp_path, first, then, backend):
    """Rows that only come: those of the first text, and behind the savepoint those of the other one."""
    out = f"""CREATE TABLE written (k INT, n BIGINT, s BIGINT, m BIGINT)
        WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/out', 'format' = 'parquet')"""
    view = "CREATE VIEW renamed AS SELECT x AS a, v AS b, w AS c, k AS key, ts AS at FROM src"
    path = stopped(tmp_path, f"INSERT INTO written {first}", backend, after=1.6, before=out)  # windows have fired
    some = pq.read_table(tmp_path / "out").num_rows
    with environment(3, backend, **{"execution.savepoint.path": path, "table.dml-sync": "true"}) as env:
        env.execute_script(f"{out}; {view}")
        rows = env.execute_sql(f"EXPLAIN UPGRADE FROM '{path}' INSERT INTO written {then}").to_arrow().to_pylist()
        assert {row["verdict"] for row in rows} == {"reuse"}
        env.execute_sql(f"INSERT INTO written {then}")
    written, wanted = multiset(pq.read_table(tmp_path / "out")), multiset(in_batch_mode(first))
    assert written == wanted
    assert 0 < some < wanted.total()
