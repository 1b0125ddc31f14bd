"""A table of Hudi, followed, to files on Ray, while processes die: ``python tests/actors/hudi_soak.py --faults 30``.

Hudi itself commits numbers to a table every few seconds, counts go into files, exactly once
(``tests/actors/server_soak.py`` says what dies). What dies of Hudi is the Spark that writes, also in the middle of a
commit, which the next one rolls back. Needs what ``tests/hudi_server.py`` needs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hudi_server import HudiServer, new_server
from server_soak import END, lines_in, main, make_row, num_records_of, soak_messages

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink
from headrace.connectors.hudi import HudiSource

RATE = 100
PER_COMMIT = 400
COLUMNS = "n bigint, key bigint, ts bigint, day string"
KEPT = {
    "hoodie__clean__automatic": "false",
    "hoodie__archive__automatic": "false",
    "hoodie__parquet__small__file__limit": "0",
}
"""Commits stay, and each has a file of its own."""


class Commits:
    """Commits the numbers to a table, some at a time, each once."""

    def __init__(self, server: HudiServer, path: Path, num_records: int) -> None:
        self._server, self._path, self._num_records = server, path, num_records
        self._num_there = 0
        # Whether the last commit has been answered; else the table says what became of it.
        self._is_known = True

    def write(self, _first: int, last: int) -> None:
        """Commit what is to be committed of the numbers before one."""
        if last % PER_COMMIT and last < self._num_records:
            return
        if not self._is_known:
            self._num_there = len(self._server.read(self._path))
        numbers = range(self._num_there, last + (last == self._num_records))
        rows = [self._row(number) for number in numbers]
        if rows:
            self._is_known = False
            self._server.write(self._path, rows, COLUMNS, **KEPT)
            self._num_there += len(rows)
        self._is_known = True

    def _row(self, number: int) -> tuple[Any, ...]:
        row = END if number == self._num_records else make_row(number, RATE)
        return number, row["key"], row["ts"], "all"


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    (directory / "server").mkdir()
    server = new_server(directory / "server")
    server.start()
    table, out, num_records = directory / "numbers", directory / "out", num_records_of(options, RATE)
    commits = Commits(server, table, num_records)
    commits.write(0, PER_COMMIT)  # the table is there

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        source = HudiSource(table, columns=["key", "ts"], follow="500 ms")
        # Who waits for a file would hold event time back, also behind the last one.
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("20 s").with_timestamp_assigner("ts")
        strategy = strategy.with_idleness("10 s")
        return env.from_source(source, strategy, "numbers"), FileSink.json_lines(out)

    def lines() -> list[str]:
        return lines_in(out)

    return soak_messages(server, commits.write, build, lines, lambda: len(lines()), options, directory, RATE)


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
