"""The search for a seed that catches a planted bug: the one that caught it last time first, then from 0 on.

``catching_seeds.json`` holds those seeds. It only saves time: a seed that no longer catches the bug, because the
engine or a program has changed since, is followed by the whole search. ``HEADRACE_RECORD_SEEDS=1 pytest -k "planted or
noticed" tests/simulation`` writes it anew, and looks for seeds that fail soon: some hang until their last event.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["Mutant", "caught_by", "patch", "planted_in"]

Mutant = Callable[[], Any]
"""Gives a context manager that plants a bug while it is entered."""

QUICK_S = 0.3
"""A seed that fails within so much time of the processor is good enough to be recorded."""

MAX_SLOW = 10
"""After so many that take longer the quickest of them is ..."""

SEARCH_S = 20.0
"""... and so it is when the search has taken so much time of the processor."""

SEEDS = Path(__file__).with_name("catching_seeds.json")


def planted_in(mutants: dict[str, Mutant]) -> Callable[[Callable[[], Iterator[Any]]], Mutant]:
    """Return a decorator that registers planted bugs by their names: generators that plant one, and yield."""

    def mutant(plant: Callable[[], Iterator[Any]]) -> Mutant:
        mutants[plant.__name__] = contextlib.contextmanager(plant)
        return plant

    return mutant


def patch(owner: Any, name: str, replacement: Any) -> Any:
    """Return a context manager that puts something else in the place of a part of production code."""
    return mock.patch.object(owner, name, replacement)


def caught_by(bug: str, run: Callable[[int], Any], max_seeds: int) -> tuple[int | None, str]:
    """Run seeds, with the bug planted by the caller, until one fails.

    Args:
        bug: The bug's name, unique among all.
        run: Runs a seed; raises if it notices something.
        max_seeds: How many seeds to try.

    Returns:
        The seed and how it failed; None if all have passed.
    """
    if "HEADRACE_RECORD_SEEDS" in os.environ:
        _record(bug, run, max_seeds)
    for seed in _candidates(bug, max_seeds):
        how = _failure(run, seed)
        if how is not None:
            return seed, how
    return None, ""


def _failure(run: Callable[[int], Any], seed: int) -> str | None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            run(seed)
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return None


def _candidates(bug: str, max_seeds: int) -> Iterator[int]:
    last = _recorded().get(bug)
    if last is not None:
        yield last
    yield from (seed for seed in range(max_seeds) if seed != last)


def _recorded() -> dict[str, int]:
    seeds: dict[str, int] = json.loads(SEEDS.read_text()) if SEEDS.exists() else {}
    return seeds


def _record(bug: str, run: Callable[[int], Any], max_seeds: int) -> None:
    """Write down the first seed that fails soon; else the one that fails soonest."""
    took: dict[int, float] = {}
    searched = time.process_time()
    for seed in _candidates(bug, max_seeds):
        began = time.process_time()
        if _failure(run, seed) is not None:
            took[seed] = time.process_time() - began
        if took and (
            min(took.values()) < QUICK_S or len(took) == MAX_SLOW or time.process_time() - searched > SEARCH_S
        ):
            break
    if took:
        seeds = {**_recorded(), bug: min(took, key=lambda seed: took[seed])}
        SEEDS.write_text(json.dumps(dict(sorted(seeds.items())), indent=1) + "\n")
