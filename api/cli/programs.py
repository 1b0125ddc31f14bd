"""Programs from the command line: how one is run as a script, ``headrace info``, which shows one without running it,
and ``headrace init``, which begins one; and ``headrace grafana``, a board that watches them.

Source: Flink's ``flink info``; ``cargo new`` for a project whose test passes.
"""

from __future__ import annotations

import argparse
import keyword
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.engine.errors import ConfigurationError

from ..jobs.shown_program import INFO_VARIABLE, ProgramShown

__all__ = ["add_commands", "run_file"]

TEMPLATE = {
    "job.py.txt": "job.py",
    "test_job.py.txt": "tests/test_job.py",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}
"""Files of a new project: which of the package, and where it goes."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser's."""
    info = commands.add_parser("info", help="show the first job of a program, without running it")
    info.add_argument("--json", action="store_true", help="its operators as JSON, as Flink's plan visualizer takes it")
    info.add_argument("program", help="a Python file")
    info.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    info.set_defaults(function=_info)

    grafana = commands.add_parser("grafana", help="print a board for Grafana, over what Prometheus fetches by REST")
    grafana.set_defaults(function=_grafana)

    init = commands.add_parser("init", help="make a project, with a job and its test")
    init.add_argument("name", metavar="NAME", help="a folder that is not there yet; its last part names the project")
    init.set_defaults(function=_init)


def run_file(program: Path, arguments: Sequence[str]) -> int:
    """Run a program as Python would run it; gives its exit status.

    A syntax error in it is shown without a trace of ours; one of a module that it imports is not: who does is of
    interest.
    """
    if not program.is_file():
        print(f"error: there is no program {str(program)!r}", file=sys.stderr)
        return 2
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SyntaxError as error:
        if error.filename != str(program):
            raise
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
        return 1
    return 0


def _info(options: argparse.Namespace) -> int:
    os.environ[INFO_VARIABLE] = "1"
    try:
        status = run_file(Path(options.program), options.arguments)
    except ProgramShown as shown:
        print(shown.plan if options.json else shown.text)
        return 0
    finally:
        del os.environ[INFO_VARIABLE]
    if status == 0:
        print("error: the program has ended without running a job", file=sys.stderr)
    return status or 1


def _grafana(_options: argparse.Namespace) -> int:
    print((resources.files("headrace.cli") / "project" / "grafana.json").read_text(encoding="utf-8"), end="")
    return 0


def _init(options: argparse.Namespace) -> int:
    folder = Path(options.name)
    name = folder.name.replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name):
        message = (
            f"a project's name must be of letters, digits, '-' and '_', and begin with a letter; got {folder.name!r}"
        )
        raise ConfigurationError(message)
    if folder.exists():
        message = f"{folder} is there already"
        raise ConfigurationError(message)
    for source, target in TEMPLATE.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (resources.files("headrace.cli") / "project" / source).read_text(encoding="utf-8")
        path.write_text(text.replace("PROJECT", folder.name), encoding="utf-8")
    brings = "" if find_spec("pytest") else "  python -m pip install pytest\n"
    print(f"made {folder}; try:\n  cd {folder}\n{brings}  python -m pytest -q\n  headrace run job.py")
    return 0
