"""What `fuzz_readers.py` feeds to a new leader: entries of the job store, with programs that would run code."""

from __future__ import annotations

import copy
import hashlib
import json

from headrace.engine.cluster.job_store_io import recover_jobs
from headrace.engine.cluster.stored_jobs import end_as_facts, submission_as_facts
from headrace.engine.errors import StorageError, UserFunctionError
from headrace.engine.functions.accumulators import AccumulatorPart, AverageAccumulator, DoubleCounter, LongCounter
from headrace.engine.kernel.config import (
    CheckpointSettings,
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    JobSettings,
    RestartStrategy,
    StateSettings,
)
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.restart_backoff import RestartBackoff
from headrace.engine.kernel.slot_resources import MachineResources, NetworkInterface
from headrace.engine.protocol.messages import SubmitJob
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView, OperatorView, SlotInfo, StopMode, TaskManagerView, VertexView
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.files.memory import MemoryFileSystem

SETTINGS = (
    JobSettings(),
    JobSettings(CheckpointSettings(10, "/checkpoints"), RestartStrategy(3), state=StateSettings("rocksdb")),
    JobSettings(restart=FailureRateRestartStrategy(1, 2, 3), restore_from="/there"),
    JobSettings(restart=ExponentialDelayRestartStrategy(jitter_factor=0.5), is_batch=True),
)


def last_word(job_id: str) -> JobView:
    """A view with something in every field."""
    metrics = {"num_late_records_dropped": 3, "ratio": float("inf"), "nothing": float("nan"), "mean": 0.1}
    machine = MachineResources(
        2.0, 1 << 34, 1 << 33, "/tmp", 1 << 40, 1 << 39, (NetworkInterface("lo", ("::1",)),), "h"
    )
    operator = OperatorView("uid", "map", metrics)
    vertex = VertexView(
        "v", "map", 2, {"FINISHED": 2}, 10, 9, 1.5, 2, 0.5, 0.25, 0, None, metrics, (operator,), (1, -1)
    )
    return JobView(
        job_id=job_id,
        name="a job",
        state=JobStatus.FAILED,
        version=17,
        started_ms=1_000,
        ended_ms=2_000,
        vertices=(vertex,),
        num_restarts=3,
        checkpoints_completed=4,
        checkpoints_failed=5,
        last_checkpoint=6,
        last_checkpoint_path="/checkpoints/6",
        last_checkpoint_ms=7.5,
        failure="it \ud800 failed",
        error=UserFunctionError("it failed", hint="mend it", operator="map", subtask=1, traceback="Traceback\n ..."),
        slots=(SlotInfo(0, Address("host", "slot"), 17, "node"),),
        history=((1, "ran"), (2, "failed")),
        accumulators={
            "n": (AccumulatorPart("map", "LongCounter", LongCounter(2**70)),),
            "x": (AccumulatorPart("map", "DoubleCounter", DoubleCounter(0.5)),),
            "m": (AccumulatorPart("map", "AverageAccumulator", AverageAccumulator(2, 3.0)),),
            "own": (AccumulatorPart("map", "theirs.Own", b"\x80closed"), AccumulatorPart("f", "theirs.Own", b"")),
        },
        last_checkpoint_metrics={"bytes": 12.0},
        stopping=StopMode.DRAIN,
        backoff=RestartBackoff(FailureRateRestartStrategy(1, 2, 3), 4, (5, 6), 7),
        parallelism={"v": 2},
        savepoint_path="/savepoints/1",
        is_checkpoint_kept=False,
        task_managers=(TaskManagerView("tm", job_id, "node", 2, 1 << 30, 1 << 29, machine),),
    )


class _Lease:
    """One that nobody takes."""

    def is_current(self, _epoch) -> bool:
        return True


class StoredJobs:
    """Entries as they are on the disk, and their facts with hashes made good."""

    def __init__(self, mutated, mutated_json, program: bytes) -> None:
        self._mutated = mutated
        self._mutated_json = mutated_json
        self._program = program
        self._fs = MemoryFileSystem()
        store = JobStore(self._fs, "c")
        for number, settings in enumerate(SETTINGS):
            submission = SubmitJob(f"job-{number}", "a job", program, settings, 3)
            store.put_submission(submission.job_id, 5, submission_as_facts(submission), program)
            store.put_end(f"ended-{number}", 5, end_as_facts(last_word(f"ended-{number}")))
        self._stored = dict(self._fs.files)
        self.seeds = list(self._stored.values())
        self._names: dict[bytes, str] = {data: name for name, data in self._stored.items()}

    def made(self, rng):
        """An entry, and where it is found: where its seed was, as a rule."""
        seed = rng.choice(self.seeds)
        name = self._names[seed] if rng.random() < 0.95 else rng.choice(list(self._stored))
        kind = rng.random()
        if kind < 0.3:
            return name, self._mutated(seed, rng, self.seeds)
        head, body, program = seed.split(b"\n", 2)
        header, facts = json.loads(head), json.loads(body)
        if kind < 0.5:
            return name, json.dumps(self._mutated_json(header, rng, 0.2)).encode() + seed[len(head) :]
        body = self._facts(facts, rng)
        header |= {"facts_size": len(body), "sha256": hashlib.sha256(body + program).hexdigest()}
        return name, b"\n".join((json.dumps(header).encode(), body, program))

    def _facts(self, facts, rng) -> bytes:
        """Other facts: somewhere changed, or a part of them."""
        part = copy.deepcopy(facts)
        inner = part.get("view", part.get("settings"))
        name = rng.choice(list(inner))
        if rng.random() < 0.5:
            inner[name] = self._mutated_json(inner[name], rng, 0.3)
        else:
            part = self._mutated_json(part, rng, 0.02)
        return json.dumps(part).encode()

    def read(self, made) -> None:
        """What a leader does before it does anything else; whatever it finds to run is closed."""
        name, data = made
        self._fs.files = {name: data}
        for job in recover_jobs(JobStore(self._fs, "c"), _Lease(), 7):
            is_open = job.submission is not None and job.view is None
            assert job.problem is not None or job.view is not None or is_open
            if job.problem is not None:
                raise StorageError(job.problem)
            if is_open:
                assert job.submission.settings.restart_strategy() is not None
            if job.view is not None:
                assert job.view.job_id == job.job_id
                f"{job.view!r}{job.view.error}".encode("utf-8", "replace")
