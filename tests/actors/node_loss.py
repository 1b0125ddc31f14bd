"""Loss of a node on Ray with several nodes on this machine: ``python tests/actors/node_loss.py bad raylet``.

A head node without cores holds the program and what leads, two nodes with two cores each hold the TaskManagers. A
keyed window job with the exactly-once file sink runs at parallelism 2, one TaskManager on each node; then one of the
nodes is lost, and the other one takes over. Scenarios: *raylet*, the node's raylet is killed with signal 9, and its
workers live on until the job has ended (they look for the raylet's process id, which is there until this program, its
parent, has taken note of its end); *removed*, the node is taken away in order; *bad*, the slot's process on one node
is killed twice, and the node is to be blocked. Several run one after the other; only the last may cost a node. Prints
one JSON object per scenario with what was seen; the judgement is the caller's.

Runs in a process of its own, since it starts a Ray of its own, beside which no other can be.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16))  # before Ray is imported
os.environ.setdefault("RAY_health_check_initial_delay_ms", "1000")
os.environ.setdefault("RAY_health_check_period_ms", "1000")
os.environ.setdefault("RAY_health_check_failure_threshold", "3")

import cloudpickle
import ray
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kill_soak

from headrace import StreamExecutionEnvironment
from headrace.actors.ray.host import NAMESPACE

cloudpickle.register_pickle_by_value(kill_soak)  # processes of the cluster do not find the tests' modules

NUM_NODES = 2
PATIENCE_S = 120.0


def names() -> list[str]:
    """Names of all hosts of ours that Ray knows."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["namespace"] == NAMESPACE]


def hosts() -> dict[str, tuple[str, int]]:
    """Node and process id of every host of ours that answers, by name."""
    found = {}
    for name in names():
        try:
            identity = ray.get_actor(name, namespace=NAMESPACE).identity.remote()
            found[name.split(":", 2)[2]] = ray.get(identity, timeout=3)
        except (ValueError, ray.exceptions.RayError):
            continue  # it has ended, or is about to
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(client: Any, is_enough: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        view = client.view()
        if is_enough(view):
            return view
        if view.state in ("FINISHED", "FAILED", "CANCELED"):
            break
        time.sleep(0.1)
    message = f"the job is {view.state}: {view.failure}; {view.history}"
    raise AssertionError(message)


def lose(cluster: Any, node: Any, *, in_order: bool) -> None:
    if in_order:
        cluster.remove_node(node, allow_graceful=True)
        return
    raylet_of(node).send_signal(signal.SIGKILL)


def raylet_of(node: Any) -> subprocess.Popen[bytes]:
    [raylet] = node.all_processes["raylet"]
    process: subprocess.Popen[bytes] = raylet.process
    return process


def is_elsewhere(view: Any, victim: str) -> bool:
    """Whether the job runs on two slots, none of them on the node that was lost."""
    return view.state == "RUNNING" and len(view.slots) >= 2 and all(slot.node != victim for slot in view.slots)


def committed(directory: Path) -> Counter[tuple[int, int]]:
    rows = [json.loads(line) for path in directory.glob("part-*") for line in path.read_text().splitlines()]
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        counts[row["key"], row["window"]] += row["n"]
    assert len(counts) == len(rows), "a window was committed twice"
    return counts


def make_bad(client: Any, node: str) -> None:
    """Kill the slot's process of a node, and its successor there, as a failing machine would."""
    killed: set[int | None] = set()
    while len(killed) < 2:
        view = wait_until(client, lambda view: view.state == "RUNNING" and view.num_restarts >= len(killed))
        fresh = [slot.pid for slot in view.slots if slot.node == node and slot.pid and slot.pid not in killed]
        if fresh:  # else its successor has not been announced yet
            os.kill(fresh[0], signal.SIGKILL)
            killed.add(fresh[0])
            wait_until(client, lambda view: view.num_restarts >= len(killed))


def run(cluster: Any, nodes: dict[str, Any], scenario: str, directory: Path, num_records: int) -> dict[str, Any]:
    """Run the job through one scenario; gives what was seen."""
    began = time.monotonic()
    seen: dict[str, Any] = {"scenario": scenario}
    options = {"node_failures_until_blocked": 2, "node_block_ms": 600_000} if scenario == "bad" else {}
    with StreamExecutionEnvironment.get_execution_environment(
        "ray", cluster.address, parallelism=2, slots_per_task_manager=1, **options
    ) as env:
        env.enable_checkpointing("200 ms", directory=str(directory / "checkpoints"))
        kill_soak.build(env, directory / "out", num_records)
        client = env.execute_async("on nodes")
        wait_until(client, lambda view: view.state == "RUNNING" and view.checkpoints_completed >= 3)
        before = hosts()
        nodes_used = {where for name, (where, _) in before.items() if "-slot-" in name}
        seen["num_nodes_used"] = len(nodes_used)
        seen["is_beside"] = all(where in nodes_used for name, (where, _) in before.items() if name.startswith("tm-"))
        seen["is_control_safe"] = not any(where in nodes for name, (where, _) in before.items() if name[:2] != "tm")
        seen["victim"] = victim = min(nodes_used)
        lost_at = time.monotonic()
        if scenario == "bad":
            make_bad(client, victim)
            wait_until(client, lambda view: any("is blocked" in text for _, text in view.history))
        else:
            lose(cluster, nodes[victim], in_order=scenario == "removed")
        wait_until(client, lambda view: view.num_restarts > 0)
        seen["noticed_s"] = round(time.monotonic() - lost_at, 1)
        wait_until(client, lambda view: is_elsewhere(view, victim))
        seen["recovered_s"] = round(time.monotonic() - lost_at, 1)
        result = client.result(timeout=PATIENCE_S)
        seen["restarts"] = result.num_restarts
        seen["history"] = [text for _, text in result.view.history]
        seen["is_exact"] = committed(directory / "out") == kill_soak.expected_windows(num_records)
        there = [pid for where, pid in before.values() if where == victim]
        if scenario == "raylet":
            seen["leaked"] = sum(map(is_alive, there))
            raylet_of(nodes[victim]).wait()  # no process any more: only now its workers notice
    deadline = time.monotonic() + 20
    while (left := [*names(), *filter(is_alive, there)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    seen["left"] = left
    seen["total_s"] = round(time.monotonic() - began, 1)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="+", choices=("bad", "raylet", "removed"))
    parser.add_argument("--records", type=int, default=48_000)
    options = parser.parse_args()
    began = time.monotonic()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=2, wait=False) for _ in range(NUM_NODES))}
        cluster.wait_for_nodes()
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        print(f"cluster up after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        for scenario in options.scenarios:
            with tempfile.TemporaryDirectory() as directory:
                print(json.dumps(run(cluster, nodes, scenario, Path(directory), options.records)), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
