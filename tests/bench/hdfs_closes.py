"""What a small file costs on HDFS: ``python tests/bench/hdfs_closes.py``.

Writes small files, one after another and eight at a time, and prints seconds per file; beside them what a rename and a
read of such a file take.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hdfs_server import HdfsServer, fetched_jars
from zookeeper_server import java

from headrace.state.files.filesystem import filesystem_for

NUM_FILES = 24
AT_A_TIME = 8


def seconds_each(work: Callable[[int], Any], threads: int = 1) -> float:
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(NUM_FILES)))
    return (time.perf_counter() - start) / NUM_FILES


def main() -> int:
    executable = java()
    assert executable is not None, "there is no Java"
    directory = Path(tempfile.mkdtemp(prefix="headrace-hdfs-bench-", dir="/tmp"))
    server = HdfsServer(fetched_jars(), executable, directory)
    server.start()
    try:
        fs, root = filesystem_for(f"{server.uri}/bench")
        one = seconds_each(lambda n: fs.write_bytes(f"{root}/{n}", b"x" * 100))
        many = seconds_each(lambda n: fs.write_bytes(f"{root}/many-{n}", b"x" * 100), AT_A_TIME)
        read = seconds_each(lambda n: fs.read_bytes(f"{root}/{n}"))
        renamed = seconds_each(lambda n: fs.rename(f"{root}/{n}", f"{root}/renamed-{n}"))
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(f"written one after another: {one:.3f} s each; {AT_A_TIME} at a time: {many:.3f} s, ratio {one / many:.1f}")
    print(f"renamed: {renamed:.3f} s each; read: {read:.3f} s each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
