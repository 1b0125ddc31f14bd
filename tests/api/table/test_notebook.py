"""``%sql`` and ``%%sql``: statements of a cell, and tables of what they give."""

from __future__ import annotations

import types
import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ProgramError
from headrace.table import TableEnvironment, load_ipython_extension
from headrace.table.live_table import html_table
from headrace.table.notebook import run_cell
from headrace.table.result import RowsResult


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """IPython with the magics, and an environment ``t``."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    load_ipython_extension(made)
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        env.create_temporary_view("n", pa.table({"x": list(range(60)), "s": ["<b>"] * 60}))
        made.user_ns["t"] = env
        yield made
    made.history_manager.end_session()
    InteractiveShell.clear_instance()


def shown(shell, code):
    with capture_output() as captured:
        shell.run_cell(code).raise_error()
    return [output.data["text/html"] for output in captured.outputs]


def test_a_cell_shows_the_rows_of_its_queries(shell):
    [first, second] = shown(shell, "%%sql\nCREATE VIEW v AS SELECT x FROM n WHERE x < 2;\nSELECT x FROM v;\nSHOW VIEWS")
    assert "<th>x</th>" in first
    assert "<td>0</td>" in first
    assert "<p>2 rows</p>" in first
    assert "<td>v</td>" in second


def test_rows_are_capped_and_counted_and_texts_are_escaped(shell):
    [table] = shown(shell, "%sql SELECT x, s FROM n")
    assert table.count("<tr>") == 51
    assert "60 rows; the first 50 are shown" in table
    assert "<b>" not in table
    assert "&lt;b&gt;" in table


def test_a_result_is_kept_for_python(shell):
    assert shown(shell, "%sql found << SELECT MAX(x) AS m FROM n") == []
    assert shell.user_ns["found"].to_arrow().to_pylist() == [{"m": 59}]


def test_an_error_keeps_its_place_behind_a_name(shell):
    with pytest.raises(ProgramError, match=r"line 3, column 8: there is no column 'y'"):
        shown(shell, "%%sql kept <<\n\nSELECT y FROM n")


def test_an_interrupt_stops_the_query_and_leaves_what_there_is(shell):
    """The result is one whose second batch is Ctrl-C."""
    schema = pa.schema([("x", pa.int64())])
    is_closed = []

    def batches():
        try:
            yield Batch.of_columns(pa.record_batch({"x": [1, 2]}))
            raise KeyboardInterrupt
        finally:
            is_closed.append(True)

    env = types.SimpleNamespace(
        execute_script=lambda text: [RowsResult(schema, batches)], mode="batch", stream_environment=None
    )
    cell = types.SimpleNamespace(user_ns={"t": env})
    with pytest.raises(ProgramError, match="'t' is no TableEnvironment"):
        run_cell(cell, "SELECT 1", None)
    t = shell.user_ns["t"]
    t.execute_script = env.execute_script
    [table] = shown(shell, "%sql SELECT 1")
    assert "<td>2</td>" in table
    assert "stopped" in table
    assert is_closed == [True]


def test_a_table_of_nothing_has_heads():
    assert html_table(pa.schema([("<x>", pa.int32())]), [], "0 rows") == (
        "<div><table><thead><tr><th>&lt;x&gt;</th></tr></thead><tbody></tbody></table><p>0 rows</p></div>"
    )


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("mode", "note"), [("batch", "Join"), ("streaming", "[I,UB,UA,D]")])
def test_a_table_is_shown_as_its_columns_and_the_drawing_of_its_plan(mode, note):
    with TableEnvironment.create(mode=mode, parallelism=2) as t:
        t.create_temporary_view("n", pa.table({"x": [1, 2], "<b>": ["a", "b"]}))
        table = t.sql_query("SELECT a.x, COUNT(*) AS c FROM n a JOIN n b ON a.x = b.x WHERE a.x > 1 GROUP BY a.x")
        root = ET.fromstring(table._repr_html_().replace("<br>", "<br/>"))
        assert root.find("b").text == "Table"
        assert root.find("b").tail == " of x BIGINT, c BIGINT"
        (svg,) = root.iter(f"{SVG}svg")
        drawn = [group.find(f"{SVG}title").text for group in svg.iter(f"{SVG}g")]
        explained = [line.strip(" |+-").split(" [I")[0] for line in table.explain().split("Plan of ")[1].splitlines()]
        assert set(drawn) <= set(explained) | {line.removesuffix(" (as above)") for line in explained}
        assert len(drawn) >= 4
        assert note in [text.text for text in svg.iter(f"{SVG}text")]
        # The join reads the scan twice, by a filter and past it: so there is one arrow more than there are steps.
        assert len(list(svg.iter(f"{SVG}path"))) == len(drawn)
        hostile = ET.fromstring(t.from_path("n")._repr_html_().replace("<br>", "<br/>"))
        assert "<b> STRING" in hostile.find("b").tail


def test_a_table_that_cannot_be_run_as_things_are_says_why():
    with TableEnvironment.create(mode="batch", parallelism=2) as t:
        t.execute_sql("CREATE TABLE endless (x BIGINT) WITH ('connector' = 'datagen')")
        shown = t.from_path("endless")._repr_html_()
    assert "has no end" in shown
    assert "<svg" not in shown
