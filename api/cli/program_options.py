"""Options that say from outside how a program runs, and the variables in which it is told of them.

``headrace run`` sets them in its own process, ``headrace run-application`` in that of the cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from headrace.engine.errors import ConfigurationError, HeadraceError
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings

from ..arguments.places import lasting_place
from .cluster import add_high_availability_options, high_availability_variables

__all__ = ["add_program_options", "program_variables"]


def add_program_options(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """Add them to a command.

    Args:
        parser: The command's.
        positive: Reads a whole number of 1 or more.
    """
    parser.add_argument("--parallelism", "-p", type=positive, metavar="N", help="default parallelism of the program")
    add_high_availability_options(parser)
    parser.add_argument(
        "--executor",
        choices=("spark", "local"),
        help="of data sets: on Spark in the Ray cluster, or in this process (what HEADRACE_EXECUTOR says, else spark)",
    )
    parser.add_argument(
        "--slot-timeout",
        type=_duration,
        metavar="TIME",
        help='wait so long for slots while the cluster launches no nodes, e.g. "2 min" (30 s)',
    )
    parser.add_argument(
        "--launch-timeout",
        type=_duration,
        metavar="TIME",
        help='wait so long in all while it says that it launches some, e.g. "1 h" (30 min)',
    )
    parser.add_argument(
        "-D",
        dest="configuration",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the autoscaler, by Flink's key: -D job.autoscaler.enabled=true",
    )
    parser.add_argument(
        "--rest-port",
        metavar="PORTS",
        help="serve REST and the dashboard on this port of the loopback, or the first free one of a range",
    )
    parser.add_argument("--from-savepoint", metavar="PATH", help="start from a savepoint, or a checkpoint")
    parser.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="start although it holds state that has no place in the program",
    )
    parser.add_argument(
        "--restore-mode",
        choices=("no_claim", "claim"),
        help="claim: the job deletes it when it needs it no more (no_claim)",
    )


def program_variables(options: argparse.Namespace) -> dict[str, str]:
    """Return what the options say, by the variables that environments read.

    Raises:
        ConfigurationError: If some do not go together.
    """
    if options.from_savepoint is None and (options.restore_mode or options.allow_non_restored_state):
        message = "--restore-mode and --allow-non-restored-state need --from-savepoint"
        raise ConfigurationError(message)
    place = options.from_savepoint
    given = {
        "HEADRACE_PARALLELISM": options.parallelism,
        "HEADRACE_SLOT_REQUEST_TIMEOUT": options.slot_timeout,
        "HEADRACE_NODE_LAUNCH_TIMEOUT": options.launch_timeout,
        "HEADRACE_EXECUTOR": options.executor,
        "HEADRACE_RESTORE_FROM": None if place is None else lasting_place(place, "--from-savepoint"),
        "HEADRACE_ALLOW_NON_RESTORED_STATE": "1" if options.allow_non_restored_state else None,
        "HEADRACE_RESTORE_MODE": options.restore_mode,
        "HEADRACE_REST_PORT": options.rest_port,
        "HEADRACE_AUTOSCALER": _autoscaler(options.configuration),
        **high_availability_variables(options),
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _autoscaler(pairs: list[str]) -> str | None:
    """Lines of the options, which are refused here if they are wrong."""
    for pair in pairs:
        if "=" not in pair:
            message = f"-D takes KEY=VALUE; got {pair!r}"
            raise ConfigurationError(message)
    AutoscalerSettings.from_configuration(dict(pair.split("=", 1) for pair in pairs))
    return "\n".join(pairs) or None


def _duration(text: str) -> int:
    from headrace.state.values.durations import parse_duration_ms

    try:
        return parse_duration_ms(int(text) if text.isdecimal() else text)
    except HeadraceError as error:
        raise argparse.ArgumentTypeError(error.message) from error
