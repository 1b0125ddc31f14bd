"""How long values take to read whose keys all hash alike, beside as many bytes of keys that do not.

::

    python tests/bench/keys_of_one_hash.py

Prints seconds, and the ratio to honest keys, for 4 MB: with a hundred keys of one hash (allowed), with a thousand
(allowed were there no limit), and until a thousand are refused.
"""

from __future__ import annotations

import random
import time

from headrace.state.errors import CheckpointCorruptError
from headrace.state.reading import plain_values
from headrace.state.values import packed as packed_values

NUM_PARTS = 4_000_000


def keys(number: int, *, alike: bool) -> list[tuple[int, ...]]:
    """Tuples of -1 and -2, which all hash alike, different in their last parts; or of other numbers."""
    size = NUM_PARTS // number
    begin = [-1 if alike else 3] * (size - 12)
    return [(*begin, *(-1 - (i >> bit & 1) if alike else i for bit in range(12))) for i in range(number)]


def seconds(data: bytes) -> float:
    """How long it takes to read a value, or to refuse it."""
    begin = time.perf_counter()
    try:
        packed_values.decode_packed(data)
    except CheckpointCorruptError as error:
        print(f"    {error.message}")
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    rng = random.Random(1)
    for number in (100, 1_000):
        found = keys(number, alike=True)
        rng.shuffle(found)
        data = packed_values.encode_packed(dict.fromkeys(found, 1))
        honest = seconds(packed_values.encode_packed(dict.fromkeys(keys(number, alike=False), 1)))
        limit, plain_values.MAX_FEW = plain_values.MAX_FEW, 1 << 30
        unlimited = seconds(data)
        plain_values.MAX_FEW = limit
        limited = seconds(data)
        print(
            f"{number:5,} keys of one hash, {len(data):,} bytes: {unlimited:.2f} s without a limit "
            f"({unlimited / honest:.0f} times honest keys), {limited:.2f} s with it ({limited / honest:.1f} times)"
        )


if __name__ == "__main__":
    main()
