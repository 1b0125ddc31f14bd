"""Kill soak on Ray: ``python tests/actors/kill_soak.py --kills 200 --victims all``.

A keyed window job writes to the exactly-once file sink while a second thread reads what is visible. After each third
new checkpoint a random process of the cluster is killed with signal 9: a slot, or with ``--victims all`` a slot, a
TaskManager or the JobManager with its CheckpointCoordinator. At the end every window must have come exactly once with
its exact count, and those of one key in order. Prints one line per figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.actors.ray.host import NAMESPACE
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.engine.cluster.standbys import is_head

NUM_KEYS = 50
WINDOW_MS = 200
RATE = 4_000
SECONDS_PER_KILL = 4.5
SECONDS_PER_KILL_OF_ANY = 7.0
VICTIMS = {"slots": ("slot",), "all": ("slot", "slot", "TaskManager", "JobManager")}
KILL_EVERY = 3


def make_row(index: int) -> dict[str, int]:
    return {"key": index * 7 % NUM_KEYS, "ts": index // 4}


def expected_windows(num_records: int) -> Counter[tuple[int, int]]:
    rows = (make_row(index) for index in range(num_records))
    return Counter((row["key"], row["ts"] // WINDOW_MS) for row in rows)


@dataclass(eq=False)
class Reader(threading.Thread):
    """Reads the visible files over and over; what it has seen must never change or vanish."""

    directory: Path
    seen: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    appeared: list[tuple[float, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.look()

    def look(self) -> None:
        for path in self.directory.glob("part-*"):
            size = path.stat().st_size
            known = self.seen.get(path.name)
            if known is None:
                self.seen[path.name] = [(time.monotonic(), size)]
                self.appeared.append((time.monotonic(), attempt_of(path)))
                for line in path.read_text().splitlines():
                    json.loads(line)
            elif known[-1][1] != size:
                self.problems.append(f"{path.name} changed from {known[-1][1]} to {size} bytes")
                known.append((time.monotonic(), size))

    def first_of_new_attempt(self, kill: float) -> float:
        """When the first output of an attempt appeared of which nothing had been seen at the time of the kill."""
        old = {attempt for at, attempt in self.appeared if at <= kill}
        return min((at for at, attempt in self.appeared if attempt not in old), default=float("nan"))


def build(env: StreamExecutionEnvironment, output: Path, num_records: int) -> None:
    source = GeneratorSource(make_row, count=num_records, records_per_second=RATE)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner(
        lambda row, _: row["ts"]
    )
    (
        env.from_source(source, strategy, "numbers")
        .map(lambda row: (row["key"], row["ts"] // WINDOW_MS, 1))
        .key_by(lambda row: row[0])
        .window(TumblingEventTimeWindows.of(WINDOW_MS))
        .reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
        .map(lambda row: {"key": row[0], "window": row[1], "n": row[2]})
        .sink_to(FileSink.json_lines(str(output)))
    )


@dataclass(frozen=True)
class Victim:
    """One process that was killed."""

    kind: str
    at: float


@dataclass(frozen=True)
class Sample:
    """What there was when a process was about to be killed: all must stay flat."""

    num_actors: int
    num_files: int
    resident_mb: float


def kind_of(host: str) -> str:
    """What runs in a host; a job's CheckpointCoordinator shares the process of its JobManager."""
    if host.startswith("jm-"):
        return "JobManager"
    return "slot" if "-slot-" in host else "TaskManager"


def living_hosts() -> dict[str, int]:
    """Name and process id of every host of the cluster but its heads, which own them all."""
    named = ray.util.list_named_actors(all_namespaces=True)
    handles = {}
    for actor in named:
        host = actor["name"].split(":", 2)[-1]
        if actor["namespace"] == NAMESPACE and not is_head(host):
            with contextlib.suppress(ValueError):  # gone meanwhile
                handles[host] = ray.get_actor(actor["name"], namespace=NAMESPACE)
    pids = {}
    for host, handle in handles.items():
        with contextlib.suppress(ray.exceptions.RayError):
            pids[host] = ray.get(handle.identity.remote(), timeout=5)[1]
    return pids


def resident_mb(pid: int) -> float:
    """Resident memory of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def sample(hosts: dict[str, int], directory: Path) -> Sample:
    """Look at everything that could grow."""
    # A walk passes over a folder that is deleted while it goes.
    files = sum(len(names) for _, _, names in os.walk(directory / "checkpoints"))
    return Sample(len(hosts), files, sum(map(resident_mb, hosts.values())))


def soak(
    kills: int,
    seed: int,
    directory: Path,
    parallelism: int = 2,
    state_backend: str = "heap",
    victims: Sequence[str] = ("slot",),
    **options: Any,
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Run the job with kills, in an environment with more options; gives the figures, and the job's history."""
    rng = random.Random(seed)
    output = directory / "out"
    seconds = SECONDS_PER_KILL if victims == ("slot",) else SECONDS_PER_KILL_OF_ANY
    num_records = int(RATE * seconds * max(2, kills))
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray", **options)
    env.set_parallelism(parallelism)
    env.set_state_backend(state_backend)
    env.enable_checkpointing(300, directory=str(directory / "checkpoints"))
    build(env, output, num_records)
    reader = Reader(output)
    client = env.execute_async("kill soak")
    reader.start()
    killed: list[Victim] = []
    samples: list[Sample] = []
    next_kill = KILL_EVERY
    try:
        for view in client.views():
            is_due = view.checkpoints_completed >= next_kill and view.state == "RUNNING" and len(killed) < kills
            if not is_due:
                continue
            hosts = living_hosts()
            kind = rng.choice(victims)
            candidates = sorted(host for host in hosts if kind_of(host) == kind)
            if candidates:
                samples.append(sample(hosts, directory))
                os.kill(hosts[rng.choice(candidates)], signal.SIGKILL)
                killed.append(Victim(kind, time.monotonic()))
                next_kill = view.checkpoints_completed + KILL_EVERY
                if len(killed) % 25 == 0:
                    print(f"{len(killed)} kills, {view.num_restarts} restarts", flush=True)
        client.result(timeout=120)
    finally:
        reader.done.set()
        reader.join()
        env.close()
    reader.look()
    figures: dict[str, Any] = {
        "kills": len(killed),
        "restarts": view.num_restarts,
        "checkpoints": view.checkpoints_completed,
        "records": num_records,
        **judge(output, num_records),
        "changed files": len(reader.problems),
        "staged files left": len(
            [path for path in output.rglob("*") if path.is_file() and not path.name.startswith("part-")]
        ),
        **recoveries(killed, reader),
        **growth(samples),
    }
    return figures, view.history


def judge(output: Path, num_records: int) -> dict[str, int]:
    """What is wrong with the committed output."""
    got: Counter[tuple[int, int]] = Counter()
    num_rows = num_misordered = 0
    last: dict[int, int] = {}
    for path in sorted(output.glob("part-*"), key=commit_order):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            num_rows += 1
            got[(row["key"], row["window"])] += row["n"]
            num_misordered += row["window"] <= last.get(row["key"], -1)
            last[row["key"]] = row["window"]
    expected = expected_windows(num_records)
    return {
        "lost": sum((expected - got).values()),
        "duplicated": sum((got - expected).values()) + num_rows - len(got),
        "out of order": num_misordered,
    }


def commit_order(path: Path) -> tuple[int, int]:
    """Checkpoint and number of a file: the end of its name, ``-<checkpoint>-<number>.<format>``."""
    _, _, _, checkpoint, number = path.name.split(".json")[0].rsplit("-", 4)
    return int(checkpoint), int(number)


def attempt_of(path: Path) -> str:
    """The attempt that wrote a file, from its name ``part-<subtask>-<origin>-<owner>-<attempt>-...``."""
    return path.name.split("-")[4]


def recoveries(killed: list[Victim], reader: Reader) -> dict[str, float]:
    """From each signal to the first output of a new attempt, in seconds, by what was killed."""
    figures: dict[str, float] = {}
    for kind in sorted({victim.kind for victim in killed}):
        times = sorted(reader.first_of_new_attempt(victim.at) - victim.at for victim in killed if victim.kind == kind)
        figures[f"recovery from a killed {kind}, p50 s"] = times[len(times) // 2]
        figures[f"recovery from a killed {kind}, p99 s"] = times[min(len(times) - 1, int(len(times) * 0.99))]
    return figures


def growth(samples: list[Sample]) -> dict[str, str]:
    """Medians of the first and the last third of the run."""
    third = len(samples) // 3
    if not third:
        return {}
    figures = {}
    for name in ("num_actors", "num_files", "resident_mb"):
        values = [getattr(one, name) for one in samples]
        begin, end = statistics.median(values[:third]), statistics.median(values[-third:])
        figures[f"{name} at the beginning and end"] = f"{begin:g}, {end:g}"
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--state-backend", choices=("heap", "rocksdb"), default="heap")
    parser.add_argument("--victims", choices=sorted(VICTIMS), default="slots", help="which processes are killed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures, history = soak(
            options.kills,
            options.seed,
            Path(directory),
            options.parallelism,
            options.state_backend,
            VICTIMS[options.victims],
        )
    if figures["restarts"] < figures["kills"]:
        print("\n".join(text for _, text in history))
    for name, value in figures.items():
        print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    wrong = sum(figures[name] for name in ("lost", "duplicated", "out of order", "changed files"))
    is_bad = wrong or figures["kills"] < options.kills
    print(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
