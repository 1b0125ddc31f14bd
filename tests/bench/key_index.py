"""A key index that lives as long as an operator: random 64-bit keys to dense codes, by three kinds of loops.

``python tests/bench/key_index.py``. Each index is given the same batches; the first half of them mostly adds keys, the
second half mostly finds them. Printed are nanoseconds of CPU a row of both halves. Beside `KeyIndex`, whose loop is
plain and compiled, stand open addressing in vectorised NumPy, and pandas' ``factorize`` of each batch with a
dictionary of Python over the distinct keys (pandas has no index that lives on in its public interface).
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
from measure import describe_machine

from headrace.engine.tables.key_index import KeyIndex

BATCH = 65_536
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Compiled:
    def __init__(self) -> None:
        self.index = KeyIndex([pa.int64()])

    def codes_of(self, keys):
        return self.index.codes_of([pa.array(keys)])[0]


class Vectorised:
    """All rows look at a slot at once; those that find neither their key nor a free slot look at the next one."""

    def __init__(self) -> None:
        self.slots, self.keys, self.num = np.full(1 << 18, -1), np.zeros(1 << 17, np.int64), 0

    def codes_of(self, keys):
        if self.num + len(keys) > len(self.slots) // 2:
            held = self.keys[: self.num].copy()
            size = 4 * len(self.slots)
            self.slots, self.keys, self.num = np.full(size, -1), np.zeros(size // 2, np.int64), 0
            for start in range(0, len(held), BATCH):
                self._find(held[start : start + BATCH])
        return self._find(keys)

    def _find(self, keys):
        mask = np.uint64(len(self.slots) - 1)
        places = ((keys.view(np.uint64) * GOLDEN) >> np.uint64(20)) & mask
        codes, rows = np.empty(len(keys), np.int64), np.arange(len(keys))
        while len(rows):
            found = self.slots[places]
            free = np.flatnonzero(found < 0)
            self.slots[places[free]] = rows[free]  # of several rows one stays
            won = free[self.slots[places[free]] == rows[free]]
            new = np.arange(self.num, self.num + len(won))
            self.keys[new] = keys[rows[won]]
            self.slots[places[won]] = new
            self.num += len(won)
            found = self.slots[places]
            is_found = self.keys[found] == keys[rows]
            codes[rows[is_found]] = found[is_found]
            rows, places = rows[~is_found], (places[~is_found] + np.uint64(1)) & mask
        return codes


class Factorized:
    def __init__(self) -> None:
        self.codes: dict[int, int] = {}

    def codes_of(self, keys):
        local, distinct = pd.factorize(keys)
        codes = self.codes
        return np.array([codes.setdefault(key, len(codes)) for key in distinct.tolist()])[local]


def cost(index, batches) -> tuple[float, float]:
    """Nanoseconds of CPU a row, of both halves."""
    half = len(batches) // 2
    marks = [time.process_time()]
    for part in (batches[:half], batches[half:]):
        for batch in part:
            index.codes_of(batch)
        marks.append(time.process_time())
    return tuple((end - begin) / half / BATCH * 1e9 for begin, end in pairwise(marks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    print(describe_machine())
    rng = np.random.default_rng(7)
    for num_keys in arguments.keys:
        keys = rng.integers(-(2**63), 2**63 - 1, num_keys)
        batches = [keys[rng.integers(0, num_keys, BATCH)] for _ in range(arguments.batches)]
        wanted = Factorized()
        for index in (Compiled(), Vectorised()):
            for batch in batches[:3]:  # the same rows have the same codes
                given, codes = index.codes_of(batch), wanted.codes_of(batch)
                assert len(np.unique(given)) == len(np.unique(codes)) == len(np.unique((given << 32) | codes))
        line = "   ".join(
            f"{make.__name__.lower()} {adding:.1f} / {finding:.1f}"
            for make in (Compiled, Vectorised, Factorized)
            for adding, finding in [cost(make(), batches)]
        )
        print(f"{num_keys:>9,} keys, ns of CPU a row, adding / finding:   {line}")


if __name__ == "__main__":
    main()
