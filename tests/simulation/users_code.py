"""Users' code that does what it should not: functions that give up with an exit, and ones that change their records.

What a function raises is the failure of its task, whatever class it has, and is told by its name; what it changes is
its own copy. Programs, data and judgement are those of `simulation.simulator`.

``python tests/simulation/users_code.py [SEED ...]`` runs seeds; without any, the planted bugs.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation import simulator
from simulation.planted import caught_by
from simulation.programs import Program, freeze
from simulation.simulator import Outcome, judge, run_seed

from headrace import KeyedProcessFunction, MapFunction, ValueStateDescriptor
from headrace.actors.sim.faults import FaultPlan
from headrace.connectors.files import FileSink
from headrace.engine.columns.records import Batch
from headrace.engine.functions import user_function as functions
from headrace.engine.task import chain


class OfOnesOwn(BaseException):
    """As libraries define them that must not be caught."""


EXITS: tuple[type[BaseException], ...] = (SystemExit, GeneratorExit, OfOnesOwn, StopIteration, RuntimeError)

_given_up: set[str] = set()
"""Runs in which the function has given up."""


class GivesUp(MapFunction):
    """Raises once, at one record."""

    def __init__(self, run: str, at: tuple[int, int], kind: type[BaseException]) -> None:
        self.run, self.at, self.kind = run, at, kind

    def map(self, value: Any) -> Any:
        if (value["split"], value["seq"]) == self.at and self.run not in _given_up:
            _given_up.add(self.run)
            message = "enough"
            raise self.kind(message)
        return value


class CountPerKey(KeyedProcessFunction):
    """Numbers the records of each key."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + 1)
        yield {"key": ctx.get_current_key(), "n": self.total.value()}


def gives_up(rng: random.Random, splits: list[list[Any]], source: Any) -> Program:
    """A function that raises in the middle of a batch, in front of state."""
    records = [row for rows in splits for row in rows]
    kind = rng.choice(EXITS)
    run = f"{rng.random()}"
    chosen = rng.choice(records) if records else {"split": -1, "seq": -1}

    def build(env: Any, path: str) -> None:
        function = GivesUp(run, (chosen["split"], chosen["seq"]), kind)
        counted = source(env).map(function).name("gives up").key_by(lambda row: row["key"]).process(CountPerKey())
        counted.sink_to(FileSink.json_lines(path))

    totals = Counter(row["key"] for row in records)
    expected = Counter(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    notes = {"fails": bool(records), "run": run, "kind": kind}
    return Program(f"gives_up/{kind.__name__}", build, expected, notes=notes)


def vandal(row: Any) -> Any:
    """Changes what it is handed."""
    row["value"] = -1
    row["key"] += "!"
    return row


def vandals(rng: random.Random, splits: list[list[Any]], source: Any) -> Program:
    """Honest readers beside a function that changes its records, in one chain or not."""
    first, apart = rng.random() < 0.5, rng.random() < 0.5

    def build(env: Any, path: str) -> None:
        numbers = source(env).map(lambda row: {"key": row["key"], "value": row["value"]})
        if first:
            changed, honest = numbers.map(vandal), numbers.map(dict)
        else:
            honest, changed = numbers.map(dict), numbers.map(vandal)
        counted = numbers.key_by(lambda row: row["key"]).process(CountPerKey()) if apart else numbers.map(dict)
        changed.union(honest, counted).sink_to(FileSink.json_lines(path))

    rows = [{"key": row["key"], "value": row["value"]} for split in splits for row in split]
    expected = Counter(map(freeze, rows)) + Counter(freeze({"key": row["key"] + "!", "value": -1}) for row in rows)
    if apart:
        totals = Counter(row["key"] for row in rows)
        expected += Counter(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    else:
        expected += Counter(map(freeze, rows))
    return Program(f"vandals/{first}/{apart}", build, expected)


USERS_CODE = (gives_up, vandals)


def run_users_seed(seed: int) -> Outcome:
    """Run one seed and judge it; half of them without any other fault.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    drawn: list[Program] = []
    _given_up.clear()

    def noting(shape: Callable[..., Program]) -> Callable[..., Program]:
        def draw(*arguments: Any) -> Program:
            drawn.append(shape(*arguments))
            return drawn[-1]

        return draw

    calm = random.Random(f"calm-{seed}").random() < 0.5
    views: list[Any] = []

    def judge_and_keep(seed: int, program: Program, view: Any, *others: Any, **options: Any) -> None:
        views.append(view)
        judge(seed, program, view, *others, **options)

    with mock.patch.object(simulator, "judge", judge_and_keep):
        outcome = run_seed(seed, shapes=tuple(map(noting, USERS_CODE)), faults=FaultPlan() if calm else None)
    [program], [view] = drawn, views
    if calm and program.notes.get("run") in _given_up:
        restarts = [text for _, text in view.history if text.startswith("restarts")]
        kind = program.notes["kind"].__name__
        assert len(restarts) == 1, f"seed {seed}: one failure, and {restarts}"
        assert f"raised {kind}: enough" in restarts[0], f"seed {seed}: the failure is not named: {restarts[0]}"
        assert "GivesUp" in restarts[0], f"seed {seed}: the function is not named: {restarts[0]}"
    return outcome


# ------------------------------------------------------------------------------------------------------------- mutants
USERS_MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(plant: Callable[[], Any]) -> Callable[[], Any]:
    """Register a planted bug: a context manager that plants it."""
    USERS_MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


@mutant
def only_exceptions_are_failures_of_functions() -> Iterator[None]:
    """The boundaries around users' code in a chain catch Exception, and not what else a function may raise."""

    def raise_unless_exception(error: BaseException) -> None:
        if not isinstance(error, Exception):
            raise error

    with (
        mock.patch.object(chain, "raise_from_outside", raise_unless_exception),
        mock.patch.object(functions, "raise_from_outside", raise_unless_exception),
    ):
        yield


@mutant
def branches_of_a_chain_share_their_records() -> Iterator[None]:
    """Where a chain fans out nothing says that a batch has several readers."""
    emit = chain.ChainOutput.emit

    def emit_unmarked(self: chain.ChainOutput, batch: Batch) -> None:
        was_shared = batch.is_shared
        with mock.patch.object(Batch, "shared", lambda marked: marked):
            emit(self, batch)
        assert batch.is_shared >= was_shared

    with mock.patch.object(chain.ChainOutput, "emit", emit_unmarked):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant; gives the seed that caught it and how."""
    with USERS_MUTANTS[name]():
        return caught_by(f"user: {name}", run_users_seed, max_seeds)


def main() -> int:
    survivors = 0
    for seed in map(int, sys.argv[1:]):
        print(run_users_seed(seed))
    for name in USERS_MUTANTS if len(sys.argv) == 1 else ():
        seed, how = is_caught(name, 200)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
