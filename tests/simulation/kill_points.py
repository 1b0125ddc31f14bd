"""Kills at every protocol point: ``python tests/simulation/kill_points.py --all-pairs``.

The points are found, not listed: whatever the machines receive, send, do or have done for them, and what tasks and
sinks mark themselves, in a few hundred runs. A host is killed at each of them, then at each ordered pair of them (the
second kill comes later, in the same run, perhaps while the first is being recovered from), and every run is judged
like any other: nothing lost, doubled, misordered or left behind. A point that a run has not passed is tried again
with another seed and occurrence; what is never struck there is tried in a cluster of several heads, where heads may
die, too. What was not struck there either is printed by name, not passed over.

The short form kills at all points singly and at a sample of the pairs. All pairs take hours: ``--part 2/8`` takes the
second of eight parts, each of them a fair sample.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.heads import run_heads_seed
from simulation.simulator import draw_faults, run_seed

from headrace.actors.sim_system import FaultPlan

Points = tuple[str, ...]
"""One point, or an ordered pair."""

MAX_TRIES = 40
DISCOVERY_SEEDS = 200

OCCURRENCES = (1, 1, 2, 3, 5, 8, 13, 30)
"""At which passing of a point the kill strikes; later ones are tried less often."""


def discover(seeds: Iterable[int]) -> Counter[str]:
    """All points that were passed, and how often."""
    points: Counter[str] = Counter()
    for seed in seeds:
        points.update(run_seed(seed).points)
    return points


def kill_at(points: Points, *, has_heads: bool = False) -> tuple[Points, bool, str]:
    """Kill at a point or at a pair of points.

    Args:
        points: Where.
        has_heads: In a cluster of several heads, all of which may die.

    Returns:
        The points; whether they were all struck in one run; and the failure's text, empty if none.
    """
    for index in range(MAX_TRIES):
        rng = random.Random(f"{points}-{index}")
        plan = tuple((point, rng.choice(OCCURRENCES)) for point in points)
        # What only happens after some other failure needs one: every second try has other faults beside the kill.
        faults = replace(draw_faults(rng) if index % 2 else FaultPlan(stray_work=0.5), kills_at=plan)
        seed = rng.randrange(1_000_000)
        try:
            if has_heads:
                struck = run_heads_seed(seed, faults=replace(faults, immortal=())).killed_at
            else:
                struck = run_seed(seed, faults=faults).killed_at
        except BaseException:
            return points, False, f"seed {seed}, {'several heads, ' * has_heads}{faults}\n{traceback.format_exc()}"
        if len(set(struck)) == len(set(points)):
            return points, True, ""
    return points, False, ""


def campaign(combinations: list[Points], processes: int, *, has_heads: bool = False) -> tuple[list[Points], list[str]]:
    """Kill at all of them; gives those never struck, and the failures."""
    never: list[Points] = []
    failures: list[str] = []
    work = functools.partial(kill_at, has_heads=has_heads)
    with multiprocessing.Pool(processes) as pool:
        for points, is_struck, failure in pool.imap_unordered(work, combinations, chunksize=4):
            if failure:
                failures.append(f"{' then '.join(points)}: {failure}")
                print(f"FAILED {failures[-1]}", flush=True)
            elif not is_struck:
                never.append(points)
    return never, failures


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
    points = sorted(discover(range(DISCOVERY_SEEDS)))
    singles: list[Points] = [(point,) for point in points]
    unstruck, failures = campaign(singles, options.processes)
    never, more_failures = campaign(unstruck, options.processes, has_heads=True)
    failures += more_failures
    print(f"protocol points: {len(points)}, killed at singly: {len(points) - len(never)}")
    print(f"of these with several heads: {len(unstruck) - len(never)}")
    print(f"never struck: {', '.join(point for (point,) in sorted(never)) or 'none'}", flush=True)
    of_heads = {point for (point,) in unstruck}
    pairs: list[Points] = list(itertools.permutations([point for point in points if (point,) not in never], 2))
    random.Random(1).shuffle(pairs)
    part, num_parts = options.part
    pairs = pairs[part - 1 :: num_parts] if options.all_pairs else pairs[: options.pairs]
    num_both = len(pairs)
    for has_heads in (False, True):
        some = [pair for pair in pairs if of_heads.isdisjoint(pair) != has_heads]
        missed, more_failures = campaign(some, options.processes, has_heads=has_heads)
        failures += more_failures
        num_both -= len(missed) + len(more_failures)
    print(f"ordered pairs: {len(pairs)}, both struck in one run: {num_both}")
    print(f"wall time: {time.monotonic() - started:.0f} s")
    num_failed = len(failures)
    print(f"{len(singles) + len(pairs) - num_failed} passed, {num_failed} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
