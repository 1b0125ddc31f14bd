"""The heap backend beside the contract: snapshot isolation, rescaling (properties), handles, files (examples)."""

from __future__ import annotations

import dataclasses
import enum
import json

import numpy as np
import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.backends.heap.backend import HeapKeyedStateBackend, HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    InternalError,
    ProgramError,
    StateAccessError,
    TypeMismatchError,
)
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.keyed.kinds import NO_KEY, StateDescriptor
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_group_range, key_groups_of, subtask_of

MAX_PARALLELISM = 16
OPERATOR = OperatorId("counter")
COUNT = ValueStateDescriptor("count", default=0)
WINDOWS = StateDescriptor("windows")
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


@dataclasses.dataclass
class Box:
    """A mutable value of a type the backend knows nothing about."""

    content: int


def backend(subtask=0, parallelism=1, max_parallelism=MAX_PARALLELISM):
    owned = key_group_range(max_parallelism, parallelism, subtask)
    return HeapKeyedStateBackend(OPERATOR, owned, max_parallelism)


def written(parts, source_subtask=0):
    return [RestoredPart(p.state, p.kind, json.loads(json.dumps(p.metadata)), p.write(), source_subtask) for p in parts]


def restored(parts, subtask=0, parallelism=1, max_parallelism=MAX_PARALLELISM):
    fresh = backend(subtask, parallelism, max_parallelism)
    fresh.restore(parts)
    return fresh


def contents(state, descriptor, *, windowed=False):
    table = state.table(descriptor, windowed=windowed)
    return {namespace: dict(table.namespace(namespace)) for namespace in table.namespaces()}


def owner(key, parallelism):
    return int(subtask_of(key_groups_of(hash_keys([key]), MAX_PARALLELISM), MAX_PARALLELISM, parallelism)[0])


# ------------------------------------------------------------------------------------------------------------ handles
def test_a_value_belongs_to_its_key():
    state = backend()
    count = state.handle(COUNT)
    for key in ("a", "b", "a"):
        state.current_key = key
        count.update(count.value() + 1)
    assert contents(state, COUNT) == {None: {"a": 2, "b": 1}}
    count.clear()
    count.clear()
    assert count.value() == 0


def test_none_is_a_key_and_a_value():
    state = backend()
    value = state.handle(ValueStateDescriptor("v", default=5))
    state.current_key = None
    assert value.value() == 5
    value.update(None)
    assert value.value() is None


def test_a_mutable_default_is_not_shared():
    state = backend()
    value = state.handle(ValueStateDescriptor("v", default=[]))
    state.current_key = 1
    value.value().append("lost")
    assert value.value() == []


def test_list_map_reducing_and_aggregating_state():
    class Mean:
        def create_accumulator(self):
            return (0, 0)

        def add(self, value, accumulator):
            return (accumulator[0] + value, accumulator[1] + 1)

        def get_result(self, accumulator):
            return accumulator[0] / accumulator[1]

    state = backend()
    items = state.handle(ListStateDescriptor("list"))
    entries = state.handle(MapStateDescriptor("map"))
    total = state.handle(ReducingStateDescriptor("sum", reduce_function=lambda a, b: a + b))
    mean = state.handle(AggregatingStateDescriptor("mean", aggregate_function=Mean()))
    for key in ("a", "b"):
        state.current_key = key
        assert (items.get(), entries.is_empty(), total.get(), mean.get()) == ([], True, None, None)
        items.add(1)
        items.add_all([2, 3])
        items.get().append("lost")
        assert items.get() == [1, 2, 3]
        entries.put("x", 1)
        entries.put_all({"y": 2, "z": 3})
        entries.remove("z")
        assert (entries.get("x"), entries.get("z"), entries.contains("y")) == (1, None, True)
        assert (list(entries.keys()), list(entries.values()), list(entries.items())) == (
            ["x", "y"],
            [1, 2],
            [("x", 1), ("y", 2)],
        )
        for value in (1, 2, 6):
            total.add(value)
            mean.add(value)
        assert (total.get(), mean.get()) == (9, 3.0)
    items.update([9])
    assert items.get() == [9]
    items.update([])
    for key in list(entries.keys()):
        entries.remove(key)
    total.clear()
    mean.clear()
    again = restored(written(state.snapshot()))
    for table in ("list", "map", "sum", "mean"):
        assert list(again._tables[table].namespace(None)) == ["a"]


def test_user_state_is_refused_outside_of_a_key():
    state = backend()
    handles = [
        state.handle(COUNT).value,
        state.handle(COUNT).clear,
        state.handle(ListStateDescriptor("l")).get,
        state.handle(MapStateDescriptor("m")).keys,
        state.handle(ReducingStateDescriptor("r", reduce_function=max)).get,
        lambda: state.handle(COUNT).update(1),
    ]
    assert state.current_key is NO_KEY
    for call in handles:
        with pytest.raises(StateAccessError, match="no current key"):
            call()


def test_a_descriptor_without_name_or_function_is_refused():
    for make in (
        lambda: StateDescriptor(""),
        lambda: StateDescriptor(None),
        lambda: ReducingStateDescriptor("r"),
        lambda: AggregatingStateDescriptor("a", aggregate_function=max),
    ):
        with pytest.raises(ProgramError):
            make()


# ---------------------------------------------------------------------------------------------------------- snapshots
MUTABLE = st.sampled_from(
    [
        lambda: [1],
        lambda: {"x": 1},
        lambda: {"x": [1]},
        lambda: [[1]],
        lambda: ([1],),
        lambda: Box(1),
        lambda: {1},
        lambda: bytearray(b"a"),
        lambda: 5,
        lambda: "text",
        lambda: (1, "a"),
        lambda: None,
    ]
)


def change(value):
    """Change a value in place, as a user function may before it calls update()."""
    if isinstance(value, tuple):
        for element in value:
            change(element)
    elif isinstance(value, list):
        for element in value:
            change(element)
        value.append(99)
    elif isinstance(value, dict):
        for element in value.values():
            change(element)
        value["changed"] = 99
    elif isinstance(value, set):
        value.add(99)
    elif isinstance(value, bytearray):
        value.append(99)
    elif isinstance(value, Box):
        value.content = 99


@given(st.dictionaries(st.integers(0, 20), MUTABLE, min_size=1))
def test_changes_after_a_snapshot_are_not_in_it(makers):
    state, operator_state = backend(), HeapOperatorStateBackend(OPERATOR)
    table = state.table(WINDOWS, windowed=True)
    items = operator_state.list_state("items")
    values = {key: make() for key, make in makers.items()}
    table.namespace(None).update(values)
    table.namespace((0, 1)).update(values)
    items.update(list(values.values()))
    parts, operator_parts = state.snapshot(), operator_state.snapshot()
    for value in values.values():
        change(value)
    table.namespace(None).clear()
    table.namespace((0, 1))[77] = 1
    table.namespace((5, 6))[77] = 1
    items.update(["later"])
    expected = {key: make() for key, make in makers.items()}
    assert contents(restored(written(parts)), WINDOWS, windowed=True) == {None: expected, (0, 1): expected}
    fresh = HeapOperatorStateBackend(OPERATOR)
    fresh.restore(written(operator_parts), 0, 1)
    assert fresh.list_state("items").get() == list(expected.values())


def test_changes_of_runs_after_a_snapshot_are_not_in_it():
    state = backend()
    table = state.columnar_table("runs", SCHEMA, ("user",))
    run = pa.record_batch({"user": ["a", "b"], "n": [1, 2]}, SCHEMA)
    table.append((0, 10), run)
    parts = state.snapshot()
    table.append((0, 10), run)
    table.append(None, run)
    again = restored(written(parts)).columnar_table("runs", SCHEMA, ("user",))
    assert list(again.namespaces()) == [(0, 10)]
    assert sum(piece.num_rows for piece in again.runs((0, 10))) == 2


KEY = (
    st.integers(0, 50)
    | st.text(max_size=3)
    | st.tuples(st.integers(0, 5), st.text(max_size=2))
    | st.none()
    | st.floats(-3, 3)
)
NAMESPACE = st.none() | st.tuples(st.integers(-5, 5), st.integers(6, 9))


@given(
    st.dictionaries(st.tuples(NAMESPACE, KEY), st.integers() | st.lists(st.text(max_size=2))),
    st.integers(1, MAX_PARALLELISM),
    st.integers(1, MAX_PARALLELISM),
)
@settings(max_examples=examples(60))
def test_keyed_state_is_the_same_at_any_parallelism(entries, before, after):
    backends = [backend(subtask, before) for subtask in range(before)]
    for (namespace, key), value in entries.items():
        backends[owner(key, before)].table(WINDOWS, windowed=True).namespace(namespace)[key] = value
    parts = [part for subtask, state in enumerate(backends) for part in written(state.snapshot(), subtask)]
    merged = {}
    for subtask in range(after):
        state = restored(parts, subtask, after)
        for namespace, space in contents(state, WINDOWS, windowed=True).items():
            for key, value in space.items():
                assert owner(key, after) == subtask
                assert (namespace, key) not in merged
                merged[namespace, key] = value
    assert merged == entries


@given(
    st.lists(st.tuples(NAMESPACE, st.text(max_size=2), st.integers(0, 9))),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=examples(60))
def test_columnar_state_is_the_same_at_any_parallelism(rows, before, after, encoded):
    kind = pa.dictionary(pa.int32(), pa.string()) if encoded else pa.string()
    schema = pa.schema([("user", kind), ("window_start", pa.int64())])
    backends = [backend(subtask, before) for subtask in range(before)]
    for namespace, user, n in rows:
        table = backends[owner(user, before)].columnar_table("runs", schema, ("user",))
        table.append(namespace, pa.record_batch([pa.array([user], kind), pa.array([n])], schema=schema))
    parts = [part for subtask, state in enumerate(backends) for part in written(state.snapshot(), subtask)]
    found = []
    for subtask in range(after):
        table = restored(parts, subtask, after).columnar_table("runs", schema, ("user",))
        for namespace in table.namespaces():
            for run in table.runs(namespace):
                for row in run.to_pylist():
                    assert owner(row["user"], after) == subtask
                    found.append((namespace, row["user"], row["window_start"]))
    assert sorted(found, key=repr) == sorted(rows, key=repr)
    for namespace, user in {(namespace, user) for namespace, user, _ in rows}:
        order = [row[2] for row in rows if row[:2] == (namespace, user)]
        assert [row[2] for row in found if row[:2] == (namespace, user)] == order


def test_runs_keep_their_order_through_a_restore():
    """Later runs may be newer versions of rows."""
    state = backend()
    table = state.columnar_table("runs", SCHEMA, ("user",))
    for n in range(0, 3_000, 100):
        users = [f"user-{i % 7}" for i in range(100)]
        table.append(None, pa.record_batch({"user": users, "n": list(range(n, n + 100))}, SCHEMA))
    again = restored(written(state.snapshot())).columnar_table("runs", SCHEMA, ("user",))
    rows = [row for run in again.runs(None) for row in run.to_pylist()]
    assert len(rows) == 3_000
    for user in {row["user"] for row in rows}:
        order = [row["n"] for row in rows if row["user"] == user]
        assert order == sorted(order)


def test_a_snapshot_file_is_a_plain_arrow_file():
    """Sorted by key group, typed, with its facts in the schema: readable without Headrace."""
    state = backend()
    table = state.table(WINDOWS, windowed=True)
    for i in range(50):
        table.namespace((0, 10) if i % 2 else None)[f"user-{i}"] = i
    (part,) = state.snapshot()
    read = pa.ipc.open_file(part.write()).read_all()
    assert read.schema.names == ["key_group", "window_start", "window_end", "key", "value"]
    assert [str(kind) for kind in read.schema.types] == ["int32", "int64", "int64", "large_string", "int64"]
    groups = read.column("key_group").to_pylist()
    assert groups == sorted(groups)
    assert groups == key_groups_of(hash_keys(read.column("key").to_pylist()), MAX_PARALLELISM).tolist()
    facts = json.loads(read.schema.metadata[b"headrace.state"])
    assert facts == {
        "descriptor": "table",
        "format_version": 1,
        "key_encoding": "string",
        "key_groups": [0, 15],
        "kind": "keyed",
        "map_key_schema": None,
        "max_parallelism": 16,
        "state": "windows",
        "ttl": False,
        "value_encoding": "int64",
        "value_schema": None,
        "value_type": None,
        "windowed": True,
    }
    assert part.metadata == {name: fact for name, fact in facts.items() if not name.endswith("_encoding")}


def test_an_empty_state_writes_nothing():
    state = backend()
    state.handle(COUNT)
    state.table(WINDOWS, windowed=True).namespace((0, 1))
    state.columnar_table("runs", SCHEMA, ("user",)).append(None, pa.record_batch({"user": [], "n": []}, SCHEMA))
    assert state.snapshot() == []


def test_a_foreign_key_stops_the_snapshot():
    keys = [key for key in range(100) if owner(key, 2) == 1]
    state = backend(0, 2)
    state.table(StateDescriptor("t")).namespace(None)[keys[0]] = 1
    with pytest.raises(InternalError, match="owns key groups 0 to 7"):
        state.snapshot()[0].write()
    state = backend(0, 2)
    schema = pa.schema([("k", pa.int64())])
    state.columnar_table("c", schema, ("k",)).append(None, pa.record_batch({"k": keys[:1]}, schema))
    with pytest.raises(InternalError, match="owns key groups 0 to 7"):
        state.snapshot()[0].write()


def test_a_value_that_cannot_be_stored_names_its_state():
    state = backend()
    state.table(StateDescriptor("odd")).namespace(None)[1] = (i for i in ())
    with pytest.raises(TypeMismatchError) as caught:
        state.snapshot()
    assert caught.value.context["state"] == "odd"


# ----------------------------------------------------------------------------------------------------------- refusals
def test_a_file_that_is_not_what_it_should_be_is_corrupt():
    state = backend()
    state.table(StateDescriptor("t")).namespace(None)[1] = 1
    (part,) = written(state.snapshot())
    for changes in (
        {"data": b""},
        {"data": b"ARROW1\0\0nonsense"},
        {"data": part.data[: len(part.data) // 2]},
        {"state": "other"},
        {"kind": "columnar"},
    ):
        with pytest.raises(CheckpointCorruptError):
            restored([dataclasses.replace(part, **changes)])


def test_offsets_that_point_out_of_a_file_are_corrupt_and_do_not_end_the_process():
    state = backend()
    state.table(StateDescriptor("t")).namespace(None).update({n: f"value {n:03}" for n in range(50)})
    [part] = written(state.snapshot())
    offsets = np.arange(0, 51 * len("value 000"), len("value 000"), dtype="<i8").tobytes()
    assert part.data.count(offsets) == 1
    beyond = offsets[:-8] + np.array([1 << 40], dtype="<i8").tobytes()
    broken = dataclasses.replace(part, data=part.data.replace(offsets, beyond))
    with pytest.raises(CheckpointCorruptError, match="cannot be decoded"):
        backend().restore([broken])


def test_a_file_of_a_newer_version_is_refused():
    state = backend()
    state.table(StateDescriptor("t")).namespace(None)[1] = 1
    (part,) = written(state.snapshot())
    data = part.data.replace(b'"format_version": 1', b'"format_version": 2')
    with pytest.raises(CheckpointMismatchError, match="format version 2"):
        restored([dataclasses.replace(part, data=data)])


def test_files_that_disagree_are_refused():
    one, two = backend(0, 2), backend(1, 2)
    keys = [next(key for key in range(100) if owner(key, 2) == subtask) for subtask in (0, 1)]
    one.table(StateDescriptor("t")).namespace(None)[keys[0]] = 1
    two.current_key = keys[1]
    two.handle(ValueStateDescriptor("t")).update(2)
    with pytest.raises(CheckpointMismatchError, match="disagree"):
        restored([*written(one.snapshot(), 0), *written(two.snapshot(), 1)])


# ----------------------------------------------------------------------------------------------------- operator state
@given(st.lists(st.lists(st.integers() | st.text(max_size=2)), max_size=5), st.integers(1, 6))
def test_list_elements_are_dealt_out_once_and_union_elements_go_to_all(lists, after):
    parts = []
    for subtask, values in enumerate(lists):
        state = HeapOperatorStateBackend(OPERATOR)
        state.list_state("dealt").update(values)
        state.union_list_state("shared").update(values)
        parts += written(state.snapshot(), subtask)
    everything = [value for values in lists for value in values]
    dealt = []
    for subtask in range(after):
        state = HeapOperatorStateBackend(OPERATOR)
        state.restore(parts[::-1], subtask, after)
        assert state.union_list_state("shared").get() == everything
        share = state.list_state("dealt").get()
        assert len(share) in (len(everything) // after, -(-len(everything) // after))
        dealt.append(share)
    back = [dealt[i % after][i // after] for i in range(len(everything))]
    assert back == everything


def test_a_union_list_nobody_declares_does_not_multiply():
    state = HeapOperatorStateBackend(OPERATOR)
    state.union_list_state("shared").update([1, 2, 3])
    parts = written(state.snapshot())
    for _ in range(3):
        again = []
        for subtask in range(2):
            state = HeapOperatorStateBackend(OPERATOR)
            state.restore(parts, subtask, 2)
            again += written(state.snapshot(), subtask)
        parts = again
    state = HeapOperatorStateBackend(OPERATOR)
    state.restore(parts, 0, 1)
    assert sorted(state.union_list_state("shared").get()) == [1, 2, 3]


def test_a_list_nobody_declares_survives_restores_that_deal_nothing_out():
    """At an unchanged parallelism a subtask gets only its own list: dealing it out once more would lose the rest."""
    old = HeapOperatorStateBackend(OPERATOR)
    old.list_state("todo").add_all([1, 2, 3, 4])
    parts = written(old.snapshot(), 1)
    for _ in range(2):  # versions of the program that do not declare it
        silent = HeapOperatorStateBackend(OPERATOR)
        silent.restore(parts, 1, 2, is_undealt=True)
        parts = written(silent.snapshot(), 1)
    new = HeapOperatorStateBackend(OPERATOR)
    new.restore(parts, 1, 2, is_undealt=True)
    assert new.list_state("todo").get() == [1, 2, 3, 4]


def test_operator_state_keeps_its_kind():
    state = HeapOperatorStateBackend(OPERATOR)
    state.list_state("items").update([1])
    assert state.list_state("items").get() == [1]
    with pytest.raises(ProgramError, match="declared twice"):
        state.union_list_state("items")
    again = HeapOperatorStateBackend(OPERATOR)
    again.restore(written(state.snapshot()), 0, 1)
    with pytest.raises(CheckpointMismatchError, match="list state"):
        again.union_list_state("items")


def test_operator_state_is_not_shared_with_its_user():
    state = HeapOperatorStateBackend(OPERATOR)
    values = [1]
    state.list_state("items").update(values)
    values.append(2)
    state.list_state("items").get().append(3)
    assert state.list_state("items").get() == [1]


class Color(enum.Enum):
    RED = 1


def test_keys_of_any_hashable_kind_are_restored():
    keys = [1, "a", b"b", 2.5, None, (1, "x"), Color.RED, frozenset({1}), np.int64(9), 2**80]
    state = backend()
    space = state.table(StateDescriptor("t")).namespace(None)
    for i, key in enumerate(keys):
        space[key] = i
    found = contents(restored(written(state.snapshot())), StateDescriptor("t"))[None]
    assert found == space
    assert {type(key) for key in found} == {type(key) for key in keys}
