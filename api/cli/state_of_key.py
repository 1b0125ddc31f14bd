"""``headrace state ask JOB OPERATOR [STATE KEY]``: what a running job's queryable state holds for a key, by REST."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headrace.engine.errors import ConfigurationError

from .job_logs import add_rest_options, find_job, printable, rest_client

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add the command to those of ``headrace state``.

    Args:
        commands: Its sub-parsers.
    """
    ask = commands.add_parser("ask", help="what a running job's state holds for a key")
    add_rest_options(ask)
    ask.add_argument("job", help="job id, or its beginning")
    ask.add_argument("uid", help="the operator's uid or name")
    ask.add_argument("state", nargs="?", help="the state; without it: which states may be asked for")
    ask.add_argument("key", nargs="?", help="the key, as JSON or plain text; a list for a tuple")
    ask.add_argument("--consistency", choices=("live", "checkpoint"), default="live", help="as it is now, or committed")
    ask.add_argument("--window", metavar="START,END", help="of windowed state: one window, in epoch milliseconds")
    ask.add_argument("--mask", metavar="NAMES", help="fields whose values are hidden, by commas; * for all values")
    ask.add_argument("--json", action="store_true", help="REST's answer")
    ask.set_defaults(function=_ask)


def _ask(options: argparse.Namespace) -> int:
    client = rest_client(options)
    job_id = find_job(client, options.job)["jid"]
    if options.state is None:
        known = client.states(job_id, options.uid, options.consistency)
        for one in [] if options.json else known:
            kind = f"{one['kind']}{', of windows' if one['windowed'] else ''}"
            keys = f"keys {one['key-type']}, as {one['key-example']}" if one["key-type"] else "no key is known yet"
            print(printable(f"{one['state']} ({kind}): {keys}; values {one['value-type'] or 'of no declared type'}"))
        if options.json:
            print(json.dumps(known))
        elif not known:
            print("no state of this operator may be asked for")
        return 0
    if options.key is None:
        message = "the key is missing"
        raise ConfigurationError(message, hint="headrace state ask JOB OPERATOR STATE KEY")
    try:
        key = json.loads(options.key)
    except ValueError:
        key = options.key
    mask = (options.mask or "").split(",") if options.mask else ()
    answer = client.state(
        job_id, options.uid, options.state, key, consistency=options.consistency, window=_window(options), mask=mask
    )
    if options.json:
        print(json.dumps(answer))
        return 0
    for row in answer["values"]:
        window = f"[{row['window-start']}, {row['window-end']}) " if "window-start" in row else ""
        print(printable(f"{window}{row['value']}{' ...' if row['is-cut'] else ''}"))
    if answer["left-out"]:
        print(f"and {answer['left-out']} more windows")
    if not answer["found"]:
        print("it holds nothing for this key")
    return 0 if answer["found"] else 1


def _window(options: argparse.Namespace) -> tuple[int, int] | None:
    if options.window is None:
        return None
    try:
        start, end = map(int, options.window.split(","))
    except ValueError:
        message = f"--window must be start and end in epoch milliseconds, as 0,60000; got {options.window!r}"
        raise ConfigurationError(message) from None
    return start, end
