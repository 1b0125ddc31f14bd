"""Kills at every protocol point: ``python tests/simulation/kill_points.py --all-pairs``.

The points are found, not listed: whatever the machines receive, send, do or have done for them, and what tasks and
sinks mark themselves, in a few hundred runs under faults of all kinds, with one head that lives and with several that
may die. A host is killed at each of them, in runs that are known to pass it, then at each ordered pair of them (the
second kill comes later, in the same run, perhaps while the first is being recovered from), and every run is judged
like any other: nothing lost, doubled, misordered or left behind. Points and pairs that were not struck are counted, and
the points named, not passed over.

The short form kills at all points singly and at a sample of the pairs. All pairs take hours: ``--part 2/8`` takes the
second of eight parts, each of them a fair sample.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.heads import run_heads_seed
from simulation.simulator import draw_faults, run_seed

from headrace.actors.sim_system import FaultPlan

Points = tuple[str, ...]
"""One point, or an ordered pair."""

NUM_RUNS = {False: 400, True: 200}
"""How many runs are looked at for points: without and with several heads."""

TRIES_OF_SINGLES = 4
MAX_TRIES = 40
OCCURRENCES = (1, 1, 2, 3, 5, 8, 13, 30)
"""At which passing of a point the kill strikes; later ones are tried less often."""


@dataclass(frozen=True)
class Run:
    """A simulated run, to be done again with a kill in it.

    Attributes:
        has_heads: Whether it has several heads, all of which may die.
        seed: Decides everything.
    """

    has_heads: bool
    seed: int

    def faults(self) -> FaultPlan:
        """What else goes wrong; half of the runs have only work that a dead host leaves behind."""
        rng = random.Random(f"{self.has_heads} {self.seed}")
        faults = draw_faults(rng) if rng.random() < 0.5 else FaultPlan(stray_work=0.5)
        return replace(faults, immortal=()) if self.has_heads else faults

    def __call__(self, kills: Iterable[tuple[str, int]] = ()):
        """Run it, with kills at further points."""
        faults = self.faults()
        faults = replace(faults, kills_at=(*faults.kills_at, *kills))
        return run_heads_seed(self.seed, faults=faults) if self.has_heads else run_seed(self.seed, faults=faults)


def look(run: Run) -> tuple[Run, Counter[str], Counter[str]]:
    """The points that a run passes, over all hosts and over those that may die."""
    outcome = run()
    return run, outcome.points, outcome.mortal_points


class Known:
    """Which runs pass which points, how often.

    Attributes:
        points: All points, also those that only hosts pass that may not die.
        runs: By point: the runs in which a host may die there, and how often it is passed.
    """

    def __init__(self) -> None:
        self.points: set[str] = set()
        self.runs: dict[str, dict[Run, int]] = defaultdict(dict)

    def add(self, run: Run, points: Counter[str], mortal_points: Counter[str]) -> None:
        self.points.update(points)
        for point, count in mortal_points.items():
            self.runs[point][run] = count

    def passing(self, points: Points) -> list[Run]:
        """Runs that pass all of the points; else those that pass the first one. The quicker ones if there are some."""
        both = [run for run in self.runs[points[0]] if all(run in self.runs[point] for point in points)]
        found = both or list(self.runs[points[0]])
        return [run for run in found if not run.has_heads] or found


_known = Known()
"""What `discover` has found; processes that are made later have it, too."""


def discover(processes: int) -> None:
    """Look at many runs."""
    runs = [Run(has_heads, seed) for has_heads, count in NUM_RUNS.items() for seed in range(count)]
    with multiprocessing.Pool(processes) as pool:
        for run, points, mortal_points in pool.imap_unordered(look, runs, chunksize=4):
            _known.add(run, points, mortal_points)


def kill_at(points: Points) -> tuple[Points, bool, str]:
    """Kill at a point, some times, or at a pair of points, until both were struck in one run.

    Returns:
        The points; whether they were all struck in one run; and the failure's text, empty if none.
    """
    rng = random.Random(f"{points}")
    runs = _known.passing(points)
    is_struck = False
    for _ in range(TRIES_OF_SINGLES if len(points) == 1 else MAX_TRIES):
        run = rng.choice(runs)
        first = min(rng.choice(OCCURRENCES), _known.runs[points[0]][run])
        kills = [(points[0], first), *((point, rng.choice(OCCURRENCES)) for point in points[1:])]
        try:
            struck = run(kills).killed_at
            assert points[0] in struck, f"{points[0]} was passed {first} times before, and is not any more"
        except BaseException:
            return points, False, f"{run} {kills} {run.faults()}\n{traceback.format_exc()}"
        is_struck = set(points) <= set(struck)
        if is_struck and len(points) > 1:
            break
    return points, is_struck, ""


def campaign(combinations: list[Points], processes: int) -> tuple[int, list[str]]:
    """Kill at all of them; gives how many were struck, and the failures."""
    num_struck = 0
    failures: list[str] = []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for points, is_struck, failure in pool.imap_unordered(kill_at, combinations, chunksize=4):
            num_struck += is_struck
            if failure:
                failures.append(f"{' then '.join(points)}: {failure}")
                print(f"FAILED {failures[-1]}", flush=True)
    return num_struck, failures


def _part(text: str) -> tuple[int, int]:
    part, num_parts = map(int, text.split("/"))
    if not 1 <= part <= num_parts:
        raise ValueError
    return part, num_parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="how many ordered pairs, picked at random")
    parser.add_argument("--all-pairs", action="store_true", help="all ordered pairs")
    parser.add_argument("--part", type=_part, default=(1, 1), help="which part of all pairs, like 2/8")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    discover(options.processes)
    mortal = sorted(_known.runs)
    of_heads = [point for point in mortal if all(run.has_heads for run in _known.runs[point])]
    never = sorted(_known.points.difference(mortal))
    num_struck, failures = campaign([(point,) for point in mortal], options.processes)
    print(f"protocol points: {len(_known.points)}, killed at singly: {num_struck}")
    print(f"of these only with several heads: {len(of_heads)}")
    print(f"never struck: {', '.join(never) or 'none'}", flush=True)
    pairs: list[Points] = list(itertools.permutations(mortal, 2))
    random.Random(1).shuffle(pairs)
    part, num_parts = options.part
    pairs = pairs[part - 1 :: num_parts] if options.all_pairs else pairs[: options.pairs]
    num_struck, more_failures = campaign(pairs, options.processes)
    failures += more_failures
    print(f"ordered pairs: {len(pairs)}, both struck in one run: {num_struck}")
    print(f"wall time: {time.monotonic() - started:.0f} s")
    print(f"{len(mortal) + len(pairs) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
