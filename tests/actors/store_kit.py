"""Jobs on Ray whose checkpoints, leases and output are in one store, while processes and the store die.

A generator makes rows; a job counts them in windows by event time and writes the counts with a `FileSink`, on a cluster
with a standby. A slot, a TaskManager, the JobManager, the head that leads, the store's server, or the server and one of
these are killed with signal 9 (`deaths`): at a random moment, between a checkpoint and its commit, or right behind a
commit; the server is started again a moment later.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deaths import Deaths, Server, aimed
from failover import leader_pid, num_heads
from kill_soak import expected_windows, make_row

from headrace import DataStream, JobClient, StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.actors.ray.connection import open_ray
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.engine.errors import ClusterUnavailableError, StorageError
from headrace.engine.kernel.config import HighAvailabilitySettings

RATE = 2_000
"""Records a second."""

WINDOW_MS = 200
SECONDS_PER_FAULT = 12.0
LEASE_MS = 20_000
PATIENCE_S = 300.0
"""How long nobody may lead, on a machine with much to do."""

VICTIMS = ("slot", "slot", "TaskManager", "JobManager", "head", "server", "server and slot", "server and JobManager")


def into_files(directory: Path) -> Callable[[StreamExecutionEnvironment, str, int], None]:
    """The job that writes counts into files of the place; its sink is `aimed`, in a directory of this machine."""

    def build(env: StreamExecutionEnvironment, place: str, num_records: int) -> None:
        counts(env, num_records).sink_to(aimed(FileSink.json_lines(f"{place}/out"), directory))

    return build


def counts(env: StreamExecutionEnvironment, num_records: int) -> DataStream:
    """Rows of windows that were counted: key, number of the window, count."""
    source = GeneratorSource(make_row, count=num_records, records_per_second=RATE)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
    return (
        env.from_source(source, strategy, "numbers")
        .map(lambda row: (row["key"], row["ts"] // WINDOW_MS, 1))
        .key_by(lambda row: row[0])
        .window(TumblingEventTimeWindows.of(WINDOW_MS))
        .reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
        .map(lambda row: {"key": row[0], "window": row[1], "n": row[2]})
    )


def _leader(settings: HighAvailabilitySettings) -> int | None:
    """The head that leads; None if there is none now."""
    try:
        return leader_pid(settings)
    except (AssertionError, StorageError):
        return None


def goes_on(client: JobClient) -> bool:
    """Whether the job goes on; returns behind its next complete checkpoint, so that it is not struck down for ever."""
    before = None
    while (view := patiently(client.view)).state not in ("FINISHED", "FAILED"):
        before = view.checkpoints_completed if before is None else before
        if view.checkpoints_completed != before:
            return True
        time.sleep(0.3)
    return False


def judge(lines: list[str], num_records: int) -> dict[str, int]:
    """What is wrong with what is public."""
    got: Counter[tuple[int, int]] = Counter()
    for row in map(json.loads, lines):
        got[(row["key"], row["window"])] += row["n"]
    expected = expected_windows(num_records)
    return {
        "lost": sum((expected - got).values()),
        "doubled": sum((got - expected).values()) + len(lines) - len(got),
    }


def patiently(ask: Callable[[], Any]) -> Any:
    """Ask the cluster, again while nobody leads it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except ClusterUnavailableError:
            if time.monotonic() > deadline:
                raise


def soak(
    faults: int,
    seed: int,
    server: Server | None,
    place: str,
    read: Callable[[], list[str]],
    state_backend: str,
    build: Callable[[StreamExecutionEnvironment, str, int], None],
    directory: Path | None = None,
    victims: Sequence[str] = VICTIMS,
    seconds_per_fault: float = SECONDS_PER_FAULT,
) -> dict[str, Any]:
    """Run the job with faults.

    Args:
        faults: How many.
        seed: Of the moments and victims.
        server: It runs; None if there is none.
        place: A URI of the store.
        read: Gives all lines of the files that are public, through a client that nobody here wrote.
        state_backend: Of the job.
        build: Makes the job.
        directory: In which its sink is `aimed`; None if it is not: nothing is asked to die at a commit then.
        victims: What is killed, one of them at a time, behind the next complete checkpoint.
        seconds_per_fault: So much input there is.
    """
    rng = random.Random(seed)
    num_records = int(RATE * seconds_per_fault * (faults + 1))
    open_ray("local", 8)
    settings = HighAvailabilitySettings(f"{place}/ha", f"soak-{uuid.uuid4().hex[:6]}", lease_ms=LEASE_MS)
    env = StreamExecutionEnvironment.get_execution_environment(
        "ray", detached=True, high_availability=settings, slot_request_timeout_ms=300_000
    )
    env.set_parallelism(2)
    env.set_state_backend(state_backend)
    env.enable_checkpointing(500, directory=f"{place}/checkpoints")
    build(env, place, num_records)
    deaths = Deaths(rng, server, directory, lambda: _leader(settings))
    client = env.execute_async("store soak")
    try:
        while deaths.number < faults and goes_on(client):
            time.sleep(rng.uniform(0.2, SECONDS_PER_FAULT / 2))
            if num_heads(env) < 2:
                continue  # a leader that cannot renew its lease ends, and so does the cluster if it has no other head
            deaths.strike(rng.choice(victims))
        patiently(functools.partial(client.result, timeout=900))
        view = patiently(client.view)
    finally:
        cluster = env._cluster
        assert cluster is not None
        cluster.shut_down()
    return {
        **deaths.figures(),
        "restarts": view.num_restarts,
        "checkpoints": view.checkpoints_completed,
        "records": num_records,
        **judge(lines := read(), num_records),
        "windows": len(lines),
    }


def run(name: str, campaign: Callable[[argparse.Namespace], dict[str, Any]], formats: Sequence[str] = ()) -> int:
    """The command line of a campaign, maybe with a choice of formats; gives its status."""
    parser = argparse.ArgumentParser(description=name)
    if formats:
        parser.add_argument("--format", choices=formats, default=formats[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state-backend", choices=("heap", "rocksdb"), default="heap")
    options = parser.parse_args()
    import ray

    try:
        figures = campaign(options)
    finally:
        ray.shutdown()
    for label, value in figures.items():
        print(f"{label}: {value}")
    is_bad = bool(figures["lost"] + figures["doubled"]) or figures["faults"] < options.faults
    print(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0
