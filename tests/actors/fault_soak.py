"""Soak of all faults on Ray at random moments: ``python tests/actors/fault_soak.py --faults 500``.

A job with a keyed process function and event-time windows writes files and a table of a database, exactly once. At
random moments, whatever the job is doing, processes are killed or frozen for 5 to 40 s, savepoints are taken, the job
is stopped and started again, rescaled, and files of its checkpoints are damaged or deleted. A job that refuses to go
on behind a damaged or missing checkpoint is right: the damage is mended, and it is started again from its newest one.

At the end of each job both outputs are compared with a computation that knows only the input. Prints one line per
fault, and one per figure.

``--batch`` runs the same program in runtime mode BATCH, which nothing but kills and freezes can be done to: a batch
that meets one starts over, or commits the rest of its output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faults import BATCH_FAULTS, FAULTS, MAX_PARALLELISM, Scene
from kill_soak import Reader

from headrace import (
    ExternalizedCheckpointRetention,
    KeyedProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.connectors.sql import SqlSink
from headrace.stream.restart_strategies import RestartStrategies

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find this script

NUM_KEYS = 53
WINDOW_MS = 200
RATE = 2_000
MEAN_SECONDS_BETWEEN_FAULTS = 5.0
FAULTS_PER_JOB = 10
BATCH_SECONDS = 4.0
MEAN_SECONDS_BETWEEN_BATCH_FAULTS = 2.5
FAULTS_PER_BATCH = 4
PATIENCE_S = 300.0


def make_row(index: int) -> dict[str, int]:
    return {"key": index * 7 % NUM_KEYS, "ts": index // 2, "v": index}


class Numbered(KeyedProcessFunction):  # type: ignore[type-arg]
    """Gives each key's records their number."""

    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: dict[str, int], context: Any) -> Any:
        self._count.update(self._count.value() + 1)
        yield {"key": value["key"], "n": self._count.value()}


def build(env: StreamExecutionEnvironment, folder: Path, num_records: int, rate: int | None) -> None:
    # Three splits for any number of readers, whose order therefore differs from run to run ...
    numbers = GeneratorSource(make_row, count=num_records, records_per_second=rate, number_of_splits=3)
    numbered = env.from_source(numbers, None, "numbers").uid("numbers").key_by(lambda row: row["key"])
    numbered.process(Numbered()).uid("numbered").sink_to(FileSink.json_lines(str(folder / "out"))).uid("files")
    # ... and one in the order of time, so that no record is late.
    ticks = GeneratorSource(make_row, count=num_records, records_per_second=rate, number_of_splits=1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
    (
        env.from_source(ticks, strategy, "ticks")
        .uid("ticks")
        .map(lambda row: (row["key"], row["ts"] // WINDOW_MS, 1))
        .key_by(lambda row: row[0])
        .window(TumblingEventTimeWindows.of(WINDOW_MS))
        .reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
        .uid("windows")
        .map(lambda row: {"k": row[0], "w": row[1], "n": row[2]})
        .sink_to(SqlSink.exactly_once(f"sqlite:///{folder}/windows.db", "windows", sink_id="soak"))
        .uid("table")
    )


def judge(folder: Path, num_records: int) -> dict[str, int]:
    """What is wrong with both outputs."""
    indices = range(num_records)
    per_key = Counter(make_row(index)["key"] for index in indices)
    expected_files = Counter((key, n + 1) for key, count in per_key.items() for n in range(count))
    windows = Counter((row["key"], row["ts"] // WINDOW_MS) for row in map(make_row, indices))
    expected_table = Counter((key, window, count) for (key, window), count in windows.items())
    files = Counter(
        (row["key"], row["n"])
        for path in (folder / "out").glob("part-*")
        for row in map(json.loads, path.read_text().splitlines())
    )
    with contextlib.closing(sqlite3.connect(folder / "windows.db", timeout=60)) as connection:
        table = Counter(connection.execute("SELECT k, w, n FROM windows").fetchall())
    return {
        "records lost in files": sum((expected_files - files).values()),
        "records too many in files": sum((files - expected_files).values()),
        "rows lost in the table": sum((expected_table - table).values()),
        "rows too many in the table": sum((table - expected_table).values()),
    }


@dataclass(eq=False)
class Soak:
    """Job after job until enough faults were struck."""

    folder: Path
    rng: random.Random
    state_backend: str
    unaligned: bool
    is_batch: bool = False
    figures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def run(self, num_faults: int) -> None:
        with StreamExecutionEnvironment.get_execution_environment(actor_system="ray", max_slots=4) as env:
            env.set_state_backend(self.state_backend)
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1_000_000, 100))
            env.set_max_parallelism(128)
            if self.is_batch:
                env.set_runtime_mode(RuntimeExecutionMode.BATCH)
            number = 0
            while self.figures["faults"] < num_faults:
                number += 1
                left = num_faults - self.figures["faults"]
                per_job = FAULTS_PER_BATCH if self.is_batch else FAULTS_PER_JOB
                self._one_job(env, self.folder / f"job-{number}", min(left, per_job))

    def _one_job(self, env: StreamExecutionEnvironment, folder: Path, num_faults: int) -> None:
        """One program from its first record to its last, in as many runs as faults make of it."""
        folder.mkdir()
        with contextlib.closing(sqlite3.connect(folder / "windows.db")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE windows (k INTEGER, w INTEGER, n INTEGER)")
        reader = Reader(folder / "out")
        reader.start()
        num_records = int(RATE * (BATCH_SECONDS if self.is_batch else MEAN_SECONDS_BETWEEN_FAULTS * num_faults))
        until = self.figures["faults"] + num_faults
        start: str | None = None
        is_through = False
        try:
            while not is_through:
                is_through, start = self._one_run(env, folder, num_records, start, until)
                self.figures["runs"] += 1
        finally:
            reader.done.set()
            reader.join()
        reader.look()
        self.problems += reader.problems
        self.figures["jobs"] += 1
        self.figures["records"] += num_records
        wrong = judge(folder, num_records)
        self.figures.update(wrong)
        say(f"{folder.name} is complete: {wrong}")

    def _one_run(
        self, env: StreamExecutionEnvironment, folder: Path, num_records: int, start: str | None, until: int
    ) -> tuple[bool, str | None]:
        """Run until the job ends; gives whether the program is through, and where its next run starts from."""
        env.set_parallelism(MAX_PARALLELISM if self.is_batch else self.rng.randint(1, MAX_PARALLELISM))
        env.enable_checkpointing(300, directory=str(folder / "checkpoints"))
        config = env.get_checkpoint_config()
        config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
        config.set_max_retained_checkpoints(2)
        config.enable_unaligned_checkpoints(self.unaligned)
        build(env, folder, num_records, RATE if self.is_batch or self.figures["faults"] < until else None)
        client = env.execute_async(folder.name, from_savepoint=start)
        scene = Scene(client, folder / "checkpoints" / str(client.get_job_id()), folder / "savepoints", self.rng)
        try:
            view = self._strike_until_the_end(scene, until)
        finally:
            scene.wake_all()
        if scene.operation is not None:
            scene.operation.join()
        self.figures.update(outcome.split(":")[0].split(" to ")[0] + ": " + kind(outcome) for outcome in scene.outcomes)
        self.figures["restarts"] += view.num_restarts
        if view.state == "FINISHED":
            return view.savepoint_path is None, view.savepoint_path
        if "slots needed" in (view.failure or ""):
            # Its TaskManager was frozen before it could come up: a job that has never run is refused after 30 s.
            self.figures["runs without slots"] += 1
            say(f"     the job is {view.state}: {view.failure}")
            has_checkpoints = any(scene.checkpoints.glob("manifests/*.json"))
            return False, str(scene.checkpoints) if has_checkpoints else start
        return False, self._mended(scene, view)

    def _strike_until_the_end(self, scene: Scene, until: int) -> Any:
        """Strike at random moments; gives the last view."""
        due = time.monotonic() + self._pause()
        deadline = time.monotonic() + PATIENCE_S
        version = -1
        while True:
            view = scene.client.view()
            if view.state in ("FINISHED", "FAILED", "CANCELED"):
                return view
            now = time.monotonic()
            progress = view.checkpoints_completed + (self.figures["faults"] if self.is_batch else 0)
            if progress != version:
                version, deadline = progress, now + PATIENCE_S
            if now > deadline:
                message = f"no checkpoint for {PATIENCE_S:.0f} s: {view.state}, {view.failure}, {view.history[-5:]}"
                raise AssertionError(message)
            if self.is_batch and view.state != "RUNNING":  # a batch is soon through: no fault is wasted before it runs
                due = now + self._pause()
            if now >= due and self.figures["faults"] < until:
                faults = BATCH_FAULTS if self.is_batch else FAULTS
                [fault] = self.rng.choices(list(faults), list(faults.values()))
                self.figures["faults"] += 1
                self.figures[fault.__name__] += 1
                say(f"{self.figures['faults']:4} {view.state}, checkpoint {view.last_checkpoint}: {fault(scene)}")
                due = now + self._pause()
            time.sleep(0.02)

    def _pause(self) -> float:
        mean = MEAN_SECONDS_BETWEEN_BATCH_FAULTS if self.is_batch else MEAN_SECONDS_BETWEEN_FAULTS
        return self.rng.expovariate(1 / mean)

    def _mended(self, scene: Scene, view: Any) -> str:
        """The job has ended with a failure: right only behind damage, which is put back now."""
        say(f"     the job is {view.state}: {view.failure}")
        if not scene.damages:
            message = f"the job failed without damage: {view.failure}; {view.history[-5:]}"
            raise AssertionError(message)
        self.figures["refusals"] += 1
        if "checkpoint" not in (view.failure or ""):
            self.problems.append(f"a refusal that names no checkpoint: {view.failure}")
        scene.mend_all()
        return str(scene.checkpoints)


def kind(outcome: str) -> str:
    """``done``, or the class of the error."""
    text = outcome.split(": ", 1)[1]
    return text if text.endswith("Error") else "done"


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state-backend", choices=("heap", "rocksdb"), default="heap")
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--batch", action="store_true", help="in runtime mode BATCH")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        rng = random.Random(options.seed)
        soak = Soak(Path(directory), rng, options.state_backend, options.unaligned, is_batch=options.batch)
        soak.run(options.faults)
    for name, value in sorted(soak.figures.items()):
        say(f"{name}: {value}")
    say(f"seconds: {time.monotonic() - began:.0f}")
    for problem in soak.problems:
        say(problem)
    is_bad = bool(soak.problems) or any(
        soak.figures[name] for name in soak.figures if " lost " in name or " many " in name
    )
    say(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
