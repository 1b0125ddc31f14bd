"""A job on a Ray that has no node for it yet: Ray's own autoscaler launches some, as processes of this machine.

Prints one line of JSON with what was seen. A program of its own, as Ray knows one cluster per process. The provider is
the one with which Ray tests its autoscalers; the cluster has a directory and ports of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from free_ports import free_port

HEAD_ID = "f" * 51 + "00000"
COMMANDS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands", "cluster_synced_files",
    "head_start_ray_commands", "worker_start_ray_commands", "rsync_exclude", "rsync_filter",
)  # fmt: skip
BOUND_S = 60.0
PARALLELISM = 3


def configuration(port: int) -> dict[str, Any]:
    """At most two workers of two cores, none to begin with."""
    return {
        "cluster_name": "scaling",
        "max_workers": 2,
        "idle_timeout_minutes": 0.03,
        "upscaling_speed": 100.0,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": f"127.0.0.1:{port}",
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
        },
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in COMMANDS},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": {"CPU": 2, "object_store_memory": 100 << 20},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 2,
            },
        },
        "head_node_type": "ray.head.default",
    }


@contextlib.contextmanager
def scaling_cluster() -> Iterator[str]:
    """The address of a cluster with a head without cores."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets live in it: their names must be shorter than 108 bytes
    port = free_port()
    config = Path(folder) / "cluster.yaml"
    config.write_text(json.dumps(configuration(port)))
    settings = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    ray = shutil.which("ray", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    head = subprocess.Popen(
        [
            str(ray), "start", "--head", "--block", f"--port={port}", "--num-cpus=0", f"--temp-dir={folder}",
            f"--autoscaling-config={config}", "--include-dashboard=false", "--disable-usage-stats",
        ],
        env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield f"127.0.0.1:{port}"
    finally:
        head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(30)
        for pid in _processes_of(folder):  # nodes that the autoscaler had no time to take back
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in (process / "cmdline").read_bytes():
                yield int(process.name)


def wait_for(what: str, is_there: Any) -> None:
    deadline = time.monotonic() + BOUND_S
    while not is_there():
        if time.monotonic() > deadline:
            sys.exit(f"there is no {what} after {BOUND_S:g} s")
        time.sleep(0.2)


def is_served(address: str) -> bool:
    from headrace.actors.ray.connection import _is_listening

    return _is_listening(address)


def num_workers() -> int:
    import ray

    return sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())


def main() -> int:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all on the loopback
    import ray

    with scaling_cluster() as address:
        wait_for("cluster", lambda: is_served(address))
        try:
            found = {**run_jobs(address), **run_rescaled(address)}
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            wait_for("empty cluster", lambda: num_workers() == 0)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            ray.shutdown()  # or this process would wait for a cluster that has gone
    print(json.dumps(found))
    return 0


def run_jobs(address: str) -> dict[str, Any]:
    """One job that fits on what can be launched, and one that does not."""
    from headrace import StreamExecutionEnvironment
    from headrace.engine.errors import JobFailedError

    views: list[Any] = []
    refused = ""
    with StreamExecutionEnvironment.get_execution_environment(address=address, parallelism=PARALLELISM) as env:
        env.set_progress_listener(views.append)
        numbers = env.from_collection(list(range(300))).rebalance().map(lambda n: n + 1)
        with numbers.key_by(lambda n: n % 7).map(lambda n: n * 2).execute_and_collect() as results:
            total = sum(results)
        most, history = num_workers(), [text for _, text in views[-1].history]
        env.set_parallelism(5)
        env.from_collection([1]).rebalance().map(lambda n: n).print()
        try:
            env.execute("too large")
        except JobFailedError as error:
            refused = str(error)
    return {
        "is_exact": total == 2 * sum(range(1, 301)),
        "waiting": sorted({view.waiting for view in views if view.waiting}),
        "history": history,
        "num_workers": most,
        "refused": refused,
    }


def run_rescaled(address: str) -> dict[str, Any]:
    """A job that runs on while the cluster grows for it, and while it shrinks again."""
    from headrace import StreamExecutionEnvironment
    from headrace.connectors.datagen import GeneratorSource
    from headrace.connectors.files import FileSink

    folder = Path(tempfile.mkdtemp(prefix="autoscaling-"))
    workers: list[int] = []
    try:
        with StreamExecutionEnvironment.get_execution_environment(address=address, parallelism=1) as env:
            env.enable_checkpointing(500, directory=folder / "checkpoints")
            numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=200))
            numbers.key_by(lambda n: n % 7).map(lambda n: n).sink_to(FileSink.json_lines(folder / "out"))
            client = env.execute_async("rescaled")
            for parallelism, num_nodes in ((1, 1), (3, 2), (1, 1)):
                if workers:
                    client.rescale(parallelism)
                wait_for(f"cluster of {num_nodes} workers", lambda wanted=num_nodes: num_workers() == wanted)
                workers.append(num_workers())
                wait_for("output", lambda before=len(rows_in(folder)): len(rows_in(folder)) > before + 200)
            states = [vertex.states for vertex in client.view().vertices]
            restarts = client.view().num_restarts
            client.stop()
            rows = rows_in(folder)
        return {
            "workers_of_rescaled": workers,
            "ran_on": restarts == 0 and all("RUNNING" in found for found in states),
            "is_rescaled_exact": sorted(rows) == list(range(len(rows))),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rows_in(folder: Path) -> list[int]:
    """What a reader of the output sees."""
    return [json.loads(line) for part in (folder / "out").glob("part-*") for line in part.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
