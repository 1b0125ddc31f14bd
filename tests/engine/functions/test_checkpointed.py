"""Functions with state of their subtask: when they are asked, what they find again at another parallelism (property),
and what they may not do (examples). Also time to live and windows of state below real operators.
"""

from __future__ import annotations

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness, ParallelHarness

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.sinks import SinkOperator
from headrace.engine.errors import CheckpointMismatchError, ProgramError, StateAccessError, UserFunctionError
from headrace.engine.functions.checkpointed import CheckpointedFunction
from headrace.engine.functions.contract import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
)
from headrace.engine.functions.keys import KeySelector
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.process import KeyedProcessOperator
from headrace.engine.operators.row_operators import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from headrace.engine.task.chain import ChainLink
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.state.keyed.ttl import StateTtlConfig


class Buffer(CheckpointedFunction):
    """Gathers records and lets every third one carry all so far; what is gathered is state."""

    def __init__(self):
        self.calls = []

    def initialize_state(self, context):
        self.calls.append("initialize_state")
        store = context.get_operator_state_store()
        self.mine = store.get_list_state(ListStateDescriptor("buffered", int))
        self.all = store.get_union_list_state(ListStateDescriptor("everybody", int))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, int))
        self.restored = context.is_restored()
        self.buffered = self.mine.get()
        self.seen_by_all = self.all.get()

    def open(self, runtime_context):
        self.calls.append("open")

    def gather(self, value):
        self.calls.append("value")
        self.buffered.append(value)
        self.rules.put("last", 7)
        return [*self.buffered]

    def snapshot_state(self, context):
        self.calls.append(("snapshot", context.get_checkpoint_id(), context.get_checkpoint_timestamp()))
        self.mine.update(self.buffered)
        self.all.update(self.buffered)


class Mapper(Buffer, MapFunction):
    def map(self, value):
        return self.gather(value)


class FlatMapper(Buffer, FlatMapFunction):
    def flat_map(self, value):
        yield self.gather(value)


class Filter(Buffer, FilterFunction):
    def filter(self, value):
        return bool(self.gather(value))


class Process(Buffer, ProcessFunction):
    def process_element(self, value, ctx):
        yield self.gather(value)


class Keyed(Buffer, KeyedProcessFunction):
    def initialize_state(self, context):
        super().initialize_state(context)
        self.total = context.get_keyed_state_store().get_state(ValueStateDescriptor("total", int, 0))

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value)
        yield self.gather(value)


OPERATORS = {
    "map": lambda: MapOperator(Mapper()),
    "flat_map": lambda: FlatMapOperator(FlatMapper()),
    "filter": lambda: FilterOperator(Filter()),
    "process": lambda: ProcessOperator(Process()),
    "keyed process": lambda: KeyedProcessOperator(KeySelector.of_function(lambda n: n % 3), Keyed()),
}


def function_of(harness):
    return harness.operator.function.function


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_function_is_asked_before_it_is_opened_and_at_each_checkpoint(name):
    harness = OperatorHarness(OPERATORS[name](), now_ms=55)
    harness.process([1, 2])
    parts = harness.snapshot(4)
    function = function_of(harness)
    assert function.calls == ["initialize_state", "open", "value", "value", ("snapshot", 4, 55)]
    assert not function.restored
    again = function_of(OperatorHarness(OPERATORS[name](), restored=parts))
    assert again.restored
    assert again.buffered == [1, 2]
    assert again.seen_by_all == [1, 2]
    assert dict(again.rules.items()) == {"last": 7}


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from(sorted(OPERATORS)),
)
@settings(max_examples=examples(40), deadline=None)
def test_elements_are_dealt_out_once_and_union_elements_go_to_all(inputs, after, name):
    before = [OperatorHarness(OPERATORS[name](), subtask=i, parallelism=len(inputs)) for i in range(len(inputs))]
    parts = []
    for harness, records in zip(before, inputs, strict=True):
        if name != "keyed process":
            harness.process(records)
        else:  # records of other subtasks' keys may not come here
            function_of(harness).buffered.extend(records)
        parts += harness.snapshot()
    restored = [
        function_of(OperatorHarness(OPERATORS[name](), subtask=i, parallelism=after, restored=parts))
        for i in range(after)
    ]
    everything = [record for records in inputs for record in records]
    assert sorted(record for function in restored for record in function.buffered) == sorted(everything)
    for function in restored:
        assert function.seen_by_all == everything


def test_keyed_and_operator_state_of_one_function_go_together():
    harness = ParallelHarness(OPERATORS["keyed process"](), 2)
    numbers = list(range(12))
    harness.process([n % 3 for n in numbers], numbers)
    harness = harness.restored(3)
    harness.process([n % 3 for n in numbers], numbers)
    totals = {}
    for subtask in harness.subtasks:
        table = subtask.keyed_state.table(ValueStateDescriptor("total", int, 0))
        totals.update(table.namespace(None))
    assert totals == {key: 2 * sum(n for n in numbers if n % 3 == key) for key in range(3)}


def test_names_of_a_function_do_not_meet_those_of_its_operator():
    class Named(KeyedProcessFunction, CheckpointedFunction):
        def initialize_state(self, context):
            store = context.get_operator_state_store()
            self.watermark = store.get_union_list_state(ListStateDescriptor("watermark"))

        def snapshot_state(self, context):
            self.watermark.update(["mine"])

        def process_element(self, value, ctx):
            yield ctx.timer_service().current_watermark()

    operator = KeyedProcessOperator(KeySelector.of_function(lambda n: n), Named())
    harness = OperatorHarness(operator)
    harness.watermark(500)
    restored = OperatorHarness(operator, restored=harness.snapshot())
    assert function_of(restored).watermark.get() == ["mine"]
    restored.process([1])
    assert restored.take_rows() == [500]


def refused(declare, error, match, operator=MapOperator):
    class Refused(MapFunction, CheckpointedFunction):
        def initialize_state(self, context):
            declare(context)

        def snapshot_state(self, context):
            pass

        def map(self, value):
            return value

    with pytest.raises(error, match=match) as caught:
        OperatorHarness(operator(Refused()))
    assert caught.value.context["function"].endswith("Refused.initialize_state")
    assert caught.value.context["subtask"] == "1/1"


def test_what_a_function_may_not_ask_for():
    timed = ListStateDescriptor("l", ttl="1 s")
    refused(lambda c: c.get_operator_state_store().get_list_state(timed), ProgramError, "time to live")
    refused(
        lambda c: c.get_operator_state_store().get_list_state(MapStateDescriptor("m")),
        ProgramError,
        "ListStateDescriptor",
    )
    refused(
        lambda c: c.get_operator_state_store().get_broadcast_state(ListStateDescriptor("m")),
        ProgramError,
        "MapStateDescriptor",
    )
    refused(
        lambda c: c.get_keyed_state_store().get_state(ValueStateDescriptor("v")), StateAccessError, "only after key_by"
    )
    refused(lambda c: [][0], UserFunctionError, "IndexError")


def test_a_failing_snapshot_names_the_function():
    class Failing(Mapper):
        def snapshot_state(self, context):
            raise ValueError("no")  # noqa: EM101

    harness = OperatorHarness(MapOperator(Failing()))
    with pytest.raises(UserFunctionError, match="ValueError: no") as caught:
        harness.snapshot()
    assert caught.value.context["function"].endswith("Failing.snapshot_state")


class Writer(CheckpointedFunction):
    """A sink's writer that counts its records over restarts."""

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("written", int))
        self.num_written = sum(self.state.get())
        with pytest.raises(StateAccessError):
            context.get_keyed_state_store()

    def open(self, context):
        self.started_with = self.num_written

    def write(self, batch):
        self.num_written += batch.num_rows

    def prepare(self, checkpoint_id):
        return []

    def snapshot_state(self, context):
        self.state.update([self.num_written])

    def close(self):
        pass


class CountingSink:
    def create_writer(self):
        return Writer()


def test_a_sinks_writer_may_be_one():
    harness = OperatorHarness(SinkOperator(CountingSink()))
    harness.process([1, 2, 3])
    again = OperatorHarness(SinkOperator(CountingSink()), restored=harness.snapshot())
    assert again.operator._writer.started_with == 3


# ------------------------------------------------------------------------------------- time to live below an operator
class CountWithinHour(KeyedProcessFunction):
    """How many records of the key have come without an hour's break."""

    def open(self, runtime_context):
        ttl = StateTtlConfig.new_builder("1 h").cleanup_incrementally(10, run_cleanup_for_every_record=True).build()
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, 0, ttl=ttl))

    def process_element(self, value, ctx):
        if value is not None:
            self.count.update(self.count.value() + 1)
            yield value, self.count.value()


HOUR_MS = 3_600_000


def test_state_of_a_function_expires_by_the_operators_clock_and_through_a_restore():
    harness = ParallelHarness(KeyedProcessOperator(KeySelector.of_function(lambda s: s), CountWithinHour()), 3)
    harness.process(["a", "b", "a"], ["a", "b", "a"])
    harness.advance_clock(HOUR_MS - 1)
    harness.process(["a"], ["a"])
    assert sorted(row for row, _ in harness.take()) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    harness = harness.restored(2)
    harness.advance_clock(HOUR_MS)
    harness.process(["a", "b"], ["a", "b"])
    assert sorted(row for row, _ in harness.take()) == [("a", 4), ("b", 1)]


def test_a_chain_cleans_up_for_every_record():
    """Also where no record touches the state any more: nothing else would forget it."""
    harness = OperatorHarness(KeyedProcessOperator(KeySelector.of_function(lambda n: n), CountWithinHour()))
    link = ChainLink("op", "op", harness.operator, 0, 1, MetricGroup())
    link.process_batch(Batch.of_rows(list(range(1_000))), 0)
    table = harness.keyed_state._tables["count"]
    assert len(table.namespace(None)) == 1_000
    harness.now_ms = HOUR_MS
    link.process_batch(Batch.of_rows([None] * 10), 0)
    assert len(table.namespace(None)) == 900
    for _ in range(9):
        link.process_batch(Batch.of_rows([None] * 10), 0)
    assert len(table.namespace(None)) == 0


def test_a_restored_function_that_declares_another_type_fails_before_the_first_record():
    class Total(KeyedProcessFunction):
        def __init__(self, value_type):
            self.value_type = value_type

        def open(self, runtime_context):
            self.total = runtime_context.get_state(ValueStateDescriptor("total", self.value_type))

        def process_element(self, value, ctx):
            self.total.update(value)
            return []

    selector = KeySelector.of_function(lambda n: n)
    harness = OperatorHarness(KeyedProcessOperator(selector, Total(int)))
    harness.process([1])
    with pytest.raises(CheckpointMismatchError, match="cannot change from int64 to string") as caught:
        OperatorHarness(KeyedProcessOperator(selector, Total(str)), restored=harness.snapshot())
    context = caught.value.context
    assert (context["operator"], context["state"], context["old_type"], context["new_type"]) == (
        "op",
        "total",
        "int64",
        "string",
    )
