"""Runs many seeds: ``python tests/simulation/campaign.py --seeds 100000``; ``--seed N --story`` replays one and
prints its last events.

Prints one line for each figure, and the named protocol points at which no run was killed. Ends with status 1 at the
first failing seed unless ``--keep-going``.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.batches import BATCHES, as_batch
from simulation.changelogs import CHANGELOGS
from simulation.column_windows import COLUMN_WINDOWS
from simulation.hybrids import HYBRIDS
from simulation.loops import LOOPS
from simulation.outside import OUTSIDE
from simulation.programs import SHAPES
from simulation.regions import REGIONS
from simulation.services import SERVED
from simulation.simulator import Outcome, run_seed
from simulation.tables import GLOBAL
from simulation.transactions import TRANSACTIONS
from simulation.two_streams import TWO_STREAMS
from simulation.users_code import USERS_CODE

KINDS = {
    "all": (*SHAPES, *LOOPS, *TWO_STREAMS, *REGIONS),
    "loops": LOOPS,
    "two-streams": TWO_STREAMS,
    "regions": REGIONS,
    "sinks": TRANSACTIONS,
    "tables": GLOBAL,
    "changelogs": CHANGELOGS,
    "services": SERVED,
    "batches": BATCHES,
    "sources": OUTSIDE,
    "hybrids": HYBRIDS,
    "users-code": USERS_CODE,
    "column-windows": COLUMN_WINDOWS,
}


MUTATES = {"batches": as_batch}
"""How the job graphs of a kind are made of those drawn."""


def attempt(seed: int, kind: str = "all") -> Outcome | tuple[int, str]:
    """Run one seed; gives its outcome, or the seed with the failure's text."""
    try:
        return run_seed(seed, shapes=KINDS[kind], mutate=MUTATES.get(kind))
    except BaseException:
        return seed, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--story", action="store_true", help="print the last events")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--kind", choices=sorted(KINDS), default="all", help="which programs to draw from")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.seed is not None:
        shapes = KINDS[options.kind]
        mutate = MUTATES.get(options.kind)
        first = run_seed(options.seed, story=options.story, shapes=shapes, mutate=mutate)
        second = run_seed(options.seed, shapes=shapes, mutate=mutate)
        assert first.digest == second.digest, "the seed does not replay exactly"
        print(first)
        return 0
    started = time.monotonic()
    outcomes: list[Outcome] = []
    failures: list[tuple[int, str]] = []
    with multiprocessing.Pool(options.processes) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for result in pool.imap_unordered(functools.partial(attempt, kind=options.kind), seeds, chunksize=10):
            if isinstance(result, Outcome):
                outcomes.append(result)
                continue
            failures.append(result)
            print(f"FAILED seed {result[0]}\n{result[1]}", flush=True)
            if not options.keep_going:
                pool.terminate()
                break
    took = time.monotonic() - started
    points: Counter[str] = Counter()
    for outcome in outcomes:
        points.update(outcome.points)
    print(f"seeds run: {len(outcomes) + len(failures)}, failed: {len(failures)} {[seed for seed, _ in failures][:20]}")
    print(f"wall time: {took:.1f} s ({1_000 * took / max(1, len(outcomes)):.0f} ms a seed)")
    print(f"virtual time: {sum(o.virtual_ms for o in outcomes) / 3_600_000:.1f} h")
    print(f"kills: {sum(o.kills for o in outcomes)}, restarts: {sum(o.restarts for o in outcomes)}")
    print(f"zombies (stopped, given up, awake again): {sum(o.freezes for o in outcomes)}")
    print(f"checkpoints completed: {sum(o.checkpoints for o in outcomes)}")
    print(f"events of the longest run: {max((o.events for o in outcomes), default=0)}")
    print(f"protocol points passed: {len(points)}")
    print(f"{len(outcomes)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
