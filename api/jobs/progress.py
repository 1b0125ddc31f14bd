"""What a person sees while a job runs: lines that update in place, in a terminal or a notebook; else lines of a log.

The picture is made from `JobView` alone. Where it goes: `TerminalProgress` draws it with rich on stderr, so that a
job's own output stays clean; `NotebookProgress` replaces one HTML table; `LineProgress` writes a line for each event
and change of state, and one every few seconds, for logs. All are `Progress`: told what each sink guarantees when the
job has been submitted, then of views. They end with the last view, so they need not be opened or closed, and with the
place from which a later run can go on.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.engine.protocol.states import StageState

from ..arguments.compiled_loops import compiling_line
from ..arguments.places import is_submitted
from .notebook_output import is_notebook

if TYPE_CHECKING:
    from headrace.engine.protocol.views import JobView, StageView, VertexView

__all__ = [
    "JobStart",
    "LineProgress",
    "NotebookProgress",
    "Progress",
    "ProgressListener",
    "TerminalProgress",
    "default_progress",
    "ending_line",
    "format_count",
    "format_watermark",
    "html_of_stages",
    "render_html",
    "summary_line",
    "tell_of_loops",
    "write_line",
]

COLUMNS = ("operators", "par", "in/s", "out/s", "read", "busy", "backpr.", "watermark")
"""Headings: records read and given per second, records read by the present attempt, shares of time. Rates and shares
are over the last report interval."""

WIDTHS = (0, 3, 7, 7, 7, 4, 7, 16)
"""Columns whose content changes keep their width, or the picture would jump; the names get what is left."""

STAGE_COLUMNS = ("stage", "state", "tasks", "rows", "time")
"""Headings of the stages of a data set's run: tasks that are done of all, rows given so far, how long it takes."""

STAGE_WIDTHS = (0, 9, 9, 12, 9)

MIN_NAME_WIDTH = 12

IS_TEXT = (True, False, False, False, False, False, False, True)

STAGE_IS_TEXT = (True, True, False, False, False)

LINE_INTERVAL_S = 5.0
"""Where lines are written, so often at least."""

MOST_STAGES = 20
"""A terminal shows the newest ones."""

MAX_LINE_VERTICES = 3
"""A line gives the records of so many vertices: of the first ones, and of the last."""

MOST_CELL_CHARACTERS = 200

MAX_EVENT_CHARACTERS = 200
"""A notable event is one or two lines in a terminal; a traceback belongs to the error at the end."""


def format_count(number: float) -> str:
    """Return a number as people read it: ``950``, ``17.3 k``, ``1.2 M``."""
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(number) >= limit:
            return f"{number / divisor:,.1f} {unit}"
    return f"{number:,.0f}"


def format_watermark(watermark_ms: int | None) -> str:
    """Event time as UTC date and minute; ``end`` once all input has been read."""
    if watermark_ms is None or watermark_ms < -(2**62):
        return "-"
    if watermark_ms >= 2**62:
        return "end"
    try:
        return datetime.fromtimestamp(watermark_ms / 1_000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return str(watermark_ms)  # no date that a calendar knows


def summary_line(view: JobView) -> str:
    """Job, state, checkpoints and restarts on one line."""
    parts = [f"{view.name}: {view.state}"]
    if view.stages is not None:
        done = view.num_stages_left_out + sum(stage.state is StageState.FINISHED for stage in view.stages)
        parts.append(f"{done} of {view.num_stages_left_out + len(view.stages)} stages")
    if view.waiting is not None and not view.state.is_terminal:
        parts.append(f"waits for slots: {view.waiting}")
    if view.last_checkpoint is not None:
        took = "" if view.last_checkpoint_ms is None else f" ({view.last_checkpoint_ms:.0f} ms)"
        parts.append(f"checkpoint {view.last_checkpoint}{took}")
    if view.checkpoints_failed:
        parts.append(f"{view.checkpoints_failed} checkpoint{'s' if view.checkpoints_failed > 1 else ''} failed")
    if view.num_restarts:
        parts.append(f"{view.num_restarts} restart{'s' if view.num_restarts > 1 else ''}")
    if view.ended_ms is not None:
        parts.append(f"{(view.ended_ms - view.started_ms) / 1_000:.1f} s")
    return " | ".join(parts)


def records_text(view: JobView) -> str:
    """Return how many records the first vertices and the last one have read, and now read per second; empty before
    that.
    """
    vertices = list(view.vertices)
    if len(vertices) > MAX_LINE_VERTICES:
        vertices[MAX_LINE_VERTICES - 1 : -1] = []
    has_ended = view.state.is_terminal
    texts = []
    for vertex in vertices:
        rate = "" if has_ended else f" ({format_count(vertex.records_in_per_s)}/s)"
        name = vertex.name if len(vertex.name) <= 30 else f"{vertex.name[:27]}..."
        texts.append(f"{name} {format_count(vertex.records_in)}{rate}")
    return ", ".join(texts)


def ending_line(view: JobView) -> str | None:
    """Return where a later run can go on from when a job has ended; None if there never was such a place."""
    if view.savepoint_path is not None:
        return f"savepoint: {view.savepoint_path}{_GO_ON.format(view.savepoint_path)}"
    if view.last_checkpoint_path is None:
        return None
    if view.is_checkpoint_kept:
        return f"last checkpoint: {view.last_checkpoint_path}{_GO_ON.format(view.last_checkpoint_path)}"
    return f"last checkpoint: {view.last_checkpoint}, deleted with the others as the job has ended {view.state}"


_GO_ON = "; to go on from it: headrace run --from-savepoint {} PROGRAM"


def interrupt_line(job: JobStart) -> str:
    """Return what Ctrl-C does to a job with checkpoints that is waited for, and how it is ended to go on later."""
    kept = "keeps its last checkpoint" if job.is_kept_on_ctrl_c else "deletes its checkpoints"
    cancels = f"cancels the job and {kept}"
    if job.offered_on_ctrl_c is not None:
        cancels = f"asks whether to stop the job with a {job.offered_on_ctrl_c}; to cancel it {kept}"
    stop = f"; headrace stop {job.job_id[:8]} ends it with one to go on from" if job.is_reached else ""
    return f"Ctrl-C {cancels}{stop}"


def vertex_cells(vertex: VertexView, *, has_ended: bool) -> tuple[str, ...]:
    """Return one vertex as the cells of `COLUMNS`; of one that has ended only what was counted."""
    rates: tuple[str, ...] = ("-", "-")
    shares: tuple[str, ...] = ("-", "-")
    if not has_ended:
        rates = (format_count(vertex.records_in_per_s), format_count(vertex.records_out_per_s))
        shares = (f"{vertex.busy:.0%}", f"{vertex.backpressured:.0%}")
    watermark = format_watermark(vertex.watermark_ms)
    return (vertex.name, str(vertex.parallelism), *rates, format_count(vertex.records_in), *shares, watermark)


def all_cells(view: JobView) -> list[tuple[str, ...]]:
    """Return all vertices as rows of cells."""
    has_ended = view.state.is_terminal
    return [vertex_cells(vertex, has_ended=has_ended) for vertex in view.vertices]


def stage_cells(stage: StageView) -> tuple[str, ...]:
    """Return one stage of a data set's run as the cells of `STAGE_COLUMNS`."""
    tasks = f"{stage.num_done}/{stage.num_tasks}" if stage.num_tasks else ""
    rows = "" if stage.rows is None else f"{stage.rows:,}"
    return stage.name, stage.state, tasks, rows, f"{stage.duration_ms / 1_000:.1f} s"


class _Events:
    """The notable events of a job that were not shown yet; by their time, as a view holds only the newest."""

    def __init__(self) -> None:
        self._newest: tuple[int, str] = (-1, "")

    def take(self, view: JobView) -> list[str]:
        """Texts of the events since the last view, one line each; its end is left out, as the summary says it."""
        history = list(view.history)
        start = len(history) - history[::-1].index(self._newest) if self._newest in history else 0
        self._newest = history[-1] if history else self._newest
        return [_one_line(text) for _, text in history[start:] if not text.startswith(("ends ", "fails: "))]


def _one_line(text: str) -> str:
    line = re.sub(r"[0-9a-f]{32}", lambda found: found.group()[:8], text.split("\n", 1)[0])  # ids as short as git's
    return line if len(line) <= MAX_EVENT_CHARACTERS else f"{line[: MAX_EVENT_CHARACTERS - 3]}..."


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job that was submitted."""

    job_id: str
    name: str
    delivery: tuple[str, ...]
    """What each of its sinks guarantees, a line each."""
    is_kept_on_ctrl_c: bool | None = None
    """Whether its last checkpoint stays when Ctrl-C cancels it; None if it takes none, or Ctrl-C does not cancel it."""
    is_reached: bool = True
    """Whether commands of another terminal reach it: its Ray is not its program's own, or it serves REST."""
    offered_on_ctrl_c: str | None = None
    """With what Ctrl-C offers to stop it; None if it does not ask."""


class Progress(ABC):
    """Shows a job to people from its submission to its end."""

    @abstractmethod
    def begins(self, job: JobStart) -> None:
        """Show what is to be known of a job that was submitted, before its first view."""

    @abstractmethod
    def update(self, view: JobView) -> None:
        """Show a view."""

    def note(self, line: str) -> None:
        """Show a line beside the views; from any thread. On standard error, where there is no better place."""
        write_line(line)


ProgressListener: TypeAlias = "Callable[[JobView], None] | Progress"
"""Told each new view of a job, on the thread that waits for it."""


class LineProgress(Progress):
    """Writes lines: what sinks guarantee, for each notable event, for each change of state, and every few seconds.

    Pass `update` as ``on_progress``.

    Args:
        write: Writes one line; None for standard error.
        clock: Monotonic seconds.
    """

    def __init__(self, write: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write or write_line
        self._clock = clock
        self._events = _Events()
        self._last_state = ""
        # When the last line with numbers was written.
        self._written_at = clock()
        self._began_at = self._written_at

    def begins(self, job: JobStart) -> None:
        """Write what its sinks guarantee."""
        for line in job.delivery:
            self._write(line)

    def update(self, view: JobView) -> None:
        """Write what is new."""
        has_ended = view.state.is_terminal
        if has_ended and self._last_state == view.state:
            return
        for text in self._events.take(view):
            self._write(f"  {text}")
        now = self._clock()
        if view.state != self._last_state or now - self._written_at >= LINE_INTERVAL_S:
            self._written_at = now
            self._write(self._line(view, now, has_ended=has_ended))
        self._last_state = view.state
        place = ending_line(view) if has_ended else None
        if place is not None:
            self._write(f"  {place}")

    def note(self, line: str) -> None:
        """Write a line."""
        self._write(line)

    def _line(self, view: JobView, now: float, *, has_ended: bool) -> str:
        records = records_text(view)
        parts = [summary_line(view), *([f"read: {records}"] if records else [])]
        return " | ".join(parts if has_ended else [*parts, f"{now - self._began_at:.0f} s"])


def write_line(line: str) -> None:
    """Write a line to standard error."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


class TerminalProgress(Progress):
    """Draws the newest view in place on a terminal; writes lines where there is none.

    Pass `update` as ``on_progress``. Leaving a ``with`` block ends the drawing if the job's last view has not done so;
    nothing is shown afterwards.
    """

    def __init__(self) -> None:
        self._events = _Events()
        self._console: Any = None
        # Where there is no terminal.
        self._lines: LineProgress | None = None
        # Drawing in place; None before the first view, after the last, and where there is no terminal.
        self._live: Any = None
        self._last_state = ""
        self._is_left = False
        # What is drawn, and by whom it is looked at, changes under it: notes come from other threads.
        self._lock = threading.RLock()
        # Nothing is drawn for now; and what is to be drawn behind that.
        self._is_aside = False
        self._newest: JobView | None = None

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_left = True
        self.stop()

    def begins(self, job: JobStart) -> None:
        """Write what its sinks guarantee, and what Ctrl-C does to its checkpoints."""
        for line in job.delivery:
            write_line(line)
        if job.is_kept_on_ctrl_c is not None:
            write_line(interrupt_line(job))

    def update(self, view: JobView) -> None:
        """Show a view."""
        with self._lock:
            self._newest = view
            if not self._is_left and not self._is_aside:
                self._draw(view)

    def note(self, line: str) -> None:
        """Write a line, above what is drawn."""
        with self._lock:
            if self._is_left:
                return
            if self._console is None:
                write_line(line)
            else:
                self._write_line(line)

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Draw nothing in the block, where the terminal is used for something else; behind it the drawing goes on."""
        with self._lock:
            self._is_aside = True
            live, self._live = self._live, None
            if live is not None:
                live.transient = True  # it goes from the screen, and is drawn again below
                live.stop()
        try:
            yield
        finally:
            with self._lock:
                self._is_aside = False
                if live is not None and not self._is_left:
                    self._live = self._begun()
                if self._newest is not None:
                    self.update(self._newest)

    def _draw(self, view: JobView) -> None:
        if self._lines is not None:
            self._lines.update(view)
            return
        has_ended = view.state.is_terminal
        if has_ended and self._last_state == view.state:
            return  # its picture is final
        if self._console is None:
            console = self._start()
            if not console.is_terminal:
                self._lines = LineProgress(self._write_line)
                self._lines.update(view)
                return
        for text in self._events.take(view):
            self._console.print(f"  {text}", highlight=False, markup=False, no_wrap=True, overflow="ellipsis")
        if self._live is not None:
            self._live.update(_Picture(view), refresh=True)
        self._last_state = view.state
        if has_ended:
            self.stop()
            place = ending_line(view)
            if place is not None:
                self._write_line(place)

    def stop(self) -> None:
        """Leave the picture as it is and give the terminal back."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _write_line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _start(self) -> Any:
        from rich.console import Console

        console = self._console = Console(stderr=True)
        if console.is_terminal:
            self._live = self._begun()
        return console

    def _begun(self) -> Any:
        from rich.live import Live

        # Lines that the program prints meanwhile go above the picture.
        live = Live(console=self._console, auto_refresh=False, redirect_stderr=False)
        live.start()
        return live


_Shape: TypeAlias = tuple[Sequence[str], Sequence[int], Sequence[bool]]
"""Headings, widths, and which columns are texts."""


class _Picture:
    """A view as rich draws it, in whatever width there is: names give way, numbers never."""

    def __init__(self, view: JobView) -> None:
        self._view = view

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.table import Table
        from rich.text import Text

        yield Text(summary_line(self._view), style="bold", no_wrap=True, overflow="ellipsis")
        stages = self._view.stages
        shape: _Shape = (COLUMNS, WIDTHS, IS_TEXT) if stages is None else (STAGE_COLUMNS, STAGE_WIDTHS, STAGE_IS_TEXT)
        columns, widths, is_text = shape
        rows = all_cells(self._view) if stages is None else [stage_cells(stage) for stage in stages[-MOST_STAGES:]]
        longest = max((len(cells[0]) for cells in rows), default=0)
        room = options.max_width - sum(widths) - 2 * (len(columns) - 1)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for heading, width, is_left in zip(columns, widths, is_text, strict=True):
            table.add_column(
                heading,
                justify="left" if is_left else "right",
                width=width or max(MIN_NAME_WIDTH, min(longest, room)),
                no_wrap=True,
                overflow="ellipsis",
            )
        for cells in rows:
            table.add_row(*(Text(cell) for cell in cells))
        yield table


def render_html(view: JobView, lines: Sequence[str] = ()) -> str:
    """Return a view as an HTML table, with lines below it; everything that comes from a program is escaped."""
    head = f"<b>{html.escape(summary_line(view))}</b>"
    below = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
    rows = _html_table(COLUMNS, IS_TEXT, all_cells(view)) if view.stages is None else html_of_stages(view.stages)
    return f"{head}{rows}{below}"


def html_of_stages(stages: Sequence[StageView]) -> str:
    """Return stages as an HTML table; all texts are escaped."""
    return _html_table(STAGE_COLUMNS, STAGE_IS_TEXT, [stage_cells(stage) for stage in stages])


def _html_table(columns: Sequence[str], is_text: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    sides = ["left" if is_left else "right" for is_left in is_text]
    head = "".join(f"<th style='text-align:{side}'>{name}</th>" for name, side in zip(columns, sides, strict=True))
    lines = []
    for cells in rows:
        texts = (html.escape(cell[:MOST_CELL_CHARACTERS]) for cell in cells)
        line = "".join(f"<td style='text-align:{side}'>{text}</td>" for text, side in zip(texts, sides, strict=True))
        lines.append(f"<tr>{line}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


class NotebookProgress(Progress):
    """Replaces one HTML table in a notebook's output; pass `update` as ``on_progress``."""

    def __init__(self) -> None:
        # The output that is replaced; None before the first view.
        self._handle: Any = None
        self._last_state = ""
        # What is said below the table.
        self._below: tuple[str, ...] = ()

    def begins(self, job: JobStart) -> None:
        """Keep what its sinks guarantee for below the table."""
        self._below = job.delivery

    def note(self, line: str) -> None:
        """Keep a line for below the table."""
        self._below = (*self._below, line)

    def update(self, view: JobView) -> None:
        """Show a view."""
        from IPython.display import HTML, display

        if view.state.is_terminal and view.state == self._last_state:
            return  # its picture is final; a later cell must not write into it
        self._last_state = view.state
        content = HTML(render_html(view, self._below))
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)


def tell_of_loops(modules: Iterable[str], progress: object) -> None:
    """Tell that loops are to be compiled, if they are: where a job's progress is shown, else on a terminal or in a
    notebook, unless ``HEADRACE_PROGRESS`` is ``none``.

    Args:
        modules: Of the loops of the job.
        progress: Who is told of it.
    """
    tell = progress.note if isinstance(progress, Progress) else write_line
    is_shown = isinstance(progress, Progress) or sys.stderr.isatty() or is_notebook()
    if is_shown and os.environ.get("HEADRACE_PROGRESS") != "none":
        line = compiling_line(modules)
        if line is not None:
            tell(line)


def default_progress() -> Progress | None:
    """Who is told a job's views if the program does not say: a terminal, a log, a notebook, or none.

    ``HEADRACE_PROGRESS`` says ``terminal`` (as ``headrace run`` does), ``lines`` or ``none``. Without it lines are
    written for programs that Ray's job server runs, as their log is all that anybody sees of them.
    """
    wanted = os.environ.get("HEADRACE_PROGRESS", "")
    if wanted == "none":
        return None
    if wanted == "terminal":
        return TerminalProgress()
    if wanted == "lines" or is_submitted():
        return LineProgress()
    if is_notebook():
        return NotebookProgress()
    return None
