"""Where things of the repository are, and what the programs in it must give."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.demo import expected_windows

__all__ = ["NOTEBOOKS", "expected_delays"]

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def expected_delays() -> list[tuple[str, int, int]]:
    """Airport, flights and worst delay of every window of ``delays_per_airport``, sorted; without the engine."""
    return sorted((airport, flights, worst) for (airport, _), (flights, _, worst) in expected_windows().items())
