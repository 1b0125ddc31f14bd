"""A table of PostgreSQL followed on Ray, while processes die: ``python tests/actors/postgres_soak.py --faults 30``.

Writers of its own insert, update and delete rows at random; a trigger keeps a history of every version of a row in the
same transaction. A job follows the table and writes every change into another one, exactly once. At random moments a
slot, a TaskManager, the JobManager, the server, or the server and a slot are killed with signal 9; the server starts
again a moment later. At the end the changes must come to the table as it is, and every version that was made since a
row was first seen must have come once. Prints one line per figure. Needs PostgreSQL (``tests/postgresql_server.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kill_soak import kind_of, living_hosts
from postgresql_server import PostgresqlServer, _binaries, _unprivileged

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.postgres_cdc import PostgresCdcSource
from headrace.connectors.sql import SqlSink

NUM_KEYS = 3_000
RATE = 60
"""Transactions a second."""

SECONDS_PER_FAULT = 15.0
PATIENCE_S = 600
VICTIMS = ("slot", "slot", "TaskManager", "JobManager", "server", "server and slot")

TABLES = (
    "CREATE SEQUENCE versions",
    "CREATE TABLE rows (id INT PRIMARY KEY, kind INT, v BIGINT, version BIGINT)",
    "ALTER TABLE rows REPLICA IDENTITY FULL",
    "CREATE TABLE history (id INT, version BIGINT PRIMARY KEY)",
    """CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       INSERT INTO history VALUES (NEW.id, NEW.version); RETURN NULL; END $$""",
    "CREATE TRIGGER remember AFTER INSERT OR UPDATE ON rows FOR EACH ROW EXECUTE FUNCTION remember()",
    f"INSERT INTO rows SELECT i, i % 20, i, nextval('versions') FROM generate_series(1, {NUM_KEYS}) i",
    "CREATE TABLE changes (op TEXT, id INT, kind INT, v BIGINT, version BIGINT)",
)
SCHEMA = {"id": "int32", "kind": "int32", "v": "int64", "version": "int64"}


class Writer(threading.Thread):
    """Writes at random, through restarts of the server. What became of a commit without an answer the table says."""

    def __init__(self, server: PostgresqlServer, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._rng = server, random.Random(seed)
        self.is_over = threading.Event()
        self.num_transactions = 0

    def run(self) -> None:
        import psycopg

        while not self.is_over.is_set():
            with contextlib.suppress(psycopg.Error), self._server.connect() as connection:
                while not self.is_over.wait(1 / RATE):
                    with connection.transaction():
                        for _ in range(self._rng.randrange(1, 6)):
                            connection.execute(self._statement())
                    self.num_transactions += 1
            self.is_over.wait(0.1)

    def _statement(self) -> str:
        key, kind, value = self._rng.randrange(NUM_KEYS), self._rng.randrange(20), self._rng.randrange(1_000)
        update = f"UPDATE rows SET kind = {kind}, v = {value}, version = nextval('versions') WHERE id = {key}"
        insert = f"INSERT INTO rows VALUES ({key}, {kind}, {value}, nextval('versions')) ON CONFLICT DO NOTHING"
        return self._rng.choice([update, update, insert, f"DELETE FROM rows WHERE id = {key}"])


def build(env: StreamExecutionEnvironment, server: PostgresqlServer) -> None:
    source = PostgresCdcSource(
        "127.0.0.1", server.port, username="headrace", password=server.password, database="postgres", table="rows",
        schema=SCHEMA, slot="soak", kind_column="op", chunk_size=200, heartbeat_interval="1 s",
    )  # fmt: skip
    sink = SqlSink.exactly_once(server.url, "changes", sink_id="changes")
    env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").key_by("id").map(lambda row: row).sink_to(sink)


def strike(kind: str, server: PostgresqlServer, rng: random.Random) -> bool:
    """Kill something; False if there is none of the kind now."""
    if kind.startswith("server"):
        server.kill()
    if kind != "server":
        hosts = living_hosts()
        candidates = sorted(host for host in hosts if kind_of(host) == kind.removeprefix("server and "))
        if candidates:
            os.kill(hosts[rng.choice(candidates)], signal.SIGKILL)
        elif kind in ("slot", "TaskManager", "JobManager"):
            return False
    if kind.startswith("server"):
        time.sleep(rng.uniform(0.2, 3))
        server.start()
    return True


def folded(server: PostgresqlServer) -> Counter[tuple[Any, ...]]:
    """What the changes that were written come to."""
    signs = {"+I": 1, "+U": 1, "-U": -1, "-D": -1}
    rows: Counter[tuple[Any, ...]] = Counter()
    for op, *row in server.rows("SELECT op, id, kind, v, version FROM changes"):
        rows[tuple(row)] += signs[op]
    return rows


def judge(server: PostgresqlServer) -> dict[str, int]:
    """What is wrong with what was written."""
    table = Counter(server.rows("TABLE rows"))
    found = folded(server)
    came = Counter(server.rows("SELECT id, version FROM changes WHERE op IN ('+I', '+U')"))
    first: dict[int, int] = {}
    for key, version in came:
        first[key] = min(version, first.get(key, version))
    made = server.rows("SELECT id, version FROM history")
    # Versions before the first of a key were replaced before the table was read.
    missing = [one for one in made if one[0] in first and one[1] >= first[one[0]] and one not in came]
    return {
        "lost": sum((table - found).values()) + len(missing),
        "doubled": sum(came.values()) - len(came) + sum((+found - table).values()),
        "taken back before it came": sum(count < 0 for count in found.values()),
    }


def soak(faults: int, seed: int, directory: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    binaries = _binaries()
    assert binaries is not None, "there is no PostgreSQL"
    server = PostgresqlServer(binaries, directory / "server", _unprivileged())
    server.start()
    server.execute(*TABLES)
    writer = Writer(server, seed)
    struck: Counter[str] = Counter()
    try:
        with StreamExecutionEnvironment.get_execution_environment(actor_system="ray") as env:
            env.set_parallelism(2)
            env.enable_checkpointing(500, directory=str(directory / "checkpoints"))
            build(env, server)
            writer.start()
            client = env.execute_async("postgres soak")
            while sum(struck.values()) < faults and client.view().state not in ("FINISHED", "FAILED"):
                time.sleep(rng.uniform(0.2, SECONDS_PER_FAULT))
                kind = rng.choice(VICTIMS)
                if strike(kind, server, rng):
                    struck[kind] += 1
            writer.is_over.set()
            writer.join()
            deadline = time.monotonic() + PATIENCE_S
            while +folded(server) != Counter(server.rows("TABLE rows")) and time.monotonic() < deadline:
                if client.view().state == "FAILED":
                    break
                time.sleep(1)
            view = client.view()
            client.cancel()
        figures = judge(server)
        (num_changes,), (num_versions,) = server.rows(
            "SELECT count(*) FROM changes UNION ALL SELECT count(*) FROM history"
        )
    finally:
        server.kill()
    return {
        "faults": sum(struck.values()),
        **{f"killed: {kind}": struck[kind] for kind in sorted(struck)},
        "restarts": view.num_restarts,
        "checkpoints": view.checkpoints_completed,
        "transactions": writer.num_transactions,
        "versions": num_versions,
        "changes": num_changes,
        **figures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-soak-"))
    directory.chmod(0o755)
    (directory / "server").mkdir()
    try:
        figures = soak(options.faults, options.seed, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name}: {value}")
    wrong = sum(figures[name] for name in ("lost", "doubled", "taken back before it came"))
    is_bad = bool(wrong) or figures["faults"] < options.faults
    print(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
