"""Nexmark's queries against Flink's answers, through kills and a stop: ``python tests/conformance/nexmark.py``.

Each query of q0 to q23 is run

* in batch mode;
* as a stream that nothing happens to (``local``);
* for each state backend as a stream on Ray at parallelism 2, with checkpoints: slots are killed by signal 9 at random
  moments, then the job is stopped with a savepoint, and goes on from it at parallelism 3 to the end of its input
  (``killed``). Its changes go to files exactly once; what they come to is compared.

The rows are those that Flink 2.3 gives (``tests/data/nexmark``), or those of a direct computation where rows stay what
they are; of q12, which goes by the clock, the counts of its windows are added up. ``--data FOLDER`` takes other events:
a folder with ``events.parquet``, and ``expected/qN.parquet`` of the other queries.

    python tests/conformance/nexmark.py [q0 q4 ...] [--ways batch,local,killed] [--backends heap,rocksdb]
        [--kills 3] [--seed N] [--data FOLDER]

Prints a line for each run, and ends with status 1 if one had other rows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "actors"))

import nexmark_kit
import query_kit
from kill_soak import kind_of, living_hosts
from nexmark_kit import BY_THE_CLOCK, DATA, Q10, QUERIES, as_multiset, bids_per_bidder, expected
from query_kit import Rows

from headrace import JobStatus, RestartStrategies
from headrace.actors.ray.connection import open_ray
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.jobs.client import JobClient
from headrace.state.errors import SavepointError
from headrace.table import TableEnvironment

# Workers have no such modules: what they give travels by value.
cloudpickle.register_pickle_by_value(nexmark_kit)
cloudpickle.register_pickle_by_value(query_kit)

ALL = {**QUERIES, **BY_THE_CLOCK, "q10": Q10}
NAMES = tuple(sorted(ALL, key=lambda name: int(name[1:])))
WINDOW = "'10' SECOND", "'0.5' SECOND"
"""Of q12: as it is asked for, and so that several end while the events come."""
SECONDS, SECONDS_OF_A_KILL = 6, 5
"""How long the events take to come in all, and the longer for each kill: a restart takes that while."""


@dataclass
class Outcome:
    """What became of a query.

    Attributes:
        rows: The final table, as it is compared.
        story: What happened on the way.
    """

    rows: Counter[Any]
    story: str = ""


def compared(query: str, rows: Counter[Any]) -> Counter[Any]:
    """What of the rows does not depend on the clock: of q12 each bidder's sum."""
    if query != "q12":
        return rows
    sums: Counter[Any] = Counter()
    for row, count in rows.items():
        sums[row[0]] += row[1] * count
    return sums


def answer_of_flink(query: str, data: Path) -> Counter[Any]:
    """Return what is to come."""
    return bids_per_bidder(data) if query == "q12" else expected(query, data)


# -- nothing happens ---------------------------------------------------------------------------------------------------


def undisturbed(query: str, data: Path, mode: str) -> Outcome:
    """Run a query from the file of the events."""
    options = {"actor_system": "local"} if mode == "streaming" else {}
    with tempfile.TemporaryDirectory() as folder, nexmark_kit.auction_environment(mode, data=data, **options) as env:
        nexmark_kit.with_side_input(env, Path(folder) / "side.csv")
        return Outcome(as_multiset(env.execute_sql(ALL[query]).to_arrow()))


# -- kills, and a stop -------------------------------------------------------------------------------------------------


class Disturbed:
    """A query as a stream on Ray, with kills, a stop and another parallelism.

    Args:
        query: Its name.
        data: The folder of its events.
        folder: For checkpoints, savepoints and output; empty.
        backend: ``heap`` or ``rocksdb``.
        kills: How many slots are killed.
        rng: Chooses what dies, and when.
    """

    def __init__(self, query: str, data: Path, folder: Path, backend: str, kills: int, rng: random.Random) -> None:
        self._query = BY_THE_CLOCK[query].replace(*WINDOW) if query in BY_THE_CLOCK else ALL[query]
        self._events = nexmark_kit.events_with_time(data)
        self._folder = folder
        self._backend = backend
        self._kills = kills
        self._rng = rng

    def run(self) -> Outcome:
        """Run it to the end of its input; gives what its changes come to."""
        with self._environment(2) as env:
            client = self._submitted(env)
            restarts = self._killed(client)
            try:
                savepoint: str | None = client.stop_with_savepoint(str(self._folder / "savepoints"), timeout=120)
            except SavepointError:
                if client.get_job_status() is not JobStatus.FINISHED:
                    raise
                savepoint = None
            story = f"{self._kills} kills, {restarts} restarts{_late(client)}"
        if savepoint is None:
            return Outcome(self._rows(), f"{story}, ended before it could be stopped")
        first = self._rows()
        with self._environment(3) as env:
            client = self._submitted(env, savepoint)
            client.result(timeout=300)
            story += f", {first.total()} rows when it was stopped{_late(client)}"
        return Outcome(self._rows(), story)

    def _environment(self, parallelism: int) -> TableEnvironment:
        # A machine that does much else starts processes slowly.
        env = TableEnvironment.create(parallelism=parallelism, actor_system="ray", slot_request_timeout_ms=300_000)
        streams = env.stream_environment
        streams.set_state_backend(self._backend)
        streams.set_max_parallelism(12)
        streams.enable_checkpointing(300, directory=str(self._folder / "checkpoints"))
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(50, 1))
        return env

    def _submitted(self, env: TableEnvironment, savepoint: str | None = None) -> JobClient:
        count = self._events.num_rows
        rate = count / (SECONDS + SECONDS_OF_A_KILL * self._kills)
        # As many splits as readers: of more the last would be begun when the first have ended, and their rows be late.
        source = GeneratorSource.batches(Rows(self._events), count, rate, number_of_splits=2, batch_size=100)
        nexmark_kit.add_event_stream(env, source, self._events.schema)
        nexmark_kit.with_side_input(env, self._folder / "side.csv")
        # Columns of results may have one name.
        inner = env.sql_query(self._query)
        names = [f"c{number}" for number in range(len(inner.schema))]
        table = env.sql_query(f"SELECT * FROM ({self._query}) AS r ({', '.join(names)})")
        changes = env.to_changelog_stream(table)
        changes.sink_to(FileSink.parquet(str(self._folder / "out")))
        return env.stream_environment.execute_async("nexmark", from_savepoint=savepoint)

    def _killed(self, client: JobClient) -> int:
        """Kill slots, each some moment after the job has completed a checkpoint since the last; gives the restarts."""
        left, seen, due = self._kills, 0, None
        for view in client.views():
            if view.checkpoints_completed > seen and view.state == "RUNNING" and due is None:
                due = time.monotonic() + self._rng.uniform(0, 1.5)
            if due is None or time.monotonic() < due:
                continue
            if not left:
                break
            hosts = living_hosts()
            slots = sorted(host for host in hosts if kind_of(host) == "slot")
            if slots:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(hosts[self._rng.choice(slots)], signal.SIGKILL)
                left -= 1
                due, seen = None, view.checkpoints_completed
        return int(client.view().num_restarts)

    def _rows(self) -> Counter[Any]:
        """What the changes that have been committed come to."""
        found: Counter[Any] = Counter()
        for path in sorted((self._folder / "out").glob("part-*")):
            changes = pq.read_table(path)
            for sign, kinds in ((1, ("+I", "+U")), (-1, ("-U", "-D"))):
                rows = changes.filter(pa.compute.is_in(changes["op"], pa.array(kinds))).drop_columns(["op"])
                for row, count in as_multiset(rows).items():
                    found[row] += sign * count
        return Counter({row: count for row, count in found.items() if count})


def _late(client: JobClient) -> str:
    """How many rows operators have called late, if any: there should be none."""
    operators = (one for vertex in client.view().vertices for one in vertex.operators)
    late = sum(int(one.metrics.get("num_late_records_dropped", 0)) for one in operators)
    return f", {late} late" if late else ""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*", default=NAMES)
    parser.add_argument("--ways", default="batch,local,killed")
    parser.add_argument("--backends", default="heap,rocksdb")
    parser.add_argument("--kills", type=int, default=3, help="of slots, in each run that is killed")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    ways = given.ways.split(",")
    if "killed" in ways:
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
        open_ray("local", 8)  # one for all runs
    num_wrong = num_runs = 0
    for query in given.queries:
        wanted = answer_of_flink(query, given.data)
        runs: dict[str, Callable[[], Outcome]] = {}
        if "batch" in ways and query not in ("q12",):  # no windows by the clock in batch mode
            runs["batch"] = lambda query=query: undisturbed(query, given.data, "batch")  # type: ignore[misc]
        if "local" in ways:
            runs["local"] = lambda query=query: undisturbed(query, given.data, "streaming")  # type: ignore[misc]
        for backend in given.backends.split(",") if "killed" in ways else ():
            runs[f"killed, {backend}"] = lambda query=query, backend=backend: in_a_folder(  # type: ignore[misc]
                query, given.data, backend, given.kills, random.Random(f"{given.seed} {query} {backend}")
            )
        for way, run in runs.items():
            began = time.monotonic()
            try:
                outcome = run()
                found = compared(query, outcome.rows)
                verdict = f"{found.total()} rows" if found == wanted else f"WRONG {told(found, wanted)}"
            except Exception as error:  # whatever fails is counted and shown
                outcome, verdict = Outcome(Counter()), f"WRONG {type(error).__name__}: {error}"
            num_runs += 1
            num_wrong += verdict.startswith("WRONG")
            about = f" ({outcome.story})" if outcome.story else ""
            print(f"{query} {way}: {verdict}{about}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{num_runs} runs, {num_wrong} with other rows than Flink's")
    return 1 if num_wrong else 0


def in_a_folder(query: str, data: Path, backend: str, kills: int, rng: random.Random) -> Outcome:
    """Run a query with kills, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return Disturbed(query, data, Path(folder), backend, kills, rng).run()


def told(found: Counter[Any], wanted: Counter[Any]) -> str:
    """How rows differ, in short."""
    lost, more = wanted - found, found - wanted
    return f"lost {lost.total()} ({str(lost)[:300]}), too many {more.total()} ({str(more)[:300]})"


if __name__ == "__main__":
    sys.exit(main())
