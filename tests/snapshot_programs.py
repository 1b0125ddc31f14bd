"""A program with every kind of state, for tests of what is in its snapshots.

It counts records ``(key, number)`` in many ways at once. A record ``(key, None)`` asks for what is held under its key:
the answer is a dict. So tests compare what a snapshot says with what the program's own functions say, before and after
a restore.
"""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

from headrace import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CountTrigger,
    ExternalizedCheckpointRetention,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    PurgingTrigger,
    ReducingStateDescriptor,
    RocksDBStateBackend,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.scripted import Pause, ScriptedSource

FAR_MS = 2**50
"""Event time that never comes."""
TTL_MS = 90 * 86_400_000 * 1_000
NUM_KEYS = 13


@dataclasses.dataclass
class Account:
    """What an account is."""

    owner: str
    balance: int
    tags: list[str]


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, one, other):
        return (one[0] + other[0], one[1] + other[1])


COUNT = ValueStateDescriptor("count", int)
ACCOUNT = ValueStateDescriptor("account", Account)
ANYTHING = ValueStateDescriptor("anything")
NUMBERS = ListStateDescriptor("numbers", int)
PER_DIGIT = MapStateDescriptor("per digit", str, int)
HIGHEST = ReducingStateDescriptor("highest", max, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), tuple[int, int])
FRESH = ValueStateDescriptor("fresh", str, ttl=StateTtlConfig(TTL_MS))
PRICE = ValueStateDescriptor("price", Decimal)
SEEN = ListStateDescriptor("seen", int)
EVERYONE = ListStateDescriptor("everyone", str)
RULES = MapStateDescriptor("rules", str, int)


def open_all(descriptors):
    """Copies, as a descriptor may be made queryable."""
    return {descriptor.name: dataclasses.replace(descriptor) for descriptor in descriptors}


class EveryKind(KeyedProcessFunction):
    """Holds a state of every kind per key."""

    def open(self, context):
        self.count = context.get_state(COUNT)
        self.account = context.get_state(ACCOUNT)
        self.anything = context.get_state(ANYTHING)
        self.numbers = context.get_list_state(NUMBERS)
        self.per_digit = context.get_map_state(PER_DIGIT)
        self.highest = context.get_reducing_state(HIGHEST)
        self.mean = context.get_aggregating_state(MEAN)
        self.fresh = context.get_state(FRESH)
        self.price = context.get_state(PRICE)

    def process_element(self, value, context):
        key, number = value
        if number is None:
            yield self.held(key)
            return
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.account.update(Account(f"owner of {key}", number * 10, [str(number), "x"]))
        self.anything.update((key, [number, count]))
        self.numbers.add(number)
        digit = str(number % 10)
        self.per_digit.put(digit, (self.per_digit.get(digit) or 0) + 1)
        self.highest.add(number)
        self.mean.add(number)
        self.fresh.update(f"fresh {number}")
        self.price.update(Decimal(number) / 4)
        context.timer_service().register_event_time_timer(FAR_MS + number)
        if count == 1:
            context.timer_service().register_processing_time_timer(FAR_MS + len(key))

    def held(self, key):
        account = self.account.value()
        return {
            "key": key,
            "count": self.count.value(),
            "account": None if account is None else dataclasses.asdict(account),
            "anything": self.anything.value(),
            "numbers": self.numbers.get(),
            "per digit": dict(sorted(self.per_digit.items())),
            "highest": self.highest.get(),
            "mean": self.mean.get(),
            "fresh": self.fresh.value(),
            "price": self.price.value(),
        }

    def on_timer(self, timestamp, context):
        yield {"key": context.get_current_key(), "timer": timestamp}


class Remembering(MapFunction, CheckpointedFunction):
    """Lists of its subtask: the numbers that it has seen, and its name in a list for everyone."""

    def initialize_state(self, context):
        self.seen_state = context.get_operator_state_store().get_list_state(SEEN)
        self.everyone_state = context.get_operator_state_store().get_union_list_state(EVERYONE)
        self.seen = list(self.seen_state.get())
        self.everyone = sorted(set(self.everyone_state.get()))

    def open(self, context):
        self.name = f"subtask {context.get_index_of_this_subtask()}"

    def map(self, value):
        if value[1] is not None:
            self.seen.append(value[1])
        return value

    def snapshot_state(self, context):
        self.seen_state.update(self.seen)
        self.everyone_state.update([self.name])


class Ruled(BroadcastProcessFunction):
    """Keeps rules in broadcast state."""

    def process_element(self, value, context):
        yield value

    def process_broadcast_element(self, value, context):
        context.get_broadcast_state(RULES).put(*value)


RULE_ENTRIES = [("at most", 7), ("at least", 2), ("every", 3)]


def records(count):
    """Numbers 0 to ``count``, each with one of `NUM_KEYS` keys."""
    return [(f"key-{n % NUM_KEYS}", n) for n in range(count)]


def questions():
    """One per key."""
    return [(f"key-{n}", None) for n in range(NUM_KEYS)]


def local_backend(name, folder):
    """A backend by name; its databases are in ``folder`` / local."""
    if name != "rocksdb":
        return name
    return RocksDBStateBackend(16 << 20, str(Path(folder) / "local"))


def environment(folder, backend="heap", parallelism=3, interval_ms=100):
    """A local environment whose checkpoints are in ``folder`` / checkpoints."""
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, metrics_interval_ms=20)
    env.set_max_parallelism(32)
    env.set_state_backend(local_backend(backend, folder))
    env.enable_checkpointing(interval_ms, directory=str(Path(folder) / "checkpoints"))
    config = env.get_checkpoint_config()
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    return env


def program(env, script):
    """The program over a script of records, which pauses for ever behind it; gives the stream of answers."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: 0 if value[1] is None else value[1]
    )
    numbers = env.from_source(ScriptedSource([*script, Pause()], is_bounded=False), strategy, "numbers").uid("numbers")
    rules = env.from_source(ScriptedSource([*RULE_ENTRIES, Pause()], is_bounded=False), None, "rules").uid("rules")
    remembered = numbers.map(Remembering()).uid("remembering").name("remembering")
    ruled = remembered.connect(rules.broadcast(RULES)).process(Ruled()).uid("ruled")
    answers = ruled.key_by(lambda value: value[0]).process(EveryKind()).uid("every kind").name("every kind")
    wanted = ruled.filter(lambda value: value[1] is not None).key_by(lambda value: value[0])
    (
        wanted.window(TumblingEventTimeWindows.of(1_000_000))
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
        .uid("sums")
        .name("sums")
        .map(lambda value: {"key": value[0], "sum": value[1]})
        .union(
            wanted.window(TumblingEventTimeWindows.of(1_000_000))
            .trigger(PurgingTrigger.of(CountTrigger.of(1_000_000)))
            .reduce(lambda one, other: (one[0], max(one[1], other[1])))
            .uid("triggered")
            .name("triggered")
            .map(lambda value: {"key": value[0], "max": value[1]})
        )
        .print("windows")
    )
    return answers


def snapshot_of(env, script, num_answers=0, num_before=0):
    """Run the program until it has taken all of a script and has answered so often; gives the path and the answers.

    ``num_before`` records of the script, and the rules, were taken before the snapshot that the program goes on from.
    """
    rows = program(env, script).execute_and_collect("program")
    answers = [next(rows) for _ in range(num_answers)]
    wanted = len(script) - num_before + (0 if num_before else len(RULE_ENTRIES))
    for view in rows._client.views():
        if sum(v.records_in for v in view.vertices if v.name.startswith("Source: ")) >= wanted:
            break
    return rows.stop(), answers
