"""What people see of a job, made from views alone."""

import io

import pytest
from rich.console import Console

from headrace.engine.views import JobView, VertexView
from headrace.progress import (
    NotebookProgress,
    TerminalProgress,
    format_count,
    format_watermark,
    render_html,
    summary_line,
)


def vertex(name="Source: flights -> aggregate: local", **changes):
    numbers = {
        "vertex_id": "v", "name": name, "parallelism": 2, "states": {"RUNNING": 2}, "records_in": 62_500,
        "records_out": 4_349, "records_in_per_s": 20_312.0, "records_out_per_s": 1_592.0, "busy": 0.334, "idle": 0.6,
        "backpressured": 0.0, "watermark_ms": 1_362_955_320_000, **changes,
    }  # fmt: skip
    return VertexView(**numbers)


def view(state="RUNNING", vertices=(), **changes):
    known = {
        "job_id": "j" * 32, "name": "flight delays", "state": state, "version": 1, "started_ms": 0, "ended_ms": None,
        "vertices": vertices, "num_restarts": 0, "checkpoints_completed": 7, "checkpoints_failed": 0,
        "last_checkpoint": 12, "last_checkpoint_path": None, "last_checkpoint_ms": 34.7, "failure": None, "error": None,
        **changes,
    }  # fmt: skip
    return JobView(**known)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (9_999, "9,999"), (17_321, "17.3 k"), (1_234_567, "1.2 M"), (3.2e9, "3.2 G")],
)
def test_numbers_are_short(number, text):
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("watermark_ms", "text"),
    [(None, "-"), (-(2**63), "-"), (2**63 - 1, "end"), (1_362_955_320_000, "2013-03-10 22:42"), (2**61, str(2**61))],
)
def test_event_time_is_a_date_where_a_calendar_has_one(watermark_ms, text):
    assert format_watermark(watermark_ms) == text


def test_the_summary_says_what_there_is_to_say():
    assert summary_line(view()) == "flight delays: RUNNING | checkpoint 12 (35 ms)"
    ended = view("FINISHED", num_restarts=1, checkpoints_failed=2, ended_ms=23_040)
    expected = "flight delays: FINISHED | checkpoint 12 (35 ms) | 2 checkpoints failed | 1 restart | 23.0 s"
    assert summary_line(ended) == expected


def drawn(progress_views, width, *, is_terminal):
    progress = TerminalProgress()
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    progress._start = lambda: setattr(progress, "_console", console)
    for one in progress_views:
        progress.update(one)
        if is_terminal:
            from headrace.progress import _Picture

            console.print(_Picture(one))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_names_give_way_and_numbers_never(width):
    long = vertex("Source: events -> " + " -> ".join(f"map {n}" for n in range(40)))
    text = drawn([view(vertices=(vertex(), long))], width, is_terminal=True)
    lines = text.splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    assert all("20.3 k" in line and "2013-03-10 22:42" in line and "33%" in line for line in lines[-2:])


def test_without_a_terminal_there_is_a_line_per_state_and_event():
    restarted = ((5, "restarts after: slot tm-" + "0" * 32 + "-0 was lost\ntraceback"), (6, "restores checkpoint 3"))
    views = [view(), view(), view("RESTARTING", history=restarted[:1]), view(history=restarted)]
    text = drawn([*views, view("FINISHED", history=(*restarted, (7, "ends FINISHED")))], 200, is_terminal=False)
    assert [line.split(" |")[0] for line in text.splitlines()] == [
        "flight delays: RUNNING",
        "  restarts after: slot tm-00000000-0 was lost",
        "flight delays: RESTARTING",
        "  restores checkpoint 3",
        "flight delays: RUNNING",
        "flight delays: FINISHED",
    ]


def test_html_escapes_what_comes_from_programs():
    text = render_html(view(vertices=(vertex("<script>"),)))
    assert "&lt;script&gt;" in text
    assert "<script>" not in text


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch):
    pytest.importorskip("IPython")
    from IPython import display

    shown = []

    class Handle:
        def update(self, content):
            shown.append(("update", content.data))

    def show(content, display_id):
        shown.append(("display", content.data))
        return Handle()

    monkeypatch.setattr(display, "display", show)
    progress = NotebookProgress()
    for one in (view(), view(), view("FINISHED"), view("FINISHED")):
        progress.update(one)
    assert [kind for kind, _ in shown] == ["display", "update", "update"]
    assert "FINISHED" in shown[-1][1]
