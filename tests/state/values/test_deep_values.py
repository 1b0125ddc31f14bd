"""Values of state that are nested deep or contain themselves: what is written can be read back, or is refused by name.

Families: property (anything nested, through every encoding), end-to-end (jobs over both backends).
"""

from __future__ import annotations

import functools

import pytest
from campaigns import examples, planted
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import JobFailedError, RocksDBStateBackend, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.engine.functions.contract import KeyedProcessFunction
from headrace.state.backends.rocksdb.row_encoding import decode_key, decode_value, encode_key, encode_value
from headrace.state.errors import TypeMismatchError
from headrace.state.values.encoding import decode_values, encode_values
from headrace.testing import PipelineTestHarness

pytestmark = pytest.mark.usefixtures("no_garbage_search")

LAYERS = {
    "list": lambda inner: [inner],
    "pair": lambda inner: [inner, 1],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "map": lambda inner: {1: inner, "b": None},
    "no plain value": lambda inner: [inner, range(3)],
}


def nested(layers, depth):
    """So many layers, of the kinds given in turn."""
    value = 1
    for level in range(depth):
        value = LAYERS[layers[level % len(layers)]](value)
    return value


def layers_of(value):
    """The types of all layers: deep values cannot be compared by Python."""
    found = []
    while isinstance(value, (list, tuple, dict)):
        rest = list(value.items()) if type(value) is dict else list(value)[1:]
        found.append((type(value), len(value), [] if type(value) is dict else [type(one) for one in rest]))
        value = next(iter(value.values())) if type(value) is dict else value[0]
    return found, value


ENCODINGS = {
    "a column": lambda value: decode_values(*encode_values([value]))[0],
    "a column beside others": lambda value: decode_values(*encode_values([value, None, value]))[2],
    "a row": lambda value: decode_value(encode_value(value)),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    depth=st.one_of(st.integers(0, 120), st.integers(120, 1_500)),
)
@settings(max_examples=examples(60))
def test_what_is_written_however_deep_it_is_can_be_read(encoding, layers, depth):
    value = nested(layers, depth)
    failure = None
    try:
        read = ENCODINGS[encoding](value)
    except TypeMismatchError as error:
        failure = error
    if failure is None:
        assert layers_of(read) == layers_of(value)
    else:
        assert "nested too deep" in str(failure)
        assert depth > 100


@given(depth=st.integers(0, 1_500), layers=st.lists(st.sampled_from(("tuple", "text")), min_size=1, max_size=3))
@settings(max_examples=examples(60))
def test_a_key_that_is_written_however_deep_it_is_can_be_read(depth, layers):
    key = 1
    for level in range(depth):
        key = (key,) if layers[level % len(layers)] == "tuple" else (key, "x" * 30)
    failure = None
    try:
        data = encode_key(key)
    except TypeMismatchError as error:
        failure = error
    if failure is None:
        assert layers_of(decode_key(data)[0]) == layers_of(key)
    else:
        assert "no stable encoding" in str(failure)
        assert depth > 100


def endless(kind):
    value = {"list": [], "dict": {}, "wide": []}[kind]
    if kind == "dict":
        value["self"] = value
    else:
        value += [value] * (1 if kind == "list" else 50)
    return value


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["list", "dict", "wide"])
def test_a_value_that_contains_itself_does_so_when_it_is_read(encoding, kind):
    read = ENCODINGS[encoding](endless(kind))
    assert (read["self"] if kind == "dict" else read[-1]) is read


BACKENDS = {"heap": None, "rocksdb": RocksDBStateBackend()}


class Keeps(KeyedProcessFunction):
    """Keeps a value under its key, and says whether it was there already."""

    def __init__(self, make):
        self.make = make

    def open(self, ctx):
        self.kept = ctx.get_state(ValueStateDescriptor("kept", list))

    def process_element(self, value, ctx):
        kept = self.kept.value()
        yield None if kept is None else kept[0] is kept
        self.kept.update(self.make())


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_that_contains_itself_is_restored(backend):
    def program(numbers):
        if BACKENDS[backend] is not None:
            numbers.get_execution_environment().set_state_backend(BACKENDS[backend])
        return numbers.key_by(lambda n: n).process(Keeps(lambda: endless("list")))

    with PipelineTestHarness(program) as harness:
        harness.process_element(1)
        snapshot = harness.snapshot()
    with PipelineTestHarness(program).restore(snapshot) as harness:
        harness.process_element(1)
        assert harness.take_output_values() == [True]


@functools.cache  # not made for each record
def too_deep():
    return nested(["list"], 100_000)


@pytest.mark.parametrize("backend", planted(BACKENDS, {"rocksdb"}))
def test_state_that_cannot_be_stored_ends_the_job_with_operator_subtask_and_state(backend, tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=3)
    if BACKENDS[backend] is not None:
        env.set_state_backend(BACKENDS[backend])
    env.enable_checkpointing(10, directory=tmp_path)
    numbers = env.from_sequence(0, 5_000).key_by(lambda n: n % 7)
    numbers.process(Keeps(too_deep)).name("keeping").print()
    with env, pytest.raises(JobFailedError, match="nested too deep") as failed:
        env.execute()
    assert "state 'kept', operator 'keeping', subtask" in str(failed.value)
