"""Runs one random program on a cluster with several heads, under faults that hit the heads above all.

Everything follows from one seed: program, data, settings, weather, which heads are killed or stopped and when, how
slow the store is and when it fails. The judgement, beside what `simulator.judge` asks for: a head acts only while no
other one believes that it leads, and never after a later one; checkpoints are published in the order of their epochs,
and none once they have been deleted with the job's end; a job that was acknowledged is known to every later leader; an
end that was told is never taken back. If all heads are lost, new ones are started on the same directory, as an operator
would.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import cloudpickle
from simulation.leftovers import check_job_store, check_leftovers
from simulation.simulator import MAX_VIRTUAL_MS, TERMINAL, build_job, draw_faults, judge
from simulation.turns import slots_compared

from headrace.actors.cluster import Cluster
from headrace.actors.connecting import start_heads
from headrace.actors.head import HeadPlan
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.standbys import is_head
from headrace.engine.errors import ClusterUnavailableError, StorageError
from headrace.engine.graph.chaining import num_slots
from headrace.engine.kernel.config import ClusterSettings, HighAvailabilitySettings
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, ShutDownCluster, SubmitJob
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

MAX_EVENTS = 400_000


@dataclass
class HeadsOutcome:
    """What a run did, for statistics."""

    seed: int
    program: str
    virtual_ms: float
    leaders: int
    restarts: int
    heads_killed: int
    heads_frozen: int
    clusters: int
    digest: str
    killed_at: tuple[tuple[str, int], ...]
    points: Counter[str]


@dataclass
class Watcher:
    """Sees who acts and who publishes, and keeps what must not be: a machine that raises is only a host that dies."""

    seed: int
    system: SimSystem
    acted: list[tuple[float, int, str]] = field(default_factory=list)
    published: dict[str, int] = field(default_factory=dict)
    leaders: dict[str, Dispatcher] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def act(self, dispatcher: Dispatcher) -> None:
        """A head acts: no other one may think now that it could, and none of a later epoch may have."""
        self.leaders[dispatcher.address.host] = dispatcher
        if len(self.leaders) > 1:
            alive = set(self.system.hosts)
            self.leaders = {host: leader for host, leader in self.leaders.items() if host in alive}
            for host, other in self.leaders.items():
                if other is not dispatcher and other._election is not None and other._election.leads:
                    self.violate(f"{dispatcher.address.host} acts, and {host} of epoch {other.term} believes it leads")
        newest = self.acted[-1] if self.acted else (0.0, 0, "")
        if dispatcher.term < newest[1]:
            self.violate(f"{dispatcher.address.host} of epoch {dispatcher.term} acts after {newest[2]} of {newest[1]}")
        elif (dispatcher.term, dispatcher.address.host) != newest[1:]:
            if dispatcher.term == newest[1]:
                self.violate(f"{dispatcher.address.host} and {newest[2]} share epoch {newest[1]}")
            self.acted.append((self.system.now_ms, dispatcher.term, dispatcher.address.host))

    def violate(self, what: str) -> None:
        self.violations.append(f"seed {self.seed} at {self.system.now_ms} ms: {what}")

    def check(self) -> None:
        assert not self.violations, self.violations[0]

    def publish(self, root: str, epoch: int) -> None:
        before = self.published.get(root, 0)
        if epoch < before:
            self.violate(f"epoch {epoch} publishes after epoch {before}")
        self.published[root] = epoch

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        handle, publish = Dispatcher.handle, CheckpointStorage.publish

        def watched_handle(dispatcher: Dispatcher, event: Any, now_ms: int) -> Any:
            commands = handle(dispatcher, event, now_ms)
            if dispatcher._election is not None and dispatcher._election.leads:
                self.act(dispatcher)
            return commands

        def watched_publish(storage: CheckpointStorage, manifest: Any, epoch: int) -> Any:
            path = publish(storage, manifest, epoch)
            # A work of the simulator is done in one moment, so a publisher could see that the folder was deleted.
            # Elsewhere it may be deleted between that look and the publication, which is then taken back at once; only
            # a process that dies between these two leaves a manifest there, of a job that has ended for all to see.
            if not storage.highest_epoch():
                self.violate(f"epoch {epoch} publishes checkpoint {manifest.checkpoint_id} of a job that has ended")
            self.publish(storage.root, epoch)
            return path

        with (
            mock.patch.object(Dispatcher, "handle", watched_handle),
            mock.patch.object(CheckpointStorage, "publish", watched_publish),
        ):
            yield


def draw_plan(rng: random.Random) -> FaultPlan:
    """Weather and kills as elsewhere, but anybody may be hit; and a store that may be slow."""
    plan = replace(draw_faults(rng), immortal=())
    return replace(plan, offload_ms=(0.2, rng.choice((10.0, 10.0, 60.0))))


def draw_sleep(rng: random.Random) -> FaultPlan:
    """Processes that sleep for much longer than a lease, some of them before they have begun; one never comes."""
    return FaultPlan(
        stray_work=0.5,
        freezes=6,
        freeze_ms=(3_000.0, 30_000.0),
        fault_window_ms=(0.0, 1_500.0),
        kills_at=(("send.RegisterTaskManager", rng.randint(1, 3)),),
        immortal=(),
    )


def draw_store_faults(rng: random.Random, store: MemoryFileSystem) -> None:
    """Let the store of leases and jobs fail now and then, before or after it has done what it was asked."""
    probability = rng.choice((0.0, 0.0, 0.01, 0.05))
    chance = random.Random(rng.random())

    def fault(operation: str, path: str) -> None:
        if path.startswith("ha/") and chance.random() < probability:
            message = f"could not {operation} a file: the storage is unwell"
            raise StorageError(message, operation=operation, path=path)

    store.fault = fault


@slots_compared()
def run_heads_seed(
    seed: int,
    *,
    story: bool = False,
    tail: bool = True,
    faults: FaultPlan | None = None,
    watch: Callable[[SimSystem], None] | None = None,
) -> HeadsOutcome:
    """Run one seed and judge it.

    Args:
        seed: Decides everything.
        story: Print the last events of the run.
        tail: Whether to lose one more leader behind the job's end.
        faults: Instead of what the seed would draw; heads are disturbed as ever.
        watch: Called with the system before any host starts.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(f"heads-{seed}")
    name = f"heads-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name)
    drawn = draw_plan(rng)
    faults = drawn if faults is None else faults
    ha = HighAvailabilitySettings(
        f"memory://{name}/ha", "c", num_standbys=rng.choice((0, 1, 1, 2)), lease_ms=rng.choice((300, 600))
    )
    settings = ClusterSettings(slots_per_task_manager=rng.choice((0, 1, 2)), high_availability=ha)
    draw_store_faults(rng, MemoryFileSystem.named(name))
    system = SimSystem(seed, faults, max_events=MAX_EVENTS)
    if watch is not None:
        watch(system)
    watcher = Watcher(seed, system)
    run = _Run(seed, rng, system, HeadPlan(settings, replaces_standbys=rng.random() < 0.7), watcher)
    try:
        with watcher.watching():
            view = run.job(graph)
            judge(seed, program, view, name, replace(faults, random_kills=1))
            if tail:
                run.lose_the_leader(view)
            run.shut_down()
            watcher.check()
            # A head that is stopped is a process that is given up for dead.
            check_leftovers(seed, name, f"job-{seed}", view, replace(faults, freezes=1))
            check_job_store(seed, name)
    except BaseException:
        print(f"heads seed {seed}: {program.name}, {ha}, {faults}")
        if story:
            print(system.story())
        raise
    finally:
        system.close()
        MemoryFileSystem.forget(name)
    return HeadsOutcome(
        seed,
        program.name,
        system.now_ms,
        len(watcher.acted),
        view.num_restarts,
        run.num_killed,
        run.num_frozen,
        run.num_clusters,
        system.digest,
        tuple(system.killed_at),
        system.points,
    )


class _Run:
    def __init__(self, seed: int, rng: random.Random, system: SimSystem, plan: HeadPlan, watcher: Watcher) -> None:
        self.watcher = watcher
        self.seed = seed
        self.rng = rng
        self.system = system
        self.plan = plan
        self.num_clusters = self.num_killed = self.num_frozen = 0
        self.cluster = self.start()

    def start(self) -> Cluster:
        """Start heads; the store may fail meanwhile."""
        while True:
            try:
                cluster = start_heads(self.system, None, self.plan, is_owner=True)
            except StorageError:
                self.system.run_for(100)
            else:
                self.num_clusters += 1
                return cluster

    def heads(self) -> list[str]:
        return [host for host in self.system.hosts if is_head(host)]

    def ask(self, request: Any) -> Any:
        """Ask the leader, however long there is none."""
        while self.system.now_ms < MAX_VIRTUAL_MS:
            if not self.heads():
                self.cluster = self.start()
            try:
                return self.cluster.ask_dispatcher(request, 10_000)
            except ClusterUnavailableError:
                continue
        message = f"seed {self.seed}: hang: nobody leads\n{self.system.story()}"
        raise AssertionError(message)

    def submit(self, graph: Any) -> Any:
        """Submit as a client does, which asks again with the same id while it is not answered."""
        slots = num_slots(graph)
        submission = SubmitJob(JobId(f"job-{self.seed}"), graph.name, cloudpickle.dumps(graph), graph.settings, slots)
        answer = self.ask(submission)
        assert isinstance(answer, JobSubmitted), answer
        return answer.job_id

    def job(self, graph: Any) -> Any:
        """Submit a job and let things happen to the heads until it has ended; gives its last view."""
        self.disturb()
        job_id = self.submit(graph)
        while self.system.now_ms < MAX_VIRTUAL_MS and self.system.num_events < 5 * MAX_EVENTS:
            self.disturb()
            self.watcher.check()
            self.system.run_for(self.rng.choice((20, 100, 500)))
            views = {view.job_id: view for view in self.ask(ListJobs())}
            assert job_id in views, f"seed {self.seed}: the job was acknowledged and is not known"
            if views[job_id].state in TERMINAL:
                return views[job_id]
        message = f"seed {self.seed}: hang: the job is {views[job_id].state}\n{self.system.story()}"
        raise AssertionError(message)

    def disturb(self) -> None:
        """Now and then kill or stop a head, the leader above all."""
        heads = self.heads()
        if not heads or self.num_killed + self.num_frozen >= 8 or self.rng.random() < 0.6:
            return
        leader = self.cluster._search._from_record() if self.rng.random() < 0.65 else None
        victim = leader if leader in heads else self.rng.choice(heads)
        if self.rng.random() < 0.5:
            self.num_killed += 1
            self.system.kill_now(victim)
        else:
            self.num_frozen += 1
            self.system.freeze_now(victim, self.rng.choice((100, 400, 1_000, 5_000)))

    def lose_the_leader(self, view: Any) -> None:
        """The next leader must know of the end, and leave the job alone."""
        leader = self.cluster._search._from_record()
        if leader in self.heads():
            self.system.kill_now(leader)
        [again] = self.ask(ListJobs())
        assert again.state == view.state, f"seed {self.seed}: {view.state} became {again.state}"
        self.system.run_for(2_000)
        [again] = self.ask(ListJobs())
        assert again.state == view.state, f"seed {self.seed}: {view.state} became {again.state}"

    def shut_down(self) -> None:
        """End the cluster; nothing may be left but heads that were stopped or started in that very moment."""
        assert self.ask(ShutDownCluster()) is True
        self.system.run_for(60_000)
        self.system.check_leaks(())
