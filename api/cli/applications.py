"""``headrace run-application``: a program that runs in the cluster as a whole, its ``main()`` beside the JobManager.

Flink's application mode. The program's folder is sent to Ray's job server, which runs the program on the head node; the
cluster that it starts is its own, on the same node, and ends with it. Nothing of it is in the client, which may go as
soon as it has submitted: neither processor time nor bandwidth of it is used.

Source: Flink's ``flink run-application`` and ``ApplicationDispatcherBootstrap``; Ray's ``JobSubmissionClient``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.engine.errors import ConfigurationError

from ..jobs.application_run import APPLICATION_VARIABLE
from .program_options import add_program_options, program_variables

__all__ = ["add_command", "entrypoint", "runtime_env"]

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
"""Where Ray's job server listens on its own machine."""

EXCLUDED = (".git", ".venv", "venv", "__pycache__", ".pytest_cache", ".mypy_cache")
"""What is in a program's folder and no part of it: never sent along."""


def add_command(commands: Any, positive: Callable[[str], int]) -> None:
    """Add the command to the parser's."""
    run = commands.add_parser(
        "run-application", help="run a program in the cluster as a whole; this client may go at once"
    )
    run.add_argument(
        "--address",
        metavar="URL",
        default=os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT_ADDRESS,
        help=f"of Ray's job server (RAY_API_SERVER_ADDRESS, else {DEFAULT_ADDRESS})",
    )
    run.add_argument("--working-dir", metavar="DIR", help="what is sent along with the program (its folder)")
    run.add_argument(
        "--runtime-env", metavar="FILE", help="a runtime environment of Ray, JSON or YAML: pip, env_vars ..."
    )
    run.add_argument("--python", default="python", help="the interpreter there (that of 'ray start')")
    run.add_argument("--submission-id", metavar="ID", help="the application's name in Ray (a fresh one)")
    run.add_argument("--follow", "-f", action="store_true", help="show its log until it ends; its end is this one's")
    run.add_argument("--json", action="store_true", help="an object")
    add_program_options(run, positive)
    run.add_argument("program", help="a Python file, in the working directory")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(function=_run)


def entrypoint(options: argparse.Namespace, folder: Path) -> str:
    """Return the command that the cluster runs, in a copy of the folder.

    Raises:
        ConfigurationError: If the program is not in the folder: it would not be sent along.
    """
    program = Path(options.program).resolve()
    if not program.is_file():
        message = f"there is no program {options.program!r}"
        raise ConfigurationError(message)
    if not folder.is_dir():
        message = f"there is no folder {str(folder)!r} to be sent along"
        raise ConfigurationError(message)
    if not program.is_relative_to(folder):
        message = f"{program} is not in the working directory {folder}, so it would not be sent along"
        raise ConfigurationError(message)
    return shlex.join([options.python, str(program.relative_to(folder)), *options.arguments])


def runtime_env(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return Ray's runtime environment of the application: what was given, the folder, and the options.

    Raises:
        ConfigurationError: If the file cannot be read, or is none.
    """
    given: dict[str, Any] = {}
    if options.runtime_env is not None:
        given = _read(Path(options.runtime_env))
    variables = {APPLICATION_VARIABLE: "1", **program_variables(options), **given.get("env_vars", {})}
    excludes = [*given.get("excludes", ()), *EXCLUDED]
    return {**given, "working_dir": str(folder), "excludes": excludes, "env_vars": variables}


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, yaml.YAMLError) as error:
        message = f"the runtime environment {str(path)!r} cannot be read: {error}"
        raise ConfigurationError(message) from error
    if not isinstance(found, dict) or not isinstance(found.get("env_vars", {}), dict):
        message = f"a runtime environment is an object, and so are its env_vars; {str(path)!r} is none"
        raise ConfigurationError(message)
    for name, value in found.get("env_vars", {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            message = f"variables of a runtime environment are texts; {str(path)!r} has {name!r}: {value!r}"
            raise ConfigurationError(message, hint="put it in quotes")
    excludes = found.get("excludes", [])
    if not isinstance(excludes, list) or not all(isinstance(one, str) for one in excludes):
        message = f"excludes of a runtime environment is a list of texts; {str(path)!r} has {excludes!r}"
        raise ConfigurationError(message)
    if "working_dir" in found:
        message = f"the runtime environment {str(path)!r} has a working_dir"
        raise ConfigurationError(message, hint="--working-dir names the folder that is sent along")
    return found


def _run(options: argparse.Namespace) -> int:
    folder = Path(options.working_dir or Path(options.program).parent).resolve()
    command, environment = entrypoint(options, folder), runtime_env(options, folder)
    from headrace.actors.ray.applications import ApplicationClient

    client = ApplicationClient(options.address)
    submission = options.submission_id or f"headrace-{uuid.uuid4().hex[:16]}"
    client.submit(submission, command, environment)
    if options.json:
        print(json.dumps({"submission-id": submission, "entrypoint": command}))
    else:
        print(f"submitted application {submission}: {command}")
        print(f"  its log:  ray job logs --follow --address {options.address} {submission}")
        print(f"  its end:  ray job stop --address {options.address} {submission}", flush=True)
    if options.follow:
        client.follow(submission, lambda lines: print(lines, end="", flush=True))
    return 0
