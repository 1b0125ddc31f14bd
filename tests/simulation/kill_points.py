"""Kills at every protocol point: ``python tests/simulation/kill_points.py --all-pairs``.

The points are found, not listed: whatever the machines receive, send, do or have done for them, and what tasks and
sinks mark themselves, in a few hundred runs under faults of all kinds, with one head that lives, with several that may
die, and with processes that fall silent. A host is killed at each of them, in runs that are known to pass it, then at
each ordered pair of them (the second kill comes later, in the same run, perhaps while the first is being recovered
from), and every run is judged like any other: nothing lost, doubled, misordered or left behind. Points and pairs that
were not struck are counted, and the points named, not passed over.

The short form kills at all points singly and at a sample of the pairs. For all pairs, one run strikes many: see
`kill_pairs`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.kill_pairs import OCCURRENCES, Hunt, Known, Observer, Passing, Run

from headrace.actors.sim.system import HostKilled

NUM_RUNS = {"head": 400, "heads": 200, "silent": 40}
"""How many runs of a kind are looked at for points."""

TRIES = 4


def look(run: Run) -> tuple[Run, set[str], dict[str, Passing]]:
    """The points that a run passes, over all hosts and over those that may die."""
    observer = Observer()
    outcome = run(watch=observer.watch)
    return run, set(outcome.points), observer.passings


_known = Known()
"""What `discover` has found; processes that are made later have it, too."""


def discover(processes: int) -> None:
    """Look at many runs."""
    runs = [Run(kind, seed) for kind, count in NUM_RUNS.items() for seed in range(count)]
    with multiprocessing.Pool(processes) as pool:
        for run, points, passings in pool.imap_unordered(look, runs, chunksize=4):
            _known.add(run, points, passings)


def kill_at(point: str) -> tuple[str, bool, str]:
    """Kill at a point, some times.

    Returns:
        The point; whether it was struck; and the failure's text, empty if none.
    """
    rng = random.Random(point)
    is_struck = False
    for _ in range(TRIES):
        run = rng.choice(_known.passing(point))
        kill = (point, min(rng.choice(OCCURRENCES), _known.runs[point][run].count))
        try:
            struck = run([kill]).killed_at
            assert kill in struck, f"{point} was passed {kill[1]} times before, and is not any more"
        except (Exception, HostKilled):
            return point, False, f"{run} {kill} {run.faults()}\n{traceback.format_exc()}"
        is_struck = True
    return point, is_struck, ""


def kill_singly(points: list[str], processes: int) -> tuple[int, int]:
    """Kill at all points; gives how many were struck, and how many failed."""
    num_struck = num_failed = 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for point, is_struck, failure in pool.imap_unordered(kill_at, points, chunksize=4):
            num_struck += is_struck
            num_failed += bool(failure)
            if failure:
                print(f"FAILED {point}: {failure}", flush=True)
    return num_struck, num_failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="how many ordered pairs, picked at random; 0 for none")
    parser.add_argument("--all-pairs", action="store_true", help="all ordered pairs")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    discover(options.processes)
    mortal = sorted(_known.runs)
    of_heads = [point for point in mortal if all(run.has_heads for run in _known.runs[point])]
    never = sorted(_known.points.difference(mortal))
    num_struck, num_failed = kill_singly(mortal, options.processes)
    print(f"protocol points: {len(_known.points)}, killed at singly: {num_struck}")
    print(f"of these only with several heads: {len(of_heads)}")
    print(f"never struck: {', '.join(never) or 'none'}", flush=True)
    pairs = list(itertools.permutations(mortal, 2))
    if not options.all_pairs:
        pairs = random.Random(1).sample(pairs, min(options.pairs, len(pairs)))
    hunt = Hunt(_known, pairs)
    num_failed += hunt.run(options.processes)
    print(f"ordered pairs: {len(pairs)}, both struck in one run, next to each other: {hunt.num_struck}")
    print(f"wall time: {time.monotonic() - started:.0f} s")
    print(f"{len(mortal) + hunt.num_runs - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
