"""Random queries over random streams with event time, from a seed: windows, OVER, joins by time, first rows of groups.

The text is read by Flink, too. What is drawn has one answer whatever order rows come in: times are at most the
watermark's delay out of order, so that no row is late; no two rows of a table have one time; places in orders go by an
``id`` that tells all rows apart; sums are of whole numbers. Columns are called ``x0``, ``x1`` ..., so that a query can
stand in another one's FROM.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["TABLES_OF_STREAMS", "StreamQueryGenerator", "random_streams"]

NUMBER, TEXT, TIME = "number", "text", "time"
DELAY_S = 3

TABLES_OF_STREAMS = {
    "e": "id BIGINT, k BIGINT, v BIGINT, c STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '3' SECOND",
    "f": "id BIGINT, k BIGINT, w BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '3' SECOND",
    "r": "k BIGINT, rate BIGINT, ts TIMESTAMP(3), PRIMARY KEY (k) NOT ENFORCED, "
    "WATERMARK FOR ts AS ts - INTERVAL '3' SECOND",
}
"""What CREATE TABLE says of each: the columns and the watermark."""


def random_streams(seed: Any) -> dict[str, pa.Table]:
    """Return rows of the tables, in the order in which they come."""
    draw = random.Random(f"streams {seed}")

    def times(count: int, most_s: int) -> list[int]:
        exact = sorted(draw.randrange(0, most_s * 1_000) for _ in range(count))
        if draw.random() < 0.3:
            exact = [time // 1_000 * 1_000 for time in exact]  # borders of windows
        return sorted(_distinct(exact), key=lambda time: time + draw.randrange(0, DELAY_S * 1_000))

    def number() -> Any:
        return draw.choice([None, 0, 1, 1, 2, 3, 4])

    sizes = draw.randint(5, 60), draw.randint(5, 50), draw.randint(2, 12)
    e, f, r = (times(count, 60) for count in sizes)
    kind = pa.timestamp("ms")
    return {
        "e": pa.table({
            "id": pa.array(range(len(e)), pa.int64()), "k": pa.array([number() for _ in e], pa.int64()),
            "v": pa.array([number() for _ in e], pa.int64()),
            "c": pa.array([draw.choice([None, "x", "xy", "y"]) for _ in e], pa.string()), "ts": pa.array(e, kind),
        }),
        "f": pa.table({
            "id": pa.array(range(len(f)), pa.int64()), "k": pa.array([number() for _ in f], pa.int64()),
            "w": pa.array([number() for _ in f], pa.int64()), "ts": pa.array(f, kind),
        }),
        "r": pa.table({
            "k": pa.array([draw.choice([0, 1, 2, 3]) for _ in r], pa.int64()),
            "rate": pa.array([draw.randint(1, 9) for _ in r], pa.int64()), "ts": pa.array(r, kind),
        }),
    }  # fmt: skip


def _distinct(times: Sequence[int]) -> list[int]:
    """No two rows of one time: their order would be that in which they come."""
    seen: set[int] = set()
    made = []
    for time in times:
        while time in seen:
            time += 1
        seen.add(time)
        made.append(time)
    return made


@dataclass(frozen=True)
class _Rows:
    """Something in FROM.

    Attributes:
        text: How it stands there.
        columns: Name and kind of its columns.
        time: The column that is its event time; None if it has none.
        changes: Whether its rows change.
    """

    text: str
    columns: dict[str, str]
    time: str | None = None
    changes: bool = False

    def of(self, kind: str) -> list[str]:
        return [name for name, one in self.columns.items() if one == kind]


class StreamQueryGenerator:
    """Draws queries.

    Args:
        seed: The same one draws the same query.
    """

    def __init__(self, seed: Any) -> None:
        self._draw = random.Random(f"stream query {seed}")
        self._num_aliases = 0

    def query(self) -> str:
        """Return a query; columns of it are called ``x0``, ``x1`` ..."""
        return self._around(self._rows())

    def filtered(self) -> tuple[str, str]:
        """Return rows for FROM, and a condition over them."""
        rows = self._rows()
        return rows.text, self._condition(rows)

    def _rows(self) -> _Rows:
        shapes: list[tuple[int, Callable[[], _Rows]]] = [
            (5, self._windows), (2, self._sessions), (2, self._old_windows), (4, self._over), (3, self._top),
            (2, self._deduplicated), (3, self._top_of_windows), (4, self._joined), (3, self._near_in_time),
            (2, self._joined_windows), (2, self._temporal), (2, self._asked), (2, self._sets), (3, self._groups),
        ]  # fmt: skip
        return self._draw.choices([make for _, make in shapes], [weight for weight, _ in shapes])[0]()

    # -- around --------------------------------------------------------------------------------------------------------

    def _around(self, rows: _Rows) -> str:
        """The rows themselves, or groups, first rows or unions of them."""
        shape = self._draw.choices(("plain", "groups", "top", "filter"), (5, 3, 2, 1))[0]
        inner = rows.text.removeprefix("(").rpartition(") AS ")[0]
        if shape == "plain":
            return inner
        numbers = rows.of(NUMBER)
        if shape == "groups":
            key = self._draw.choice(list(rows.columns))
            value = self._draw.choice(numbers) if numbers else "1"
            having = f" HAVING COUNT(*) > {self._draw.randint(1, 2)}" if self._often(0.3) else ""
            calls = f"COUNT(*) AS x1, SUM({value}) AS x2, MAX({value}) AS x3"
            return f"SELECT {key} AS x0, {calls} FROM {rows.text} GROUP BY {key}{having}"
        if shape == "top" and numbers:
            orders = ", ".join(f"{name} {self._draw.choice(('ASC', 'DESC'))}" for name in rows.columns)
            partition = self._draw.choice(list(rows.columns))
            ranked = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY {orders}) AS rn FROM {rows.text}"
            names = ", ".join(rows.columns)
            return f"SELECT {names} FROM ({ranked}) WHERE rn <= {self._draw.randint(1, 3)}"
        return f"SELECT * FROM {rows.text} WHERE {self._condition(rows)}"

    # -- tables --------------------------------------------------------------------------------------------------------

    def _table(self) -> _Rows:
        """A stream with event time, maybe with conditions."""
        if self._often(0.6):
            columns = {"id": NUMBER, "k": NUMBER, "v": NUMBER, "c": TEXT, "ts": TIME}
            return _Rows("e", columns, "ts")
        return _Rows("f", {"id": NUMBER, "k": NUMBER, "w": NUMBER, "ts": TIME}, "ts")

    def _where(self, rows: _Rows, prefix: str = "") -> str:
        return f" WHERE {self._condition(rows, prefix)}" if self._often(0.4) else ""

    def _condition(self, rows: _Rows, prefix: str = "") -> str:
        kind = self._draw.choice([NUMBER, NUMBER, TEXT])
        names = rows.of(kind) or rows.of(NUMBER)
        if not names:
            return f"{prefix}{next(iter(rows.columns))} IS NOT NULL"
        name = f"{prefix}{self._draw.choice(names)}"
        if kind == TEXT and rows.of(TEXT):
            return self._draw.choice((f"{name} = 'x'", f"{name} IS NOT NULL", f"{name} LIKE 'x%'"))
        return self._draw.choice((
            f"{name} > {self._draw.randint(0, 3)}", f"{name} IS NULL", f"{name} <> 1", f"MOD({name}, 2) = 0",
            f"{name} IN (1, 2)",
        ))  # fmt: skip

    def _calls(self, rows: _Rows, most: int = 3, first: int = 0) -> dict[str, str]:
        """Aggregates, called ``x`` and a number."""
        calls = []
        for _ in range(self._draw.randint(1, most)):
            name = self._draw.choice(rows.of(NUMBER))
            call = self._draw.choice(
                ("COUNT(*)", f"COUNT({name})", f"SUM({name})", f"MIN({name})", f"MAX({name})", f"AVG({name})",
                 f"COUNT(DISTINCT {name})", f"SUM(DISTINCT {name})")
            )  # fmt: skip
            if self._often(0.2):
                call += f" FILTER (WHERE {self._condition(rows)})"
            calls.append(call)
        return {f"x{first + number}": call for number, call in enumerate(calls)}

    def _selected(self, values: dict[str, str], rest: str, kinds: dict[str, str], **options: Any) -> _Rows:
        """A query as rows; kinds of its columns are numbers where nothing else is said."""
        listed = ", ".join(f"{value} AS {name}" for name, value in values.items())
        columns = {name: kinds.get(name, NUMBER) for name in values}
        return _Rows(f"(SELECT {listed} FROM {rest}) AS {self._alias()}", columns, **options)

    # -- windows -------------------------------------------------------------------------------------------------------

    def _window_of(self, table: str) -> str:
        size = self._draw.choice((5, 10, 20))
        kind = self._draw.choice(("TUMBLE", "HOP", "CUMULATE"))
        seconds = [f"INTERVAL '{size}' SECOND"]
        if kind != "TUMBLE":
            seconds.insert(0, f"INTERVAL '{self._draw.choice((5, size)) if size != 5 else 5}' SECOND")
        return f"TABLE({kind}(TABLE {table}, DESCRIPTOR(ts), {', '.join(seconds)}))"

    def _windows(self) -> _Rows:
        table = self._table()
        keys = self._draw.choice(((), ("k",), ("k",)))
        values = {f"x{i}": key for i, key in enumerate((*keys, "window_start", "window_end"))}
        times = {name: TIME for name, value in values.items() if value.startswith("window")}
        values |= self._calls(table, first=len(values))
        by = ", ".join((*keys, "window_start", "window_end"))
        having = " HAVING COUNT(*) > 1" if self._often(0.2) else ""
        rest = f"{self._window_of(table.text)}{self._where(table)} GROUP BY {by}{having}"
        return self._selected(values, rest, times)

    def _sessions(self) -> _Rows:
        table = self._table()
        gap = self._draw.choice((2, 5))
        window = f"TABLE(SESSION(TABLE {table.text} PARTITION BY k, DESCRIPTOR(ts), INTERVAL '{gap}' SECOND))"
        values = {"x0": "k", "x1": "window_start", "x2": "window_end", **self._calls(table, first=3)}
        return self._selected(values, f"{window} GROUP BY k, window_start, window_end", {"x1": TIME, "x2": TIME})

    def _old_windows(self) -> _Rows:
        table = self._table()
        size = self._draw.choice((5, 10))
        kind = self._draw.choice(("TUMBLE", "HOP", "SESSION"))
        seconds = [f"INTERVAL '{size}' SECOND"] + ([f"INTERVAL '{2 * size}' SECOND"] if kind == "HOP" else [])
        window = f"ts, {', '.join(seconds)}"
        values = {
            "x0": "k",
            "x1": f"{kind}_START({window})",
            "x2": f"{kind}_END({window})",
            **self._calls(table, first=3),
        }
        rest = f"{table.text}{self._where(table)} GROUP BY k, {kind}({window})"
        return self._selected(values, rest, {"x1": TIME, "x2": TIME})

    def _top_of_windows(self) -> _Rows:
        table = self._table()
        value = table.of(NUMBER)[-1]
        place = f"ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY {value} DESC, id ASC)"
        inner = f"SELECT *, {place} AS rn FROM {self._window_of(table.text)}"
        values = {"x0": "window_start", "x1": "id", "x2": value}
        return self._selected(values, f"({inner}) WHERE rn <= {self._draw.randint(1, 3)}", {"x0": TIME})

    # -- OVER, first rows ----------------------------------------------------------------------------------------------

    def _over(self) -> _Rows:
        table = self._table()
        frame = self._draw.choice((
            "", "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            "RANGE BETWEEN INTERVAL '5' SECOND PRECEDING AND CURRENT ROW",
        ))  # fmt: skip
        window = f"OVER (PARTITION BY k ORDER BY ts {frame})"
        name = self._draw.choice(table.of(NUMBER))
        calls = {
            f"x{number}": f"{call} {window}"
            for number, call in enumerate(
                self._draw.sample(("COUNT(*)", f"SUM({name})", f"MAX({name})", f"MIN({name})", f"AVG({name})"), 2), 1
            )
        }
        return self._selected({"x0": "id", **calls}, table.text, {})

    def _top(self) -> _Rows:
        table = self._table()
        value = self._draw.choice(table.of(NUMBER))
        order = f"{value} {self._draw.choice(('ASC', 'DESC'))}, id"
        inner = (
            f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) AS rn FROM {table.text}{self._where(table)}"
        )
        values = {"x0": "k", "x1": "id", "x2": "v" if table.text == "e" else "w"}
        if self._often(0.4):
            values["x3"] = "rn"
        return self._selected(values, f"({inner}) WHERE rn <= {self._draw.randint(1, 3)}", {}, changes=True)

    def _deduplicated(self) -> _Rows:
        table = self._table()
        order = f"ts {self._draw.choice(('ASC', 'DESC'))}"
        inner = (
            f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) AS rn FROM {table.text}{self._where(table)}"
        )
        return self._selected({"x0": "k", "x1": "ts"}, f"({inner}) WHERE rn = 1", {"x1": TIME}, changes=True)

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _joined(self) -> _Rows:
        how = self._draw.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        extra = self._draw.choice(("", "", " AND a.v < b.w", " AND a.v <> b.id"))
        values = {"x0": "a.id", "x1": "b.id", "x2": "a.v", "x3": "b.w"}
        where = self._draw.choice(("", " WHERE a.v > 1", " WHERE a.c = 'x'", " WHERE b.w IS NOT NULL"))
        left = self._draw.choice(("e", "e", "(SELECT k AS id, k, MAX(v) AS v, MIN(c) AS c FROM e GROUP BY k)"))
        rest = f"{left} AS a {how} f AS b ON a.k = b.k{extra}{where}"
        return self._selected(values, rest, {}, changes=True)

    def _near_in_time(self) -> _Rows:
        how = self._draw.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        low, high = self._draw.choice(((5, 0), (0, 5), (2, 3)))
        near = f"a.ts BETWEEN b.ts - INTERVAL '{low}' SECOND AND b.ts + INTERVAL '{high}' SECOND"
        values = {"x0": "a.id", "x1": "b.id", "x2": "a.v", "x3": "b.w"}
        return self._selected(values, f"e AS a {how} f AS b ON a.k = b.k AND {near}", {})

    def _joined_windows(self) -> _Rows:
        how = self._draw.choice(("JOIN", "LEFT JOIN", "FULL JOIN"))
        size = self._draw.choice((5, 10))
        sides = [
            f"(SELECT * FROM TABLE(TUMBLE(TABLE {name}, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)))" for name in "ef"
        ]
        same = "a.k = b.k AND a.window_start = b.window_start AND a.window_end = b.window_end"
        values = {"x0": "a.id", "x1": "b.id", "x2": "COALESCE(a.window_start, b.window_start)"}
        return self._selected(values, f"{sides[0]} AS a {how} {sides[1]} AS b ON {same}", {"x2": TIME})

    def _temporal(self) -> _Rows:
        how = self._draw.choice(("JOIN", "LEFT JOIN"))
        rest = f"e AS a {how} r FOR SYSTEM_TIME AS OF a.ts AS b ON a.k = b.k"
        return self._selected({"x0": "a.id", "x1": "b.rate", "x2": "a.v * b.rate"}, rest, {})

    def _asked(self) -> _Rows:
        test = self._draw.choice((
            "k IN (SELECT k FROM f WHERE w > 1)", "EXISTS (SELECT 1 FROM f WHERE f.k = e.k)",
            "NOT EXISTS (SELECT 1 FROM f WHERE f.k = e.k AND f.w > 2)", "v = (SELECT MAX(w) FROM f)",
            "k NOT IN (SELECT k FROM f WHERE k IS NOT NULL)",
        ))  # fmt: skip
        return self._selected({"x0": "id", "x1": "v", "x2": "c"}, f"e WHERE {test}", {"x2": TEXT}, changes=True)

    # -- sets and groups -----------------------------------------------------------------------------------------------

    def _sets(self) -> _Rows:
        word = self._draw.choice(("UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"))
        names = {"e": "k AS x0, v AS x1", "f": "k AS x0, w AS x1"}
        left, right = (f"SELECT {names[name]} FROM {name} WHERE k IS NOT NULL" for name in "ef")
        return _Rows(
            f"(SELECT x0, x1 FROM ({left} {word} {right})) AS {self._alias()}", {"x0": NUMBER, "x1": NUMBER}, None, True
        )

    def _groups(self) -> _Rows:
        table = self._table()
        values = {"x0": "k", **self._calls(table, first=1)}
        by = self._draw.choice(("k", "k", "GROUPING SETS ((k), ())", "ROLLUP (k)"))
        having = " HAVING COUNT(*) > 1" if self._often(0.2) else ""
        return self._selected(values, f"{table.text}{self._where(table)} GROUP BY {by}{having}", {}, changes=True)

    # -- chance --------------------------------------------------------------------------------------------------------

    def _often(self, share: float) -> bool:
        return self._draw.random() < share

    def _alias(self) -> str:
        self._num_aliases += 1
        return f"t{self._num_aliases}"
