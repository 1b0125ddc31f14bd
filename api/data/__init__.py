"""Sample data that is installed with the package; where it comes from stands in README.md beside it.

May import: nothing of `headrace`. Start reading at `flights_path`.
"""

from __future__ import annotations

from importlib.resources import files

__all__ = ["flights_path"]


def flights_path() -> str:
    """Return path of the flights that left New York City in 2013 (328,521 rows, Parquet), in the order in which they
    left.

    Shape:
        ``origin``, ``carrier``, ``dest`` string; ``flight`` int32; ``scheduled`` timestamp[ms] (local time, the
        event time); ``dep_delay`` int32 (minutes, negative if early).
    """
    return str(files("headrace.data") / "flights.parquet")
