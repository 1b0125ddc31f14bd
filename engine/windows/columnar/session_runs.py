"""The sessions that are held: runs of rows in a columnar table, found by key and by when something is due for them.

Rows of one session may lie in several runs: what a batch brings is a run, and is merged with older ones when runs are
merged, as in an LSM tree (each row is merged a number of times that grows with the logarithm of all), or when one of
the rows is due. So neither a batch nor a watermark looks at all that is held.

Beside each run there is what finds its rows, 25 bytes for each in memory that is not managed: it is sorted by the hash
of the key, and the order in which rows are due is kept. A row is *due* when its own end passes; whether its session
ends there shows when the rows of its key are fetched from all runs. Rows that have been fetched are dead, and their
session, if it goes on, is a row of a new run. Dead rows leave the table when they are most of it, and before a
snapshot.

Invariant: outside of calls every session held has an end that, with the allowed lateness, lies behind the watermark;
one whose end does not lie behind the watermark has fired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keys.column_hashing import hash_columns

from ...columns.grouping import Codes, Groups
from ...columns.records import MAX_TIMESTAMP, Timestamps
from .phases import ColumnarState, unified_batches
from .session_grouping import END, FIRED, START, SessionGrouping, times_in

__all__ = ["SessionRuns"]

_MIN_RUNS, _MAX_RUNS = 5, 12
_FEW_ROWS = 8_192
"""Looking into one more run costs as much as merging some hundred rows: few runs where little is held."""

_Hashes = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Run:
    """What finds the rows of one run."""

    # Of the rows' keys, ascending: the order of the rows.
    hashes: _Hashes
    # The watermark at which a row is to be looked at.
    due: Timestamps
    # The rows in the order in which they are due, and how many of them have been looked at.
    queue: _Rows
    position: int
    is_alive: npt.NDArray[np.bool_]
    num_alive: int

    @property
    def next_due(self) -> int:
        return int(self.due[self.queue[self.position]]) if self.position < len(self.queue) else MAX_TIMESTAMP + 1

    def take_due(self, watermark_ms: int) -> _Rows:
        """The rows that have become due since the last call, dead ones not among them."""
        first = self.position
        self.position = int(np.searchsorted(self.due, watermark_ms, side="right", sorter=self.queue))
        rows = self.queue[first : self.position]
        return rows[self.is_alive[rows]]

    def find(self, wanted: _Hashes) -> _Rows:
        """The rows that are alive and have one of the hashes, which ascend and differ."""
        low, high = (np.searchsorted(self.hashes, wanted, side=side) for side in ("left", "right"))
        lengths = high - low
        offsets = np.cumsum(lengths) - lengths
        rows = np.repeat(low - offsets, lengths) + np.arange(int(lengths.sum()))
        return rows[self.is_alive[rows]]

    def kill(self, rows: _Rows) -> None:
        self.is_alive[rows] = False
        self.num_alive -= len(rows)


class SessionRuns:
    """The sessions of one subtask.

    Args:
        grouping: What a row is.
        state: The table.
        allowed_lateness_ms: How long after its end a session is held.

    Attributes:
        next_due: The watermark at which something may be due; nothing is before.
    """

    def __init__(self, grouping: SessionGrouping, state: ColumnarState, allowed_lateness_ms: int) -> None:
        self._grouping = grouping
        self._state = state
        self._lateness_ms = allowed_lateness_ms
        # In the order of the table's runs.
        self._runs: list[_Run] = []
        self.next_due: int = MAX_TIMESTAMP + 1

    def load(self, watermark_ms: int) -> None:
        """Find what a restore has brought."""
        batches = self._batches()
        if batches:
            whole, hashes = self._merged(batches)
            self._replace([whole], [self._run_of(whole, hashes, watermark_ms)])

    def add(self, rows: pa.RecordBatch, watermark_ms: int) -> None:
        """Take sessions in, in any order; what is due for them at once waits for `settle`."""
        rows = self._state.fitted(rows)
        hashes = hash_columns(self._grouping.keys_in(rows))
        order = np.argsort(hashes, kind="stable")
        self._append(rows.take(pa.array(order)), hashes[order], watermark_ms)

    def settle(self, watermark_ms: int) -> tuple[pa.RecordBatch, Timestamps, Timestamps] | None:
        """Do what is due: let sessions fire, and forget those that are past.

        Returns:
            The sessions that fire with what they hold, their starts and their ends, by end and start; None for none.
        """
        if watermark_ms < self.next_due:
            return None
        due = [run.hashes[run.take_due(watermark_ms)] for run in self._runs]
        wanted = np.unique(np.concatenate(due)) if due else np.zeros(0, dtype=np.uint64)
        found = self._fetched(wanted, watermark_ms) if len(wanted) else None
        self._tidy()
        return found

    def earliest_starts(self, keys: Sequence[pa.Array]) -> Timestamps:
        """Of each of some keys, which differ, the start of its earliest session; the largest integer if it has none."""
        earliest = np.full(len(keys[0]), MAX_TIMESTAMP, dtype=np.int64)
        wanted = np.unique(hash_columns(keys))
        parts = [
            batch.take(pa.array(rows))
            for batch, rows in zip(self._batches(), (run.find(wanted) for run in self._runs), strict=True)
            if len(rows)
        ]
        if not parts:
            return earliest
        held = pa.concat_batches(parts)
        asked = pa.RecordBatch.from_arrays(list(keys), names=list(self._grouping.key_columns))
        of_held = pa.RecordBatch.from_arrays(self._grouping.keys_in(held), names=list(self._grouping.key_columns))
        both = unified_batches([asked, of_held])
        groups = Groups.of(both.columns)
        by_code = np.full(groups.num_codes, MAX_TIMESTAMP, dtype=np.int64)
        np.minimum.at(by_code, groups.codes[len(earliest) :], times_in(held, START))
        return by_code[groups.codes[: len(earliest)]]

    def purge(self) -> None:
        """Leave nothing in the table but what is held: a snapshot follows."""
        if all(run.num_alive == len(run.hashes) for run in self._runs):
            return
        batches, runs = [], []
        for batch, run in zip(self._batches(), self._runs, strict=True):
            if run.num_alive:
                is_whole = run.num_alive == len(run.hashes)
                batches.append(batch if is_whole else batch.filter(pa.array(run.is_alive)))
                runs.append(run if is_whole else _without_dead(run))
        self._replace(batches, runs)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def _fetched(self, wanted: _Hashes, watermark_ms: int) -> tuple[pa.RecordBatch, Timestamps, Timestamps] | None:
        """Merge the sessions of keys that have a row that is due."""
        grouping = self._grouping
        rows_of = [run.find(wanted) for run in self._runs]
        hits = [
            (run, rows, batch.take(pa.array(rows)))
            for run, rows, batch in zip(self._runs, rows_of, self._batches(), strict=True)
            if len(rows)
        ]
        rows = pa.concat_batches([batch for _, _, batch in hits])
        sessions = grouping.touching(rows)
        is_due = np.concatenate([run.due[places] <= watermark_ms for run, places, _ in hits])
        # Other sessions of such a key stay where they are.
        is_meant = np.zeros(len(sessions), dtype=np.bool_)
        is_meant[sessions.ids[is_due]] = True
        chosen = is_meant[sessions.ids]
        offset = 0
        for run, places, _ in hits:
            run.kill(places[chosen[offset : offset + len(places)]])
            offset += len(places)
        merged = grouping.merged(rows, sessions).filter(pa.array(is_meant))
        starts, ends, have_fired = sessions.starts[is_meant], sessions.ends[is_meant], sessions.have_fired[is_meant]
        has_ended = ends - 1 <= watermark_ms
        self._add_again(merged, ends, has_ended | have_fired, watermark_ms)
        fires = np.flatnonzero(has_ended & ~have_fired)
        if len(fires) == 0:
            return None
        fires = fires[np.lexsort((starts[fires], ends[fires]))]
        return merged.take(pa.array(fires)), starts[fires], ends[fires]

    def _add_again(
        self, merged: pa.RecordBatch, ends: Timestamps, have_fired: npt.NDArray[np.bool_], watermark_ms: int
    ) -> None:
        is_kept = self._cleanup_times(ends) > watermark_ms
        if is_kept.any():
            self.add(self._grouping.with_fired(merged, have_fired).filter(pa.array(is_kept)), watermark_ms)

    def _cleanup_times(self, ends: Timestamps) -> Timestamps:
        """The watermarks at which sessions are past."""
        return np.minimum(ends - 1, MAX_TIMESTAMP - self._lateness_ms) + self._lateness_ms

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _batches(self) -> list[pa.RecordBatch]:
        return [] if self._state.table is None else self._state.table.runs(None)

    def _replace(self, batches: list[pa.RecordBatch], runs: list[_Run]) -> None:
        assert self._state.table is not None
        self._state.table.replace(None, batches)
        self._runs = runs
        self._find_next_due()

    def _find_next_due(self) -> None:
        self.next_due = min((run.next_due for run in self._runs), default=MAX_TIMESTAMP + 1)

    def _run_of(self, rows: pa.RecordBatch, hashes: _Hashes, watermark_ms: int) -> _Run:
        ends = times_in(rows, END)
        # Who has fired at its end waits to be past; but a restore may have taken event time back.
        waits = rows.column(FIRED).to_numpy(zero_copy_only=False) & (ends - 1 <= watermark_ms)
        due = np.where(waits, self._cleanup_times(ends), ends - 1)
        is_alive = np.ones(len(hashes), dtype=np.bool_)
        return _Run(hashes, due, np.argsort(due, kind="stable"), 0, is_alive, len(hashes))

    def _append(self, rows: pa.RecordBatch, hashes: _Hashes, watermark_ms: int) -> None:
        assert self._state.table is not None
        self._state.table.append(None, rows)
        run = self._run_of(rows, hashes, watermark_ms)
        self._runs.append(run)
        self.next_due = min(self.next_due, run.next_due)
        self._merge_newer(watermark_ms)

    def _merge_newer(self, watermark_ms: int) -> None:
        """Merge the newest runs, with every older one that is no larger than all behind it together.

        So a row is in a run of twice the size after each time that it is merged.
        """
        sizes = [run.num_alive for run in self._runs]
        if len(sizes) <= min(_MIN_RUNS + sum(sizes) // _FEW_ROWS, _MAX_RUNS):
            return
        first = next((i for i in range(len(sizes) - 1) if sizes[i] <= sum(sizes[i + 1 :])), None)
        if first is None:
            return
        batches = self._batches()
        alive = [
            (batch.filter(pa.array(run.is_alive)), run.hashes[run.is_alive])
            for batch, run in zip(batches[first:], self._runs[first:], strict=True)
        ]
        whole, hashes = self._merged([batch for batch, _ in alive], np.concatenate([part for _, part in alive]))
        made = [self._run_of(whole, hashes, watermark_ms)] if whole.num_rows else []
        self._replace([*batches[:first], *([whole] if made else [])], [*self._runs[:first], *made])

    def _merged(
        self, batches: Sequence[pa.RecordBatch], hashes: _Hashes | None = None
    ) -> tuple[pa.RecordBatch, _Hashes]:
        """One run of several, sorted by the keys' hashes."""
        grouping = self._grouping
        rows = pa.concat_batches(batches)
        if hashes is None:
            hashes = hash_columns(grouping.keys_in(rows))
        if rows.num_rows == 0:
            return rows, hashes
        sessions = grouping.touching(rows)
        of_session = np.empty(len(sessions), dtype=np.uint64)
        of_session[sessions.ids] = hashes
        order: Codes = np.argsort(of_session, kind="stable")
        return grouping.merged(rows, sessions).take(pa.array(order)), of_session[order]

    def _tidy(self) -> None:
        """Let dead rows leave, if they are most."""
        num_alive = sum(run.num_alive for run in self._runs)
        num_dead = sum(len(run.hashes) for run in self._runs) - num_alive
        if num_alive == 0 or num_dead > num_alive + _FEW_ROWS:
            self.purge()
        self._find_next_due()


def _without_dead(run: _Run) -> _Run:
    # Rows that have been looked at are dead.
    waiting = run.queue[run.position :]
    queue = (np.cumsum(run.is_alive) - 1)[waiting[run.is_alive[waiting]]]
    hashes, due = run.hashes[run.is_alive], run.due[run.is_alive]
    return _Run(hashes, due, queue, 0, np.ones(run.num_alive, dtype=np.bool_), run.num_alive)
