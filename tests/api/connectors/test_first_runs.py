"""Sinks that begin in one directory at the same moment: exactly one has it; and sinks of one program that would meet.

Families: crash (each order in which two sinks can take their steps, and one that falls asleep between any two file
operations), end-to-end (jobs on the local system), golden (a checkpoint of a version without owners).
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from headrace import ConfigurationError, JobFailedError, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.connectors.files.output import OutputDirectory
from headrace.connectors.sql import SqlSink
from headrace.engine.connectors.contract import SinkHistory
from headrace.engine.errors import HeadraceError
from headrace.state.files.filesystem import filesystem_for
from headrace.state.files.memory import MemoryFileSystem

COUNT = 600


def rows_in(folder):
    return [json.loads(line)["n"] for path in folder.glob("part-*") for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------------ all the orders
class Run:
    """What one job's sink, with one subtask, does to the directory, step by step."""

    def __init__(self, name, mode, *, ends):
        self.name, self.mode = name, mode
        self.output = OutputDirectory("memory://first/out", SinkHistory(name, name))
        self.refused = None
        self.steps = [self.look, self.claim, self.stage, self.check, self.publish, *([self.end] if ends else [])]

    def look(self):
        self.output.require_fresh(self.mode)

    def claim(self):
        self.output.claim("job", is_alone=self.mode != "append")

    def stage(self):
        self.staged = f"{self.output.own_staging}/00000-{self.name}-1_0-00000.jsonl"
        self.output.fs.write_bytes(self.staged, b"1\n")

    def check(self):
        self.output.require_owner()
        self.output.require_alone()

    def publish(self):
        self.output.fs.rename(
            self.staged, self.output.public_path(f"part-00000-{self.name}-{self.name}-1_0-00001-00000.jsonl")
        )

    def end(self):
        self.output.mark_done(0, 1)

    def advance(self):
        """Take the next step; one that is refused takes no more."""
        step = self.steps.pop(0)
        try:
            step()
        except HeadraceError as error:
            self.refused, self.steps = error, []


NAMES = ("aaaaaaaaaaaa", "bbbbbbbbbbbb")


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_of_two_that_begin_together_one_has_the_directory_in_every_order(mode, ends):
    num_steps = 6 if ends else 5
    for firsts in itertools.combinations(range(2 * num_steps), num_steps):
        MemoryFileSystem.forget("first")
        runs = [Run(name, mode, ends=ends) for name in NAMES]
        order = [0 if position in firsts else 1 for position in range(2 * num_steps)]
        for k in order:
            if runs[k].steps:
                runs[k].advance()
        there = {file[len("part-00000-") :][:12] for file in runs[0].output.visible()}
        winners = {run.name for run in runs if run.refused is None}
        assert there, f"{order}: nobody has written"
        assert len(there) == 1, f"{order}: both have written"
        assert there <= winners, f"{order}: {there}, and {winners} go on"


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_one_that_was_replaced_never_takes_the_directory_back(mode):
    """Its first output is gone: an attempt that went on from its checkpoint would lose that without a word."""
    MemoryFileSystem.forget("first")
    first, later = Run(NAMES[0], mode, ends=False), Run(NAMES[1], "overwrite", ends=False)
    for run in (first, later):
        for _ in range(5 if run is first else 2):
            run.advance()
    again = Run(NAMES[0], mode, ends=False)
    while again.steps:
        again.advance()
    assert "another sink has begun" in str(again.refused)
    while later.steps:
        later.advance()
    assert later.refused is None
    assert len(later.output.visible()) == 1


def test_those_that_append_let_each_other_be():
    MemoryFileSystem.forget("first")
    runs = [Run(name, "append", ends=True) for name in NAMES]
    while any(run.steps for run in runs):
        for run in runs:
            if run.steps:
                run.advance()
    assert [run.refused for run in runs] == [None, None]
    assert len(runs[0].output.visible()) == 2


# -------------------------------------------------------------------------------------------------- jobs, end to end
def job(tmp_path, name, number, mode, parallelism):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    env.enable_checkpointing(20, directory=tmp_path / "checkpoints")
    source = GeneratorSource(lambda n: {"n": number * COUNT + n}, count=COUNT, records_per_second=3_000)
    stream = env.from_source(source, None, "numbers").uid("numbers")
    if mode == "sql":
        sink = SqlSink.exactly_once(f"sqlite:///{tmp_path}/db", "numbers", sink_id="numbers")
    else:
        sink = FileSink.json_lines(tmp_path / "out", mode=mode)
    stream.sink_to(sink).uid("out")
    return env, name


@pytest.mark.parametrize("mode", ["error", "overwrite", "sql"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_of_jobs_that_start_together_one_has_the_directory_and_the_others_are_refused(mode, parallelism, tmp_path):
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        db.execute("CREATE TABLE numbers (n INTEGER)")
    jobs = [job(tmp_path, f"job {k}", k, mode, parallelism) for k in range(3)]
    begin = threading.Barrier(len(jobs))
    ends: dict[int, str] = {}

    def run(number):
        env, name = jobs[number]
        begin.wait()
        with env:
            try:
                env.execute(name)
            except JobFailedError as error:
                ends[number] = str(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if mode == "sql":
        with closing(sqlite3.connect(tmp_path / "db")) as db:
            rows = Counter(n for (n,) in db.execute("SELECT n FROM numbers"))
    else:
        rows = Counter(rows_in(tmp_path / "out"))
    finished = set(range(len(jobs))) - set(ends)
    # A job that begins when another one has ended already may overwrite what that has left.
    assert len(finished) == 1 or (finished and mode == "overwrite"), ends
    assert any(rows == Counter(range(number * COUNT, (number + 1) * COUNT)) for number in finished)
    expected = ("another sink has begun in the output directory", "taken over", "has output already", "sink_id")
    assert all(any(text in end for text in expected) for end in ends.values()), ends
    assert all("operator" in end for end in ends.values())


@pytest.mark.parametrize("modes", list(itertools.product(("error", "append", "overwrite"), repeat=2)))
def test_two_sinks_of_one_program_share_a_directory_only_if_both_append(modes, tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    numbers = env.from_collection([{"n": n} for n in range(10)])
    for mode, way in zip(modes, (tmp_path / "out", f"{tmp_path}/nothing/../out"), strict=True):
        numbers.sink_to(FileSink.json_lines(way, mode=mode)).name(f"{mode} sink")
    with env:
        if modes == ("append", "append"):
            env.execute("both")
            assert Counter(rows_in(tmp_path / "out")) == Counter(2 * list(range(10)))
        else:
            with pytest.raises(ConfigurationError, match="two sinks of one program write to"):
                env.execute("both")
            assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------ a checkpoint from before output had owners
GOLDEN = Path(__file__).parents[2] / "data" / "file-sink-1"
"""What a job of `numbers_since` left in ``memory://golden-v1`` that was stopped in order, with the version before."""


@pytest.fixture
def golden():
    """The place with the checkpoint and the output of then; gives the file system and the checkpoint's path."""
    MemoryFileSystem.forget("golden-v1")
    fs, _ = filesystem_for("memory://golden-v1")
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            fs.write_bytes(path.relative_to(GOLDEN).as_posix(), path.read_bytes())
    [manifest] = [path for path, _ in fs.list_files("") if "/manifests/" in path]
    yield fs, f"memory://golden-v1/{manifest}"
    MemoryFileSystem.forget("golden-v1")


def public_rows(fs):
    paths = [path for path, _ in fs.list_files("out") if path.rpartition("/")[2].startswith("part-")]
    return Counter(json.loads(line)["v"] for path in paths for line in fs.read_bytes(path).splitlines())


def numbers_since(checkpoint, mode, parallelism, uid="o"):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    env.enable_checkpointing(50, directory="memory://golden-v1/new")
    source = GeneratorSource(lambda n: {"v": n}, count=300, number_of_splits=1)
    sink = FileSink.json_lines("memory://golden-v1/out", mode=mode)
    env.from_source(source, None, "s").uid("s").sink_to(sink).uid(uid)
    with env:
        env.execute("again", from_checkpoint=checkpoint)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_output_from_before_owners_is_added_to(golden, parallelism):
    fs, checkpoint = golden
    assert 0 < len(public_rows(fs)) < 300
    numbers_since(checkpoint, "append", parallelism)
    assert public_rows(fs) == Counter(range(300))


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_output_from_before_owners_is_never_taken_away(golden, mode):
    fs, checkpoint = golden
    before = public_rows(fs)
    with pytest.raises(
        JobFailedError, match=r"does not say whether they are this sink's[\s\S]*mode='append' keeps them"
    ):
        numbers_since(checkpoint, mode, 2)
    assert public_rows(fs) == before


def test_prepared_output_from_before_owners_is_committed_if_it_is_not_public(golden):
    fs, checkpoint = golden
    last = max(path for path, _ in fs.list_files("out"))
    [state] = [path for path, _ in fs.list_files("") if "committables" in path]
    staged = re.search(rb"\.staging/[0-9a-f]{12}/[0-9a-f-]+\.jsonl", fs.read_bytes(state))
    assert staged is not None
    fs.rename(last, f"out/{staged[0].decode()}")  # as if it had died in front of the last commit
    numbers_since(checkpoint, "append", 2)
    assert public_rows(fs) == Counter(range(300))
