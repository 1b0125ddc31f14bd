"""What a file sink's commit costs on S3: ``python tests/bench/object_commits.py --parts 20``.

Two ways, beside each other against one server, part after part: an object that is staged and renamed, as the sink does
it, and an upload in parts that is begun, filled and completed, with boto3 (``pip install boto3``). Prints seconds per
part before the barrier and at the commit, and how the two ways compare, each pair of figures taken in turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from s3_server import S3Server, fetched_jars
from zookeeper_server import java

from headrace.state.files.filesystem import FileSystem, filesystem_for

SIZES = {"64 KiB": 64 << 10, "8 MiB": 8 << 20}


def took(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def staged(fs: FileSystem, root: str, number: int, data: bytes) -> tuple[float, float]:
    def stage() -> None:
        with fs.open_output(f"{root}/staged-{number}") as file:
            file.write(data)

    before, _ = took(stage)
    after, _ = took(lambda: fs.rename(f"{root}/staged-{number}", f"{root}/public-{number}"))
    return before, after


def uploaded(client: Any, bucket: str, number: int, data: bytes) -> tuple[float, float]:
    place = {"Bucket": bucket, "Key": f"uploaded-{number}"}

    def stage() -> tuple[str, str]:
        upload = client.create_multipart_upload(**place)["UploadId"]
        return upload, client.upload_part(**place, UploadId=upload, PartNumber=1, Body=data)["ETag"]

    before, (upload, tag) = took(stage)
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    after, _ = took(lambda: client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=parts))
    return before, after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=20)
    options = parser.parse_args()
    import boto3

    executable = java()
    assert executable is not None, "there is no Java"
    directory = Path(tempfile.mkdtemp(prefix="headrace-s3-bench-", dir="/tmp"))
    server = S3Server(fetched_jars(), executable, directory)
    os.environ.update(server.variables)
    server.start()
    try:
        bucket = server.make_bucket()
        fs, root = filesystem_for(f"s3://{bucket}/out")
        client = boto3.client("s3")
        for name, size in SIZES.items():
            data = os.urandom(size)
            ours, theirs = [], []
            for number in range(options.parts + 2):
                ours.append(staged(fs, root, number, data))
                theirs.append(uploaded(client, bucket, number, data))
            for step, label in ((0, "before the barrier"), (1, "commit")):
                one, other = (median(pair[step] for pair in pairs[2:]) for pairs in (ours, theirs))
                print(f"{name}, {label}: staged {one:.4f} s, upload {other:.4f} s, ratio {one / other:.2f}")
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
