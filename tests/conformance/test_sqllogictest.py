"""The runner of sqllogictest's files counts what is right, what is wrong and what is refused."""

from __future__ import annotations

import hashlib

import pytest
from conformance.sqllogictest import Database, files_of, main, records_of, run_file

SQLITE = """
statement ok
CREATE TABLE t1(a INTEGER, b INTEGER, c VARCHAR(30))

statement ok
INSERT INTO t1(c, a, b) VALUES('x', 104, 100), ('y', -3, NULL)

statement ok
INSERT INTO t1 VALUES(7, 7, 'z')

query IR rowsort
SELECT a, AVG(b) FROM t1 GROUP BY a
----
-3
NULL
104
100.000
7
7.000

onlyif mysql
query I nosort
SELECT 1 DIV 0
----
1

skipif sqlite
halt

query I valuesort label
SELECT a + b FROM t1 WHERE c <> 'y'
----
2 values hashing to {digest}

query T nosort
SELECT c FROM t1 ORDER BY b DESC
----
x
z
y

statement error
SELECT nothing FROM t1

query I nosort
SELECT COUNT(*) FROM t1 WHERE a > {least}
----
2
"""

POSTGRES = """
include ./tables.part

query IT rowsort
select v, s from mv;
----
1 one
2 NULL

statement ok
delete from t where v = 1;

query I
select count(*) from t;
----
1

query I
select percentile_cont(0.5) within group (order by v) from t;
----
2

statement ok
update t set v = v + 1, s = upper(s) where v is not null;

statement ok
insert into t select v + 1, s || s from t where v is not null;

query IT rowsort
select * from mv;
----
3 NULL
4 NULL

statement ok
alter table t add column x int;

query I
select v from mv;
----
3

statement ok
drop view mv;
"""
TABLES = """
statement ok
create table t (v int, s varchar);

statement ok
create materialized view mv as select v, s from t;

statement ok
insert into t values (1, 'one'), (1 + 1, null);
"""


def sqlite_file(folder, least=0):
    digest = hashlib.md5(b"14\n204\n", usedforsecurity=False).hexdigest()
    path = folder / "a.test"
    path.write_text(SQLITE.format(digest=digest, least=least))
    return path


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_answers_are_counted(tmp_path, mode):
    score = run_file(sqlite_file(tmp_path), mode, "sqlite", None, 1.0)
    # On a stream rows are in an order only if they have the columns that it goes by.
    refused = 1 if mode == "streaming" else 0
    assert (score.passed, score.failed, score.refused.total()) == (5 - refused, [], refused)


def test_a_wrong_answer_is_shown(tmp_path, capsys):
    path = sqlite_file(tmp_path, least=100)
    assert main([str(path), "--mode", "batch"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("batch: 4 passed, 1 failed, 0 refused")
    assert "SELECT COUNT(*) FROM t1 WHERE a > 100" in told
    assert "got [{'EXPR$0': 1}]" in told


def test_what_is_refused_is_named(tmp_path):
    path = tmp_path / "b.slt"
    path.write_text(POSTGRES)
    (tmp_path / "tables.part").write_text(TABLES)
    score = run_file(path, "batch", "postgres", None, 1.0)
    assert (score.passed, score.failed) == (3, [])
    assert any("WITHINGROUP" in reason for reason in score.refused)
    assert score.refused["statement ALTER"] == 1
    assert score.refused["a table that is not there any more"] == 1


def test_parts_that_no_file_includes_are_run_by_themselves(tmp_path):
    for name, text in (("b.slt", POSTGRES), ("tables.part", TABLES), ("alone.slt.part", ""), ("in.slt.part", "")):
        (tmp_path / name).write_text(text)
    (tmp_path / "a.slt").write_text("include ./in*.slt.part")
    assert [one.name for one in files_of([tmp_path])] == ["a.slt", "alone.slt.part", "b.slt"]


def test_records_have_their_places(tmp_path):
    found = list(records_of(sqlite_file(tmp_path), "sqlite"))
    assert [one.place.rpartition(":")[2] for one in found][:3] == ["2", "5", "8"]


def test_a_dropped_table_is_gone():
    database = Database("sqlite", "batch")
    database.run("CREATE TABLE t(a INTEGER)")
    database.run("DROP TABLE t")
    database.run("CREATE TABLE t(b INTEGER)")
    assert database.ask("SELECT b FROM t").num_rows == 0
