"""A table that ends, broadcast to a stream that does not care: loaded in full before the first record is looked at.

Families: property (every record sees the whole table, at any parallelism, on both backends, with a failure, a stop and
a restore at another parallelism before the table has ended and long after; checkpoints go on when it has).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from headrace import (
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.hybrid import HybridSource
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.connectors.contract import NOTHING_NOW

NUM_ITEMS = 40
NUM_ORDERS = 400
COMPLETE = {"item": -1}
PRICES = MapStateDescriptor("prices", int, int)
HELD = ListStateDescriptor("held")


class Priced(KeyedBroadcastProcessFunction):
    """Holds orders back until the whole price list is there."""

    def open(self, runtime_context):
        self.held = runtime_context.get_list_state(HELD)

    def process_broadcast_element(self, row, ctx):
        prices = ctx.get_broadcast_state(PRICES)
        prices.put(row["item"], row.get("price", 0))
        waiting = []
        if row == COMPLETE:
            ctx.apply_to_keyed_state(HELD, lambda _key, held: (waiting.extend(held.get()), held.clear()))
        for order in waiting:
            yield self.priced(order, prices)

    def process_element(self, order, ctx):
        prices = ctx.get_broadcast_state(PRICES)
        if prices.contains(COMPLETE["item"]):
            yield self.priced(order, prices)
        else:
            self.held.add(order)

    def priced(self, order, prices):
        return {"order": order, "price": prices.get(order % NUM_ITEMS), "known": len(list(prices.keys())) - 1}


def table_in(folder):
    """Two files, and what stands behind both."""
    folder.mkdir(exist_ok=True)
    for part in range(2):
        rows = [{"item": item, "price": 10 * item} for item in range(part, NUM_ITEMS, 2)]
        (folder / f"part-{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return FileSource.json_lines(folder)


class Slow:
    """A table of which nothing but the first rows comes before a gate is opened."""

    is_bounded = True

    def __init__(self, source, gate):
        self.source, self.gate = source, gate

    def create_enumerator(self, context):
        return self.source.create_enumerator(context)

    def create_reader(self):
        return SlowReader(self.source.create_reader(), self.gate)


class SlowReader:
    def __init__(self, reader, gate):
        self.reader, self.gate, self.num_polls = reader, gate, 0

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def poll(self, max_records):
        self.num_polls += 1
        if self.num_polls > 1 and not self.gate.exists():
            return NOTHING_NOW
        return self.reader.poll(min(max_records, 3))


def build(tmp_path, backend, parallelism, orders, gate=None):
    env = StreamExecutionEnvironment.get_execution_environment(
        "local", parallelism=parallelism, metrics_interval_ms=20, max_batch_rows=20
    )
    env.set_state_backend(backend if backend == "heap" else RocksDBStateBackend(16 << 20, str(tmp_path / "db")))
    env.enable_checkpointing(30, directory=tmp_path / "checkpoints")
    rows = table_in(tmp_path / "prices")
    table = (
        HybridSource.builder(rows if gate is None else Slow(rows, gate)).add_source(ScriptedSource([COMPLETE])).build()
    )
    prices = env.from_source(table, None, "prices").uid("prices").set_parallelism(1)
    stream = env.from_source(orders, None, "orders").uid("orders").key_by(lambda order: order % 7)
    priced = stream.connect(prices.broadcast(PRICES)).process(Priced()).uid("priced")
    priced.sink_to(FileSink.json_lines(tmp_path / "out", mode="append")).uid("out")
    return env


def check(tmp_path):
    rows = [
        json.loads(line) for path in Path(tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()
    ]
    assert {row["known"] for row in rows} == {NUM_ITEMS}
    expected = Counter((order, 10 * (order % NUM_ITEMS)) for order in range(NUM_ORDERS))
    assert Counter((row["order"], row["price"]) for row in rows) == expected


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_record_sees_the_whole_table_although_a_subtask_failed_meanwhile(tmp_path, parallelism):
    failed = tmp_path / "failed"

    def once(n):
        if n == NUM_ORDERS // 2 and not failed.exists():
            failed.touch()
            message = "once"
            raise ValueError(message)
        return n

    env = build(tmp_path, "heap", parallelism, GeneratorSource(once, count=NUM_ORDERS))
    env.execute()
    check(tmp_path)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.sampled(4)
def test_a_stop_and_a_restore_before_and_behind_the_tables_end(tmp_path, backend, before, after, is_loaded):
    """At the stop all orders so far are held, or all are priced, with checkpoints long after the table has ended."""
    gate = tmp_path / "gate"
    if is_loaded:
        gate.touch()
    half = [*range(NUM_ORDERS // 2), Pause(), *range(NUM_ORDERS // 2, NUM_ORDERS)]
    whole = [*range(NUM_ORDERS // 2), Pause(0), *range(NUM_ORDERS // 2, NUM_ORDERS)]
    env = build(tmp_path, backend, before, ScriptedSource(half), gate)
    client = env.execute_async()
    checkpoints = 0
    for view in client.views():
        read = {vertex.name: vertex.records_in for vertex in view.vertices}
        num_rows = next((number for name, number in read.items() if "prices" in name), 0)
        num_orders = next((number for name, number in read.items() if "orders" in name), 0)
        if num_orders >= NUM_ORDERS // 2 and (num_rows > NUM_ITEMS or not is_loaded):
            checkpoints = checkpoints or view.checkpoints_completed
            if view.checkpoints_completed > checkpoints + 2:
                break
    savepoint = client.stop_with_savepoint(tmp_path / "savepoints")
    gate.touch()
    env.close()
    env = build(tmp_path, backend, after, ScriptedSource(whole), gate)
    env.execute(from_savepoint=savepoint)
    env.close()
    check(tmp_path)
