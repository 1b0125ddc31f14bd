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
        yield client.overview(), [client.job(job["jid"]) for job in running]
        number += 1
        if number == times:
            return
        time.sleep(pause_s)


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
    for name in ("tasks", "state", "in/s", "out/s", "busy", "waits"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        table.add_row(f"[bold]{_plain(job['name'])}[/bold] {job['jid'][:8]}", "", job["state"], "", "", "", "")
        for vertex in _shown(job):
            busy, waits = _shares(vertex)
            style = "red" if waits > 0.5 else "yellow" if busy > 0.8 else ""
            table.add_row(f"  {_plain(vertex['name'])}", *_cells(vertex), style=style)
        if note := _note(job):
            table.add_row(f"  {note}", *[""] * 6, style="dim")
    if not jobs:
        table.add_row("no job runs", "", "", "", "", "", "")
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


def _cells(vertex: dict[str, Any]) -> tuple[str, ...]:
    tasks, state = str(vertex["parallelism"]), vertex["status"]
    if "stage" in vertex:
        rows = vertex["stage"]["rows"]
        tasks = f"{vertex['stage']['tasks-done']}/{tasks}" if vertex["parallelism"] else ""
        return tasks, vertex["stage"]["state"], "", "" if rows is None else f"{rows:,} rows", "", ""
    if "busy" not in vertex:  # it was not deployed yet
        return tasks, state, "", "", "", ""
    busy, waits = _shares(vertex)
    rates = (f"{vertex['read-records-per-second']:,.0f}", f"{vertex['write-records-per-second']:,.0f}")
    return tasks, state, *rates, f"{busy:.0%}", f"{waits:.0%}"


def _line(vertex: dict[str, Any]) -> str:
    tasks, state, rate_in, out, busy, waits = _cells(vertex)
    said = [f"{tasks} tasks {state}" if tasks else state]
    if busy:
        said += [f"{rate_in} in/s", f"{out} out/s", f"busy {busy}", f"waits {waits}"]
    elif out:
        said.append(out)
    return f"  {vertex['name']}: {', '.join(said)}"


def _print_lines(client: RestClient, times: int) -> None:
    for overview, jobs in _looks(client, times, LINES_S):
        print(_headline(overview))
        for job in jobs:
            print(f"{job['jid']}  {job['state']}  {job['name']}")
            for vertex in _shown(job):
                print(_line(vertex))
            if note := _note(job):
                print(f"  {note}")
        sys.stdout.flush()


def _print_objects(client: RestClient, times: int) -> None:
    for overview, jobs in _looks(client, times, LINES_S):
        print(json.dumps({"overview": overview, "jobs": jobs}), flush=True)
