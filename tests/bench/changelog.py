"""Operators over changes: records a second and nanoseconds of CPU a record, of one operator in one process.

``python tests/bench/changelog.py``. Batches of 65,536 records of columns are made beforehand, shaped like Nexmark's
bids and auctions: half of all bids are for a few hot auctions. Each operator is fed them as a task would feed it; the
first quarter fills its tables and is not measured. Beside each stands the same question to pandas over all records at
once, by the same process and in one piece: what an engine without state would do, once. The last two figures are what
the first snapshot costs, which writes the whole table, and how large it is.

Both give tables of as many rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from measure import describe_machine

sys.path.append(str(Path(__file__).resolve().parent.parent))

from operator_harness import OperatorHarness

from headrace.engine.changelog.final_table import FinalTable
from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.conditionals import when
from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import Batch
from headrace.engine.functions.aggregates import built_in as f

ROWS = 65_536
BIDS = pa.schema([("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("at", pa.timestamp("ms"))])
AUCTIONS = pa.schema([("id", pa.int64()), ("category", pa.int64()), ("item", pa.string())])


def bids_of(num_batches: int, num_auctions: int) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(3)
    batches = []
    for number in range(num_batches):
        auctions = rng.integers(0, num_auctions, ROWS)
        is_hot = rng.random(ROWS) < 0.5
        auctions[is_hot] = auctions[is_hot] % 100
        columns = [auctions, rng.integers(0, 50_000, ROWS), (10 ** rng.uniform(2, 7, ROWS)).astype(np.int64)]
        at = pa.array(np.arange(number * ROWS, (number + 1) * ROWS)).cast(pa.timestamp("ms"))
        batches.append(pa.RecordBatch.from_arrays([*map(pa.array, columns), at], schema=BIDS))
    return batches


def auctions_of(num_auctions: int) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(4)
    ids = np.arange(num_auctions)
    columns = [
        pa.array(ids),
        pa.array(rng.integers(10, 15, num_auctions)),
        pa.array([f"item {number}" for number in ids]),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=AUCTIONS)
    return [whole.slice(start, ROWS) for start in range(0, num_auctions, ROWS)]


class Case:
    """An operator, what it is fed, and the same for pandas.

    Attributes:
        first: Batches that are fed to input 0 before all others, and not measured.
        plain: Gives the same table of all records at once; of its rows, the number.
    """

    def __init__(
        self, name: str, operator: Any, plain: Callable[[pd.DataFrame], Any], first: list[pa.RecordBatch] = ()
    ) -> None:
        self.name, self.operator, self.plain, self.first = name, operator, plain, first

    def run(self, batches: list[pa.RecordBatch]) -> None:
        harness = OperatorHarness(self.operator)
        for batch in self.first:
            harness.operator.process_batch(Batch.of_columns(batch), 0)
        side = 1 if self.first else 0
        filled, out = len(batches) // 4, []
        for number, batch in enumerate(batches):
            if number == filled:
                begin, began = time.process_time(), time.perf_counter()
            harness.operator.process_batch(Batch.of_columns(batch), side)
        cpu, wall = time.process_time() - begin, time.perf_counter() - began
        out = harness.output.elements
        num = (len(batches) - filled) * ROWS
        frame = pa.Table.from_batches(batches).to_pandas()
        plain_begin = time.process_time()
        wanted = self.plain(frame)
        plain = (time.process_time() - plain_begin) / len(frame) * 1e9
        table = FinalTable(self.operator.output_schema())
        for batch in out:
            table.add(batch)
        assert len(table.rows()) == wanted, (self.name, len(table.rows()), wanted)
        begin = time.process_time()
        num_bytes = sum(len(part.data) for part in harness.snapshot())
        snapshot = time.process_time() - begin
        num_out = sum(batch.num_rows for batch in out)
        print(
            f"{self.name:<34} {num / wall / 1e6:6.2f} M records/s  {cpu / num * 1e9:6.0f} ns CPU a record"
            f"   at once, plainly {plain:5.0f}   changes out {num_out / len(frame):4.2f} a record"
            f"   first snapshot {snapshot * 1e3:5.0f} ms, {num_bytes / 1e6:.1f} MB"
        )


def cases(num_auctions: int) -> list[Case]:
    count_sum_max = {"bids": f.count(), "total": f.sum("price"), "most": f.max("price")}
    low, high = col("price") < 10_000, col("price") >= 1_000_000
    distinct = {
        "all": f.count_distinct("bidder"),
        "low": f.count_distinct(when(low).then(col("bidder")).otherwise(None)),
        "high": f.count_distinct(when(high).then(col("bidder")).otherwise(None)),
    }

    def group(keys: list[str], aggregates: Any, *, takes_back: bool) -> GroupAggregate:
        return GroupAggregate(keys, aggregates, input_schema=BIDS, takes_back=takes_back)

    def plain_group(frame: pd.DataFrame) -> int:
        return len(frame.groupby("auction").agg(bids=("price", "size"), total=("price", "sum"), most=("price", "max")))

    def plain_distinct(frame: pd.DataFrame) -> int:
        chosen = (frame["price"] > 0, frame["price"] < 10_000, frame["price"] >= 1_000_000)
        counts = [frame[rows].groupby("auction")["bidder"].nunique() for rows in chosen]
        return len(counts[0])

    auctions = auctions_of(num_auctions)

    def plain_join(frame: pd.DataFrame) -> int:
        return len(frame.merge(pa.Table.from_batches(auctions).to_pandas(), left_on="auction", right_on="id"))

    def plain_top(frame: pd.DataFrame) -> int:
        return len(frame.sort_values("price", ascending=False, kind="stable").groupby("auction").head(10))

    def plain_last(frame: pd.DataFrame) -> int:
        return len(frame.drop_duplicates(["bidder", "auction"], keep="last"))

    join = ChangelogJoin(
        ["id"],
        ["auction"],
        "inner",
        left_schema=AUCTIONS,
        right_schema=BIDS,
        projection=[(1, "auction", "auction"), (1, "price", "price"), (0, "category", "category"), (0, "item", "item")],
    )
    top = Rank(["auction"], [("price", False, None)], input_schema=BIDS, limit=10, number="place", takes_back=False)
    last = Rank(
        ["bidder", "auction"], [("at", False, None)], input_schema=BIDS, limit=1, takes_back=False, ties_keep_last=True
    )
    return [
        Case("count, sum, max; insert-only", group(["auction"], count_sum_max, takes_back=False), plain_group),
        Case("count, sum, max; may be taken back", group(["auction"], count_sum_max, takes_back=True), plain_group),
        Case("three filtered distinct counts", group(["auction"], distinct, takes_back=False), plain_distinct),
        Case("join of bids and auctions", join, plain_join, auctions),
        Case("top 10 of each auction", top, plain_top),
        Case("last bid by bidder and auction", last, plain_last),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--auctions", type=int, default=100_000)
    arguments = parser.parse_args()
    print(describe_machine())
    print(f"{arguments.batches} batches of {ROWS:,} bids, {arguments.auctions:,} auctions")
    batches = bids_of(arguments.batches, arguments.auctions)
    for case in cases(arguments.auctions):
        case.run(batches)


if __name__ == "__main__":
    main()
