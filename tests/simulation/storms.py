"""Storms that end: ``python tests/simulation/storms.py --seeds 1000``.

Nobody hears anybody for a while, or hardly, and then the network is well again.

A job may restart in a storm as often as its restart strategy allows; it has a short heartbeat timeout here, so it does.
Only a job of which nothing has ever run fails if its slots have not come within ``slot_request_timeout_ms``, because
waiting would hide a wrong set-up; so storms of that length begin later.

The judgement, beside what `simulator.judge` asks for, be the storm half a second or five minutes long: `CALM_AFTER_MS`
after it the job restarts no more, and every host hears at once what another one says. So nothing that the storm has
left behind, frames nobody had, slots nobody knows of, links nobody believes in, holds up or tears down what comes after
it.

Steps are slow in most runs, so that the job has still something to do then.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.simulator import Outcome, run_seed

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem

CALM_AFTER_MS = 10_000.0
"""Twice the longest silence between two retransmissions."""

MAX_BACKLOG = 20
"""Frames between two hosts that may be on their way in calm weather."""


def draw_storm(rng: random.Random) -> FaultPlan:
    """Draw a storm: a total loss or heavy weather, at the job's start or in the middle, and maybe deaths within it."""
    begins_ms = rng.choice((0.0, 100.0, 500.0, 1_500.0))
    plan: dict[str, Any] = {}
    if rng.random() < 0.7:
        lasts_ms = rng.choice((500.0, 5_000.0, 30_000.0, 150_000.0, 300_000.0))
        begins_ms = max(begins_ms, 500.0 if lasts_ms > 100_000 else 0.0)
        plan.update(loss=1.0)
    else:
        lasts_ms = rng.choice((1_000.0, 5_000.0, 20_000.0))
        plan.update(loss=rng.choice((0.2, 0.5)), duplication=0.1, reordering=0.3, held_up_ms=(20.0, 1_500.0))
    ends_ms = begins_ms + lasts_ms
    if rng.random() < 0.3:
        plan.update(random_kills=rng.randint(1, 2), fault_window_ms=(begins_ms, ends_ms))
    if rng.random() < 0.3:
        plan.update(late_kill=0.5, stray_work=0.5)
    if rng.random() < 0.8:
        slowness = 4 if lasts_ms > 100_000 else rng.choice((1, 1, 4))
        plan.update(step_us=(slowness * 10_000.0, slowness * 80_000.0))
    return FaultPlan(weather_ms=(begins_ms, ends_ms), **plan)


def run_storm_seed(seed: int, *, story: bool = False) -> Outcome:
    """Run one seed and judge it.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    faults = draw_storm(random.Random(f"storm-{seed}"))
    calm_ms = faults.weather_ms[1] + CALM_AFTER_MS

    def watch(system: SimSystem) -> None:
        system.schedule(calm_ms, lambda: check_backlog(seed, system))

    outcome = run_seed(seed, faults=faults, story=story, watch=watch)
    late = [at for at in outcome.restarted_at_ms if at > calm_ms]
    assert not late, f"seed {seed}: restarts at {late} ms, long after the storm of {faults.weather_ms} ms"
    return outcome


def check_backlog(seed: int, system: SimSystem) -> None:
    """What was sent in the storm must have arrived: what is sent now would wait behind it."""
    backlog, whose = system.longest_backlog()
    assert backlog <= MAX_BACKLOG, f"seed {seed}: long after the storm {whose} still keeps {backlog} frames"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    failed: list[int] = []
    for seed in range(options.first, options.first + options.seeds):
        try:
            outcomes.append(run_storm_seed(seed))
        except Exception:
            failed.append(seed)
            print(f"FAILED storm seed {seed}\n{traceback.format_exc()}", flush=True)
    print(f"virtual time: {sum(o.virtual_ms for o in outcomes) / 3_600_000:.1f} h")
    print(f"kills: {sum(o.kills for o in outcomes)}, restarts: {sum(o.restarts for o in outcomes)}")
    print(f"{len(outcomes)} passed, {len(failed)} failed {failed[:20]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
