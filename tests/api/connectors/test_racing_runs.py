"""Jobs whose sinks begin in one directory at the same moment, with every file operation in any order: one has it.

A `Turns` runs the subtasks of all jobs in threads, one at a time, and decides before every file operation whose turn it
is: a slow folder, in which anything may come between any two operations. What a seed finds, it finds again.

Families: property (random orders), end-to-end (processes that start together over a real directory).
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.files import FileSink
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import CommitterContext, SinkHistory, WriterContext
from headrace.engine.errors import ConfigurationError, HeadraceError, SinkFencedError
from headrace.engine.kernel.metrics import MetricGroup
from headrace.state.files.memory import MemoryFileSystem

PLACE = "memory://racing/out"
OLD = "part-00000-0123456789ab-0123456789ab-0_0-00001-00000.jsonl"


class Turns:
    """Runs functions in threads, one at a time, each until it asks for its next turn.

    Args:
        rng: Decides whose turn it is. Somebody who has it often keeps it for a while, so that one may get far ahead.
    """

    def __init__(self, rng):
        self._rng = rng
        self._begins = {}
        self._over = threading.Semaphore(0)
        self._live = []
        self._local = threading.local()

    def wait(self, *_operation):
        """Called by one of them: let others come first."""
        begins = getattr(self._local, "begins", None)
        if begins is not None:  # else it is the test itself
            self._over.release()
            begins.acquire()

    def run(self, functions):
        for function in functions:
            begins = threading.Semaphore(0)
            thread = threading.Thread(target=self._run, args=(function, begins), daemon=True)
            self._live.append((thread, begins))
            thread.start()
        patience = self._rng.choice((0.0, 0.5, 0.9))
        current = None
        while self._live:
            if current not in self._live or self._rng.random() >= patience:
                current = self._rng.choice(self._live)
            thread, begins = current
            begins.release()
            self._over.acquire()
            if getattr(thread, "is_over", False):
                self._live.remove(current)

    def _run(self, function, begins):
        self._local.begins = begins
        begins.acquire()
        try:
            function()
        finally:
            threading.current_thread().is_over = True
            self._over.release()


class Job:
    """The subtasks of a sink, each with one record; all begin before one writes, and one that fails ends all."""

    def __init__(self, name, mode, parallelism, turns):
        self.name, self.parallelism, self.turns = name, parallelism, turns
        self.sink = FileSink.json_lines(PLACE, mode=mode)
        self.error = None
        self.num_at = Counter()
        self.num_finished = 0

    def rows(self):
        return Counter(f"{self.name}-{subtask}" for subtask in range(self.parallelism))

    def subtasks(self):
        return [lambda number=number: self._run(number) for number in range(self.parallelism)]

    def _run(self, subtask):
        place = {
            "job": self.name,
            "operator": "out",
            "operator_name": "out",
            "subtask": subtask,
            "parallelism": self.parallelism,
            "attempt": "1.0",
            "now_ms": lambda: 0,
            "report": lambda _name, _value: None,
            "history": SinkHistory(self.name, self.name),
        }
        try:
            committer, writer = self.sink.create_committer(), self.sink.create_writer()
            committer.open(CommitterContext(**place))
            committer.abort_leftovers()
            writer.open(WriterContext(**place, metrics=MetricGroup(), probe=lambda _point: None, checkpointing=True))
            self._wait_for_all("open")
            writer.write(Batch.of_rows([{"n": f"{self.name}-{subtask}"}]))
            prepared = writer.prepare(1)
            self._wait_for_all("prepared")
            for committable in prepared:
                committer.commit(committable)
            writer.close()
            committer.finish()
            committer.close()
            self.num_finished += 1
        except HeadraceError as error:
            self.error = self.error or error
        except Canceled:
            pass

    def _wait_for_all(self, point):
        self.num_at[point] += 1
        while self.num_at[point] < self.parallelism:
            if self.error is not None:
                raise Canceled
            self.turns.wait()

    @property
    def has_finished(self):
        return self.num_finished == self.parallelism


class Canceled(Exception):
    """Another subtask has failed."""


def visible(store):
    paths = [path for path in store.files if path.startswith("out/part-")]
    return Counter(json.loads(line)["n"] for path in paths for line in store.files[path].splitlines())


NAMES = ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc")


@given(seed=st.integers(0, 2**32), num_jobs=st.sampled_from((2, 2, 3)), parallelism=st.integers(1, 3))
@settings(max_examples=examples(150))
def test_of_jobs_that_overwrite_one_directory_together_exactly_one_has_it(seed, num_jobs, parallelism):
    """The others fail by name. One that has finished may be overwritten by one that began later, never by halves."""
    rng = random.Random(seed)
    MemoryFileSystem.forget("racing")
    store = MemoryFileSystem.named("racing")
    for name in (OLD, "notes.txt")[: rng.randrange(3)]:
        store.files[f"out/{name}"] = b'{"n": "old"}\n'
    turns = Turns(rng)
    store.fault = turns.wait
    modes = ["overwrite", *(rng.choice(("overwrite", "overwrite", "error")) for _ in range(num_jobs - 1))]
    jobs = [Job(name, mode, parallelism, turns) for name, mode in zip(NAMES, modes, strict=False)]
    turns.run([subtask for job in jobs for subtask in job.subtasks()])
    finished = [job for job in jobs if job.has_finished]
    ends = {job.name: str(job.error) for job in jobs}
    assert finished, f"all have been refused: {ends}"
    assert all(isinstance(job.error, (SinkFencedError, ConfigurationError)) for job in jobs if job not in finished)
    assert any(visible(store) == job.rows() for job in finished), f"{visible(store)}, and these have ended: {ends}"
    MemoryFileSystem.forget("racing")


ROUNDS, PROCESSES, COUNT = 3, 2, 60
JOB = """
import os, sys, time
from headrace import JobFailedError, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

folder, number, rounds, processes, count = sys.argv[1], *map(int, sys.argv[2:])
for k in range(rounds):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    env.enable_checkpointing(10, directory=f"{folder}/checkpoints")
    source = GeneratorSource(lambda n: {"n": [number, n]}, count=count, records_per_second=1_000)
    env.from_source(source, None, "numbers").sink_to(FileSink.json_lines(f"{folder}/out-{k}", mode="overwrite"))
    open(f"{folder}/ready-{k}-{number}", "w").close()
    end = time.monotonic() + 60
    while not all(os.path.exists(f"{folder}/ready-{k}-{other}") for other in range(processes)):
        assert time.monotonic() < end, "the others do not come"
        time.sleep(0.001)
    with env:
        try:
            env.execute(f"job {number}")
            print(k, "finished", flush=True)
        except JobFailedError as error:
            print(k, "failed", str(error).replace("\\n", " "), flush=True)
"""


@pytest.mark.campaign
def test_of_processes_that_overwrite_one_directory_together_exactly_one_has_it(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    for k in range(ROUNDS):
        (tmp_path / f"out-{k}").mkdir()
        (tmp_path / f"out-{k}" / OLD).write_text('{"n": "old"}\n')
    numbers = (ROUNDS, PROCESSES, COUNT)
    jobs = [
        subprocess.Popen(
            [sys.executable, "job.py", str(tmp_path), *map(str, (number, *numbers))],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    said = [job.communicate(timeout=100) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * PROCESSES, said
    for k in range(ROUNDS):
        ends = [next(line for line in out.splitlines() if line.startswith(f"{k} ")) for out, _ in said]
        finished = [number for number, end in enumerate(ends) if end == f"{k} finished"]
        failed = [end for end in ends if not end.endswith("finished")]
        paths = (tmp_path / f"out-{k}").glob("part-*")
        rows = Counter(tuple(json.loads(line)["n"]) for path in paths for line in path.read_text().splitlines())
        wholes = [Counter((number, n) for n in range(COUNT)) for number in finished]
        assert rows in wholes, f"{len(rows)} rows, and {ends}"
        assert all("has it" in end or "taken over" in end for end in failed), failed
