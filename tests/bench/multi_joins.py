"""Joins with a common key, each for itself and as one operator: processor time and bytes of state.

``python tests/bench/multi_joins.py``. Chains of joins run with `table.optimizer.multi-join.enabled` off and on, joins
that read one table with `table.optimizer.shared-join-state.enabled`, in turns, at parallelism 1 in this process, from
rows that are made into nothing. Times are processor time of the process, the least of several runs; bytes are those of
the checkpoint at the end of the input.

The four-way join has as many rows of each input as keys, so that what is between grows with each join; in the other
one, two of the inputs are updated, as bids that win an auction are in Nexmark's q9.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from measure import describe_machine

from headrace.connectors.datagen import GeneratorSource
from headrace.table import TableEnvironment

CHAINS = "table.optimizer.multi-join.enabled"
IN_COMMON = "table.optimizer.shared-join-state.enabled"
WIDE = """SELECT a.n AS an, a.t AS at, b.n AS bn, b.t AS bt, c.n AS cn, c.t AS ct, d.n AS dn, d.t AS dt
    FROM a {0} b ON a.k = b.k {0} c ON a.k = c.k {0} d ON a.k = d.k"""
QUERIES = {
    "four-way inner join": WIDE.format("JOIN"),
    "four-way left join": WIDE.format("LEFT JOIN"),
    "winning rows of two inputs": """SELECT a.n AS an, a.t AS at, p.most AS pm, q.n AS qn, q.t AS qt FROM a
        JOIN (SELECT k, MAX(n) AS most FROM b GROUP BY k) AS p ON a.k = p.k
        JOIN (SELECT k, n, t FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY n DESC) AS place FROM c)
              WHERE place = 1) AS q ON q.k = a.k""",
    "three joins of one table": """
        SELECT a.n AS an, a.t AS at, b.n AS bn, b.t AS bt FROM b JOIN a ON a.k = b.k UNION ALL
        SELECT a.n, a.t, c.n, c.t FROM c JOIN a ON a.k = c.k UNION ALL
        SELECT a.n, a.t, d.n, d.t FROM d JOIN a ON a.k = d.k""",
    "three outer joins of one table": """
        SELECT a.n AS an, a.t AS at, b.n AS bn, b.t AS bt FROM a LEFT JOIN b ON a.k = b.k
        UNION ALL SELECT a.n, a.t, c.n, c.t FROM a LEFT JOIN c ON a.k = c.k UNION ALL
        SELECT a.n, a.t, d.n, d.t FROM a LEFT JOIN d ON a.k = d.k""",
}


class Rows:
    """Rows of an input by their numbers: each key comes about once, in an order of its own."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self._order = (seed * 7_919 + 1, seed * 104_729 + 12_345)
        self._num_rows = num_rows

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + length)
        keys = (numbers * self._order[0] + self._order[1]) % self._num_rows
        texts = [f"the text of row {number}, which is of some length" for number in numbers.tolist()]
        return pa.record_batch([pa.array(keys), pa.array(numbers * 31 % 1_009), pa.array(texts)], ["k", "n", "t"])


def run(query: str, num_rows: int, *, is_on: bool) -> tuple[float, int]:
    """Processor seconds of a run, and bytes of its last checkpoint."""
    with tempfile.TemporaryDirectory() as folder, TableEnvironment.create(parallelism=1, actor_system="local") as env:
        schema = Rows(1, 1)(0, 1).schema
        for seed, name in enumerate("abcd", 1):
            source = GeneratorSource.batches(Rows(num_rows, seed), num_rows, number_of_splits=1, batch_size=4_096)
            env.create_temporary_view(name, env.stream_environment.from_source(source, type_info=schema))
        columns = {field.name: field.type for field in env.sql_query(query).schema}
        declared = ", ".join(
            f"{name} {'STRING' if kind == pa.string() else 'BIGINT'}" for name, kind in columns.items()
        )
        env.execute_sql(f"CREATE TABLE nothing ({declared}) WITH ('connector' = 'blackhole')")
        setting = IN_COMMON if "UNION" in query else CHAINS
        env.execute_sql(f"SET '{setting}' = '{str(is_on).lower()}'")
        env.execute_sql("SET 'table.dml-sync' = 'false'")
        env.stream_environment.enable_checkpointing("1 h", directory=Path(folder) / "checkpoints")
        begin = time.process_time()
        env.execute_sql(f"INSERT INTO nothing {query}")
        client = env._execution.jobs[-1]
        client.result()
        seconds = time.process_time() - begin
        return seconds, int(client.view().last_checkpoint_metrics.get("bytes", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of each input")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(describe_machine())
    print(f"{arguments.rows:,} rows of each input; the least of {arguments.runs} runs")
    for name, query in QUERIES.items():
        run(query, 5_000, is_on=True), run(query, 5_000, is_on=False)  # compiled loops are there
        found: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
        for _ in range(arguments.runs):
            for is_on in (False, True):
                found[is_on].append(run(query, arguments.rows, is_on=is_on))
        (off_s, off_bytes), (on_s, on_bytes) = (min(found[is_on]) for is_on in (False, True))
        print(
            f"{name:30} processor s {off_s:6.2f} -> {on_s:6.2f} ({off_s / on_s:.2f} times)   "
            f"state MB {off_bytes / 1e6:7.1f} -> {on_bytes / 1e6:7.1f} ({off_bytes / max(on_bytes, 1):.2f} times)"
        )


if __name__ == "__main__":
    main()
