"""The command ``headrace``: programs, jobs, savepoints, state, clusters, and this machine.

Each command is one function that returns the process's exit status: 0 for success, 1 for a job or check that failed,
2 for wrong use, 130 after Ctrl-C. Errors of our own tree are shown as one message without a Python traceback;
anything else is a bug and is shown whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.engine.errors import ClusterUnavailableError, HeadraceError, JobNotFoundError, codes_of

from ..jobs.deployment import REST_PORT_VARIABLE, REST_VARIABLE
from ..jobs.operation_progress import look_at, operation_shown
from ..rest.served_jobs import RestJobClient, served_jobs
from .applications import add_command as add_application_command
from .cluster import add_cluster_commands, job_as_json
from .dashboard import add_command as add_dashboard_command
from .deploy import add_command as add_deploy_command
from .job_logs import add_command as add_logs_command
from .program_options import add_program_options, program_variables
from .programs import add_commands as add_program_commands
from .programs import run_file
from .rescales import show_rescales
from .sql.command import add_command as add_sql_command
from .state import add_commands as add_state_commands
from .top import add_command as add_top_command

if TYPE_CHECKING:
    from headrace.engine.protocol.views import JobView

    from ..jobs.client import JobClient
    from ..rest.client import RestClient
    from .demo import DemoResult

__all__ = ["command_parser", "main"]

_RUN_HERE = ("demo", "run", "sql")
"""Commands whose jobs end with them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes the process's own.

    Returns:
        The exit status.
    """
    parser = command_parser()
    _complete(parser)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return int(options.function(options))
    except HeadraceError as error:
        print(f"error: [{codes_of(error)}] {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        said = "the job was canceled and everything it started has ended"
        if options.command not in _RUN_HERE:
            said = "what a job or cluster was asked for may go on; 'headrace list' shows the jobs"
        print(f"interrupted: {said}", file=sys.stderr)
        return 130


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line may go on, and end; for all others nothing happens."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="headrace", description="Stateful stream and batch processing on Ray.")
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser("demo", help="delays of real flights in sliding windows, exactly-once, watched live")
    demo.add_argument("--speed", choices=("watch", "max"), default="watch", help="watch: about 20 s; max: all at once")
    demo.add_argument("--kill", action="store_true", help="kill a slot's process in the middle")
    demo.add_argument("--parallelism", "-p", type=_positive, default=2, metavar="N", help="subtasks per operator (2)")
    demo.add_argument("--output", metavar="DIR", help="keep the result there; without it nothing is left")
    demo.add_argument("--actor-system", choices=("ray", "local"), default="ray", help=argparse.SUPPRESS)
    demo.set_defaults(function=_demo)

    run = commands.add_parser("run", help="run a program, with live progress")
    run.add_argument(
        "--address", metavar="ADDRESS", help="Ray cluster to use; default: the running one, else a new local one"
    )
    run.add_argument(
        "--target",
        "-t",
        choices=("local", "session", "per-job"),
        help="where its jobs run: in this process; on a cluster that runs; on one that ends with them. Without it "
        "on the cluster that --cluster-id names, if it runs, else on one that is started",
    )
    run.add_argument(
        "--detached", "-d", action="store_true", help="submit jobs and do not wait for them; they outlive the program"
    )
    add_program_options(run, _positive)
    run.add_argument(
        "--no-rest",
        action="store_true",
        help="open no port; without it a job on Ray has REST and the dashboard on the loopback, at 8081 or the next "
        "free port",
    )
    run.add_argument("--quiet", "-q", action="store_true", help="no progress")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what of the savepoint has a place in the program; opens its functions",
    )
    run.add_argument("program", help="a Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(function=_run)
    add_application_command(commands, _positive)

    add_sql_command(commands, _positive)
    add_dashboard_command(commands)

    listing = commands.add_parser("list", help="jobs of a running Ray cluster")
    listing.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    listing.add_argument("--json", action="store_true", help="a list of objects")
    listing.set_defaults(function=_list)

    cancel = commands.add_parser("cancel", help="cancel a job of a running Ray cluster")
    cancel.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    cancel.add_argument("job", help="job id, or its beginning")
    cancel.add_argument("--json", action="store_true", help="an object")
    cancel.set_defaults(function=_cancel)

    stop = commands.add_parser(
        "stop", help="end a job in order, with a last checkpoint that a later run can go on from"
    )
    stop.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    stop.add_argument(
        "--drain", action="store_true", help="fire all windows and timers first, as if its input had ended"
    )
    stop.add_argument("--savepoint", metavar="DIR", help="with a savepoint below DIR instead of a checkpoint")
    stop.add_argument("job", help="job id, or its beginning")
    stop.add_argument("--json", action="store_true", help="an object")
    stop.set_defaults(function=_stop)

    rescale = commands.add_parser("rescale", help="run a job on at another parallelism, from a fresh checkpoint")
    rescale.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    rescale.add_argument(
        "--parallelism", "-p", type=_positive, metavar="N", help="of all operators that can be parallel"
    )
    rescale.add_argument(
        "--operator",
        type=_operator_parallelism,
        action="append",
        default=[],
        metavar="UID=N",
        help="of one operator, by uid or name; may be repeated",
    )
    rescale.add_argument(
        "--history",
        action="store_true",
        help="change nothing: show its rescales so far, each with who, why and its end",
    )
    rescale.add_argument("job", help="job id, or its beginning")
    rescale.add_argument("--json", action="store_true", help="an object")
    rescale.set_defaults(function=_rescale)
    savepoint = commands.add_parser("savepoint", help="take a savepoint of a running job, or delete one")
    savepoint.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    savepoint.add_argument("--dispose", metavar="PATH", help="delete this savepoint; needs no cluster")
    savepoint.add_argument("job", nargs="?", help="job id, or its beginning")
    savepoint.add_argument("directory", nargs="?", metavar="DIR", help="below which it goes (the job's default)")
    savepoint.add_argument("--json", action="store_true", help="an object")
    savepoint.set_defaults(function=_savepoint)
    checkpoint = commands.add_parser("checkpoint", help="take a checkpoint of a running job now")
    checkpoint.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    checkpoint.add_argument("--full", action="store_true", help="with all state, naming no files of earlier ones")
    checkpoint.add_argument("job", help="job id, or its beginning")
    checkpoint.add_argument("--json", action="store_true", help="an object")
    checkpoint.set_defaults(function=_checkpoint)
    add_program_commands(commands)
    add_logs_command(commands, _whole_number)
    add_top_command(commands, _whole_number)
    add_state_commands(commands)
    add_cluster_commands(commands)
    add_deploy_command(commands, _positive)

    doctor = commands.add_parser("doctor", help="check what Headrace needs on this machine")
    doctor.add_argument("--json", action="store_true", help="an object for each check, a line each")
    doctor.set_defaults(function=_doctor)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        message = f"must be a whole number, 1 or more; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        message = f"must be a whole number; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _operator_parallelism(text: str) -> tuple[str, int]:
    name, separator, number = text.rpartition("=")
    if not separator or not name or not number.isdecimal() or int(number) < 1:
        message = f"must be UID=N with N at least 1; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return name, int(number)


def _demo(options: argparse.Namespace) -> int:
    from ..jobs.progress import TerminalProgress
    from . import demo

    print("Flights out of New York City in 2013: 328,521 departures, replayed in the order in which they left.")
    print("Windows by scheduled departure: the past 24 hours, every 6 hours, per airport. Starting ...", flush=True)
    if options.speed == "watch":  # else it is over before anybody has opened a page
        os.environ.setdefault(REST_VARIABLE, "1")
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as passing, TerminalProgress() as progress:
        result = demo.run(
            output=options.output or str(Path(passing) / "out"),
            parallelism=options.parallelism,
            speed=options.speed,
            kill=options.kill,
            actor_system=options.actor_system,
            on_progress=progress,
        )
    _print_result(result, was_kill_wanted=options.kill, is_kept=options.output is not None)
    return 0 if result.is_correct else 1


def _print_result(result: DemoResult, *, was_kill_wanted: bool, is_kept: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="The ten worst windows", title_justify="left", title_style="bold")
    for name in ("airport", "24 hours from", "flights", "mean delay", "worst delay"):
        table.add_column(name, justify="left" if name in ("airport", "24 hours from") else "right")
    for airport, start, flights, mean, top in result.worst:
        table.add_row(airport, f"{start:%a %Y-%m-%d %H:%M}", str(flights), f"{mean:.1f} min", f"{top} min")
    console.print(table)
    verdict = "equal" if result.is_correct else "DO NOT EQUAL"
    print(f"{result.num_windows:,} windows; they {verdict} a direct computation over the file.")
    if result.killed is not None:
        end = "the result is the same" if result.is_correct else "the result is NOT the same"
        restarts = "once" if result.view.num_restarts == 1 else f"{result.view.num_restarts} times"
        print(f"Killed on purpose: {result.killed}.")
        print(f"Restarted {restarts} from the last checkpoint; {end}.")
    elif was_kill_wanted:
        print("The job had ended before it could be killed; leave out '--speed max'.")
    place = f"Output files: {Path(result.output).resolve()}" if is_kept else "--output DIR keeps the files."
    print(f"{result.view.checkpoints_completed} checkpoints. {place}")


def _run(options: argparse.Namespace) -> int:
    from ..jobs.restoring import DryRunOver

    program = Path(options.program)
    if not program.is_file():
        print(f"error: there is no program {str(program)!r}", file=sys.stderr)
        return 2
    if options.dry_run and options.from_savepoint is None:
        print("error: --dry-run needs --from-savepoint", file=sys.stderr)
        return 2
    if options.no_rest and options.rest_port is not None:
        print("error: --no-rest opens no port, and --rest-port names one", file=sys.stderr)
        return 2
    os.environ.update(program_variables(options))
    if options.no_rest:
        os.environ.pop(REST_PORT_VARIABLE, None)
    os.environ[REST_VARIABLE] = "0" if options.no_rest or options.dry_run else "1"
    if options.address:
        os.environ["HEADRACE_ADDRESS"] = options.address
    if options.target == "local":
        if options.address or options.detached or options.cluster_id:
            print("error: --target local has no cluster: no --address, --detached or --cluster-id", file=sys.stderr)
            return 2
        os.environ["HEADRACE_ACTOR_SYSTEM"] = "local"
    elif options.target:
        os.environ["HEADRACE_TARGET"] = options.target
    if options.detached:
        os.environ["HEADRACE_DETACHED"] = "1"
    if options.dry_run:
        os.environ["HEADRACE_DRY_RUN"] = "1"
    elif options.quiet:
        os.environ["HEADRACE_PROGRESS"] = "none"
    else:
        os.environ.setdefault("HEADRACE_PROGRESS", "terminal")
    try:
        status = run_file(program, options.arguments)
    except DryRunOver as over:
        print(over.report)
        return 0 if over.report.is_restorable else 1
    if status:
        return status
    if options.dry_run:
        print("error: the program has ended without running a job", file=sys.stderr)
        return 1
    return 0


def _list(options: argparse.Namespace) -> int:
    jobs = _all_jobs(options.address)
    if options.json:
        print(json.dumps([job_as_json(cluster, view) for cluster, view, _ in jobs]))
        return 0
    if not jobs:
        print("no jobs")
        return 0
    print(f"{'JOB':34} {'STATE':11} {'STARTED':20} {'RESTARTS':>8}  {'KIND':8}  NAME")
    for _, view, _ in jobs:
        started = datetime.fromtimestamp(view.started_ms / 1_000).astimezone()
        kind = "data set" if view.is_data_set else "stream"
        line = f"{view.job_id:34} {view.state:11} {started:%Y-%m-%d %H:%M:%S}  {view.num_restarts:>8}  {kind:8}"
        print(f"{line}  {view.name}")
    return 0


def _say(options: argparse.Namespace, text: str, **facts: Any) -> None:
    """Say what was done: to people, or as an object."""
    print(json.dumps(facts) if options.json else text)


def _all_jobs(address: str | None) -> list[tuple[str, JobView, RestClient | None]]:
    """All jobs that can be reached: each with its cluster, and how it is reached by REST if not by Ray.

    Raises:
        ClusterUnavailableError: If there is no Ray cluster at the address, and no REST server instead.
    """
    from headrace.actors.connecting import all_jobs

    served = list(served_jobs()) if address in (None, "auto") else []
    try:
        found: list[tuple[str, JobView, RestClient | None]] = [(*one, None) for one in all_jobs(address)]
    except ClusterUnavailableError:
        if not served:
            raise
        found = []
    known = {view.job_id for _, view, _ in found}
    return found + [one for one in served if one[1].job_id not in known]


def _find_job(options: argparse.Namespace) -> tuple[str, JobView, RestClient | None]:
    """The cluster and the view of the one job that the command names, and how it is reached by REST if not by Ray."""
    found = [one for one in _all_jobs(options.address) if one[1].job_id.startswith(options.job)]
    if len(found) != 1:
        reason = f"there is no job {options.job!r}" if not found else f"{options.job!r} names {len(found)} jobs"
        raise JobNotFoundError(reason, hint="'headrace list' shows the jobs")
    return found[0]


@contextlib.contextmanager
def _client_of_job(options: argparse.Namespace, what: str = "") -> Iterator[tuple[JobClient | RestJobClient, JobView]]:
    """A client of the one job that the command names, and the job as it is.

    Args:
        options: Of the command.
        what: What the job is asked for, which is followed on a terminal; nothing is if it is empty.
    """
    from headrace.actors.connecting import cluster_named

    from ..jobs.client import JobClient

    name, view, rest = _find_job(options)
    is_quiet = options.json or not what
    if rest is not None:
        served = RestJobClient(rest, view.job_id)
        with operation_shown(served.look, what, is_quiet=is_quiet):
            yield served, view
        return
    with (
        cluster_named(options.address, name) as cluster,
        operation_shown(look_at(cluster, view.job_id), what, is_quiet=is_quiet),
    ):
        yield JobClient(cluster, view.job_id, view.name), view


def _stop(options: argparse.Namespace) -> int:
    with _client_of_job(options, "stop") as (client, view):
        if options.savepoint is not None:
            place: str | None = client.stop_with_savepoint(options.savepoint, drain=options.drain)
        else:
            place = client.stop(drain=options.drain)
    what = "last checkpoint" if options.savepoint is None else "savepoint"
    text = f"stopped {view.job_id} ({view.name}); its {what}:\n{place}"
    if place is None:
        text = f"{view.job_id} ({view.name}) has ended; no checkpoint was kept"
    _say(options, text, jid=view.job_id, location=place)
    return 0


def _rescale(options: argparse.Namespace) -> int:
    if options.history:
        with _client_of_job(options) as (client, _):
            rescaled = client.view()
        return show_rescales(rescaled, as_json=options.json)
    if options.parallelism is None and not options.operator:
        print("error: nothing to do: give --parallelism N or --operator UID=N", file=sys.stderr)
        return 2
    with _client_of_job(options, "rescale") as (client, view):
        client.rescale(options.parallelism, dict(options.operator))
        vertices = client.view().vertices
    lines = [f"{vertex.parallelism:>5}  {vertex.name}" for vertex in vertices]
    found = {vertex.vertex_id: vertex.parallelism for vertex in vertices}
    _say(options, "\n".join([f"rescaled {view.job_id} ({view.name})", *lines]), jid=view.job_id, parallelism=found)
    return 0


def _checkpoint(options: argparse.Namespace) -> int:
    with _client_of_job(options, "checkpoint") as (client, view):
        place = client.trigger_checkpoint(full=options.full)
    _say(options, place, jid=view.job_id, location=place)
    return 0


def _savepoint(options: argparse.Namespace) -> int:
    if options.dispose is not None:
        from headrace.state.checkpoints.savepoints import dispose_savepoint

        if options.job:
            print("error: --dispose takes a path and no job", file=sys.stderr)
            return 2
        dispose_savepoint(options.dispose)
        _say(options, f"deleted {options.dispose}", deleted=options.dispose)
        return 0
    if not options.job:
        print("error: which job?", file=sys.stderr)
        return 2
    with _client_of_job(options, "savepoint") as (client, view):
        place = client.trigger_savepoint(options.directory)
    _say(options, place, jid=view.job_id, location=place)
    return 0


def _cancel(options: argparse.Namespace) -> int:
    from headrace.actors.connecting import cancel_job

    cluster, view, rest = _find_job(options)
    if view.state.is_terminal:
        text = f"{view.job_id} ({view.name}) has ended already: {view.state}"
        _say(options, text, jid=view.job_id, state=view.state)
        return 0
    if rest is None:
        cancel_job(options.address, cluster, view.job_id)
    else:
        rest.cancel(view.job_id)
    _say(options, f"canceled {view.job_id} ({view.name})", jid=view.job_id, state="CANCELED")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import checks

    failures = 0
    for check in checks():
        failures += not check.is_fine
        if options.json:
            print(json.dumps(asdict(check)), flush=True)
            continue
        print(f"{'ok  ' if check.is_fine else 'FAIL'}  {check.name}: {check.found}")
        if check.advice:
            print(f"      {check.advice}")
    if not options.json:
        print("all is well" if not failures else f"{failures} of the checks failed")
    return 1 if failures else 0
