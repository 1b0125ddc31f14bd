"""Nexmark in SQL: events per second, per processor second, and where the nanoseconds of an event go.

``python tests/bench/nexmark.py [--events 10000000] [--rate 100000] [--source files] [--flink PYTHON] [q0 q4 ...]``.

Each query runs alone, on Ray, at parallelism 2, into a sink that forgets. Events are made up with all their columns as
Arrow arrays, whatever the query reads; or read from Parquet files (``--source files``), one for each subtask, of which
only what is read is decoded. ``--rate`` is events per second of event time: at 10,000 windows fire ten times as often.
The free texts come from pools drawn once and are sliced, not drawn for each event.
Buffers are sent when they are full or 100 ms old, as Flink's are by default, and are not made smaller for slow
consumers; ``--low-latency`` leaves them as they are here by default.

What is printed of a query:

* events per second, and per processor second, between the job's reports of 10 % (``--from``) and 95 % of the input:
  starting, loading of compiled loops and the end do not count. Processor seconds are those of all hosts.
* nanoseconds of processor time an event, by the job's own metrics between the same reports (``processor.used_us`` is
  what an operator itself has used, ``processor.exchanges_us`` what its task has outside of operators): of the *source*;
  the *chain*, which is all that works row by row (conditions, columns, times and watermarks); *operators* with state;
  the *hop*, which is taking what has arrived, cutting by key, and gathering; the *sink*; and the *rest*: what hosts use
  beyond that (encoding and sending messages, Ray, checkpoints, collecting garbage).
* milliseconds to plan it, parsing to streams, the best of three.

With ``--flink PYTHON`` that Python, which has apache-flink, runs the same queries from the same files before each of
them, and the ratio of events per processor second is printed, with the geometric mean (`nexmark_on_flink`).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow.parquet as pq
from measure import Mark, describe_machine, steady_marks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import nexmark_kit
from nexmark_kit import BY_THE_CLOCK, EVENTS, FILES, QUERIES, SIDE_INPUT, add_events, with_side_input

from headrace.connectors.nexmark import NexmarkGenerator
from headrace.engine.errors import HeadraceError
from headrace.sql.parsing.types import sql_name
from headrace.table import TableEnvironment

# Workers have no such module: the function of q14 travels by value.
cloudpickle.register_pickle_by_value(nexmark_kit)

ALL = {**QUERIES, **BY_THE_CLOCK}
NAMES = tuple(f"q{number}" for number in range(24))
FROM_FILES = ("q0", "q4", "q5", "q7", "q16", "q18", "q20")
BATCH = 65_536
PARTS = ("source", "chain", "hop", "operator", "sink", "rest")
ROW_BY_ROW = ("scan ", "compute ", "where ", "select ", "timestamps ", "event time", "forget", "processing time")


def write_events(folder: Path, count: int, rate: float, files: int) -> None:
    """Write events as Parquet: batches in turn to each of some files, so that all go through time together.

    Inside of rows Flink reads no other times than those of 96 bits.
    """
    generator, writers = NexmarkGenerator(rate), []
    options: Any = {"compression": "snappy", "use_deprecated_int96_timestamps": True}
    for number, start in enumerate(range(0, count, BATCH)):
        batch = generator.events(start, min(BATCH, count - start)).columns
        if number < files:
            writers.append(pq.ParquetWriter(folder / f"events-{number}.parquet", batch.schema, **options))
        writers[number % files].write_batch(batch, row_group_size=BATCH)
    for writer in writers:
        writer.close()


def planning_ms(env: TableEnvironment, text: str) -> float:
    """Milliseconds from a query's text to its plan as it is run."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        env.explain_sql(text)
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def run(env: TableEnvironment, query: str, num_events: int, from_share: float) -> tuple[Mark, Mark]:
    """Run a query into nothing; what was known at the begin and at the end of its steady part."""
    schema = env.sql_query(ALL[query]).schema
    columns = ", ".join(f"c{number} {sql_name(field.type)}" for number, field in enumerate(schema))
    env.execute_sql(f"CREATE TEMPORARY TABLE sink_{query} ({columns}) WITH ('connector' = 'blackhole')")
    job = env.execute_sql(f"INSERT INTO sink_{query} {ALL[query]}").get_job_client()
    env.execute_sql(f"DROP TEMPORARY TABLE sink_{query}")
    return steady_marks(job, num_events, from_share=from_share)


def part_of(name: str) -> str:
    """Which of `PARTS` an operator belongs to, by its name."""
    for start, part in (("Source: ", "source"), ("Sink: ", "sink")):
        if name.startswith(start):
            return part
    return "chain" if name.startswith(ROW_BY_ROW) else "operator"


def used_us(mark: Mark) -> Counter[str]:
    """Microseconds of processor time so far, by part."""
    used: Counter[str] = Counter()
    for vertex in mark.view.vertices:
        for operator in vertex.operators:
            used[part_of(operator.name)] += int(operator.metrics.get("processor.used_us", 0))
            used["hop"] += int(operator.metrics.get("processor.exchanges_us", 0))
    return used


class Result:
    """What a run says, per event."""

    def __init__(self, first: Mark, last: Mark) -> None:
        done, cpu = last.done - first.done, last.cpu_seconds - first.cpu_seconds
        self.per_second = done / (last.seconds - first.seconds)
        self.per_cpu_second = done / cpu
        before, after = used_us(first), used_us(last)
        self.ns = {part: (after[part] - before[part]) * 1e3 / done for part in PARTS}
        self.ns["rest"] = cpu * 1e9 / done - sum(self.ns.values())

    def __str__(self) -> str:
        parts = " ".join(f"{self.ns[part]:>8.0f}" for part in PARTS)
        return f"{self.per_second:>10,.0f} {self.per_cpu_second:>10,.0f} {sum(self.ns.values()):>7.0f} {parts}"


class Flink:
    """Flink beside it: another Python, which keeps one warm JVM and is asked for one query after the other.

    Args:
        python: The interpreter that has apache-flink.
        jars: Jars it needs to read Parquet.
        folder: The files with the events.
        side: The file with the side table.
    """

    def __init__(self, python: str, jars: str, folder: Path, side: Path) -> None:
        script = Path(__file__).with_name("nexmark_on_flink.py")
        command = [python, str(script), "--jars", jars]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        files = f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'parquet'"
        self._say({"events": EVENTS.format(connector=files) + SIDE_INPUT.format(path=side)})

    def _say(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        message = "Flink has ended"
        raise SystemExit(message)

    def run(self, query: str, num_events: int) -> dict[str, Any]:
        """Run a query; gives ``per_second`` and ``per_cpu_second``, or an ``error``."""
        return self._say({"query": ALL[query], "events": num_events})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rate", type=float, default=100_000)
    parser.add_argument("--source", choices=("generator", "files"), default="generator")
    parser.add_argument("--from", dest="share", type=float, default=0.1)
    parser.add_argument("--actor-system", default="ray")
    parser.add_argument("--state-backend", default="heap")
    parser.add_argument("--low-latency", action="store_true", help="buffers as they are by default: small ones")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; several times")
    parser.add_argument("--flink", metavar="PYTHON")
    parser.add_argument("--flink-jars", default="", metavar="FOLDER", help="jars beside Flink's own, to read Parquet")
    options = parser.parse_args()
    from_files = options.source == "files" or options.flink is not None
    queries = options.queries or (FROM_FILES if from_files else NAMES)
    print(describe_machine())
    print(f"{options.events:,} events from {'files' if from_files else 'the generator'}, {options.rate:,.0f} a second")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "events"
        folder.mkdir()
        connector = f"'connector' = 'nexmark', 'events.num' = '{options.events}', 'next-event.rate' = '{options.rate}'"
        if from_files:
            write_events(folder, options.events, options.rate, 2)
            connector = FILES.format(path=folder)
        (Path(place) / "no-events").mkdir()
        if from_files:
            write_events(Path(place) / "no-events", 50, options.rate, 1)
        flink = Flink(options.flink, options.flink_jars, folder, Path(place) / "side.csv") if options.flink else None
        with TableEnvironment.create(parallelism=2, actor_system=options.actor_system) as env:
            env.stream_environment.set_state_backend(options.state_backend)
            env.execute_sql("SET 'table.dml-sync' = 'false'")
            if not options.low_latency:
                env.execute_sql("SET 'taskmanager.network.memory.buffer-debloat.enabled' = 'false'")
                env.execute_sql("SET 'execution.buffer-timeout.interval' = '100 ms'")
            for setting in options.set:
                key, _, value = setting.partition("=")
                env.execute_sql(f"SET '{key}' = '{value}'")
            add_events(env, connector)
            with_side_input(env, Path(place) / "side.csv")
            report(env, queries, options, flink)


def report(env: TableEnvironment, queries: Any, options: Any, flink: Flink | None) -> None:
    heads = " ".join(f"{part:>8}" for part in PARTS)
    print(f"{'':4} {'events/s':>10} {'/CPU s':>10} {'ns CPU':>7} {heads} {'plan ms':>8}")
    ratios = []
    for query in queries:
        beside = flink.run(query, options.events) if flink is not None and query in ALL else {}
        try:
            if query not in ALL:
                print(f"{query:4} has no text in nexmark_kit")
                continue
            planned = planning_ms(env, ALL[query])
            result = Result(*run(env, query, options.events, options.share))
        except HeadraceError as error:
            print(f"{query:4} refused: {error}")
            continue
        line = f"{query:4} {result} {planned:>8.0f}"
        if "error" in beside:
            line += f"   Flink: {beside['error']}"
        elif beside:
            ratios.append(result.per_cpu_second / beside["per_cpu_second"])
            line += f"   Flink {beside['per_second']:,.0f}, {beside['per_cpu_second']:,.0f}: {ratios[-1]:.2f}"
        print(line, flush=True)
    if ratios:
        print(f"ratio by CPU second, geometric mean of {len(ratios)}: {math.prod(ratios) ** (1 / len(ratios)):.2f}")
    if flink is not None:
        flink.close()


if __name__ == "__main__":
    main()
