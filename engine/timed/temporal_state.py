"""What the temporal join keeps: rows that wait, and the versions of each key that a row to come may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..columns.records import MAX_BATCH_ROWS, Timestamps
from ..frames.ordered_rows import first_of_runs
from ..tables.columns import Integers, Truths
from ..tables.key_index import KeyIndex, LocalCodes
from ..tables.lifetime import Lifetime
from ..tables.ordering import sorted_rows
from .expiring_keys import ExpiringKeys
from .timed_rows import TimedRows
from .times import last_passed, milliseconds, units_in

__all__ = ["TemporalState"]

_MIN_DEAD = 1_024
_IS_GONE = 1


class TemporalState:
    """The rows and versions of one subtask.

    Args:
        backend: The operator's keyed state.
        schemas: Of rows and of versions.
        keys: Names of the keys' columns, of both.
        times: The columns of event time, of both.
        lifetime: How long the versions of a key live for which nothing is written; None for ever.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        schemas: tuple[pa.Schema, pa.Schema],
        keys: tuple[Sequence[str], Sequence[str]],
        times: tuple[str, str],
        lifetime: Lifetime | None = None,
    ) -> None:
        self._index = KeyIndex([schemas[0].field(key).type for key in keys[0]])
        self._rows = TimedRows(backend, "rows", schemas[0], keys[0], self._index, times[0])
        # The number that a version carries says whether it is that the key is gone.
        self._versions = TimedRows(backend, "versions", schemas[1], keys[1], self._index, times[1])
        self._local = LocalCodes()
        self._expiring: ExpiringKeys | None = None
        if lifetime is not None:
            fields = [schemas[0].field(key) for key in keys[0]]
            self._expiring = ExpiringKeys(backend, fields, self._index, lifetime, self._waits)

    def _waits(self, codes: Integers) -> Truths:
        """Which keys have rows that wait."""
        return self._rows.store.by_key.counts_of(codes) > 0

    def add_rows(self, rows: pa.RecordBatch, watermark_ms: int) -> int:
        """Let rows wait; returns how many are late, which are left out."""
        rows, times, num_late = self._rows.in_time(rows, watermark_ms)
        if rows.num_rows:
            self._rows.add(rows, times, self._written(self._rows.codes_in(rows)))
        return num_late

    def add_versions(self, rows: pa.RecordBatch, is_gone: Truths) -> None:
        """Add versions, or that keys are gone from a time on."""
        has_key = np.ones(rows.num_rows, np.bool_)
        for key in self._versions.keys:
            has_key &= rows.column(key).is_valid().to_numpy(zero_copy_only=False)
        if not has_key.all():
            rows, is_gone = rows.filter(pa.array(has_key)), is_gone[has_key]
        if rows.num_rows:
            times = self._versions.times_in(rows)
            codes = self._written(self._versions.codes_in(rows))
            self._versions.add(rows, times, codes, np.where(is_gone, _IS_GONE, 0))

    def _written(self, codes: Integers) -> Integers:
        """The same codes, whose keys are about to be written."""
        if self._expiring is not None:
            self._expiring.begin()
            self._forget_expired(self._expiring, self._expiring.expired(codes))
            self._expiring.touch(codes)
        return codes

    def _forget_expired(self, expiring: ExpiringKeys, codes: Integers) -> None:
        owners, held = self._versions.store.by_key.of(codes)
        self._versions.store.remove(held)
        expiring.forget(codes, len(np.unique(owners)))

    def pass_time(
        self, watermark_ms: int, kept_ms: int, *, is_left: bool
    ) -> Iterator[tuple[list[pa.Array], list[pa.Array], Timestamps]]:
        """Let event time go on; gives rows with their versions and event times.

        Args:
            watermark_ms: How far it is.
            kept_ms: How far what is kept goes by it.
            is_left: Whether rows without a version are given, too: with nulls.
        """
        due = self._rows.begun(watermark_ms)
        if self._expiring is not None:
            self._expiring.begin()
            self._expiring.touch(self._rows.store.codes[due])
        if len(due):
            ids, found = self._matched(due)
            if not is_left:
                ids, found = ids[found >= 0], found[found >= 0]
            times = milliseconds(self._rows.times[ids], self._rows.kind)
            for start in range(0, len(ids), MAX_BATCH_ROWS):
                some = slice(start, start + MAX_BATCH_ROWS)
                yield self._rows.store.take(ids[some]), self._versions.store.take(found[some]), times[some]
            self._rows.store.remove(due)
        self._forget_until(kept_ms)
        if self._expiring is not None:
            self._forget_expired(self._expiring, self._expiring.swept())
        self._make_room()

    def _matched(self, due: Integers) -> tuple[Integers, Integers]:
        """Rows by key and time, and the number of the version of each; -1 for none."""
        rows, versions = self._rows, self._versions
        touched, local = self._local.of(rows.store.codes[due], len(self._index))
        owners, held = versions.store.by_key.of(touched)
        keys = np.concatenate([owners, local])
        is_row = np.arange(len(keys)) >= len(held)
        ids = np.concatenate([held, due])
        times = np.concatenate([units_in(versions.times[held], versions.kind, rows.kind), rows.times[due]])
        # Versions may be finer apart than rows: those of one time of rows are in the order of their own.
        exact = np.concatenate([versions.times[held], np.zeros(len(due), np.int64)])
        order = sorted_rows([keys, times, is_row.astype(np.int64), exact, ids])
        keys, is_row, ids = keys[order], is_row[order], ids[order]
        # The last version before each row; one of an earlier key is none.
        places = np.arange(len(order))
        latest = np.maximum.accumulate(np.where(is_row, -1, places))
        begins = np.maximum.accumulate(np.where(first_of_runs([keys]), places, 0))
        found = np.where(latest >= begins, ids[latest], -1)[is_row]
        is_there = np.flatnonzero(found >= 0)
        is_gone = versions.store.numbers[found[is_there]] == _IS_GONE
        found[is_there[is_gone]] = -1
        return ids[is_row], found

    def _forget_until(self, watermark_ms: int) -> None:
        """Forget versions that a later one has replaced for all rows to come.

        That a key is gone stays, too: a version of before may come late.
        """
        versions = self._versions
        begun = versions.begun(watermark_ms)
        if not len(begun):
            return
        touched, _ = self._local.of(versions.store.codes[begun], len(self._index))
        owners, held = versions.store.by_key.of(touched)
        has_begun = versions.times[held] <= last_passed(watermark_ms, versions.kind)
        owners, held = owners[has_begun], held[has_begun]
        order = sorted_rows([owners, versions.times[held], held])
        owners, held = owners[order], held[order]
        is_last = np.append(owners[1:] != owners[:-1], np.ones(min(1, len(owners)), np.bool_))
        versions.store.remove(held[~is_last])

    def _make_room(self) -> None:
        rows, versions = self._rows, self._versions
        for one in (rows, versions):
            if one.store.is_sparse:
                one.store.compact()
                one.find_all()
        if len(self._index) > 2 * (rows.store.num_live + versions.store.num_live) + _MIN_DEAD:
            self._forget_keys()

    def _forget_keys(self) -> None:
        """Number the keys anew that have rows or versions."""
        stores = (self._rows.store, self._versions.store)
        kept = np.unique(np.concatenate([one.codes[: one.size] for one in stores]))
        kept = kept[kept >= 0]
        new_codes = np.full(len(self._index), -1, np.int64)
        new_codes[kept] = np.arange(len(kept))
        if self._expiring is not None:
            self._expiring.leave(kept)
        for one in stores:
            one.recode(new_codes)
        self._index.compact(kept)
        if self._expiring is not None:
            self._expiring.keep(kept, new_codes)

    def persist(self) -> None:
        """Write what has changed."""
        if self._expiring is not None:
            self._forget_expired(self._expiring, self._expiring.before_snapshot())
            self._expiring.persist()
        self._rows.store.persist()
        self._versions.store.persist()
