"""One task, driven by hand: its steps, what passes a blocked operator, how it finishes, and what becomes of snapshots.

Families: examples of the rules of a task's life; snapshots are really written and restored by a second task, on the
heap and in RocksDB, whose local files are looked for on the disk. What any interleaving of many tasks does is in
tests/simulation.
"""

from __future__ import annotations

import os
from dataclasses import replace

import cloudpickle
import pytest
from source_harness import ListSource

from headrace.engine.columns.records import MAX_WATERMARK, Batch, CheckpointBarrier, EndOfInput, StreamStatus, Watermark
from headrace.engine.connectors.contract import Split
from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.errors import InternalError
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.job_graph import ChainedOperator, JobEdge, JobVertex
from headrace.engine.kernel.config import CheckpointSettings, JobSettings, StateSettings
from headrace.engine.kernel.machine import Address, CancelOffload, Offload, Send
from headrace.engine.operators.async_operator import AsyncWaitOperator
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.exchange import ForwardPartitioner, RebalancePartitioner
from headrace.engine.protocol.checkpoint_messages import AcknowledgeCheckpoint, DeclineCheckpoint
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.task_messages import (
    AddCredit,
    ChannelDescriptor,
    DataMessage,
    NextInputSplit,
    RequestNextInputSplit,
    TaskDeployment,
    UpdateTaskExecutionState,
)
from headrace.engine.task.loop_head import IterationHead
from headrace.engine.task.outbox import OperatorWorkEnded
from headrace.engine.task.snapshot_io import read_restored_parts
from headrace.engine.task.task import Task
from headrace.state.backends.choice import RocksDBStateBackend
from headrace.state.checkpoints.snapshot import TaskRestore
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId
from headrace.state.keyed.descriptors import ValueStateDescriptor

JOB_MANAGER = Address("master", "job_manager")
COORDINATOR = Address("master", "coordinator")
SLOT = Address("host", "slot")
UPSTREAM = Address("upstream", "slot")
DOWNSTREAM = Address("downstream", "slot")
JOB = JobId("job")
ATTEMPT = ExecutionAttemptId(1, 0, VertexId("task"), 0)
CONSUMER = ExecutionAttemptId(1, 0, VertexId("sink"), 0)
FEEDBACK_EDGE = 50
OUTPUT_EDGE = 99


def barrier(number, **facts):
    return CheckpointBarrier(number, 0, **facts)


def rows(*values):
    return Batch.of_rows(list(values))


def number_of(token):
    """Of offloaded work: which of an operator's, or which checkpoint it is about."""
    return token.number if isinstance(token, OperatorWorkEnded) else token.checkpoint_id


class PassOn(Operator):
    """Emits what it takes, and keeps a diary."""

    def __init__(self):
        self.diary = []

    def process_batch(self, batch, input_index):
        self.context.output.emit(batch)

    def end_input(self, input_index):
        self.diary.append(f"end_input {input_index}")

    def finish(self):
        self.diary.append("finish")
        self.context.output.emit(rows("last words"))

    def notify_checkpoint_aborted(self, checkpoint_id):
        self.diary.append(f"aborted {checkpoint_id}")

    def close(self):
        self.diary.append("close")


class CountPerKey(PassOn):
    keyed = True

    def open(self, context):
        super().open(context)
        self.count = context.keyed_state.handle(ValueStateDescriptor("count"))

    def process_batch(self, batch, input_index):
        for row in batch.rows:
            self.context.keyed_state.current_key = row
            self.count.update((self.count.value() or 0) + 1)
            self.context.output.emit(rows((row, self.count.value())))


class FailsToOpen(PassOn):
    def open(self, context):
        message = "will not open"
        raise RuntimeError(message)


class FailsToClose(PassOn):
    def close(self):
        super().close()
        message = "will not close"
        raise RuntimeError(message)


class Asks(AsyncWaitOperator):
    """Asks for twice the record, two at a time."""

    def __init__(self):
        super().__init__(lambda value: [2 * value], ordered=True, capacity=2, timeout_ms=0)


class Driver:
    """A task with channels by hand: `send` brings elements, `run` steps until it rests, `out` is what it sent on."""

    def __init__(
        self,
        *operators,
        directory,
        inputs=1,
        feedback=0,
        restore=None,
        credit=1_000,
        stopwatch_us=None,
        unaligned=False,
        **settings,
    ):
        chain = tuple(
            ChainedOperator(OperatorId(f"op-{i}"), f"op-{i}", operator, parent=i - 1 if i else None)
            for i, operator in enumerate(operators)
        )
        vertex = JobVertex(ATTEMPT.vertex, "task", chain, 1, 128)

        def edge(number, **facts):
            return JobEdge(
                number,
                VertexId("a"),
                0,
                None,
                VertexId("op-0"),
                0,
                RebalancePartitioner() if unaligned else ForwardPartitioner(),
                128,
                **facts,
            )

        def producer(number):
            return ExecutionAttemptId(1, 0, VertexId(f"producer-{number}"), 0)

        ordinary = [edge(number) for number in range(inputs)]
        backward = [edge(FEEDBACK_EDGE + n, is_feedback=True, is_in_loop=True) for n in range(feedback)]
        onward = replace(edge(OUTPUT_EDGE), source_operator=len(chain) - 1, is_in_loop=bool(feedback))
        self.producers = {e.edge_id: producer(e.edge_id) for e in [*ordinary, *backward]}
        self.deployment = TaskDeployment(
            job_id=JOB,
            job_name="job",
            attempt=ATTEMPT,
            vertex=cloudpickle.dumps(vertex),
            input_edges=(*ordinary, *backward),
            output_edges=(onward,),
            inputs=tuple(ChannelDescriptor(number, peer, UPSTREAM) for number, peer in self.producers.items()),
            outputs=(ChannelDescriptor(OUTPUT_EDGE, CONSUMER, DOWNSTREAM),),
            settings=JobSettings(
                CheckpointSettings(1_000, str(directory), unaligned=unaligned), buffer_timeout_ms=0, **settings
            ),
            job_manager=JOB_MANAGER,
            coordinator=COORDINATOR,
            restore=restore,
        )
        self.now_ms = 0
        self.sequences = dict.fromkeys(self.producers, 0)
        self.out, self.told, self.states, self.works, self.canceled = [], [], [], {}, []
        self.task = Task(self.deployment, SLOT, lambda: self.now_ms, lambda _name: None, stopwatch_us)
        self.task.initialize(read_restored_parts(self.deployment))
        self.task.start()
        self.grant(credit)

    @property
    def operators(self):
        return [link.operator for link in self.task.links]

    def grant(self, up_to):
        self.task.add_credit(AddCredit(OUTPUT_EDGE, ATTEMPT, CONSUMER, up_to, 1 << 40))

    def send(self, edge, *elements):
        message = DataMessage(edge, self.producers[edge], ATTEMPT, self.sequences[edge], elements, 100)
        self.sequences[edge] += 1
        self.task.receive(message)

    def run(self):
        """Step and flush, as a slot does, until nothing can run."""
        while True:
            self.task.flush(self.now_ms)
            self.carry_out()
            if not self.task.is_runnable(self.now_ms):
                return self
            self.task.step(self.now_ms)

    def advance(self, ms):
        self.now_ms += ms
        return self.run()

    def carry_out(self):
        for command in self.task.take_commands():
            if isinstance(command, Offload):
                self.works[command.name, number_of(command.token)] = command.work
            elif isinstance(command, CancelOffload):
                del self.works[command.name, number_of(command.token)]
                self.canceled.append(number_of(command.token))
            elif isinstance(command, Send) and command.to == DOWNSTREAM:
                for element in command.message.elements:
                    self.out.extend(element.rows if isinstance(element, Batch) else [element])
            elif isinstance(command, Send) and isinstance(command.message, UpdateTaskExecutionState):
                self.states.append(command.message.state)
            elif isinstance(command, Send):
                self.told.append(command.message)

    def answer(self, number):
        """Do a piece of an operator's work and tell its end."""
        self.task.work_ended(number, self.works.pop(("operator_work", number))(), None)
        return self.run()

    def upload(self, number):
        """Write a snapshot and tell the end."""
        self.task.upload_ended(number, self.works.pop(("upload_snapshot", number))(), None)
        return self.run()

    def acknowledged(self):
        return [message.checkpoint_id for message in self.told if isinstance(message, AcknowledgeCheckpoint)]

    def declined(self):
        return [message.checkpoint_id for message in self.told if isinstance(message, DeclineCheckpoint)]

    def restore_point(self, number):
        """What a task of the next attempt is to read of an acknowledged checkpoint."""
        [written] = [m for m in self.told if isinstance(m, AcknowledgeCheckpoint) and m.checkpoint_id == number]
        root = CheckpointStorage.open(self.deployment.settings.checkpoints.directory, JOB).uri
        return TaskRestore(number, root, {snapshot.operator: (snapshot,) for snapshot in written.snapshots})


@pytest.fixture
def drive(tmp_path):
    """Makes drivers whose checkpoints share a folder."""
    drivers = []

    def make(*operators, **facts):
        drivers.append(Driver(*operators, directory=tmp_path / "checkpoints", **facts))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.task.cancel()


# ------------------------------------------------------------------------------------------------------------- barriers
def test_what_waited_behind_a_barrier_follows_the_snapshot_in_order(drive):
    driver = drive(PassOn(), inputs=2)
    driver.send(0, rows("a1"), barrier(1), rows("a2"))
    driver.run()
    driver.send(0, rows("a3"))
    driver.send(1, rows("b1"))
    driver.run()
    assert driver.acknowledged() == []
    assert not driver.task.is_runnable(driver.now_ms)  # channel 0 is blocked
    driver.send(1, barrier(1), rows("b2"))
    driver.run().upload(1).advance(100)
    before, after = driver.out[: driver.out.index(barrier(1))], driver.out[driver.out.index(barrier(1)) + 1 :]
    assert sorted(before) == ["a1", "b1"]
    assert [value for value in after if value[0] == "a"] == ["a2", "a3"]
    assert "b2" in after
    assert driver.acknowledged() == [1]


def test_an_abort_unblocks_the_channels_and_the_barrier_is_late(drive):
    driver = drive(PassOn(), inputs=2)
    driver.send(0, barrier(1), rows("a"))
    driver.run()
    driver.task.checkpoint_aborted(1)
    driver.send(1, barrier(1))
    driver.advance(100)
    assert driver.out == ["a"]
    assert driver.operators[0].diary == ["aborted 1"]
    assert not driver.works


def test_a_newer_barrier_declines_the_checkpoint_that_was_being_aligned(drive):
    driver = drive(PassOn(), inputs=2)
    driver.send(0, barrier(1), barrier(2))
    driver.send(1, barrier(2))
    driver.run().upload(2)
    assert driver.declined() == [1]
    assert driver.acknowledged() == [2]
    assert driver.out == [barrier(2)]


def test_a_snapshot_that_cannot_be_written_is_declined(drive):
    driver = drive(PassOn())
    driver.send(0, barrier(1))
    driver.run().task.upload_ended(1, None, OSError("disk full"))
    driver.run()
    assert driver.declined() == [1]


def test_nobody_listens_to_the_upload_of_an_aborted_checkpoint(drive):
    driver = drive(PassOn())
    driver.send(0, barrier(1))
    driver.run().task.checkpoint_aborted(1)
    driver.upload(1)
    assert driver.acknowledged() == driver.declined() == []


def test_a_trigger_before_the_start_is_declined(drive):
    driver = drive(source())
    driver.task.state = TaskState.READY
    driver.task.trigger_checkpoint(barrier(1))
    driver.task.state = TaskState.RUNNING
    driver.run()
    assert driver.declined() == [1]


# ---------------------------------------------------------------------------------------------------- blocked operators
def test_barriers_and_watermarks_pass_a_blocked_operator_but_no_records(drive):
    driver = drive(Asks(), PassOn())
    driver.send(0, rows(1, 2, 3), Watermark(5), barrier(1), rows(4), barrier(2))
    driver.run()
    assert driver.operators[0].is_blocked
    assert driver.out == [barrier(1)]  # the watermark is behind the results
    assert ("upload_snapshot", 1) in driver.works
    assert ("upload_snapshot", 2) not in driver.works  # a batch is in front of it
    driver.answer(1)  # there is room for the third record, and so for the next batch, which blocks again
    assert driver.out == [barrier(1), 2, barrier(2)]
    assert driver.operators[0].is_blocked
    for number in (2, 3, 4):
        driver.answer(number)
    assert driver.out == [barrier(1), 2, barrier(2), 4, 6, Watermark(5), 8]
    assert not driver.operators[0].is_blocked


def test_what_a_blocked_operator_had_under_way_is_asked_for_again_after_a_restart(drive):
    driver = drive(Asks(), PassOn())
    driver.send(0, rows(1, 2, 3), barrier(1))
    driver.run().upload(1)
    again = drive(Asks(), PassOn(), restore=driver.restore_point(1)).run()
    again.answer(1).answer(2).answer(3).advance(100)
    assert again.out == [2, 4, 6]


def test_a_source_is_not_polled_while_an_operator_behind_it_is_blocked(drive):
    driver = drive(source(), Asks(), max_batch_rows=3)
    driver.run()
    driver.task.take_split(split_answer(0, "s", [1, 2, 3, 4]))
    driver.run()
    assert len([name for name, _ in driver.works if name == "operator_work"]) == 2
    assert driver.task.next_step_ms() is None
    driver.task.trigger_checkpoint(barrier(1))
    assert driver.run().out == [barrier(1)]
    driver.answer(1).answer(2).advance(100)
    assert driver.out == [barrier(1), 2, 4]
    driver.answer(3).answer(4).advance(100)
    assert driver.out == [barrier(1), 2, 4, 6, 8]


# ------------------------------------------------------------------------------------------------------------ finishing
def test_finishing_waits_for_work_under_way_and_barriers_still_pass(drive):
    driver = drive(Asks(), PassOn())
    driver.send(0, rows(1, 2), EndOfInput(), barrier(1))
    driver.run()
    assert driver.states[-1] == "RUNNING"
    assert driver.operators[1].diary == []
    assert driver.out == [barrier(1)]
    driver.answer(2)
    assert driver.states[-1] == "RUNNING"
    driver.answer(1)
    assert driver.out == [barrier(1), 2, 4, "last words", EndOfInput()]
    assert driver.operators[1].diary == ["end_input 0", "finish"]
    assert driver.states[-1] == "ENDED"


def test_an_ended_task_answers_barriers_until_the_job_ends(drive):
    driver = drive(PassOn())
    driver.send(0, EndOfInput(), barrier(1))
    driver.run().upload(1)
    assert driver.acknowledged() == [1]
    assert driver.out == ["last words", EndOfInput(), barrier(1)]
    driver.task.finish_job()
    driver.run()
    assert driver.states == ["READY", "RUNNING", "ENDED", "FINISHED"]
    assert driver.operators[0].diary[-1] == "close"


def test_input_has_ended_when_all_its_channels_have(drive):
    driver = drive(PassOn(), inputs=2)
    driver.send(0, EndOfInput())
    assert driver.run().operators[0].diary == []
    driver.send(1, EndOfInput())
    assert driver.run().operators[0].diary == ["end_input 0", "finish"]


def test_a_task_stopped_at_a_checkpoint_drops_what_is_under_way_and_takes_nothing_more(drive):
    driver = drive(Asks(), PassOn())
    driver.send(0, rows(1, 2, 3), barrier(1, suspends=True))
    driver.run()
    assert driver.canceled == [1, 2]
    assert driver.states[-1] == "ENDED"
    assert driver.out == [barrier(1, suspends=True)]
    driver.upload(1).advance(1_000)
    assert driver.acknowledged() == [1]
    assert driver.task.next_step_ms() is None


# -------------------------------------------------------------------------------------------------------------- sources
def source():
    return SourceOperator(ListSource(), WatermarkStrategy.no_watermarks())


def split_answer(nonce, split_id, values, no_more=False):
    split = None if values is None else Split(split_id, {"rows": values})
    return NextInputSplit(ATTEMPT, OperatorId("op-0"), nonce, () if split is None else (split,), no_more)


def test_a_doubled_answer_to_a_split_request_is_taken_once(drive):
    driver = drive(source(), inputs=0).run()
    assert [m.nonce for m in driver.told if isinstance(m, RequestNextInputSplit)] == [0]
    for _ in range(2):
        driver.task.take_split(split_answer(0, "s", [1, 2]))
    driver.advance(100)
    assert driver.out == [1, 2]
    driver.task.take_split(split_answer(0, "t", [3]))
    driver.task.take_split(split_answer(1, None, None, no_more=True))
    driver.advance(100)
    assert driver.out == [1, 2, MAX_WATERMARK, EndOfInput()]


def test_a_split_that_comes_after_a_source_was_drained_is_in_its_snapshot(drive):
    driver = drive(source(), inputs=0).run()
    driver.task.stop_source(drain=True)
    driver.run()
    assert driver.states[-1] == "ENDED"
    driver.task.take_split(split_answer(0, "late", [1, 2]))
    driver.advance(100)
    assert driver.out == [MAX_WATERMARK, EndOfInput()]  # it is kept, and not read
    driver.task.trigger_checkpoint(barrier(1))
    driver.run().upload(1)
    again = drive(source(), inputs=0, restore=driver.restore_point(1)).advance(100)
    assert again.out == [1, 2]


# --------------------------------------------------------------------------------------------------------- backpressure
def test_without_credit_nothing_is_taken_and_no_time_is_wished_for(drive):
    driver = drive(PassOn(), credit=1, max_batch_rows=2)
    for number in range(4):
        driver.send(0, rows(number, number))
    driver.run()
    assert driver.out == [0, 0]
    assert not driver.task.is_runnable(driver.now_ms)
    assert driver.task.next_step_ms() is None
    driver.now_ms = 50
    driver.task.report_metrics()  # a wait that goes on counts so far
    assert driver.task.metrics.backpressured_ms == 50
    driver.now_ms = 70
    driver.grant(10)
    driver.run()
    assert driver.out == [0, 0, 1, 1, 2, 2, 3, 3]
    assert driver.task.metrics.backpressured_ms == 70


# ----------------------------------------------------------------------------------------------------------------- time
def test_idle_channels_are_left_out_and_all_idle_is_passed_on(drive):
    driver = drive(PassOn(), inputs=2)
    driver.send(0, Watermark(10))
    driver.send(1, StreamStatus(True))
    driver.advance(100)
    assert driver.out == [Watermark(10)]
    driver.send(0, StreamStatus(True))
    assert driver.advance(100).out == [Watermark(10), StreamStatus(True)]


# ----------------------------------------------------------------------------------------------------- life and failure
def test_a_chain_that_fails_to_open_half_way_closes_what_was_opened(tmp_path):
    driver = Driver.__new__(Driver)
    with pytest.raises(InternalError, match="will not open") as raised:
        driver.__init__(PassOn(), FailsToOpen(), PassOn(), directory=tmp_path)
    assert raised.value.context["operator"] == "op-1"
    driver.task.fail(raised.value)
    assert [operator.diary for operator in driver.operators] == [[], ["close"], ["close"]]
    assert driver.task.state == "FAILED"


def test_closing_goes_on_after_a_failure_and_tells_the_first(drive):
    driver = drive(PassOn(), FailsToClose(), PassOn())
    failure = driver.task.close()
    assert "will not close" in str(failure)
    assert all(operator.diary == ["close"] for operator in driver.operators)


# -------------------------------------------------------------------------------------------- snapshots and local files
@pytest.fixture
def rocksdb(tmp_path):
    """Settings of a backend whose local files can be looked for; and how to."""
    pytest.importorskip("rocksdict")
    folder = str(tmp_path / "local")
    described = RocksDBStateBackend(16 << 20, folder)
    settings = {"state": StateSettings("rocksdb", described.managed_memory_bytes, described.local_directory)}

    def snapshots():
        return sorted(
            name
            for directory in (os.listdir(folder) if os.path.isdir(folder) else ())
            if os.path.isdir(os.path.join(folder, directory))
            for name in os.listdir(os.path.join(folder, directory))
            if name.startswith("snapshot-")
        )

    return settings, snapshots


@pytest.fixture
def loop(drive, rocksdb):
    """The head of a loop, with keyed state behind it, whose barrier 1 has been taken and has not come back."""
    settings, snapshots = rocksdb
    driver = drive(IterationHead(), CountPerKey(), feedback=1, **settings)
    driver.send(0, rows("x", "y"), barrier(1))
    driver.run()
    assert ("upload_snapshot", 1) not in driver.works  # held
    assert snapshots() == ["snapshot-1"]
    return driver


def test_a_held_snapshot_is_written_when_the_barrier_has_come_back(loop, drive, rocksdb):
    settings, snapshots = rocksdb
    loop.send(FEEDBACK_EDGE, rows("x"), barrier(1), rows("z"))
    loop.run().upload(1)
    assert loop.acknowledged() == [1]
    assert snapshots() == []
    again = drive(IterationHead(), CountPerKey(), feedback=1, restore=loop.restore_point(1), **settings).advance(10)
    assert [row for row in again.out if isinstance(row, tuple)] == [("x", 2)]  # what came back, on the state before it


def test_an_aborted_checkpoint_drops_what_is_held_and_its_local_files(loop, rocksdb):
    _, snapshots = rocksdb
    loop.task.checkpoint_aborted(1)
    assert snapshots() == []
    loop.send(FEEDBACK_EDGE, barrier(1))
    loop.run()
    assert ("upload_snapshot", 1) not in loop.works


def test_a_task_that_ends_leaves_no_local_files(loop, rocksdb):
    _, snapshots = rocksdb
    loop.task.cancel()
    assert snapshots() == []


@pytest.mark.parametrize("end", ["written", "failed", "aborted"])
def test_local_files_of_a_snapshot_are_gone_when_its_upload_has_ended_in_whatever_way(drive, rocksdb, end):
    settings, snapshots = rocksdb
    driver = drive(CountPerKey(), **settings)
    driver.send(0, rows("x"), barrier(1))
    driver.run()
    assert snapshots() == ["snapshot-1"]
    if end == "failed":
        del driver.works["upload_snapshot", 1]
        driver.task.upload_ended(1, None, OSError("disk full"))
    else:
        if end == "aborted":
            driver.task.checkpoint_aborted(1)
        driver.upload(1)
    assert driver.run().acknowledged() == ([1] if end == "written" else [])
    assert snapshots() == []


def test_a_restart_goes_on_with_keyed_state_on_either_backend(drive, rocksdb):
    for settings in ({}, rocksdb[0]):
        driver = drive(CountPerKey(), **settings)
        driver.send(0, rows("x", "y", "x"), barrier(1), rows("x"))
        driver.run().upload(1)
        again = drive(CountPerKey(), restore=driver.restore_point(1), **settings)
        again.send(0, rows("x", "y"))
        assert again.advance(100).out == [("x", 3), ("y", 2)]


# ------------------------------------------------------------------------------------------------------ costly records
class Stopwatch:
    now_us = 0


STOPWATCH = Stopwatch()


class OnStopwatch(PassOn):
    """Takes so many microseconds for each record, by a stopwatch that nothing else moves."""

    def __init__(self, cost_us):
        super().__init__()
        self.cost_us = cost_us

    def process_batch(self, batch, input_index):
        STOPWATCH.now_us += self.cost_us * batch.num_rows
        super().process_batch(batch, input_index)


def step_once(driver):
    """One step; gives how long it took, in milliseconds."""
    began_us = STOPWATCH.now_us
    driver.task.step(driver.now_ms)
    driver.task.flush(driver.now_ms)
    driver.carry_out()
    return (STOPWATCH.now_us - began_us) / 1_000


def test_no_step_takes_long_and_the_first_result_is_there_after_the_first(drive):
    driver = drive(OnStopwatch(5_000), stopwatch_us=lambda: STOPWATCH.now_us)
    driver.send(0, rows(*range(400)), EndOfInput())
    assert step_once(driver) <= 30
    assert driver.out[:1] == [0]
    while driver.task.is_runnable(0):
        assert step_once(driver) <= 30
    assert driver.out == [*range(400), "last words", EndOfInput()]


def test_two_inputs_take_turns_within_batches(drive):
    driver = drive(OnStopwatch(5_000), inputs=2, stopwatch_us=lambda: STOPWATCH.now_us)
    driver.send(0, rows(*[("a", i) for i in range(100)]))
    driver.send(1, rows(*[("b", i) for i in range(100)]))
    for _ in range(4):
        step_once(driver)
    assert {name for name, _ in driver.out} == {"a", "b"}
    driver.run()
    for name in "ab":
        assert [i for one, i in driver.out if one == name] == list(range(100))


def test_the_rest_of_a_batch_comes_before_the_barrier_and_the_watermark_behind_it(drive):
    driver = drive(OnStopwatch(5_000), stopwatch_us=lambda: STOPWATCH.now_us)
    driver.send(0, rows(*range(50)), Watermark(7), barrier(1), rows(50))
    driver.run().upload(1).advance(100)
    assert driver.out == [*range(50), Watermark(7), barrier(1), 50]
    assert driver.acknowledged() == [1]


def test_a_barrier_that_overtakes_waits_for_one_step_and_takes_the_rest_along(drive):
    driver = drive(OnStopwatch(5_000), stopwatch_us=lambda: STOPWATCH.now_us, unaligned=True)
    driver.send(0, rows(*range(400)))
    step_once(driver)
    done = [value for value in driver.out if isinstance(value, int)]
    assert 0 < len(done) < 10
    driver.send(0, barrier(1))
    step_once(driver)
    driver.carry_out()
    done = [value for value in driver.out if isinstance(value, int)]
    driver.upload(1)
    assert driver.acknowledged() == [1]
    again = drive(OnStopwatch(5_000), stopwatch_us=lambda: STOPWATCH.now_us, restore=driver.restore_point(1))
    again.run()
    in_snapshot = [value for value in driver.out[: driver.out.index(barrier(1))] if isinstance(value, int)]
    assert in_snapshot + [value for value in again.out if isinstance(value, int)] == list(range(400))
    driver.run()
    assert [value for value in driver.out if isinstance(value, int)] == list(range(400))
