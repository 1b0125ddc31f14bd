"""Outputs that follow jobs while others run, and drawings of plans; the notebook is a stand-in that notes outputs.

Families: behaviour (records, failure, stop), drawings against the plan. Real kernels: `tests/test_notebooks.py`.
"""

from __future__ import annotations

import re
import sys
import threading
import types
import xml.etree.ElementTree as ET

import pytest

from headrace import ProgramError, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.jobs.notebook_output import html_rows
from headrace.jobs.plan_picture import HEIGHT, WIDTH, PlanBox, draw_plan

SVG = "{http://www.w3.org/2000/svg}"


class Notebook:
    """What IPython offers a library, as far as it is used: outputs that can be replaced."""

    def __init__(self, monkeypatch):
        self.outputs = []
        self.changed = threading.Condition()
        shell = types.SimpleNamespace(kernel=object())
        display = types.ModuleType("IPython.display")
        display.HTML = lambda text: text
        display.display = self._display
        package = types.ModuleType("IPython")
        package.get_ipython = lambda: shell
        package.display = display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def _display(self, content, display_id=False):
        at = len(self.outputs)
        self.outputs.append(content)

        def update(replaced):
            with self.changed:
                self.outputs[at] = replaced
                self.changed.notify_all()

        return types.SimpleNamespace(update=update)

    def wait_until_shown(self, pattern):
        with self.changed:
            assert self.changed.wait_for(lambda: any(re.search(pattern, one) for one in self.outputs), 60)


@pytest.fixture
def notebook(monkeypatch):
    return Notebook(monkeypatch)


@pytest.fixture
def env():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        yield env


def test_records_of_a_stream_are_shown_and_the_last_picture_stays(notebook, env):
    output = env.from_collection([{"n": n} for n in range(100)]).live(limit=5)
    assert output.wait(60)
    assert len(notebook.outputs) == 1, "one output that is replaced, and none of the job's progress"
    assert "live: FINISHED" in notebook.outputs[0]
    assert "the newest 5 of 100 records" in notebook.outputs[0]
    assert notebook.outputs[0].count("<tr>") == 6, "a head and five rows"
    assert not output.is_running


def test_a_drawing_follows_a_job_and_ends_without_it(notebook, env):
    numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=200), None, "numbers")
    numbers.filter(lambda n: False).print()
    client = env.execute_async("drawn")
    output = client.plot()
    notebook.wait_until_shown(r"drawn: RUNNING.*<polyline")
    output.stop()
    assert not output.is_running
    assert client.get_job_status().value == "RUNNING"
    client.cancel()


def test_a_stream_without_end_leaves_the_caller_free_and_stops(notebook, env):
    output = env.from_source(GeneratorSource(lambda n: n, records_per_second=200), None, "numbers").live()
    notebook.wait_until_shown(r"RUNNING .*[1-9]\d* records")
    assert output.is_running
    output.stop()
    assert not output.is_running
    assert "CANCELED" in notebook.outputs[0]
    assert re.search(r"<td[^>]*>\d+</td>", notebook.outputs[0]), "what was seen stays"


def test_a_failure_is_told_below_the_records(notebook, env):
    def fails(n):
        return 1 // (3 - n)

    env.set_parallelism(1)
    output = env.from_collection([1, 2, 3]).map(fails).name("divided").live()
    assert output.wait(60)
    assert "FAILED" in notebook.outputs[0]
    assert "division" in notebook.outputs[0]


def test_progress_of_a_job_is_followed_beside_other_work(notebook, env):
    env.from_source(GeneratorSource(lambda n: n, count=50), None, "numbers").map(lambda n: n).print()
    output = env.execute_async("watched").live()
    assert output.wait(60)
    shown = [one for one in notebook.outputs if "watched: FINISHED" in one]
    assert len(shown) == 1
    assert "numbers" in shown[0]
    assert "watched: FINISHED" in output.client._repr_html_()


def endless(env, name):
    env.from_source(GeneratorSource(lambda n: n, records_per_second=200), None, "numbers").print()
    return env.execute_async(name)


def test_a_job_that_a_cell_starts_again_is_told_and_the_first_one_can_be_ended(notebook, env, capsys):
    first = endless(env, "again")
    assert capsys.readouterr().err == ""
    other = endless(env, "another name")
    assert capsys.readouterr().err == ""
    second = endless(env, "again")
    told = capsys.readouterr().err
    assert f"job 'again' ({second.get_job_id()[:8]}) runs beside one of that name ({first.get_job_id()[:8]})" in told
    assert "client.earlier.cancel()" in told
    assert second.earlier is first
    assert (first.earlier, other.earlier) == (None, None)
    second.earlier.cancel()
    assert first.get_job_status().value == "CANCELED"
    assert second.get_job_status().value == "RUNNING" or not second.get_job_status().is_terminal
    second.cancel()
    third = endless(env, "again")
    assert capsys.readouterr().err == "", "nothing of that name runs any more"
    assert third.earlier is None
    third.cancel()
    other.cancel()


def test_a_job_of_an_environment_that_was_closed_is_none_that_runs(notebook, env, capsys):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as closed:
        endless(closed, "closed")
    client = endless(env, "closed")
    assert capsys.readouterr().err == ""
    client.cancel()


def test_what_sinks_guarantee_stands_below_the_table_of_a_job(notebook, env):
    env.from_source(GeneratorSource(lambda n: n, count=5), None, "numbers").print().name("shown")
    client = env.execute_async("told")
    said = "delivery of Sink: shown: as long as nothing fails, for the job takes no checkpoints"
    assert client.live().wait(60)
    assert said in notebook.outputs[0]
    assert said in client._repr_html_()
    env.from_collection([1]).print().name("shown")
    env.execute("waited for")
    assert any("waited for: FINISHED" in one and said in one for one in notebook.outputs)


def test_outside_of_a_notebook_nothing_is_run(env):
    stream = env.from_collection([1]).map(lambda n: n)
    plan = env.get_execution_plan()
    with pytest.raises(ProgramError, match="this is none"):
        stream.live()
    assert env.get_execution_plan() == plan, "the program is as it was"


def test_values_of_records_are_escaped_and_cut():
    shown = html_rows([{"<a>": "<script>"}, {"b": "x" * 500}, {"b": (1, "<")}], "<note>")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "&lt;note&gt;" in shown
    assert "x" * 201 not in shown


def drawing(svg):
    root = ET.fromstring(svg)
    boxes = [tuple(float(rect.get(name)) for name in ("x", "y", "width", "height")) for rect in root.iter(f"{SVG}rect")]
    return root, boxes, [text.text for text in root.iter(f"{SVG}text")]


def test_a_program_is_drawn_with_all_its_operators_and_ways(env):
    left = env.from_collection([1, 2]).name("left").map(lambda n: n).name("mapped")
    right = env.from_collection([3]).name("right")
    left.union(right).key_by(lambda n: n % 2).reduce(lambda a, b: a + b).name("<summed>").print()
    root, boxes, texts = drawing(env._repr_html_())
    assert {"mapped", "<summed>", "left", "right"} <= set(texts) | {text.removeprefix("Source: ") for text in texts}
    ways = [path for path in root.iter(f"{SVG}path") if path.get("stroke-dasharray") is None]
    assert len(boxes) == 5
    assert len(ways) == 4, "a union is no operator: both its inputs lead to the sum"
    assert "hash" in texts
    assert env.from_collection([1])._repr_html_().count("<svg") == 1


def test_boxes_do_not_lie_on_each_other_and_come_behind_their_inputs():
    made = [PlanBox(0, "a", ""), PlanBox(1, "b", ""), PlanBox(2, "c", "", [(0, "x"), (1, "y")])]
    made += [PlanBox(3, "d", "", [(0, "z")]), PlanBox(4, "e", "", [(3, ""), (2, "")], loops_from=[4])]
    root, boxes, _ = drawing(draw_plan(made, "t"))
    for i, (x, y, w, h) in enumerate(boxes):
        assert (w, h) == (WIDTH, HEIGHT)
        for a, b, _, _ in boxes[i + 1 :]:
            assert abs(a - x) >= WIDTH or abs(b - y) >= HEIGHT
    assert boxes[2][0] > max(boxes[0][0], boxes[1][0])
    assert boxes[4][0] > boxes[3][0]
    assert sum(path.get("stroke-dasharray") is not None for path in root.iter(f"{SVG}path")) == 1
