"""Jobs whose files, checkpoints and output are in an object store; that of S3 is `tests/actors/s3_soak.py`.

Families: crash (a function fails while parts are staged and checkpoints are taken; each record comes once).
"""

from __future__ import annotations

import json
import sys

import cloudpickle
import pytest
from azure_server import azure_container, azure_server  # noqa: F401 - fixtures
from failing_functions import FailsAtFirst, some
from gcs_server import gcs_bucket, gcs_server  # noqa: F401 - fixtures

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink, FileSource
from headrace.state.files.filesystem import filesystem_for

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = 400


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("azure_container", marks=pytest.mark.lane("azure")),
        pytest.param("gcs_bucket", marks=pytest.mark.lane("gcs")),
    ],
)
def test_a_job_that_fails_gives_each_record_once(place, request, tmp_path):
    uri = request.getfixturevalue(place)
    fs, root = filesystem_for(uri)
    for part in range(4):
        lines = "".join(json.dumps({"n": n}) + "\n" for n in range(part, COUNT, 4))
        fs.write_bytes(f"{root}/in/{part}.jsonl", lines.encode())
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, max_batch_rows=5)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 10))
    env.enable_checkpointing(50, directory=f"{uri}/checkpoints")
    failing = FailsAtFirst(tmp_path, some(3, COUNT), lambda row: row["n"])
    stream = env.from_source(FileSource.json_lines(f"{uri}/in"), WatermarkStrategy.no_watermarks(), "numbers")
    counted = stream.key_by(lambda row: row["n"] % 7).map(failing)
    counted.sink_to(FileSink.json_lines(f"{uri}/out")).name("files")
    env.execute()
    assert len(list(tmp_path.glob("failed-*"))) == 3
    names = [path for path, _ in fs.list_files(f"{root}/out") if "/part-" in path and "/." not in path]
    written = [json.loads(line)["n"] for name in names for line in fs.read_bytes(name).splitlines()]
    assert sorted(written) == list(range(COUNT))
