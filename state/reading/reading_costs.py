"""What reading a pickle as data costs beyond its opcodes: counted, and bounded by its size.

Few bytes can ask for much work where parts are shared. A tuple keeps no hash, so that each use as a key walks it again;
keys of one hash are compared whole; a recipe copies its argument. What such a step costs is taken from a budget that
grows with the pickle, before the step is done.
"""

from __future__ import annotations

import collections
import itertools
from decimal import Decimal
from typing import Any

from .plain_values import check_hashes

__all__ = ["ReadingCosts"]

_FREE_STEPS = 1 << 12
_STEPS_PER_BYTE = 16

_LIGHT = 8
"""Keys that weigh no more are hashed and compared at once."""

_FEW = 1_000
"""So many keys may hash alike in any case."""


class ReadingCosts:
    """The budget of one pickle, and what is known of the keys in it.

    Args:
        num_bytes: Of the pickle.
        max_weight: What a tuple may weigh.
    """

    def __init__(self, num_bytes: int, max_weight: int) -> None:
        self._max_weight = max_weight
        self._left = self._allowed = _FREE_STEPS + _STEPS_PER_BYTE * num_bytes
        # What tuples and frozen sets weigh, by identity, with the value to keep that.
        self._weights: dict[int, tuple[int, Any]] = {}
        # Of each large dict or set: itself, and how many of its keys have a hash.
        self._hashes: dict[int, tuple[Any, collections.Counter[int]]] = {}
        # What heavy keys of one hash weigh in a dict or set; and the number of that, with it to keep its identity.
        self._alike: dict[tuple[int, int], int] = {}
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._next_number = itertools.count()

    def spend(self, steps: int) -> None:
        """Count work.

        Raises:
            ValueError: If it is more than the pickle may ask for.
        """
        self._left -= steps
        if self._left < 0:
            message = f"a pickle that asks for more than {self._allowed:,} steps of work"
            raise ValueError(message)

    def know(self, value: Any, weight: int) -> None:
        """Remember what a tuple or a frozen set weighs."""
        self._weights[id(value)] = (weight, value)

    def weight_of_parts(self, values: Any) -> int:
        """Return what the parts of a tuple or a frozen set weigh.

        Raises:
            ValueError: If it is more than they may.
        """
        weight = 1
        for value in values:
            kind = type(value)
            if kind is tuple or kind is frozenset:
                weight += self._weights[id(value)][0] if value else 1
            else:
                weight += 1 + (len(value) if kind in (str, bytes) else 0)
        if weight > self._max_weight:
            message = f"a pickle whose value weighs more than {self._max_weight:,}"
            raise ValueError(message)
        return weight

    def check_keys(self, keys: list[Any], target: Any = None) -> None:
        """See that keys can be hashed, and told apart from each other and from those of a target, in time.

        Args:
            keys: The keys.
            target: The dict or set that they go into; None for one that they make.

        Raises:
            ValueError: If not.
            TypeError: If one cannot be hashed.
        """
        self.spend(len(keys))
        number = None
        for key in keys:
            weight = self._weight_of_key(key)
            if weight > _LIGHT:
                number = self._number_of(target) if number is None else number
                self.spend(weight)
                place = number, hash(key)
                alike = self._alike.get(place, 0)
                self.spend(alike)
                self._alike[place] = alike + weight
        if len(keys) + (len(target) if target else 0) > _FEW:
            self._count_hashes(keys, target)

    def _weight_of_key(self, key: Any) -> int:
        kind = type(key)
        if kind is tuple or kind is frozenset:
            return self._weights[id(key)][0] if key else 1
        if kind is int:
            return 1 + (key.bit_length() >> 6)
        if kind is Decimal:
            return 1 + (len(key.as_tuple().digits) >> 4)
        return 1  # texts and bytes know their hash; others are small

    def _number_of(self, target: Any) -> int:
        if target is None:
            return next(self._next_number)
        found = self._numbers.get(id(target))
        if found is None:
            found = self._numbers[id(target)] = (next(self._next_number), target)
        return found[0]

    def _count_hashes(self, keys: list[Any], target: Any) -> None:
        """Count only what is new: a target that grows by one key at a time is not looked through each time."""
        if not target:
            check_hashes(keys)
            return
        known = self._hashes.get(id(target))
        if known is None:
            known = self._hashes[id(target)] = (target, collections.Counter(map(hash, target)))
        check_hashes([key for key in keys if key not in target], known[1])
