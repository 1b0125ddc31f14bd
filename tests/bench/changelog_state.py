"""State of queries over changes that is larger than memory: records a second, and how much memory it takes.

``python tests/bench/changelog_state.py``. An aggregate (count, sum, largest value that may be taken back) and a join
are fed batches of records until they hold the state of so many keys, then further ones, whose rate is measured: for
keys that are uniform over all of them, and for keys of which nine of ten are among a thousandth. Each runs in a process
of its own: on RocksDB with the managed memory that is given, and, beside it, with so much that all stays in memory.
Rates are records by second of processor time, of all threads of the process.

Peak memory is that of the process less what it had before the operator was opened: Python, Arrow, compiled loops and
the records that are fed are no state.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measure import describe_machine

sys.path.append(str(Path(__file__).resolve().parent.parent))

RECORDS = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("text", pa.string())])
SIDES = pa.schema([("id", pa.int64()), ("name", pa.string())])
MIB = 1 << 20


def records_of(rng: np.random.Generator, keys: np.ndarray) -> pa.RecordBatch:
    values = rng.integers(0, 1_000_000, len(keys))
    texts = pa.array(keys).cast(pa.string())
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values), texts], schema=RECORDS)


def sides_of(keys: np.ndarray) -> pa.RecordBatch:
    names = [f"the name of number {key}, which is of some length" for key in keys.tolist()]
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(names)], schema=SIDES)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Peak:
    """The most memory that the process has had; looked at all the time, as what it had before must not count."""

    def __init__(self) -> None:
        self.before = self.most = resident_bytes()
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.01):
            self.most = max(self.most, resident_bytes())

    def end(self) -> int:
        self._is_over.set()
        return self.most - self.before


def run(what: str, num_keys: int, num_rows: int, num_batches: int, room: int, directory: str) -> None:
    import operator_harness
    from operator_harness import OperatorHarness

    from headrace.engine.changelog.group_aggregate import GroupAggregate
    from headrace.engine.changelog.join import ChangelogJoin
    from headrace.engine.columns.records import Batch
    from headrace.engine.functions.aggregates import built_in as f
    from headrace.state.backends.choice import make_keyed_backend

    def backend(subtask: int, parallelism: int, now_ms: Any, _name: str) -> Any:
        groups = operator_harness.key_group_range(128, parallelism, subtask)
        return make_keyed_backend(
            "rocksdb", "op", subtask, groups, 128, now_ms, managed_memory_bytes=room, local_directory=directory
        )

    operator_harness.keyed_state = backend
    aggregates = {"n": f.count(), "total": f.sum("value"), "most": f.max("value")}
    if what == "aggregate":
        operator: Any = GroupAggregate(["key"], aggregates, input_schema=RECORDS, takes_back=True)
    else:
        projection = [(0, "id", "id"), (0, "name", "name"), (1, "value", "value")]
        schemas = {"left_schema": SIDES, "right_schema": RECORDS}
        operator = ChangelogJoin(["id"], ["key"], "inner", **schemas, projection=projection)
    rng = np.random.default_rng(1)
    warm = OperatorHarness(operator)  # compiled loops are there before memory is measured
    warm.operator.process_batch(Batch.of_columns(records_of(rng, np.arange(10))), 0 if what == "aggregate" else 1)
    warm.keyed_state.close()
    peak, harness = Peak(), OperatorHarness(operator)
    side = 0 if what == "aggregate" else 1

    def feed(columns: pa.RecordBatch, side: int) -> None:
        harness.operator.process_batch(Batch.of_columns(columns), side)
        harness.output.elements.clear()

    begin = time.process_time()
    keys = rng.permutation(num_keys)
    for start in range(0, num_keys, num_rows):
        part = keys[start : start + num_rows]
        feed(records_of(rng, part) if what == "aggregate" else sides_of(part), 0)
    filled = num_keys / (time.process_time() - begin)
    rates = []
    for hot in (0.0, 0.9):
        made = []
        for _ in range(num_batches):
            chosen = rng.integers(0, num_keys, num_rows)
            is_hot = rng.random(num_rows) < hot
            made.append(records_of(rng, keys[np.where(is_hot, chosen % max(num_keys // 1_000, 1), chosen)]))
        feed(made[0], side)
        begin = time.process_time()
        for columns in made[1:]:
            feed(columns, side)
        rates.append((num_batches - 1) * num_rows / (time.process_time() - begin))
    begin = time.process_time()
    harness.operator.snapshot_state(1)
    parts = harness.keyed_state.snapshot()
    snapshot, held = time.process_time() - begin, sum(len(part.write()) for part in parts)
    print(
        f"{what:<10} managed {room / MIB:6.0f} MiB   peak {peak.end() / MIB:6.0f} MiB   filled {filled / 1e3:6.0f},"
        f" uniform {rates[0] / 1e3:6.0f}, skewed {rates[1] / 1e3:6.0f} thousand records a CPU second"
        f"   snapshot {snapshot * 1e3:5.0f} ms, {held / MIB:5.0f} MiB stored",
        flush=True,
    )
    harness.keyed_state.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=4_000_000)
    parser.add_argument("--rows", type=int, default=65_536, help="of a batch")
    parser.add_argument("--batches", type=int, default=12, help="of each measurement")
    parser.add_argument("--memory", type=int, default=64, help="managed memory in MiB")
    parser.add_argument("--what", nargs="*", default=["aggregate", "join"])
    parser.add_argument("--rooms", nargs="*", type=int, help="managed memory in MiB, in place of both")
    parser.add_argument("--directory", default=None)
    arguments = parser.parse_args()
    print(describe_machine())
    print(f"{arguments.keys:,} keys, batches of {arguments.rows:,} records")
    for what in arguments.what:
        for room in arguments.rooms or (arguments.memory, 16_384):
            given = (what, arguments.keys, arguments.rows, arguments.batches, room * MIB, arguments.directory)
            process = multiprocessing.get_context("spawn").Process(target=run, args=given)
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
