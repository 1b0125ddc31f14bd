"""Soaks of sinks that write by key: counts by key, read all the time, none of which may go back.

Each number makes its window's count one greater, and each count is written (``tests/actors/server_soak.py`` says what
dies). While the job runs, counts are read again and again: none may go back, whatever is written again. At the end all
of them are read.

``--order column`` has each count written with itself as the order; ``--order sink`` leaves the order to the sink. Then
a count that is written again may be seen going back for a moment, as what is written last is what the job says last:
only the end is judged.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_soak import RATE, WINDOW_MS, expected_counts, judge, main, make_row, num_records_of, run_job

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.upserts import UpsertOptions

Counts = Callable[[], Iterable[tuple[Any, int]]]
"""Reads some counts: what each is of, and the count."""

WRITING = UpsertOptions(batch_interval="100 ms", patience="10 min")


@dataclass(frozen=True)
class Upserts:
    """What a soak is about.

    Attributes:
        sink: Takes rows of key, window and n, as ``row_of`` makes them.
        counts: Reads some of what is there.
        lines: Gives all of it at the end, as lines of JSON, those of a key in the order of windows.
        away: What these raise while the server is away.
        row_of: Makes what is written of a row.
    """

    sink: Any
    counts: Counts
    lines: Callable[[], Iterable[str]]
    away: tuple[type[Exception], ...]
    row_of: Callable[[dict[str, int]], Any] = lambda row: row


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


def soak_upserts(
    new_server: Callable[[Path], Any], upserts_of: Callable[[Any, str | None], Upserts], options: argparse.Namespace,
    directory: Path,
) -> dict[str, Any]:  # fmt: skip
    """Run the job while things die; gives figures.

    Args:
        new_server: Makes what dies, too.
        upserts_of: What the soak is about, by the server, which is started, and the column of the order, or None.
        options: Of the command line.
        directory: For all that is kept.
    """
    is_by_column = getattr(options, "order", "column") == "column"
    server = new_server(directory)
    server.start()
    upserts = upserts_of(server, "n" if is_by_column else None)
    watcher = Watcher(upserts.counts, upserts.away)
    num_records = num_records_of(options)

    def first_count(number: int) -> dict[str, int]:
        row = make_row(number)
        return {"key": row["key"], "window": row["ts"] // WINDOW_MS, "n": 1}

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = GeneratorSource(first_count, count=num_records, records_per_second=RATE)
        counts = env.from_source(numbers, None, "numbers").key_by("key", "window")
        counts = counts.reduce(lambda a, b: {**a, "n": a["n"] + b["n"]})
        counts.key_by("key", "window").map(upserts.row_of).sink_to(upserts.sink).name("counts")

    try:
        figures = run_job(server, watcher, build, lambda client: client.result(), options, directory, commits=False)
        watcher.end()
        judged = judge(upserts.lines(), expected_counts(num_records))
    finally:
        server.kill()
    back = {"went back": watcher.num_went_back}
    if not is_by_column:
        back = {"went back": 0, "written again": watcher.num_went_back}
    return {**figures, "records": num_records, "looks": watcher.num_looks, **back, **judged}


def run(
    description: str | None,
    new_server: Callable[[Path], Any],
    upserts_of: Callable[[Any, str | None], Upserts],
    orders: tuple[str, ...] = ("column", "sink"),
) -> int:
    """Run a soak as its command line says."""
    return main(
        description,
        lambda options, directory: soak_upserts(new_server, upserts_of, options, directory),
        wrong=("went back",),
        choices={"order": orders},
    )
