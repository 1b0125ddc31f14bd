"""Completed checkpoints that are damaged, deleted or not to be seen: ``python tests/simulation/lost_checkpoints.py``.

Random programs into file sinks and into a transactional store, whose newest checkpoint is struck at some moment behind
its completion: its manifest or a file of it is deleted or gets other bytes, all manifests go, the folder goes; or only
for a while a listing does not show it, or the folder is away, as one that is not mounted. Then a process dies, so that
the job must go back to a checkpoint.

Judged is the output, end to end. A job that has FINISHED has the exact output, however it came about. Under the policy
of falling back it may come twice where the history says so, and nothing is lost. A job may have FAILED only if
something was really lost, with an error that says so, and then nothing has come twice. What was away for a moment only
must not fail a job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.programs import SHAPES, Program, freeze
from simulation.simulator import MAX_EVENTS, build_job, run_job, shut_down, with_settings
from simulation.transactions import PROVING, TRANSACTIONS
from simulation.turns import slots_compared

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.checkpoint import restore_choice
from headrace.engine.checkpoint.restore_choice import JobPast
from headrace.engine.errors import CheckpointCorruptError, CheckpointFallbackError, CheckpointLostError
from headrace.engine.kernel.config import ClusterSettings, DamagedCheckpointPolicy
from headrace.state.checkpoints.completions import Completions
from headrace.state.files.memory import MemoryFileSystem

SHAPES_OF_ALL = (*SHAPES, *TRANSACTIONS, *PROVING, *PROVING, *PROVING)
LASTING = (
    "manifest deleted",
    "manifest damaged",
    "file deleted",
    "file damaged",
    "manifests deleted",
    "folder deleted",
)
PASSING = ("not listed", "folder away")
MAX_AWAY_MS = 3_000.0


@dataclass
class LostOutcome:
    """What a run did, for statistics."""

    seed: int
    program: str
    state: str
    struck: Counter[str]
    restarts: int
    fell_back: bool
    proven: bool
    doubled: int


@dataclass
class Striker:
    """Waits for a checkpoint to be complete, strikes it, and kills somebody."""

    rng: random.Random
    name: str
    system: SimSystem
    store: MemoryFileSystem
    kinds: tuple[str, ...]
    struck: Counter[str] = field(default_factory=Counter)
    unlisted: str = ""

    def prepare(self) -> None:
        """Set the trap."""
        self.waits_for = self.rng.randint(1, 3)
        self.num_strikes = self.rng.choice((1, 1, 2))
        self.root = f"checkpoints/{self.name}/"
        listed = self.store.list_files
        self.store.list_files = lambda prefix: [entry for entry in listed(prefix) if entry[0] != self.unlisted]
        self.store.fault = self.meet

    def meet(self, operation: str, path: str) -> None:
        if operation != "create.done" or not path.startswith(f"{self.root}manifests/"):
            return
        self.waits_for -= 1
        if self.waits_for == 0 and self.num_strikes:
            self.num_strikes -= 1
            self.waits_for = self.rng.randint(1, 4)
            self.system.schedule(self.system.now_ms + self.rng.choice((0.0, 0.0, 0.5, 1.0, 3.0, 10.0)), self.strike)

    def strike(self) -> None:
        files = self.store.files
        manifests = [path for path in files if path.startswith(f"{self.root}manifests/")]
        if not manifests:
            return
        newest = max(manifests, key=lambda path: int(path.rpartition("-")[2].removesuffix(".json")))
        data = f"{self.root}chk-{newest.rpartition('-')[2].removesuffix('.json')}/"
        parts = sorted(path for path in files if path.startswith(data))
        kind = self.rng.choice(self.kinds)
        self.struck[kind] += 1
        away_ms = self.rng.uniform(50.0, MAX_AWAY_MS)
        if kind == "manifest deleted":
            del files[newest]
        elif kind == "manifest damaged":
            files[newest] = damaged(self.rng, files[newest])
        elif kind == "file deleted" and parts:
            del files[self.rng.choice(parts)]
        elif kind == "file damaged" and parts:
            path = self.rng.choice(parts)
            files[path] = damaged(self.rng, files[path])
        elif kind == "manifests deleted":
            for path in manifests:
                del files[path]
        elif kind == "folder deleted":
            self.take_folder()
        elif kind == "not listed":
            self.unlisted = newest
            self.system.schedule(self.system.now_ms + away_ms, self.list_all)
        elif kind == "folder away":
            taken = self.take_folder()
            self.system.schedule(self.system.now_ms + away_ms, lambda: files.update(taken))
        self.system.schedule(self.system.now_ms + self.rng.choice((0.0, 0.0, 1.0, 5.0)), self.kill)

    def take_folder(self) -> dict[str, bytes]:
        return {path: self.store.files.pop(path) for path in list(self.store.files) if path.startswith(self.root)}

    def list_all(self) -> None:
        self.unlisted = ""

    def kill(self) -> None:
        hosts = [host for host in self.system.hosts if host != "head"]
        leaders = [host for host in hosts if host.startswith("jm-")]
        victims = leaders if leaders and self.rng.random() < 0.4 else hosts
        if victims:
            self.system.kill_now(self.rng.choice(victims))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Other bytes."""
    if not data or rng.random() < 0.3:
        return data[: len(data) // 2] if len(data) > 1 else b"x" + data
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@slots_compared()
def run_lost_seed(
    seed: int,
    kinds: tuple[str, ...] | None = None,
    shapes: Sequence[Callable[..., Program]] = SHAPES_OF_ALL,
    *,
    story: bool = False,
) -> LostOutcome:
    """Run one seed and judge it.

    Args:
        seed: Decides everything.
        kinds: The strikes to draw from, instead of what the seed would draw.
        shapes: The kinds of programs to draw from.
        story: Print the last events of the run.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(f"lost-{seed}")
    name = f"lost-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, shapes)
    policy = rng.choice((DamagedCheckpointPolicy.FAIL, *DamagedCheckpointPolicy))
    checkpoints = replace(
        graph.settings.checkpoints,
        interval_ms=rng.choice((5, 15, 40)),
        num_retained=rng.choice((1, 2, 4)),
        damaged_checkpoints=policy,
    )
    graph = with_settings(graph, {"checkpoints": checkpoints})
    settings = ClusterSettings(slots_per_task_manager=rng.choice((0, 1, 2)))
    drawn = rng.choice((LASTING, LASTING, LASTING, PASSING))
    system = SimSystem(seed, FaultPlan(), max_events=MAX_EVENTS)
    store = MemoryFileSystem.named(name)
    striker = Striker(rng, name, system, store, drawn if kinds is None else kinds)
    striker.prepare()
    try:
        view = run_job(system, graph, settings, name)
        store.fault = None
        outcome = judge(seed, program, view, name, policy, striker.struck)
        shut_down(system)
        return outcome
    except BaseException:
        print(f"lost seed {seed}: {program.name}, {policy}, {dict(striker.struck)}")
        if story:
            print(system.story())
        raise
    finally:
        system.close()
        MemoryFileSystem.forget(name)


def judge(
    seed: int, program: Program, view: Any, name: str, policy: DamagedCheckpointPolicy, struck: Counter[str]
) -> LostOutcome:
    """Compare the output with the reference."""
    files = MemoryFileSystem.named(name).files
    visible = [path for path in files if path.startswith("out/") and "/." not in path]
    got = Counter(freeze(json.loads(line)) for path in visible for line in files[path].splitlines())
    lost, extra = program.expected - got, got - program.expected
    history = [text for _, text in view.history]
    notes = [text for text in history if text.startswith("falls back")]
    comes_twice = [text for text in notes if "output comes twice" in text]
    assert not comes_twice or policy is DamagedCheckpointPolicy.FALL_BACK_AT_LEAST_ONCE, f"seed {seed}: {comes_twice}"
    foreign = set(got) - set(program.expected)
    assert not foreign, f"seed {seed}: rows that nothing produces: {list(foreign)[:3]}"
    assert not extra or comes_twice, (
        f"seed {seed}: {view.state}, {sum(extra.values())} too many {list(extra)[:3]} {history}"
    )
    if view.state == "FINISHED":
        assert not lost, f"seed {seed}: lost {sum(lost.values())} {list(lost)[:3]}"
    else:
        known = (CheckpointLostError, CheckpointCorruptError, CheckpointFallbackError)
        assert isinstance(view.error, known), f"seed {seed}: {view.state}: {view.failure}"
        assert set(struck) & set(LASTING), f"seed {seed}: failed although nothing was lost: {view.failure}"
    return LostOutcome(
        seed,
        program.name,
        view.state,
        struck,
        view.num_restarts,
        bool(comes_twice),
        len(notes) > len(comes_twice) and view.state == "FINISHED",
        sum(extra.values()),
    )


@contextlib.contextmanager
def both(*patches: Any) -> Iterator[None]:
    """Several patches as one."""
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def all_is_forgotten() -> Any:
    """A planted bug: nobody remembers what was complete."""
    original = restore_choice.choose_checkpoint

    def choose(storage: Any, past: JobPast) -> Any:
        with mock.patch.object(Completions, "noted", return_value=[]):
            return original(storage, JobPast(0, False, past.damaged, past.given_up, past.may_pass_over))

    return both(
        mock.patch.object(checkpoint_io, "choose_checkpoint", choose),
        mock.patch.object(checkpoint_io, "check_folder"),
    )


def attempt(seed: int) -> LostOutcome | tuple[int, str]:
    """Run one seed; gives its outcome, or the seed with the failure's text."""
    try:
        return run_lost_seed(seed)
    except BaseException:
        return seed, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one only, and print its last events")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.seed is not None:
        print(run_lost_seed(options.seed, story=True))
        return 0
    started = time.monotonic()
    outcomes: list[LostOutcome] = []
    num_failed = 0
    with multiprocessing.Pool(options.processes) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for result in pool.imap_unordered(attempt, seeds, chunksize=10):
            if isinstance(result, LostOutcome):
                outcomes.append(result)
                continue
            num_failed += 1
            print(f"FAILED lost seed {result[0]}\n{result[1]}", flush=True)
    struck: Counter[str] = Counter()
    for outcome in outcomes:
        struck.update(outcome.struck)
    print(f"seeds run: {options.seeds}, wall time: {time.monotonic() - started:.0f} s")
    print(f"strikes: {', '.join(f'{kind} {struck[kind]}' for kind in (*LASTING, *PASSING))}")
    print(f"restarts: {sum(o.restarts for o in outcomes)}, states: {dict(Counter(o.state for o in outcomes))}")
    print(
        f"fell back by choice: {sum(o.fell_back for o in outcomes)}, after a proof: {sum(o.proven for o in outcomes)}"
    )
    print(f"rows that came twice where that was chosen: {sum(o.doubled for o in outcomes)}")
    print(f"{len(outcomes)} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
