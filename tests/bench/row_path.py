"""What a record costs on the row path and in windows with built-in aggregates, beside plain Python.

``python tests/bench/row_path.py`` tells nanoseconds of processor time. Jobs run on the local system, in this one
process and at parallelism 2, so that a busy machine and Ray's own threads do not blur it; what Ray adds is in
``keyed_count.py`` and ``keyed_state.py``. Of each job a short run is taken off, so that starting and stopping do not
count; of several runs the least is told. "Calls alone" is a loop that makes the very calls of the user's functions and
of state, and nothing else: no engine that calls these functions record by record can be faster. Beside it are told
parts of what the engine does: state, the exchange between subtasks, and pickling for those of another process.
"Passes alone" is all that the windowed reduce does with records, list by list as operators do it, with lists of one
length; and with pickling of half of the pairs, as on two hosts.

Garbage is looked for as hosts do it (``--collections``: as Python does, or never).

Windows of all and sessions run on columns, whatever their records are; they are told for records that are rows of
Python objects, and for a source of columns.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import compress
from typing import Any

import keyed_count
import keyed_state
import numpy as np
import pyarrow as pa
from measure import DiscardSink, describe_machine

from headrace import (
    EventTimeSessionWindows,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from headrace import functions as f
from headrace.actors.hosts.garbage import SparingCollector
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.columns.records import Batch
from headrace.engine.functions.keys import KeySelector
from headrace.engine.operators.exchange import HashPartitioner
from headrace.state.backends.heap.backend import HeapKeyedStateBackend
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.kinds import NO_KEY
from headrace.state.keys.hashing import hash_integers
from headrace.state.keys.key_groups import key_group_range, key_groups_of, subtask_of

SHORT = 50_000
BATCH_ROWS = 8_192
NUM_USERS = 1_000


class _Environment(StreamExecutionEnvironment):
    """Does not look for functions that change others' records, which the local system does and a cluster does not."""

    def _job_settings(self, *arguments: Any, **options: Any) -> Any:
        return replace(super()._job_settings(*arguments, **options), watches_records=False)


@contextlib.contextmanager
def collections_of(kind: str) -> Iterator[None]:
    """Look for garbage as ``hosts`` do, as ``python`` does by itself, or ``never``."""
    collector = SparingCollector()
    if kind == "hosts":
        collector.start()
    elif kind == "never":
        gc.disable()
    yield
    collector.stop()
    gc.enable()


def run(build: Callable[[StreamExecutionEnvironment], Any], parallelism: int) -> float:
    """Run a program; gives its processor seconds."""
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    made.__class__ = _Environment
    with made as env:
        build(env)
        started = time.process_time()
        env.execute()
        return time.process_time() - started


def timed(env: StreamExecutionEnvironment, make: Callable[[int], Any], at: Any, num_records: int) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner(at)
    return env.from_source(GeneratorSource(make, count=num_records), strategy, "records")


time_of = lambda row, _: row[2]
is_kept = lambda row: row[0] != 9
to_pair = lambda row: (row[1], 1)
key_of = lambda pair: pair[0]
add = lambda a, b: (a[0], a[1] + b[1])


def windowed_reduce(num_records: int) -> Callable[[Any], Any]:
    def build(env: Any) -> None:
        (
            timed(env, keyed_count.make_row, time_of, num_records)
            .filter(is_kept)
            .map(to_pair)
            .key_by(key_of)
            .window(TumblingEventTimeWindows.of("10 s"))
            .reduce(add)
            .sink_to(DiscardSink())
        )

    return build


def value_state(num_records: int, num_keys: int, backend: Any) -> Callable[[Any], Any]:
    def build(env: Any) -> None:
        env.set_state_backend(backend)
        numbers = env.from_source(GeneratorSource(keyed_state.key_maker(num_keys), count=num_records), None, "numbers")
        numbers.key_by(lambda key: key).process(keyed_state.Count()).sink_to(DiscardSink())

    return build


def make_visit(index: int) -> dict[str, int]:
    """User, price, event time in ms: a hundred a millisecond; each user comes in bursts with pauses between."""
    return {"user": index // 8 * 7919 % NUM_USERS, "price": index % 100, "at": index // 100}


def make_visits(first: int, num_records: int) -> pa.RecordBatch:
    """So many of them as columns."""
    index = np.arange(first, first + num_records, dtype=np.int64)
    columns = {"user": index // 8 * 7919 % NUM_USERS, "price": index % 100, "at": index // 100}
    return pa.RecordBatch.from_pydict(columns)


def visits(env: StreamExecutionEnvironment, num_records: int, of_columns: bool) -> Any:
    if not of_columns:
        return timed(env, make_visit, lambda visit, _: visit["at"], num_records)
    source = GeneratorSource.batches(make_visits, num_records, batch_size=8_192)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner("at")
    return env.from_source(source, strategy, "records")


def all_windows(num_records: int, of_columns: bool = False) -> Callable[[Any], Any]:
    def build(env: Any) -> None:
        windows = visits(env, num_records, of_columns).window_all(TumblingEventTimeWindows.of("1 s"))
        windows.aggregate(n=count(), total=f.sum("price")).sink_to(DiscardSink())

    return build


def sessions(num_records: int, of_columns: bool = False) -> Callable[[Any], Any]:
    def build(env: Any) -> None:
        keyed = visits(env, num_records, of_columns).key_by("user")
        windows = keyed.window(EventTimeSessionWindows.with_gap("50 ms"))
        windows.aggregate(n=count(), total=f.sum("price")).sink_to(DiscardSink())

    return build


def folds(num_records: int, of_columns: bool = False) -> Callable[[Any], Any]:
    def build(env: Any) -> None:
        windows = visits(env, num_records, of_columns).key_by("user").window(TumblingEventTimeWindows.of("1 s"))
        windows.sum("price").sink_to(DiscardSink())

    return build


def total_plainly(num_records: int) -> None:
    windows: dict[int, tuple[int, int]] = {}
    for index in range(num_records):
        visit = make_visit(index)
        n, total = windows.get(visit["at"] // 1_000, (0, 0))
        windows[visit["at"] // 1_000] = (n + 1, total + visit["price"])


def folds_plainly(num_records: int) -> None:
    windows: dict[tuple[int, int], dict[str, int]] = {}
    for index in range(num_records):
        visit = make_visit(index)
        key = (visit["user"], visit["at"] // 1_000)
        known = windows.get(key)
        if known is None:
            windows[key] = visit
        else:
            known["price"] += visit["price"]


def sessions_plainly(num_records: int) -> None:
    current: dict[int, tuple[int, int, int]] = {}
    for index in range(num_records):
        visit = make_visit(index)
        last, n, total = current.get(visit["user"], (-1_000, 0, 0))
        if visit["at"] - last > 50:
            n = total = 0
        current[visit["user"]] = (visit["at"], n + 1, total + visit["price"])


class _Value:
    """A value state over a dictionary and nothing else."""

    def __init__(self) -> None:
        self.key: Any = NO_KEY
        self._values: dict[Any, int] = {}

    def value(self) -> int:
        return self._values.get(self.key, 0)

    def update(self, value: int) -> None:
        self._values[self.key] = value


def calls_of_value_state(num_records: int) -> None:
    function, state = keyed_state.Count(), _Value()
    function._count = state
    make, select, call = keyed_state.key_maker(keyed_state.NUM_HOT_KEYS), lambda key: key, function.process_element
    for index in range(num_records):
        record = make(index)
        state.key = select(record)
        call(record, None)


def calls_of_windowed_reduce(num_records: int) -> None:
    windows: dict[int, dict[int, tuple[int, int]]] = {}
    make = keyed_count.make_row
    for index in range(num_records):
        row = make(index)
        time_ms = time_of(row, None)
        if is_kept(row):
            pair = to_pair(row)
            key = key_of(pair)
            counts = windows.setdefault(time_ms // 10_000, {})
            old = counts.get(key)
            counts[key] = pair if old is None else add(old, pair)


def calls_with_state_on_the_heap(num_records: int) -> None:
    """The calls of the value state, with the state that the heap backend hands out."""
    backend = HeapKeyedStateBackend(OperatorId("bench"), key_group_range(128, 1, 0), 128)
    function = keyed_state.Count()
    function._count = backend.handle(ValueStateDescriptor("count", int, default=0))
    make, select, call = keyed_state.key_maker(keyed_state.NUM_HOT_KEYS), lambda key: key, function.process_element
    for index in range(num_records):
        record = make(index)
        backend.current_key = select(record)
        call(record, None)


def passes(num_records: int, num_rows: int) -> None:
    """The windowed reduce, list by list, so many records at a time."""
    windows: dict[int, dict[int, tuple[int, int]]] = {}
    for first in range(0, num_records, num_rows):
        rows = [keyed_count.make_row(index) for index in range(first, min(first + num_rows, num_records))]
        times = np.array([time_of(row, None) for row in rows], np.int64)
        rejected = bytes([not is_kept(row) for row in rows])
        kept = ~np.frombuffer(rejected, np.bool_)
        rows, times = list(compress(rows, kept.tobytes())), times[kept]
        pairs = [to_pair(row) for row in rows]
        keys = np.array([key_of(pair) for pair in pairs], np.int64)
        targets = subtask_of(key_groups_of(hash_integers(keys), 128), 128, 2)
        for target in range(2):
            chosen = targets == target
            piece = list(compress(pairs, chosen.tobytes()))
            if target:
                piece = pickle.loads(pickle.dumps(piece, 5))
            counts = windows.setdefault(int(times[chosen][0]) // 10_000, {})
            for key, pair in zip(keys[chosen].tolist(), piece, strict=True):
                old = counts.get(key)
                counts[key] = pair if old is None else add(old, pair)


def exchange(num_records: int) -> None:
    """Find keys of pairs, hash them, cut batches for two receivers, and ask for the keys there."""
    selector = KeySelector.of_function(key_of)
    partitioner = HashPartitioner(selector).bind(2, 0, 128)
    pairs = [(index * 7_919 % keyed_count.NUM_KEYS, 1) for index in range(BATCH_ROWS)]
    for _ in range(num_records // BATCH_ROWS):
        for _, piece in partitioner.partition(Batch.of_rows(pairs)):
            selector.keys(piece)


def between_processes(num_records: int) -> None:
    """Pickle and unpickle pairs, a batch at a time; every second record of a hash exchange of two subtasks is."""
    for first in range(0, num_records, BATCH_ROWS):
        pairs = [(index % keyed_count.NUM_KEYS, 1) for index in range(first, min(first + BATCH_ROWS, num_records))]
        pickle.loads(pickle.dumps(pairs, 5))


def nanoseconds(work: Callable[[], Any], num_records: int) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) / num_records * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the names of those to run")
    parser.add_argument("--collections", choices=("hosts", "python", "never"), default="hosts")
    options = parser.parse_args()
    print(describe_machine())
    hot, uniform, rocksdb = keyed_state.NUM_HOT_KEYS, keyed_state.NUM_KEYS, RocksDBStateBackend(256 << 20)
    cases: list[tuple[str, int, Callable[[int], Any], Callable[[int], Any]]] = [
        ("windowed reduce", 1, windowed_reduce, keyed_count.count_plainly),
        ("windowed reduce, calls alone", 1, lambda _: None, calls_of_windowed_reduce),
        ("windowed reduce, passes alone, 65,536 at a time", 1, lambda _: None, lambda n: passes(n, 65_536)),
        ("windowed reduce, passes alone, 2,048 at a time", 1, lambda _: None, lambda n: passes(n, 2_048)),
        ("keys found, hashed and cut for two receivers", 1, lambda _: None, exchange),
        ("pairs made, pickled and unpickled", 1, lambda _: None, between_processes),
        ("value state, heap", 1, lambda n: value_state(n, hot, "heap"), lambda n: keyed_state.count_plainly(n, hot)),
        ("value state, calls alone", 1, lambda _: None, calls_of_value_state),
        ("value state, calls with state on the heap", 1, lambda _: None, calls_with_state_on_the_heap),
        (
            "value state, RocksDB, a million keys",
            3,
            lambda n: value_state(n, uniform, rocksdb),
            lambda n: keyed_state.count_plainly(n, uniform),
        ),
        ("built-in aggregates in windows of all, rows", 1, all_windows, total_plainly),
        ("built-in aggregates in windows of all, columns", 1, lambda n: all_windows(n, True), total_plainly),
        ("built-in aggregates in sessions, rows", 1, sessions, sessions_plainly),
        ("built-in aggregates in sessions, columns", 1, lambda n: sessions(n, True), sessions_plainly),
        ("sum of a field in windows, rows", 1, folds, folds_plainly),
        ("sum of a field in windows, columns", 1, lambda n: folds(n, True), folds_plainly),
    ]
    for name, times, program, plainly in cases:
        if options.only not in name:
            continue
        num_records = times * options.records
        repeats = 1 if times > 1 else options.repeats
        is_job = program(0) is not None
        with collections_of("python" if is_job else options.collections):
            plain = min(nanoseconds(lambda n=num_records, p=plainly: p(n), num_records) for _ in range(repeats))
        if not is_job:
            print(f"{name}: {plain:,.0f} ns a record")
            continue
        with collections_of(options.collections):
            short = min(run(program(SHORT), options.parallelism) for _ in range(2))
            whole = min(run(program(num_records), options.parallelism) for _ in range(repeats))
        engine = (whole - short) / (num_records - SHORT) * 1e9
        print(f"{name}: {engine:,.0f} ns a record, plain loop {plain:,.0f}: {plain / engine:.2f}")


if __name__ == "__main__":
    main()
