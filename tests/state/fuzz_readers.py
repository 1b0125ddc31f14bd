"""Feeds damaged and hostile bytes to every reader of stored state, and counts the outcomes.

Every input is a seed (what is really stored, or a crafted attack) that was mutated: bits, bytes and numbers changed,
pieces cut out, doubled, spliced in from another seed; of structured data also fields, with hashes made good again. A
reader may accept an input or refuse it with one of our errors. Anything else is a finding: another exception, the death
of the process, a run of more than some seconds, memory beyond the limit, a pickle that was built. Each reader runs in a
child process under RLIMIT_AS; its current input lies in shared memory, so that a death can be told from its input, and
the parent kills a child that stands still.

::

    python tests/state/fuzz_readers.py                                  20,000 inputs for each reader
    python tests/state/fuzz_readers.py --inputs 1000000 --jobs 2        the long campaign of docs/reliability.md
    python tests/state/fuzz_readers.py --reader pickle --seed 7 --only 4711     one input again, in this process
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import faulthandler
import json
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parent))
if __name__ == "__main__":  # for Arrow, before it is imported: its allocator reserves addresses, as many as a child has
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"

import fuzz_seeds
import fuzz_sinks

from headrace.state.errors import HeadraceError

HANG_S = 10
"""An input that takes longer hangs."""

MEMORY_BYTES = 1 << 30
"""What a reader may take beyond what the process has when it begins: addresses, so also stacks of threads."""

_READERS = fuzz_seeds.READERS


@dataclass
class Tally:
    """What has come of the inputs of one reader."""

    reader: str
    num_inputs: int = 0
    num_accepted: int = 0
    refused: collections.Counter = field(default_factory=collections.Counter)
    crashes: list = field(default_factory=list)
    hangs: list = field(default_factory=list)
    unexpected: collections.Counter = field(default_factory=collections.Counter)
    examples: dict = field(default_factory=dict)
    unpickled: list = field(default_factory=list)
    peak_mib: int = 0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not (self.crashes or self.hangs or self.unexpected or self.unpickled)

    def add(self, other: dict) -> None:
        self.num_inputs += other["num_inputs"]
        self.num_accepted += other["num_accepted"]
        self.refused.update(other["refused"])
        self.unexpected.update(other["unexpected"])
        for site, index in other["examples"].items():
            self.examples.setdefault(site, index)
        self.unpickled += other["unpickled"]
        self.hangs += other["hangs"]
        self.peak_mib = max(self.peak_mib, other["peak_mib"])

    def __str__(self) -> str:
        rate = self.num_inputs / self.seconds if self.seconds else 0
        lines = [
            f"{self.reader:10} {self.num_inputs:>9,} inputs, {self.num_accepted:,} accepted, "
            f"{sum(self.refused.values()):,} refused, {len(self.crashes)} crashes, {len(self.hangs)} hangs, "
            f"{sum(self.unexpected.values())} unexpected, {len(self.unpickled)} unpickled, "
            f"+{self.peak_mib} MiB, {rate:,.0f}/s"
        ]
        lines += [f"    {count} x {site} (input {self.examples[site]})" for site, count in self.unexpected.items()]
        lines += [f"    crash of signal {number} at input {index}: {said}" for index, number, said in self.crashes[:10]]
        lines += [
            f"    {name} at input {index}" for name in ("hangs", "unpickled") for index in getattr(self, name)[:10]
        ]
        return "\n".join(lines)


class Hang(BaseException):
    """An input has taken too long."""


def fuzz(reader: str, num_inputs: int, seed: int, *, first: int = 0, chunk: int = 5_000) -> Tally:
    """Feed a reader with inputs ``first`` to ``first + num_inputs`` of a seed."""
    tally, started, index, end = Tally(reader), time.monotonic(), first, first + num_inputs
    shared = mmap.mmap(-1, 16)
    while index < end:
        upto = min(end, index + chunk)
        with tempfile.TemporaryFile() as errors:
            result, status, reached = _in_child(reader, seed, index, upto, shared, errors)
            said = _end_of(errors)
        if result is not None:
            tally.add(result)
            index = upto
            continue
        # The child has died, or stood still, at this input; what it had counted before is counted again.
        if reached > index:
            with tempfile.TemporaryFile() as errors:
                before, _, _ = _in_child(reader, seed, index, reached, shared, errors)
            if before is not None:
                tally.add(before)
        tally.num_inputs += 1
        if status == signal.SIGKILL:
            tally.hangs.append(reached)
        else:
            tally.crashes.append((reached, status, said))
        index = reached + 1
        if len(tally.crashes) + len(tally.hangs) > 20:
            break
    tally.seconds = time.monotonic() - started
    return tally


def _end_of(errors: IO[bytes]) -> str:
    """The last line that a child has written there."""
    errors.seek(0)
    return (errors.read().decode(errors="replace").splitlines() or ["it said nothing"])[-1]


def _in_child(
    reader: str, seed: int, index: int, upto: int, shared: mmap.mmap, errors: IO[bytes]
) -> tuple[dict | None, int, int]:
    """Run some inputs in a child: what it counted, or None, what ended it, and how far it got."""
    source, sink = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(source)
        try:
            _limit_memory()
            os.dup2(errors.fileno(), 2)
            counted = _run(reader, seed, range(index, upto), shared)
            os.write(sink, json.dumps(counted).encode())
        finally:
            fuzz_sinks.clean_up()
            os._exit(0)
    os.close(sink)
    os.set_blocking(source, False)
    data, last, since = b"", -1, time.monotonic()
    while True:
        try:
            piece = os.read(source, 1 << 16)
            if not piece:
                break
            data += piece
        except BlockingIOError:
            reached = int.from_bytes(shared[:8], "little")
            if reached != last:
                last, since = reached, time.monotonic()
            elif time.monotonic() - since > 3 * HANG_S:
                os.kill(child, signal.SIGKILL)
            _wait_readable(source)
    os.close(source)
    _, status = os.waitpid(child, 0)
    return (json.loads(data) if data else None), os.WTERMSIG(status), int.from_bytes(shared[:8], "little")


def _wait_readable(source: int) -> None:
    import select

    select.select([source], [], [], 0.05)


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()


def _run(reader: str, seed: int, indices: range, shared: mmap.mmap) -> dict:
    target = _READERS[reader]()
    tally = Tally(reader)

    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in indices:
        shared[:8] = index.to_bytes(8, "little")
        rng = random.Random((seed << 40) ^ (hash_of(reader) << 24) ^ index)
        try:
            data = target.made(rng)
            signal.alarm(HANG_S)
            target.read(data)
            tally.num_accepted += 1
        except HeadraceError as error:
            tally.refused[type(error).__name__] += 1
        except Hang:
            tally.hangs.append(index)
        except Exception as error:
            site = f"{type(error).__name__}: {str(error)[:80]} at {_site(error)}"
            tally.unexpected[site] += 1
            tally.examples.setdefault(site, index)
        finally:
            signal.alarm(0)
        tally.num_inputs += 1
        if fuzz_seeds.was_unpickled():
            tally.unpickled.append(index)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "num_inputs": tally.num_inputs,
        "num_accepted": tally.num_accepted,
        "refused": tally.refused,
        "unexpected": tally.unexpected,
        "examples": tally.examples,
        "unpickled": tally.unpickled,
        "hangs": tally.hangs,
        "peak_mib": grown >> 10,
    }


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode().ljust(4, b"\0")[:4], "big") & 0xFFFF


def _site(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--reader", action="append", choices=sorted(_READERS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time")
    parser.add_argument("--only", type=int, metavar="INDEX", help="one input again, in this process")
    options = parser.parse_args()
    readers = options.reader or sorted(_READERS)
    if options.only is not None:
        target = _READERS[readers[0]]()
        data = target.made(random.Random((options.seed << 40) ^ (hash_of(readers[0]) << 24) ^ options.only))
        sys.stdout.write(f"{data!r:.2000}\n")
        sys.stdout.flush()
        target.read(data)
        return 0
    is_clean = True
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        inputs = [fuzz_seeds.share(reader, options.inputs) for reader in readers]
        seeds, firsts = [options.seed] * len(readers), [options.first] * len(readers)
        for tally in pool.map(lambda r, n, s, f: fuzz(r, n, s, first=f), readers, inputs, seeds, firsts):
            sys.stdout.write(f"{tally}\n")
            sys.stdout.flush()
            is_clean &= tally.is_clean
    return 0 if is_clean else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = scratch
        tempfile.tempdir = scratch
        status = main()
    sys.exit(status)
