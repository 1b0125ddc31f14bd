"""WebSocket to WebSocket on Ray, while processes die: ``python tests/actors/websocket_soak.py --faults 30``.

Numbers come from two addresses that go on behind a cursor; counts are sent to a server that acknowledges each, at least
once (``tests/actors/server_soak.py`` says what dies). What it has kept is read from its file; what is there again is
the same, and counted as written again. Needs what ``tests/websocket_service.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from server_process import need_client
from server_soak import COUNTS, END, NUMBERS, main, make_row, num_records_of, soak_messages
from websocket_service import WebSocketService

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.websocket import JsonMessages, WebSocketSink, WebSocketSource

RATE = 600
PLACES = ("a", "b")
TARGET = "counts"


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    need_client("websockets", "websockets")
    (directory / "server").mkdir()
    server = WebSocketService(directory / "server")
    server.start()
    num_records = num_records_of(options, RATE)

    def write(first: int, last: int) -> None:
        """Records have places, so that each is put once; those of a step are as many at each address."""
        for number, place in enumerate(PLACES):
            rows = [make_row(index, RATE) for index in range(first + number, last, len(PLACES))]
            server.put(place, rows + [END] * (last == num_records), at=first // len(PLACES))

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        urls = [f"{server.url}/since/{place}" for place in PLACES]
        source = WebSocketSource(urls, value=JsonMessages(NUMBERS), cursor="/id", parameter="since", patience="5 min")
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("ts")
        sink = WebSocketSink(
            f"{server.url}/take/{TARGET}?acknowledges=1", value=JsonMessages(COUNTS), patience="5 min",
            envelope='{"number": ${number}, "row": ${record}}', acknowledged_by="/ack", refused_by="/error",
        )  # fmt: skip
        return env.from_source(source, strategy, "numbers"), sink

    def lines() -> list[str]:
        return list(dict.fromkeys(json.dumps(json.loads(line)["row"]) for line in server.taken(TARGET)))

    figures = soak_messages(
        server, write, build, lines, lambda: len(lines()), options, directory, RATE, commits=False
    )  # fmt: skip
    return {**figures, "written again": len(server.taken(TARGET)) - len(lines())}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
