"""Jobs from one table into another, on the local system.

Families: crash (a function and the committer fail, before and behind commits; each row comes once).
"""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest
from lake_tables import FORMATS

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.lake.committing import LakeCommitter

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = 600
NUMBERS = pa.schema([("n", pa.int64())])


def once(deaths, point):
    """Whether a point is passed for the first time."""
    path = Path(deaths, point)
    if path.exists():
        return False
    path.touch()
    return True


class FailingCommitter(LakeCommitter):
    deaths = ""

    def commit(self, committable):
        if once(self.deaths, "before"):
            message = "made to fail before a commit"
            raise OSError(message)
        super().commit(committable)
        if once(self.deaths, "behind"):
            message = "made to fail behind a commit"
            raise OSError(message)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_job_from_table_to_table_gives_each_row_once(kind, tmp_path):
    for name in ("from", "to", "deaths"):
        (tmp_path / name).mkdir()
    given, written = kind(tmp_path / "from"), kind(tmp_path / "to")
    deaths = str(tmp_path / "deaths")
    given.make(NUMBERS)
    for start in range(0, COUNT, 200):
        given.append(pa.table({"n": list(range(start, start + 200))}, schema=NUMBERS))

    def shaky(row):
        if row["n"] == 450 and once(deaths, "function"):
            message = "made to fail"
            raise OSError(message)
        return {"n": row["n"]}

    sink = written.sink(schema=NUMBERS)
    committer = FailingCommitter(sink._access, ())
    committer.deaths = deaths
    sink.create_global_committer = lambda: committer
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, max_batch_rows=5)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 10))
    env.enable_checkpointing(20, directory=tmp_path / "checkpoints")
    stream = env.from_source(given.source(), WatermarkStrategy.no_watermarks(), "numbers")
    stream.map(shaky).sink_to(sink).name("table")
    env.execute()
    assert sorted(path.name for path in Path(deaths).iterdir()) == ["before", "behind", "function"]
    assert sorted(written.rows().column("n").to_pylist()) == list(range(COUNT))
