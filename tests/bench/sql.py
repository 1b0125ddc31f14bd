"""Queries of Nexmark in SQL: events per second and per processor second, beside DuckDB over the same events.

``python tests/bench/sql.py [--events 2000000] [--system ray] [q0 q4 ...]``. Both read the same Parquet files, so that
making events does not count. DuckDB gets all rows at once and keeps nothing for rows to come; a stream keeps state and
gives changes. The ratio is engine to DuckDB, by processor second.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from measure import describe_machine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from nexmark_kit import BY_THE_CLOCK, EVENTS, QUERIES, with_side_input

from headrace.connectors.nexmark import NexmarkGenerator
from headrace.table import TableEnvironment, udf

CHOSEN = (
    "q0",
    "q1",
    "q2",
    "q3",
    "q4",
    "q5",
    "q7",
    "q8",
    "q9",
    "q11",
    "q12",
    "q13",
    "q15",
    "q16",
    "q17",
    "q18",
    "q19",
    "q20",
    "q22",
)
IN_DUCKDB = ("q0", "q1", "q2", "q3", "q4", "q9", "q18", "q19", "q20")
"""Queries that mean the same there, word for word."""

BATCH = 50_000


def write_events(path: Path, count: int) -> None:
    """Write events as Parquet, 10,000 a second of event time."""
    generator = NexmarkGenerator()
    writer: Any = None
    for start in range(0, count, BATCH):
        batch = generator.events(start, min(BATCH, count - start)).columns
        writer = writer or pq.ParquetWriter(path, batch.schema, compression="lz4")
        writer.write_batch(batch, row_group_size=BATCH)
    writer.close()


def processor_seconds() -> float:
    """What this process and its children that have ended have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def by_engine(env: TableEnvironment, query: str) -> tuple[float, float]:
    """Seconds and processor seconds of a query whose result is thrown away."""
    text = (QUERIES | BY_THE_CLOCK)[query]
    schema = env.sql_query(text).schema
    columns = ", ".join(f"c{i} {_name(field.type)}" for i, field in enumerate(schema))
    env.execute_sql(f"CREATE TABLE sink_{query} ({columns}) WITH ('connector' = 'blackhole')")
    began, used = time.perf_counter(), processor_seconds()
    env.execute_sql(f"INSERT INTO sink_{query} {text}")
    return time.perf_counter() - began, processor_seconds() - used


def _name(kind: pa.DataType) -> str:
    from headrace.sql.parsing.types import sql_name

    return sql_name(kind)


def by_duckdb(path: Path, query: str) -> tuple[float, float]:
    """The same for DuckDB, on one thread."""
    text = QUERIES[query].replace("`", '"')
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name in ("person", "auction", "bid"):
            number = ("person", "auction", "bid").index(name)
            connection.execute(f"CREATE VIEW {name} AS SELECT {name}.* FROM '{path}' WHERE event_type = {number}")
        began, used = time.perf_counter(), processor_seconds()
        connection.execute(text).to_arrow_table()
        return time.perf_counter() - began, processor_seconds() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queries", nargs="*", default=CHOSEN)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        write_events(path, options.events)
        env = TableEnvironment.create(parallelism=options.parallelism, actor_system="local")
        env.execute_script(EVENTS.format(path=path))
        with_side_input(env, Path(folder) / "side.csv")
        env.create_temporary_function("count_char", udf(lambda text, one: text.count(one), result_type="BIGINT"))
        by_engine(env, "q17")  # loads and compiles what all need
        env.execute_sql("DROP TABLE sink_q17")
        for query in options.queries:
            seconds, used = by_engine(env, query)
            line = f"{query}: {options.events / seconds:,.0f} events/s, {options.events / used:,.0f} per CPU second"
            if query in IN_DUCKDB:
                other, other_used = by_duckdb(path, query)
                line += f"; DuckDB {options.events / other:,.0f}, {options.events / other_used:,.0f}"
                line += f"; ratio by CPU second {other_used / used:.2f}"
            print(line, flush=True)
        env.close()


if __name__ == "__main__":
    main()
