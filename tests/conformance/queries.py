"""Generated queries against DuckDB: ``python tests/conformance/queries.py --queries 5000 --seed 1``.

Each query runs in batch mode, and over streams whose rows come a few at a time, at parallelism 3 on the simulator; the
table that the changes come to is compared with DuckDB's answer. Every tenth run also asks whether the rows for which a
condition is true, those for which it is false and those for which it is NULL are all rows.

Prints how many agreed, how many were refused by name, and every query with another answer: with its number, it can be
run again alone (``--only 17``).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from query_comparison import broken_thirds, mismatches


def main() -> int:
    """Run the queries that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the number of the first query")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", type=int, help="the number of one query")
    parser.add_argument("--modes", default="batch,streaming")
    given = parser.parse_args()
    numbers = range(given.first, given.queries) if given.only is None else [given.only]
    counts: Counter[str] = Counter()
    for number in numbers:
        seed = f"{given.seed}/{number}"
        found = list(mismatches(seed, tuple(given.modes.split(","))))
        if number % 10 == 0:
            found += broken_thirds(seed)
        counts["queries"] += 1
        counts["agreed"] += not found
        for query, mode, answer, expected in found:
            is_refused = isinstance(answer, str) and answer.startswith("refused")
            counts["refused" if is_refused else "wrong"] += 1
            text = f"gives    {answer!s:.600}\n  expected {expected!s:.600}"
            sys.stdout.write(f"\n{number} ({mode})\n  {query}\n  {text}\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{', '.join(f'{name} {count}' for name, count in counts.items())}\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
