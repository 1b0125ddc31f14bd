"""Planted bugs: each must be caught by the simulator, or the simulator proves nothing.

``python tests/simulation/mutants.py``. Every mutant breaks one rule of the protocol in production code, in this
process only; then seeds are run until one fails. A mutant that survives all its seeds is a failure of the harness.
They are in modules by what they break: `simulation.checkpoint_mutants`, `simulation.unaligned_mutants` and
`simulation.loop_mutants`; those of regions and of heads are run apart.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.checkpoint_mutants import CHECKPOINT_MUTANTS
from simulation.loop_mutants import LOOP_MUTANTS
from simulation.loops import LOOPS, far_apart
from simulation.ordered_exchanges import dealt_by_hand, forwarded, rules_for_every_key
from simulation.planted import caught_by
from simulation.programs import SHAPES, sliding_count
from simulation.simulator import run_seed
from simulation.storms import run_storm_seed
from simulation.unaligned import RESCALED, run_cut_off_seed
from simulation.unaligned_mutants import UNALIGNED_MUTANTS

from headrace.actors.sim.faults import FaultPlan

MUTANTS = {**CHECKPOINT_MUTANTS, **UNALIGNED_MUTANTS, **LOOP_MUTANTS}
"""All of them by name."""


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant, of loops if it breaks those; gives the seed that caught it and how."""
    with MUTANTS[name]():
        return caught_by(name, lambda seed: run_for(name, seed), max_seeds)


STORMY = FaultPlan(
    loss=0.1, reordering=0.1, random_kills=4, fault_window_ms=(0.0, 1_000.0), orphan_ms=(1.0, 3_000.0), stray_work=0.5
)
"""Messages of attempts that are gone arrive late, while their slots live on."""


def run_for(name: str, seed: int) -> None:
    """Run one seed that can show a bug."""
    if name == "attempts_are_not_fenced":
        run_seed(seed, faults=STORMY)
    elif name.startswith("storm_"):
        run_storm_seed(seed)
    elif name.startswith("ordered_"):
        shown_by = {
            "ordered_forwards_are_overtaken": forwarded,
            "ordered_custom_partitioners_are_overtaken": dealt_by_hand,
        }
        run_cut_off_seed(seed, (shown_by.get(name, rules_for_every_key),))
    elif name.startswith("unaligned_"):
        run_cut_off_seed(seed, (sliding_count,) if name == "unaligned_windows_fire_again" else RESCALED)
    else:
        run_seed(seed, shapes=shapes_for(name))


def shapes_for(name: str) -> Any:
    """Which programs can show a bug."""
    if name in ("one_clean_round_only", "loop_does_not_set_the_future_aside"):
        return (far_apart,)
    return LOOPS if name.startswith("loop_") else (*SHAPES, *LOOPS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="seeds per mutant")
    parser.add_argument("--only", help="one mutant")
    options = parser.parse_args()
    survivors = 0
    names = [options.only] if options.only else list(MUTANTS)
    for name in names:
        seed, how = is_caught(name, options.seeds)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    print(f"{len(names) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
