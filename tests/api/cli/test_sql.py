"""``headrace sql``: statements of files, of standard input, and typed into a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal_kit import Terminal

from headrace.cli.main import main
from headrace.cli.sql.completion import completions
from headrace.cli.sql.shell import Shell, is_finished
from headrace.cli.sql.views import Views
from headrace.engine.columns.records import Batch, RowKind
from headrace.table import TableEnvironment
from headrace.table.live_table import LiveRows
from headrace.table.result import RowsResult

SCRIPT = """\
CREATE VIEW bids AS SELECT * FROM (VALUES
  ('lamp', 12, TRUE), ('Tisch; 机', 40, CAST(NULL AS BOOLEAN))) AS t(item, price, fresh); -- two rows
SELECT * FROM bids ORDER BY price;
SHOW TABLES;
"""

SHOWN = """\
Headrace SQL> CREATE VIEW bids AS SELECT * FROM (VALUES
>   ('lamp', 12, TRUE), ('Tisch; 机', 40, CAST(NULL AS BOOLEAN))) AS t(item, price, fresh);
[INFO] Execute statement succeeded.

Headrace SQL> SELECT * FROM bids ORDER BY price;
+-----------+-------+--------+
| item      | price | fresh  |
+-----------+-------+--------+
| lamp      |    12 | TRUE   |
| Tisch; 机 |    40 | <NULL> |
+-----------+-------+--------+
2 rows in set

Headrace SQL> SHOW TABLES;
+------------+
| table name |
+------------+
| bids       |
+------------+
1 row in set

"""


def run(tmp_path, text, *options, name="a.sql"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    quiet = tmp_path / "quiet.sql"
    quiet.write_text("SET 'sql-client.display.print-time-cost' = 'false'", encoding="utf-8")
    return main(["sql", "-f", str(file), "-i", str(quiet), "--actor-system", "local", "-p", "2", *options])


def test_statements_of_a_file_run_in_order(tmp_path, capsys):
    assert run(tmp_path, SCRIPT, "--mode", "batch") == 0
    assert capsys.readouterr().out == f"[INFO] Execute statement succeeded.\n{SHOWN}"


def test_the_first_error_ends_a_file_and_says_where(tmp_path, capsys):
    text = f"{SCRIPT}SELECT item,\n  MAX(prize) FROM bids GROUP BY item;\nSHOW VIEWS;"
    assert run(tmp_path, text, "--mode", "batch") == 1
    out, err = capsys.readouterr()
    assert err == (
        f"{tmp_path}/a.sql:6:7: there is no column 'prize' here\n    MAX(prize) FROM bids GROUP BY item\n        ^\n"
        "hint: did you mean 'price'?\n"
    )
    assert "SHOW VIEWS" not in out


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("SHOW TABLES;\n\n  INSERT INTO x SELECT 1;", "3:3", "there is no table 'x'"),
        ("SHOW TABLES; SELECT 'a", "1:21", "what begins here has no end"),
        ("SET 'parallelism.default' = 'x';", "1:5", "a whole number"),
        ("SELECT 1 +;", "1:", "this is no SQL"),
    ],
)
def test_errors_without_a_place_are_at_their_statement(tmp_path, capsys, text, place, message):
    assert run(tmp_path, text) == 1
    err = capsys.readouterr().err
    assert f"a.sql:{place}" in err
    assert message in err


def test_a_file_that_is_not_there_is_told(tmp_path, capsys):
    assert main(["sql", "-f", str(tmp_path / "none.sql"), "--actor-system", "local"]) == 1
    assert "none.sql cannot be read" in capsys.readouterr().err


def test_an_init_file_runs_first_and_its_error_ends_all(tmp_path, capsys):
    init = tmp_path / "init.sql"
    init.write_text("SHOW TABLES;\nCREATE VIEW v AS SELECT x;", encoding="utf-8")
    file = tmp_path / "a.sql"
    file.write_text("SHOW VIEWS", encoding="utf-8")
    assert main(["sql", "-f", str(file), "-i", str(init), "--actor-system", "local"]) == 1
    out, err = capsys.readouterr()
    assert f"{init}:2:25: there is no column 'x'" in err
    assert "SHOW VIEWS" not in out


def test_standard_input_is_a_file_if_nobody_types(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 1 AS one; QUIT; SELECT nothing;"))
    assert main(["sql", "--actor-system", "local", "--mode", "batch"]) == 0
    assert "|   1 |" in capsys.readouterr().out


WRITING = """\
CREATE TABLE numbers (n INT) WITH ('connector' = 'datagen', 'number-of-rows' = '3', 'fields.n.kind' = 'sequence',
  'fields.n.start' = '1', 'fields.n.end' = '3');
CREATE TABLE kept (n INT) WITH ('connector' = 'filesystem', 'path' = 'PLACE', 'format' = 'json');
INSERT INTO kept SELECT n FROM numbers;
"""
PROMISE = "delivery of Sink: kept: as long as nothing fails, for the job takes no checkpoints"


@pytest.mark.parametrize("is_quiet", [False, True])
def test_an_insert_says_what_its_sink_guarantees_and_how_far_it_is(tmp_path, capsys, is_quiet):
    """As `headrace run` does; a query is followed by its rows alone."""
    script = WRITING.replace("PLACE", str(tmp_path / "kept")) + "SELECT SUM(n) AS s FROM numbers;"
    assert run(tmp_path, script, *(["--quiet"] if is_quiet else [])) == 0
    out, err = capsys.readouterr()
    assert "delivery of" not in out
    lines = err.splitlines()
    if is_quiet:
        assert lines == []
        return
    assert lines[0] == PROMISE
    assert lines[-1].startswith("insert into kept: FINISHED")
    assert all(line.startswith("insert into kept: ") for line in lines[1:])


def test_an_insert_in_batch_mode_says_how_far_its_stages_are(tmp_path, capsys):
    script = WRITING.replace("PLACE", str(tmp_path / "kept")) + "SELECT SUM(n) AS s FROM numbers;"
    assert run(tmp_path, script, "--mode", "batch") == 0
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"insert into kept: FINISHED \| (\d+) of \1 stages \| [\d.]+ s", lines[-1])
    assert all(line.startswith("insert into kept: ") for line in lines), "a query is followed by its rows alone"
    assert run(tmp_path, script.replace("kept", "more"), "--mode", "batch", "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    [begun, ended] = [line["job"] for line in map(json.loads, out.splitlines()) if "job" in line]
    assert begun == {"id": ended["id"], "name": "insert into more", "delivery": []}
    assert ended == {"id": begun["id"], "state": "FINISHED"}


def test_scripts_get_rows_jobs_and_errors_as_lines_of_json(tmp_path, capsys):
    script = f"{WRITING.replace('PLACE', str(tmp_path / 'kept'))}SELECT SUM(n) AS s FROM numbers;\n" + (
        "SHOW TABLES;\nSET 'sql-client.execution.result-mode' = 'table';\n"
        "SELECT n, CAST(n AS DECIMAL(4, 1)) AS d, TIMESTAMP '2026-01-02 03:04:05' AS t FROM numbers ORDER BY n;\n"
        "SELECT n,\n  m FROM numbers;\nSHOW TABLES;"
    )
    assert run(tmp_path, script, "--json") == 1
    out, err = capsys.readouterr()
    assert err == "", "progress is for people"
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0] == {"statement": 1, "result": "OK"}
    [begun, ended] = [line["job"] for line in lines if "job" in line]
    assert begun == {"id": ended["id"], "name": "insert into kept", "delivery": [PROMISE]}
    assert ended == {"id": begun["id"], "state": "FINISHED"}
    of = {number: [line for line in lines if line["statement"] == number] for number in range(1, 11)}
    assert of[3][-1] == {"statement": 3, "result": "OK"}
    changes = Counter()
    for line in of[4]:
        changes[line["row"]["s"]] += 1 if line["op"].startswith("+") else -1
    assert +changes == {6: 1}
    assert [line["row"] for line in of[5]] == [{"table name": "kept"}, {"table name": "numbers"}]
    time = "2026-01-02T03:04:05"
    assert [line["row"] for line in of[7]] == [{"n": n, "d": f"{n}.0", "t": time} for n in (1, 2, 3)]
    [failed] = of[8]
    assert failed["error"]["code"] == "ProgramError"
    assert (failed["error"]["file"], failed["error"]["line"], failed["error"]["column"]) == (
        f"{tmp_path}/a.sql", 10, 3,
    )  # fmt: skip
    assert "there is no column 'm' here" in failed["error"]["message"]
    assert of[9] == of[10] == []


def test_a_failed_job_is_a_line_of_json_with_the_code_of_its_cause(tmp_path, capsys):
    script = WRITING.replace("PLACE", str(tmp_path / "kept")).replace("SELECT n FROM", "SELECT 1 / (n - 2) FROM")
    assert run(tmp_path, script, "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["job"].get("state") for line in lines if "job" in line] == [None, "FAILED"]
    assert lines[-1]["error"]["code"].startswith("JobFailedError: ")


def test_a_terminal_is_for_people(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main(["sql", "--json", "--actor-system", "local"]) == 1
    assert "--json is for the statements of a file" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------------- views


def told(changes, schema):
    """A result whose changes are at hand."""

    def batches():
        for kind, row in changes:
            arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
            columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield Batch.of_columns(columns, None, pa.array([kind.value], pa.int8()).to_numpy())

    return RowsResult(schema, batches)


SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int32())])


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 2)), max_size=30))
def test_live_rows_are_those_that_came_and_were_not_taken_back(drawn):
    there, changes = Counter(), []
    for comes, name, n in drawn:
        if comes or there[name, n] == 0:
            changes.append((RowKind.INSERT, (name, n)))
            there[name, n] += 1
        else:
            changes.append((RowKind.DELETE, (name, n)))
            there[name, n] -= 1
    result = told(changes, SCHEMA)
    rows = LiveRows(result)
    for batch in result.changes():
        rows.take(batch)
    assert Counter(rows.first()) == +there
    assert rows.num_changes == len(changes)


def test_an_update_keeps_its_place_and_the_oldest_rows_go_first():
    changes = [(RowKind.INSERT, ("a", 1)), (RowKind.INSERT, ("b", 1))]
    changes += [(RowKind.UPDATE_BEFORE, ("a", 1)), (RowKind.UPDATE_AFTER, ("a", 2)), (RowKind.INSERT, ("c", 1))]
    result = told(changes, SCHEMA)
    rows, few = LiveRows(result), LiveRows(result, most_rows=2)
    for batch in result.changes():
        rows.take(batch)
        few.take(batch)
    assert rows.first() == [("a", 2), ("b", 1), ("c", 1)]
    assert rows.first(1) == [("a", 2)]
    assert (len(few), few.num_forgotten) == (2, 1)


def test_changes_are_shown_line_by_line_and_cut_to_their_columns():
    with TableEnvironment.create(actor_system="local") as env:
        env.settings.set("sql-client.display.max-column-width", "6")
        env.settings.set("sql-client.display.print-time-cost", "false")
        out = io.StringIO()
        changes = [
            (RowKind.INSERT, ("机机机机", 1)),
            (RowKind.UPDATE_AFTER, ("a\nb", None)),
            (RowKind.DELETE, (None, 2)),
        ]
        Views(out, env.settings, is_live=False).show(told(changes, SCHEMA), is_batch=False)
    assert out.getvalue() == (
        "+----+--------+-------------+\n"
        "| op | name   |           n |\n"
        "+----+--------+-------------+\n"
        "| +I | 机 ... |           1 |\n"
        "| +U | a b    |      <NULL> |\n"
        "| -D | <NULL> |           2 |\n"
        "+----+--------+-------------+\n"
        "Received a total of 3 rows\n"
    )


# -------------------------------------------------------------------------------------------------------------- typing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1;", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("help", True),
        ("QUIT;", True),
        ("", True),
        (";", True),
        ("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1;", False),
        ("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END;", True),
    ],
)
def test_a_statement_is_finished_by_its_semicolon(text, expected):
    assert is_finished(text) is expected


@pytest.fixture(scope="module")
def env():
    with TableEnvironment.create(mode="batch") as made:
        made.create_temporary_view("bids", pa.table({"item": ["a"], "item price": [1]}))
        made.execute_sql("CREATE CATALOG kept WITH ('type' = 'generic_in_memory')")
        yield made


@pytest.mark.parametrize(
    ("before", "after", "some"),
    [
        ("SELEC", "", ("SELECT", "keyword", -5)),
        ("SELECT * FROM ", "", ("bids", "table", 0)),
        ("SELECT it", " FROM bids", ("item", "column", -2)),
        ("SELECT bids.", " FROM bids", ("`item price`", "column", 0)),
        ("SELECT UPP", "", ("UPPER", "function", -3)),
        ("SET 'parallelism.d", "", ("parallelism.default", "option", -13)),
        ("USE CATALOG ", "", ("kept", "catalog", 0)),
        ("USE def", "", ("default_database", "database", -3)),
    ],
)
def test_what_may_come_next_is_offered(env, before, after, some):
    assert some in completions(env, before, after)


def test_nothing_is_offered_inside_a_text(env):
    assert completions(env, "SELECT 'SEL", "") == []


def test_an_error_does_not_end_the_shell(env):
    out = io.StringIO()
    typed = iter(["SELECT x;", KeyboardInterrupt, "HELP", "SELECT 1 AS one; SELECT 2 AS two;", "quit"])

    def read():
        text = next(typed)
        if text is KeyboardInterrupt:
            raise text
        return text

    Shell(env, out).talk(read)
    shown = out.getvalue()
    assert "[ERROR] line 1, column 8: there is no column 'x'" in shown
    assert "Ctrl-C stops a query" in shown
    assert "| one |" in shown
    assert "| two |" in shown


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_terminal_types_lines_sees_rows_come_and_stops_the_query_alone(tmp_path):
    history = tmp_path / "history"
    command = [sys.executable, "-m", "headrace.cli", "sql", "--actor-system", "local", "-p", "1"]
    terminal = Terminal([*command, "--history", str(history)], tmp_path)
    try:
        terminal.wait_for("Headrace SQL>")
        terminal.type("CREATE TABLE g (n BIGINT) WITH ('connector' = 'datagen',\r'rows-per-second' = '20',")
        terminal.type("'fields.n.min' = '7', 'fields.n.max' = '7');\r")
        terminal.wait_for(r"succeeded\.")
        terminal.type("SELECT n AS seven FROM g;\r")
        terminal.wait_for(r"\|\s+7 \|[\s\S]*rows of [0-9,]+ changes")
        terminal.interrupt()
        terminal.wait_for(r"Query canceled\.")
        terminal.type("SELECT nn FROM g;\r")
        terminal.wait_for("did you mean 'n'")
        terminal.type("SHOW TABLES;\r")
        terminal.wait_for(r"\| g +\|")
        terminal.type("QUIT;\r")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    assert "+SELECT nn FROM g;" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
