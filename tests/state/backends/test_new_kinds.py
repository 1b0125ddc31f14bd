"""Kinds of state that only a test has, on every backend: one class each, and everything works.

Families: oracle (dictionaries of plain Python, over random calls with rescales in between), refusals.
"""

from __future__ import annotations

import random
from collections import Counter as Counts

import pytest
from backend_kit import owner
from new_kinds import BagDescriptor, CounterDescriptor

from headrace.state.errors import CheckpointMismatchError, ProgramError
from headrace.state.keyed import kinds
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor, state_kind

TTL_MS = 100
KEYS = ["ann", "bob", ("c", 3), 4]
WINDOWS = [(0, 10), (10, 20)]


def put_into(bag, element, most):
    if element not in bag and len(bag) == most:
        del bag[min(bag, key=lambda held: (bag[held], held))]
    bag[element] = bag.get(element, 0) + 1


class Oracle:
    """Numbers and bags by (window, key), with the times of their last writes."""

    def __init__(self, ttl):
        self.ttl = ttl
        self.counts, self.bags = {}, {}

    def live(self, held, now_ms):
        """What has not expired of the (value, time) in a dictionary; the rest is forgotten."""
        if self.ttl is not None:
            for place in [place for place, (_, time) in held.items() if time + self.ttl <= now_ms]:
                del held[place]
        return held

    def increment(self, place, by, now_ms):
        held = self.live(self.counts, now_ms)
        held[place] = (held.get(place, (0, 0))[0] + by, now_ms)

    def add(self, place, element, most, now_ms):
        bag = self.live(self.bags.setdefault(place, {}), now_ms)
        counts = {held: count for held, (count, _) in bag.items()}
        put_into(counts, element, most)
        for gone in bag.keys() - counts.keys():
            del bag[gone]
        bag[element] = (counts[element], now_ms)

    def seen(self, place, now_ms):
        count = self.live(self.counts, now_ms).get(place, (0, 0))[0]
        bag = self.live(self.bags.get(place, {}), now_ms)
        return count, {element: count for element, (count, _) in bag.items()}


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("ttl", [None, TTL_MS])
def test_new_kinds_hold_what_dictionaries_would(kit, ttl, windowed):
    """Over snapshots and rescales, in and out of windows, with time that passes while nobody runs."""
    chance = random.Random(f"{ttl} {windowed}")
    counter = CounterDescriptor("count", int, ttl=ttl)
    bag = BagDescriptor("bag", int, ttl=ttl, most=3, element_type=str)
    oracle = Oracle(ttl)
    places = [(window, key) for window in (WINDOWS if windowed else [None]) for key in KEYS]
    backends = [kit.make(subtask, 2) for subtask in range(2)]
    for parallelism in (3, 1, 2, 2):
        handles = [
            (backend, backend.handle(counter, windowed=windowed), backend.handle(bag, windowed=windowed))
            for backend in backends
        ]

        def at(place, handles=handles, num=len(backends)):
            backend, *both = handles[owner(place[1], num)]
            backend.current_namespace, backend.current_key = place
            return both

        for _ in range(60):
            place = chance.choice(places)
            count, held = at(place)
            step = chance.random()
            if step < 0.4:
                by = chance.randrange(5)
                count.increment(by)
                oracle.increment(place, by, kit.now_ms)
            elif step < 0.9:
                element = chance.choice("abcde")
                held.add(element)
                oracle.add(place, element, 3, kit.now_ms)
            else:
                count.clear()
                held.clear()
                oracle.counts.pop(place, None)
                oracle.bags.pop(place, None)
            kit.now_ms += chance.choice((0, 1, 5))
        for place in places:
            count, held = at(place)
            assert (count.value(), dict(held.items())) == oracle.seen(place, kit.now_ms), place
        parts = [part for n, backend in enumerate(backends) for part in kit.written(backend.snapshot(), n)]
        kit.now_ms += 40
        backends = [kit.restored(parts, subtask, parallelism) for subtask in range(parallelism)]


@pytest.mark.parametrize("ttl", [None, TTL_MS])
def test_new_kinds_merge_with_their_windows(kit, ttl):
    counter, bag = CounterDescriptor("count", int, ttl=ttl), BagDescriptor("bag", int, ttl=ttl)
    backend = kit.make()
    count, held = backend.handle(counter, windowed=True), backend.handle(bag, windowed=True)
    backend.current_key = "ann"
    expected = Counts()
    for number, window in enumerate([(0, 10), (10, 20), (20, 30)]):
        backend.current_namespace = window
        count.increment(number + 1)
        for element in "ab"[: number + 1]:
            held.add(element)
            expected[element] += 1
    for descriptor in (counter, bag):
        backend.merge_namespaces(descriptor, (0, 10), [(10, 20), (20, 30)])
    assert (count.value(), dict(held.items())) == (0, {})
    backend.current_namespace = (0, 10)
    assert (count.value(), dict(held.items())) == (6, dict(expected))


def test_what_expires_is_swept_though_nobody_reads_it(kit):
    counter, bag = CounterDescriptor("count", int, ttl=TTL_MS), BagDescriptor("bag", int, ttl=TTL_MS)
    backend = kit.make()
    count, held = backend.handle(counter), backend.handle(bag)
    for key in range(10):
        backend.current_key = key
        count.increment()
        held.add("a")
        held.add("b")
    assert (kit.num_units(backend, counter), kit.num_units(backend, bag)) == (10, 20)
    for descriptor in (counter, bag):
        backend.table(descriptor).sweep(1_000, kit.now_ms)
    assert (kit.num_units(backend, counter), kit.num_units(backend, bag)) == (0, 0)


def test_a_restore_tells_kinds_apart(kit):
    backend = kit.make()
    backend.current_key = 1
    backend.handle(CounterDescriptor("s", int)).increment()
    with pytest.raises(CheckpointMismatchError, match=r"counter state of int under the name 's'.*bag state"):
        kit.again(backend).handle(BagDescriptor("s", int))


def test_a_checkpoint_of_a_kind_that_nobody_registered_is_refused(kit, monkeypatch):
    backend = kit.make()
    backend.current_key = 1
    backend.handle(CounterDescriptor("s", int)).increment()
    parts = kit.written(backend.snapshot())
    monkeypatch.delitem(kinds._KINDS, "counter")
    with pytest.raises(CheckpointMismatchError, match="counter state; there is no such kind") as caught:
        kit.restored(parts)
    assert "import the module that registers it" in caught.value.hint
    with pytest.raises(ProgramError, match="descriptor such as ValueStateDescriptor"):
        kit.make().handle(CounterDescriptor("s", int))


@pytest.mark.parametrize("name", ["value", "table"])
def test_a_kind_cannot_take_the_name_of_another(name):
    class Other(StateDescriptor):
        kind = name

    with pytest.raises(ProgramError, match=f"'{name}' is the kind of"):
        state_kind(Other)
    assert ValueStateDescriptor("v").layout is StateDescriptor.layout
