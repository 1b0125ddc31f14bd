"""Generated expressions against Flink: ``python flink_expressions.py --flink PYTHON --expressions 1000``.

PYTHON is what `flink_queries` takes. Expressions of functions, casts and operators are asked, twenty in a query, over a
table of awkward values, of Flink and here, in batch mode. Those that one engine refuses or fails at are asked alone.

Prints each expression with another answer, or that only Flink answers, and counts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import math
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from expression_generator import COLUMNS, ExpressionGenerator, table_of_values
from flink_queries import Flink

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment

EXPRESSIONS_OF_A_QUERY = 20
QUERIES_OF_A_WORLD = 5
Answers = dict[int, tuple[Any, ...]] | str
"""By the id of a row, its values; or why there are none."""


class Here:
    """This engine."""

    def __init__(self) -> None:
        self._env = TableEnvironment.create(mode="batch", parallelism=1)

    def create(self, statement: str) -> None:
        """Make the table anew."""
        self._env.execute_sql("DROP TEMPORARY TABLE IF EXISTS t")
        self._env.execute_sql(statement)

    def ask(self, query: str) -> Answers:
        """Return its rows."""
        try:
            columns = [one.to_pylist() for one in self._env.execute_sql(query).to_arrow().columns]
        except HeadraceError as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return {row[0]: tuple(map(plain, row[1:])) for row in zip(*columns, strict=True)}


class There:
    """Flink."""

    def __init__(self, python: str) -> None:
        self._flink = Flink(python)

    def create(self, statement: str) -> None:
        """Make the table anew."""
        self._flink.ask(tables=[statement])

    def ask(self, query: str) -> Answers:
        """Return its rows."""
        rows = self._flink.ask(query=query, mode="batch")
        return rows if isinstance(rows, str) else {row[0]: tuple(map(plain, row[1:])) for row in rows}


def plain(value: Any) -> Any:
    """A value as it is compared."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value


def is_same(one: Any, other: Any) -> bool:
    """Whether values are the same, but for the last digits of a DOUBLE."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def compare(expressions: list[str], here: Here, there: There, counts: Counter[str]) -> None:
    """Ask both, and tell of expressions with different answers."""
    listed = ", ".join(f"{one} AS x{number}" for number, one in enumerate(expressions))
    query = f"SELECT id, {listed} FROM t"
    ours, theirs = here.ask(query), there.ask(query)
    if (isinstance(ours, str) or isinstance(theirs, str)) and len(expressions) > 1:
        middle = len(expressions) // 2
        for part in (expressions[:middle], expressions[middle:]):
            compare(part, here, there, counts)
        return
    if isinstance(theirs, str) or isinstance(ours, str):
        if isinstance(theirs, str):
            counts["not by Flink" if not isinstance(ours, str) else "by neither"] += 1
            return
        counts["only by Flink"] += 1
        sys.stdout.write(
            f"\n{expressions[0]}\n  here  {ours}\n  flink {sorted({str(row[0]) for row in theirs.values()})[:4]}\n"
        )
        return
    for number, one in enumerate(expressions):
        other = [row for row in sorted(theirs) if not is_same(ours[row][number], theirs[row][number])]
        counts["different" if other else "agreed"] += 1
        if other:
            shown = [(row, ours[row][number], theirs[row][number]) for row in other[:3]]
            sys.stdout.write(f"\n{one}\n  (row, here, Flink) {str(shown)[:400]}\n")


def main() -> int:
    """Ask what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flink", metavar="PYTHON", required=True)
    parser.add_argument("--expressions", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first expression")
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    here, there = Here(), There(given.flink)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for first in range(given.first, given.expressions, EXPRESSIONS_OF_A_QUERY):
            last = min(first + EXPRESSIONS_OF_A_QUERY, given.expressions)
            world = first // (EXPRESSIONS_OF_A_QUERY * QUERIES_OF_A_WORLD)
            folder = Path(place) / f"world-{world}"
            if not folder.exists():
                folder.mkdir()
                pq.write_table(table_of_values(f"{given.seed}/{world}"), folder / "rows.parquet")
                options = f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'parquet'"
                for who in (here, there):
                    who.create(f"CREATE TEMPORARY TABLE t ({COLUMNS}) WITH ({options})")
            compare(
                [ExpressionGenerator(f"{given.seed}/{n}").expression() for n in range(first, last)], here, there, counts
            )
            sys.stdout.flush()
    sys.stdout.write(f"\n{', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}\n")
    return 1 if counts["different"] or counts["only by Flink"] else 0


if __name__ == "__main__":
    sys.exit(main())
