"""What a person sees while a job runs: one block of lines that updates in place, in a terminal or a notebook.

The picture is made from `JobView` alone, by `render`; where it goes is decided by the caller: `TerminalProgress`
draws it with rich, on stderr, so that a job's own output stays clean; `NotebookProgress` replaces one HTML table.
"""

from __future__ import annotations

import html
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engine.messages import JobView, VertexView

__all__ = ["NotebookProgress", "TerminalProgress", "render_html", "summary_line"]

COLUMNS = ("operator", "p", "in/s", "out/s", "records in", "busy", "backpr.", "watermark")


def format_count(number: float) -> str:
    """A number as people read it: ``1.2 M``, ``950``."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(number) >= limit:
            return f"{number / limit * (10 if unit == ' k' else 1):,.1f}{unit}"
    return f"{number:,.0f}"


def format_watermark(watermark_ms: int | None) -> str:
    """Event time as UTC date and minute; ``end`` once all input has been read."""
    if watermark_ms is None or watermark_ms < -(2**62):
        return "-"
    if watermark_ms >= 2**62:
        return "end"
    return datetime.fromtimestamp(watermark_ms / 1_000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")


def summary_line(view: JobView) -> str:
    """Job, state, checkpoints and restarts on one line."""
    parts = [f"{view.name}: {view.state}"]
    if view.last_checkpoint is not None:
        took = "" if view.last_checkpoint_ms is None else f" ({view.last_checkpoint_ms:.0f} ms)"
        parts.append(f"checkpoint {view.last_checkpoint}{took}")
    if view.checkpoints_failed:
        parts.append(f"{view.checkpoints_failed} failed")
    if view.num_restarts:
        parts.append(f"{view.num_restarts} restart{'s' if view.num_restarts > 1 else ''}")
    return " | ".join(parts)


def vertex_cells(vertex: VertexView) -> tuple[str, ...]:
    """One vertex as the cells of `COLUMNS`."""
    return (
        vertex.name,
        str(vertex.parallelism),
        format_count(vertex.records_in_per_s),
        format_count(vertex.records_out_per_s),
        format_count(vertex.records_in),
        f"{vertex.busy:.0%}",
        f"{vertex.backpressured:.0%}",
        format_watermark(vertex.watermark_ms),
    )


class TerminalProgress:
    """Draws the newest view in place on a terminal; prints state changes as lines where there is none.

    Use as a context manager and pass `update` as ``on_progress``.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live: Live | None = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._last_state = ""
        self._seen_history = 0

    def __enter__(self) -> TerminalProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, view: JobView) -> None:
        """Show a view."""
        for _, text in view.history[self._seen_history :]:
            self._console.print(f"  {text}", highlight=False, markup=False)
        self._seen_history = max(self._seen_history, len(view.history))
        if self._live is not None:
            self._live.update(self._table(view), refresh=True)
        elif view.state != self._last_state:
            self._console.print(summary_line(view), highlight=False, markup=False)
        self._last_state = view.state

    def _table(self, view: JobView) -> Any:
        from rich.table import Table

        table = Table(title=summary_line(view), title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in COLUMNS:
            left = name in ("operator", "watermark")
            table.add_column(
                name, justify="left" if left else "right", no_wrap=not left, max_width=44 if left else None
            )
        for vertex in view.vertices:
            table.add_row(*vertex_cells(vertex))
        return table


def render_html(view: JobView) -> str:
    """A view as an HTML table; everything that comes from a program is escaped."""
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in COLUMNS)
    rows = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in vertex_cells(vertex))
        + "</tr>"
        for vertex in view.vertices
    )
    return f"<b>{html.escape(summary_line(view))}</b><table><tr>{head}</tr>{rows}</table>"


class NotebookProgress:
    """Replaces one HTML table in a notebook's output; pass `update` as ``on_progress``."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, view: JobView) -> None:
        """Show a view."""
        from IPython.display import HTML, display

        content = HTML(render_html(view))
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)
