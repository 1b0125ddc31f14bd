"""A job that REST is asked about, and counts of what it does that nobody of the engine has made."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from headrace import MapFunction, RestSettings, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource

NUM_RECORDS = 1_000

SEEN: Counter[Any] = Counter()
"""How often each function was called, by operator and subtask: all hosts of a local cluster are in this process."""


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Note(MapFunction):
    """Counts records."""

    def open(self, runtime_context: Any) -> None:
        self._key = ("note", runtime_context.get_index_of_this_subtask())
        self._total = runtime_context.get_int_counter("noted")

    def map(self, value: Any) -> Any:
        SEEN[self._key] += 1
        self._total.add(1)
        return value


def number(n: int) -> dict[str, int]:
    SEEN["number"] += 1
    return {"n": n, "ts": n}


def later(n: int) -> dict[str, int]:
    SEEN["later"] += 1
    return {"n": n, "ts": 5_000 + n}


def rest_environment(actor_system: str = "local", **options: Any) -> StreamExecutionEnvironment:
    settings = {"bind_port": "0", "view_ttl_ms": 0, **options.pop("rest", {})}
    rest = RestSettings(**settings)
    return StreamExecutionEnvironment.get_execution_environment(actor_system, parallelism=2, rest=rest, **options)


def build(env: StreamExecutionEnvironment, directory: Any) -> None:
    """A thousand numbers, and a stream without end that gives one record and no more for a long time."""
    env.enable_checkpointing(200, directory=str(directory))
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    numbers = env.from_source(GeneratorSource(number, NUM_RECORDS), in_order, "numbers").uid("numbers")
    endless = env.from_source(GeneratorSource(later, records_per_second=0.001), in_order, "endless").uid("end/less")
    both = numbers.union(endless).key_by(lambda row: row["n"] % 7).map(Note()).uid("note")
    both.filter(lambda _row: False).uid("none").print()


def ask(
    url: str,
    path: str,
    token: str | None = None,
    *,
    method: str = "GET",
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Response:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    own = {} if token is None else {"Authorization": f"Bearer {token}"}
    content = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request(method, path, content, {**own, **(headers or {})})
    response = connection.getresponse()
    found = Response(response.status, dict(response.getheaders()), response.read())
    connection.close()
    return found


def part(text: str) -> str:
    return quote(text, safe="")
