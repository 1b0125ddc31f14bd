"""State larger than memory: memory over time while many keys are written, and the cost of incremental checkpoints.

``python tests/bench/large_state.py`` runs small sizes in about two minutes; the full ones::

    python tests/bench/large_state.py --keys 20000000 --memory-mb 512 --state-gb 0.1 1 4

One line per figure, as soon as it is known. The backend runs in this process, without a cluster: what is measured is
the state, not the streams. Memory is the resident set of the process, which includes everything, also Python itself
(printed first). Checkpoints go to a folder on the same disk; each changes the same number of keys, drawn at random.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from headrace.state.backends.choice import make_keyed_backend
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keys.key_groups import KeyGroupRange

OPERATOR = OperatorId("large")
ATTEMPT = ExecutionAttemptId(1, 0, VertexId("large"), 0)
VALUE_BYTES = 100
ROW_BYTES = VALUE_BYTES + 16
"""A value and its key, as files hold them before compression; values are random, so that it achieves nothing."""


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def folder_mb(folder: str) -> float:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 2**20


def make_backend(memory_mb: int, folder: str):
    return make_keyed_backend(
        "rocksdb",
        OPERATOR,
        0,
        KeyGroupRange(0, 127),
        128,
        lambda: 0,
        slot=folder,
        managed_memory_bytes=memory_mb << 20,
        local_directory=folder,
    )


def fill(backend, state, keys) -> None:
    value = random.Random(1).randbytes(VALUE_BYTES + (1 << 20))
    for key in keys:
        backend.current_key = key
        start = key * 8_191 % (1 << 20)
        state.update(value[start : start + VALUE_BYTES])


def measure_memory(num_keys: int, memory_mb: int, folder: str) -> None:
    """Write every key once, then read and write random ones."""
    print(f"memory, before: {resident_mb():.0f} MB resident; {memory_mb} MB managed, {num_keys:,} keys to come")
    backend = make_backend(memory_mb, folder)
    state = backend.handle(ValueStateDescriptor("value"))
    started, peak, portion = time.perf_counter(), 0.0, max(num_keys // 10, 1)
    for first in range(0, num_keys, portion):
        fill(backend, state, range(first, min(first + portion, num_keys)))
        peak = max(peak, resident_mb())
        rate = (first + portion) / (time.perf_counter() - started)
        disk = folder_mb(folder)
        print(
            f"memory, {first + portion:,} keys written: {resident_mb():.0f} MB resident, {disk:,.0f} MB on disk, "
            f"{rate:,.0f}/s"
        )
    rng, num_reads = random.Random(2), min(num_keys, 500_000)
    for part in range(5):
        started = time.perf_counter()
        for _ in range(num_reads // 5):
            backend.current_key = rng.randrange(num_keys)
            state.update(state.value())
        peak = max(peak, resident_mb())
        rate = num_reads / 5 / (time.perf_counter() - started)
        print(f"memory, random read and write {part + 1} of 5: {resident_mb():.0f} MB resident, {rate:,.0f}/s")
    print(f"memory, peak: {peak:.0f} MB resident")
    backend.close()


def take_checkpoint(backend, storage: CheckpointStorage, checkpoint_id: int) -> tuple[float, float, int, int]:
    """Gives the synchronous part's and all of its milliseconds, bytes uploaded, bytes of state."""
    started = time.perf_counter()
    parts = backend.snapshot(checkpoint_id - 1)
    sync_ms = (time.perf_counter() - started) * 1_000
    files = [storage.data_files.write_part(checkpoint_id, ATTEMPT, OPERATOR, part) for part in parts]
    backend.snapshot_stored(checkpoint_id, files)
    total_ms = (time.perf_counter() - started) * 1_000
    uploaded = sum(file.size for file in files if file.is_made_for(checkpoint_id))
    return sync_ms, total_ms, uploaded, sum(file.size for file in files)


MAX_SETTLING = 40
SETTLED_BYTES = 10_000_000
"""Checkpoints right after the bulk load do not count, until one has uploaded so little: the database still compacts
what was loaded, and every sorted file that comes of it is a new one to upload."""


def measure_checkpoints(state_gb: float, memory_mb: int, num_changes: int, num_checkpoints: int, folder: str) -> None:
    """Fill up, take one checkpoint of everything, then some of the same number of changes each."""
    backend = make_backend(memory_mb, f"{folder}/local")
    state = backend.handle(ValueStateDescriptor("value"))
    num_keys = int(state_gb * 1e9 / ROW_BYTES)
    fill(backend, state, range(num_keys))
    storage = CheckpointStorage.open(f"{folder}/checkpoints", "job")
    sync_ms, total_ms, uploaded, size = take_checkpoint(backend, storage, 1)
    print(
        f"checkpoint, {state_gb} GB, first: {total_ms:,.0f} ms ({sync_ms:,.0f} ms synchronous), "
        f"{uploaded / 1e6:,.1f} MB"
    )
    rng, rows = random.Random(3), []
    num_settling = MAX_SETTLING
    for checkpoint_id in range(2, MAX_SETTLING + num_checkpoints + 2):
        fill(backend, state, (rng.randrange(num_keys) for _ in range(num_changes)))
        rows.append(take_checkpoint(backend, storage, checkpoint_id))
        sync_ms, total_ms, uploaded, size = rows[-1]
        print(
            f"checkpoint, {state_gb} GB, {num_changes:,} changes: {total_ms:,.0f} ms ({sync_ms:,.0f} ms synchronous), "
            f"{uploaded / 1e6:,.1f} MB uploaded of {size / 1e6:,.0f} MB"
        )
        if num_settling == MAX_SETTLING and uploaded < SETTLED_BYTES:
            num_settling = len(rows)
        if len(rows) == num_settling + num_checkpoints:
            break
    rows = rows[num_settling:]
    print(f"checkpoint, {state_gb} GB: the first {num_settling} after the bulk load do not count")
    middle = [sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True)]
    mean = sum(row[2] for row in rows) / len(rows)
    print(
        f"checkpoint, {state_gb} GB, medians: {middle[1]:,.0f} ms ({middle[0]:,.0f} ms synchronous), "
        f"{middle[2] / 1e6:,.1f} MB uploaded; {mean / 1e6:,.1f} MB in the mean"
    )
    backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="for the memory figures; 0 for none")
    parser.add_argument("--memory-mb", type=int, default=128, help="managed memory")
    parser.add_argument("--state-gb", type=float, nargs="*", default=[0.02, 0.1], help="for the checkpoint figures")
    parser.add_argument("--changes", type=int, default=20_000, help="keys changed between two checkpoints")
    parser.add_argument("--checkpoints", type=int, default=10, help="how many are taken of each size")
    parser.add_argument("--directory", default=None, help="where state and checkpoints go; removed afterwards")
    options = parser.parse_args()
    sizes = ([0.0] if options.keys else []) + options.state_gb
    for size in sizes:
        folder = tempfile.mkdtemp(prefix="large-state-", dir=options.directory)
        try:
            if size == 0.0:
                measure_memory(options.keys, options.memory_mb, folder)
            else:
                measure_checkpoints(size, options.memory_mb, options.changes, options.checkpoints, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
