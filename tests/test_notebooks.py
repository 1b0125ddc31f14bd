"""The notebooks of this repository, executed as Jupyter would; their output must be what the script's is."""

import ast
import re

import nbformat
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient
from repository import NOTEBOOKS, expected_delays

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # else Jupyter warns of where it will look one day
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def executed(name, folder):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return notebook


@pytest.mark.campaign
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_a_first_job(tmp_path):
    notebook = executed("01-first-job.ipynb", tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    tables = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    progress = [table for table in tables if "delays per airport: " in table]
    assert len(progress) == 1, "the table is one output that is updated, not one per view"
    assert "delays per airport: FINISHED" in progress[0]
    assert any(table.startswith("<svg") and "delays" not in table.partition(">")[0] for table in tables)
    rows = pq.read_table(tmp_path / "delays").to_pylist()
    assert sorted((row["origin"], row["flights"], row["worst_delay"]) for row in rows) == expected_delays()
    assert not [output for output in outputs if output.output_type == "error"]


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
def test_event_time(tmp_path):
    notebook = executed("02-event-time.ipynb", tmp_path)
    stored = nbformat.read(NOTEBOOKS / "02-event-time.ipynb", as_version=4)
    assert results_of(notebook) == results_of(stored), "the repository shows what comes out"
    assert "all as computed by pandas\n" in results_of(notebook)
    assert "some are missing: True\n" in results_of(notebook)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
def test_state(tmp_path):
    notebook = executed("03-state.ipynb", tmp_path)
    assert results_of(notebook)[-2:] == ["'FINISHED'", "['EWR', 'JFK', 'LGA']"]
    [live] = html_of(notebook)
    assert "longest runs: FINISHED" in live
    assert live.count("<tr>") == 9, "a head and the newest eight"


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
def test_exactly_once(tmp_path):
    notebook = executed("04-exactly-once.ipynb", tmp_path)
    assert results_of(notebook)[-2:] == [
        "FINISHED after 1 restart\n",
        "6,000 rows, as many as numbers, and all are right\n",
    ]
    drawing, progress = html_of(notebook)
    assert drawing.startswith("<svg")
    assert "counted: FINISHED" in progress
    assert "1 restart" in progress


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
def test_flights_batch_and_stream(tmp_path):
    notebook = executed("05-batch-and-stream.ipynb", tmp_path)
    stored = nbformat.read(NOTEBOOKS / "05-batch-and-stream.ipynb", as_version=4)
    assert results_of(notebook) == results_of(stored), "the repository shows what comes out"
    shown = "".join(results_of(notebook))
    assert "windows of 27,075 flights: all as computed by pandas" in shown
    [live] = [table for table in html_of(notebook) if "stages" in table]
    assert "FINISHED" in live
    assert "the first 3 of" in live
    assert any(
        "image/svg+xml" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())
    )


@pytest.mark.filterwarnings("ignore")
def test_sql(tmp_path):
    notebook = executed("06-sql.ipynb", tmp_path)
    stored = nbformat.read(NOTEBOOKS / "06-sql.ipynb", as_version=4)
    shown = [without_times(table) for table in html_of(notebook)]
    assert shown == [without_times(table) for table in html_of(stored)], "the repository shows what comes out"
    stream, live, batch = shown
    assert stream == live
    assert stream.replace("; done", "") == batch
    counts = [int(one) for one in re.findall(r"<td>\d+</td><td>(\d+)</td><td>\d+</td>", batch)]
    assert (len(counts), sum(counts)) == (3, 2_000)
    assert [row["n"] for row in ast.literal_eval(results_of(notebook)[-1])] == counts


def html_of(notebook):
    """The tables that a notebook shows; those that change are one output each."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]


def results_of(notebook):
    """What cells print and what their last lines give, as text; floats are shown to so few places that they agree."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return [text for output, text in zip(outputs, texts, strict=True) if output.output_type != "display_data"]


def without_times(table):
    """A table that a stream's changes have come to, without how many they were and how long it took."""
    return re.sub(r"; [\d,]+ changes; query: FINISHED.*?</p>", "; done</p>", table)
