"""Nexmark in SQL: events per second, per processor second, and where the nanoseconds of an event go.

``python tests/bench/nexmark.py [--rate 100000] [--source files] [q0 q4 ...]``, or beside Flink, all queries:
``python tests/bench/nexmark.py --flink PYTHON [--flink-jars FOLDER]`` (about a quarter of an hour on two idle cores).

Each query runs alone, on Ray, at parallelism 2, into a sink that forgets. Events are made up with all their columns as
Arrow arrays, whatever the query reads; or read from Parquet files (``--source files``), one for each subtask, of which
only what is read is decoded. ``--rate`` is events per second of event time: at 10,000 windows fire ten times as often.
The free texts come from pools drawn once and are sliced, not drawn for each event.
Queries of `HEAVY` keep rows or many values, and take long: they read ``--heavy-events``, all others ``--events``.
Buffers are sent when they are full or 100 ms old, as Flink's are by default, and are not made smaller for slow
consumers; ``--low-latency`` leaves them as they are here by default.

What is printed of a query:

* events per second, and per processor second, between the job's reports of 10 % (``--from``) and 95 % of the input:
  starting, loading of compiled loops and the end do not count. Processor seconds are those of all hosts. A run with
  fewer than `measure.REPORTS` reports between is too short to say anything, and says so.
* nanoseconds of processor time an event, by the job's own metrics between the same reports (``processor.used_us`` is
  what an operator itself has used, ``processor.exchanges_us`` what its task has outside of operators): of the *source*;
  the *chain*, which is all that works row by row (conditions, columns, times and watermarks); *operators* with state;
  the *hop*, which is taking what has arrived, cutting by key, and gathering; the *sink*; and the *rest*: what hosts use
  beyond that (encoding and sending messages, Ray, checkpoints, collecting garbage).
* milliseconds to plan it, parsing to streams, the best of three.

Free memory is written to before each query, and left to it when the job runs (`measure.touched`), as Flink's JVM, which
keeps its heap, has had a run of the same query before.

With ``--flink PYTHON`` that Python, which has apache-flink, runs the same queries from the same files before each of
them, and the ratio of events per processor second is printed, with the geometric mean (`nexmark_on_flink`, which says
how it is installed). There q14 counts letters with built-in functions, on both sides: Flink's own is written in Java.
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
from measure import Mark, TooShort, describe_machine, steady_marks, touch_memory, touched

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import nexmark_kit
from nexmark_kit import BY_THE_CLOCK, EVENTS, FILES, QUERIES, SIDE_INPUT, add_events, with_side_input

from headrace.connectors.nexmark import NexmarkGenerator
from headrace.engine.errors import HeadraceError
from headrace.sql.parsing.sql_types import sql_name
from headrace.table import TableEnvironment

# Workers have no such module: the function of q14 travels by value.
cloudpickle.register_pickle_by_value(nexmark_kit)

ALL = {**QUERIES, **BY_THE_CLOCK}
NAMES = tuple(f"q{number}" for number in range(24))
NOT_ON_FLINK = ("q6", "q10", "q13")
"""Flink has no OVER by what is no time; q10 writes files; q13 looks rows of a file up, which Flink does not."""
HEAVY = ("q4", "q6", "q7", "q9", "q15", "q16", "q17", "q18", "q19", "q20", "q23")
BATCH = 65_536
REPORT_MS = 100
BUILT_IN = {"count_char(extra, 'c')": "CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', ''))"}
"""What stands for functions of one's own where queries run beside Flink."""
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


def run(env: TableEnvironment, query: str, text: str, num_events: int, from_share: float) -> tuple[Mark, Mark]:
    """Run a query into nothing; what was known at the begin and at the end of its steady part."""
    schema = env.sql_query(text).schema
    columns = ", ".join(f"c{number} {sql_name(field.type)}" for number, field in enumerate(schema))
    env.execute_sql(f"CREATE TEMPORARY TABLE sink_{query} ({columns}) WITH ('connector' = 'blackhole')")
    held = touched()
    job = env.execute_sql(f"INSERT INTO sink_{query} {text}").get_job_client()
    env.execute_sql(f"DROP TEMPORARY TABLE sink_{query}")
    next(view for view in job.views() if view.state != "CREATED")
    held.clear()  # the job gets it before the machine's host does
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
        jars: Jars it needs to read Parquet, if they are not beside its own.
        place: Where the folders with events and the file with the side table are.
    """

    def __init__(self, python: str, jars: str, place: Path) -> None:
        script = Path(__file__).with_name("nexmark_on_flink.py")
        command = [python, str(script), "--jars", jars]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        tables = {}
        for folder in (*EVENTS_OF, "no-events"):
            files = f"'connector' = 'filesystem', 'path' = '{place / folder}', 'format' = 'parquet'"
            tables[folder] = EVENTS.format(connector=files) + SIDE_INPUT.format(path=place / "side.csv")
        self._say({"tables": tables})

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

    def run(self, text: str, folder: str, num_events: int) -> dict[str, Any]:
        """Run a query over the events of a folder; gives ``per_second`` and ``per_cpu_second``, or an ``error``.

        The code is warm after the few events of the heavy queries.
        """
        return self._say({"query": text, "warm": "heavy", "from": folder, "events": num_events})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


EVENTS_OF = ("events", "heavy")
"""Folders: the events of most queries, and those of `HEAVY`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--heavy-events", type=int, default=3_000_000)
    parser.add_argument("--rate", type=float, default=100_000)
    parser.add_argument("--source", choices=("generator", "files"), default="generator")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="where files are kept, and found by the next run")
    parser.add_argument("--from", dest="share", type=float, default=0.1)
    parser.add_argument("--actor-system", default="ray")
    parser.add_argument("--state-backend", default="heap")
    parser.add_argument("--low-latency", action="store_true", help="buffers as they are by default: small ones")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; several times")
    parser.add_argument("--flink", metavar="PYTHON")
    parser.add_argument("--flink-jars", default="", metavar="FOLDER", help="jars beside Flink's own, to read Parquet")
    options = parser.parse_args()
    options.from_files = options.source == "files" or options.flink is not None
    beside_flink = tuple(name for name in NAMES if name not in NOT_ON_FLINK)
    queries = options.queries or (beside_flink if options.flink else NAMES)
    print(describe_machine())
    print(touch_memory())
    print(f"{options.events:,} events ({options.heavy_events:,} for {', '.join(HEAVY)}) from "
          f"{'files' if options.from_files else 'the generator'}, {options.rate:,.0f} a second")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        place = options.files or Path(temporary)
        if options.from_files:
            for folder, count in (("events", options.events), ("heavy", options.heavy_events), ("no-events", 50)):
                if not (place / folder).exists():
                    (place / folder).mkdir(parents=True)
                    write_events(place / folder, count, options.rate, 1 if folder == "no-events" else 2)
        flink = Flink(options.flink, options.flink_jars, place) if options.flink else None
        ratios: list[float] = []
        heads = " ".join(f"{part:>8}" for part in PARTS)
        print(f"{'':4} {'events/s':>10} {'/CPU s':>10} {'ns CPU':>7} {heads} {'plan ms':>8}")
        for folder in EVENTS_OF:
            chosen = [name for name in queries if (name in HEAVY) == (folder == "heavy")]
            if chosen:
                report(chosen, folder, place, options, flink, ratios)
        if ratios:
            mean = math.prod(ratios) ** (1 / len(ratios))
            print(f"ratio by CPU second, geometric mean of {len(ratios)}: {mean:.2f}, the lowest {min(ratios):.2f}")
        if flink is not None:
            flink.close()


def report(
    queries: list[str], folder: str, place: Path, options: Any, flink: Flink | None, ratios: list[float]
) -> None:
    """Run queries over the events of a folder, and say what came of each; ratios to Flink are added."""
    num_events = options.heavy_events if folder == "heavy" else options.events
    connector = f"'connector' = 'nexmark', 'events.num' = '{num_events}', 'next-event.rate' = '{options.rate}'"
    system = {"actor_system": options.actor_system, "metrics_interval_ms": REPORT_MS}
    with TableEnvironment.create(parallelism=2, **system) as env:
        env.stream_environment.set_state_backend(options.state_backend)
        env.execute_sql("SET 'table.dml-sync' = 'false'")
        if not options.low_latency:
            env.execute_sql("SET 'taskmanager.network.memory.buffer-debloat.enabled' = 'false'")
            env.execute_sql("SET 'execution.buffer-timeout.interval' = '100 ms'")
        for setting in options.set:
            key, _, value = setting.partition("=")
            env.execute_sql(f"SET '{key}' = '{value}'")
        add_events(env, FILES.format(path=place / folder) if options.from_files else connector)
        with_side_input(env, place / "side.csv")
        for query in queries:
            if query not in ALL:
                print(f"{query:4} has no text in nexmark_kit")
                continue
            text = ALL[query]
            if flink is not None:
                for own, built_in in BUILT_IN.items():
                    text = text.replace(own, built_in)
            beside = flink.run(text, folder, num_events) if flink is not None else {}
            print(line_of(env, query, text, num_events, options.share, beside, ratios), flush=True)


def line_of(
    env: TableEnvironment, query: str, text: str, num_events: int, share: float, beside: dict[str, Any],
    ratios: list[float],
) -> str:  # fmt: skip
    """What a run of a query comes to, in a line; with what Flink said beside it."""
    try:
        planned = planning_ms(env, text)
        result = Result(*run(env, query, text, num_events, share))
    except (HeadraceError, TooShort) as error:
        return f"{query:4} says nothing: {error}"
    line = f"{query:4} {result} {planned:>8.0f}"
    if "error" in beside:
        return f"{line}   Flink: {beside['error']}"
    if beside:
        ratios.append(result.per_cpu_second / beside["per_cpu_second"])
        line += f"   Flink {beside['per_second']:,.0f}, {beside['per_cpu_second']:,.0f}: {ratios[-1]:.2f}"
    return line


if __name__ == "__main__":
    main()
