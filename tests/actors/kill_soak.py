"""Kill soak on Ray: ``python tests/actors/kill_soak.py --kills 20``.

A keyed window job writes to the exactly-once file sink while a second thread reads what is visible. After each third
new checkpoint the process of a random slot is killed with signal 9. At the end every window must have come exactly
once with its exact count. Prints one line per figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

NUM_KEYS = 50
WINDOW_MS = 200
RATE = 4_000
SECONDS_PER_KILL = 4.5
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
                self.appeared.append((time.monotonic(), path.name.split("-")[2]))
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


def soak(
    kills: int, seed: int, directory: Path, parallelism: int = 2, state_backend: str = "heap"
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Run the job with kills; gives the figures, and the job's history."""
    rng = random.Random(seed)
    output = directory / "out"
    num_records = int(RATE * SECONDS_PER_KILL * max(2, kills))
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray")
    env.set_parallelism(parallelism)
    env.set_state_backend(state_backend)
    env.enable_checkpointing(300, directory=str(directory / "checkpoints"))
    build(env, output, num_records)
    reader = Reader(output)
    client = env.execute_async("kill soak")
    reader.start()
    killed_at: list[float] = []
    next_kill = KILL_EVERY
    try:
        for view in client.views():
            pids = [slot.pid for slot in view.slots if slot.pid]
            if (
                view.checkpoints_completed >= next_kill
                and view.state == "RUNNING"
                and view.slots
                and len(killed_at) < kills
            ):
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed_at.append(time.monotonic())
                next_kill = view.checkpoints_completed + KILL_EVERY
        client.result(timeout=120)
    finally:
        reader.done.set()
        reader.join()
        env.close()
    reader.look()
    got: Counter[tuple[int, int]] = Counter()
    for path in output.glob("part-*"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            got[(row["key"], row["window"])] += row["n"]
    rows = sum(len(path.read_text().splitlines()) for path in output.glob("part-*"))
    expected = expected_windows(num_records)
    recoveries = sorted(reader.first_of_new_attempt(kill) - kill for kill in killed_at)
    figures = {
        "kills": len(killed_at),
        "restarts": view.num_restarts,
        "checkpoints": view.checkpoints_completed,
        "records": num_records,
        "lost": sum((expected - got).values()),
        "duplicated": sum((got - expected).values()) + rows - len(got),
        "changed files": len(reader.problems),
        "staged files left": len(
            [path for path in output.rglob("*") if path.is_file() and not path.name.startswith("part-")]
        ),
        "recovery p50 s": recoveries[len(recoveries) // 2] if recoveries else None,
        "recovery p99 s": recoveries[min(len(recoveries) - 1, int(len(recoveries) * 0.99))] if recoveries else None,
    }
    return figures, view.history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--state-backend", choices=("heap", "rocksdb"), default="heap")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures, history = soak(
            options.kills, options.seed, Path(directory), options.parallelism, options.state_backend
        )
    if figures["restarts"] != figures["kills"]:
        print("\n".join(text for _, text in history))
    for name, value in figures.items():
        print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    bad = figures["lost"] + figures["duplicated"] + figures["changed files"] + (figures["kills"] < options.kills)
    print(f"{0 if bad else 1} passed, {1 if bad else 0} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
