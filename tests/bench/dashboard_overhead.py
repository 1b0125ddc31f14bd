"""What an open dashboard costs a running job, and what its being measured at all times costs.

    python tests/bench/dashboard_overhead.py [--phases 12] [--seconds 6] [--interval 3] [--looking-only]
        [--vertices 200 --parallelism 5] [--browser]

A keyed windowed count runs in this process, which also serves REST; with ``--vertices`` records pass that many more
operators on their way to it, each in a chain of its own. Its run is cut into phases of as much processor time of the
process; in turn it is left alone, looked at (another process asks what the graph of a job asks), or not measured (no
times of tasks and operators, no reports). Compared are the records that all tasks read, by processor time, in
neighbouring phases, so that it counts what looking and measuring cost, and not what else the machine does or did
before. For the same reason it is looked at once in ``--interval`` seconds of processor time (the page's own is 3 s): a
job that has a core for itself is asked no more often. With ``--browser`` it is the page itself that asks, open at the
job's graph in Chromium, and as often as it does so by itself: on a machine with other work that is more often than the
job's share deserves. Of the pairs the median is told, with the interval that holds the true one with 95 % confidence,
whatever the distribution: many short phases (``--phases 60 --seconds 3 --looking-only``) make it narrow.

Throughput of a large job differs from phase to phase by more than looking costs, because checkpoints fall into some of
them. So the processor time that looking takes is also counted where it is spent: in all threads but the one that runs
the job's machines, and in that one while it answers questions. Its share grows by what looking costs, however fast the
job is at the time. Python collects garbage in whatever thread makes the next object: with thousands of tasks in one
process that takes a tenth of a second at a time, which would be counted as looking by chance. So it is told apart, of
all threads together. What none of this can see, as threads that get into each other's way, the first figure shows.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

from headrace import RestSettings, StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.job.job_manager import JobManager
from headrace.engine.kernel.machine import Asked
from headrace.engine.task.slot import SlotMachine
from headrace.engine.task.task import Task

ASKING = """
import sys, urllib.request
url, token, job, _ = sys.argv[1:]
paths = ["/overview", "/jobs/overview", f"/jobs/{job}", f"/jobs/{job}/watermarks?makers=true"]
paths.append(f"/jobs/{job}/checkpoints")
for told in sys.stdin:
    for path in paths if told == "look\\n" else []:
        request = urllib.request.Request(url + path, headers={"Authorization": "Bearer " + token})
        assert urllib.request.urlopen(request).read()
    print("done", flush=True)
"""
BROWSING = """
import sys
from dashboard_kit import DESKTOP, Watched, browser
url, token, job, num_vertices = sys.argv[1:]
with browser() as chromium:
    watched = Watched(chromium.new_context(viewport=DESKTOP).new_page(), url)
    watched.sign_in(token)
    is_open = False
    for told in sys.stdin:
        if told == "look\\n" and not is_open:
            watched.page.goto(f"{url}/#/job/{job}/graph")
            watched.page.locator("[data-vertex]").nth(max(int(num_vertices), 2) - 1).wait_for(state="attached")
        elif told != "look\\n":
            watched.page.goto("about:blank")
        is_open = told == "look\\n"
        assert not watched.complaints, watched.complaints
        print("done", flush=True)
"""
"""Both are told to look, once or to go on with it, and to leave; in a process of their own."""

NUM_KEYS = 1_000
DRIVER = "headrace-local"
"""The thread that runs the machines of a local cluster."""
ALONE, LOOKED_AT, UNMEASURED = "left alone", "looked at", "not measured"


class Looker:
    """A process that asks what an open page asks, or has one open, when it is told to."""

    def __init__(self, program: str, url: str, token: str, job: str, num_vertices: int) -> None:
        arguments = [sys.executable, "-c", program, url, token, job, str(num_vertices)]
        tests = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": tests}
        )

    def look(self) -> None:
        self._tell("look")

    def leave(self) -> None:
        self._tell("leave")

    def _tell(self, what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", "who looks has given up"

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


@contextlib.contextmanager
def watched_job(options: argparse.Namespace) -> Iterator[tuple[list[Task], Looker]]:
    """A job without end that has been running for a while."""
    rest = RestSettings(bind_port="0")
    with (
        tempfile.TemporaryDirectory() as directory,
        StreamExecutionEnvironment.get_execution_environment(
            "local", parallelism=options.parallelism, rest=rest
        ) as env,
    ):
        env.enable_checkpointing(1_000, directory=directory)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n // 100)
        numbers = env.from_source(GeneratorSource(lambda n: n), strategy, "numbers")
        for _ in range(options.vertices):
            numbers = numbers.filter(lambda _n: True).start_new_chain()
        counted = numbers.map(lambda n: (n * 7919 % NUM_KEYS, 1)).key_by(lambda pair: pair[0])
        windows = counted.window(TumblingEventTimeWindows.of("10 s")).reduce(lambda a, b: (a[0], a[1] + b[1]))
        windows.filter(lambda _pair: False).print()
        client = env.execute_async("watched")
        (address,) = env._cluster.rest_addresses()
        job = client.get_job_id()
        program = BROWSING if options.browser else ASKING
        looker = Looker(program, address.url, address.tokens.read, job, options.vertices)
        try:
            while not (tasks := [one for one in gc.get_objects() if isinstance(one, Task)]) or num_read(tasks) == 0:
                time.sleep(0.5)
            run_for(2.0)
            yield tasks, looker
        finally:
            looker.close()
            client.cancel()


def run_for(seconds: float) -> None:
    """Wait until this process has had so much processor time."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        time.sleep(0.02)


def num_read(tasks: list[Task]) -> int:
    """Of all tasks together: sources alone read in bursts, and the longer what is behind them, the longer ones."""
    return sum(int(task.metrics._numbers()["records_in"]) for task in tasks)


class Account:
    """Counts processor time outside of the job: of other threads, and of answers to questions; and that of garbage."""

    def __init__(self) -> None:
        self._answering_s = 0.0
        # In all threads; and what of that is in one of the others, or in an answer.
        self.collecting_s = self._collecting_aside_s = 0.0
        self._is_answering = False
        self._began_s = 0.0
        for machine in (JobManager, Dispatcher):
            self._count_answers(machine)
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, _info: Any) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
            return
        took_s = time.thread_time() - self._began_s
        self.collecting_s += took_s
        if threading.current_thread().name != DRIVER or self._is_answering:
            self._collecting_aside_s += took_s

    def _count_answers(self, machine: Any) -> None:
        handle = machine.handle

        def counted(machine: Any, event: Any, now_ms: int) -> Any:
            if not isinstance(event, Asked):
                return handle(machine, event, now_ms)
            began_s, self._is_answering = time.thread_time(), True
            try:
                return handle(machine, event, now_ms)
            finally:
                self._is_answering = False
                self._answering_s += time.thread_time() - began_s

        machine.handle = counted

    def outside_s(self) -> float:
        (driver,) = (thread for thread in threading.enumerate() if thread.name == DRIVER)
        clock = time.pthread_getcpuclockid(driver.ident)  # type: ignore[arg-type]
        others_s = time.process_time() - time.clock_gettime(clock)
        return others_s + self._answering_s - self._collecting_aside_s


class Phase(NamedTuple):
    rate: float
    """Records by second of processor time."""
    outside: float
    """The share of processor time that was not the job's."""
    collecting: float
    """The share of processor time in which garbage was collected."""


def phase(tasks: list[Task], account: Account, seconds: float, looker: Looker | None, interval_s: float) -> Phase:
    began_s, before = time.process_time(), num_read(tasks)
    outside_s, collecting_s = account.outside_s(), account.collecting_s
    if looker is None:
        run_for(seconds)
    else:
        for _ in range(round(seconds / interval_s)):
            looker.look()
            run_for(interval_s)
        looker.leave()
    spent_s = time.process_time() - began_s
    return Phase(
        (num_read(tasks) - before) / spent_s,
        (account.outside_s() - outside_s) / spent_s,
        (account.collecting_s - collecting_s) / spent_s,
    )


@contextlib.contextmanager
def without_measuring(tasks: list[Task]) -> Iterator[None]:
    """Nobody reads a clock for the sake of numbers, and no numbers are reported."""
    run, clocks = SlotMachine._run, [task._time._clock_us for task in tasks]

    def plain_run(self: Any, task: Task, now_ms: int) -> None:
        self.doing = self._stepping = task.attempt
        with self._guarded(task):
            task.step(now_ms)
        self._stepping, self.doing = None, ""

    def nothing(_self: Any, *_: Any, **__: Any) -> None:
        pass

    SlotMachine._run = plain_run  # type: ignore[method-assign, assignment]
    for task in tasks:
        task._time._clock_us = int
        task.metrics.account = MethodType(nothing, task.metrics)  # type: ignore[method-assign]
        task.metrics.report = MethodType(nothing, task.metrics)  # type: ignore[method-assign]
    try:
        yield
    finally:
        SlotMachine._run = run  # type: ignore[method-assign]
        for task, clock_us in zip(tasks, clocks, strict=True):
            task._time._clock_us = clock_us
            del task.metrics.account, task.metrics.report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phases", type=int, default=12, help="of each kind")
    parser.add_argument("--seconds", type=float, default=6.0, help="of processor time, of each phase")
    parser.add_argument("--interval", type=float, default=3.0)
    parser.add_argument("--looking-only", action="store_true", help="leave out what being measured costs")
    parser.add_argument("--vertices", type=int, default=0, help="more than the job has of itself")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--browser", action="store_true", help="Chromium looks")
    options = parser.parse_args()
    print(f"phases of {options.seconds:g} s of processor time; load of the machine {os.getloadavg()[0]:.1f}")
    kinds = [ALONE, LOOKED_AT] if options.looking_only else [ALONE, LOOKED_AT, UNMEASURED]
    found: dict[str, list[Phase]] = {kind: [] for kind in kinds}
    account = Account()
    with watched_job(options) as (tasks, looker):
        for number in range(options.phases):
            for kind in (found, reversed(found))[number % 2]:
                with without_measuring(tasks) if kind == UNMEASURED else contextlib.nullcontext():
                    asked_by = looker if kind == LOOKED_AT else None
                    found[kind].append(phase(tasks, account, options.seconds, asked_by, options.interval))
    for kind, phases in found.items():
        rate, outside, collecting = (statistics.median(values) for values in zip(*phases, strict=True))
        print(
            f"{kind:12} {rate:10,.0f} records by second of processor time, {outside:.2%} of it outside of the job,"
            f" {collecting:.2%} for garbage"
        )
    say("a dashboard open", found[LOOKED_AT], found[ALONE])
    if UNMEASURED in found:
        say("measuring", found[ALONE], found[UNMEASURED])


def say(what: str, slower: list[Phase], faster: list[Phase]) -> None:
    """By how much throughput falls, and the share outside of the job grows."""
    pairs = list(zip(slower, faster, strict=True))
    print(f"{what}: throughput falls by {median_of([1 - one.rate / other.rate for one, other in pairs])}")
    print(f"{what}: takes {median_of([one.outside - other.outside for one, other in pairs])} of processor time")
    garbage = median_of([one.collecting - other.collecting for one, other in pairs])
    print(f"{what}: for garbage {garbage} of processor time more")


def median_of(values: list[float]) -> str:
    """The median over pairs of phases, and where the true one lies."""
    low, high = interval_of_median(sorted(values))
    return f"{statistics.median(values):.2%} ({len(values)} pairs; with 95 % confidence {low:.2%} to {high:.2%})"


def interval_of_median(ordered: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Where the median lies of what the values are a sample of; by their order alone. The whole range of a few values.

    Each value is below the true median with even odds, so how many are is binomial.
    """
    num, outside, first = len(ordered), 0.0, 0
    while first < num // 2:
        outside += 2 * math.comb(num, first) / 2**num
        if outside > 1 - confidence:
            break
        first += 1
    first = max(first - 1, 0)
    return ordered[first], ordered[-1 - first]


if __name__ == "__main__":
    main()
