"""A job whose checkpoints, leases and output are in HDFS, while processes die: ``python tests/actors/hdfs_soak.py``.

``--faults 30`` kills as `store_kit` says, HDFS among others; at the end Hadoop's own shell reads what is public: every
window must be there once, with its exact count. Prints one line per figure. Needs Java, and Hadoop's small cluster or
Maven (``tests/hdfs_server.py``).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hdfs_server import HdfsServer, fetched_jars
from store_kit import into_files, run, soak
from zookeeper_server import java


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    executable = java()
    assert executable is not None, "there is no Java"
    directory = Path(tempfile.mkdtemp(prefix="headrace-hdfs-soak-", dir="/tmp"))
    server = HdfsServer(fetched_jars(), executable, directory)

    def read() -> list[str]:
        return server.seen_by_java("-cat", "/soak/out/part-*").splitlines()

    try:
        server.start()
        return soak(
            options.faults,
            options.seed,
            server,
            f"{server.uri}/soak",
            read,
            options.state_backend,
            into_files(directory),
            directory,
        )
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run("HDFS", campaign))
