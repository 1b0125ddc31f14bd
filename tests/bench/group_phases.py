"""GROUP BY in one phase and in two: processor time of a record, from batches in front of the shuffle to changes.

``python tests/bench/group_phases.py [--batches 24] [--rows 16384]``

Two senders cut their batches by key for two receivers, encode and decode what they send, and receivers aggregate; all
in one process, so that processor time is counted. ``one`` sends records, ``two`` folds every batch, ``auto`` looks
whether that pays. Rounds of the three take turns, and the best of each counts. Of a case are printed nanoseconds of
processor time a record, the ratio to one phase, and how many rows go over the shuffle for a record; ``busiest`` is the
share of the receivers' work that the busier one has.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measure import describe_machine
from operator_harness import OperatorHarness

from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate
from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import Batch
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.functions.keys import KeySelector
from headrace.engine.operators.exchange import HashPartitioner

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])
SUMS = {"n": f.count(), "s": f.sum("v"), "m": f.max("v")}
FEW = {"n": f.count(), "d": f.count_distinct(col("v") // 100)}
DISTINCT = {"n": f.count(), "d": f.count_distinct("w")}
CASES = (
    ("sums", SUMS, False),
    ("sums, taken back", SUMS, True),
    ("distinct", DISTINCT, False),
    ("few values", FEW, False),
)
KEYS = {
    "10 keys": lambda rng, rows: rng.integers(0, 10, rows),
    "rows / 16": lambda rng, rows: rng.integers(0, rows // 16, rows),
    "rows / 4": lambda rng, rows: rng.integers(0, rows // 4, rows),
    "rows / 2": lambda rng, rows: rng.integers(0, rows // 2, rows),
    "1 M keys": lambda rng, rows: rng.integers(0, 1_000_000, rows),
    "half of one": lambda rng, rows: np.where(rng.random(rows) < 0.5, 7, rng.integers(0, 1_000_000, rows)),
}
"""How keys are drawn; ``half of one``: every second record has the same, the others one of a million."""


class Way:
    """Senders and receivers, in one phase or in two."""

    def __init__(self, phases: str, aggregates: dict[str, Any], *, takes_back: bool) -> None:
        options: Any = {"input_schema": SCHEMA, "takes_back": takes_back}
        self._locals: list[OperatorHarness] = []
        if phases != "one":
            local = LocalGroupAggregate(["k"], aggregates, **options, adapts=phases == "auto")
            self._locals = [OperatorHarness(local, subtask=i, parallelism=2) for i in range(2)]
        group = GroupAggregate(["k"], aggregates, **options)
        self._receivers = [OperatorHarness(group, subtask=i, parallelism=2) for i in range(2)]
        self._cut = HashPartitioner(KeySelector.of_field("k")).bind(2, 0, 128)
        self.sent, self.seconds, self.work = 0, 0.0, [0.0, 0.0]

    def take(self, batch: Batch, sender: int) -> None:
        """Take a batch of one of the senders."""
        began = time.process_time()
        given = [batch]
        if self._locals:
            self._locals[sender].operator.process_batch(batch, 0)
            given, self._locals[sender].output.elements = self._locals[sender].output.elements, []
        for one in given:
            self.sent += one.num_rows
            for receiver, piece in self._cut.partition(one):
                arrived = pickle.loads(pickle.dumps(piece, protocol=5))
                before = time.process_time()
                self._receivers[receiver].operator.process_batch(arrived, 0)
                self.work[receiver] += time.process_time() - before
                self._receivers[receiver].output.elements.clear()
        self.seconds += time.process_time() - began


def batches_of(draw: Any, num: int, rows: int, *, takes_back: bool) -> list[Batch]:
    """Batches of random rows; with ``takes_back`` every second row takes back the one before, which an update does."""
    rng, made = np.random.default_rng(5), []
    for _ in range(num):
        keys = draw(rng, rows)
        columns = [keys, rng.integers(0, 1_000, rows), rng.integers(0, 20_000, rows)]
        kinds = None
        if takes_back:
            # A row comes, is taken back, and comes again with another value.
            columns = [np.repeat(column[: rows // 3], 3) for column in columns]
            columns[1][2::3] += 1
            kinds = np.tile(np.array([0, 1, 2], np.int8), rows // 3)
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)
        made.append(Batch.of_columns(batch, None, kinds))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe_machine())
    heads = "".join(f"{one:>7}" for one in ("one", "two", "auto", "two", "auto", "sent", "auto"))
    print(f"{'':34}{heads}   busiest: one, two")
    for what, aggregates, takes_back in CASES:
        for name, draw in KEYS.items():
            batches = batches_of(draw, options.batches, options.rows, takes_back=takes_back)
            best: dict[str, Way] = {}
            for _ in range(options.rounds):
                for phases in ("one", "two", "auto"):
                    way = Way(phases, aggregates, takes_back=takes_back)
                    for number, batch in enumerate(batches):
                        way.take(batch, number % 2)
                    if phases not in best or way.seconds < best[phases].seconds:
                        best[phases] = way
            records = sum(batch.num_rows for batch in batches)
            ns = {phases: way.seconds * 1e9 / records for phases, way in best.items()}
            busiest = {phases: max(way.work) / sum(way.work) for phases, way in best.items()}
            numbers = f"{ns['one']:7.0f}{ns['two']:7.0f}{ns['auto']:7.0f}"
            ratios = f"{ns['two'] / ns['one']:7.2f}{ns['auto'] / ns['one']:7.2f}"
            sent = f"{best['two'].sent / records:7.2f}{best['auto'].sent / records:7.2f}"
            print(f"{what:17}{name:17}{numbers}{ratios}{sent}   {busiest['one']:.2f}, {busiest['two']:.2f}", flush=True)


if __name__ == "__main__":
    main()
