"""Programs that write into a simulated service, which takes batches of entries and turns some away.

The `Service` lives outside of every simulated process. It takes an entry as often as it is sent, and shows it once: so
the output of a run is what was accepted at least once, and is judged as any other. It turns the end of a batch away now
and then, and some calls fail, before their effect or behind it.

In an ordered sink an entry of a key is never accepted before those that were written before it, whatever is killed, put
back or dealt out anew. Entries may come again, also late, out of a process that was given up for dead."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from simulation.programs import Program, Record, freeze

from headrace import AsyncSink, AsyncSinkWriter
from headrace.state.files.filesystem import filesystem_for


@dataclass
class Service:
    """The service.

    Attributes:
        path: Where accepted entries are visible.
        busy: One of so many calls has entries turned away.
        failing: One of so many fails; 0 for none.
        num_times: How often each entry was accepted.
        newest: Of entries with a key and a number, the largest number of each key.
        problems: Entries that came too early.
    """

    path: str
    busy: int
    failing: int
    num_times: Counter[str] = field(default_factory=Counter)
    newest: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    num_calls: int = 0

    def __post_init__(self) -> None:
        """A job that goes on from a savepoint finds what the one before has sent: the service is the same one."""
        fs, root = filesystem_for(self.path)
        for path, _ in fs.list_files(root):
            if path.rpartition("/")[2].startswith("part-"):
                entry = fs.read_bytes(path).decode()
                self.num_times[entry] += 1
                row = json.loads(entry)
                if "n" in row:
                    self.newest[row["key"]] = max(row["n"], self.newest.get(row["key"], 0))

    def submit(self, entries: list[str]) -> list[str]:
        """Accept entries, but for some at the end; gives those."""
        self.num_calls += 1
        chance = zlib.crc32(f"{entries[0]} {self.num_calls}".encode())
        if self.failing and chance % (2 * self.failing) == 0:
            message = "the service does not answer"
            raise OSError(message)
        num_accepted = chance // 7 % len(entries) if chance % self.busy == 0 else len(entries)
        for entry in entries[:num_accepted]:
            self._accept(entry)
        if self.failing and chance % (2 * self.failing) == 1:
            message = "the service's answer got lost"
            raise OSError(message)
        return entries[num_accepted:]

    def _accept(self, entry: str) -> None:
        self.num_times[entry] += 1
        if self.num_times[entry] > 1:
            return
        row = json.loads(entry)
        if "n" in row:
            if row["n"] != self.newest.get(row["key"], 0) + 1:
                self.problems.append(f"{entry} came behind {self.newest.get(row['key'])}")
            self.newest[row["key"]] = row["n"]
        fs, root = filesystem_for(self.path)
        with fs.open_output(f"{root}/part-00000-0-00000-{len(self.num_times):05d}.jsonl") as stream:
            stream.write(entry.encode())


SERVICES: dict[str, Service] = {}
"""By path: outside of every process, which have copies of everything else."""


def entry_of(row: Any) -> str:
    """Running counts are pairs."""
    return json.dumps({"key": row[0], "n": row[1]} if isinstance(row, tuple) else row)


class ServiceSink(AsyncSink):
    def __init__(self, path: str, busy: int, failing: int, *, is_blocking: bool, **bounds: Any) -> None:
        super().__init__(element_converter=entry_of, **bounds)
        self.path = path
        self.is_blocking = is_blocking
        SERVICES[path] = Service(path, busy, failing)

    def create_writer(self) -> AsyncSinkWriter:
        return (BlockingWriter if self.is_blocking else ServiceWriter)(self.path)


class ServiceWriter(AsyncSinkWriter):
    def __init__(self, path: str) -> None:
        self.service = SERVICES[path]
        self.is_open = False

    def open(self, _context: Any) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    async def submit_request_entries(self, request_entries: list[Any]) -> list[Any]:
        assert self.is_open
        return self.service.submit(request_entries)


class BlockingWriter(ServiceWriter):
    def submit_request_entries(self, request_entries: list[Any]) -> list[Any]:  # type: ignore[override]
        assert self.is_open
        return self.service.submit(request_entries)


def _bounds(rng: random.Random) -> dict[str, Any]:
    size = rng.choice((1, 3, 10))
    return {
        "max_batch_size": size,
        "max_buffered_requests": size + rng.choice((1, 5, 50)),
        "max_in_flight_requests": rng.choice((1, 2, 8)),
        "max_time_in_buffer_ms": rng.choice((1, 10, 100)),
        "is_blocking": rng.random() < 0.5,
    }


def to_service(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Every record, at least once; some requests take longer than they may."""
    bounds, parallelism = _bounds(rng), rng.randint(1, 3)
    busy, failing = rng.choice((2, 4, 1_000_000)), rng.choice((0, 0, 20))
    bounds["request_timeout_ms"] = rng.choice((14, 1_000))  # the way there and back takes 20 ms at most

    def build(env: Any, path: str) -> None:
        source(env).rebalance().sink_to(ServiceSink(path, busy, failing, **bounds)).set_parallelism(parallelism)

    expected = Counter(freeze(row) for rows in splits for row in rows)
    return Program(f"to_service/{parallelism}/{bounds}", build, expected, notes={"fails": failing > 0})


def in_order(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Running counts, by key and in order."""
    bounds, parallelism = _bounds(rng), rng.randint(1, 3)
    busy, failing = rng.choice((2, 4)), rng.choice((0, 20))
    paths: list[str] = []

    def build(env: Any, path: str) -> None:
        paths.append(path)
        (
            source(env)
            .map(lambda row: (row["key"], 1))
            .key_by(lambda pair: pair[0])
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
            .set_parallelism(parallelism)
            .key_by(lambda pair: pair[0])  # so that it may have a parallelism of its own
            .sink_to(ServiceSink(path, busy, failing, ordered=True, **bounds))
            .set_parallelism(parallelism)
        )

    def check() -> None:
        problems = SERVICES[paths[-1]].problems
        assert not problems, problems[0]

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    notes = {"fails": failing > 0, "check": check}
    return Program(f"in_order/{parallelism}/{bounds}", build, expected, notes=notes)


SERVED = (to_service, in_order)
