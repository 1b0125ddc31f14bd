"""Failover on Ray: ``python tests/actors/failover.py --kill head --times 5``.

A keyed window job writes to the exactly-once file sink on a detached cluster with a standby, while a second thread
reads what is visible. Again and again a process of the control plane is killed with signal 9, or stopped for a while:
the leading head, or the job's JobManager. The figure is the time from there to the first output of new tasks. At the
end every window must have come exactly once with its exact count, though the driver has lost its leader each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kill_soak import Reader, build, expected_windows

from headrace import StreamExecutionEnvironment
from headrace.actors.head import DISPATCHER_ACTOR, open_lease
from headrace.actors.hosts.host_system import AskTimedOutError, HostGoneError
from headrace.engine.cluster.leadership import LeaderFound, WhoLeads
from headrace.engine.cluster.standbys import is_head
from headrace.engine.kernel.config import HighAvailabilitySettings
from headrace.engine.kernel.machine import Address

RATE = 4_000
STOP_S = 12.0
ANSWER_MS = 3_000


def leader_pid(settings: HighAvailabilitySettings) -> int:
    lease = open_lease(settings)
    try:
        leader = lease.observe().leader
        assert leader is not None
        return int(leader.details["pid"])
    finally:
        lease.close()


def job_manager_pid(env: StreamExecutionEnvironment) -> int:
    import ray

    cluster: Any = env._cluster
    [host] = [host for host in cluster.system.hosts if host.startswith("jm-")][-1:]
    return int(ray.get(cluster.system._find(host).identity.remote(), timeout=30)[1])


def num_heads(env: StreamExecutionEnvironment) -> int:
    """How many heads could lead: they answer, and know the newest leader, who answers, too; 0 if it does not.

    Ray lists a head from the moment it is asked for one until it has noticed that its process is dead. A standby whose
    leader is killed while it starts is never told to run.
    """
    cluster: Any = env._cluster
    return num_ready(cluster.system)


def num_ready(system: Any) -> int:
    """The same of the hosts of a system."""
    found: dict[str, LeaderFound] = {}
    for host in filter(is_head, system.hosts):
        with contextlib.suppress(HostGoneError, AskTimedOutError):
            answer = system.ask(Address(host, DISPATCHER_ACTOR), WhoLeads(), ANSWER_MS)
            if isinstance(answer, LeaderFound):
                found[host] = answer
    newest = max(found.values(), key=lambda answer: answer.epoch, default=LeaderFound(0, None))
    return sum(answer == newest for answer in found.values()) if newest.host in found else 0


def wake_later(pid: int, seconds: float) -> None:
    def wake() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    timer = threading.Timer(seconds, wake)
    timer.daemon = True
    timer.start()


def failover(
    what: str, times: int, directory: Path, *, lease_ms: int = 6_000, seconds_each: float = 16.0, verbose: bool = False
) -> dict[str, Any]:
    """Run the job and disturb it; gives the figures."""
    output = directory / "out"
    num_records = int(RATE * seconds_each * (times + 0.5))
    settings = HighAvailabilitySettings(str(directory / "ha"), f"failover-{uuid.uuid4().hex[:6]}", lease_ms=lease_ms)
    env = StreamExecutionEnvironment.get_execution_environment(
        actor_system="ray", detached=True, high_availability=settings
    )
    env.set_parallelism(2)
    env.enable_checkpointing(300, directory=str(directory / "checkpoints"))
    build(env, output, num_records)
    reader = Reader(output)
    client = env.execute_async("failover")
    reader.start()
    disturbed_at: list[float] = []
    victims: list[int] = []
    next_at = 6
    pids: set[int] = set()
    try:
        for view in client.views():
            is_quiet = not disturbed_at or reader.first_of_new_attempt(disturbed_at[-1]) > 0
            is_quiet = is_quiet and num_heads(env) >= 2
            if view.state == "RUNNING" and len(disturbed_at) < times and is_quiet and len(reader.appeared) >= next_at:
                pid = job_manager_pid(env) if what.endswith("job-manager") else leader_pid(settings)
                is_stop = what.startswith("stop")
                os.kill(pid, signal.SIGSTOP if is_stop else signal.SIGKILL)
                if is_stop:
                    wake_later(pid, STOP_S)
                disturbed_at.append(time.monotonic())
                victims.append(pid)
                next_at = len(reader.appeared) + 12
        pids = {slot.pid for slot in view.slots if slot.pid}
        client.result(timeout=120)
    finally:
        reader.done.set()
        reader.join()
        cluster = env._cluster
        assert cluster is not None
        cluster.shut_down()
    reader.look()
    got: Counter[tuple[int, int]] = Counter()
    num_rows = 0
    for path in output.glob("part-*"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            got[(row["key"], row["window"])] += row["n"]
            num_rows += 1
    expected = expected_windows(num_records)
    took = sorted(reader.first_of_new_attempt(at) - at for at in disturbed_at)
    if verbose:
        origin = disturbed_at[0] - time.monotonic() + time.time() if disturbed_at else 0.0
        for at_ms, text in view.history:
            print(f"{at_ms / 1_000 - origin:>8.2f} s  {text}")
    return {
        "disturbances": len(disturbed_at),
        "lost": sum((expected - got).values()),
        "duplicated": sum((got - expected).values()) + num_rows - len(got),
        "changed files": len(reader.problems),
        "left processes": len([pid for pid in (*victims, *pids) if Path(f"/proc/{pid}").exists() and runs(pid)]),
        "failover p50 s": took[len(took) // 2] if took else None,
        "failover max s": took[-1] if took else None,
        "all s": [round(seconds, 2) for seconds in took],
    }


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> int:
    from headrace.actors.ray.connection import open_ray

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill", choices=("head", "job-manager", "stop-head", "stop-job-manager"), default="head")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--lease-ms", type=int, default=6_000)
    options = parser.parse_args()
    import ray

    open_ray("local", 8)
    try:
        with tempfile.TemporaryDirectory() as directory:
            figures = failover(options.kill, options.times, Path(directory), lease_ms=options.lease_ms, verbose=True)
    finally:
        ray.shutdown()
    for name, value in figures.items():
        print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    bad = figures["lost"] + figures["duplicated"] + figures["changed files"] + (figures["disturbances"] < options.times)
    print(f"{0 if bad else 1} passed, {1 if bad else 0} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
