"""State of user functions in whole programs at parallelism 2: every kind of keyed state, time to live, state of
subtasks, and a program whose types have changed. Oracle tests: each answer is computed again in plain Python.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict

import pytest

from headrace import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    CheckpointMismatchError,
    ExternalizedCheckpointRetention,
    FilterFunction,
    FlatMapFunction,
    JobFailedError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RestartStrategies,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.connectors.datagen import GeneratorSource


@pytest.fixture
def env():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as environment:
        yield environment


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


class EveryKind(KeyedProcessFunction):
    """Keeps the same numbers in every kind of state, with or without a time to live."""

    def __init__(self, ttl):
        self.ttl = ttl

    def open(self, runtime_context):
        ttl = self.ttl
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, 0, ttl=ttl))
        self.numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", int, ttl=ttl))
        self.parity = runtime_context.get_map_state(MapStateDescriptor("parity", bool, int, ttl=ttl))
        self.top = runtime_context.get_reducing_state(ReducingStateDescriptor("top", max, int, ttl=ttl))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), ttl=ttl))

    def process_element(self, value, ctx):
        number = value[1]
        self.count.update(self.count.value() + 1)
        self.numbers.add(number)
        self.parity.put(number % 2 == 0, (self.parity.get(number % 2 == 0) or 0) + 1)
        self.top.add(number)
        self.mean.add(number)
        yield (
            ctx.get_current_key(),
            self.count.value(),
            tuple(self.numbers.get()),
            tuple(sorted(self.parity.items())),
            self.top.get(),
            self.mean.get(),
        )


@pytest.mark.parametrize("ttl", [None, StateTtlConfig("1 h")], ids=["for ever", "an hour"])
def test_every_kind_of_keyed_state(env, ttl):
    pairs = [(f"key {n % 5}", n) for n in range(60)]
    found = env.from_collection(pairs).key_by(lambda pair: pair[0]).process(EveryKind(ttl)).execute_and_collect()
    expected = []
    numbers = defaultdict(list)
    for key, n in pairs:
        mine = numbers[key]
        mine.append(n)
        parity = Counter(m % 2 == 0 for m in mine)
        expected.append((key, len(mine), tuple(mine), tuple(sorted(parity.items())), max(mine), sum(mine) / len(mine)))
    assert sorted(found) == sorted(expected)


class FailingOnce(MapFunction, CheckpointedFunction):
    """Numbers the records of its subtask, over a failure."""

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_union_list_state(ListStateDescriptor("numbered"))
        self.was_restored = context.is_restored()

    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.count = dict(self.state.get()).get(self.subtask, 0)
        self.restored_count = self.count

    def map(self, value):
        if not self.was_restored and self.count >= 100 and self.has_snapshot:
            raise ValueError("once")  # noqa: EM101
        self.count += 1
        return (self.subtask, self.count, self.was_restored)

    has_snapshot = False

    def snapshot_state(self, context):
        self.has_snapshot = True
        self.state.update([(self.subtask, self.count)])


def test_state_of_a_subtask_survives_a_failure(env, tmp_path):
    env.enable_checkpointing(10, directory=tmp_path)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    source = GeneratorSource(lambda n: n, count=600, records_per_second=3_000)
    found = env.from_source(source, None, "numbers").map(FailingOnce()).execute_and_collect()
    counts = defaultdict(list)
    was_restored = set()
    for subtask, count, restored in found:
        counts[subtask].append(count)
        was_restored.add(restored)
    assert True in was_restored
    # Without a gap or a repetition from the restored place on: the results are exactly-once too.
    assert sum(map(len, counts.values())) == 600
    for seen in counts.values():
        assert sorted(seen) == list(range(1, len(seen) + 1))


@dataclasses.dataclass
class Account:
    owner: int
    total: int


class Sum(KeyedProcessFunction):
    """Sums numbers per key in an instance of a given class."""

    def __init__(self, account, **options):
        self.account = account
        self.options = options

    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("account", self.account, **self.options))

    def process_element(self, value, ctx):
        account = self.state.value()
        if account is None:
            account = self.account(ctx.get_current_key(), 0)
        account.total += value
        self.state.update(account)
        yield dataclasses.asdict(account)


def summing(env, count, function):
    source = GeneratorSource(lambda n: n, count=count, records_per_second=2_000)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    return numbers.key_by(lambda n: n % 7).process(function).uid("sums").name("sums")


@pytest.fixture(scope="module")
def retained(tmp_path_factory):
    """A checkpoint of a job that sums in accounts, at parallelism 1."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        env.enable_checkpointing(10, directory=tmp_path_factory.mktemp("retained"))
        env.get_checkpoint_config().set_externalized_checkpoint_retention(
            ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        )
        summing(env, 10**9, Sum(Account)).print()
        client = env.execute_async("summing")
        for view in client.views():
            if view.checkpoints_completed >= 3:
                break
        client.cancel()
        return client.view().last_checkpoint_path


@dataclasses.dataclass
class NewAccount:
    """Renamed, with a renamed field and a new one."""

    holder: int
    total: int
    currency: str = "EUR"


def test_a_program_whose_types_have_changed_goes_on_from_a_checkpoint(env, retained):
    stream = summing(env, 10**9, Sum(NewAccount, renamed_fields={"holder": "owner"}))
    env.set_restore_path(retained)
    rows = stream.execute_and_collect(limit=50)
    assert len(rows) == 50
    sums = {key: {m * key + 7 * m * (m - 1) // 2: m for m in range(1, 5_000)} for key in range(7)}
    for row in rows:
        # What a key's account holds after all its records up to some one; it would not if it had begun anew.
        assert row["total"] in sums[row["holder"]]
        assert row["currency"] == "EUR"
    assert max(sums[row["holder"]][row["total"]] for row in rows) > 2


def test_a_program_whose_types_do_not_fit_is_refused(env, retained):
    text = dataclasses.make_dataclass("Account", [("owner", int), ("total", str)])
    summing(env, 100, Sum(text)).print()
    with pytest.raises(JobFailedError, match="'total' cannot change from int64 to string") as caught:
        env.execute("restored", from_checkpoint=retained)
    cause = caught.value.__cause__
    assert isinstance(cause, CheckpointMismatchError)
    assert (cause.context["operator"], cause.context["state"], cause.context["field"]) == ("sums", "account", "total")


# ----------------------------------------------------------------------------------------- simple functions with a key
class Numbered(MapFunction):
    """How many records of its key came up to it."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, 0))

    def map(self, value):
        self.count.update(self.count.value() + 1)
        return (value, self.count.value())


class AverageOfTwo(FlatMapFunction):
    """Flink's CountWindowAverage."""

    def open(self, runtime_context):
        self.first = runtime_context.get_state(ValueStateDescriptor("first", int))

    def flat_map(self, value):
        first = self.first.value()
        if first is None:
            self.first.update(value)
            return
        self.first.clear()
        yield (first + value) / 2


class FirstOfKey(FilterFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", bool, False))

    def filter(self, value):
        is_first = not self.seen.value()
        self.seen.update(True)
        return is_first


def test_functions_of_map_flat_map_and_filter_have_state_of_their_key(env):
    numbers = list(range(40))
    keyed = env.from_collection(numbers).key_by(lambda n: n % 7)
    with keyed.map(Numbered()).execute_and_collect() as rows:
        assert sorted(rows) == [(n, n // 7 + 1) for n in numbers]
    with keyed.filter(FirstOfKey()).execute_and_collect() as rows:
        assert sorted(rows) == list(range(7))
    with keyed.flat_map(AverageOfTwo()).execute_and_collect() as rows:
        assert sorted(rows) == sorted(n + 3.5 for n in numbers if n % 14 < 7 and n + 7 < 40)


def test_without_a_key_there_is_no_keyed_state(env):
    env.from_collection([1]).map(Numbered()).print()
    with pytest.raises(JobFailedError, match="only after key_by"):
        env.execute()
