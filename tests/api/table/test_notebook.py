"""``%sql`` and ``%%sql``: statements of a cell, and tables of what they give."""

from __future__ import annotations

import types

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ProgramError
from headrace.table import TableEnvironment, load_ipython_extension
from headrace.table.live import html_table
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
