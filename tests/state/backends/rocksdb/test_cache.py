"""The cache of the RocksDB backend: rows are like dictionaries, read in batches, written when they leave memory.

Families: oracle (mappings against plain dictionaries), rules one by one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from typing import NamedTuple

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdb_kit import VALUE, restored

from headrace.state.backends.rocksdb import cache as rocksdb_cache
from headrace.state.backends.rocksdb import rows as rocksdb_rows
from headrace.state.backends.rocksdb.database import Database
from headrace.state.errors import (
    InternalError,
)
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.keys.hashing import hash_key
from headrace.state.keys.key_groups import KeyGroupRange

KEYS = [0, 1.0, True, 2, "a", "b", (1, "x"), None, 2.5, b"\x00"]
NAMESPACES = [None, (0, 10), (10, 20), (-(2**63), 2**63 - 1)]
actions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("set", "set", "set", "pop", "del", "get", "in", "len", "bool", "items", "drop", "clear", "again"),
                *("update", "expect", "expect"),
            ]
        ),
        st.sampled_from(NAMESPACES),
        st.sampled_from(KEYS),
        st.integers(0, 9),
    ),
    max_size=40,
)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("entries", [1, 3, 100])
def test_mappings_are_like_dictionaries(make, windowed, entries, monkeypatch):
    monkeypatch.setattr(rocksdb_rows, "_MIN_FETCHED", 1)
    monkeypatch.setattr(rocksdb_rows, "_TRIAL_BATCHES", 2)

    @settings(max_examples=examples(40))
    @given(actions)
    def check(steps):
        backend = make(entries=entries)
        table = backend.table(StateDescriptor("t"), windowed=windowed)
        model = {}
        for action, namespace, key, value in steps:
            namespace = namespace if windowed else None
            rows, expected = table.namespace(namespace), model.setdefault(namespace, {})
            if action == "set":
                rows[key] = expected[key] = value
            elif action == "pop":
                assert rows.pop(key, "none") == expected.pop(key, "none")
            elif action == "del":
                if key in expected:
                    del rows[key], expected[key]
                else:
                    with pytest.raises(KeyError):
                        del rows[key]
            elif action == "get":
                assert rows.get(key, "none") == expected.get(key, "none")
            elif action == "in":
                assert (key in rows) == (key in expected)
            elif action == "len":
                assert len(rows) == len(expected)
            elif action == "bool":
                assert bool(rows) == bool(expected)
            elif action == "expect":
                backend.expect([key, *KEYS[:5]])
            elif action == "items":
                assert dict(rows.items()) == expected
                assert sorted(map(repr, rows)) == sorted(map(repr, dict.fromkeys(rows, 0)))
            elif action == "drop":
                table.drop(namespace)
                model.pop(namespace)
            elif action == "clear":
                rows.clear()
                expected.clear()
            elif action == "update":
                more = dict.fromkeys(KEYS[:5], value)
                rows.update(more)
                expected.update(more)
            else:
                old = backend
                backend = restored(make, old.snapshot(), entries=entries)
                old.close()
                table = backend.table(StateDescriptor("t"), windowed=windowed)
        assert {n: dict(table.namespace(n).items()) for n in table.namespaces()} == {
            n: d for n, d in model.items() if d
        }
        backend.close()

    check()


def test_a_key_comes_back_in_the_form_it_was_put_in(make):
    backend = make()
    backend.table(StateDescriptor("t")).namespace(None).update({1.0: "a", True and 2.5: "b", "x": "c"})
    again = restored(make, backend.snapshot())
    assert sorted(map(repr, again.table(StateDescriptor("t")).namespace(None))) == ["'x'", "1.0", "2.5"]


def test_iteration_gives_what_was_there_when_it_began(make):
    backend = make(entries=4)
    rows = backend.table(StateDescriptor("t")).namespace(None)
    rows.update({key: key for key in range(100)})
    stream = iter(rows.items())
    seen = [next(stream)]
    for key in range(50):
        rows.pop(key)
        rows[key + 1_000] = 0
    seen.extend(stream)
    assert sorted(seen) == [(key, key) for key in range(100)]


def calls_of(name, monkeypatch):
    """The calls of a method of databases from now on, as a list that grows."""
    calls, original = [], getattr(Database, name)

    def counted(self, *arguments):
        calls.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(Database, name, counted)
    return calls


def test_what_a_function_asks_for_is_read_a_batch_at_a_time(make, monkeypatch):
    first = make()
    first.table(VALUE).namespace(None).update({key: key for key in range(3_000)})
    backend = restored(make, first.snapshot())
    state = backend.handle(VALUE)
    singly, at_once = calls_of("get", monkeypatch), calls_of("get_all", monkeypatch)
    for start in range(0, 3_000, 100):
        keys = range(start, start + 100)
        backend.expect(keys)
        for key in keys:
            backend.current_key = key
            assert state.value() == key
    assert len(singly) == 100  # of the first batch, which shows that there is something to fetch
    assert 29 <= len(at_once) <= 90  # a few rows first, to see how large they are
    assert all(row_keys == sorted(row_keys) for row_keys, _ in at_once)


def test_few_rows_are_read_at_once_until_it_is_known_how_large_they_are(make, monkeypatch):
    first = make()
    first.table(VALUE).namespace(None).update(dict.fromkeys(range(500), "x" * 100000))
    backend = restored(make, first.snapshot())
    state = backend.handle(VALUE)
    at_once = calls_of("get_all", monkeypatch)
    for keys in [*(range(start, start + 300) for start in range(1_000, 2_500, 300)), range(500)]:
        backend.expect(keys)
        for key in keys:
            backend.current_key = key
            state.value()
    assert all(len(row_keys) <= 16 for row_keys, _ in at_once)


class Named(NamedTuple):
    text: str


@dataclasses.dataclass(slots=True)
class Slotted:
    text: str


def test_the_size_of_a_value_is_that_of_what_is_in_it():
    text = "x" * 1_000
    for value in ((text,), [text], {"a": text}, Named(text), Slotted(text), deque([text]), Counter({text: 1})):
        assert rocksdb_cache.estimated_bytes(value) > 1_000, value


def test_what_a_function_does_not_ask_for_is_not_read(make, monkeypatch):
    first = make()
    first.table(VALUE).namespace(None).update({key: key for key in range(3_000)})
    backend = restored(make, first.snapshot())
    backend.handle(VALUE)
    at_once = calls_of("get_all", monkeypatch)
    for start in range(0, 3_000, 100):
        backend.expect(range(start, start + 100))
    assert at_once == []


def test_state_that_fits_stays_and_little_of_it_is_dirty(make, monkeypatch):
    monkeypatch.setattr(rocksdb_cache, "MAX_DIRTY_ENTRIES", 500)
    backend = make(entries=None)
    rows = backend.table(StateDescriptor("t")).namespace(None)
    reads = calls_of("get", monkeypatch)
    for turn in range(3):
        for key in range(5_000):
            rows[key] = rows.get(key, 0) + 1
            assert rows.num_dirty <= 500
        assert len(reads) == 5_000, turn
    assert rows.num_cached - rows.num_dirty == 5_000
    again = restored(make, backend.snapshot())
    assert dict(again.table(StateDescriptor("t")).namespace(None).items()) == dict.fromkeys(range(5_000), 3)


def test_the_cache_is_bounded_by_bytes_too(make):
    backend = make(memory=8 << 20)
    rows = backend.table(StateDescriptor("t")).namespace(None)
    for key in range(200):
        rows[key] = b"x" * 1_000_000
    assert rows.num_cached < 20
    assert sum(len(value) for value in rows.values()) == 200_000_000


def test_values_that_grow_where_they_are_count_with_their_new_size(make):
    backend = make(memory=8 << 20)
    rows = backend.table(StateDescriptor("t")).namespace(None)
    for size in range(9, 200, 10):
        for key in range(20):
            rows[key] = "x" * size * 10_000
    assert rows.num_cached < 20
    assert {len(value) for value in rows.values()} == {199 * 10_000}


def test_appending_to_a_long_list_writes_one_row(make):
    backend = make()
    state = backend.handle(ListStateDescriptor("list"))
    backend.current_key = 1
    state.add_all(range(1_000))
    again = restored(make, backend.snapshot())
    state = again.handle(ListStateDescriptor("list"))
    again.current_key = 1
    state.add("last")
    (rows,) = again._pool.active.values()
    assert rows.num_cached == 1
    assert state.get() == [*range(1_000), "last"]


def test_one_entry_of_a_large_map_is_one_row(make):
    backend = make()
    state = backend.handle(MapStateDescriptor("map"))
    backend.current_key = 1
    state.put_all({number: number for number in range(1_000)})
    again = restored(make, backend.snapshot())
    state = again.handle(MapStateDescriptor("map"))
    again.current_key = 1
    state.put(5, "new")
    state.remove(6)
    assert not state.contains(6)
    (rows,) = again._pool.active.values()
    assert rows.num_cached == 3  # the entry set; the one removed, once as it was and once as gone
    assert dict(state.items()) == {**{number: number for number in range(1_000) if number != 6}, 5: "new"}


def test_a_short_lived_namespace_never_reaches_the_database(make):
    backend = make()
    table = backend.table(StateDescriptor("t"), windowed=True)
    for start in range(2_000):
        rows = table.namespace((start, start))
        rows["key"] = 1
        assert rows.pop("key") == 1
        assert not rows
        table.drop((start, start))
    assert table.namespaces() == []
    assert backend.snapshot() == []


@pytest.mark.parametrize("entries", [3, 100_000])
def test_a_namespace_whose_entries_were_removed_one_by_one_is_forgotten(make, entries):
    backend = make(entries=entries)
    state = backend.handle(MapStateDescriptor("map"), windowed=True)
    table = backend.tables()["map"]
    for first in range(0, 60, 20):
        windows = [(start, start + 1) for start in range(first, first + 20)]
        for backend.current_namespace in windows:
            for backend.current_key in ("a", "b"):
                state.put("x", 1)
                state.put("y", 2)
        backend._opened().flush()
        for backend.current_namespace in windows:
            for backend.current_key in ("a", "b"):
                state.remove("x")
                state.remove("y")
        backend.current_namespace, backend.current_key = windows[7], "a"
        state.put("z", 3)
        assert table.namespaces() == [windows[7]]
        backend._opened().flush()
        assert list(table._format.index) == [windows[7]]
        assert list(state.items()) == [("z", 3)]
        state.remove("z")
        backend._opened().flush()
        assert not table._format.index


def test_a_foreign_key_is_refused(make):
    backend = make(KeyGroupRange(0, 63))
    rows = backend.table(StateDescriptor("t")).namespace(None)
    foreign = next(key for key in range(100) if hash_key(key) % 128 > 63)
    rows[foreign] = 1
    with pytest.raises(InternalError, match="a subtask that owns key groups 0 to 63 has a key of group"):
        backend.snapshot()
