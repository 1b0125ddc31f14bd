"""Windows into a table of Iceberg or Delta, while processes die: ``python tests/actors/lake_soak.py --format delta``.

``--faults 30`` kills by signal 9: half of them are slots, TaskManagers and JobManagers at random moments; beside that
the committer kills its own process, now between a checkpoint and its commit, now behind the commit and before anybody
hears of it. At other times it commits beside a rival that commits the same. Others add rows of their own all the time.
At the end the format's own library reads the table, and DuckDB counts: every window must be there once, with its exact
count.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import cloudpickle
import duckdb
import pyarrow as pa
from lake_tables import DeltaTables, IcebergTables
from store_kit import counts, run, soak

from headrace import StreamExecutionEnvironment
from headrace.connectors.lake.committing import LakeCommitter
from headrace.engine.connectors.sink_protocols import GlobalCommittable

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

TABLES = {"delta": DeltaTables, "iceberg": IcebergTables}
COUNTS = pa.schema([("key", pa.int64()), ("window", pa.int64()), ("n", pa.int64())])
VICTIMS = ("slot", "slot", "TaskManager", "JobManager")
STRANGER = -1
"""The key of rows that others add."""


class DyingCommitter(LakeCommitter):
    """Dies before or behind one of so many commits, and runs beside a rival in others."""

    deaths = ""
    one_in = 12

    def commit(self, committable: GlobalCommittable) -> None:
        chance = random.randrange(self.one_in)
        if chance == 0:
            self._die("before")
        if chance in (2, 3, 4):
            rival = threading.Thread(target=self._rival, args=(copy.copy(self), committable))
            rival.start()
            super().commit(committable)
            rival.join()
        else:
            super().commit(committable)
        if chance == 1:
            self._die("behind")

    def _rival(self, other: LakeCommitter, committable: GlobalCommittable) -> None:
        LakeCommitter.commit(other, committable)
        Path(self.deaths, f"rival-{uuid.uuid4().hex}").touch()

    def _die(self, when: str) -> None:
        Path(self.deaths, f"{when}-{uuid.uuid4().hex}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def dying(sink: Any, deaths: Path) -> Any:
    """The same sink, whose committer dies now and then."""

    class DyingSink(type(sink)):
        def create_global_committer(self) -> DyingCommitter:
            committer = DyingCommitter(self._access, self._key)
            committer.deaths = str(deaths)
            return committer

    made = copy.copy(sink)
    made.__class__ = DyingSink
    return made


@contextlib.contextmanager
def stranger(tables: Any) -> Iterator[dict[str, int]]:
    """Another writer of the table, all the while."""
    ended = threading.Event()
    told = {"rows of others": 0, "conflicts of others": 0}

    def write() -> None:
        while not ended.wait(5.0):
            row = {"key": [STRANGER], "window": [told["rows of others"]], "n": [1]}
            try:
                tables.append(pa.table(row, schema=COUNTS))
                told["rows of others"] += 1
            except Exception:
                told["conflicts of others"] += 1

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        ended.set()
        thread.join()


def asked(tables: Any, question: str) -> list[tuple[int, ...]]:
    """What DuckDB says of the table, which its own library has read."""
    with duckdb.connect() as database:
        database.register("counted", tables.rows())
        return database.execute(question).fetchall()


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-lake-soak-", dir="/tmp"))
    deaths = directory / "deaths"
    deaths.mkdir()
    tables = TABLES[options.format](directory)
    tables.make(COUNTS)

    def build(env: StreamExecutionEnvironment, _place: str, num_records: int) -> None:
        counts(env, num_records).sink_to(dying(tables.sink(), deaths)).name("table")

    def read() -> list[str]:
        kept = asked(tables, f'SELECT key, "window", n FROM counted WHERE key <> {STRANGER}')
        return [json.dumps(dict(zip(COUNTS.names, row, strict=True))) for row in kept]

    try:
        with stranger(tables) as told:
            figures = soak(
                options.faults // 2,
                options.seed,
                None,
                str(directory),
                read,
                options.state_backend,
                build,
                victims=VICTIMS,
                seconds_per_fault=6,
            )
        kinds = [path.name.partition("-")[0] for path in deaths.iterdir()]
        [(strangers,)] = asked(tables, f"SELECT count(*) FROM counted WHERE key = {STRANGER}")
        assert strangers == told["rows of others"], "rows of others were lost or doubled"
        return {
            **figures,
            "faults": figures["faults"] + kinds.count("before") + kinds.count("behind"),
            "killed itself before a commit": kinds.count("before"),
            "killed itself behind a commit": kinds.count("behind"),
            "commits beside a rival": kinds.count("rival"),
            **told,
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run("table formats", campaign, tuple(TABLES)))
