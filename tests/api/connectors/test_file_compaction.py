"""Records of a file sink that wait for more: few files, every record once, whatever dies in between.

Families: contract of the wait (size, time, inactivity, end), recovery (crashes and other parallelisms by property,
against the numbers that were written), state (columns, rows, damage), and a job that is killed.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from file_sink_store import MAKERS, Store, rows
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileCompaction, FileSink, FileSource
from headrace.connectors.files.waiting import WaitingRecords
from headrace.engine.columns.records import Batch
from headrace.engine.errors import CheckpointCorruptError, ConfigurationError
from headrace.state.files.memory import MemoryFileSystem
from headrace.table import TableEnvironment
from headrace.table.connectors.contract import Options

LARGE = FileCompaction(1 << 30)


def num_files(store):
    return len([path for path in store.fs.files if not path.startswith("out/.")])


def make(reading, sink_job, kind="jsonl", compaction=LARGE, parallelism=1, **options):
    store = Store(reading, kind, compaction=compaction, **options)
    return store, sink_job(store.sink, parallelism)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_records_of_several_checkpoints_are_one_file(reading, sink_job, kind):
    store, job = make(reading, sink_job, kind)
    job.start()
    for number in range(1, 5):
        job.write(rows(number))
        job.checkpoint(number)
    assert store.visible() == []
    assert store.staged == [path for path in store.staged if "claim-" in path]
    job.end_input()
    job.checkpoint(5)
    job.finish()
    assert store.visible() == [1, 2, 3, 4]
    assert num_files(store) == 1


@pytest.mark.parametrize("name", ["rollover_interval", "inactivity_interval"])
def test_records_wait_for_so_long(reading, sink_job, name):
    store, job = make(reading, sink_job, compaction=dataclasses.replace(LARGE, **{name: "10 s"}))
    job.start()
    for number in (1, 2):
        job.write(rows(number))
        job.checkpoint(number)
        job.now_ms += 6_000
    job.checkpoint(3)
    assert store.visible() == ([1, 2] if name == "rollover_interval" else [])
    job.now_ms += 6_000
    job.checkpoint(4)
    assert store.visible() == [1, 2]


def test_enough_records_are_a_file_at_the_next_checkpoint(reading, sink_job):
    batch = Batch.of_rows(rows(1, 2, 3))
    store, job = make(reading, sink_job, compaction=FileCompaction(batch.nbytes + 1))
    job.start()
    job.write(batch)
    job.checkpoint(1)
    assert store.visible() == []
    job.write(rows(4))
    job.checkpoint(2)
    assert store.visible() == [1, 2, 3, 4]


def test_many_folders_with_a_little_each_do_not_wait_without_bound(reading, sink_job):
    nbytes = Batch.of_columns(pa.RecordBatch.from_pylist(rows(1))).nbytes
    store, job = make(reading, sink_job, "parquet", FileCompaction(3 * nbytes), partition_by="f")
    job.start()
    for number in range(60):
        job.write([{"i": number, "f": number}])
        waiting = sum(waiting.num_bytes for waiting in job.operators[0]._writer._waiting._folders.values())
        assert waiting <= 4 * 3 * nbytes
    job.checkpoint(1)
    assert 40 <= num_files(store) < 60


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["checkpoint", "aborted", "unheard"]), st.just(0)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 9)),
    ),
    max_size=25,
)


WAITS_THROUGH_RESTARTS = [
    *(("write", 0), ("write", 1), ("checkpoint", 0), ("restart", 3)),
    *(("write", 2), ("checkpoint", 0), ("restart", 1)),
]


@example(WAITS_THROUGH_RESTARTS, "jsonl", 1 << 30, True)
@example(WAITS_THROUGH_RESTARTS, "parquet", 1 << 30, False)
@given(STEPS, st.sampled_from(["jsonl", "parquet"]), st.sampled_from([300, 1 << 30]), st.booleans())
def test_every_record_comes_once(reading, sink_job, steps, kind, file_size, keeps_compaction):
    """What was written before the newest complete checkpoint, or behind the last restart."""
    store, job = make(reading, sink_job, kind, FileCompaction(file_size, "20 s"), 2)
    job.start()
    number = checkpoint_id = 0
    written, complete = [], []
    for what, value in steps:
        if what == "write":
            job.write(rows(number, number + 1), value % job.parallelism)
            written += [number, number + 1]
            number += 2
        elif what == "restart":
            job.start(value)
            written = list(complete)
        elif what == "wait":
            job.now_ms += value * 1_000
        else:
            checkpoint_id += 1
            job.checkpoint(checkpoint_id, completes=what != "aborted", notifies=what != "unheard")
            complete = complete if what == "aborted" else list(written)
        assert not set(store.visible()) - set(complete)
    if not keeps_compaction:
        job.sink = MAKERS[kind]("memory://sink/out")
        job.start()
        written = list(complete)
    job.end_input()
    job.checkpoint(checkpoint_id + 1)
    job.finish()
    assert sorted(store.visible()) == written


def test_what_waits_is_stored_as_it_came():
    table = pa.RecordBatch.from_pylist([{"a": 1, "b": b"x"}])
    waiting = WaitingRecords(LARGE)
    columns = Batch.of_columns(table)
    for batch in (columns, columns, Batch.of_rows([(1, {2})]), Batch.of_columns(table.select(["a"]))):
        waiting.add("k=f", batch, 5)
    state = waiting.to_state()
    assert [element[:4] for element in state] == [("k=f", 5, 5, 2), ("k=f", 5, 5, 1), ("k=f", 5, 5, 1)]
    again = WaitingRecords(LARGE)
    again.restore(state)
    assert [row for batch in again.take("k=f") for row in batch.rows] == [
        {"a": 1, "b": b"x"}, {"a": 1, "b": b"x"}, (1, {2}), {"a": 1}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "element",
    [5, ("", 1, 1, 2, [1]), ("", 1, 1, 1, b"?"), ("", 1, 1, 1, None),
     *((folder, 1, 1, 1, [1]) for folder in ("../day=1", "day=1/../..", "/etc/day=1", "f", None))],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(element):
    with pytest.raises(CheckpointCorruptError):
        WaitingRecords(None).restore([element])


@pytest.mark.parametrize(
    ("options", "says"),
    [({"file_size": 0}, "file_size"), ({"rollover_interval": 0}, "rollover_interval"),
     ({"inactivity_interval": "0 s"}, "inactivity_interval")],
)  # fmt: skip
def test_options_are_checked(options, says):
    with pytest.raises(ConfigurationError, match=says):
        FileCompaction(**options)


def test_a_job_makes_few_files(tmp_path):
    MemoryFileSystem.forget("sink")
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    env.enable_checkpointing("20 ms", directory=str(tmp_path / "checkpoints"))
    numbers = env.from_sequence(1, 20_000).map(lambda n: {"n": n})
    numbers.sink_to(FileSink.parquet(tmp_path / "out", compaction=FileCompaction()))
    env.execute()
    assert len(list((tmp_path / "out").glob("part-*"))) <= 2
    env = StreamExecutionEnvironment.get_execution_environment("local")
    found = env.from_source(FileSource.parquet(tmp_path / "out")).execute_and_collect()
    assert sorted(row["n"] for row in found) == list(range(1, 20_001))


def test_sql_says_the_same(tmp_path):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    t.execute_sql(f"""
        CREATE TABLE out (n BIGINT, f BIGINT) PARTITIONED BY (f)
        WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/out', 'format' = 'json', 'auto-compaction' = 'true',
              'compaction.file-size' = '1 MB', 'sink.rolling-policy.rollover-interval' = '10 min')
    """)
    t.execute_sql("INSERT INTO out VALUES (1, 1), (2, 1), (3, 2)")
    assert sorted(path.parent.name for path in (tmp_path / "out").rglob("part-*")) == ["f=1", "f=2"]


@pytest.mark.parametrize(
    ("text", "size"), [("16MB", 16 << 20), ("1 g", 1 << 30), ("5", 5), ("7 bytes", 7), ("2kb", 2 << 10)]
)
def test_sizes_are_flinks(text, size):
    assert Options.memory(text) == size


def test_a_size_of_no_unit_is_refused():
    with pytest.raises(ValueError, match="16MB"):
        Options.memory("16 miles")
