"""Ports of NiFi on Ray, while processes die: ``python tests/actors/nifi_soak.py --faults 30``.

Numbers are pulled from an output port, counts go into an input port, at least once (``tests/actors/server_soak.py``
says what dies). The server is that of the tests (``tests/nifi_kit.py``), which is not killed, but away for a moment;
what a reader had open that has died is given again when its time is over. A count that comes again is the same, and
counted as written again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from nifi_kit import NiFi
from server_soak import COUNTS, END, NUMBERS, main, make_row, num_records_of, soak_messages

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.nifi import JsonMessages, NiFiSink, NiFiSource

RATE = 200


class GoesAway(NiFi):
    """A server that is no process."""

    pid = 0

    def kill(self) -> None:
        if not self.is_away:
            self.stop()


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = GoesAway(ttl_s=3)
    num_records = num_records_of(options, RATE)

    def write(first: int, last: int) -> None:
        rows = [make_row(index, RATE) for index in range(first, last)]
        server.fill(map(json.dumps, rows + [END] * (last == num_records)))

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        source = NiFiSource(server.url, "out", value=JsonMessages(NUMBERS), patience="5 min")
        # What is given again comes behind what came meanwhile, which a job that is behind takes as fast as it can.
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 min").with_timestamp_assigner("ts")
        sink = NiFiSink(server.url, "in", value=JsonMessages(COUNTS), patience="5 min")
        return env.from_source(source, strategy, "numbers"), sink

    def lines() -> list[str]:
        return list(dict.fromkeys(flow_file.content.decode() for flow_file in server.taken))

    figures = soak_messages(
        server, write, build, lines, lambda: len(lines()), options, directory, RATE, commits=False
    )  # fmt: skip
    return {**figures, "written again": len(server.taken) - len(lines())}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
