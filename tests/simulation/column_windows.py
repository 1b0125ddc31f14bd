"""Programs with windows on columns: sessions of keys, and all kinds of windows over a whole stream.

Records are columns or rows, of one phase or two. Nothing is late, so the answer does not depend on timing; a session
that is kept twice, forgotten, or cut in two by a crash shows in it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from headrace import (
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    count,
)
from headrace import functions as f
from headrace.connectors.files import FileSink

from .programs import Program, Record, as_datetime_text, freeze

__all__ = ["COLUMN_WINDOWS", "sessions_on_columns", "windows_of_all"]

AGGREGATES = {"n": count(), "total": f.sum("value"), "least": f.min("seq"), "kinds": f.count_distinct("value")}


def sessions_on_columns(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    gap, columnar, is_single = rng.choice((15, 30, 60)), rng.random() < 0.5, rng.random() < 0.3

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        windows = source(env, columnar).key_by("key").window(EventTimeSessionWindows.with_gap(gap))
        if is_single:
            windows = windows.side_output_late_data(OutputTag("late"))
        windows.aggregate(**AGGREGATES).map(_as_text).sink_to(FileSink.json_lines(path))

    rows_of: dict[str, list[Record]] = defaultdict(list)
    for row in (row for rows in splits for row in rows):
        rows_of[row["key"]].append(row)
    expected: Counter[Any] = Counter()
    for key, rows in rows_of.items():
        for first, last, members in _sessions(rows, gap):
            expected[freeze({"key": key, **_result(members, first, last + gap)})] += 1
    return Program(f"sessions_on_columns/{gap}/{columnar}/{is_single}", build, expected)


def windows_of_all(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    kind, columnar, is_single = rng.choice(("tumbling", "sliding", "session")), rng.random() < 0.5, rng.random() < 0.3
    assigner: Any = {
        "tumbling": TumblingEventTimeWindows.of(50),
        "sliding": SlidingEventTimeWindows.of(60, 20),
        "session": EventTimeSessionWindows.with_gap(6),
    }[kind]

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        windows = source(env, columnar).window_all(assigner)
        if is_single:
            windows = windows.side_output_late_data(OutputTag("late"))
        windows.aggregate(**AGGREGATES).map(_as_text).sink_to(FileSink.json_lines(path))

    rows = [row for rows in splits for row in rows]
    if kind == "session":
        spans = [(first, last + 6, members) for first, last, members in _sessions(rows, 6)]
    else:
        size, slide = (50, 50) if kind == "tumbling" else (60, 20)
        windows: dict[int, list[Record]] = defaultdict(list)
        for row in rows:
            for start in range(row["ts"] - row["ts"] % slide, row["ts"] - size, -slide):
                windows[start].append(row)
        spans = [(start, start + size, members) for start, members in windows.items()]
    expected = Counter(freeze(_result(members, start, end)) for start, end, members in spans)
    return Program(f"windows_of_all/{kind}/{columnar}/{is_single}", build, expected)


def _as_text(row: Record) -> Record:
    return {**row, "window_start": str(row["window_start"]), "window_end": str(row["window_end"])}


def _sessions(rows: list[Record], gap: int) -> list[tuple[int, int, list[Record]]]:
    """First and last time and records of each session."""
    sessions: list[tuple[int, int, list[Record]]] = []
    for row in sorted(rows, key=lambda row: row["ts"]):
        if sessions and row["ts"] <= sessions[-1][1] + gap:  # touching windows are merged, as in Flink
            first, _, members = sessions.pop()
            sessions.append((first, row["ts"], [*members, row]))
        else:
            sessions.append((row["ts"], row["ts"], [row]))
    return sessions


def _result(members: list[Record], start: int, end: int) -> Record:
    return {
        "window_start": as_datetime_text(start),
        "window_end": as_datetime_text(end),
        "n": len(members),
        "total": sum(row["value"] for row in members),
        "least": min(row["seq"] for row in members),
        "kinds": len({row["value"] for row in members}),
    }


COLUMN_WINDOWS = (sessions_on_columns, windows_of_all)
