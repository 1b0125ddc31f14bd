"""What soaks of sinks that write by key have in common: counts by key, read all the time, none of which may go back.

Each number makes its window's count one greater, and each count is written (``tests/actors/server_soak.py`` says what
dies). While the job runs, counts are read again and again: none may go back, whatever is written again. At the end all
of them are read.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from server_soak import RATE, WINDOW_MS, expected_counts, judge, make_row, num_records_of, run_job

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource

Counts = Callable[[], Iterable[tuple[Any, int]]]
"""Reads some counts: what each is of, and the count."""


class Watcher(threading.Thread):
    """Reads some counts again and again, and notes those that go back.

    Args:
        counts: Reads them.
        away: What it raises while the server is away.
    """

    def __init__(self, counts: Counts, away: tuple[type[Exception], ...]) -> None:
        super().__init__(daemon=True)
        self._counts, self._away = counts, away
        self._is_over = threading.Event()
        self._seen: dict[Any, int] = {}
        self.num_looks = 0
        self.num_went_back = 0

    def run(self) -> None:
        while not self._is_over.wait(0.2):
            try:
                found = list(self._counts())
            except self._away:
                continue
            self.num_looks += 1
            for name, count in found:
                self.num_went_back += count < self._seen.get(name, 0)
                self._seen[name] = count

    def join(self, timeout: float | None = None) -> None:
        """The job ends by itself: nothing is waited for."""

    def end(self) -> None:
        """Have it end."""
        self._is_over.set()
        super().join()


def soak_sink(
    server: Any,
    sink: Any,
    watcher: Watcher,
    lines: Callable[[], Iterable[str]],
    options: argparse.Namespace,
    directory: Path,
) -> dict[str, Any]:
    """Run the job while things die; gives figures.

    Args:
        server: What dies, too; it is started, and killed at the end.
        sink: Takes rows of key, window and n by key and window.
        watcher: Reads the counts.
        lines: Gives all of them at the end, as lines of JSON, those of a key in the order of windows.
        options: Of the command line.
        directory: For checkpoints.
    """
    num_records = num_records_of(options.faults)

    def first_count(number: int) -> dict[str, int]:
        row = make_row(number)
        return {"key": row["key"], "window": row["ts"] // WINDOW_MS, "n": 1}

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = GeneratorSource(first_count, count=num_records, records_per_second=RATE)
        counts = env.from_source(numbers, None, "numbers").key_by("key", "window")
        counts = counts.reduce(lambda a, b: {**a, "n": a["n"] + b["n"]})
        counts.key_by("key", "window").sink_to(sink).name("counts")

    try:
        figures = run_job(server, watcher, build, lambda client: client.result(), options, directory)
        watcher.end()
        judged = judge(lines(), expected_counts(num_records))
    finally:
        server.kill()
    looks = {"records": num_records, "looks": watcher.num_looks, "went back": watcher.num_went_back}
    return {**figures, **looks, **judged}
