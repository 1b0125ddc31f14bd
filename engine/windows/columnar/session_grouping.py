"""From records to sessions of each key, from parts of sessions to whole ones, and which records are late: kernels.

A session is a row: key columns, ``$start`` and ``$end`` (epoch milliseconds; the end is a gap behind the last record),
``$fired`` (whether a result has been given that holds all of it) and parts. Sessions of a key that overlap or touch are
one session (Flink's ``TimeWindow.intersects``), and merging is associative: it does not matter which rows are merged
first. No state here and no progress of time.

Source: Flink's ``EventTimeSessionWindows``, ``TimeWindow.mergeWindows`` and, of what is late, ``WindowOperator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import ProgramError

from ...columns.grouping import Codes, Groups
from ...columns.records import MAX_TIMESTAMP, Timestamps
from ...functions.aggregates.contract import Aggregate
from ...functions.keys import KeySelector
from .window_grouping import WindowGrouping

__all__ = ["SessionGrouping", "Sessions", "late_among"]

START, END, FIRED = "$start", "$end", "$fired"

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sessions:
    """Which rows are one session.

    Attributes:
        ids: The session of each row, numbered by key and time.
        starts: Of each session.
        ends: Of each session.
        have_fired: Whether all rows of the session have.
    """

    ids: Codes
    starts: Timestamps
    ends: Timestamps
    have_fired: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)


class SessionGrouping(WindowGrouping):
    """What both phases of sessions share.

    Args:
        keys: See `WindowGrouping`.
        assigner: Session windows of event time with one gap.
        aggregates: By the name of their result column; all mergeable.
        input_schema: Declared type of the records; None to go by what comes.

    Raises:
        ProgramError: If windows are others, an aggregate is not mergeable, or names collide.
    """

    own_columns = (START, END, FIRED)

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        assigner: Any,
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema | None,
    ) -> None:
        super().__init__(keys, aggregates, input_schema)
        gap = getattr(assigner, "gap_ms", None)
        if gap is None or not assigner.is_event_time():
            message = f"sessions on columns must be of event time and of one gap; got {assigner!r}"
            raise ProgramError(message)
        if not self.aggregates.is_mergeable:
            message = "sessions merge, and aggregates that are not mergeable depend on the order of records"
            raise ProgramError(message, hint="use WindowOperator with RowAggregates")
        self.gap_ms: int = gap
        self.column_names = [*self.key_columns, *self.own_columns, *self.part_names]

    def ends_of(self, times: Timestamps) -> Timestamps:
        """Return where the windows of single records end."""
        return np.minimum(times, MAX_TIMESTAMP - self.gap_ms) + self.gap_ms

    def sessions_of(self, batch: pa.RecordBatch, times: Timestamps, *, apart: bool = False) -> pa.RecordBatch:
        """Aggregate the sessions that the records of a batch are among themselves.

        Args:
            batch: At least one record.
            times: Their event times.
            apart: Whether each record is to be a row of its own, in order of arrival.
        """
        keys = self.keys_of(batch)
        if apart:
            ids, starts, lasts = np.arange(len(times), dtype=np.int64), times, times
        else:
            ids, starts, lasts = _cut(Groups.of(keys), times, self.gap_ms)
        groups = Groups(ids, len(starts))
        columns = [
            *(groups.take_keys(key) for key in keys),
            pa.array(starts),
            pa.array(self.ends_of(lasts)),
            pa.array(np.zeros(len(starts), dtype=np.bool_)),
            *self.parts_of(groups, batch),
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.column_names)

    def keys_in(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns of sessions."""
        return [rows.column(index) for index in range(len(self.key_columns))]

    def touching(self, rows: pa.RecordBatch) -> Sessions:
        """Find out which rows are one session."""
        starts, ends = times_in(rows, START), times_in(rows, END)
        fired = rows.column(FIRED).to_numpy(zero_copy_only=False)
        groups = Groups.of(self.keys_in(rows))
        order = _by_key_and_time(groups, starts)
        codes, starts, ends = groups.codes[order], starts[order], ends[order]
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = (np.diff(codes) != 0) | (starts[1:] > _latest(codes, groups.num_codes, ends)[:-1])
        cuts = np.flatnonzero(begins)
        ids = np.empty(len(order), dtype=np.int64)
        ids[order] = np.cumsum(begins) - 1
        return Sessions(
            ids,
            starts[cuts],
            np.maximum.reduceat(ends, cuts),
            np.logical_and.reduceat(fired[order], cuts),
        )

    def merged(self, rows: pa.RecordBatch, sessions: Sessions) -> pa.RecordBatch:
        """Return one row for each session, in their order."""
        if len(sessions) == rows.num_rows:
            order = np.empty(len(sessions), dtype=np.int64)
            order[sessions.ids] = np.arange(len(sessions))
            return rows.take(pa.array(order))
        groups = Groups(sessions.ids, len(sessions))
        columns = [
            *(groups.take_keys(key) for key in self.keys_in(rows)),
            pa.array(sessions.starts),
            pa.array(sessions.ends),
            pa.array(sessions.have_fired),
            *self.merged_parts(groups, rows),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def with_fired(self, rows: pa.RecordBatch, have_fired: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """Return the same sessions, marked anew."""
        index = rows.schema.get_field_index(FIRED)
        columns = [*rows.columns[:index], pa.array(have_fired), *rows.columns[index + 1 :]]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def empty_sessions(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return no sessions, of the schema that records of ``schema`` give."""
        keys, parts = self.empty_columns(schema)
        times = [pa.nulls(0, kind) for kind in (pa.int64(), pa.int64(), pa.bool_())]
        return pa.RecordBatch.from_arrays([*keys, *times, *parts], names=self.column_names)


def times_in(rows: pa.RecordBatch, name: str) -> Timestamps:
    """Return a column of times as an array."""
    times: Timestamps = rows.column(name).to_numpy()
    return times


def _by_key_and_time(groups: Groups, times: Timestamps) -> Codes:
    """The rows in the order of keys, those of a key in the order of time."""
    low = int(times.min())
    width = int(times.max()) - low + 1
    if groups.num_codes * width <= _INT64_MAX:
        return np.argsort(groups.codes * width + (times - low))
    return np.lexsort((times, groups.codes))


def _latest(codes: Codes, num_codes: int, times: Timestamps) -> Timestamps:
    """The latest time of a key so far, of rows in the order of keys."""
    low = int(times.min())
    width = int(times.max()) - low + 1
    if num_codes * width <= _INT64_MAX:
        base = codes * width - low
        return np.maximum.accumulate(base + times) - base
    # Times are replaced by their ranks, so that those of the next key can be made larger than all before.
    known, ranks = np.unique(times, return_inverse=True)
    latest: Timestamps = known[np.maximum.accumulate(codes * len(known) + ranks) - codes * len(known)]
    return latest


def _cut(groups: Groups, times: Timestamps, gap_ms: int) -> tuple[Codes, Timestamps, Timestamps]:
    """The session of each record, and the first and last time of each session."""
    order = _by_key_and_time(groups, times)
    codes, times = groups.codes[order], times[order]
    begins = (np.diff(codes) != 0) | (np.diff(times) > gap_ms)
    cuts = np.concatenate(([0], np.flatnonzero(begins) + 1))
    ids = np.zeros(len(order), dtype=np.int64)
    ids[order[1:]] = np.cumsum(begins)
    return ids, times[cuts], times[np.append(cuts[1:], len(times)) - 1]


def late_among(
    codes: Codes, starts: Timestamps, ends: Timestamps, past_end_ms: int, earliest: Timestamps
) -> npt.NDArray[np.bool_]:
    """Return which windows come too late, one after the other in order of arrival.

    A window that is past is late, unless it touches a session that is not: then it is part of that one, and the next
    window may touch it in turn. Whatever is not past ends behind everything that is past. So of each key only the
    earliest session can be touched, and only by its start.

    Args:
        codes: Numbers of the windows' keys.
        starts: Where the windows begin.
        ends: Where they end.
        past_end_ms: Windows that end then or earlier are past.
        earliest: Of each key the start of its earliest session that is held; the largest integer if there is none.
    """
    is_past = ends <= past_end_ms
    order = np.argsort(codes, kind="stable")
    codes, starts, ends = codes[order], starts[order], ends[order]
    is_taken = ~is_past[order]
    first = np.flatnonzero(np.diff(codes, prepend=-1))
    seeds = earliest[codes[first]]
    # Earliest starts so far are running minima of ranks; a lower key has the larger ones, so that minima end with it.
    known, ranks = np.unique(np.concatenate([starts, seeds, [_INT64_MAX]]), return_inverse=True)
    none, seeds = len(known) - 1, ranks[len(starts) : len(starts) + len(seeds)]
    base = (codes[-1] - codes) * len(known)
    while True:
        # What the key has had before each window: its seed, or what the windows before it have made of that.
        before = np.full(len(codes), none, dtype=np.int64)
        before[1:] = np.where(is_taken[:-1], ranks[: len(starts) - 1], none)
        before[first] = seeds
        reached = known[np.minimum.accumulate(before + base) - base]
        takes = is_taken | ((ends >= reached) & (reached < _INT64_MAX))
        if (takes == is_taken).all():
            break
        is_taken = takes
    is_late = np.empty(len(order), dtype=np.bool_)
    is_late[order] = ~is_taken
    return is_late
