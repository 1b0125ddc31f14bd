"""A job that writes to a table while it dies at named points of the sink's protocol, and somebody who reads meanwhile.

`DyingSink` wraps a sink; it counts how often each point is passed, over all processes, by files, and at the planned
occurrences the process kills itself with signal 9, or the task fails.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle

from headrace import Committer, SinkWriter
from headrace.connectors.datagen import GeneratorSource
from headrace.state.checkpoints.storage import CheckpointStorage

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

NUM_KEYS = 7

POINTS = ("prepare.before", "prepare.after", "commit.before", "commit.after")


class DyingSink:
    """Dies at ``(point, n)``: when the point is passed for the n-th time, from 1."""

    def __init__(self, sink: Any, plan: list[tuple[str, int]], directory: Path, *, kills: bool) -> None:
        self.sink = sink
        self.plan = plan
        self.directory = str(directory)
        self.kills = kills
        os.makedirs(directory, exist_ok=True)

    def create_writer(self) -> SinkWriter:
        return _DyingWriter(self)

    def create_committer(self) -> Committer:
        return _DyingCommitter(self)

    def pass_point(self, point: str) -> None:
        number = 1
        while True:
            try:
                os.close(os.open(f"{self.directory}/{point}.{number}", os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                number += 1
        if (point, number) in self.plan:
            Path(self.directory, f"{point}.{number}").write_text("died")
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            message = f"dies at {point}"
            raise RuntimeError(message)

    def deaths(self) -> list[str]:
        return sorted(path.name for path in Path(self.directory).iterdir() if path.read_text())


class _DyingWriter(SinkWriter):
    def __init__(self, owner: DyingSink) -> None:
        self.owner = owner
        self.writer = owner.sink.create_writer()
        self.write = self.writer.write
        self.close = self.writer.close
        self.open = self.writer.open

    def prepare(self, checkpoint_id: int) -> list[Any]:
        self.owner.pass_point("prepare.before")
        committables = self.writer.prepare(checkpoint_id)
        self.owner.pass_point("prepare.after")
        return committables


class _DyingCommitter(Committer):
    def __init__(self, owner: DyingSink) -> None:
        self.owner = owner
        self.committer = owner.sink.create_committer()
        self.open = self.committer.open
        self.abort_leftovers = self.committer.abort_leftovers
        self.finish = self.committer.finish
        self.close = self.committer.close

    def commit(self, committable: Any) -> None:
        self.owner.pass_point("commit.before")
        self.committer.commit(committable)
        self.owner.pass_point("commit.after")


CREATE_TABLE = "CREATE TABLE counts (k BIGINT NOT NULL, c BIGINT NOT NULL)"


def build(env: Any, sink: Any, count: int, rate: int | None) -> None:
    """Numbers the records of each key; each pair of key and number must be in the table once."""
    source = GeneratorSource(lambda n: (n % NUM_KEYS, 1), count=count, records_per_second=rate)
    (
        env.from_source(source, None, "numbers")
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .map(lambda pair: {"k": pair[0], "c": pair[1]})
        .sink_to(sink)
        .name("table")
    )


def expected(count: int) -> Counter[tuple[int, int]]:
    return Counter((n % NUM_KEYS, n // NUM_KEYS + 1) for n in range(count))


class Reader(threading.Thread):
    """Looks at the table over and over: it must grow by whole commits, of complete checkpoints only."""

    def __init__(self, look: Any, checkpoints: Path) -> None:
        super().__init__(daemon=True)
        # Gives, as of one moment: the rows, and (checkpoint, number of rows) of every marker.
        self.look = look
        self.checkpoints = checkpoints
        self.problems: list[str] = []
        self.sizes: set[int] = set()
        self.done = threading.Event()

    def run(self) -> None:
        seen: Counter[Any] = Counter()
        while not self.done.wait(0.01):
            rows, markers = self.look()
            found = Counter(rows)
            if found and max(found.values()) > 1:
                self.problems.append(f"doubled: {[row for row, n in found.items() if n > 1][:3]}")
            if seen - found:
                self.problems.append(f"taken back: {list(seen - found)[:3]}")
            if len(rows) != sum(num_rows for _, num_rows in markers):
                self.problems.append(f"{len(rows)} rows, and markers of {sum(n for _, n in markers)}")
            newest = max((checkpoint_id for checkpoint_id, _ in markers), default=0)
            if newest > self.newest_complete():
                self.problems.append(f"rows of checkpoint {newest}, which is not complete")
            self.sizes.add(len(rows))
            seen = found

    def newest_complete(self) -> int:
        """Looked up behind the table, so it is no older; a job that has ended deletes its checkpoints."""
        jobs = [path.name for path in self.checkpoints.iterdir()] if self.checkpoints.exists() else []
        ids = [i for job in jobs for i in CheckpointStorage.open(str(self.checkpoints), job).list_complete()]
        return max(ids, default=1 << 60)
