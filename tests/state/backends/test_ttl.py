"""Time to live: against a slow oracle that stores a timestamp with everything and never forgets (properties), clean-up
that gives memory back, configuration, switching it on and off (examples).
"""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta

import pytest
from backend_kit import owner
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.backends.heap.backend import HeapKeyedStateBackend
from headrace.state.errors import ConfigurationError, InternalError, ProgramError
from headrace.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.keyed.kinds import StateDescriptor, layout_of_kind
from headrace.state.keyed.layouts import NOTHING
from headrace.state.keyed.ttl import StateTtlConfig
from headrace.state.keys.key_groups import KeyGroupRange

UpdateType, Visibility = StateTtlConfig.UpdateType, StateTtlConfig.StateVisibility
TTL_MS = 100


class Concatenate:
    """An aggregate whose result shows what went in, and in which order."""

    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return (*accumulator, value)

    def get_result(self, accumulator):
        return list(accumulator)

    def merge(self, one, other):
        return (*one, *other)


def config(update=UpdateType.OnCreateAndWrite, visibility=Visibility.NeverReturnExpired, *, sweeps=True, full=True):
    builder = StateTtlConfig.new_builder(TTL_MS).set_update_type(update).set_state_visibility(visibility)
    if full:
        builder.cleanup_full_snapshot()
    if sweeps:
        builder.cleanup_incrementally(100, run_cleanup_for_every_record=True)
    else:
        builder.disable_cleanup_in_background()
    return builder.build()


def descriptor_of(kind, ttl):
    return {
        "value": ValueStateDescriptor("s", default=-1, ttl=ttl),
        "list": ListStateDescriptor("s", ttl=ttl),
        "map": MapStateDescriptor("s", ttl=ttl),
        "reducing": ReducingStateDescriptor("s", lambda a, b: a * 10 + b, ttl=ttl),
        "aggregating": AggregatingStateDescriptor("s", Concatenate(), ttl=ttl),
    }[kind]


def handle(backend, descriptor, *, windowed=False):
    return backend.handle(descriptor, windowed=windowed)


# -------------------------------------------------------------------------------------------------------- the oracle
class Oracle:
    """What a state of one key must give: everything is kept as [value, time of the last write or read]."""

    def __init__(self, kind, ttl):
        self.kind = kind
        self.updates_on_read = ttl.update_type is UpdateType.OnReadAndWrite
        self.returns_expired = ttl.state_visibility is Visibility.ReturnExpiredIfNotCleanedUp
        # Map key (0 for anything that is no map) -> list of [value, time].
        self.units = {}

    def _seen(self, place, now):
        """What may be seen of one place; what has expired is gone afterwards."""
        units = self.units.get(place, [])
        live = [unit for unit in units if unit[1] + TTL_MS > now]
        seen = [unit[0] for unit in (units if self.returns_expired else live)]
        if self.updates_on_read:
            for unit in live:
                unit[1] = now
        self.units[place] = live
        if not live:
            del self.units[place]
        return seen

    def apply(self, operation, now):
        name, key, n = operation
        if name == "clear":
            self.units = {}
            return None
        if self.kind == "map":
            return self._apply_to_map(name, key, n, now)
        if name == "read":
            seen = self._seen(0, now)
            if self.kind == "list":
                return seen
            if self.kind == "value":
                return seen[0] if seen else -1
            return seen[0] if seen else None
        if self.kind == "list":
            if name == "add":
                self.units.setdefault(0, []).append([n, now])
            else:
                self.units[0] = [[n, now], [n + 1, now]]
        elif self.kind == "value":
            self.units[0] = [[n, now]]
        else:
            seen = self._seen(0, now)
            folded = {"reducing": lambda old: old * 10 + n, "aggregating": lambda old: [*old, n]}[self.kind]
            first = n if self.kind == "reducing" else [n]
            self.units[0] = [[folded(seen[0]) if seen else first, now]]
        return None

    def _apply_to_map(self, name, key, n, now):
        if name == "read":
            seen = self._seen(key, now)
            return seen[0] if seen else None
        if name == "contains":
            return bool(self._seen(key, now))
        if name == "items":
            seen = {place: self._seen(place, now) for place in list(self.units)}
            return {place: values[0] for place, values in seen.items() if values}
        if name == "remove":
            self.units.pop(key, None)
        else:
            self.units[key] = [[n, now]]
        return None

    def num_live(self, now):
        return sum(unit[1] + TTL_MS > now for units in self.units.values() for unit in units)


def apply(state, kind, operation):
    """The same on a real handle."""
    name, key, n = operation
    if name == "clear":
        return state.clear()
    if kind == "map":
        if name == "read":
            return state.get(key)
        if name == "contains":
            return state.contains(key)
        if name == "items":
            return dict(state.items())
        return state.remove(key) if name == "remove" else state.put(key, n)
    if name == "read":
        return state.value() if kind == "value" else state.get()
    if kind == "value":
        return state.update(n)
    if kind == "list" and name != "add":
        return state.update([n, n + 1])
    return state.add(n)


OPERATIONS = st.tuples(
    st.sampled_from(["read", "read", "write", "add", "contains", "items", "remove", "clear"]),
    st.integers(0, 2),
    st.integers(1, 9),
)
KINDS = ["value", "list", "map", "reducing", "aggregating"]
STEPS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), OPERATIONS), max_size=25)


def fits(kind, operation):
    return operation[0] in ("read", "write", "add", "clear") or kind == "map"


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(
    STEPS,
    STEPS,
    st.integers(0, 150),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([UpdateType.OnCreateAndWrite, UpdateType.OnReadAndWrite]),
    st.sampled_from(list(Visibility)),
)
@settings(max_examples=examples(40))
@pytest.mark.sampled(4)
def test_state_lives_as_long_as_the_oracle_says(kit, kind, windowed, first, then, down_ms, before, after, update, seen):
    """Through a restore at another parallelism, with time passing while nothing runs."""
    kit.reset()
    # When expired values may be seen, when they are cleaned up shows: nothing but reading cleans up then.
    cleans_up = seen is Visibility.NeverReturnExpired
    ttl = config(update, seen, sweeps=cleans_up, full=cleans_up)
    descriptor = descriptor_of(kind, ttl)
    oracles = {key: Oracle(kind, ttl) for key in range(4)}

    def run(backends, steps):
        for passed_ms, key, operation in steps:
            kit.now_ms += passed_ms
            if not fits(kind, operation):
                continue
            backend = backends[owner(key, len(backends))]
            backend.current_key = key
            if windowed:
                backend.current_namespace = (key % 2, 5)
            given = apply(handle(backend, descriptor, windowed=windowed), kind, operation)
            assert given == oracles[key].apply(operation, kit.now_ms)

    backends = [kit.make(subtask, before) for subtask in range(before)]
    run(backends, first)
    parts = [part for subtask, backend in enumerate(backends) for part in kit.written(backend.snapshot(), subtask)]
    kit.now_ms += down_ms
    restored = [kit.restored(parts, subtask, after) for subtask in range(after)]
    run(restored, then)
    if cleans_up:
        # Afterwards sweeping leaves exactly what lives.
        for backend in restored:
            handle(backend, descriptor, windowed=windowed)
            backend.batch_processed(10)
        num_held = sum(kit.num_units(backend, descriptor, windowed=windowed) for backend in restored)
        assert num_held == sum(oracle.num_live(kit.now_ms) for oracle in oracles.values())


# ----------------------------------------------------------------------------------------------------------- clean-up
def filled(kit, kind, ttl, num_keys=200):
    backend = kit.make()
    descriptor = descriptor_of(kind, ttl)
    state = handle(backend, descriptor)
    for key in range(num_keys):
        backend.current_key = key
        apply(state, kind, ("add", 0, 1))
    return backend, descriptor, state


@pytest.mark.parametrize("kind", KINDS)
def test_accesses_of_other_keys_give_the_memory_of_expired_ones_back(kit, kind):
    ttl = StateTtlConfig.new_builder(TTL_MS).cleanup_incrementally(3).build()
    backend, descriptor, state = filled(kit, kind, ttl)
    assert kit.num_units(backend, descriptor) == 200
    kit.now_ms += TTL_MS
    backend.current_key = "other"
    for _ in range(30):
        apply(state, kind, ("read", 0, 0))
    assert 100 < kit.num_units(backend, descriptor) < 200
    for _ in range(100):
        apply(state, kind, ("read", 0, 0))
    assert kit.num_units(backend, descriptor) == 0
    assert backend.snapshot() == []


def test_clean_up_for_every_record_needs_no_access(kit):
    ttl = StateTtlConfig.new_builder(TTL_MS).cleanup_incrementally(2, run_cleanup_for_every_record=True).build()
    backend, descriptor, _ = filled(kit, "map", ttl)
    kit.now_ms += TTL_MS - 1
    backend.batch_processed(1_000)
    assert kit.num_units(backend, descriptor) == 200
    kit.now_ms += 1
    backend.batch_processed(25)
    assert kit.num_units(backend, descriptor) == 150
    backend.batch_processed(75)
    assert kit.num_units(backend, descriptor) == 0


def test_clean_up_goes_round_and_spares_what_lives(kit):
    ttl = StateTtlConfig.new_builder(TTL_MS).cleanup_incrementally(1, run_cleanup_for_every_record=True).build()
    backend, descriptor, state = filled(kit, "list", ttl, 10)
    kit.now_ms += TTL_MS // 2
    for key in range(5):
        backend.current_key = key
        state.add("younger")
    kit.now_ms += TTL_MS // 2
    for _ in range(10):
        backend.batch_processed(1)
    assert kit.num_units(backend, descriptor) == 5
    backend.current_key = 3
    assert state.get() == ["younger"]
    kit.now_ms += TTL_MS // 2
    for _ in range(10):
        backend.batch_processed(1)
    assert kit.num_units(backend, descriptor) == 0


def test_swept_windows_are_gone(kit):
    backend = kit.make()
    descriptor = descriptor_of("value", config())
    state = handle(backend, descriptor, windowed=True)
    backend.current_key = "a"
    for start in range(50):
        backend.current_namespace = (start, start + 1)
        state.update(1)
    kit.now_ms += TTL_MS
    backend.batch_processed(10)
    table = backend.table(descriptor, windowed=True)
    assert list(table.namespaces()) == []
    if kit.name == "heap":
        assert table._spaces == {}, "not even empty dictionaries are left"


def test_nothing_is_cleaned_up_in_the_background_if_that_is_off(kit):
    backend, descriptor, state = filled(kit, "value", config(sweeps=False, full=False))
    kit.now_ms += TTL_MS
    backend.current_key = 7
    for _ in range(100):
        assert state.value() == -1
    backend.batch_processed(1_000)
    assert kit.num_units(backend, descriptor) == 199
    assert backend.snapshot() != []


@pytest.mark.parametrize("kind", KINDS)
def test_full_snapshots_leave_out_what_has_expired(kit, kind):
    if kit.name != "heap":
        pytest.skip("only a snapshot that writes everything anyway leaves something out")
    backend, descriptor, state = filled(kit, kind, config(sweeps=False), 10)
    kit.now_ms += TTL_MS - 1
    backend.current_key = 3
    apply(state, kind, ("add", 1, 2))
    kit.now_ms += 1
    parts = kit.written(backend.snapshot())
    again = kit.restored(parts)
    assert kit.num_units(backend, descriptor) == 10 + (kind in ("list", "map"))
    assert kit.num_units(again, descriptor) == 1
    kit.now_ms += TTL_MS
    assert backend.snapshot() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_downtime_resurrects_nothing(kit, kind):
    backend, _, _ = filled(kit, kind, config(sweeps=False, full=False), 10)
    parts = kit.written(backend.snapshot())
    kit.now_ms += 100 * TTL_MS
    again = kit.restored(parts)
    state = handle(again, descriptor_of(kind, config()))
    for key in range(10):
        again.current_key = key
        assert apply(state, kind, ("read", 0, 0)) == {"value": -1, "list": []}.get(kind)


# -------------------------------------------------------------------------------------------------- on, off and merging
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_time_to_live_can_be_given_and_taken(kit, kind, windowed):
    """Values that come from a checkpoint without times count from the restore; without a time they stay for ever."""
    backend = kit.make()
    plain, timed = descriptor_of(kind, None), descriptor_of(kind, config(full=False))

    def place(backend, key=3):
        backend.current_key = key
        backend.current_namespace = (0, 10) if windowed else None

    place(backend)
    apply(handle(backend, plain, windowed=windowed), kind, ("add", 0, 4))
    expected = apply(handle(backend, plain, windowed=windowed), kind, ("read", 0, 0))
    kit.now_ms += 100 * TTL_MS
    backend = kit.again(backend)
    place(backend)
    state = handle(backend, timed, windowed=windowed)
    kit.now_ms += TTL_MS - 1
    assert apply(state, kind, ("read", 0, 0)) == expected
    parts = kit.written(backend.snapshot())
    kit.now_ms += 1
    assert apply(state, kind, ("read", 0, 0)) != expected
    kit.now_ms += 100 * TTL_MS
    backend = kit.restored(parts)
    place(backend)
    state = handle(backend, plain, windowed=windowed)
    assert apply(state, kind, ("read", 0, 0)) == expected
    apply(state, kind, ("add", 1, 5))
    backend = kit.again(backend)
    place(backend)
    assert apply(handle(backend, plain, windowed=windowed), kind, ("read", 0, 0)) is not None


@pytest.mark.parametrize("target", [(0, 1), (2, 3)], ids=["an expired target", "expired sources"])
@pytest.mark.parametrize("kind", ["list", "reducing", "aggregating"])
def test_expired_contents_take_no_part_in_a_merge(kit, kind, target):
    backend = kit.make()
    backend.current_key = "a"
    descriptor = descriptor_of(kind, config(sweeps=False))
    state = handle(backend, descriptor, windowed=True)
    for n, window in enumerate([(0, 1), (1, 2), (2, 3)]):
        backend.current_namespace = window
        state.add(n + 1)
        kit.now_ms += TTL_MS // 2
    backend.merge_namespaces(descriptor, target, [(0, 1), (1, 2), (2, 3)])
    backend.current_namespace = target
    assert state.get() == {"list": [3], "reducing": 3, "aggregating": [3]}[kind]
    backend.merge_namespaces(descriptor, (5, 6), [target])
    backend.current_namespace = (5, 6)
    assert state.get() == {"list": [3], "reducing": 3, "aggregating": [3]}[kind]
    backend.current_namespace = (7, 8)
    state.add(4)
    backend.merge_namespaces(descriptor, (7, 8), [(5, 6)])
    assert state.get() == {"list": [4, 3], "reducing": 43, "aggregating": [4, 3]}[kind]


def test_a_mutable_default_is_not_shared(kit):
    backend = kit.make()
    backend.current_key = 1
    state = backend.handle(ValueStateDescriptor("v", default=[], ttl=TTL_MS))
    state.value().append("lost")
    assert state.value() == []


def test_two_handles_of_one_state_are_the_same_state(kit):
    backend = kit.make()
    backend.current_key = 1
    one, two = (backend.handle(descriptor_of("value", config())) for _ in range(2))
    one.update(5)
    assert two.value() == 5


def test_a_backend_without_a_clock_refuses_a_time_to_live():
    backend = HeapKeyedStateBackend("op", KeyGroupRange(0, 15), 16)
    backend.current_key = 1
    state = backend.handle(descriptor_of("value", config()))
    with pytest.raises(InternalError, match="clock"):
        state.value()


# ------------------------------------------------------------------------------------------------------ configuration
def test_a_configuration_is_built_as_in_pyflink():
    built = (
        StateTtlConfig.new_builder("1 h")
        .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
        .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)
        .cleanup_full_snapshot()
        .cleanup_incrementally(7, True)
        .build()
    )
    assert (built.get_ttl(), built.get_update_type()) == (3_600_000, UpdateType.OnReadAndWrite)
    assert built.get_state_visibility() is Visibility.ReturnExpiredIfNotCleanedUp
    assert built.get_cleanup_strategies() == StateTtlConfig.CleanupStrategies(True, 7, True)
    assert built.is_enabled()
    assert pickle.loads(pickle.dumps(built)) == built
    same = StateTtlConfig.new_builder(1).set_ttl(timedelta(hours=1)).update_ttl_on_read_and_write()
    same = same.return_expired_if_not_cleaned_up().use_processing_time().cleanup_in_rocksdb_compact_filter(1_000)
    same = same.cleanup_full_snapshot().cleanup_incrementally(7, True)
    assert same.build() == built
    assert StateTtlConfig(ttl="1 h", update_type=UpdateType.OnReadAndWrite).ttl_ms == 3_600_000
    shown = StateTtlConfig.new_builder("1 s").never_return_expired().update_ttl_on_create_and_write().build()
    assert shown == StateTtlConfig("1 s")
    assert shown.cleanup.sweep_size > 0
    assert StateTtlConfig.new_builder("1 s").disable_cleanup_in_background().build().cleanup.sweep_size == 0


def test_a_descriptor_takes_a_configuration_or_a_duration():
    one = ValueStateDescriptor("v", int)
    one.enable_time_to_live(StateTtlConfig("1 min"))
    assert one == ValueStateDescriptor("v", int, ttl="1 min")
    assert dataclasses.replace(one, name="w").ttl == StateTtlConfig("1 min")
    assert pickle.loads(pickle.dumps(one)) == one
    one.enable_time_to_live(StateTtlConfig.new_builder(1).set_update_type(UpdateType.Disabled).build())
    assert one.ttl is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: StateTtlConfig(0),
        lambda: StateTtlConfig("-1 s"),
        lambda: StateTtlConfig("soon"),
        lambda: StateTtlConfig(1, update_type="OnReadAndWrite"),
        lambda: StateTtlConfig.new_builder(5).cleanup_incrementally(0),
        lambda: StateTtlConfig.new_builder(5).set_ttl_time_characteristic("EventTime"),
        lambda: ListStateDescriptor("l", ttl="soon"),
    ],
)
def test_a_time_to_live_that_makes_no_sense_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()


def test_operator_state_has_no_time_to_live():
    from headrace.state.backends.heap.backend import HeapOperatorStateBackend

    with pytest.raises(ProgramError, match="time to live"):
        HeapOperatorStateBackend("op").broadcast_state(MapStateDescriptor("m", ttl="1 s"))


@pytest.mark.parametrize(
    ("kind", "stored", "left"),
    [
        ("value", ("a", 10), NOTHING),
        ("value", ("a", 11), ("a", 11)),
        ("table", ("a", 10), NOTHING),
        ("list", [("a", 10), ("b", 11)], [("b", 11)]),
        ("list", [("a", 10)], NOTHING),
        ("map", {"x": ("a", 10), "y": (None, 20)}, {"y": (None, 20)}),
        ("map", {"x": ("a", 1)}, NOTHING),
    ],
)
def test_the_live_part_of_what_a_key_holds(kind, stored, left):
    layout = layout_of_kind(kind)
    assert layout.live(stored, 10) == left
    if left == stored:
        assert layout.live(stored, 10) is stored


def test_a_table_with_a_time_to_live_holds_units(kit):
    """Engine operators that manage keys themselves write units and ask for sweeps."""
    table = kit.make().table(StateDescriptor("t", ttl=TTL_MS), windowed=True)
    table.namespace((0, 1)).update({"a": ("old", 10), "b": ("new", 20)})
    table.namespace((1, 2))["c"] = ("old", 5)
    table.sweep(10, 10)
    assert {namespace: dict(table.namespace(namespace)) for namespace in table.namespaces()} == {
        (0, 1): {"b": ("new", 20)}
    }
