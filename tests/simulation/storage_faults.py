"""A store that is slow, full or broken: ``python tests/simulation/storage_faults.py --seeds 2000``.

The programs, kills and weather of the other campaigns, over a store with weather of its own. In each of some windows
of virtual time it does one thing: refuses every write (a full disk), refuses everything (an outage), fails any
operation with some probability, or does what it was asked and then says that it failed (an answer that got lost);
and work on it takes up to seconds. The output must be exact all the same: a checkpoint that could not be written is
no checkpoint, one whose answer got lost may be one, and no failure of the store is taken for success.

The bad weather begins with the first snapshot: a job whose store fails before it ever ran is refused, by design.
"""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.simulator import Outcome, draw_faults, run_seed, with_settings

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.graph.job_graph import JobGraph
from headrace.state.errors import StorageError
from headrace.state.files.memory import MemoryFileSystem

KINDS = ("full", "outage", "flaky", "lost answers")
WRITES = ("write", "create")
PLACES = ("", "checkpoints/", "out/")


@dataclass(frozen=True)
class Window:
    """What the store does for a while: from and to in virtual milliseconds since the first write.

    ``place`` is what the paths concerned begin with: checkpoints and output are often in different stores.
    """

    start_ms: float
    end_ms: float
    kind: str
    probability: float
    place: str

    def strikes(self, operation: str, path: str, rng: random.Random) -> bool:
        """Whether this operation fails; ``.done`` is the moment after it took effect."""
        base, _, is_done = operation.partition(".")
        if not path.startswith(self.place):
            return False
        if self.kind == "full":
            return not is_done and base in WRITES
        if self.kind == "outage":
            return not is_done
        if self.kind == "lost answers":
            return bool(is_done) and rng.random() < self.probability
        return rng.random() < self.probability


def draw_windows(rng: random.Random) -> list[Window]:
    """One to four windows within the first seconds; all of them end."""
    windows = []
    for _ in range(rng.randint(1, 4)):
        start = rng.choice((0.0, rng.uniform(0, 300), rng.uniform(0, 1_500)))
        length = rng.choice((20.0, 200.0, 2_000.0))
        kind, probability, place = rng.choice(KINDS), rng.choice((0.02, 0.2, 0.6)), rng.choice(PLACES)
        windows.append(Window(start, start + length, kind, probability, place))
    return windows


def break_store(windows: list[Window], rng: random.Random, struck: Counter[str]) -> Callable[..., None]:
    """A `run_seed` preparation that gives the store its weather, and counts what it did."""

    def prepare(system: SimSystem, store: MemoryFileSystem) -> None:
        began_ms: list[float] = []

        def meet(operation: str, path: str) -> None:
            if not began_ms:
                if operation != "write":
                    return
                began_ms.append(system.now_ms)
            elapsed_ms = system.now_ms - began_ms[0]
            for window in windows:
                if window.start_ms <= elapsed_ms < window.end_ms and window.strikes(operation, path, rng):
                    struck[window.kind] += 1
                    message = f"the store fails ({window.kind})"
                    code = errno.ENOSPC if window.kind == "full" else errno.EIO
                    raise StorageError(message, operation=operation, path=path, errno=code)

        store.fault = meet

    return prepare


def run_storage_seed(seed: int) -> tuple[Outcome, Counter[str]]:
    """Run one seed and judge it.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(f"storage-{seed}")
    faults = replace(draw_faults(rng), offload_ms=(0.2, rng.choice((10.0, 300.0, 3_000.0))))
    struck: Counter[str] = Counter()
    outcome = run_seed(seed, faults=faults, prepare=break_store(draw_windows(rng), rng, struck))
    return outcome, struck


FULL_MS = 30_000.0
MOST_RESTARTS = 9
"""Within `FULL_MS`, when each pause is twice the one before, of which the first is 200 ms."""


def run_full_disk_seed(seed: int) -> Outcome:
    """A disk that is full for half a minute, under a job that has the default restart strategy and no other trouble.

    Raises:
        AssertionError: If the output is not exact, or the job was deployed again and again meanwhile.
    """
    rng = random.Random(f"full-{seed}")
    struck: Counter[str] = Counter()
    window = Window(0.0, FULL_MS, "full", 1.0, rng.choice(PLACES))

    def mutate(graph: JobGraph) -> JobGraph:
        checkpoints = replace(graph.settings.checkpoints, tolerable_failures=0)
        return with_settings(graph, {"restart": None, "checkpoints": checkpoints})

    outcome = run_seed(seed, mutate=mutate, faults=FaultPlan(), prepare=break_store([window], rng, struck))
    num_restarts = len(outcome.restarted_at_ms)
    assert num_restarts <= MOST_RESTARTS, f"seed {seed}: deployed again {num_restarts} times in {FULL_MS / 1_000:g} s"
    return outcome


def attempt(seed: int) -> tuple[Outcome, Counter[str]] | tuple[int, str]:
    """Run one seed; gives its outcome, or the seed with the failure's text."""
    try:
        return run_storage_seed(seed)
    except BaseException:
        return seed, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    struck: Counter[str] = Counter()
    outcomes: list[Outcome] = []
    num_failed = 0
    with multiprocessing.Pool(options.processes) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for first, second in pool.imap_unordered(attempt, seeds, chunksize=10):
            if isinstance(first, Outcome):
                outcomes.append(first)
                struck.update(second)
            else:
                num_failed += 1
                print(f"FAILED storage seed {first}\n{second}", flush=True)
    print(f"seeds run: {options.seeds}, wall time: {time.monotonic() - started:.0f} s")
    print(f"operations that failed: {', '.join(f'{kind} {struck[kind]}' for kind in KINDS)}")
    print(f"restarts: {sum(o.restarts for o in outcomes)}, kills: {sum(o.kills for o in outcomes)}")
    print(f"checkpoints completed: {sum(o.checkpoints for o in outcomes)}")
    print(f"{len(outcomes)} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
