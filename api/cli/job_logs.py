"""``headrace logs JOB``: what a job has logged, also as it goes on, by REST."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import JobNotFoundError

if TYPE_CHECKING:
    from ..rest.client import RestClient

__all__ = ["add_command", "add_rest_options", "find_job", "printable", "readable", "rest_client"]

FOLLOW_S = 0.5
"""How often it is asked for more."""

_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]\S*|)(?: |$)')
_ESCAPED = re.compile(r"\\(.)")
_OF_PLACE = ("time", "level", "host", "job", "operator", "subtask", "epoch", "machine", "logger", "event")
_FIRST = ("attempt", "0")
"""Nothing worth a word."""


def add_command(commands: Any, whole_number: Callable[[str], int]) -> None:
    """Add the command to a parser's.

    Args:
        commands: The parser's commands.
        whole_number: Reads a number.
    """
    logs = commands.add_parser("logs", help="what a job has logged, by operator and subtask")
    add_rest_options(logs)
    logs.add_argument("--follow", "-f", action="store_true", help="go on until the job has ended")
    logs.add_argument("--operator", metavar="NAME", help="only lines of one operator: a part of its name")
    logs.add_argument("--subtask", type=whole_number, metavar="N", help="only lines of this subtask, from 0")
    logs.add_argument("--json", action="store_true", help="an object for each line")
    logs.add_argument("job", help="job id, or its beginning")
    logs.set_defaults(function=_logs)


def add_rest_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which REST server is asked."""
    parser.add_argument("--cluster", metavar="NAME", help="which cluster of this machine, if there are several")
    parser.add_argument("--url", help="of a REST server elsewhere; HEADRACE_REST_TOKEN has its token")


def rest_client(options: argparse.Namespace) -> RestClient:
    """Return a client of the REST server that is meant.

    Raises:
        HeadraceError: If it cannot be said which.
    """
    import os

    from ..rest.client import RestClient

    if options.url:
        return RestClient(options.url, os.environ.get("HEADRACE_REST_TOKEN", ""))
    return RestClient.find(options.cluster)


def find_job(client: RestClient, beginning: str) -> dict[str, Any]:
    """Return the overview of the one job whose id begins so.

    Raises:
        JobNotFoundError: If there is none, or several.
    """
    found = [job for job in client.jobs() if job["jid"].startswith(beginning)]
    if len(found) != 1:
        reason = f"there is no job {beginning!r}" if not found else f"{beginning!r} names {len(found)} jobs"
        raise JobNotFoundError(reason, hint="'headrace list' shows the jobs")
    job: dict[str, Any] = found[0]
    return job


def _logs(options: argparse.Namespace) -> int:
    client = rest_client(options)
    job = find_job(client, options.job)
    after: str | None = None
    while True:
        # Asked before its lines: what it logs until its end is still told.
        has_ended = client.job_status(job["jid"]) in ("FINISHED", "CANCELED", "FAILED")
        answer = client.log(job["jid"], options.operator, options.subtask, after)
        after = answer["after"]
        if answer["skipped"]:
            text = f"{answer['skipped']:,} bytes of earlier lines are left out; the files of its processes have them"
            print(text, file=sys.stderr, flush=True)
        for line in answer["lines"]:
            print(json.dumps(line) if options.json else printable(readable(line["line"], job["jid"])), flush=True)
        if answer["more"] and options.follow:
            continue  # also where none of these lines was wanted
        if not options.follow or (has_ended and not answer["lines"]):
            return 0
        time.sleep(FOLLOW_S)


def printable(line: str) -> str:
    """Return a line without what commands a terminal: functions log, and states hold, what records say."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def readable(line: str, job_id: str) -> str:
    """Return a line of keys and values as time, level, place and what is said; any other line as it is.

    The place is the operator with its subtask, else the machine or logger. Behind it are other keys, as ``attempt``,
    and the process, without the job's id; the id itself is left out.

    Args:
        line: As it is in its file.
        job_id: The job that was asked for.
    """
    pairs = _pairs(line)
    if "time" not in pairs or "event" not in pairs:
        return line
    place = pairs.get("machine") or pairs.get("logger", "")
    if "operator" in pairs:
        place = f"{pairs['operator']}[{pairs['subtask']}]" if "subtask" in pairs else pairs["operator"]
    others = [f"{name}={value}" for name, value in pairs.items() if name not in _OF_PLACE and (name, value) != _FIRST]
    if pairs.get("job", job_id) != job_id:
        others.append(f"job={pairs['job']}")
    host = pairs.get("host", "").replace(f"-{job_id}", "").replace(f"{job_id}-", "")
    said = " ".join(filter(None, (pairs["time"], f"{pairs.get('level', 'INFO'):<7}", place, *others)))
    return f"{said}: {pairs['event']}" + (f"  ({host})" if host else "")


def _pairs(line: str) -> dict[str, str]:
    """The keys and values of a whole line; nothing if it has anything else."""
    pairs: dict[str, str] = {}
    end = 0
    for found in _PAIR.finditer(line):
        if found.start() != end:
            return {}
        end = found.end()
        value = found[2]
        pairs[found[1]] = _ESCAPED.sub(r"\1", value[1:-1]) if value[:1] == '"' else value
    return pairs if end == len(line) else {}
