"""Generated queries over streams against Flink: ``python flink_queries.py --flink PYTHON --queries 1000``.

PYTHON is an interpreter that has apache-flink (2.3) and, among its jars, those that read Parquet
(``tests/bench/nexmark_on_flink.py`` says which). Flink runs each query over streams, one mini cluster for all; Headrace
runs it over streams at parallelism 2 on the simulator, under settings that must not change the answer (two phases,
split distinct aggregation, mini-batches, joins of many, a long time to live), and in batch mode. The tables that the
changes come to are compared. Where Flink's streams give something else, its batch mode is asked, too.

Every tenth query is run without an oracle, too: its rows cut into other pieces, at parallelism 1 and 3, and with and
without settings it gives the same, and the rows for which a condition is true, false and NULL are all rows.

Prints how many agreed, how many either engine refuses, and each query with another answer: with its number, it can be
run again alone (``--only 17``). Without ``--flink`` the two modes are compared with each other. ``--plain`` leaves the
settings as they are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from query_generator import random_settings
from stream_query_comparison import answer_of, broken_thirds, tables_for, unlike, write_streams
from stream_query_generator import StreamQueryGenerator

QUERIES_OF_A_WORLD = 20
WORLDS_OF_A_FLINK = 5
"""Flink loads classes for each query and keeps them: after some hundred it has no room for more."""
MODES = frozenset(("streaming", "batch"))


class Flink:
    """Another Python, which runs one query after the other."""

    def __init__(self, python: str) -> None:
        command = [python, str(Path(__file__).with_name("flink_answers.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **message: Any) -> Any:
        """Return what it answers: rows with how often each is there, or a text that says why there are none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                return answer.get("error") or Counter({tuple(row): count for row, count in answer.get("rows", ())})
        message_of_end = "Flink has ended"
        raise SystemExit(message_of_end)

    def end(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> int:
    """Run the queries that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first query")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", type=int, help="the number of one query")
    parser.add_argument("--flink", metavar="PYTHON")
    parser.add_argument("--plain", action="store_true", help="without settings")
    given = parser.parse_args()
    flink = None
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        known = None
        for number in range(given.first, given.queries) if given.only is None else [given.only]:
            world = f"{given.seed}/{number // QUERIES_OF_A_WORLD}"
            if world != known:
                folder = write_streams(Path(place) / f"world-{number // QUERIES_OF_A_WORLD}", world)
                is_fresh = known is None or number // QUERIES_OF_A_WORLD % WORLDS_OF_A_FLINK == 0
                known = world
                if given.flink and is_fresh:
                    if flink is not None:
                        flink.end()
                    flink = Flink(given.flink)
                if flink is not None:
                    flink.ask(tables=tables_for(folder))
            query = StreamQueryGenerator(f"{given.seed}/{number}").query()
            settings = {} if given.plain else random_settings(f"{given.seed}/{number}")
            compare(number, query, folder, flink, counts, settings)
            if number % 10 == 0:
                look_without_oracle(number, query, folder, world, counts)
    sys.stdout.write(f"\n{', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}\n")
    return 1 if counts["different"] else 0


def look_without_oracle(number: int, query: str, folder: Path, world: str, counts: Counter[str]) -> None:
    """Tell of a query whose answer depends on what it must not depend on."""
    other = write_streams(folder.with_name(f"{folder.name}-cut"), world, pieces=number + 1)
    found = unlike(query, [folder, other], f"{world} {number}") | broken_thirds(folder, f"{world} {number}")
    counts["without oracle"] += 1
    counts["different"] += bool(found)
    for way, answer in found.items():
        sys.stdout.write(f"\n{number}: {query}\n  {way}: {answer!s:.600}\n")
    sys.stdout.flush()


def compare(
    number: int, query: str, folder: Path, flink: Flink | None, counts: Counter[str], settings: dict[str, str]
) -> None:
    """Ask everybody, and tell of a query with different answers, or without one."""
    answers = {
        "batch": answer_of(query, folder, "batch"),
        "streaming": answer_of(query, folder, "streaming", settings=settings),
    }
    if flink is not None:
        answers["flink"] = flink.ask(query=query, mode="streaming")
        if answers["flink"] != answers["streaming"]:
            answers["flink batch"] = flink.ask(query=query, mode="batch")
    rows = {who: answer for who, answer in answers.items() if not isinstance(answer, str)}
    counts["queries"] += 1
    for who in answers.keys() - rows.keys():
        counts[f"not by {who}"] += 1
    first = next(iter(rows.values()), None)
    is_same = all(answer == first for answer in rows.values())
    is_flinks = not is_same and "flink batch" in rows and all(rows.get(who) == rows["flink batch"] for who in MODES)
    if is_flinks:
        counts["as Flink's batch mode, and not its streams"] += 1
    elif is_same:
        counts["agreed" if rows.keys() >= MODES else "partly"] += 1
    else:
        counts["different"] += 1
    if is_same and len(rows) == len(answers):
        return
    sys.stdout.write(f"\n{number}: {query}\n  {settings}\n")
    for who, answer in answers.items():
        if isinstance(answer, str):
            sys.stdout.write(f"  {who}: {answer[:300]}\n")
        elif not is_same:
            other = next(other for other in rows.values() if other != answer)
            sys.stdout.write(f"  {who} alone: {str(answer - other)[:500]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
