"""User functions: what is accepted, how they are opened, closed and called, and how their failures look."""

from __future__ import annotations

import functools
import pickle
from collections import OrderedDict, UserDict
from typing import NamedTuple

import pytest
from operator_harness import OperatorHarness

from headrace.engine.errors import ProgramError, StateAccessError, TypeMismatchError, UserFunctionError
from headrace.engine.functions.contract import KeyedProcessFunction, MapFunction, ProcessFunction, ProcessWindowFunction
from headrace.engine.functions.given import records_of
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag, SideOutputs
from headrace.engine.functions.user_function import UserFunction
from headrace.engine.operators.process import KeyedProcessOperator, KeyedReduceOperator
from headrace.engine.operators.row_operators import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from headrace.state.keyed.descriptors import ValueStateDescriptor


class Tracing(MapFunction):
    def __init__(self):
        self.calls = []

    def open(self, runtime_context):
        self.context = runtime_context
        self.calls.append("open")

    def close(self):
        self.calls.append("close")

    def map(self, value):
        return value + self.context.get_index_of_this_subtask()


def test_a_function_is_opened_and_closed_once_in_its_subtask():
    harness = OperatorHarness(MapOperator(Tracing()), subtask=1, parallelism=2)
    harness.process([1, 2])
    assert harness.take_rows() == [2, 3]
    function = harness.operator.function.function
    context = function.context
    assert context.get_task_name() == "op"
    assert context.get_task_name_with_subtasks() == "op (2/2)"
    assert context.get_number_of_parallel_subtasks() == 2
    assert context.get_max_number_of_parallel_subtasks() == 128
    assert context.get_job_id() == "job"
    context.get_metrics_group().count("mine", 3)
    assert harness.metrics.counters["mine"] == 3
    harness.operator.close()
    harness.operator.close()
    assert function.calls == ["open", "close"]


def test_an_operator_that_was_never_opened_can_be_closed():
    operator = OperatorHarness(MapOperator(Tracing())).operator
    operator.function = UserFunction(Tracing(), "map")
    operator.close()
    assert operator.function.function.calls == []


def test_anything_callable_is_accepted_and_named():
    class Callable:
        def __call__(self, value):
            return -value

    for function, name in ((abs, "abs"), (Callable(), "Callable"), (functools.partial(pow, 2), "partial")):
        assert UserFunction(function, "map").name.endswith(name)
        harness = OperatorHarness(MapOperator(function))
        harness.process([3])
        assert harness.take_rows() == [function(3)]


@pytest.mark.parametrize("wrong", [5, None, "map", Tracing])
def test_what_cannot_be_called_is_refused_when_the_plan_is_made(wrong):
    with pytest.raises(ProgramError):
        MapOperator(wrong)


def test_a_failure_names_its_place_and_shows_the_users_frames_only():
    def inner(value):
        return 1 / value

    def outer(value):
        return inner(value)

    harness = OperatorHarness(MapOperator(outer), subtask=2, parallelism=4)
    with pytest.raises(UserFunctionError) as caught:
        harness.process([1, 0])
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.context["operator"] == "op"
    assert error.context["subtask"] == "3/4"
    assert error.context["function"].endswith("outer")
    lines = error.context["traceback"].splitlines()
    assert lines[0].startswith("Traceback")
    assert "in outer" in lines[1]
    assert any("in inner" in line for line in lines)
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "transforms.py" not in error.context["traceback"]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def inverse(value, *_context):
    return [1 / value]


BY_ITSELF = KeySelector.of_function(lambda value: "a")


@pytest.mark.parametrize(
    "operator",
    [
        MapOperator(inverse),
        MapOperator(inverse, BY_ITSELF),
        FlatMapOperator(inverse),
        FilterOperator(inverse),
        ProcessOperator(inverse),
        KeyedProcessOperator(BY_ITSELF, inverse),
        KeyedReduceOperator(BY_ITSELF, lambda _value, record: 1 / record),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_a_failure_shows_the_record_that_the_function_was_called_with(operator):
    harness = OperatorHarness(operator)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
        harness.process([4, 2, 0, 8], [1, 2, 3, 4])
    assert caught.value.context["record"] == "0"
    assert "record 0" in str(pickle.loads(pickle.dumps(caught.value)))


def test_what_a_failure_shows_of_a_record_is_short_and_hides_secrets():
    secret = "postgresql://user:hunter2@host/db"
    harness = OperatorHarness(MapOperator(lambda row: row["missing"]))
    with pytest.raises(UserFunctionError) as caught:
        harness.process([{"url": secret, "text": "x" * 1_000}])
    assert len(caught.value.context["record"]) <= 200
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("make", [MapOperator, FlatMapOperator, FilterOperator, ProcessOperator])
def test_a_function_that_raises_stop_iteration_fails_and_ends_no_loop(make):
    def first_of(value, *_context):
        return next(iter(value))

    harness = OperatorHarness(make(first_of))
    with pytest.raises(UserFunctionError, match="StopIteration") as caught:
        harness.process([[[1]], [], [[2]]])
    assert caught.value.context["record"] == "[]"


def test_a_builtin_that_fails_has_no_frame_of_its_own_but_a_place():
    harness = OperatorHarness(MapOperator(int))
    with pytest.raises(UserFunctionError, match="invalid literal") as caught:
        harness.process(["x"])
    assert caught.value.context["function"] == "int"


def test_failures_in_open_and_close_are_the_functions():
    class Broken(Tracing):
        failure = OSError("no model file")

        def open(self, runtime_context):
            raise self.failure

        def close(self):
            raise self.failure

    with pytest.raises(UserFunctionError, match="no model file") as caught:
        OperatorHarness(MapOperator(Broken()))
    assert caught.value.context["function"].endswith("Broken.open")


def test_our_own_errors_pass_with_their_place():
    class Unkeyed(Tracing):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("seen"))

    with pytest.raises(StateAccessError, match="only after key_by") as caught:
        OperatorHarness(MapOperator(Unkeyed()))
    assert caught.value.context["operator"] == "op"


def test_a_failing_key_function_is_told_from_the_function():
    operator = KeyedReduceOperator(KeySelector.of_function(lambda row: row["k"]), lambda a, b: a)
    with pytest.raises(UserFunctionError, match="KeyError") as caught:
        OperatorHarness(operator).process([{}])
    assert caught.value.context["function"].startswith("KeySelector(")


class Text(str):
    """A text with a class of its own."""


def test_a_text_or_dict_is_not_a_collection_of_records():
    assert list(records_of(None)) == []
    assert list(records_of(x for x in (1, 2))) == [1, 2]
    for wrong in ("text", b"bytes", {"a": 1}, 5, Text("text"), OrderedDict(a=1), UserDict(a=1), object()):
        with pytest.raises(TypeMismatchError, match="iterable"):
            records_of(wrong)


@pytest.mark.parametrize("wrong", [Text("text"), OrderedDict(a=1), UserDict(a=1), object()])
@pytest.mark.parametrize("make", [FlatMapOperator, lambda call: ProcessOperator(lambda value, context: call(value))])
def test_loops_refuse_texts_and_dicts_of_any_class(make, wrong):
    harness = OperatorHarness(make(lambda value: wrong))
    with pytest.raises(TypeMismatchError, match="iterable"):
        harness.process([1])


class Pair(NamedTuple):
    first: int
    second: int


class Sequence:
    """What Python iterates although it has no method for that."""

    def __getitem__(self, index):
        return (1, 2)[index]


@pytest.mark.parametrize("given", [[1, 2], Pair(1, 2), Sequence(), {1: 0, 2: 0}.keys(), iter([1, 2])])
def test_loops_take_every_other_iterable(given):
    """A named tuple, too, is a tuple of two records."""
    harness = OperatorHarness(FlatMapOperator(lambda value: given))
    harness.process([1])
    assert harness.take_rows() == [1, 2]


def test_pyflink_annotations_and_type_parameters_are_accepted():
    class Windowing(ProcessWindowFunction[tuple, tuple, str, int]):
        def process(self, key, context: ProcessWindowFunction.Context[int], elements):
            return ()

    class Keyed(KeyedProcessFunction):
        def process_element(self, value, ctx: KeyedProcessFunction.Context):
            return ()

        def on_timer(self, timestamp, ctx: KeyedProcessFunction.OnTimerContext):
            return ()

    assert issubclass(Windowing, ProcessWindowFunction)
    assert ProcessWindowFunction.Context[int] is ProcessWindowFunction.Context
    assert all((KeyedProcessFunction.Context, KeyedProcessFunction.OnTimerContext, ProcessFunction.Context))
    assert list(Keyed().on_timer(1, None)) == []


def test_output_tags_are_equal_by_name():
    assert OutputTag("a") == OutputTag("a", int) != OutputTag("b")
    assert len({OutputTag("a"), OutputTag("a")}) == 1
    assert pickle.loads(pickle.dumps(OutputTag("a"))) == OutputTag("a")
    for wrong in ("", None, 3):
        with pytest.raises(ProgramError):
            OutputTag(wrong)
    with pytest.raises(TypeMismatchError):
        SideOutputs().add(3, "value", None)
