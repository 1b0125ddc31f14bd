"""A job whose checkpoints, leases and output are in S3, while processes die: ``python tests/actors/s3_soak.py``.

``--faults 30`` kills as `store_kit` says, the S3 server among others; at the end pyarrow's own client reads what is
public: every window must be there once, with its exact count. Prints one line per figure. Needs Java, and S3Proxy or
Maven (``tests/s3_server.py``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyarrow import fs
from s3_server import S3Server, fetched_jars
from store_kit import into_files, run, soak
from zookeeper_server import java


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    executable = java()
    assert executable is not None, "there is no Java"
    directory = Path(tempfile.mkdtemp(prefix="headrace-s3-soak-", dir="/tmp"))
    server = S3Server(fetched_jars(), executable, directory)
    os.environ.update(server.variables)
    bucket = server.make_bucket()

    def read() -> list[str]:
        store = fs.S3FileSystem(endpoint_override=server.endpoint, region="us-east-1")
        found = store.get_file_info(fs.FileSelector(f"{bucket}/out"))
        names = [file.path for file in found if file.base_name.startswith("part-")]
        return [line for name in names for line in store.open_input_stream(name).read().decode().splitlines()]

    try:
        server.start()
        return soak(
            options.faults,
            options.seed,
            server,
            f"s3://{bucket}",
            read,
            options.state_backend,
            into_files(directory),
            directory,
        )
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run("S3", campaign))
