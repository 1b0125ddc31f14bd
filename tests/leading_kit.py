"""A Dispatcher of several, with its clock, its store and its offloaded work, for tests of what it leads."""

from __future__ import annotations

import itertools
from dataclasses import replace

from control_harness import complete, of_kind, settings, submission

from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.standbys import HighAvailability
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.engine.kernel.machine import Address, Asked, Offload, Reply, SpawnHost, Started, StartTimer
from headrace.engine.protocol.messages import FindJobManager, JobStatusChanged
from headrace.engine.protocol.states import JobStatus
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.leases import FileLease, LeaderRecord

LEASE_MS = 600

JOB = "job-1"


class Head:
    """A Dispatcher with its clock, its store and its offloaded work."""

    def __init__(self, fs, host="head-a", **options):
        self.fs = fs
        self.address = Address(host, "dispatcher")
        parts = HighAvailability(
            FileLease(fs, "lease"), JobStore(fs, "cluster"), LeaderRecord(host, LEASE_MS), **options
        )
        self.machine = Dispatcher(self.address, Address(host, "rm"), ClusterSettings(), parts)
        self.now = 0
        self.machine.monotonic_ms = lambda: self.now
        self.works, self.timers, self.replies, self.out = [], {}, {}, []
        self.count = itertools.count()
        self.is_io_free = True
        self.give(Started(self.address))

    def give(self, event):
        commands = self.machine.handle(event, 1_000 + self.now)
        for command in commands:
            self.out.append(command)
            if isinstance(command, Offload):
                self.works.append(command)
            elif isinstance(command, StartTimer):
                self.timers[command.key] = (self.now + command.delay_ms, command.message)
            elif isinstance(command, Reply):
                self.replies[command.ask_id] = command.value
        while self.is_io_free and self.works:
            self.give(complete(self.works.pop(0)))
        return commands

    def pass_time(self, duration):
        end = self.now + duration
        while self.now < end:
            self.now += 10
            for key, (due, message) in list(self.timers.items()):
                if due <= self.now and key in self.timers:
                    del self.timers[key]
                    self.give(message)

    def ask(self, request):
        ask_id = str(next(self.count))
        self.give(Asked(ask_id, request))
        return self.replies.get(ask_id)

    def submit(self, job_id=JOB, **options):
        options.setdefault("restart", RestartStrategy(-1, 10))
        return self.ask(replace(submission(job_settings=settings(**options)), job_id=job_id))

    def status(self, state, job_id=JOB):
        found = self.ask(FindJobManager(job_id))
        return self.give(JobStatusChanged(job_id, found.epoch, replace(found.view, state=JobStatus(state), version=7)))

    def stored(self):
        return {job.job_id: job for job in JobStore(self.fs, "cluster").read_all()}

    def spawned(self):
        return [command.host for command in of_kind(self.out, SpawnHost)]


def successor(fs, head, host="head-b"):
    """The next leader, once ``head`` has fallen silent."""
    after = Head(fs, host)
    after.pass_time(2 * LEASE_MS)
    assert after.machine.term == head.machine.term + 1
    return after
