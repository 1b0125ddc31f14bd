"""Two kinds of keyed state that Headrace does not have: each is its descriptor and what functions hold, nothing else.

They show what a new kind takes, and tests run them through everything that the built-in kinds go through.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

from headrace.state.keyed.kinds import ABSENT, StateDescriptor, state_kind
from headrace.state.keyed.layouts import ENTRIES


class Counter:
    """A number of the current key, 0 at first."""

    def __init__(self, cell):
        self._cell = cell
        self.value, self.clear = cell.value, cell.clear

    def increment(self, by=1):
        self._cell.fold(lambda old, by: by if old is ABSENT else old + by, by)


@state_kind
@dataclass(frozen=True)
class CounterDescriptor(StateDescriptor):
    """One number per key."""

    kind = "counter"
    keeps_streams = True

    @property
    def absent(self):
        return 0

    def handle(self, cell):
        return Counter(cell)

    def merger(self):
        return operator.add

    def keep(self, handle, record):
        handle.increment()


class Bag:
    """How often each of some elements was added under the current key.

    One more than ``most`` makes room by dropping the rarest of the others, the least of those that are as rare.
    """

    def __init__(self, cell, most):
        self._cell = cell
        self._most = most
        self.count, self.items, self.clear = cell.get, cell.items, cell.clear

    def add(self, element):
        entries = dict(self._cell.items())
        if element not in entries and len(entries) == self._most:
            self._cell.remove(min(entries, key=lambda held: (entries[held], held)))
        self._cell.put(element, entries.get(element, 0) + 1)


@state_kind
@dataclass(frozen=True)
class BagDescriptor(StateDescriptor):
    """A bounded multiset per key; ``element_type`` is that of its elements."""

    kind = "bag"
    layout = ENTRIES

    most: int = field(default=10, kw_only=True)
    element_type: object = field(default=None, kw_only=True)

    @property
    def place_type(self):
        return self.element_type

    def handle(self, cell):
        return Bag(cell, self.most)

    def merger(self):
        return operator.add
