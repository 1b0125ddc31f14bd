"""What people see of a job, made from views alone."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.engine.protocol.states import JobStatus, StageState
from headrace.engine.protocol.views import JobView, StageView, VertexView
from headrace.jobs.progress import (
    JobStart,
    LineProgress,
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
        "job_id": "j" * 32, "name": "flight delays", "state": JobStatus(state), "version": 1, "started_ms": 0,
        "ended_ms": None, "vertices": vertices, "checkpoints_completed": 7, "last_checkpoint": 12,
        "last_checkpoint_ms": 34.7,
    }  # fmt: skip
    return JobView(**{**known, **changes})


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
    progress._start = lambda: setattr(progress, "_console", console) or console
    for one in progress_views:
        progress.update(one)
        if is_terminal:
            from headrace.jobs.progress import _Picture

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


class Log:
    """Lines, and a clock that is set."""

    def __init__(self):
        self.lines, self.now = [], 100.0
        self.progress = LineProgress(self.lines.append, lambda: self.now)

    def at(self, seconds, *views):
        self.now, before = 100.0 + seconds, len(self.lines)
        for one in views:
            self.progress.update(one)
        return self.lines[before:]


def test_a_log_gets_numbers_every_few_seconds():
    log, running = Log(), view(vertices=(vertex("source"), vertex("count", records_in=9, records_in_per_s=2.0)))
    numbers = "read: source 62.5 k (20.3 k/s), count 9 (2/s)"
    assert log.at(0, running) == [f"flight delays: RUNNING | checkpoint 12 (35 ms) | {numbers} | 0 s"]
    assert log.at(4.9, running, running) == []
    assert log.at(5, running, running) == [f"flight delays: RUNNING | checkpoint 12 (35 ms) | {numbers} | 5 s"]
    assert log.at(9.9, running) == []
    assert len(log.at(10.1, running)) == 1


def test_a_line_names_the_first_vertices_and_the_last():
    vertices = tuple(vertex(f"v{n}") for n in range(9))
    [line] = Log().at(0, view(vertices=vertices))
    assert [part.split()[0] for part in line.split("read: ")[1].split(", ")] == ["v0", "v1", "v8"]


def test_a_log_says_what_a_job_waits_for():
    text = "2 nodes of type worker are being launched"
    assert Log().at(0, view("CREATED", waiting=text))[0].startswith(f"flight delays: CREATED | waits for slots: {text}")


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "CANCELED"])
@pytest.mark.parametrize(
    ("changes", "place"),
    [
        (
            {"last_checkpoint_path": "/c/j/chk-12"},
            "last checkpoint: /c/j/chk-12; to go on from it: headrace run --from-savepoint /c/j/chk-12 PROGRAM",
        ),
        (
            {"last_checkpoint_path": "/c/j/chk-12", "savepoint_path": "/s/1"},
            "savepoint: /s/1; to go on from it: headrace run --from-savepoint /s/1 PROGRAM",
        ),
        ({"last_checkpoint_path": "/c/j/chk-12", "is_checkpoint_kept": False}, "last checkpoint: 12, deleted"),
    ],
)
def test_the_end_says_where_a_later_run_can_go_on(state, changes, place):
    ended = view(state, **changes)
    log = Log()
    assert log.at(1, view(), ended, ended)[-1].startswith(f"  {place}")
    assert len(log.lines) == 3
    for is_terminal in (False, True):
        assert drawn([ended], 200, is_terminal=is_terminal).count(place) == 1


@pytest.mark.parametrize(
    ("is_kept", "said"),
    [
        (True, ["Ctrl-C cancels the job and keeps its last checkpoint; headrace stop jjjjjjjj ends it with one"]),
        (False, ["Ctrl-C cancels the job and deletes its checkpoints; headrace stop jjjjjjjj ends it with one"]),
        (None, []),
    ],
)
def test_a_terminal_says_what_ctrl_c_does_to_checkpoints(is_kept, said, capsys):
    start = JobStart("j" * 32, "flight delays", ("delivery of files: exactly once",), is_kept)
    TerminalProgress().begins(start)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "delivery of files: exactly once"
    assert [line.removesuffix(" to go on from") for line in lines[1:]] == said
    TerminalProgress().begins(replace(start, is_reached=False))
    assert [f"{line}; headrace" for line in capsys.readouterr().err.splitlines()[1:]] == [
        line.split(" stop ")[0] for line in said
    ]
    TerminalProgress().begins(replace(start, offered_on_ctrl_c="savepoint"))
    asks = ["Ctrl-C asks whether to stop the job with a savepoint; to cancel it "] * len(said)
    assert [line[: len(asks[0])] for line in capsys.readouterr().err.splitlines()[1:]] == asks
    log = Log()
    log.progress.begins(start)
    assert log.lines == ["delivery of files: exactly once"], "nobody presses a key in a log"


def test_what_was_left_shows_nothing_more():
    """A job that goes on behind a prompt of SQL is asked for later, and must not draw into the prompt."""
    progress = TerminalProgress()
    console = Console(file=io.StringIO(), force_terminal=False)
    progress._start = lambda: setattr(progress, "_console", console) or console
    with progress:
        progress.update(view())
    progress.update(view("FINISHED"))
    assert "RUNNING" in console.file.getvalue()
    assert "FINISHED" not in console.file.getvalue()


def test_what_is_noted_stands_above_the_picture_which_can_be_set_aside():
    progress = TerminalProgress()
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)

    def start():
        progress._console = console
        progress._live = progress._begun()
        return console

    progress._start = start
    progress.update(view())
    progress.note("dashboard: http://127.0.0.1:8081")
    with progress.set_aside():
        before = console.file.getvalue()
        progress.update(view("RUNNING", last_checkpoint=13))
        assert console.file.getvalue() == before
    assert "checkpoint 13" in console.file.getvalue().removeprefix(before)
    progress.update(view("FINISHED"))
    assert progress._live is None
    assert console.file.getvalue().count("dashboard: http://127.0.0.1:8081") == 1


def test_the_end_of_a_job_without_checkpoints_names_no_place():
    assert len(Log().at(1, view("FINISHED", last_checkpoint=None))) == 1


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
    progress.begins(JobStart("j", "flight delays", ("delivery of <files>: exactly once",)))
    for one in (view(), view(), view("FINISHED"), view("FINISHED")):
        progress.update(one)
    assert [kind for kind, _ in shown] == ["display", "update", "update"]
    assert "FINISHED" in shown[-1][1]
    assert all("delivery of &lt;files&gt;: exactly once" in content for _, content in shown)


def test_stages_of_a_data_set_are_shown_with_their_tasks_and_rows():
    stages = (
        StageView(1, "read <a>", StageState.FINISHED, 2, 2, rows=1_234, duration_ms=1_500),
        StageView(2, "sum", StageState.RUNNING, 4, 1),
    )
    one = view(stages=stages, last_checkpoint=None)
    assert summary_line(one) == "flight delays: RUNNING | 1 of 2 stages"
    shown = drawn([one], 80, is_terminal=True).splitlines()
    assert shown[1].split() == ["stage", "state", "tasks", "rows", "time"]
    assert shown[2].split() == ["read", "<a>", "FINISHED", "2/2", "1,234", "1.5", "s"]
    assert shown[3].split() == ["sum", StageState.RUNNING, "1/4", "0.0", "s"]
    page = render_html(one)
    assert "read &lt;a&gt;" in page
    assert "1 of 2 stages" in page


@pytest.mark.parametrize(("wanted", "is_said"), [("lines", True), ("terminal", True), ("none", False), ("", False)])
def test_what_each_sink_promises_is_said_where_a_job_is_shown(wanted, is_said, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HEADRACE_PROGRESS", wanted)
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_checkpointing(1_000, directory=tmp_path / "checkpoints")
        numbers = env.from_collection([1, 2])
        numbers.sink_to(FileSink.json_lines(tmp_path / "out")).name("files")
        numbers.print().name("shown")
        promised = [line for line in env.explain().splitlines() if line.startswith("delivery of ")]
        env.execute("promises")
    said = capsys.readouterr()
    assert promised == [
        "delivery of Sink: files: exactly once, visible when a checkpoint is complete",
        "delivery of Sink: shown: at least once: after a restart records may come again",
    ]
    lines = said.err.splitlines()
    assert lines[:2] == promised if is_said else "delivery of" not in said.err
    assert "delivery of" not in said.out
