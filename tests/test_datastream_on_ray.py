"""Programs of several features on Ray, where processes die for real: what reaches the files must be exactly once.

Each program writes to file sinks while two processes of slots are killed, one after another, behind checkpoints; what
is in the files is compared with plain Python, as multisets. The programs are written so that no result depends on the
order in which two inputs arrive.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter, defaultdict

import cloudpickle
import pytest

from headrace import (
    EventTimeSessionWindows,
    Evictor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    LookupCache,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    Trigger,
    TriggerResult,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource, RateLimitedSource
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.hybrid import HybridSource
from headrace.connectors.scripted import ScriptedSource

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(120)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

RATE = 1_000
COUNT = 5_000
KILL_EVERY = 3


def source(env, function, *, rate=RATE, count=COUNT, name="numbers", strategy=None, splits=None):
    generator = GeneratorSource(function, count=count, records_per_second=rate, number_of_splits=splits)
    return env.from_source(generator, strategy, name)


def run(env, tmp_path, program, kills=2, unaligned=False):
    """Run a program, with kills; gives what is in each of its outputs, as lists of rows, and the job's result."""
    env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
    env.get_checkpoint_config().enable_unaligned_checkpoints(unaligned)
    outputs = program(env)
    for name, stream in outputs.items():
        stream.map(lambda row: {"row": row}).sink_to(FileSink.json_lines(str(tmp_path / name))).name(f"{name} files")
    client = env.execute_async("features")
    num_kills, next_kill = 0, KILL_EVERY
    for view in client.views():
        if view.state == "RUNNING" and view.checkpoints_completed >= next_kill and num_kills < kills:
            client.kill_slot(num_kills % max(1, len(view.slots)))
            num_kills += 1
            next_kill = view.checkpoints_completed + KILL_EVERY
    result = client.result(timeout=60)
    assert num_kills == kills
    assert result.num_restarts >= kills
    found = {
        name: [
            json.loads(line)["row"]
            for path in (tmp_path / name).glob("part-*")
            for line in path.read_text().splitlines()
        ]
        for name in outputs
    }
    return found, result


def multiset(rows):
    return Counter(json.dumps(row) for row in rows)


def check(got, expected):
    got, expected = multiset(got), multiset(expected)
    assert not expected - got, f"lost: {list((expected - got).items())[:5]} of {(expected - got).total()}"
    assert not got - expected, f"too many: {list((got - expected).items())[:5]} of {(got - expected).total()}"


# --------------------------------------------------------------------------------- connected streams, broadcast, sides

NUM_KEYS = 37
NUM_RULES = 40
rules_state = MapStateDescriptor("rules")
held_back = ListStateDescriptor("held back")
odd_ones = OutputTag("odd ones")


class Pair(KeyedCoProcessFunction):
    """Pairs the records of one number, whichever comes first."""

    def open(self, runtime_context):
        self.left = runtime_context.get_map_state(MapStateDescriptor("left"))
        self.right = runtime_context.get_map_state(MapStateDescriptor("right"))

    def process_element1(self, value, ctx):
        yield from self.pair(self.left, self.right, value)

    def process_element2(self, value, ctx):
        yield from self.pair(self.right, self.left, value)

    def pair(self, own, other, value):
        key, number = value
        if other.contains(number):
            other.remove(number)
            yield key, number
        else:
            own.put(number, True)


class Release(KeyedBroadcastProcessFunction):
    """Holds records back until the rule of their group has come."""

    def open(self, runtime_context):
        self.held_back = runtime_context.get_list_state(held_back)

    def process_element(self, value, ctx):
        _key, number = value
        factor = ctx.get_broadcast_state(rules_state).get(number % NUM_RULES)
        if number % 7 == 0:
            ctx.output(odd_ones, ("side", number))
        if factor is None:
            self.held_back.add(value)
        else:
            yield *value, factor

    def process_broadcast_element(self, rule, ctx):
        group, factor = rule
        ctx.get_broadcast_state(rules_state).put(group, factor)
        released = []

        def release(_key, held):
            values = list(held.get())
            released.extend((*value, factor) for value in values if value[1] % NUM_RULES == group)
            held.update([value for value in values if value[1] % NUM_RULES != group])

        ctx.apply_to_keyed_state(held_back, release)
        yield from released


def connected(env):
    def keyed(number):
        return number * 7 % NUM_KEYS, number

    left = source(env, keyed, name="left").key_by(lambda value: value[0])
    right = source(env, lambda n: keyed(COUNT - 1 - n), name="right").key_by(lambda value: value[0])
    rules = source(env, lambda n: (n, n + 100), rate=10, count=NUM_RULES, name="rules")
    released = (
        left.connect(right)
        .process(Pair())
        .key_by(lambda value: value[0])
        .connect(rules.broadcast(rules_state))
        .process(Release())
    )
    return {"released": released, "sides": released.get_side_output(odd_ones)}


# ------------------------------------------------------------------------------------------ sessions and interval joins

GAP_MS = 40
BOUND_MS = 50
DISORDER_MS = 300


class AtEndAndWhenLate(Trigger):
    """Fires at the window's end, and for each record after it."""

    def on_element(self, element, timestamp, window, ctx):
        seen = ctx.get_partitioned_state(ListStateDescriptor("seen"))
        seen.add(1)
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(ListStateDescriptor("seen"))
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window, ctx):
        ctx.delete_event_time_timer(window.max_timestamp())
        ctx.get_partitioned_state(ListStateDescriptor("seen")).clear()


class WithoutNoise(Evictor):
    """Takes out what is divisible by five."""

    def evict_before(self, elements, size, window, ctx):
        elements[:] = [each for each in elements if each.value["n"] % 5]

    def evict_after(self, elements, size, window, ctx):
        pass


class Content(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, context.window().end, sorted(each["n"] for each in elements)


def event(number):
    """Late by up to `DISORDER_MS`, unless it is noise."""
    late = 0 if number % 5 == 0 else random.Random(number).randrange(DISORDER_MS)
    return {"n": number, "key": number * 7 % NUM_KEYS, "time": 10_000 + number * 2 - late}


EVENT_TIME = WatermarkStrategy.for_bounded_out_of_orderness(BOUND_MS).with_timestamp_assigner(
    lambda row, _: row["time"]
)
ALL_IN_TIME = WatermarkStrategy.for_bounded_out_of_orderness(DISORDER_MS + 10).with_timestamp_assigner(
    lambda row, _: row["time"]
)
RIGHT = COUNT // 5


def right_event(number):
    return {"n": number, "key": number % NUM_KEYS, "time": 10_000 + number * 10}


def timed(env):
    sessions = (
        source(env, event, strategy=EVENT_TIME, name="late events")
        .key_by("key")
        .window(EventTimeSessionWindows.with_gap(GAP_MS))
        .trigger(AtEndAndWhenLate())
        .evictor(WithoutNoise())
        .allowed_lateness(DISORDER_MS * 2)
        .process(Content())
    )
    right = source(env, right_event, rate=RATE / 5, count=RIGHT, strategy=ALL_IN_TIME, name="right events")
    joined = (
        source(env, event, strategy=ALL_IN_TIME, name="left events")
        .key_by("key")
        .interval_join(right.key_by("key"))
        .between("-60 ms", "30 ms")
        .process(lambda left, right, ctx: [(left["n"], right["n"], ctx.get_right_timestamp())])
    )
    return {"sessions": sessions, "joined": joined}


def expected_sessions():
    """Start and end of each session of a key with its records, noise left out."""
    by_key = defaultdict(list)
    for row in map(event, range(COUNT)):
        by_key[row["key"]].append(row)
    for key, rows in by_key.items():
        rows.sort(key=lambda row: row["time"])
        session = [rows[0]]
        for row in [*rows[1:], None]:
            if row is not None and row["time"] <= session[-1]["time"] + GAP_MS:
                session.append(row)
                continue
            numbers = sorted(each["n"] for each in session if each["n"] % 5)
            yield key, session[0]["time"], session[-1]["time"] + GAP_MS, numbers
            session = [row]


def expected_pairs():
    rights = defaultdict(list)
    for row in map(right_event, range(RIGHT)):
        rights[row["key"]].append(row)
    for left in map(event, range(COUNT)):
        for right in rights[left["key"]]:
            if -60 <= right["time"] - left["time"] <= 30:
                yield left["n"], right["n"], right["time"]


# ---------------------------------------------------------------------------------------------- asynchronous and loops


async def tenfold(number):
    await asyncio.sleep(random.random() * 0.01)
    return number, number * 10


async def colour(code):
    await asyncio.sleep(0.002)
    return {"colour": f"colour {code}"} if code % 3 else None


class Counted(MapFunction):
    """Counts its records for the job's result, too."""

    def open(self, runtime_context):
        self.counter = runtime_context.get_int_counter("looked up")

    def map(self, row):
        self.counter.add(1)
        return row["n"], row["colour"]


class InOrder(KeyedProcessFunction):
    """Says of each record whether the one before it had a smaller number."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        last = self.last.value()
        self.last.update(value[0])
        yield *value, last is None or last < value[0]


def asked(env):
    ordered = (
        source(env, lambda n: n, splits=1)
        .map_async(tenfold, capacity=50)
        .set_parallelism(1)
        .key_by(lambda value: value[0] % NUM_KEYS)
        .process(InOrder())
    )
    rows = source(env, lambda n: {"n": n, "code": n % 50}, name="rows")
    looked_up = rows.lookup(colour, key="code", cache=LookupCache(max_rows=20), fields=["colour"])
    return {"ordered": ordered, "looked up": looked_up.map(Counted())}


def collatz(number):
    return number // 2 if number % 2 == 0 else 3 * number + 1


def looped(env):
    loop = source(env, lambda n: (n + 2, n + 2, 0), rate=RATE / 2, count=COUNT // 2, name="starts").iterate()
    stepped = loop.key_by(lambda record: record[1] % NUM_KEYS).map(
        lambda record: (record[0], collatz(record[1]), record[2] + 1)
    )
    loop.close_with(stepped.filter(lambda record: record[1] != 1))
    return {"loop": stepped.filter(lambda record: record[1] == 1).map(lambda record: (record[0], record[2]))}


def steps_of(number):
    steps = 0
    while number != 1:
        number, steps = collatz(number), steps + 1
    return steps


# --------------------------------------------------------------- one source after another, kept streams, bounded tables

NUM_LINES = 200
COMPLETE = {"item": -1}
prices_state = MapStateDescriptor("prices")


class Running(KeyedProcessFunction):
    """Which record of its key each one is."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield value["n"], value["n"] % NUM_KEYS, self.count.value()


def lines_in(folder, rows):
    """The rows in three files."""
    folder.mkdir()
    for part in range(3):
        text = "".join(f"{json.dumps(row)}\n" for row in rows[part::3])
        (folder / f"part-{part}.jsonl").write_text(text)
    return FileSource.json_lines(str(folder))


def one_after_another(folder):
    """Numbers that are made, lines of files, and more numbers."""

    def program(env):
        def made(start, count):
            return GeneratorSource(lambda i: {"n": start + i}, count=count, records_per_second=RATE)

        lines = lines_in(folder, [{"n": RATE + i} for i in range(NUM_LINES)])
        first = RateLimitedSource(lines, RATE)
        chain = HybridSource.builder(made(0, RATE)).add_source(first).add_source(made(RATE + NUM_LINES, RATE)).build()
        numbers = env.from_source(chain, None, "numbers")
        return {"hybrid": numbers.key_by(lambda row: row["n"] % NUM_KEYS).process(Running())}

    return program


def kept_squares(env, trace):
    def square(n):
        with open(trace, "a", encoding="utf-8") as file:
            file.write(f"{n}\n")
        return n * n

    return source(env, lambda n: n, count=2 * RATE).map(square).cache()


async def after_a_while(number):
    await asyncio.sleep(0.05)
    return number


class Priced(KeyedBroadcastProcessFunction):
    """Holds orders back until the whole price list is there."""

    def open(self, runtime_context):
        self.held = runtime_context.get_list_state(ListStateDescriptor("held"))

    def process_broadcast_element(self, row, ctx):
        prices = ctx.get_broadcast_state(prices_state)
        prices.put(row["item"], row.get("price"))
        waiting = []
        if row == COMPLETE:
            ctx.apply_to_keyed_state(
                ListStateDescriptor("held"), lambda _key, held: (waiting.extend(held.get()), held.clear())
            )
        for order in waiting:
            yield order, prices.get(order % NUM_RULES), len(list(prices.keys()))

    def process_element(self, order, ctx):
        prices = ctx.get_broadcast_state(prices_state)
        if prices.contains(COMPLETE["item"]):
            yield order, prices.get(order % NUM_RULES), len(list(prices.keys()))
        else:
            self.held.add(order)


def priced(folder):
    """A table that ends while slots die, beside orders."""

    def program(env):
        rows = lines_in(folder, [{"item": item, "price": 10 * item} for item in range(NUM_RULES)])
        slow = RateLimitedSource(rows, NUM_RULES)
        table = HybridSource.builder(slow).add_source(ScriptedSource([COMPLETE])).build()
        prices = env.from_source(table, None, "prices").set_parallelism(1)
        orders = source(env, lambda n: n, count=3 * RATE, name="orders").key_by(lambda order: order % NUM_KEYS)
        return {"priced": orders.connect(prices.broadcast(prices_state)).process(Priced())}

    return program


@pytest.fixture(scope="module")
def env(ray_session):
    with StreamExecutionEnvironment.get_execution_environment("ray", parallelism=2) as environment:
        yield environment


@pytest.mark.parametrize("backend", ["rocksdb"])
@pytest.mark.campaign
def test_connected_streams_broadcast_state_and_side_outputs(env, tmp_path, backend):
    env.set_state_backend(backend)
    found, _ = run(env, tmp_path, connected, unaligned=True)
    check(found["released"], [(n * 7 % NUM_KEYS, n, n % NUM_RULES + 100) for n in range(COUNT)])
    check(found["sides"], [("side", n) for n in range(0, COUNT, 7)])


@pytest.mark.campaign
@pytest.mark.parametrize("backend", ["rocksdb"])
def test_sessions_with_trigger_and_evictor_and_interval_joins(env, tmp_path, backend):
    env.set_state_backend(backend)
    found, _ = run(env, tmp_path, timed)
    check(found["joined"], expected_pairs())
    # A session fires again for late records: each time with more, at last with all.
    assert max(multiset(found["sessions"]).values()) == 1
    last = {}
    for key, start, end, numbers in found["sessions"]:
        for number in numbers:
            if len(numbers) > len(last.get(number, ((), (), (), ()))[3]):
                last[number] = (key, start, end, numbers)
    check({tuple(map(str, row)): row for row in last.values()}.values(), [row for row in expected_sessions() if row[3]])


@pytest.mark.campaign
def test_answers_in_order_and_lookups(env, tmp_path):
    env.set_state_backend("heap")
    found, result = run(env, tmp_path, asked)
    # The attempts that came to the end count: not what was done before the last restart.
    assert 0 < result.get_accumulator_result("looked up") < COUNT
    check(found["ordered"], [(n, n * 10, True) for n in range(COUNT)])
    check(found["looked up"], [(n, f"colour {n % 50}" if n % 50 % 3 else None) for n in range(COUNT)])


@pytest.mark.campaign
def test_loops(env, tmp_path):
    env.set_state_backend("heap")
    found, _ = run(env, tmp_path, looped)
    check(found["loop"], [(n + 2, steps_of(n + 2)) for n in range(COUNT // 2)])


@pytest.mark.campaign
def test_sources_that_are_read_one_after_another(env, tmp_path):
    env.set_state_backend("heap")
    found, _ = run(env, tmp_path, one_after_another(tmp_path / "lines"))
    total = 2 * RATE + NUM_LINES
    check([(n, key) for n, key, _ in found["hybrid"]], [(n, n % NUM_KEYS) for n in range(total)])
    of_each_key = Counter(n % NUM_KEYS for n in range(total))
    check(
        [(key, count) for _, key, count in found["hybrid"]],
        [(key, count + 1) for key, number in of_each_key.items() for count in range(number)],
    )


@pytest.mark.campaign
def test_a_stream_is_kept_and_read_while_slots_die(env, tmp_path):
    env.set_state_backend("heap")
    squares = kept_squares(env, tmp_path / "calls")
    expected = [n * n for n in range(2 * RATE)]
    found, _ = run(env, tmp_path, lambda _env: {"first": squares.map(lambda n: n)}, kills=1)
    check(found["first"], expected)
    calls = (tmp_path / "calls").read_text()
    found, _ = run(env, tmp_path, lambda _env: {"second": squares.map_async(after_a_while, capacity=20)}, kills=1)
    check(found["second"], expected)
    assert (tmp_path / "calls").read_text() == calls, "it was read, and not computed again"


@pytest.mark.campaign
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_table_that_ends_is_there_for_every_record(env, tmp_path, backend):
    env.set_state_backend(backend)
    found, _ = run(env, tmp_path, priced(tmp_path / "table"))
    check(found["priced"], [(n, 10 * (n % NUM_RULES), NUM_RULES + 1) for n in range(3 * RATE)])
