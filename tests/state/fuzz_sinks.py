"""What `fuzz_readers.py` feeds to committers: what sinks have prepared, as a checkpoint holds it.

The file sink commits into a directory beside one that holds a stranger's file; whatever a checkpoint says, that stays
as it is. The SQL sink commits into a database of its own.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sqlite3
import tempfile
from pathlib import Path

import pyarrow as pa

from headrace.connectors.files.sink import FileSink
from headrace.connectors.sql import SqlSink
from headrace.engine.connectors.contract import CommitterContext, SinkHistory
from headrace.formats import prepared_rows

ORIGIN, OWNER = "0123456789ab", "ba9876543210"
_SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def _context() -> CommitterContext:
    return CommitterContext(
        "job", "sink", "sink", 0, 1, "1.0", lambda: 1_000, lambda *_: None, SinkHistory(ORIGIN, OWNER)
    )


_folders: list[tempfile.TemporaryDirectory] = []


def clean_up() -> None:
    """Remove what targets of this process have on the disk."""
    while _folders:
        _folders.pop().cleanup()


class _Scratch:
    """A directory until `clean_up`."""

    def __init__(self) -> None:
        _folders.append(tempfile.TemporaryDirectory(prefix="headrace-fuzz-", dir=_SHARED_MEMORY))
        self.path = Path(_folders[-1].name)


class FileCommittables:
    """Closed parts of a file sink."""

    def __init__(self, mutated_json) -> None:
        self._mutated = mutated_json
        self._scratch = _Scratch()
        self.root = self._scratch.path / "out"
        self.stranger = self._scratch.path / "stranger" / f"00000-{OWNER}-1_0-00000.jsonl"
        self.stranger.parent.mkdir()
        self.stranger.write_text("not yours")
        self.link = self._scratch.path / "link"
        self.link.symlink_to(self.stranger.parent)
        self.staged = f"00000-{OWNER}-1_0-00000.jsonl"
        final = f"part-00000-{ORIGIN}-{OWNER}-1_0-00001-00000.jsonl"
        own = {"location": str(self.root), "staged": self.staged, "final": final, "size": 3, "rows": 1}
        old = f".staging/{ORIGIN}/00000-{OWNER}-00000.jsonl"
        self.seeds = [
            own,
            {**own, "location": f"file://{self.root}"},
            {**own, "location": str(self.stranger.parent)},
            {**own, "staged": f"{self.root}/{old}", "final": f"{self.root}/part-00000-{OWNER}-00001-00000.jsonl"},
            {**own, "staged": str(self.stranger)},
            {**own, "staged": f"../../stranger/{self.stranger.name}", "final": f"../stranger/{final}"},
            {**own, "size": 1 << 20_000, "rows": 1 << 20_000, "staged": "00000" * 50_000},
        ]
        self._committer = FileSink.json_lines(str(self.root)).create_committer()
        self._committer.open(_context())
        self._staging = self.root / ".staging" / ORIGIN / "00001"

    def made(self, rng):
        found = self._mutated(copy.deepcopy(rng.choice(self.seeds)), rng, rng.choice((0, 0.05, 0.2)))
        if isinstance(found, dict) and rng.random() < 0.5:
            name = rng.choice(("location", "staged", "final"))
            if isinstance(found.get(name), str) and found[name]:
                at = rng.randrange(len(found[name]))
                piece = rng.choice(
                    ("/", "..", "../", "\0", "\n", "%2e", "://", "?", "\ud800", "\u0663", "s3://x/", "0" * 300)
                )
                found[name] = found[name][:at] + piece + found[name][at + rng.randrange(3) :]
        return found

    def read(self, data) -> None:
        self._staging.mkdir(parents=True, exist_ok=True)
        (self._staging / self.staged).write_text("mine")
        try:
            self._committer.commit(data)
        finally:
            assert [path.name for path in self.stranger.parent.iterdir()] == [self.stranger.name]
            assert self.stranger.read_text() == "not yours"
            names = {path.name for path in self._scratch.path.iterdir()}
            assert names == {"out", "stranger", "link"}, names
            for path in self.root.iterdir():
                assert path.name == ".staging" or path.name.startswith("part-"), path
                if path.name != ".staging":
                    path.unlink()


class SqlCommittables:
    """Transactions that a SQL sink has prepared, with their rows in the checkpoint or in the database."""

    def __init__(self, mutated, mutated_json) -> None:
        self._mutated, self._mutated_json = mutated, mutated_json
        self._scratch = _Scratch()
        self._path = self._scratch.path / "db.sqlite"
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("CREATE TABLE numbers (n INTEGER NOT NULL, label TEXT)")
        rows = pa.record_batch({"n": [1, 2, 3], "label": ["a", None, "c"]})
        self._data = prepared_rows.to_ipc([rows])
        zeros = pa.record_batch({"n": pa.nulls(1 << 20, pa.int64()), "label": pa.array([""] * (1 << 20))})
        self._bomb = prepared_rows.to_ipc([zeros])
        self._seed = {
            **{"sink_id": "s", "txn": f"{ORIGIN}/{OWNER}/x-0", "checkpoint_id": 1, "prepared_ms": 500},
            **{"rows": 3, "num_pieces": 1, "data": [self._data]},
        }
        url = f"sqlite:///{self._path}"
        self._committer = SqlSink.exactly_once(url, "numbers", sink_id="s").create_committer()
        self._committer.open(_context())

    def made(self, rng):
        seed, staged = copy.deepcopy(self._seed), None
        data = rng.choice((self._data, self._data, self._mutated(self._data, rng)))
        if rng.random() < 0.3:
            seed["data"], staged = None, data
        else:
            seed["data"] = rng.choice(([data], [data], [data, data], [], [self._bomb] * rng.choice((1, 20))))
            if rng.random() < 0.5:
                seed["rows"] = 3 * len(seed["data"])
        if rng.random() < 0.5:
            seed = self._mutated_json(seed, rng, 0.1)
        return seed, staged

    def read(self, data) -> None:
        committable, staged = data
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for table in ("headrace_staged", "headrace_commits", "numbers"):
                connection.execute(f"DELETE FROM {table}")
            if staged is not None:
                place = ("s", f"{ORIGIN}/{OWNER}/x-0", 0, "job", 1, 0, 500, 0, 3, staged)
                connection.execute(f"INSERT INTO headrace_staged VALUES ({', '.join('?' * len(place))})", place)
        self._committer.commit(committable)
