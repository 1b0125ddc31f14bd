"""``headrace top``: what runs in a cluster, and which operator is busy, live; lines where there is no terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .job_logs import add_rest_options, rest_client

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..rest.client import RestClient

__all__ = ["add_command"]

REFRESH_S = 1.0
"""In a terminal; lines come every `LINES_S`."""

LINES_S = 5.0

ENDLESS_MS = 2**62
"""Watermarks beyond are those of the beginning, and of the end."""


def add_command(commands: Any, whole_number: Callable[[str], int]) -> None:
    """Add the command to a parser's.

    Args:
        commands: The parser's commands.
        whole_number: Reads a number.
    """
    top = commands.add_parser("top", help="running jobs and their operators, live")
    add_rest_options(top)
    top.add_argument("--times", type=whole_number, metavar="N", default=0, help="end after so many looks (never)")
    top.add_argument("--json", action="store_true", help="an object for each look, a line each, every five seconds")
    top.set_defaults(function=_top)


def _top(options: argparse.Namespace) -> int:
    client = rest_client(options)
    with contextlib.suppress(KeyboardInterrupt):
        if options.json:
            _print_objects(client, options.times)
        elif sys.stdout.isatty():
            _show_table(client, options.times)
        else:
            _print_lines(client, options.times)
    return 0


def _looks(client: RestClient, times: int, pause_s: float) -> Any:
    """What there is to be shown, again and again."""
    number = 0
    while True:
        running = [job for job in client.jobs() if job["end-time"] < 0]
        yield client.overview(), [_seen(client, job["jid"]) for job in running]
        number += 1
        if number == times:
            return
        time.sleep(pause_s)


def _seen(client: RestClient, job_id: str) -> dict[str, Any]:
    """A job in full, of streams with its newest complete checkpoint."""
    job: dict[str, Any] = client.job(job_id)
    if job.get("job-type") == "DATASET":
        return job
    return {**job, "latest-checkpoint": client.checkpoints(job_id)["latest"]["completed"]}


def _show_table(client: RestClient, times: int) -> None:
    from rich.live import Live

    with Live(screen=times != 1, auto_refresh=False) as live:
        for overview, jobs in _looks(client, times, REFRESH_S):
            live.update(_table(overview, jobs), refresh=True)


def _headline(overview: dict[str, Any]) -> str:
    used = overview["slots-total"] - overview["slots-available"]
    return f"{overview['jobs-running']} running, {used} of {overview['slots-total']} slots used"


def _table(overview: dict[str, Any], jobs: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(title=_headline(overview), title_justify="left", expand=True)
    table.add_column("operator", ratio=1, no_wrap=True)
    for name in ("tasks", "state", "in/s", "out/s", "busy", "waits", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        title = f"[bold]{_plain(job['name'])}[/bold] {job['jid'][:8]}"
        table.add_row(" ".join([title, *_checkpoint(job)]), "", job["state"], *[""] * 5)
        for vertex in _shown(job):
            busy, waits = _shares(vertex)
            style = "red" if waits > 0.5 else "yellow" if busy > 0.8 else ""
            table.add_row(f"  {_plain(vertex['name'])}", *_cells(vertex, job["now"]), style=style)
        if note := _note(job):
            table.add_row(f"  {note}", *[""] * 7, style="dim")
    if not jobs:
        table.add_row("no job runs", *[""] * 7)
    return table


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _shown(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The operators of a job; of a data set the stages that are not done."""
    return [vertex for vertex in job["vertices"] if "stage" not in vertex or vertex["status"] != "FINISHED"]


def _note(job: dict[str, Any]) -> str:
    """What else there is to be said of a data set."""
    if job.get("job-type") != "DATASET":
        return ""
    done = len(job["vertices"]) - len(_shown(job)) + job["stages-left-out"]
    return f"data set: {done} of {len(job['vertices']) + job['stages-left-out']} stages done"


def _shares(vertex: dict[str, Any]) -> tuple[float, float]:
    """How busy it is and how long it waits; nothing as long as it has not reported, and of stages."""
    return vertex.get("busy", 0.0), vertex.get("backpressured", 0.0)


def _checkpoint(job: dict[str, Any]) -> list[str]:
    """What there is to be said of the newest complete checkpoint, if there is one."""
    latest = job.get("latest-checkpoint")
    return [] if latest is None else [f"checkpoint {latest['id']} took {latest['end_to_end_duration']:,} ms"]


def _behind(watermark_ms: int | None, now_ms: int) -> str:
    """How far event time is behind the clock; nothing without a watermark, or behind the end."""
    if watermark_ms is None or abs(watermark_ms) >= ENDLESS_MS:
        return ""
    behind_ms = now_ms - watermark_ms
    for unit, length_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if behind_ms >= 2 * length_ms:
            return f"{behind_ms // length_ms:,} {unit}"
    return f"{behind_ms / 1_000:,.1f} s"


def _cells(vertex: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    tasks, state = str(vertex["parallelism"]), vertex["status"]
    if "stage" in vertex:
        rows = vertex["stage"]["rows"]
        tasks = f"{vertex['stage']['tasks-done']}/{tasks}" if vertex["parallelism"] else ""
        return tasks, vertex["stage"]["state"], "", "" if rows is None else f"{rows:,} rows", "", "", ""
    if "busy" not in vertex:  # it was not deployed yet
        return tasks, state, "", "", "", "", ""
    busy, waits = _shares(vertex)
    rates = (f"{vertex['read-records-per-second']:,.0f}", f"{vertex['write-records-per-second']:,.0f}")
    behind = _behind(vertex["low-watermark"], now_ms)
    return tasks, state, *rates, f"{busy:.0%}", f"{waits:.0%}", behind


def _line(vertex: dict[str, Any], now_ms: int) -> str:
    tasks, state, rate_in, out, busy, waits, behind = _cells(vertex, now_ms)
    said = [f"{tasks} task{'' if tasks == '1' else 's'} {state}" if tasks else state]
    if busy:
        said += [f"{rate_in} in/s", f"{out} out/s", f"busy {busy}", f"waits {waits}"]
        said += [f"event time {behind} behind"] if behind else []
    elif out:
        said.append(out)
    return f"  {vertex['name']}: {', '.join(said)}"


def _print_lines(client: RestClient, times: int) -> None:
    for overview, jobs in _looks(client, times, LINES_S):
        print(_headline(overview))
        for job in jobs:
            print("  ".join([job["jid"], job["state"], job["name"], *_checkpoint(job)]))
            for vertex in _shown(job):
                print(_line(vertex, job["now"]))
            if note := _note(job):
                print(f"  {note}")
        sys.stdout.flush()


def _print_objects(client: RestClient, times: int) -> None:
    for overview, jobs in _looks(client, times, LINES_S):
        print(json.dumps({"overview": overview, "jobs": jobs}), flush=True)
