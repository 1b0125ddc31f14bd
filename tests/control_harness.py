"""What the tests of the control machines share: small job graphs, a reader of command lists, a scripted cluster.

`ControlWorld` is a JobManager and its CheckpointCoordinator with everything around them played by the test: one
TaskManager whose tasks do at once what they are told, unless the test says otherwise. Messages between the two machines
are carried in order; offloaded work is done for real (on a ``memory://`` store) when the test lets it.
"""

from __future__ import annotations

from collections import deque
from itertools import count

import cloudpickle

from headrace.engine.checkpoint.coordinator import CheckpointCoordinator
from headrace.engine.checkpoint.io import clean_up_job
from headrace.engine.connectors.contract import Discovery, Split
from headrace.engine.errors import UserFunctionError
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex
from headrace.engine.job.job_manager import JobManager
from headrace.engine.kernel.config import CheckpointSettings, JobSettings
from headrace.engine.kernel.machine import Address, Asked, Offload, OffloadCompleted, Reply, Send, Started, StartTimer
from headrace.engine.operators.exchange import ForwardPartitioner, RebalancePartitioner
from headrace.engine.protocol.checkpoint_messages import AcknowledgeCheckpoint, TriggerCheckpoint
from headrace.engine.protocol.control_messages import JobArchived, RelayToSlot
from headrace.engine.protocol.messages import JobStatusChanged, RegisterTaskManager, SubmitJob
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.task_messages import CancelTask, FinishTask, StartTask, UpdateTaskExecutionState
from headrace.engine.protocol.views import SlotInfo

JOB = "job-1"
DISPATCHER, RESOURCE_MANAGER = Address("head", "dispatcher"), Address("head", "rm")
JOB_MANAGER, COORDINATOR = Address("jm-1", "jm"), Address("jm-1", "cc")
TASK_MANAGER = Address("tm-1", "tm")

_stores = count()


class Splits:
    """A source whose enumerator finds what it was given."""

    is_bounded = True

    def __init__(self, ids=(), *, is_final=True, interval_ms=None):
        self.ids, self.is_final, self.discovery_interval_ms = list(ids), is_final, interval_ms

    def create_enumerator(self, context):
        return self

    def discover(self):
        return Discovery([Split(split_id) for split_id in self.ids], self.is_final)


class SourceStandIn(Operator):
    requests_split = True

    def __init__(self, source):
        self.source = source


class CollectStandIn(Operator):
    collects = True


def vertex(name, parallelism, operator=None, **options):
    chain = (ChainedOperator(name, name, operator or Operator()),)
    return JobVertex(name, name, chain, parallelism, 128, **options)


def edge(edge_id, source, target, partitioner=None):
    return JobEdge(edge_id, source, 0, None, target, 0, partitioner or RebalancePartitioner(), 128)


def graph(*vertices, edges=()):
    return JobGraph("test", {v.vertex_id: v for v in vertices}, tuple(edges))


def pipeline(parallelism=1, source=None):
    """Source -> map, forward."""
    head = vertex("source", parallelism, SourceStandIn(source or Splits(["a", "b", "c"])))
    tail = vertex("map", parallelism, CollectStandIn())
    return graph(head, tail, edges=[edge(0, "source", "map", ForwardPartitioner())])


def settings(*, checkpoints=False, directory=None, **options):
    if checkpoints:
        names = ("interval_ms", "timeout_ms", "min_pause_ms", "max_concurrent", "num_retained", "tolerable_failures")
        given = {name: options.pop(name) for name in names if name in options}
        given.setdefault("interval_ms", 100)
        directory = directory or f"memory://control-{next(_stores)}"
        options["checkpoints"] = CheckpointSettings(directory=directory, **given)
    return JobSettings(**options)


def submission(job_graph=None, job_settings=None, num_slots=1):
    job_graph = job_graph or pipeline()
    return SubmitJob(JOB, "test", cloudpickle.dumps(job_graph), job_settings or settings(), num_slots)


def sent(commands, kind, to=None):
    """The messages of one kind in a command list, in order."""
    return [c.message for c in commands if isinstance(c, Send) and isinstance(c.message, kind) and to in (None, c.to)]


def of_kind(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def complete(work):
    """Do offloaded work and give its end."""
    try:
        return OffloadCompleted(work.name, work.token, work.work(), None)
    except Exception as error:
        return OffloadCompleted(work.name, work.token, None, error)


class ControlWorld:
    """A JobManager and its coordinator in a scripted cluster.

    Attributes:
        tasks: State of every task that was submitted, by attempt.
        is_obedient: Whether tasks do at once what they are told.
        works: Offloaded work that has not been done; done at once while ``is_io_free``.
    """

    def __init__(self, job, epoch=1, num_slots=None, predecessor=None):
        self.job = job
        self.now_ms = 1_000_000
        self.jm = JobManager(JOB_MANAGER, job, epoch, DISPATCHER, RESOURCE_MANAGER, COORDINATOR, predecessor)
        self.cc = CheckpointCoordinator(COORDINATOR, JOB_MANAGER, job)
        self.num_slots = num_slots if num_slots is not None else job.num_slots
        self.revision = 0
        self.tasks = {}
        self.is_obedient = self.is_io_free = True
        self.works = deque()
        self.timers = {}
        self.outside = []
        self.replies = {}
        self._mail = deque()
        self._asks = count()

    # -------------------------------------------------------------------------------------------------------- driving
    def start(self):
        self.to_jm(Started(JOB_MANAGER))
        return self

    def run(self):
        """Start, register the slots, and let all tasks come to run."""
        self.start()
        self.register()
        return self

    def to_jm(self, event):
        self._mail.append((JOB_MANAGER, event))
        return self._settle()

    def to_cc(self, event):
        self._mail.append((COORDINATOR, event))
        return self._settle()

    def ask(self, request):
        ask_id = f"ask-{next(self._asks)}"
        self.to_jm(Asked(ask_id, request))
        return ask_id

    def fire(self, address, key):
        """Let a timer run out."""
        timer = self.timers.pop((address, key))
        self.now_ms += timer.delay_ms
        self._mail.append((address, timer.message))
        return self._settle()

    def do_io(self):
        """Do all offloaded work."""
        while self.works:
            address, work = self.works.popleft()
            self._mail.append((address, complete(work)))
            self._settle()

    def archive(self):
        """Record the end as the Dispatcher does: confirm it, and delete what nobody will restore."""
        commands = self.to_jm(JobArchived(JOB, self.jm.epoch))
        clean_up_job(self.job.settings, self.jm.view())
        return commands

    def register(self, num_slots=None, revision=None, epoch=None):
        self.revision = self.revision + 1 if revision is None else revision
        slots = tuple(self.slot(index) for index in range(self.num_slots if num_slots is None else num_slots))
        return self.to_jm(
            RegisterTaskManager(JOB, "tm-1", TASK_MANAGER, epoch or self.jm.epoch, slots, {}, self.revision)
        )

    generation = 1

    def slot(self, index):
        return SlotInfo(index, Address(f"slot-{index}-{self.generation}", "slot"))

    def report(self, attempt, state, error=None):
        self.tasks[attempt] = state
        return self.to_jm(UpdateTaskExecutionState(attempt, TaskState(state), error))

    def report_all(self, state, *, vertex=None):
        for attempt in self.current():
            if vertex in (None, attempt.vertex):
                self.report(attempt, state)

    def current(self):
        """The newest attempt of each subtask."""
        newest = {}
        for a in sorted(self.tasks):
            newest[(a.vertex, a.subtask)] = a
        return [a for a in self.tasks if newest[(a.vertex, a.subtask)] == a]

    def messages(self, kind):
        """What was sent out of the host, of one kind."""
        return sent(self.outside, kind)

    # ------------------------------------------------------------------------------------------------------- carrying
    def _settle(self):
        commands = []
        while self._mail:
            address, event = self._mail.popleft()
            machine = self.jm if address == JOB_MANAGER else self.cc
            handled = machine.handle(event, self.now_ms)
            self.jm.check()
            for command in handled:
                commands.append(command)
                self._carry_out(address, command)
        return commands

    def _carry_out(self, address, command):
        if isinstance(command, Send):
            if command.to in (JOB_MANAGER, COORDINATOR):
                self._mail.append((command.to, command.message))
            else:
                self.outside.append(command)
                self._play_task(command.message)
        elif isinstance(command, Offload):
            if self.is_io_free:
                self._mail.append((address, complete(command)))
            else:
                self.works.append((address, command))
        elif isinstance(command, StartTimer):
            self.timers[(address, command.key)] = command
        elif isinstance(command, Reply):
            self.replies.setdefault(command.ask_id, command.value)
        else:
            self.outside.append(command)
            key = getattr(command, "key", None)
            self.timers.pop((address, key), None)

    def _play_task(self, message):
        if isinstance(message, RelayToSlot):
            attempt = message.message.deployment.attempt
            self.tasks[attempt] = "DEPLOYING"
            self._answer(attempt, "INITIALIZING", "READY")
        elif isinstance(message, StartTask):
            self._answer(message.attempt, "RUNNING")
        elif isinstance(message, FinishTask):
            self._answer(message.attempt, "FINISHED")
        elif isinstance(message, CancelTask):
            self._answer(message.attempt, "CANCELED")
        elif isinstance(message, TriggerCheckpoint) and self.is_obedient:
            for attempt in self.current():
                acknowledgement = AcknowledgeCheckpoint(attempt, message.checkpoint_id, (), {"bytes": 1})
                self._mail.append((COORDINATOR, acknowledgement))

    def _answer(self, attempt, *states):
        if self.is_obedient:
            for state in states:
                self.tasks[attempt] = state
                self._mail.append((JOB_MANAGER, UpdateTaskExecutionState(attempt, TaskState(state))))


def world(job_graph=None, *, num_slots=1, epoch=1, predecessor=None, **options):
    """A JobManager with its coordinator and slots, whose client need not stay."""
    options.setdefault("attached", False)
    job = submission(job_graph, settings(**options), num_slots)
    return ControlWorld(job, epoch, predecessor=predecessor)


def statuses(w):
    """What the Dispatcher has been told of the job."""
    return [message.view.state for message in w.messages(JobStatusChanged)]


def fail_one(w, error=None):
    """Report that a task has failed."""
    attempt = w.current()[0]
    w.report(attempt, "FAILED", error or UserFunctionError("division by zero"))
