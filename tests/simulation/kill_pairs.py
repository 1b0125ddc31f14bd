"""Kills at ordered pairs of protocol points: many pairs in one run, each kill next to the one before.

One run for each of forty thousand pairs would take hours. So a run strikes a chain of points: after a kill at p the
next one comes at a point q for which the pair (p, q) has not been struck yet, then one at r for (q, r), and so on. Only
neighbours of a chain count as pairs, for between others there was one more kill. At the beginning whatever is passed
next is new; for the pairs that are left a run aims: it is one that passes q after p when left alone, kills at p, and
waits until q is passed. Where no run is known that does (nothing comes after the last steps of a shutdown), the
recovery from the kill at p may still pass q: such pairs are aimed at, too, but less often.
"""

from __future__ import annotations

import multiprocessing
import random
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from simulation.frozen_starts import freeze_as_made, freeze_as_stopped
from simulation.heads import draw_sleep, run_heads_seed
from simulation.simulator import draw_faults, run_seed

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import HostKilled, SimSystem

Pair = tuple[str, str]

OCCURRENCES = (1, 1, 2, 3, 5, 8, 13, 30)
"""At which passing of a point the first kill strikes; later ones are tried less often."""

EAGERNESS = (1.0, 0.3, 0.1, 0.03)
"""Probabilities, one of which holds for a run, of a kill at a passed point that would strike a new pair."""

DETOUR = 0.01
"""Probability of a kill at a passed point that strikes no new pair but may begin one."""

MAX_KILLS = 8
"""In one run: it must come to its end."""

MAX_AIMS = {True: 8, False: 2}
"""How often a run aims at a pair before it counts as never struck: if some run passes it when left alone, and else."""

ROUND = 128
"""Runs between two looks at what has been struck."""


@dataclass(frozen=True)
class Run:
    """A simulated run, to be done again with kills in it.

    Attributes:
        kind: ``head`` for one head, which lives; ``heads`` for several, all of which may die; ``silent`` for the same
            with processes that are silent from their start, or once they are to stop.
        seed: Decides everything.
    """

    kind: str
    seed: int

    @property
    def has_heads(self) -> bool:
        return self.kind != "head"

    def faults(self) -> FaultPlan:
        """What else goes wrong; half of the runs have only work that a dead host leaves behind."""
        if self.kind == "silent":
            return FaultPlan(stray_work=0.5, immortal=())
        rng = random.Random(f"{self.has_heads} {self.seed}")
        faults = draw_faults(rng) if rng.random() < 0.5 else FaultPlan(stray_work=0.5)
        if self.has_heads and self.seed % 4 == 3:
            return draw_sleep(rng)
        return replace(faults, immortal=()) if self.has_heads else faults

    def __call__(self, kills: Iterable[tuple[str, int]] = (), watch: Callable[[SimSystem], None] | None = None) -> Any:
        """Run it, with kills at further points."""
        faults = self.faults()
        faults = replace(faults, kills_at=(*faults.kills_at, *kills))
        if self.kind == "silent":
            return run_heads_seed(self.seed, tail=False, faults=faults, watch=partial(self._silence, watch))
        run = run_heads_seed if self.has_heads else run_seed
        return run(self.seed, faults=faults, watch=watch)

    def _silence(self, watch: Callable[[SimSystem], None] | None, system: SimSystem) -> None:
        rng = random.Random(f"silent {self.seed}")
        freeze_as_made(system, {("tm", rng.randint(0, 1))})
        freeze_as_stopped(system, rng.randint(0, 1))
        if watch is not None:
            watch(system)


@dataclass(slots=True)
class Passing:
    """How a run that is left alone passes a point.

    Attributes:
        first: When for the first time, counted in points.
        last: When for the last time.
        count: How often.
    """

    first: int
    last: int
    count: int


class Observer:
    """Watches a run, and kills nobody.

    Attributes:
        passings: Of the points at which a host may die.
    """

    def __init__(self) -> None:
        self.passings: dict[str, Passing] = {}
        self._now = 0

    def watch(self, system: SimSystem) -> None:
        system.strikes = self._strikes

    def _strikes(self, point: str) -> bool:
        self._now += 1
        passing = self.passings.setdefault(point, Passing(self._now, self._now, 0))
        passing.last = self._now
        passing.count += 1
        return False


class Known:
    """Which runs pass which points, and how.

    Attributes:
        points: All points, also those that only hosts pass that may not die.
        runs: By point: the runs in which a host may die there.
    """

    def __init__(self) -> None:
        self.points: set[str] = set()
        self.runs: dict[str, dict[Run, Passing]] = defaultdict(dict)

    def add(self, run: Run, points: Iterable[str], passings: dict[str, Passing]) -> None:
        self.points.update(points)
        for point, passing in passings.items():
            self.runs[point][run] = passing

    def passing(self, point: str) -> list[Run]:
        """Runs that pass a point: the quicker ones if there are some."""
        return _quicker(list(self.runs[point]))

    def in_order(self, first: str, second: str) -> list[Run]:
        """Runs that pass the second point after the first one: the quicker ones if there are some."""
        there = self.runs[second]
        return _quicker(
            [run for run, passing in self.runs[first].items() if run in there and passing.first < there[run].last]
        )


def _quicker(runs: list[Run]) -> list[Run]:
    return [run for run in runs if not run.has_heads] or runs


@dataclass
class Chain:
    """One run that strikes pairs, as it is sent to a process.

    Attributes:
        run: The run.
        first: Where its first kill strikes, and at which passing.
        aim: Where the second one strikes, if not where it finds a new pair.
        wanted: The second points of the pairs that are wanted, by their first one.
        seed: Decides which points are struck.
    """

    run: Run
    first: tuple[str, int]
    aim: str | None
    wanted: dict[str, frozenset[str]]
    seed: int

    def __call__(self) -> tuple[list[tuple[str, int]], str]:
        """Run it; gives the kills in their order, and the failure's text, empty if none."""
        self._random = random.Random(self.seed)
        self._eagerness = self._random.choice(EAGERNESS)
        self._struck: set[Pair] = set()
        self._kills: list[tuple[str, int]] = []
        try:
            self.run([self.first], self._watch)
            assert self.first in self._kills, f"{self.first} was passed before, and is not any more"
        except (Exception, HostKilled):
            return self._kills, f"{self.run} {self.run.faults()}\n{traceback.format_exc()}"
        return self._kills, ""

    def _watch(self, system: SimSystem) -> None:
        self._kills = system.killed_at
        system.strikes = self._strikes

    def _strikes(self, point: str) -> bool:
        """Whether to kill at a point that is passed."""
        kills = self._kills
        if self.first not in kills or len(kills) >= MAX_KILLS:
            return False
        last = kills[-1][0]
        if self.aim is not None:
            is_hit = point == self.aim
            if is_hit:
                self.aim = None
            return is_hit and point in self.wanted.get(last, ())
        if point in self.wanted.get(last, ()) and (last, point) not in self._struck:
            is_struck = self._random.random() < self._eagerness
        else:
            is_struck = bool(self.wanted.get(point)) and self._random.random() < DETOUR * self._eagerness
        if is_struck:
            self._struck.add((last, point))
        return is_struck


class Hunt:
    """Strikes all of some pairs.

    Args:
        known: Which runs pass which points.
        pairs: The pairs.

    Attributes:
        num_struck: How many pairs were struck.
        num_runs: How many runs it took.
    """

    def __init__(self, known: Known, pairs: Iterable[Pair]) -> None:
        self.num_struck = self.num_runs = 0
        self._known = known
        self._rng = random.Random(1)
        self._wanted: dict[str, set[str]] = defaultdict(set)
        for first, second in pairs:
            self._wanted[first].add(second)
        self._aims: Counter[Pair] = Counter()
        self._given_up: set[Pair] = set()

    def run(self, processes: int) -> int:
        """Strike them; gives how many runs failed."""
        num_failed = 0
        told = time.monotonic()
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            while any(self._wanted.values()):
                for kills, failure in pool.imap_unordered(_go, self._next_round(), chunksize=8):
                    self.num_runs += 1
                    num_failed += bool(failure)
                    if failure:
                        print(f"FAILED {kills}: {failure}", flush=True)
                    self._add(kills)
                if time.monotonic() - told > 60:
                    told = time.monotonic()
                    left = sum(map(len, self._wanted.values()))
                    print(f"{self.num_struck} pairs struck in {self.num_runs} runs, {left} left", flush=True)
        return num_failed

    def _next_round(self) -> list[Chain]:
        """The next runs."""
        wanted = {first: frozenset(seconds) for first, seconds in self._wanted.items() if seconds}
        pairs = [(first, second) for first, seconds in wanted.items() for second in sorted(seconds)]
        chosen = self._rng.sample(pairs, min(ROUND, len(pairs)))
        return [self._chain(pair, wanted) for pair in chosen]

    def _chain(self, pair: Pair, wanted: dict[str, frozenset[str]]) -> Chain:
        first, second = pair
        ordered = self._known.in_order(first, second)
        run = self._rng.choice(ordered or self._known.passing(first))
        occurrence = min(self._rng.choice(OCCURRENCES), self._known.runs[first][run].count)
        aim = second if self._aims[pair] else None
        self._aims[pair] += 1
        if self._aims[pair] > MAX_AIMS[bool(ordered)]:
            self._wanted[first].remove(second)
            self._given_up.add(pair)
        return Chain(run, (first, occurrence), aim, wanted, self._rng.randrange(1 << 30))

    def _add(self, kills: list[tuple[str, int]]) -> None:
        """Count the pairs that were struck."""
        for (first, _), (second, _) in pairwise(kills):
            if second in self._wanted[first] or (first, second) in self._given_up:
                self._wanted[first].discard(second)
                self._given_up.discard((first, second))
                self.num_struck += 1


def _go(chain: Chain) -> tuple[list[tuple[str, int]], str]:
    return chain()
