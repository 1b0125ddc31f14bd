"""What windows and joins by a condition hold on the local executor: with room for everything, and with little.

Each run is a process of its own, which reads a Parquet file, and whose anonymous memory is looked at all the while; the
largest is printed, with what lay on disk. With a limit it must not follow the number of records that come out.

    python tests/bench/dataset_memory.py [--rows 400000] [--memory-mb 100]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace import ExecutionEnvironment, col
from headrace import functions as f

PIECE = 100_000


def write(path: Path, rows: int) -> None:
    """Records of about 50 bytes."""
    random = np.random.default_rng(1)
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, PIECE):
            n = min(PIECE, rows - start)
            k, t, v = random.integers(0, 100, n), random.integers(0, 10**9, n), random.integers(0, 1_000, n)
            writer.write_table(
                pa.table({"k": k, "t": t, "v": v, "s": [f"record {i:020d}" for i in range(start, start + n)]})
            )


def anonymous_mb() -> int:
    """The memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) >> 10


def program(kind: str, env: ExecutionEnvironment, path: str) -> Any:
    data = env.read_parquet(path)
    if kind == "over":
        return data.over("k", "t", total=f.sum("v"), number=f.row_number(), before=f.lag("v"))
    bands = env.from_arrow(pa.table({"low": range(0, 1_000, 10), "high": range(400, 1_400, 10)}))
    return data.join_where(bands, (col("v") >= col("low")) & (col("v") < col("high")))


def measure(kind: str, path: str, memory_mb: int) -> None:
    options = {"memory_bytes": memory_mb << 20} if memory_mb else {}
    env = ExecutionEnvironment.get_execution_environment("local", 16, **options)
    seen = [anonymous_mb()]
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.02):
            seen.append(anonymous_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    count = program(kind, env, path).count()
    seconds = time.perf_counter() - started
    has_ended.set()
    watcher.join()
    spilled = env.get_last_job_execution_result().statistics.get("spilled_bytes", 0) >> 20
    print(f"{count:12,d} {seconds:9.1f} {max(seen) - seen[0]:9d} {spilled:9d}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--memory-mb", type=int, default=100)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, path, memory = options.measure
        measure(kind, path, int(memory))
        return
    print("verb      input     limit      output   seconds   peak MB   disk MB", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("over", "where"):
            for rows in (options.rows // 4, options.rows):
                path = Path(folder) / f"{rows}.parquet"
                if not path.exists():
                    write(path, rows)
                for memory in (0, options.memory_mb):
                    print(f"{kind:5} {rows:9,d} {memory or 'none':>9}", end=" ", flush=True)
                    command = [sys.executable, __file__, "--measure", kind, str(path), str(memory)]
                    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
