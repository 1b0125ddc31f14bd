"""Values whose parts are shared, or that contain themselves: few objects that stand in very many places.

Property: any such value, through whatever goes over users' values, keeps its shape or is refused by name; what it takes
follows the number of its objects. A walk that does not would not end here.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import JobFailedError, RocksDBStateBackend, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.engine.columns.records import Batch
from headrace.engine.columns.sizes import rows_nbytes
from headrace.engine.functions.contract import KeyedProcessFunction
from headrace.engine.functions.isolation import copied
from headrace.engine.functions.keys import KeySelector
from headrace.engine.task.channel_state import Logged
from headrace.state.backends.rocksdb.cache import estimated_bytes
from headrace.state.backends.rocksdb.row_encoding import decode_value, encode_value
from headrace.state.errors import TypeMismatchError
from headrace.state.keys.hashing import hash_key, hash_keys, with_one_nan
from headrace.state.open.plain_objects import plain_value
from headrace.state.open.values import Opaque
from headrace.state.values.encoding import decode_values, encode_values
from headrace.state.values.json_text import json_text
from headrace.state.values.serde import columns_from_rows
from headrace.state.values.sharing import shown, spreads
from headrace.testing import PipelineTestHarness


@dataclasses.dataclass
class Pair:
    left: object
    right: object


LAYERS = {
    "list": lambda x: [x, x],
    "tuple": lambda x: (x, x),
    "record": lambda x: {"a": x, "b": x},
    "map": lambda x: {1: x, 2: x, "n": None},
    "wide": lambda x: [x] * 500,
    "object": lambda x: [Pair(x, x)],
}


def layered(layers, depth):
    value = ["leaf", 1, None]
    for level in range(depth):
        value = LAYERS[layers[level % len(layers)]](value)
    return value


def endless(width):
    value = []
    value += [value] * width
    return value


@st.composite
def graphs(draw):
    """Lists, maps and records whose parts are any of the others: trees, shared parts, cycles."""
    size = draw(st.integers(1, 25))
    nodes = [draw(st.sampled_from((list, dict)))() for _ in range(size)]
    part = st.one_of(st.integers(0, 3), st.text(max_size=2), st.integers(0, size - 1).map(lambda i: ("node", i)))
    for node in nodes:
        parts = [nodes[p[1]] if type(p) is tuple else p for p in draw(st.lists(part, max_size=6))]
        node.extend(parts) if type(node) is list else node.update(enumerate(parts))
    return nodes[0]


def is_same(one, other):
    """Whether two values unfold alike, each pair of objects looked at once."""
    seen, rest = set(), [(one, other)]
    while rest:
        left, right = rest.pop()
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        if type(left) is not type(right):
            return False
        if type(left) is Pair:
            left, right = vars(left), vars(right)
        if type(left) is dict:
            if list(left) != list(right):
                return False
            left, right = list(left.values()), list(right.values())
        if type(left) in (list, tuple):
            if len(left) != len(right):
                return False
            rest.extend(zip(left, right, strict=True))
        elif left != right:
            return False
    return True


def through_pickled_batch(value):
    batch = Batch.of_rows([value, 1], None)
    kind, state = batch.__reduce_ex__(5)[:2]
    return kind(*state).rows[0]


WAYS = {
    "a column": lambda value: decode_values(*encode_values([value]))[0],
    "a column beside others": lambda value: decode_values(*encode_values([[1], value, None]))[1],
    "a row": lambda value: decode_value(encode_value(value)),
    "a copy": copied,
    "a batch to another process": through_pickled_batch,
}


@pytest.mark.parametrize("way", WAYS)
@given(value=graphs())
@settings(max_examples=examples(60))
def test_any_graph_of_values_comes_back_as_it_was(way, value):
    assert is_same(WAYS[way](value), value)


SPREADING = {
    **{layer: functools.partial(layered, [layer], 60) for layer in LAYERS},
    "all kinds": functools.partial(layered, list(LAYERS), 70),
    "itself": functools.partial(endless, 1),
    "itself 1,000 times": functools.partial(endless, 1_000),
    "ten to the tenth": lambda: layered(["wide"], 4),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPREADING)
def test_a_value_that_stands_in_very_many_places_comes_back(way, kind):
    value = SPREADING[kind]()
    assert is_same(WAYS[way](value), value)


REFUSING = {
    "json": json_text,
    "columns of records": lambda value: columns_from_rows([{"x": value}]),
    "a key": lambda value: hash_key((value, 1)),
    "keys": lambda value: hash_keys([(value, 1)]),
}


@pytest.mark.parametrize("way", REFUSING)
@pytest.mark.parametrize("kind", SPREADING)
def test_what_cannot_keep_shared_parts_refuses_them(way, kind):
    value = SPREADING[kind]()
    with pytest.raises(TypeMismatchError) as failure:
        REFUSING[way](value)
    assert len(str(failure.value)) < 600


@pytest.mark.parametrize("kind", SPREADING)
def test_what_only_looks_at_a_value_ends(kind):
    value = SPREADING[kind]()
    assert spreads(value)
    assert rows_nbytes([value]) > 0
    assert estimated_bytes(value) > 0
    assert len(shown(value)) <= 200
    assert isinstance(plain_value(value), Opaque)
    assert Logged.of(Batch.of_rows([value], None), 0).rows


class Exiting:
    def __repr__(self):
        raise SystemExit(3)


class MakesParts(list):
    """Gives other parts each time it is gone through."""

    def __iter__(self):
        return ([number] for number in range(len(self)))


def test_what_a_value_does_when_it_is_looked_at_is_not_the_error_that_is_told():
    assert shown(Exiting()) == "<a Exiting>"
    assert shown([Exiting()]) == "<a list>"
    assert not spreads([MakesParts([1, 2])] * 2_000, 1 << 20)

    def fail(_record):
        message = "the user's own"
        raise ValueError(message)

    with (
        pytest.raises(JobFailedError, match="the user's own"),
        StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env,
        env.from_collection([1]).map(lambda _: Exiting()).map(fail).execute_and_collect() as rows,
    ):
        list(rows)


PLAIN_TEXT = st.text(st.characters(exclude_characters="'\""), max_size=300)  # which quotes a repr has depends on these
NESTED = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | PLAIN_TEXT | st.just(b"\0" * 300),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(PLAIN_TEXT | st.integers(), inner),
    max_leaves=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(NESTED)
def test_what_is_shown_is_the_beginning_of_the_repr(value):
    whole = repr(value)
    for length in (5, 20, 200):
        text = shown(value, length)
        assert text == (whole if len(whole) <= length else f"{whole[: length - 3]}...")


def test_what_is_shown_of_a_large_value_does_not_take_its_whole_repr():
    class Part:
        looked_at = 0

        def __repr__(self):
            Part.looked_at += 1
            return "part"

    assert shown({"parts": [Part() for _ in range(100_000)]}).startswith("{'parts': [part, part, ")
    assert Part.looked_at <= 200
    assert shown(bytes(10 << 20)) == f"{bytes(200)!r}"[:197] + "..."


def test_a_key_of_shared_tuples_is_refused_before_python_hashes_it():
    key = (1,)
    for _ in range(60):
        key = (key, key)
    for refusing in (hash_key, lambda key: hash_keys([key, key]), lambda key: with_one_nan([key]), keys_of):
        with pytest.raises(TypeMismatchError, match="shares its parts"):
            refusing(key)


def keys_of(key):
    return KeySelector.of_function(lambda row: row["key"]).keys(Batch.of_rows([{"key": key}], None))


class Holder:
    """A key whose state shares its parts."""

    def __init__(self):
        self.state = layered(["list"], 60)


@pytest.mark.usefixtures("no_garbage_search")
@pytest.mark.parametrize("depth", [1_500, 20_000])
def test_a_key_nested_very_deep_is_refused_by_name(depth):
    key = 1
    for _ in range(depth):
        key = (key,)
    for refusing in (
        hash_key,
        lambda key: hash_keys([key]),
        lambda key: hash_keys([key, 1]),
        lambda k: with_one_nan([k]),
    ):
        with pytest.raises(TypeMismatchError, match=r"nested too deep|shares its parts"):
            refusing(key)


def test_a_key_whose_state_shares_its_parts_is_refused_by_name():
    with pytest.raises(TypeMismatchError, match="no stable hash"):
        hash_key(Holder())


@pytest.mark.parametrize(
    "value",
    [
        [[0] * 100] * 8,
        {"rows": [{"a": 1, "b": [1, 2]}] * 20},
        [{"a": i, "b": (i, [i])} for i in range(1_200)],
        [[(i, "x")] * 3 for i in range(600)],
        tuple(range(10_000)),
    ],
)
def test_ordinary_values_keep_their_readable_form(value):
    assert not spreads(value)
    assert encode_value(value)[:1] in (b"\x00", b"\x01")
    assert encode_values([value, value])[1] != "packed" or type(value) is tuple
    assert json_text(value)


class Keeps(KeyedProcessFunction):
    """Keeps a value under its key; gives what was there."""

    def __init__(self, make):
        self.make = make

    def open(self, ctx):
        self.kept = ctx.get_state(ValueStateDescriptor("kept"))

    def process_element(self, value, ctx):
        kept = self.kept.value()
        yield None if kept is None else is_same(kept, self.make())
        self.kept.update(self.make())


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("kind", SPREADING)
def test_a_job_keeps_such_values_across_a_checkpoint(backend, kind):
    def program(numbers):
        if backend == "rocksdb":
            numbers.get_execution_environment().set_state_backend(RocksDBStateBackend())
        return numbers.key_by(lambda n: n).process(Keeps(SPREADING[kind]))

    with PipelineTestHarness(program) as harness:
        harness.process_element(1)
        snapshot = harness.snapshot()
    with PipelineTestHarness(program).restore(snapshot) as harness:
        harness.process_element(1)
        assert harness.take_output_values() == [True]
