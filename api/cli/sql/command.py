"""The command ``headrace sql``: a shell for SQL, or the statements of a file.

Source: Flink's ``sql-client.sh``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.engine.errors import ConfigurationError

__all__ = ["add_command"]

_HISTORY = "~/.headrace-sql-history"


def add_command(commands: Any, positive: Any) -> None:
    """Add the command to the parser of ``headrace``.

    Args:
        commands: Of the parser.
        positive: Parses a whole number of at least 1.
    """
    sql = commands.add_parser("sql", help="a shell for SQL, or the statements of a file")
    sql.add_argument("--file", "-f", metavar="FILE", help="run its statements and end; - for standard input")
    sql.add_argument("--init", "-i", metavar="FILE", help="run its statements first")
    sql.add_argument("--mode", choices=("streaming", "batch"), default="streaming", help="how queries run (streaming)")
    sql.add_argument("--parallelism", "-p", type=positive, metavar="N", help="subtasks per operator")
    sql.add_argument("--address", metavar="ADDRESS", help="Ray cluster to use; else the running one, or a new one")
    sql.add_argument("--actor-system", choices=("ray", "local"), help="ray, or local: everything in this process (ray)")
    sql.add_argument("--history", metavar="FILE", default=_HISTORY, help=f"what was typed ({_HISTORY})")
    sql.add_argument("--quiet", "-q", action="store_true", help="no progress of the jobs that write tables")
    sql.add_argument("--json", action="store_true", help="rows, jobs and errors as objects, a line each")
    sql.set_defaults(function=_sql)


def _sql(options: argparse.Namespace) -> int:
    from ...table import TableEnvironment
    from .shell import Shell, prompt

    script = _script(options)
    init = None if options.init is None else _read(options.init)
    names = {"actor_system": options.actor_system, "address": options.address}
    given = {name: value for name, value in names.items() if value is not None}
    with TableEnvironment.create(parallelism=options.parallelism, **given) as env:
        env.settings.set("execution.runtime-mode", options.mode)
        if options.json and script is None:
            message = "--json is for the statements of a file; this is a terminal"
            raise ConfigurationError(message, hint="name the file: -f FILE, or -f - for standard input")
        shell = Shell(env, is_json=options.json, is_quiet=options.quiet)
        with shell.warnings():
            if init is not None and not shell.run_script(init, options.init, echo=False):
                return 1
            if script is not None:
                return 0 if shell.run_script(script, options.file or "<stdin>") else 1
            print(f"Headrace {__version__}. A statement ends with a semicolon; HELP; shows what there is, QUIT; ends.")
            shell.talk(prompt(env, Path(options.history).expanduser()))
    return 0


def _script(options: argparse.Namespace) -> str | None:
    """The statements to run; None to talk to a terminal."""
    if options.file is not None and options.file != "-":
        return _read(options.file)
    return sys.stdin.read() if options.file == "-" or not sys.stdin.isatty() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise ConfigurationError(message) from error
