"""Programs by event time over tables: rows that wait for the watermark, and what is kept for later ones.

Nothing is late, and no two rows have one time, so the answer does not depend on timing; a row that is given twice, or
that is forgotten while a later one sees it, shows in it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from simulation.programs import Program, Record, freeze
from timed_oracles import near, over, with_versions

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace import functions as f
from headrace.connectors.files import FileSink
from headrace.engine.columns.expressions import col
from headrace.engine.frames.frame_calls import Frame, dense_rank, lag, rank
from headrace.engine.operators.arrival import PROCESSING_TIME, StampRows
from headrace.engine.operators.column_operators import FilterColumns, SelectColumns
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.timed.interval_join import IntervalJoinOfTables
from headrace.engine.timed.over_by_time import OverAggregate
from headrace.engine.timed.sort import TemporalSort
from headrace.engine.timed.temporal_join import TemporalJoinOfTables

__all__ = ["LATER", "TIMED"]

RECORDS = pa.schema({"split": "int64", "seq": "int64", "key": "string", "value": "int64", "ts": "int64"})
ROWS = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
AGGREGATES = {"n": f.count(), "s": f.sum("value"), "m": f.min("value"), "d": f.count_distinct("value")}
PLAIN = [("count", None), ("sum", 1), ("min", 1), ("count_distinct", 1)]
PLACES = {"r": rank(), "d": dense_rank()}
KINDS = (
    ("all before", AGGREGATES, PLAIN, None, None),
    ("3 rows", AGGREGATES, PLAIN, Frame(-3, 0), ("rows", -3, 0)),
    ("40 ms", AGGREGATES, PLAIN, Frame(-40, 0, is_range=True), ("range", -40_000, 0)),
    ("places", PLACES, [("rank", None), ("dense_rank", None)], None, None),
    ("neighbour", {"before": lag("value", 2)}, [("lag", 1, 2)], None, None),
)


def _at(row: Record) -> int:
    """A time of its own for each row, in microseconds."""
    return int(row["ts"]) * 1_000 + int(row["split"]) * 200 + int(row["seq"])


def _rows(stream: Any) -> Any:
    at = (col("ts") * 1_000 + col("split") * 200 + col("seq")).cast(pa.timestamp("us"))
    columns = {"key": col("key"), "value": col("value"), "at": at}
    return stream.transform("rows", SelectColumns(columns, input_schema=RECORDS))


def _as_record(row: Record) -> Record:
    since = row.pop("at")
    return {**row, "at": str(since)}


def rows_over_rows(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    kind, columns, specs, frame, plain_frame = rng.choice(KINDS)
    columnar, parallelism = rng.random() < 0.5, rng.randint(1, 3)
    operator = OverAggregate(["key"], "at", columns, input_schema=ROWS, frame=frame)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = _rows(source(env, columnar)).key_by("key").transform("over", operator).set_parallelism(parallelism)
        stream.map(_as_record).sink_to(FileSink.json_lines(path))

    rows = [(row["key"], row["value"], _at(row)) for part in splits for row in part]
    names = ["key", "value", "at", *columns]
    found = [dict(zip(names, row, strict=True)) for row in over(rows, 1, 2, specs, plain_frame)]
    expected = Counter(freeze({**row, "at": _text(row["at"])}) for row in found)
    return Program(f"rows_over_rows/{kind}/{columnar}/{parallelism}", build, expected)


def rows_with_versions(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Rows of small values are versions of those of large ones."""
    is_left, columnar, parallelism = rng.random() < 0.5, rng.random() < 0.5, rng.randint(1, 3)
    projection = [(side, name, f"{'rv'[side]}_{name}") for side in (0, 1) for name in ROWS.names]
    operator = TemporalJoinOfTables(
        (["key"], ["key"]), ("at", "at"), schemas=(ROWS, ROWS), is_left=is_left, projection=projection
    )

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        rows = _rows(source(env, columnar))
        large = rows.transform("rows", FilterColumns(col("value") >= 30)).key_by("key")
        small = rows.transform("versions", FilterColumns(col("value") < 30)).key_by("key")
        stream = large.transform("join", operator, others=[small]).set_parallelism(parallelism)
        stream.map(_as_texts).sink_to(FileSink.json_lines(path))

    rows = [(row["key"], row["value"], _at(row)) for part in splits for row in part]
    versions = [(row, False) for row in rows if row[1] < 30]
    names = [name for _, _, name in projection]
    found = with_versions([row for row in rows if row[1] >= 30], versions or NO_VERSION, 1, (2, 2), is_left)
    expected: Counter[Any] = Counter()
    for row in found:
        given = dict(zip(names, row, strict=True))
        at = given["v_at"]
        expected[freeze({**given, "r_at": _text(given["r_at"]), "v_at": "None" if at is None else _text(at)})] += 1
    return Program(f"rows_with_versions/{is_left}/{columnar}/{parallelism}", build, expected)


def rows_near_in_time(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Rows of large values with those of small ones that are up to so much before or behind."""
    how, columnar, parallelism = rng.choice(("inner", "left", "anti")), rng.random() < 0.5, rng.randint(1, 3)
    low, high = rng.choice(((-40, 0), (-20, 60), (10, 50)))
    projection = [(side, name, f"{'lr'[side]}_{name}") for side in (0, 1) for name in ROWS.names]
    operator = IntervalJoinOfTables(
        how, (["key"], ["key"]), ("at", "at"), (low, high), schemas=(ROWS, ROWS), projection=projection
    )

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        rows = _rows(source(env, columnar))
        large = rows.transform("large", FilterColumns(col("value") >= 30)).key_by("key")
        small = rows.transform("small", FilterColumns(col("value") < 30)).key_by("key")
        stream = large.transform("join", operator, others=[small]).set_parallelism(parallelism)
        stream.map(_as_texts).sink_to(FileSink.json_lines(path))

    rows = [(row["key"], row["value"], _at(row)) for part in splits for row in part]
    left, right = [row for row in rows if row[1] >= 30], [row for row in rows if row[1] < 30]
    found = near(left, right, 1, (2, 2), low * 1_000, high * 1_000)
    alone = [row for row in left if row not in {pair[:3] for pair in found}]
    if how == "left":
        found += [(*row, None, None, None) for row in alone]
    names = [name for side, _, name in projection if side == 0 or how != "anti"]
    expected: Counter[Any] = Counter()
    for row in alone if how == "anti" else found:
        given = dict(zip(names, row, strict=True))
        times = {name: "None" if at is None else _text(at) for name, at in given.items() if name.endswith("_at")}
        expected[freeze({**given, **times})] += 1
    return Program(f"rows_near_in_time/{how}/{low}/{columnar}/{parallelism}", build, expected)


def rows_by_the_clock(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Rows in the order of processing time: the first of a key is 1, the last their number, whatever the clock says."""
    columnar, parallelism, slots = rng.random() < 0.5, rng.randint(1, 3), rng.randint(1, 2)
    schema = pa.schema([*ROWS, pa.field("p", PROCESSING_TIME)])
    operator = OverAggregate(["key"], "p", {"n": f.count()}, input_schema=schema, frame=Frame(None, 0))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        rows = _rows(source(env, columnar)).rebalance().transform("rows", FilterColumns(col("at").is_not_null()))
        timed = rows.set_parallelism(slots).assign_timestamps_and_watermarks(WatermarkStrategy.for_ingestion_time())
        stamped = timed.set_parallelism(slots).transform("p", StampRows("p", of_event_time=True)).set_parallelism(slots)
        stream = stamped.key_by("key").transform("over", operator).set_parallelism(parallelism)
        stream.map(lambda row: {"key": row["key"], "n": row["n"]}).sink_to(FileSink.json_lines(path))

    counts = Counter(row["key"] for part in splits for row in part)
    expected = Counter(freeze({"key": key, "n": i + 1}) for key, count in counts.items() for i in range(count))
    return Program(f"rows_by_the_clock/{columnar}/{slots}/{parallelism}", build, expected)


def _as_texts(row: Record) -> Record:
    return {name: str(value) if name.endswith("_at") else value for name, value in row.items()}


NO_VERSION = [((None, None, None), True)]


def _text(at: int) -> str:
    return str(pa.scalar(at, pa.timestamp("us")).as_py())


class _Numbering(KeyedProcessFunction):
    """Says of each row how many have come before it."""

    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        number = self._count.value()
        self._count.update(number + 1)
        yield {**_as_record(value), "n": number}


def rows_in_order(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """All rows by their times, and numbered as they come out."""
    columnar = rng.random() < 0.5
    operator = TemporalSort([("at", True, None), ("value", False, None)], input_schema=ROWS)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        ordered = _rows(source(env, columnar)).transform("sort", operator).force_non_parallel()
        numbered = ordered.key_by(lambda _: 0).process(_Numbering())
        numbered.force_non_parallel().sink_to(FileSink.json_lines(path))

    rows = sorted((_at(row), row["key"], row["value"]) for part in splits for row in part)
    expected = Counter(
        freeze({"key": key, "value": value, "at": _text(at), "n": n}) for n, (at, key, value) in enumerate(rows)
    )
    return Program(f"rows_in_order/{columnar}", build, expected)


class _Judge:
    """Says of each row whether it has counted itself, and no more rows than there are before it.

    Args:
        most: How many it may count, by key and time.
        is_exact: Whether it must count so many.
    """

    def __init__(self, most: dict[tuple[Any, str], int], *, is_exact: bool) -> None:
        self._most = most
        self._is_exact = is_exact

    def __call__(self, row: Record) -> Record:
        most = self._most[row["key"], str(row["at"])]
        counted, different = row["n"], row["d"]
        is_right = counted == most if self._is_exact else 1 <= counted <= most
        return {"key": row["key"], "at": str(row["at"]), "is_right": is_right and 1 <= different <= counted}


def rows_that_expire(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Running counts that begin anew when nothing has come for long, of rows of which each is given once."""
    ttl_ms, size, columnar = rng.choice((1, 20, 10**9)), rng.choice((None, None, 3)), rng.random() < 0.5
    parallelism, frame = rng.randint(1, 3), Frame(None if size is None else -size, 0)
    columns = {"n": f.count(), "d": f.count_distinct(col("value") % 3)}
    operator = OverAggregate(["key"], "at", columns, input_schema=ROWS, frame=frame, ttl_ms=ttl_ms)
    rows = sorted((_at(row), row["key"]) for part in splits for row in part)
    before: Counter[Any] = Counter()
    most = {}
    for at, key in rows:
        before[key] += 1
        most[key, _text(at)] = before[key] if size is None else min(before[key], size + 1)
    judge = _Judge(most, is_exact=ttl_ms == 10**9)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = _rows(source(env, columnar)).key_by("key").transform("over", operator).set_parallelism(parallelism)
        stream.map(judge).sink_to(FileSink.json_lines(path))

    expected = Counter(freeze({"key": key, "at": at, "is_right": True}) for key, at in most)
    return Program(f"rows_that_expire/{ttl_ms}/{size}/{columnar}/{parallelism}", build, expected)


TIMED = (rows_over_rows, rows_with_versions, rows_near_in_time, rows_by_the_clock)
LATER = (rows_in_order, rows_that_expire)
"""Apart, so that the seeds of the others stay what they are."""
