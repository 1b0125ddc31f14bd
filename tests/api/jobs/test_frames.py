"""Numbers of a job as data frames: each figure against what it is of, a job's own, none, and no pandas."""

from __future__ import annotations

import sys

import pytest

from headrace import StreamExecutionEnvironment
from headrace.engine.errors import ConfigurationError
from headrace.engine.protocol.details import CheckpointView, TaskAcknowledgement
from headrace.engine.protocol.states import CheckpointStatus
from headrace.engine.protocol.views import VertexView
from headrace.jobs.frames import checkpoint_frame, metrics_frame

TASKS = (
    TaskAcknowledgement("source", 0, 1_050, 100, 10, 1, 5.0, 2.0, 30.0, False),
    TaskAcknowledgement("sink", 1, 1_070, 200, 20, 2, 4.0, 3.0, 20.0, True),
)
DONE = CheckpointView(7, CheckpointStatus.COMPLETED, False, False, 1_000, 1_080, 2, TASKS, path="/there/chk-7")
FAILED = CheckpointView(8, CheckpointStatus.FAILED, True, False, 2_000, 2_500, 2, TASKS[:1], reason="it took too long")


def test_a_row_says_what_the_subtasks_say():
    pytest.importorskip("pandas")
    frame = checkpoint_frame([FAILED, DONE])
    assert list(frame.index) == [7, 8], "oldest first"
    done, failed = frame.loc[7], frame.loc[8]
    assert done["triggered"].isoformat() == "1970-01-01T00:00:01+00:00"
    assert [done[name] for name in ("duration_ms", "num_subtasks", "num_acknowledged")] == [80, 2, 2]
    assert [done[name] for name in ("state_bytes", "uploaded_bytes", "persisted_bytes")] == [300, 30, 3]
    assert [done[name] for name in ("alignment_ms", "sync_ms", "async_ms")] == [5.0, 3.0, 30.0]
    assert [done[name] for name in ("num_unaligned", "path", "reason")] == [1, "/there/chk-7", ""]
    assert (failed["status"], failed["is_savepoint"], failed["reason"]) == ("FAILED", True, "it took too long")
    assert failed["state_bytes"] == 100


def test_without_checkpoints_the_columns_are_the_same():
    pytest.importorskip("pandas")
    empty, full = checkpoint_frame([]), checkpoint_frame([DONE])
    assert len(empty) == 0
    assert dict(empty.dtypes) == dict(full.dtypes)
    assert empty.index.name == full.index.name == "checkpoint_id"


def test_a_client_gives_those_of_its_job(tmp_path):
    pytest.importorskip("pandas")
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    env.enable_checkpointing(100, directory=str(tmp_path / "checkpoints"))
    env.from_sequence(1, 10**12).key_by(lambda n: n % 7).map(lambda n: n).filter(lambda n: n < 0).print()
    client = env.execute_async("counts")
    path = client.trigger_savepoint(str(tmp_path / "savepoints"))
    client.trigger_checkpoint()
    frame, metrics = client.checkpoints(), client.metrics()
    client.cancel()
    env.close()
    (savepoint,) = [row for _, row in frame[frame["is_savepoint"]].iterrows()]
    assert (savepoint["status"], savepoint["path"]) == ("COMPLETED", path)
    assert savepoint["num_acknowledged"] == savepoint["num_subtasks"] > 0
    assert frame.index.is_monotonic_increasing
    assert (frame["status"] == "COMPLETED").sum() >= 2
    assert (frame["state_bytes"] > 0).all()
    assert list(metrics["operators"]) == ["Source: sequence 1 to 1000000000000", "map -> filter -> Sink: print"]
    assert list(metrics["parallelism"]) == [2, 2]


def test_without_pandas_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match="pandas, which is not installed"):
        checkpoint_frame([DONE])


def test_a_row_of_metrics_says_what_the_operators_have_reported():
    pandas = pytest.importorskip("pandas")
    read = VertexView("a", "read", 2, {}, 5, 4, 2.5, 2.0, 0.5, 0.25, 0.25, 1_000)
    late = VertexView("b", "late", 1, {}, 4, 0, 2.0, 0.0, 0.0, 1.0, 0.0, 2**63 - 1, {"num_late_records_dropped": 3.0})
    frame = metrics_frame([read, late])
    assert list(frame.index) == ["a", "b"]
    assert frame.loc["a"][["records_in", "records_out", "busy", "idle"]].tolist() == [5, 4, 0.5, 0.25]
    assert frame.loc["a"]["watermark"] == pandas.Timestamp(1, unit="s", tz="UTC")
    assert pandas.isna(frame.loc["b"]["watermark"]), "its input has ended"
    assert pandas.isna(frame.loc["a"]["num_late_records_dropped"])
    assert frame.loc["b"]["num_late_records_dropped"] == 3
