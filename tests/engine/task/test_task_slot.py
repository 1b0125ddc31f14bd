"""A slot and its tasks: who gets the next step, what a failure does to the others, which attempts it listens to.

Family: examples. Tasks are real ones, deployed by messages; all they are sent and answer goes by hand.
"""

from __future__ import annotations

import cloudpickle
import pytest
from source_harness import ListSource

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Split
from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.job_graph import ChainedOperator, JobEdge, JobVertex
from headrace.engine.kernel.config import JobSettings
from headrace.engine.kernel.machine import Address, Offload, OffloadCompleted, Send
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.exchange import ForwardPartitioner
from headrace.engine.protocol.task_messages import (
    CancelTask,
    ChannelDescriptor,
    DataMessage,
    NextInputSplit,
    StartTask,
    SubmitTask,
    TaskDeployment,
    UpdateTaskExecutionState,
)
from headrace.engine.task.slot import SlotMachine
from headrace.engine.task.task import Task
from headrace.engine.task.turns import SOURCE_TURN
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId

JOB_MANAGER = Address("master", "job_manager")
PRODUCER = ExecutionAttemptId(1, 0, VertexId("producer"), 0)


class Fails(Operator):
    def process_batch(self, batch, input_index):
        message = "bad record"
        raise RuntimeError(message)


class Swallows(Operator):
    def process_batch(self, batch, input_index):
        pass


def attempt_of(vertex, attempt=0):
    return ExecutionAttemptId(1, attempt, VertexId(vertex), 0)


class Driver:
    """A slot that keeps a list of the steps it gave."""

    def __init__(self):
        self.slot = SlotMachine(Address("host", "slot"), Address("host", "task_manager"))
        self.slot.clock = lambda: 0
        self.states = []
        self.sequences = {}

    def give(self, message):
        self.carry_out(self.slot.handle(message, 0))

    def carry_out(self, commands):
        for command in commands:
            if isinstance(command, Offload) and command.name == "read_snapshot":
                self.give(OffloadCompleted(command.name, command.token, command.work(), None))
            elif isinstance(command, Send) and isinstance(command.message, UpdateTaskExecutionState):
                state = command.message
                self.states.append((state.attempt, state.state))

    def submit(self, vertex, operator, attempt=0):
        chain = (ChainedOperator(OperatorId(vertex), vertex, operator),)
        is_source = isinstance(operator, SourceOperator)
        edge = JobEdge(0, PRODUCER.vertex, 0, None, VertexId(vertex), 0, ForwardPartitioner(), 128)
        deployment = TaskDeployment(
            job_id=JobId("job"),
            job_name="job",
            attempt=attempt_of(vertex, attempt),
            vertex=cloudpickle.dumps(JobVertex(VertexId(vertex), vertex, chain, 1, 128)),
            input_edges=() if is_source else (edge,),
            output_edges=(),
            inputs=() if is_source else (ChannelDescriptor(0, PRODUCER, Address("upstream", "slot")),),
            outputs=(),
            settings=JobSettings(max_batch_rows=1),
            job_manager=JOB_MANAGER,
            coordinator=Address("master", "coordinator"),
            restore=None,
        )
        self.give(SubmitTask(deployment))

    def deploy(self, vertex, operator, attempt=0):
        self.submit(vertex, operator, attempt)
        self.give(StartTask(attempt_of(vertex, attempt)))

    def send(self, vertex, num_batches, attempt=0):
        consumer = attempt_of(vertex, attempt)
        for _ in range(num_batches):
            number = self.sequences.get(consumer, 0)
            self.sequences[consumer] = number + 1
            self.give(DataMessage(0, PRODUCER, consumer, number, (Batch.of_rows([1]),), 10))

    def step(self):
        outcome = self.slot.step(0)
        self.carry_out(outcome.commands)
        return outcome


@pytest.fixture
def stepped(monkeypatch):
    """The names of the tasks that were given a step, in order."""
    names = []
    original = Task.step

    def step(self, now_ms):
        names.append(self.name)
        original(self, now_ms)

    monkeypatch.setattr(Task, "step", step)
    return names


def source_that_always_has_more(driver):
    driver.deploy("source", SourceOperator(ListSource(), WatermarkStrategy.no_watermarks()))
    driver.step()
    split = Split("s", {"rows": list(range(1_000))})
    driver.give(NextInputSplit(attempt_of("source"), OperatorId("source"), 0, (split,), False))


def test_what_has_arrived_comes_before_more_of_a_source_which_does_not_starve(stepped):
    driver = Driver()
    source_that_always_has_more(driver)
    driver.deploy("a", Swallows())
    driver.send("a", 100)
    stepped.clear()
    for _ in range(5 * SOURCE_TURN):
        assert driver.step().runnable
    assert stepped.count("source") == 5
    assert stepped.count("a") == 5 * (SOURCE_TURN - 1)


def test_tasks_that_can_run_take_turns(stepped):
    driver = Driver()
    for name in ("a", "b", "c"):
        driver.deploy(name, Swallows())
        driver.send(name, 3)
    outcomes = [driver.step().runnable for _ in range(9)]
    assert sorted(stepped[:3]) == sorted(stepped[3:6]) == sorted(stepped[6:]) == ["a", "b", "c"]
    assert outcomes == [True] * 8 + [False]


def test_only_tasks_to_which_something_happens_are_asked_whether_they_can_go_on(monkeypatch):
    driver = Driver()
    for name in ("a", "b", "c"):
        driver.deploy(name, Swallows())
    driver.step()
    asked = []
    original = Task.next_step_ms

    def next_step_ms(self):
        asked.append(self.name)
        return original(self)

    monkeypatch.setattr(Task, "next_step_ms", next_step_ms)
    driver.send("b", 2)
    assert driver.step().runnable
    assert not driver.step().runnable
    assert not driver.step().runnable
    assert asked == ["b"] * 3  # as it got messages, and behind each of its steps


def test_a_task_that_fails_is_told_of_and_forgotten_and_the_others_go_on(stepped):
    driver = Driver()
    driver.deploy("bad", Fails())
    driver.deploy("good", Swallows())
    driver.send("bad", 2)
    driver.send("good", 2)
    while driver.step().runnable:
        pass
    assert driver.states[-1] == (attempt_of("bad"), "FAILED")
    assert stepped.count("bad") == 1
    assert stepped.count("good") == 2
    assert [task.name for task in driver.slot.tasks] == ["good"]


def test_a_newer_attempt_ends_the_older_one_and_an_older_one_is_refused():
    driver = Driver()
    driver.deploy("a", Swallows(), attempt=1)
    driver.deploy("a", Swallows(), attempt=2)
    assert (attempt_of("a", 1), "CANCELED") in driver.states
    driver.submit("a", Swallows(), attempt=1)
    assert [task.attempt for task in driver.slot.tasks] == [attempt_of("a", 2)]
    driver.send("a", 1, attempt=1)  # a zombie's data
    assert not driver.step().runnable


def test_a_cancellation_that_overtakes_its_submission_holds():
    driver = Driver()
    driver.give(CancelTask(attempt_of("a"), JOB_MANAGER))
    driver.submit("a", Swallows())
    assert driver.states == [(attempt_of("a"), "CANCELED")]
    assert driver.slot.tasks == []


def test_a_repeated_submission_tells_the_state_again():
    driver = Driver()
    driver.deploy("a", Swallows())
    driver.submit("a", Swallows())
    assert [state for _, state in driver.states] == ["INITIALIZING", "READY", "RUNNING", "RUNNING"]


def test_a_slot_says_whose_step_it_is_in(monkeypatch):
    driver = Driver()
    assert driver.slot.observe() == []
    for name in ("a", "b"):
        driver.deploy(name, Swallows())
        driver.send(name, 1)
    seen = []
    original = Task.step

    def step(self, now_ms):
        original(self, now_ms)
        seen.append((self.attempt, driver.slot.observe()))

    monkeypatch.setattr(Task, "step", step)
    while driver.step().runnable:
        pass
    assert [attempt for attempt, _ in seen] == [attempt_of("a"), attempt_of("b")]
    for attempt, tasks in seen:
        assert [task.attempt for task in tasks if task.is_stepping] == [attempt]
    assert not any(task.is_stepping or task.is_backpressured for task in driver.slot.observe())
    driver.give(CancelTask(attempt_of("a"), JOB_MANAGER))
    assert [task.attempt for task in driver.slot.observe()] == [attempt_of("b")]
