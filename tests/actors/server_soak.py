"""The frame of soaks with a server: numbers through windows, while processes and the server die, counted at the end.

A producer of its own writes numbers to a server, a job counts them in windows by event time and writes the counts
back, exactly once. No sooner than a checkpoint is complete since the last death, a slot, a TaskManager, the JobManager,
the server, or the server and one of these are killed with signal 9 (`deaths`): at a random moment, between a checkpoint
and its commit, or right behind a commit; the server is started again a moment later. At the end a client that is not
ours reads the counts: every window must be there once, with its exact count, and those of a key in order.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timezone
from pathlib import Path
from typing import Any

from deaths import Deaths, Server, aimed

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, count

NUM_KEYS = 40
WINDOW_MS = 500
RATE = 2_000
"""Records a second, unless a soak says otherwise."""

SECONDS_PER_FAULT = 15.0
"""So much input there is for each; on a busy machine a death takes longer, and the command line may say more."""

VICTIMS = ("slot", "slot", "TaskManager", "JobManager", "server", "server and slot", "server and JobManager")
NUMBERS = {"key": "int64", "ts": "int64"}
COUNTS = {"key": "int64", "window": "int64", "n": "int64"}
END = {"key": -1, "ts": 1 << 40}
"""A record behind all others, which lets event time come to their end. Its own window is never full."""

FINISH_TIMEOUT_S = 300


def make_row(index: int, rate: int = RATE) -> dict[str, int]:
    """The record of a number; event time goes at the rate."""
    return {"key": index * 7 % NUM_KEYS, "ts": index * 1_000 // rate}


def num_records_of(options: argparse.Namespace, rate: int = RATE) -> int:
    """How many records there are for the faults that a command line wants."""
    return int(rate * options.seconds_per_fault * (options.faults + 1))


def expected_counts(num_records: int, rate: int = RATE) -> Counter[tuple[int, int]]:
    rows = (make_row(index, rate) for index in range(num_records))
    return Counter((row["key"], row["ts"] // WINDOW_MS) for row in rows)


def window_of(row: dict[str, Any]) -> int:
    """The number of a window that begins at a time."""
    start = row["window_start"].replace(tzinfo=timezone.utc)
    return round(start.timestamp() * 1_000) // WINDOW_MS


def count_in_windows(stream: Any, sink: Any, directory: Path | None) -> None:
    """Count numbers by key and window, and write the counts, those of a key by one subtask.

    Args:
        stream: Of numbers.
        sink: Of counts.
        directory: In which the sink is `aimed`; None if it has no commits.
    """
    (
        stream.key_by("key")
        .window(TumblingEventTimeWindows.of(WINDOW_MS))
        .aggregate(n=count())
        .map(lambda row: {"key": row["key"], "window": window_of(row), "n": row["n"]})
        .key_by("key")
        .sink_to(sink if directory is None else aimed(sink, directory))
    )


class Producer(threading.Thread):
    """Writes numbers at their rate, some at a time, through restarts of the server.

    Args:
        write: Writes the records of numbers, from a first one to before a last one; what it raises is tried again, and
            must not double anything.
        num_records: How many.
        rate: Records a second.
    """

    def __init__(self, write: Callable[[int, int], None], num_records: int, rate: int = RATE) -> None:
        super().__init__(daemon=True)
        self._write, self._num_records, self._rate = write, num_records, rate
        self.num_retries = 0

    def run(self) -> None:
        started, step = time.monotonic(), max(1, self._rate // 10)
        for first in range(0, self._num_records, step):
            last = min(first + step, self._num_records)
            while True:
                try:
                    self._write(first, last)
                    break
                except Exception:
                    self.num_retries += 1
                    time.sleep(0.2)
            time.sleep(max(0.0, started + last / self._rate - time.monotonic()))


def judge(lines: Iterable[str], expected: Counter[tuple[int, int]]) -> dict[str, int]:
    """What is wrong with the counts that are there."""
    got: Counter[tuple[int, int]] = Counter()
    rows: Counter[tuple[int, int]] = Counter()
    last: dict[int, int] = {}
    num_misordered = 0
    for row in map(json.loads, lines):
        place = row["key"], row["window"]
        got[place] += row["n"]
        rows[place] += 1
        num_misordered += row["window"] <= last.get(row["key"], -1)
        last[row["key"]] = row["window"]
    return {
        "windows": rows.total(),
        "lost": (expected - got).total(),
        "doubled": (got - expected).total() + rows.total() - len(rows),
        "out of order": num_misordered,
    }


def lines_in(folder: Path) -> list[str]:
    """The counts in files, those of a key by window: files have no order among them."""
    found = [line for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    return sorted(found, key=lambda line: json.loads(line)["window"])


def finish_when(num_there: Callable[[], int], num_wanted: int, directory: Path) -> Callable[[Any], None]:
    """Have a job without end stop once all is there, some checkpoints later: what is doubled may come behind.

    However busy the machine is, the job goes on: it has failed once nothing more has come for `FINISH_TIMEOUT_S`.
    """

    def finish(client: Any) -> None:
        num, deadline = -1, 0.0
        while (now := num_there()) < num_wanted:
            if now > num:
                num, deadline = now, time.monotonic() + FINISH_TIMEOUT_S
            assert time.monotonic() < deadline, f"{now} of {num_wanted} windows came"
            assert client.view().state not in ("FINISHED", "FAILED"), client.view().failures
            time.sleep(0.5)
        enough = client.view().checkpoints_completed + 5
        while client.view().checkpoints_completed < enough:
            time.sleep(0.2)
        client.stop_with_savepoint(str(directory / "savepoint"))

    return finish


def run_job(
    server: Server,
    producer: Any,
    build: Callable[[StreamExecutionEnvironment], None],
    finish: Callable[[Any], None],
    options: argparse.Namespace,
    directory: Path,
    *,
    commits: bool = True,
    server_at_commits: bool = True,
) -> dict[str, Any]:
    """Run the job on Ray while things die; gives what happened.

    Args:
        server: Dies, too.
        producer: Is started with the job, and ends before it.
        build: Makes the job.
        finish: Waits for the job's end.
        options: Of the command line.
        directory: For all that is kept.
        commits: Whether the job's sink is `aimed`, so that things die at its commits, too.
        server_at_commits: As of `Deaths`.
    """
    rng = random.Random(options.seed)
    deaths = Deaths(rng, server, directory if commits else None, server_at_commits=server_at_commits)
    num_completed = 0
    with StreamExecutionEnvironment.get_execution_environment(
        actor_system="ray", slot_request_timeout_ms=300_000
    ) as env:
        env.set_parallelism(2)
        env.set_state_backend(options.state_backend)
        env.enable_checkpointing(500, directory=str(directory / "checkpoints"))
        build(env)
        client = env.execute_async("soak")
        _end_when_told()  # again: Ray, which has begun by now, would abort
        producer.start()
        while deaths.number < options.faults and client.view().state not in ("FINISHED", "FAILED"):
            completed = client.view().checkpoints_completed
            num_completed = min(num_completed, completed)  # a new JobManager counts anew
            if completed == num_completed:
                time.sleep(0.2)  # deaths of a job that does not run show nothing
                continue
            time.sleep(rng.uniform(0.0, SECONDS_PER_FAULT / 4))
            num_completed = completed
            deaths.strike(rng.choice(VICTIMS))
        producer.join()
        finish(client)
        view = client.view()
    return {
        **deaths.figures(),
        "restarts": view.num_restarts,
        "checkpoints": view.checkpoints_completed,
    }


def soak_messages(
    server: Server,
    write: Callable[[int, int], None],
    build: Callable[[StreamExecutionEnvironment], tuple[Any, Any]],
    lines: Callable[[], Iterable[str]],
    num_there: Callable[[], int],
    options: argparse.Namespace,
    directory: Path,
    rate: int = RATE,
    *,
    commits: bool = True,
) -> dict[str, Any]:
    """Count numbers that a server gives, while things die; gives figures.

    Args:
        server: Dies, too; it is started, and killed at the end.
        write: As of `Producer`; behind the last number it writes `END` into each place.
        build: Makes the stream of numbers, and the sink of counts.
        lines: Gives the counts at the end, as `judge` takes them; the server is there.
        num_there: How many of them there are now.
        options: Of the command line.
        directory: For all that is kept.
        rate: Records a second.
        commits: As of `run_job`.
    """
    num_records = num_records_of(options, rate)
    expected = expected_counts(num_records, rate)
    producer = Producer(write, num_records, rate)

    def build_job(env: StreamExecutionEnvironment) -> None:
        count_in_windows(*build(env), directory if commits else None)

    finish = finish_when(num_there, len(expected), directory)
    try:
        figures = run_job(server, producer, build_job, finish, options, directory, commits=commits)
        judged = judge(lines(), expected)
    finally:
        server.kill()
    return {**figures, "records": num_records, "retries of the producer": producer.num_retries, **judged}


def _end_when_told() -> None:
    """Have a signal to end raise as an error does, so that servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))


def main(
    description: str | None,
    soak: Callable[[argparse.Namespace, Path], dict[str, Any]],
    wrong: Iterable[str] = (),
    choices: Mapping[str, tuple[str, ...]] = {},
) -> int:
    """Run a soak as its command line says, and print its figures.

    Args:
        description: For ``--help``.
        soak: Gives figures, of which those of `judge` must be 0.
        wrong: More figures that must be 0.
        choices: More options and their values, the default first.
    """
    parser = argparse.ArgumentParser(description=description)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seconds-per-fault", type=float, default=SECONDS_PER_FAULT, help="so much input there is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state-backend", choices=("heap", "rocksdb"), default="heap")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headrace-soak-", dir="/tmp"))
    directory.chmod(0o755)  # some servers run as somebody else
    _end_when_told()
    try:
        figures = soak(options, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name}: {value}")
    num_wrong = sum(figures[name] for name in ("lost", "doubled", "out of order", *wrong))
    is_bad = bool(num_wrong) or figures["faults"] < options.faults
    print(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0
