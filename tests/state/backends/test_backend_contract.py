"""What every state backend must do, checked on each: handles, windows, tables, snapshots, rescaling, refusals.

Examples for what a handle gives, properties for snapshots and rescaling. Time to live is in ``test_ttl``, change of
types in ``test_evolution``; both run on every backend too.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from backend_kit import MAX_PARALLELISM, owner
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    InternalError,
    ProgramError,
    StateAccessError,
    TypeMismatchError,
)
from headrace.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.keyed.kinds import NO_KEY, StateDescriptor

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
WINDOWS = StateDescriptor("windows")


class Mean:
    """Mean of numbers, as (sum, count)."""

    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, one, other):
        return (one[0] + other[0], one[1] + other[1])


class NoMerge:
    """An aggregate that cannot merge."""

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


VALUE = ValueStateDescriptor("value", default=0)
LIST = ListStateDescriptor("list")
MAP = MapStateDescriptor("map")
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b)
MEAN = AggregatingStateDescriptor("mean", Mean())
DESCRIPTORS = [VALUE, LIST, MAP, SUM, MEAN]


def handle(backend, descriptor, *, windowed=False):
    return backend.handle(descriptor, windowed=windowed)


def write(state, descriptor, n):
    """Put a number into a state of any kind."""
    if descriptor.kind == "value":
        state.update(n)
    elif descriptor.kind == "map":
        state.put(f"entry {n}", n)
    else:
        state.add(n)


def read(state, descriptor):
    """What a state of any kind holds, as a plain value."""
    if descriptor.kind == "value":
        return state.value()
    return dict(state.items()) if descriptor.kind == "map" else state.get()


EMPTY = {"value": 0, "list": [], "map": {}, "reducing": None, "aggregating": None}
AFTER_1_AND_5 = {"value": 5, "list": [1, 5], "map": {"entry 1": 1, "entry 5": 5}, "reducing": 6, "aggregating": 3.0}


# ------------------------------------------------------------------------------------------------------------ handles
@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: d.kind)
def test_state_belongs_to_its_key_and_survives_a_restore(kit, descriptor):
    backend = kit.make()
    for _ in range(2):
        state = handle(backend, descriptor)
        for key in ("a", None, 7):
            backend.current_key = key
            assert read(state, descriptor) == EMPTY[descriptor.kind]
            write(state, descriptor, 1)
            write(state, descriptor, 5)
        backend = kit.again(backend)
        state = handle(backend, descriptor)
        for key in ("a", None, 7):
            backend.current_key = key
            assert read(state, descriptor) == AFTER_1_AND_5[descriptor.kind]
            state.clear()
            state.clear()
            assert read(state, descriptor) == EMPTY[descriptor.kind]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: d.kind)
def test_what_is_cleared_takes_no_room(kit, descriptor):
    backend = kit.make()
    state = handle(backend, descriptor)
    windowed = dataclasses.replace(descriptor, name="windowed")
    in_windows = handle(backend, windowed, windowed=True)
    for key in range(5):
        backend.current_key = key
        write(state, descriptor, 1)
        backend.current_namespace = (key, key + 1)
        write(in_windows, windowed, 1)
    for key in range(5):
        backend.current_key = key
        state.clear()
        backend.current_namespace = (key, key + 1)
        in_windows.clear()
    assert list(backend.table(descriptor).namespaces()) == []
    assert list(backend.table(windowed, windowed=True).namespaces()) == []
    if kit.name == "heap":
        assert backend.table(windowed, windowed=True)._spaces == {}, "not even empty dictionaries are left"
    assert kit.again(backend).snapshot() == []


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: d.kind)
def test_state_is_refused_outside_of_a_key(kit, descriptor):
    backend = kit.make()
    state = handle(backend, descriptor)
    windowed = handle(backend, dataclasses.replace(descriptor, name="windowed"), windowed=True)
    assert backend.current_key is NO_KEY
    assert backend.current_namespace is None
    calls = [
        lambda: read(state, descriptor),
        lambda: write(state, descriptor, 1),
        lambda: state.clear(),
        lambda: windowed.clear(),
    ]
    for call in calls:
        with pytest.raises(StateAccessError, match="no current key"):
            call()
    backend.current_key = "a"
    for call in (
        lambda: read(windowed, descriptor),
        lambda: write(windowed, descriptor, 1),
        lambda: windowed.clear(),
    ):
        with pytest.raises(StateAccessError, match="no current window"):
            call()
    write(state, descriptor, 1)


def test_a_default_is_given_and_a_mutable_one_is_not_shared(kit):
    backend = kit.make()
    backend.current_key = 1
    items = backend.handle(ValueStateDescriptor("items", default=[]))
    items.value().append("lost")
    assert items.value() == []
    assert backend.handle(VALUE).value() == 0
    nothing = backend.handle(ValueStateDescriptor("nothing"))
    assert nothing.value() is None
    held = backend.handle(ValueStateDescriptor("held", default=5))
    held.update(None)
    assert held.value() is None
    held.clear()
    assert held.value() == 5


def test_what_a_list_gives_is_a_copy(kit):
    backend = kit.make()
    backend.current_key = 1
    items = backend.handle(LIST)
    given = [1, 2]
    items.update(given)
    given.append("lost")
    items.get().append("lost")
    items.add_all(iter([3, 4]))
    assert items.get() == [1, 2, 3, 4]
    items.add_all([])
    items.update([])
    assert items.get() == []


def test_a_map_is_read_and_changed_by_entry(kit):
    backend = kit.make()
    backend.current_key = "a"
    entries = backend.handle(MAP)
    assert (entries.is_empty(), entries.contains("x"), entries.get("x")) == (True, False, None)
    entries.put("x", 1)
    entries.put_all({"y": 2, ("z", 1): None})
    assert (entries.is_empty(), entries.contains(("z", 1)), entries.get(("z", 1))) == (False, True, None)
    entries.put("x", 3)
    backend.current_key = "b"
    assert entries.is_empty()
    entries.remove("x")
    backend.current_key = "a"
    backend = kit.again(backend)
    backend.current_key = "a"
    entries = backend.handle(MAP)
    assert set(entries.keys()) == {"x", "y", ("z", 1)}
    assert sorted(entries.values(), key=repr) == [2, 3, None]
    assert dict(entries.items()) == {"x": 3, "y": 2, ("z", 1): None}
    for key in list(entries.keys()):
        entries.remove(key)
    assert entries.is_empty()
    assert list(backend.table(MAP).namespaces()) == []


def test_entries_may_be_changed_while_a_map_is_iterated(kit):
    backend = kit.make()
    backend.current_key = "a"
    entries = backend.handle(MAP)
    entries.put_all({n: n for n in range(6)})
    seen = []
    for key, value in entries.items():
        seen.append(key)
        if value % 2:
            entries.remove(key)
        else:
            entries.put(key, value * 10)
            entries.put(key + 100, 1)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    assert {key: value for key, value in entries.items() if key < 100} == {0: 0, 2: 20, 4: 40}
    for key in entries.keys():  # noqa: SIM118 - it is no dict
        entries.remove(key)
    assert entries.is_empty()
    assert list(entries.values()) == []


# ------------------------------------------------------------------------------------------------------------ windows
@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: d.kind)
def test_windowed_state_belongs_to_key_and_window(kit, descriptor):
    backend = kit.make()
    for _ in range(2):
        state = handle(backend, descriptor, windowed=True)
        for place in (("a", (0, 10)), ("b", (0, 10)), ("a", (10, 20)), ("a", (-(2**63), 2**63 - 1))):
            backend.current_key, backend.current_namespace = place
            assert read(state, descriptor) == EMPTY[descriptor.kind]
            write(state, descriptor, 1)
            write(state, descriptor, 5)
        backend = kit.again(backend)
        state = handle(backend, descriptor, windowed=True)
        for place in (("a", (0, 10)), ("b", (0, 10)), ("a", (10, 20)), ("a", (-(2**63), 2**63 - 1))):
            backend.current_key, backend.current_namespace = place
            assert read(state, descriptor) == AFTER_1_AND_5[descriptor.kind]
            state.clear()
            assert read(state, descriptor) == EMPTY[descriptor.kind]
    assert backend.snapshot() == []


def test_reading_windows_leaves_nothing_behind(kit):
    backend = kit.make()
    backend.current_key = "a"
    for descriptor in DESCRIPTORS:
        state = handle(backend, descriptor, windowed=True)
        for start in range(20):
            backend.current_namespace = (start, start + 1)
            if start % 2:
                read(state, descriptor)
            else:
                state.clear()
        table = backend.table(descriptor, windowed=True)
        assert list(table.namespaces()) == []
        if kit.name == "heap":
            assert table._spaces == {}, "not even empty dictionaries are left"


@pytest.mark.parametrize("descriptor", [VALUE, MAP], ids=lambda one: one.name)
def test_the_first_key_is_found_without_a_look_at_all_windows(kit, descriptor, monkeypatch):
    """A slot looks for one between two steps of its job, whenever a page asks which states there are."""
    backend = kit.make()
    state = handle(backend, descriptor, windowed=True)
    table = backend.tables()[descriptor.name]
    assert list(table.some_keys()) == []
    for n in range(40):
        backend.current_key, backend.current_namespace = f"key {n % 3}", (10 * n, 10 * n + 10)
        write(state, descriptor, n)
    assert set(table.some_keys()) == {"key 0", "key 1", "key 2"}
    seen = []
    mapping = table.namespace
    monkeypatch.setattr(type(table), "namespace", lambda _self, name: seen.append(name) or mapping(name))
    monkeypatch.setattr(type(table), "namespaces", None)
    assert next(iter(table.some_keys())).startswith("key ")
    assert len(seen) <= 1


def test_the_same_state_is_not_windowed_and_plain(kit):
    backend = kit.make()
    handle(backend, LIST)
    with pytest.raises(ProgramError, match="declared twice"):
        handle(backend, LIST, windowed=True)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([(0, 1), (1, 2), (2, 3), (3, 4)]), st.integers(0, 9)),
        max_size=20,
    ),
    st.sampled_from([LIST, SUM, MEAN]),
    st.permutations([(1, 2), (2, 3), (3, 4)]),
    st.sampled_from([(0, 1), (1, 2), (7, 8)]),
)
@settings(max_examples=examples(60))
def test_merged_windows_hold_what_all_held(kit, writes, descriptor, sources, target):
    """The target's first, then the sources' in order; other keys and windows are left alone."""
    kit.reset()
    backend = kit.make()
    state = handle(backend, descriptor, windowed=True)
    held = {}
    for key, window, n in writes:
        backend.current_key, backend.current_namespace = key, window
        write(state, descriptor, n)
        held.setdefault((key, window), []).append(n)
    backend.current_key = "a"
    backend.current_namespace = None
    backend.merge_namespaces(descriptor, target, sources)
    merged = list(held.pop(("a", target), []))
    for source in sources:
        if source != target:
            merged += held.pop(("a", source), [])
    if merged:
        held["a", target] = merged
    backend = kit.again(backend)
    state = handle(backend, descriptor, windowed=True)
    for key in "ab":
        for window in ((0, 1), (1, 2), (2, 3), (3, 4), (7, 8)):
            backend.current_key, backend.current_namespace = key, window
            numbers = held.get((key, window), [])
            if descriptor is LIST:
                assert state.get() == numbers
            elif not numbers:
                assert state.get() is None
            else:
                assert state.get() == (sum(numbers) if descriptor is SUM else sum(numbers) / len(numbers))
    windows = {window for _, window in held}
    assert set(backend.table(descriptor, windowed=True).namespaces()) == windows


def test_merged_windows_leave_nothing_behind(kit):
    backend = kit.make()
    backend.current_key = "a"
    state = backend.handle(LIST, windowed=True)
    for start in range(20):
        backend.current_namespace = (start, start + 1)
        state.add(start)
        backend.merge_namespaces(LIST, (100, 101), [(start, start + 1), (200, 201)])
    table = backend.table(LIST, windowed=True)
    assert list(table.namespaces()) == [(100, 101)]
    if kit.name == "heap":
        assert list(table._spaces) == [(100, 101)], "not even empty dictionaries are left"


def test_a_merged_list_is_not_shared_with_a_snapshot(kit):
    backend = kit.make()
    state = backend.handle(LIST, windowed=True)
    backend.current_key = "a"
    for start in range(3):
        backend.current_namespace = (start, start + 1)
        state.add(start)
    parts = backend.snapshot()
    backend.merge_namespaces(LIST, (0, 1), [(1, 2), (2, 3)])
    backend.current_namespace = (0, 1)
    assert state.get() == [0, 1, 2]
    again = kit.restored(kit.written(parts))
    state = again.handle(LIST, windowed=True)
    again.current_key, again.current_namespace = "a", (0, 1)
    assert state.get() == [0]


@pytest.mark.parametrize("descriptor", [VALUE, MAP, AggregatingStateDescriptor("total", NoMerge())])
def test_state_that_cannot_merge_is_refused(kit, descriptor):
    backend = kit.make()
    backend.current_key = "a"
    with pytest.raises(ProgramError, match=r"cannot be that of windows that merge|needs an aggregate function"):
        backend.merge_namespaces(descriptor, (0, 1), [(1, 2)])


def test_windows_are_merged_under_a_key(kit):
    with pytest.raises(StateAccessError, match="no current key"):
        kit.make().merge_namespaces(LIST, (0, 1), [(1, 2)])


# ------------------------------------------------------------------------------------------------------------- tables
def test_the_mapping_of_a_namespace_is_live(kit):
    table = kit.make().table(WINDOWS, windowed=True)
    window = table.namespace((0, 10))
    assert list(table.namespaces()) == []
    window["a"] = 1
    window["c"] = [1, 2]
    assert dict(table.namespace((0, 10))) == {"a": 1, "c": [1, 2]}
    assert (len(window), "a" in window, "b" in window, window.get("b", 5)) == (2, True, False, 5)
    assert window.pop("c") == [1, 2]
    assert window.setdefault("a", 7) == 1
    with pytest.raises(KeyError):
        del window["b"]
    table.namespace((10, 20))["b"] = 2
    assert set(table.namespaces()) == {(0, 10), (10, 20)}
    for namespace in table.namespaces():
        table.drop(namespace)
    table.drop((77, 78))
    assert list(table.namespaces()) == []
    assert dict(table.namespace((0, 10))) == {}


def test_a_table_without_windows_has_one_namespace(kit):
    table = kit.make().table(StateDescriptor("plain"))
    with pytest.raises(InternalError, match="not windowed"):
        table.namespace((0, 10))


def test_columnar_runs_are_appended_replaced_and_dropped(kit):
    table = kit.make().columnar_table("runs", SCHEMA, ("user",))
    one = pa.record_batch({"user": ["a"], "n": [1]}, SCHEMA)
    two = pa.record_batch({"user": ["b"], "n": [2]}, SCHEMA)
    table.append((0, 10), one)
    table.append((0, 10), two)
    assert table.runs((0, 10)) == [one, two]
    table.replace((0, 10), [two])
    assert table.runs((0, 10)) == [two]
    table.append(None, one)
    assert set(table.namespaces()) == {(0, 10), None}
    table.drop(None)
    table.replace((0, 10), [])
    assert list(table.namespaces()) == []
    assert table.runs((0, 10)) == []
    with pytest.raises(TypeMismatchError, match="has schema"):
        table.append(None, pa.record_batch({"user": ["a"]}))


def test_columnar_runs_are_read_by_place_and_replaced_from_one_on(kit):
    backend = kit.make()
    table = backend.columnar_table("runs", SCHEMA, ("user",))
    runs = [pa.record_batch({"user": [name], "n": [number]}, SCHEMA) for number, name in enumerate("abcd")]
    table.append(None, runs[0])
    table.replace_last(None, 1, iter(runs[1:3]))
    assert table.num_runs(None) == 3
    assert table.read(None, [2, 0]) == [runs[2], runs[0]]
    # What comes is made of what is replaced.
    table.replace_last(None, 1, (run for place in (2, 1) for run in table.read(None, [place])))
    assert table.runs(None) == [runs[0], runs[2], runs[1]]
    table.replace_last((0, 10), 0, [runs[3]])
    again = kit.again(backend).columnar_table("runs", SCHEMA, ("user",))
    for one in (table, again):
        assert sum(run.num_rows for run in one.runs(None)) == 3
        one.replace_last(None, 0, [])
        assert list(one.namespaces()) == [(0, 10)]
        assert one.num_runs(None) == 0
    with pytest.raises(TypeMismatchError, match="has schema"):
        table.replace_last(None, 0, [pa.record_batch({"user": ["a"]})])


# ---------------------------------------------------------------------------------------------------------- snapshots
VALUES = (
    st.integers()
    | st.lists(st.text(max_size=2), max_size=3)
    | st.none()
    | st.tuples(st.integers(0, 3), st.floats(allow_nan=False))
    | st.dictionaries(st.text(max_size=2), st.booleans(), max_size=2)
)
KEYS = st.integers(0, 50) | st.text(max_size=3) | st.tuples(st.integers(0, 5), st.text(max_size=2)) | st.none()
NAMESPACES = st.none() | st.tuples(st.integers(-5, 5), st.integers(6, 9))
PARALLELISM = st.integers(1, 5)


@given(st.dictionaries(st.tuples(NAMESPACES, KEYS), VALUES), PARALLELISM, PARALLELISM)
@settings(max_examples=examples(40))
def test_tables_are_the_same_at_any_parallelism(kit, entries, before, after):
    kit.reset()
    backends = [kit.make(subtask, before) for subtask in range(before)]
    for (namespace, key), value in entries.items():
        backends[owner(key, before)].table(WINDOWS, windowed=True).namespace(namespace)[key] = value
    parts = [part for subtask, backend in enumerate(backends) for part in kit.written(backend.snapshot(), subtask)]
    merged = {}
    for subtask in range(after):
        table = kit.restored(parts, subtask, after).table(WINDOWS, windowed=True)
        for namespace in table.namespaces():
            for key, value in table.namespace(namespace).items():
                assert owner(key, after) == subtask
                assert (namespace, key) not in merged
                merged[namespace, key] = value
    assert merged == entries


@given(
    st.lists(st.tuples(st.sampled_from(DESCRIPTORS), st.integers(0, 9), st.booleans(), st.integers(0, 9)), max_size=30),
    st.lists(st.tuples(st.sampled_from(DESCRIPTORS), st.integers(0, 9), st.booleans(), st.integers(0, 9)), max_size=30),
    PARALLELISM,
    PARALLELISM,
)
@settings(max_examples=examples(40))
def test_handles_go_on_at_another_parallelism(kit, first, then, before, after):
    """Writes, a snapshot, a restore at another parallelism, more writes: the same as all writes in one subtask."""
    kit.reset()

    def run(backends, writes):
        for descriptor, key, windowed, n in writes:
            named = dataclasses.replace(descriptor, name=f"{descriptor.name} {windowed}")
            backend = backends[owner(key, len(backends))]
            backend.current_key = key
            backend.current_namespace = (key, key + 1) if windowed else None
            write(handle(backend, named, windowed=windowed), descriptor, n)

    def contents(backends):
        held = {}
        for descriptor in DESCRIPTORS:
            for windowed in (False, True):
                named = dataclasses.replace(descriptor, name=f"{descriptor.name} {windowed}")
                for key in range(10):
                    backend = backends[owner(key, len(backends))]
                    backend.current_key = key
                    backend.current_namespace = (key, key + 1) if windowed else None
                    held[named.name, key] = read(handle(backend, named, windowed=windowed), descriptor)
        return held

    backends = [kit.make(subtask, before) for subtask in range(before)]
    run(backends, first)
    parts = [part for subtask, backend in enumerate(backends) for part in kit.written(backend.snapshot(), subtask)]
    run(backends, then)  # must not be seen by what is restored
    restored = [kit.restored(parts, subtask, after) for subtask in range(after)]
    plain = [kit.make()]
    run(plain, first)
    assert contents(restored) == contents(plain)
    run(restored, then)
    run(plain, then)
    assert contents(restored) == contents(plain) == contents(backends)


@given(st.lists(st.tuples(NAMESPACES, st.text(max_size=2), st.integers(0, 9))), PARALLELISM, PARALLELISM)
@settings(max_examples=examples(40))
def test_columnar_state_is_the_same_at_any_parallelism(kit, rows, before, after):
    kit.reset()
    backends = [kit.make(subtask, before) for subtask in range(before)]
    for namespace, user, n in rows:
        table = backends[owner(user, before)].columnar_table("runs", SCHEMA, ("user",))
        table.append(namespace, pa.record_batch({"user": [user], "n": [n]}, SCHEMA))
    parts = [part for subtask, backend in enumerate(backends) for part in kit.written(backend.snapshot(), subtask)]
    found = []
    for subtask in range(after):
        table = kit.restored(parts, subtask, after).columnar_table("runs", SCHEMA, ("user",))
        for namespace in table.namespaces():
            for run in table.runs(namespace):
                for row in run.to_pylist():
                    assert owner(row["user"], after) == subtask
                    found.append((namespace, row["user"], row["n"]))
    assert sorted(found, key=repr) == sorted(rows, key=repr)


def test_bytes_are_made_later_and_hold_nothing_newer(kit):
    backend = kit.make()
    table = backend.columnar_table("runs", SCHEMA, ("user",))
    run = pa.record_batch({"user": ["a", "b"], "n": [1, 2]}, SCHEMA)
    table.append((0, 10), run)
    for descriptor in DESCRIPTORS:
        for key in ("a", "b"):
            backend.current_key = key
            write(handle(backend, descriptor), descriptor, 1)
    mutable = backend.handle(ValueStateDescriptor("mutable"))
    value = {"deep": [1]}
    mutable.update(value)
    parts = backend.snapshot()
    value["deep"].append(2)
    mutable.update(value)
    table.append((0, 10), run)
    table.append(None, run)
    for descriptor in DESCRIPTORS:
        state = handle(backend, descriptor)
        for key in ("a", "c"):
            backend.current_key = key
            write(state, descriptor, 5)
        backend.current_key = "b"
        state.clear()
    again = kit.restored(kit.written(parts))
    for descriptor in DESCRIPTORS:
        plain = kit.make()
        plain.current_key = "a"
        write(handle(plain, descriptor), descriptor, 1)
        expected = read(handle(plain, descriptor), descriptor)
        for key in ("a", "b"):
            again.current_key = key
            assert read(handle(again, descriptor), descriptor) == expected
        again.current_key = "c"
        assert read(handle(again, descriptor), descriptor) == EMPTY[descriptor.kind]
    again.current_key = "b"
    assert again.handle(ValueStateDescriptor("mutable")).value() == {"deep": [1]}
    runs = again.columnar_table("runs", SCHEMA, ("user",))
    assert list(runs.namespaces()) == [(0, 10)]
    assert sum(piece.num_rows for piece in runs.runs((0, 10))) == 2


def test_restored_state_that_is_not_declared_is_snapshotted_again(kit):
    backend = kit.make()
    backend.current_key = 7
    backend.handle(VALUE).update(3)
    backend.columnar_table("runs", SCHEMA, ("user",)).append(None, pa.record_batch({"user": ["a"], "n": [1]}, SCHEMA))
    twice = kit.again(kit.again(backend))
    twice.current_key = 7
    assert twice.handle(VALUE).value() == 3
    assert twice.columnar_table("runs", SCHEMA, ("user",)).runs(None)[0].to_pylist() == [{"user": "a", "n": 1}]


# ----------------------------------------------------------------------------------------------------------- refusals
def test_a_state_is_declared_as_one_thing(kit):
    backend = kit.make()
    assert backend.table(WINDOWS, windowed=True) is backend.table(WINDOWS, windowed=True)
    assert backend.columnar_table("runs", SCHEMA, ("user",)) is backend.columnar_table("runs", SCHEMA, ("user",))
    backend.handle(ValueStateDescriptor("typed", int))
    for declare in (
        lambda: backend.table(WINDOWS),
        lambda: backend.handle(ValueStateDescriptor("windows")),
        lambda: backend.handle(ValueStateDescriptor("typed", str)),
        lambda: backend.handle(ValueStateDescriptor("typed", int, ttl="1 h")),
        lambda: backend.columnar_table("windows", SCHEMA, ("user",)),
        lambda: backend.columnar_table("runs", SCHEMA, ("n",)),
        lambda: backend.columnar_table("other", SCHEMA, ("missing",)),
        lambda: backend.columnar_table("other", SCHEMA, ()),
        lambda: backend.table(StateDescriptor("runs")),
    ):
        with pytest.raises(ProgramError):
            declare()


@pytest.mark.parametrize(
    "declare",
    [
        lambda backend: backend.table(StateDescriptor("count")),
        lambda backend: backend.handle(ValueStateDescriptor("count", int), windowed=True),
        lambda backend: backend.handle(ListStateDescriptor("count")),
        lambda backend: backend.handle(ValueStateDescriptor("count", str)),
        lambda backend: backend.columnar_table("count", SCHEMA, ("user",)),
        lambda backend: backend.columnar_table("runs", SCHEMA, ("n",)),
        lambda backend: backend.columnar_table("runs", pa.schema([("user", pa.string())]), ("user",)),
        lambda backend: backend.table(StateDescriptor("runs")),
    ],
)
def test_a_restored_state_declared_as_something_else_is_refused(kit, declare):
    backend = kit.make()
    backend.current_key = 7
    backend.handle(ValueStateDescriptor("count", int)).update(3)
    backend.columnar_table("runs", SCHEMA, ("user",)).append(None, pa.record_batch({"user": ["a"], "n": [1]}, SCHEMA))
    again = kit.again(backend)
    with pytest.raises(CheckpointMismatchError, match="the checkpoint has") as caught:
        declare(again)
    assert caught.value.context["operator"] == "counter"
    again.current_key = 7
    assert again.handle(ValueStateDescriptor("count", int)).value() == 3, "what was refused is still there"


def test_another_max_parallelism_is_refused(kit):
    backend = kit.make()
    backend.current_key = 1
    backend.handle(VALUE).update(1)
    parts = kit.written(backend.snapshot())
    other = kit.make(max_parallelism=2 * MAX_PARALLELISM)
    with pytest.raises(CheckpointMismatchError, match="max parallelism 16; the operator has 32"):
        other.restore(parts)


def test_a_file_that_is_not_what_it_should_be_is_corrupt(kit):
    backend = kit.make()
    backend.current_key = 1
    backend.handle(VALUE).update(1)
    parts = kit.written(backend.snapshot())
    for index, part in enumerate(parts):
        for data in (b"", b"ARROW1\0\0nonsense", part.data[: len(part.data) // 2]):
            with pytest.raises(CheckpointCorruptError):
                kit.restored([*parts[:index], dataclasses.replace(part, data=data), *parts[index + 1 :]])


def test_a_value_that_cannot_be_stored_names_its_state(kit):
    backend = kit.make()
    backend.current_key = 1
    with pytest.raises(TypeMismatchError) as caught:
        backend.handle(ValueStateDescriptor("odd")).update(i for i in ())
        kit.written(backend.snapshot())
    assert caught.value.context["state"] == "odd"
