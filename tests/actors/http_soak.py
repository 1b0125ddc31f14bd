"""HTTP to HTTP on Ray, while processes die: ``python tests/actors/http_soak.py --faults 30``.

Numbers come from two streams of server-sent events and one of pages, counts are posted exactly once, by keys that the
server knows again (``tests/actors/server_soak.py`` says what dies). What it has kept is read from its file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from http_peer import HttpPeer
from server_soak import COUNTS, END, NUMBERS, main, make_row, num_records_of, soak_messages

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.http import HttpEventSource, HttpPageSource, HttpSink, JsonMessages

RATE = 600
PLACES = ("events/a", "events/b", "pages/c")


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    (directory / "server").mkdir()
    server = HttpPeer(directory / "server")
    server.start()
    num_records = num_records_of(options, RATE)

    def write(first: int, last: int) -> None:
        """A batch has a key, so that it is put once."""
        for number, place in enumerate(PLACES):
            indexes = [index for index in range(first, last) if index % len(PLACES) == number]
            rows = [json.dumps(make_row(index, RATE)) for index in indexes]
            server.put(place.partition("/")[2], str(first), rows + [json.dumps(END)] * (last == num_records))

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        value = JsonMessages(NUMBERS)
        urls = [f"{server.url}/{place}" for place in PLACES]
        events = HttpEventSource(urls[:2], value=value, retry="20 ms")
        pages = HttpPageSource(
            urls[2], value=value, records="/data/items", cursor="/next", parameter="cursor", interval="20 ms"
        )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("ts")
        numbers = env.from_source(events, strategy, "events").union(env.from_source(pages, strategy, "pages"))
        return numbers, HttpSink.exactly_once(f"{server.url}/sink/counts", value=JsonMessages(COUNTS))

    def lines() -> list[str]:
        return server.posted("counts")

    return soak_messages(server, write, build, lines, lambda: len(lines()), options, directory, RATE)


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
