"""Functions of tests that fail for a while, and then no more."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from headrace import MapFunction

__all__ = ["FailsAtFirst", "some"]


def some(number: int, of: int) -> Collection[int]:
    """So many of the numbers below, the same ones in every run."""
    return random.Random(7).sample(range(of), number)


class FailsAtFirst(MapFunction):
    """Fails at some records, each time when it meets one first.

    Args:
        directory: Where marks are kept of what it has met: they outlive the processes of a job.
        failing: The numbers of these records.
        number_of: The number of a record.
    """

    def __init__(self, directory: Path, failing: Collection[int], number_of: Callable[[Any], int] = int) -> None:
        self._directory = directory
        self._failing = frozenset(failing)
        self._number_of = number_of

    def map(self, value: Any) -> Any:
        number = self._number_of(value)
        if number in self._failing and not (mark := self._directory / f"failed-{number}").exists():
            mark.touch()
            message = f"made to fail at {value}"
            raise OSError(message)
        return value
