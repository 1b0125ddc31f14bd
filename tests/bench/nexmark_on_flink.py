"""Runs queries on Flink, for `nexmark`: a Python that has apache-flink, asked over its standard input.

Install it into an environment of its own, with Java 17 on the path or as JAVA_HOME, and Flink's Parquet format with
what it needs of Hadoop, as jars in a folder::

    python3.11 -m venv flink && flink/bin/pip install apache-flink==2.3.0
    mvn dependency:copy-dependencies -DoutputDirectory=jars -f POM

where POM depends on ``org.apache.flink:flink-sql-parquet:2.3.0``, ``org.apache.hadoop:hadoop-client-api:3.3.6``,
``org.apache.hadoop:hadoop-client-runtime:3.3.6`` and ``commons-logging:commons-logging:1.2``.

Each line that comes is JSON. The first has ``tables``: by the name of a folder of events, statements that create the
tables over them; that of ``no-events`` has hardly any. Each other one has ``query``, ``from`` (a folder), ``events``,
how many it has, and ``warm``, another folder; the answer is a line with events per second and per processor second.

Flink is set up as its Nexmark sets it up, and as fast as it is here: state on the heap, mini-batches of 2 s or 50,000
rows, split distinct aggregation, two-phase aggregation, object reuse, parallelism 2, no checkpoints; one JVM for all
queries. Each is run twice, over the folder ``warm`` first, so that its code is compiled before it is measured, and what
the second run took counts, less what a run of the same query over no events takes: planning, starting and stopping.
Processor seconds are those of this process and all below it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "pipeline.object-reuse": "true",
    "state.backend.type": "hashmap",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.optimizer.agg-phase-strategy": "AUTO",
    "taskmanager.memory.managed.size": "512m",
    "table.local-time-zone": "UTC",
    "rest.port": "0",
}


def processor_seconds() -> float:
    """What this process and those below it have used."""
    found: dict[int, list[str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            found[int(directory.name)] = (directory / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended
    ours, todo = set(), [os.getpid()]
    while todo:
        ours.add(todo.pop())
        todo.extend(pid for pid, stat in found.items() if int(stat[1]) in ours and pid not in ours and pid not in todo)
    ticks = sum(int(found[pid][11]) + int(found[pid][12]) for pid in ours if pid in found)
    return ticks / os.sysconf("SC_CLK_TCK")


def into_nothing(env: TableEnvironment, query: str) -> tuple[float, float]:
    """Seconds and processor seconds of a query whose rows are thrown away."""
    env.execute_sql("DROP TEMPORARY TABLE IF EXISTS nothing")
    types = env.sql_query(query)._j_table.getResolvedSchema().getColumnDataTypes()
    names = [kind.getLogicalType().copy(True).asSerializableString() for kind in types]
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(names))
    env.execute_sql(f"CREATE TEMPORARY TABLE nothing ({columns}) WITH ('connector' = 'blackhole')")
    began, used = time.perf_counter(), processor_seconds()
    env.execute_sql(f"INSERT INTO nothing {query}").wait()
    return time.perf_counter() - began, processor_seconds() - used


def measured(tables: dict[str, TableEnvironment], asked: dict[str, Any]) -> dict[str, object]:
    query = asked["query"]
    into_nothing(tables[asked["warm"]], query)
    seconds, used = into_nothing(tables[asked["from"]], query)
    idle_seconds, idle_used = into_nothing(tables["no-events"], query)
    return {
        "per_second": asked["events"] / (seconds - idle_seconds),
        "per_cpu_second": asked["events"] / (used - idle_used),
        "seconds": [seconds, idle_seconds, used, idle_used],
    }


def environment(statements: str) -> TableEnvironment:
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in SETTINGS.items():
        env.get_config().set(key, value)
    for statement in statements.split(";"):
        if statement.strip():
            env.execute_sql(statement)
    return env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", default="")
    options = parser.parse_args()
    if options.jars:
        os.environ["HADOOP_CLASSPATH"] = ":".join(map(str, Path(options.jars).glob("*.jar")))
        SETTINGS["pipeline.jars"] = ";".join(f"file://{jar}" for jar in Path(options.jars).glob("*.jar"))
    tables = {name: environment(one) for name, one in json.loads(sys.stdin.readline())["tables"].items()}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = measured(tables, asked)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines()]
            causes = [line for line in lines if line.startswith(": ") or line.startswith("Caused by: ")]
            answer = {"error": (causes or lines)[-1][:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
