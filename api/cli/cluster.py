"""The commands about clusters as such: ``headrace cluster start``, ``cluster stop``, ``cluster list`` and ``recover``.

A cluster that is started here has no parent: it outlives the command, and programs find it by its name. With a
directory for high availability it also outlives its leader, and the jobs outlive the cluster: started again with the
same directory and id it goes on with all that had not ended. ``recover`` is that start, for clusters that are gone.

Source: Flink's ``start-cluster.sh``, ``yarn-session.sh`` and ``-yid``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.engine.errors import ConfigurationError, HeadraceError, StorageError
from headrace.engine.kernel.config import ClusterSettings, HighAvailabilitySettings
from headrace.engine.kernel.reporter_settings import ReporterSettings
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.states import JobStatus
from headrace.state.keyed.managed_memory import bytes_text

from ..arguments.places import lasting_place

if TYPE_CHECKING:
    from headrace.actors.cluster import Cluster
    from headrace.engine.protocol.views import JobView, TaskManagerView
    from headrace.state.checkpoints.job_store import JobStore

__all__ = ["add_cluster_commands", "add_high_availability_options", "high_availability_variables", "job_as_json"]

_Answer = TypeVar("_Answer")

STORE_TIMEOUT_S = 20.0
"""How long ``history`` waits for the first answer of the store that it is to show."""

SHOW_AFTER_S = 30.0
"""How long ``recover`` waits for the first jobs to run before it shows what there is."""


def add_cluster_commands(commands: Any) -> None:
    """Add the commands to the parser of ``headrace``."""
    cluster = commands.add_parser(
        "cluster", help="start or stop a cluster that outlives its programs; list TaskManagers"
    )
    actions = cluster.add_subparsers(dest="action", metavar="ACTION", required=True)

    start = actions.add_parser("start", help="start one, or go on with the jobs of one that is gone")
    _add_start_options(start)
    start.set_defaults(function=_start)

    stop = actions.add_parser("stop", help="cancel a cluster's jobs and end it")
    stop.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    stop.add_argument("name", help="the cluster's name, or id")
    stop.set_defaults(function=_stop)

    listing = actions.add_parser("list", help="clusters with their TaskManagers: slots, memory, disk, network")
    listing.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    listing.add_argument("--json", action="store_true", help="a list of objects")
    listing.set_defaults(function=_list)

    history = commands.add_parser("history", help="serve REST about the ended jobs of a cluster that may be gone")
    history.add_argument("--rest-port", metavar="PORTS", default="8082-8181", help="a port of the loopback, or a range")
    history.add_argument("directory", metavar="DIR", help="of the cluster: HA_DIR/CLUSTER_ID, a path or a URI")
    history.add_argument("--json", action="store_true", help="an object with the jobs; serve nothing")
    history.set_defaults(function=_history)

    recover = commands.add_parser("recover", help="start a cluster that is gone again, with its jobs")
    _add_start_options(recover)
    recover.set_defaults(function=_recover)


def add_high_availability_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that make the cluster of a command survive its leader."""
    parser.add_argument("--ha-dir", metavar="DIR", help="high availability: where the cluster's jobs are kept")
    parser.add_argument("--cluster-id", metavar="ID", help="name of the cluster, by which it is found and recovered")
    parser.add_argument(
        "--zookeeper", metavar="HOST:PORT/PATH", help="elect leaders in ZooKeeper, not in the directory"
    )


def high_availability_variables(options: argparse.Namespace) -> dict[str, str]:
    """These options as the environment that a program makes is told of them."""
    given = {
        "HEADRACE_HA_DIR": options.ha_dir and lasting_place(options.ha_dir, "--ha-dir"),
        "HEADRACE_CLUSTER_ID": options.cluster_id,
        "HEADRACE_HA_ZOOKEEPER": options.zookeeper,
    }
    return {name: value for name, value in given.items() if value}


def _add_start_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", metavar="ADDRESS", default="auto", help="Ray cluster (auto)")
    parser.add_argument("--standbys", type=int, default=1, metavar="N", help="heads that wait to lead (1)")
    parser.add_argument("--lease-ms", type=int, default=6_000, metavar="MS", help="a leader silent for so long is gone")
    parser.add_argument(
        "--max-slots", type=int, default=0, metavar="N", help="upper bound of slots (the machines' own)"
    )
    parser.add_argument(
        "--managed-memory-mb",
        type=int,
        default=0,
        metavar="MB",
        help="managed memory of a TaskManager, divided over its slots (a part of the machine's)",
    )
    parser.add_argument(
        "--rest-port",
        metavar="PORTS",
        default="8081-8180",
        help="port of REST, or a range: the first free one (8081-8180)",
    )
    parser.add_argument(
        "--rest-address", metavar="ADDRESS", default="127.0.0.1", help="where REST listens; others need TLS (127.0.0.1)"
    )
    parser.add_argument("--rest-certificate", metavar="FILE", help="of TLS, in PEM, on every head's machine")
    parser.add_argument("--rest-key", metavar="FILE", help="its private key")
    parser.add_argument(
        "-D",
        action="append",
        default=[],
        dest="configuration",
        metavar="KEY=VALUE",
        help="an option of REST or of reporters by Flink's name, as metrics.reporter.otel.exporter.endpoint=URL",
    )
    parser.add_argument("--no-rest", action="store_true", help="serve no REST")
    add_high_availability_options(parser)


_KEYS_OF = ("rest.", "web.", "security.ssl.rest.", "metrics.reporter.", "traces.")
"""Beginnings of keys that a cluster's own settings have."""


def _rest_settings(options: argparse.Namespace) -> RestSettings | None:
    if options.no_rest:
        return None
    named = {
        "rest.bind-port": options.rest_port,
        "rest.bind-address": options.rest_address,
        "security.ssl.rest.certificate": options.rest_certificate and os.path.abspath(options.rest_certificate),
        "security.ssl.rest.key": options.rest_key and os.path.abspath(options.rest_key),
    }
    given = {name: value for name, value in named.items() if value}
    return RestSettings.from_configuration(given | _configuration(options))


def _configuration(options: argparse.Namespace) -> dict[str, str]:
    """What ``-D`` says.

    Raises:
        ConfigurationError: If something is no key with a value, or nobody knows the key.
    """
    found: dict[str, str] = {}
    for text in options.configuration:
        key, separator, value = text.partition("=")
        if not separator or not key.startswith(_KEYS_OF):
            message = f"-D takes KEY=VALUE with a key of {', '.join(f'{one}*' for one in _KEYS_OF)}; got {text!r}"
            raise ConfigurationError(message)
        found[key] = value
    return found


def _print_rest_addresses(cluster: Cluster) -> None:
    """Say where the cluster serves REST, and what it asks for."""
    try:
        addresses = cluster.rest_addresses()
    except HeadraceError as error:
        print(f"REST is not served: {error}")
        return
    for address in addresses:
        print(f"dashboard and REST: {address.url}")
    if addresses:
        print(f"token: {addresses[0].tokens.write}\nto look only: {addresses[0].tokens.read}")


def _settings(options: argparse.Namespace) -> ClusterSettings:
    sizes: dict[str, Any] = {
        "max_slots": options.max_slots,
        "managed_memory_bytes": options.managed_memory_mb << 20,
        "rest": _rest_settings(options),
        "reporters": ReporterSettings.from_configuration(_configuration(options)),
    }
    if not options.ha_dir:
        return ClusterSettings(**sizes)
    ha = HighAvailabilitySettings(
        lasting_place(options.ha_dir, "--ha-dir"),
        options.cluster_id or "",
        f"zookeeper://{options.zookeeper}" if options.zookeeper else "files",
        options.standbys,
        options.lease_ms,
    )
    return ClusterSettings(**sizes, high_availability=ha)


def _start(options: argparse.Namespace) -> int:
    from headrace.actors.connecting import connect

    settings = _settings(options)
    with connect("ray", address=options.address, detached=True, settings=settings, name=options.cluster_id) as cluster:
        jobs = _jobs(cluster)
        print(f"cluster {cluster.name} runs, with {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}")
        if settings.rest is not None:
            _print_rest_addresses(cluster)
    return 0


def _recover(options: argparse.Namespace) -> int:
    from headrace.actors.connecting import connect

    settings = _settings(options)
    if settings.high_availability is None:
        message = "only a cluster with high availability can be recovered"
        raise ConfigurationError(message, hint="name its directory by --ha-dir and its id by --cluster-id")
    with connect("ray", address=options.address, detached=True, settings=settings) as cluster:
        jobs = _jobs(cluster)
        deadline = time.monotonic() + SHOW_AFTER_S
        while any(view.state is JobStatus.RESTARTING for view in jobs) and time.monotonic() < deadline:
            cluster.system.wait(500)
            jobs = _jobs(cluster)
        if settings.rest is not None:
            _print_rest_addresses(cluster)
    for view in jobs:
        print(f"{view.job_id}  {view.state:11} {view.name}")
        if view.state is JobStatus.FAILED:
            print(f"    {view.failure}")
    print(f"cluster {cluster.name} runs, with {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}")
    return 0


def _history(options: argparse.Namespace) -> int:
    from headrace.actors.rest.history import EndedJobs
    from headrace.actors.rest.security import fresh_tokens
    from headrace.actors.rest.server import RestServer
    from headrace.state.checkpoints.job_store import JobStore

    place = lasting_place(options.directory, "DIR").rstrip("/")

    def opened() -> JobStore:
        found = JobStore.open(place)
        _require_cluster(found, place)
        return found

    store = _answered_in_time(opened, place)
    jobs = EndedJobs(store, place.rpartition("/")[2])
    num_jobs = len(jobs.views())
    if options.json:
        ended = [job_as_json(jobs.name, view) for view in jobs.views().values()]
        print(json.dumps({"cluster": jobs.name, "jobs": ended, "problems": jobs.problems}))
        return 0
    tokens = fresh_tokens()
    server = RestServer(jobs, RestSettings(bind_port=options.rest_port), tokens)
    url = server.start()
    try:
        print(f"{num_jobs} {'job' if num_jobs == 1 else 'jobs'} of cluster {jobs.name} that have ended")
        for job_id, problem in jobs.problems.items():
            print(f"{job_id}: {problem}")
        # The other token is told to nobody: there is nothing to change.
        print(f"REST: {url}\ntoken: {tokens.read}\nCtrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3_600)
    finally:
        server.close()
    return 0


def _answered_in_time(ask: Callable[[], _Answer], place: str) -> _Answer:
    """Ask a store, in a thread that is left behind if the store is silent: clients try for minutes, and nobody waits so
    long for a mistyped host.

    Raises:
        StorageError: If there is no answer in time.
    """
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="headrace-store", daemon=True).start()
    wait([answer], STORE_TIMEOUT_S)
    if not answer.done():
        message = f"{place!r} has not answered within {STORE_TIMEOUT_S:g} s"
        raise StorageError(message, hint="look at the host and port, and whether the store is there")
    return answer.result()


def _require_cluster(store: JobStore, place: str) -> None:
    """See that a directory is one of a cluster: without jobs it has the lease of its leaders, unless ZooKeeper has.

    Raises:
        ConfigurationError: If it is none.
    """
    if store.fs.list_files(f"{store.root}/jobs") or store.fs.list_files(f"{store.root}/leader"):
        return
    message = f"there is no cluster's directory at {place!r}: neither a job nor a leader has left anything there"
    raise ConfigurationError(message, hint="name HA_DIR/CLUSTER_ID: what --ha-dir and --cluster-id have said")


def _list(options: argparse.Namespace) -> int:
    from headrace.actors.connecting import all_task_managers

    clusters = all_task_managers(options.address)
    if options.json:
        print(json.dumps([{"cluster": name, "taskmanagers": _as_json(views)} for name, views in clusters]))
        return 0
    if not clusters:
        print("no clusters")
    for name, task_managers in clusters:
        print(f"cluster {name}: {len(task_managers)} TaskManager{'' if len(task_managers) == 1 else 's'}")
        for view in task_managers:
            print("\n".join(f"  {line}" for line in task_manager_lines(view)))
    return 0


def job_as_json(cluster: str, view: JobView) -> dict[str, Any]:
    """Return a job with the keys of REST.

    Args:
        cluster: The name of its cluster.
        view: The job.
    """
    return {
        "jid": view.job_id,
        "name": view.name,
        "state": view.state,
        **({"job-type": "DATASET"} if view.is_data_set else {}),
        "cluster": cluster,
        "start-time": view.started_ms,
        "end-time": -1 if view.ended_ms is None else view.ended_ms,
        "restarts": view.num_restarts,
    }


def _as_json(views: list[TaskManagerView]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(view) for view in views]


def task_manager_lines(view: TaskManagerView) -> list[str]:
    """Describe a TaskManager for people."""
    slots = f"{view.num_slots} slot{'' if view.num_slots == 1 else 's'}"
    share = f"{bytes_text(view.slot_memory_bytes)} of managed memory each"
    machine, place = view.machine, f" on node {view.node}" if view.node else ""
    lines = [f"{view.name}{place}: {slots}, {share}"]
    if machine is None:
        return [*lines, "  nothing is known of its machine"]
    memory = f"{bytes_text(machine.available_memory_bytes)} of {bytes_text(machine.memory_bytes)} available"
    disk = f"{bytes_text(machine.free_disk_bytes)} of {bytes_text(machine.disk_bytes)} free in {machine.disk}"
    network = "; ".join(f"{one.name} {', '.join(one.addresses)}" for one in machine.interfaces) or "none"
    return [
        *lines,
        f"  machine {machine.host_name or '(no name)'}: {machine.cores:g} cores, at its start memory {memory}",
        f"  disk {disk}",
        f"  network {network}",
    ]


def _stop(options: argparse.Namespace) -> int:
    from headrace.actors.connecting import cluster_named

    with cluster_named(options.address, options.name) as cluster:
        cluster.shut_down()
    print(f"cluster {options.name} has ended")
    return 0


def _jobs(cluster: Any) -> list[JobView]:
    from headrace.engine.protocol.messages import ListJobs

    jobs: list[JobView] = cluster.ask_dispatcher(ListJobs(), 120_000)
    return jobs
