"""Kinesis to files on Ray, while processes die: ``python tests/actors/kinesis_soak.py --faults 30``.

Numbers come from a stream whose shards are split and merged all the time, counts go into files, exactly once
(``tests/actors/server_soak.py`` says what dies). The server is a mock (``tests/kinesis_server.py``). It dies while
nothing is put or resharded, as the producer would not know whether that was done: so not by a committer, at a commit.
Needs Node.js, and npm once.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kinesis_server import KinesisServer, fetched_program
from server_soak import (
    END,
    NUMBERS,
    Producer,
    count_in_windows,
    expected_counts,
    finish_when,
    judge,
    lines_in,
    main,
    make_row,
    num_records_of,
    run_job,
)

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink
from headrace.connectors.kinesis import JsonMessages, KinesisSource

RATE = 500
FEWEST_SHARDS, MOST_SHARDS = 5, 8
"""Enough that no subtask is ever without: one would hold event time back."""

RECORDS_PER_RESHARDING = 2_000


class Resharded:
    """Puts numbers into a stream, whose shards change meanwhile."""

    def __init__(self, server: KinesisServer, stream: str, num_records: int, seed: int) -> None:
        self._server, self._stream, self._num_records = server, stream, num_records
        self._rng = random.Random(seed)
        self._next_resharding = RECORDS_PER_RESHARDING
        self.num_reshardings = 0

    def write(self, first: int, last: int) -> None:
        """Put the records of some numbers, in one request: all are there, or none."""
        rows = [make_row(index, RATE) for index in range(first, last)]
        # Over all shards, however narrow: one that nothing comes into holds event time back.
        self._server.put(self._stream, map(json.dumps, rows), keys=[str(index) for index in range(first, last)])
        if last == self._num_records:
            for place in range(len(self._server.open_shards(self._stream))):
                self._server.put(self._stream, [json.dumps(END)], place)
        elif last >= self._next_resharding:
            self._next_resharding += RECORDS_PER_RESHARDING
            self._reshard()

    def _reshard(self) -> None:
        num_open = len(self._server.open_shards(self._stream))
        merges = num_open >= MOST_SHARDS or (num_open > FEWEST_SHARDS and self._rng.random() < 0.5)
        try:
            if merges:
                self._server.merge(self._stream, self._rng.randrange(num_open - 1))
            else:
                self._server.split(self._stream, self._rng.randrange(num_open))
        except Exception:
            return  # the server is away: the next time
        self.num_reshardings += 1


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    node = shutil.which("node")
    assert node is not None, "there is no Node.js"
    (directory / "server").mkdir()
    server = KinesisServer(fetched_program(), node, directory / "server")
    num_records, out = num_records_of(options, RATE), directory / "out"
    expected = expected_counts(num_records, RATE)

    def build(env: StreamExecutionEnvironment) -> None:
        source = KinesisSource(
            resharded._stream, value=JsonMessages(NUMBERS), discovery_interval="2 s", **server.arguments()
        )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("500 ms").with_timestamp_assigner("ts")
        count_in_windows(env.from_source(source, strategy, "numbers"), FileSink.json_lines(out), directory)

    try:
        server.start()
        resharded = Resharded(server, server.new_stream(6), num_records, options.seed)
        producer = Producer(resharded.write, num_records, RATE)
        finish = finish_when(lambda: len(lines_in(out)), len(expected), directory)
        figures = run_job(server, producer, build, finish, options, directory, server_at_commits=False)
    finally:
        server.stop()
    figures |= {"records": num_records, "reshardings": resharded.num_reshardings, "retries": producer.num_retries}
    return {**figures, **judge(lines_in(out), expected)}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
