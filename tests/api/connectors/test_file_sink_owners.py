"""Who owns the directory of a file sink, what becomes of output that is there, and what a checkpoint may name.

Families: crash (every step of a takeover), contract (what is refused or moved), confinement (crafted committables).
"""

from __future__ import annotations

import contextlib

import pytest
from file_sink_store import MAKERS, Store, rows

from headrace.connectors.files import FileSink
from headrace.connectors.files.output import OutputDirectory
from headrace.engine.connectors.contract import SinkHistory
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    NewerOutputError,
    SinkError,
    SinkFencedError,
)


# ---------------------------------------------------------------------------------------------------- owners and output
def test_kills_between_all_steps_of_a_takeover_neither_lose_nor_double(reading, sink_job, crash_error):
    """One job goes on from another's checkpoint and dies at every file operation of its start; its zombies commit."""
    for parallelism in (1, 3):
        crash = 0
        while True:
            crash += 1
            store = Store(reading, max_part_rows=1)
            first = sink_job(store.sink, 2, job="first")
            first.start()
            for subtask in range(2):
                first.write(rows(subtask, subtask + 10), subtask)
            first.checkpoint(1, notifies=False)
            first.write(rows(5))
            sleeping = first.attempt
            first.holds_work = True
            sleeping.snapshot(2)
            sleeping.notify_complete(2)
            second = sink_job(store.sink, parallelism, job="second")
            second.take_snapshot_of(first, 1)
            met = 0

            def point(name, path, crash=crash):
                nonlocal met
                met += 1
                if met == crash:
                    message = f"{met}: {name} {path}"
                    raise crash_error(message)

            store.fs.fault = point
            try:
                second.start(checkpoint_id=1)
                died = False
            except crash_error:
                died = True
            store.fs.fault = None
            with contextlib.suppress(SinkError):
                sleeping.run_work()
            shown = set(store.visible())
            try:
                second.start(checkpoint_id=1)
            except NewerOutputError:
                # The job that was asleep came first after all: what it showed is whole, and the other one is refused.
                assert shown >= {5}, f"crash {crash}: refused for nothing"
                continue
            second.write(rows(5))
            second.checkpoint(2)
            second.finish()
            assert sorted(store.visible()) == [0, 1, 5, 10, 11], f"crash {crash}"
            if not died:
                assert crash > 20
                break


@pytest.mark.parametrize("kind", MAKERS)
def test_a_directory_that_has_output_asks_what_to_do(reading, sink_job, kind):
    store = Store(reading, kind)

    def run(job, mode):
        job = sink_job(MAKERS[kind]("memory://sink/out", mode=mode), 2, job=job)
        job.start()
        job.write(rows(1), 0)
        job.write(rows(2), 1)
        job.checkpoint(1)
        job.finish()

    run("a", "error")
    with pytest.raises(ConfigurationError, match=r"(?s)has output already: 2 files, 'part-.*mode='append'"):
        run("b", "error")
    assert sorted(store.visible()) == [1, 2]
    run("c", "append")
    assert sorted(store.visible()) == [1, 1, 2, 2]
    run("d", "overwrite")
    assert sorted(store.visible()) == [1, 2]
    assert store.staged == []


def test_a_restart_or_a_restore_is_no_second_run(reading, sink_job):
    store = Store(reading)
    job = sink_job(MAKERS["jsonl"]("memory://sink/out", mode="overwrite"), 2)
    job.start()
    job.start()  # before its first checkpoint
    job.write(rows(1))
    job.checkpoint(1)
    store.fs.files["out/not-ours.jsonl"] = b'{"i": 7}\n'
    job.start(3)
    job.write(rows(2))
    job.checkpoint(2)
    job.job = "another"
    job.start(1)
    job.finish()
    assert sorted(store.visible()) == [1, 2, 7]


def test_what_overwrite_replaces_can_never_appear_again(reading, sink_job):
    store = Store(reading)
    old = sink_job(store.sink, job="old")
    old.start()
    old.write(rows(1))
    old.checkpoint(1, notifies=False)
    new = sink_job(MAKERS["jsonl"]("memory://sink/out", mode="overwrite"), job="new")
    new.start()
    with pytest.raises(SinkFencedError, match="taken over"):
        old.notify(1)
    new.write(rows(2))
    new.checkpoint(1)
    new.finish()
    assert store.visible() == [2]


def test_a_job_that_ends_while_it_is_replaced_leaves_the_newer_claim_alone(reading):
    store = Store(reading)
    old, new = (OutputDirectory("memory://sink/out", SinkHistory("0" * 12, owner * 12)) for owner in "ab")
    old.claim("old", is_alone=True)
    old.require_owner()  # and in this moment:
    new.claim("new", is_alone=True)
    old.mark_done(0, 1)
    new.require_owner()
    with pytest.raises(SinkFencedError, match="taken over"):
        old.require_owner()
    new.mark_done(0, 1)
    assert store.staged == []


def test_notes_of_savepoints_of_two_jobs_are_apart(reading, sink_job):
    """A job that was replaced and does not know it takes a savepoint, too, as the same subtask of the same attempt."""
    store = Store(reading)
    old = sink_job(store.sink, job="old")
    old.start()
    old.write(rows(1))
    old.checkpoint(1)
    old.write(rows(2))
    new = sink_job(store.sink, job="new")
    new.take_snapshot_of(old, 1)
    new.start(checkpoint_id=1)
    for job in (new, old):
        job.write(rows(3))
        job.operators[0].context.takes_savepoint = True
        job.checkpoint(2, notifies=False)
    new.start(checkpoint_id=1)
    new.write(rows(4))
    new.checkpoint(3)  # leftovers go, but for what savepoints hold
    again = sink_job(store.sink, job="again")
    again.take_snapshot_of(new, 2)
    with pytest.raises(NewerOutputError, match="of checkpoint 3"):
        again.start(checkpoint_id=2)
    again.sink = MAKERS["jsonl"]("memory://sink/out", on_newer_output="keep")
    again.start(checkpoint_id=2)
    assert sorted(store.visible()) == [1, 3, 4]


@pytest.mark.parametrize(("choice", "shown"), [("delete", [1, 2, 3]), ("keep", [1, 2, 2, 3])])
def test_newer_output_is_deleted_or_kept_as_the_user_says(reading, sink_job, choice, shown):
    store = Store(reading)
    job = sink_job(store.sink, 2)
    job.start()
    job.write(rows(1))
    job.checkpoint(1)
    job.write(rows(2), 1)
    job.checkpoint(2)
    job.job = "another"
    with pytest.raises(NewerOutputError, match=r"goes on from checkpoint 1.* 1 files of checkpoint 2, part-00001"):
        job.start(checkpoint_id=1)
    job.sink = MAKERS["jsonl"]("memory://sink/out", on_newer_output=choice)
    job.start(3, checkpoint_id=1)
    job.write(rows(2))
    job.checkpoint(2)
    job.sink = store.sink
    job.job = "a third"  # what was chosen once is history now
    job.start()
    job.write(rows(3))
    job.checkpoint(3)
    job.finish()
    assert sorted(store.visible()) == shown


def test_a_run_without_checkpoints_is_not_repeated_over_its_own_output(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink, checkpointing=False)
    job.start()
    job.write(rows(1))
    job.operators[0].finish_job()
    job.work(job.attempt)
    with pytest.raises(NewerOutputError, match="a run without checkpoints"):
        job.start()
    assert store.visible() == [1]


def test_a_restored_job_may_write_to_another_directory(sink_job, tmp_path):
    job = sink_job(FileSink.json_lines(tmp_path / "one"))
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    job.sink = FileSink.json_lines(tmp_path / "two")
    job.job = "another"
    with pytest.raises(CheckpointMismatchError, match="prepared for another directory and is not public there"):
        job.start()
    job.sink = FileSink.json_lines(tmp_path / "one")
    job.start()
    job.sink = FileSink.json_lines(tmp_path / "two")
    job.job = "a third"
    job.start()
    job.write([2])
    job.checkpoint(2)
    job.finish()
    shown = [[path.read_text() for path in (tmp_path / name).glob("part-*")] for name in ("one", "two")]
    assert shown == [["1\n"], ["2\n"]]


# ------------------------------------------------------------------------------------------------------------- confined
def crafted(tmp_path, **changes):
    names = {
        "location": str(tmp_path / "out"),
        "staged": "00000-0123456789ab-1_0-00000.jsonl",
        "final": "part-00000-0123456789ab-0123456789ab-1_0-00001-00000.jsonl",
    }
    return {**names, "size": 9, "rows": 1, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"staged": "/etc/passwd"},
        {"staged": "../../secret.txt"},
        {"staged": ".staging/../../secret.txt"},
        {"staged": "secret.txt"},
        {"final": "/tmp/moved"},
        {"final": "../part-00000-0123456789ab-0123456789ab-1_0-00001-00000.jsonl"},
        {"final": "part-00000-0123456789ab-0123456789ab-1_0-00001-00000.jsonl/../x"},
        {"final": "secret.txt"},
        {"size": -1},
        {"rows": "1"},
        {"location": 5},
        {"staged": "/x/.staging/0123456789ab/00000-0123456789ab-00000.jsonl", "final": "/y/part-1"},
    ],
)
def test_a_checkpoint_names_no_file_outside_of_the_directory(sink_job, tmp_path, changes):
    (tmp_path / "secret.txt").write_text("somebody's")
    job = sink_job(FileSink.json_lines(tmp_path / "out"))
    job.start()
    committer = job.operators[0]._commits._committer
    with pytest.raises(CheckpointMismatchError, match="prepared output"):
        committer.commit(crafted(tmp_path, **changes))
    with pytest.raises(CheckpointMismatchError, match="not a file sink's"):
        committer.commit(["no", "mapping"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "secret.txt"]


def test_a_committable_of_another_place_moves_nothing_there(sink_job, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    name = crafted(tmp_path)["staged"]
    for folder in (elsewhere / ".staging" / "0123456789ab" / "00001", elsewhere):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"i": 1}\n')
    job = sink_job(FileSink.json_lines(tmp_path / "out"))
    job.start()
    for location in (str(elsewhere), "s3://bucket/x", "memory://other/x"):
        with pytest.raises(CheckpointMismatchError, match="another directory"):
            job.operators[0]._commits._committer.commit(crafted(tmp_path, location=location))
    assert list(elsewhere.glob("part-*")) == []


def test_what_version_1_has_prepared_is_committed(sink_job, tmp_path):
    out = tmp_path / "out"
    staged = out / ".staging" / "0123456789ab" / "00000-0123456789ab-00000.jsonl"
    staged.parent.mkdir(parents=True)
    staged.write_text('{"i": 1}\n')
    final = out / "part-00000-0123456789ab-00001-00000.jsonl"
    job = sink_job(FileSink.json_lines(out))
    job.start()
    old = {"location": str(out), "staged": str(staged), "final": str(final), "size": 9, "rows": 1}
    for _ in range(2):
        job.operators[0]._commits._committer.commit(old)
    assert final.read_text() == '{"i": 1}\n'


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_staging_directory_that_is_none_is_refused_at_once(sink_job, tmp_path, kind):
    (tmp_path / "victim").mkdir()
    (tmp_path / "out").mkdir()
    if kind == "link":
        (tmp_path / "out" / ".staging").symlink_to(tmp_path / "victim")
    else:
        (tmp_path / "out" / ".staging").write_text("x")
    job = sink_job(FileSink.json_lines(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="staging directory"):
        job.start()
    assert job.pauses_ms == []
    assert list((tmp_path / "victim").iterdir()) == []


def test_clean_up_that_fails_is_a_warning_and_no_failure(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink, 2)
    job.start()
    job.write(rows(1))

    def point(name, path):
        if name == "delete":
            message = "not allowed"
            raise OSError(message)

    job.checkpoint(1)
    store.fs.fault = point
    job.finish()
    store.fs.fault = None
    assert store.visible() == [1]
    assert [name for name, _ in job.reports] == ["warning"]
    assert "could not clean up behind the last commit" in job.reports[0][1]
