"""How often each value occurs, key by key: what distinct counts are made of, and extremes of values that may go.

A pair of a key's code and a value has a number, under which its count is held. The number of different values of a key
follows from the pairs that appear and vanish. Its smallest and largest value are looked up again only when the one that
was it vanishes; then all values of that key are looked at, else only those that have appeared.

Invariant: no count is below zero; pairs whose count is zero do not live, and are forgotten when they are more than half
of all.

Source: Flink's ``DistinctInfo`` and ``MinWithRetractAggFunction``, whose state is a map from values to counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from .columns import Integers, grown, plain
from .key_index import KeyIndex, LocalCodes
from .ordering import order_of
from .row_store import Chains
from .run_log import LogRows, RunLog

__all__ = ["ValueCounts"]

_MIN_DEAD = 1_024
_LARGEST = np.iinfo(np.int64).max


class _Changed(NamedTuple):
    """The pairs that a batch has made appear and vanish."""

    appeared: Integers
    vanished: Integers


class ValueCounts:
    """Counts of values, by key.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        keys: Names and types of the key's columns.
        key_index: Gives their codes; others may share it.
        kind: Type of the values.
        extremes: Which of ``min`` and ``max`` are asked for.

    Raises:
        TypeMismatchError: If values of the type cannot be compared.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        name: str,
        keys: Sequence[pa.Field],
        key_index: KeyIndex,
        kind: pa.DataType,
        extremes: frozenset[str],
    ) -> None:
        self._keys = key_index
        self._kind = kind
        self._extremes = extremes
        self._log = RunLog(backend, name, keys, [pa.field("value", kind), pa.field("count", pa.int64())])
        self._local = LocalCodes()
        self._begin()
        self._restore()

    def _begin(self) -> None:
        self._pairs = KeyIndex([pa.int64(), self._kind])
        # By pair: the key's code, the count, and whether the log has another one.
        self._codes, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._is_changed = np.zeros(0, np.bool_)
        self._num_live = 0
        # By key: how many values it has, and its extremes' pairs; -1 for none.
        self._num_values = np.zeros(0, np.int64)
        self._best = {name: np.full(0, -1, np.int64) for name in self._extremes}
        self._chains = Chains()

    # -- counting ------------------------------------------------------------------------------------------------------

    def add(self, codes: Integers, values: pa.Array, signs: Integers) -> bool:
        """Count values, or take them away; nulls are passed over.

        Args:
            codes: Those of the keys.
            values: One per row.
            signs: 1 or -1.

        Returns:
            Whether all that is taken away was there; if not, nothing is to be relied on any more.
        """
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            codes, values, signs = codes[valid], values.drop_null(), signs[valid]
        if not len(codes):
            return True
        pairs, num_new = self._pairs.codes_of([codes, plain(values)])
        touched, local = self._local.of(pairs, len(self._pairs))
        before, net = self._make_room(num_new, touched, codes, local), np.zeros(len(touched), np.int64)
        np.add.at(net, local, signs)
        after = before + net
        self._counts[touched] = after
        self._is_changed[touched[net != 0]] = True
        changed = _Changed(touched[(before == 0) & (after > 0)], touched[(before > 0) & (after <= 0)])
        self._note(changed)
        return bool((after >= 0).all())

    def _make_room(self, num_new: int, touched: Integers, codes: Integers, local: Integers) -> Integers:
        size = len(self._pairs)
        self._codes, self._counts = grown(self._codes, size), grown(self._counts, size)
        self._is_changed = grown(self._is_changed, size, False)
        if num_new:
            owners = np.empty(len(touched), np.int64)
            owners[local] = codes
            self._codes[touched] = owners
        self._make_room_for_keys(int(codes.max()) + 1)
        before: Integers = self._counts[touched]
        return before

    def _make_room_for_keys(self, num_keys: int) -> None:
        self._num_values = grown(self._num_values, num_keys)
        self._best = {name: grown(best, num_keys, -1) for name, best in self._best.items()}

    def _note(self, changed: _Changed) -> None:
        appeared, vanished = changed
        self._num_live += len(appeared) - len(vanished)
        np.add.at(self._num_values, self._codes[appeared], 1)
        np.add.at(self._num_values, self._codes[vanished], -1)
        if self._extremes:
            self._chains.append(self._codes[appeared], appeared)
            self._chains.remove(self._codes[vanished], vanished)
            for name in self._extremes:
                self._find_best(name, changed)

    def _find_best(self, name: str, changed: _Changed) -> None:
        """Find the extremes of keys anew, where they may have changed."""
        best, codes, gained = self._best[name], self._codes, changed.appeared
        lost_keys = codes[changed.vanished[best[codes[changed.vanished]] == changed.vanished]]
        best[lost_keys] = -1
        _, remaining = self._chains.of(lost_keys)
        if len(lost_keys):
            is_lost = np.zeros(len(best), np.bool_)
            is_lost[lost_keys] = True
            gained = gained[~is_lost[codes[gained]]]  # they remain
        held = best[self._local.of(codes[gained], len(best))[0]]
        candidates = np.concatenate([remaining, held[held >= 0], gained])
        if not len(candidates):
            return
        touched, local = self._local.of(codes[candidates], len(best))
        order = _order_of_extremes(self._pairs.take(candidates)[1], is_min=name == "min")
        smallest = np.full(len(touched), _LARGEST)
        np.minimum.at(smallest, local, order)
        is_best = order == smallest[local]  # one of each key: its values differ
        best[codes[candidates[is_best]]] = candidates[is_best]

    # -- results -------------------------------------------------------------------------------------------------------

    def num_distinct(self, codes: Integers) -> Integers:
        """How many different values keys have."""
        self._make_room_for_keys(int(codes.max(initial=-1)) + 1)
        return self._num_values[codes]

    def extreme(self, name: str, codes: Integers) -> pa.Array:
        """The smallest (``min``) or largest (``max``) values of keys; NaN only if there is nothing else."""
        self._make_room_for_keys(int(codes.max(initial=-1)) + 1)
        pairs = self._best[name][codes]
        if not len(self._pairs):
            return pa.nulls(len(codes), self._kind)
        values = self._pairs.take(np.maximum(pairs, 0))[1]
        places = pa.array(np.arange(len(pairs)), mask=pairs < 0)
        return values.take(places)

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def is_sparse(self) -> bool:
        """Whether more than half of all pairs do not live."""
        return len(self._pairs) - self._num_live > max(self._num_live, _MIN_DEAD)

    def compact(self, new_codes: Integers | None = None) -> None:
        """Forget pairs that do not live; keys have other codes afterwards, if those are given by their old ones."""
        self.persist()
        live = np.flatnonzero(self._counts[: len(self._pairs)] > 0)
        codes, counts, values = self._codes[live], self._counts[live], self._pairs.take(live)[1]
        self._begin()
        self._put(codes if new_codes is None else new_codes[codes], values, counts)

    def _put(self, codes: Integers, values: pa.Array, counts: Integers) -> None:
        """Take over pairs that the log has."""
        self.add(codes, values, counts)
        self._is_changed[:] = False

    # -- state ---------------------------------------------------------------------------------------------------------

    def persist(self) -> None:
        """Write what has changed into the log."""
        changed = np.flatnonzero(self._is_changed[: len(self._pairs)])
        self._is_changed[:] = False
        self._log.write(self._rows(changed), self._num_live, self._dump)

    def _dump(self) -> LogRows:
        return self._rows(np.flatnonzero(self._counts[: len(self._pairs)] > 0))

    def _rows(self, pairs: Integers) -> LogRows:
        values = self._pairs.take(pairs)[1]
        return len(pairs), self._keys.take(self._codes[pairs]), [values, pa.array(self._counts[pairs])]

    def _restore(self) -> None:
        read = self._log.read()
        if read is None:
            return
        num_rows, keys, (values, counts) = read
        codes, _ = self._keys.codes_of(keys, num_rows)
        pairs, num_pairs = KeyIndex([pa.int64(), self._kind]).codes_of([codes, values])
        last = np.empty(num_pairs, np.int64)
        last[pairs] = np.arange(num_rows)
        held = counts.to_numpy(zero_copy_only=False)
        last = last[held[last] > 0]
        self._put(codes[last], values.take(pa.array(last)), held[last])


def _order_of_extremes(values: pa.Array, *, is_min: bool) -> npt.NDArray[np.int64]:
    """What the best value has the smallest of; NaN is the worst."""
    order = order_of(values)
    order = order if is_min else ~order
    if pa.types.is_floating(values.type):
        is_nan = np.isnan(values.to_numpy(zero_copy_only=False))
        order = np.where(is_nan, _LARGEST, order)
    return order
