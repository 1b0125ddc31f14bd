"""The CheckpointCoordinator: its rules one by one, and its invariants under any interleaving of what it is told."""

from collections import deque

import pytest
from campaigns import examples
from control_harness import COORDINATOR, JOB_MANAGER, of_kind, sent, settings, submission
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.checkpoint.coordinator import CheckpointCoordinator, CheckpointPublished, CheckpointsListed
from headrace.engine.checkpoint.io import CheckpointInventory, Fenced
from headrace.engine.errors import CheckpointError, StorageError
from headrace.engine.kernel.machine import CancelTimer, Offload, OffloadCompleted, Reply, StartTimer
from headrace.engine.protocol.checkpoint_messages import (
    AcknowledgeCheckpoint,
    CheckpointEnded,
    CheckpointOutcome,
    CheckpointRequested,
    CheckpointTriggered,
    CheckpointWanted,
    CoordinatorStopped,
    DeclineCheckpoint,
    ExecutionStarted,
    ExecutionStopped,
    ReportsPending,
    ReportsWanted,
    SavepointTarget,
)
from headrace.engine.protocol.messages import RequestFailed
from headrace.state.identifiers import ExecutionAttemptId


class Driver:
    """A coordinator with timers and offloaded work in the hands of the test; the store is played, not real."""

    def __init__(self, num_tasks=2, highest_id=0, complete=(), **options):
        options.setdefault("interval_ms", 100)
        job = submission(job_settings=settings(checkpoints=True, **options))
        self.cc = CheckpointCoordinator(COORDINATOR, JOB_MANAGER, job)
        self.inventory = CheckpointInventory(highest_id, tuple(complete))
        self.num_tasks = num_tasks
        self.deployment = -1
        self.timers, self.works, self.told = {}, deque(), []
        self.answers = {}
        self.now_ms = 1_000

    def give(self, event):
        commands = self.cc.handle(event, self.now_ms)
        for command in commands:
            if isinstance(command, StartTimer):
                self.timers[command.key] = command
            elif isinstance(command, CancelTimer):
                self.timers.pop(command.key, None)
            elif isinstance(command, Offload):
                self.works.append(command)
            elif isinstance(command, Reply):
                self.answers.setdefault(command.ask_id, []).append(command.value)
            else:
                self.told.append(command.message)
        for wanted in sent(commands, ReportsWanted):
            commands += self.give(ReportsPending(wanted.checkpoint_id, ()))
        return commands

    def attempts(self, deployment=None):
        number = self.deployment if deployment is None else deployment
        return tuple(ExecutionAttemptId(1, number, "v", i) for i in range(self.num_tasks))

    def start(self):
        self.deployment += 1
        commands = self.give(ExecutionStarted(1, self.deployment))
        if self.works and self.works[0].name == "list_checkpoints":
            commands += self.end_work(self.inventory)
        return commands

    def end_work(self, result=None, error=None):
        work = self.works.popleft()
        return self.give(OffloadCompleted(work.name, work.token, None if error else result, error))

    def fire(self, key):
        timer = self.timers.pop(key)
        self.now_ms += timer.delay_ms
        return self.give(timer.message)

    def trigger(self):
        """Let the interval pass; gives the id that was requested."""
        [request] = sent(self.fire("interval"), CheckpointRequested)
        self.give(CheckpointTriggered(request.checkpoint_id, self.attempts(), {}))
        return request.checkpoint_id

    def acknowledge(self, checkpoint_id, subtasks=None):
        commands = []
        for attempt in self.attempts():
            if subtasks is None or attempt.subtask in subtasks:
                commands += self.give(AcknowledgeCheckpoint(attempt, checkpoint_id, (), {"bytes": 7, "sync_ms": 2}))
        return commands

    def complete(self, checkpoint_id):
        self.acknowledge(checkpoint_id)
        return self.publish(checkpoint_id)

    def publish(self, checkpoint_id):
        """End the publication under way, leaving clean-up work to itself."""
        while self.works and self.works[0].name == "collect_garbage":
            self.end_work([])
        assert self.works[0].token == CheckpointPublished(checkpoint_id)
        commands = self.end_work(f"chk-{checkpoint_id}")
        while self.works and self.works[0].name == "collect_garbage":
            self.end_work([])
        return commands


@pytest.mark.parametrize("collects", [False, True])
def test_rows_are_asked_for_only_where_a_sink_collects(collects):
    """Coordinator and JobManager exchange three messages for a checkpoint, or five."""
    driver = Driver()
    driver.start()
    [request] = sent(driver.fire("interval"), CheckpointRequested)
    driver.give(CheckpointTriggered(request.checkpoint_id, driver.attempts(), {}, collects=collects))
    driver.complete(request.checkpoint_id)
    kinds = (
        [CheckpointRequested, ReportsWanted, CheckpointEnded] if collects else [CheckpointRequested, CheckpointEnded]
    )
    assert [type(message) for message in driver.told] == kinds


def test_checkpoint_is_published_when_all_have_acknowledged():
    driver = Driver()
    driver.start()
    checkpoint_id = driver.trigger()
    assert driver.acknowledge(checkpoint_id, [0]) == []
    assert driver.acknowledge(checkpoint_id, [0]) == []
    driver.acknowledge(checkpoint_id, [1])
    [completed] = sent(driver.publish(checkpoint_id), CheckpointEnded)
    assert (completed.checkpoint_id, completed.path) == (1, "chk-1")
    assert completed.metrics == {
        "duration_ms": 0,
        "bytes": 14,
        "uploaded_bytes": 0,
        "persisted_bytes": 0,
        "is_unaligned": 0,
        "alignment_ms": 0,
        "sync_ms": 2,
        "async_ms": 0,
    }


def test_acknowledgement_may_overtake_the_job_managers_word():
    driver = Driver()
    driver.start()
    driver.fire("interval")
    driver.acknowledge(1)
    assert not driver.works
    driver.give(CheckpointTriggered(1, driver.attempts(), {}))
    assert driver.works[0].name == "publish_checkpoint"


def test_ids_go_on_behind_everything_in_the_store():
    driver = Driver(highest_id=41, complete=[(40, "chk-40")])
    driver.start()
    assert driver.trigger() == 42


def test_nothing_is_triggered_before_the_store_is_listed():
    driver = Driver()
    driver.deployment = 0
    driver.give(ExecutionStarted(1, 0))
    assert sent(driver.fire("interval"), CheckpointRequested) == []
    assert [r.checkpoint_id for r in sent(driver.end_work(driver.inventory), CheckpointRequested)] == [1]


def test_only_max_concurrent_are_in_flight():
    driver = Driver(max_concurrent=2)
    driver.start()
    first, second = driver.trigger(), driver.trigger()
    assert sent(driver.fire("interval"), CheckpointRequested) == []
    assert [r.checkpoint_id for r in sent(driver.complete(first), CheckpointRequested)] == [3]
    assert second == 2


def test_newer_complete_checkpoint_subsumes_older_ones():
    driver = Driver(max_concurrent=3)
    driver.start()
    driver.trigger()
    second = driver.trigger()
    commands = driver.complete(second)
    ended = [(message.checkpoint_id, message.outcome) for message in sent(commands, CheckpointEnded)]
    assert ended == [(2, CheckpointOutcome.COMPLETED), (1, CheckpointOutcome.ABORTED)]
    driver.acknowledge(1)
    assert not driver.works


def test_a_checkpoint_may_build_on_the_newest_complete_one_which_stays_until_it_has_ended():
    driver = Driver(max_concurrent=2, num_retained=1)
    driver.start()
    base_of = {}

    def trigger():
        [request] = sent(driver.fire("interval"), CheckpointRequested)
        base_of[request.checkpoint_id] = request.base_id
        driver.give(CheckpointTriggered(request.checkpoint_id, driver.attempts(), {}))
        return request.checkpoint_id

    def garbage_of(checkpoint_id):
        driver.acknowledge(checkpoint_id)
        driver.works.popleft()
        driver.give(
            OffloadCompleted("publish_checkpoint", CheckpointPublished(checkpoint_id), f"chk-{checkpoint_id}", None)
        )
        [work] = driver.works
        driver.end_work([])
        _directory, _job, _epoch, retained, bases = work.work.args
        return set(retained), set(bases)

    first = trigger()
    assert garbage_of(first) == ({1}, set())
    second, third = trigger(), trigger()
    assert base_of == {1: 0, 2: 1, 3: 1}
    assert garbage_of(second) == ({2}, {1})
    assert garbage_of(third) == ({3}, set())
    assert trigger() == 4
    assert base_of[4] == 3


def test_the_first_checkpoint_after_a_restart_builds_on_the_newest_complete_one():
    driver = Driver(highest_id=9, complete=((5, "chk-5"), (7, "chk-7")))
    driver.start()
    [request] = sent(driver.fire("interval"), CheckpointRequested)
    assert (request.checkpoint_id, request.base_id) == (10, 7)


def wanted_by(ask_id, *, is_full=False):
    return CheckpointWanted(1, 0, ask_id=ask_id, is_full=is_full)


def test_a_client_is_answered_when_the_checkpoint_it_asked_for_is_complete():
    """At once, whatever interval and pause say; but behind one that is under way, which is not what was asked for."""
    driver = Driver(min_pause_ms=10_000, interval_ms=10_000, complete=((7, "chk-7"),), highest_id=7)
    driver.start()
    [request] = sent(driver.give(wanted_by("a")), CheckpointRequested)
    assert request.base_id == 7
    driver.give(CheckpointTriggered(request.checkpoint_id, driver.attempts(), {}))
    assert not sent(driver.give(wanted_by("b")), CheckpointRequested)
    assert not sent(driver.give(wanted_by("c", is_full=True)), CheckpointRequested)
    assert driver.answers == {}
    [second] = sent([*driver.acknowledge(8), *driver.publish(8)], CheckpointRequested)  # no pause: it was asked for
    [view] = driver.answers.pop("a")
    assert (view.checkpoint_id, view.status, view.path) == (8, "COMPLETED", "chk-8")
    assert (second.checkpoint_id, second.base_id) == (9, 0), "a full one builds on nothing"
    driver.give(CheckpointTriggered(9, driver.attempts(), {}))
    driver.complete(9)
    assert {ask_id: [one.checkpoint_id for one in views] for ask_id, views in driver.answers.items()} == {
        "b": [9],
        "c": [9],
    }
    [third] = sent(driver.give(wanted_by("d")), CheckpointRequested)
    assert third.base_id == 9, "the next one builds on it again"


@pytest.mark.parametrize("is_fenced", [False, True])
def test_nobody_waits_behind_the_last_checkpoint(is_fenced):
    """Of the job, or of this leader."""
    driver = Driver(max_concurrent=2, tolerable_failures=5)
    driver.start()
    driver.give(CheckpointWanted(1, 0, is_last=not is_fenced, ask_id="a" if is_fenced else None))
    driver.give(CheckpointTriggered(1, driver.attempts(), {}))
    driver.give(wanted_by("b"))
    driver.give(wanted_by("c"))
    driver.acknowledge(1)
    driver.end_work(Fenced("epoch 2") if is_fenced else "chk-1")
    assert set(driver.answers) == ({"a", "b", "c"} if is_fenced else {"b", "c"})
    assert all(isinstance(one, RequestFailed) for answers in driver.answers.values() for one in answers)


@pytest.mark.parametrize("end", ["declined", "expired", "refused", "store", "stopped", "fenced", "subsumed"])
def test_a_client_is_told_once_that_the_checkpoint_it_asked_for_will_never_be(end):
    driver = Driver(max_concurrent=2, tolerable_failures=5)
    driver.start()
    driver.give(wanted_by("a"))
    if end == "refused":
        driver.give(CheckpointTriggered(1, (), {}, "the job is stopping"))
    else:
        driver.give(CheckpointTriggered(1, driver.attempts(), {}))
    if end == "declined":
        driver.give(DeclineCheckpoint(driver.attempts()[0], 1, "no disk"))
    elif end == "expired":
        driver.fire("expire-1")
    elif end in ("store", "fenced"):
        driver.acknowledge(1)
        is_fenced = end == "fenced"
        driver.end_work(Fenced("epoch 2") if is_fenced else None, error=None if is_fenced else StorageError("full"))
    elif end == "stopped":
        driver.give(wanted_by("b"))
        driver.give(wanted_by("c"))  # no room for it: it waits
        driver.give(ExecutionStopped(1, 0))
    elif end == "subsumed":
        driver.complete(driver.trigger())
    expected = {"a", "b", "c"} if end == "stopped" else {"a"}
    assert set(driver.answers) == expected
    for answers in driver.answers.values():
        [answer] = answers
        assert isinstance(answer, RequestFailed)
        assert isinstance(answer.error, CheckpointError)
    driver.give(ExecutionStopped(1, 0))
    assert all(len(answers) == 1 for answers in driver.answers.values())


def test_a_client_that_asks_while_the_job_does_not_run_is_refused():
    driver = Driver()
    driver.give(wanted_by("a"))
    driver.start()
    driver.give(CheckpointWanted(1, 7, ask_id="b"))  # of another deployment
    driver.give(CheckpointWanted(1, 0, is_last=True))
    driver.give(CheckpointTriggered(1, driver.attempts(), {}))
    driver.complete(1)
    driver.give(wanted_by("c"))
    assert set(driver.answers) == {"a", "b", "c"}
    assert all(isinstance(one, RequestFailed) for [one] in driver.answers.values())


def test_pause_is_kept_between_end_and_trigger():
    driver = Driver(min_pause_ms=500)
    driver.start()
    driver.complete(driver.trigger())
    assert sent(driver.fire("interval"), CheckpointRequested) == []
    assert [r.checkpoint_id for r in sent(driver.fire("pause"), CheckpointRequested)] == [2]


def test_expired_checkpoint_names_who_was_missing():
    driver = Driver(tolerable_failures=1)
    driver.start()
    driver.acknowledge(driver.trigger(), [0])
    [aborted] = sent(driver.fire("expire-1"), CheckpointEnded)
    assert "v[1]#1.0" in aborted.reason
    assert aborted.outcome is CheckpointOutcome.ABORTED


def test_too_many_failures_in_a_row_are_the_jobs():
    driver = Driver(tolerable_failures=1)
    driver.start()
    for expected in (False, True):
        checkpoint_id = driver.trigger()
        decline = DeclineCheckpoint(driver.attempts()[0], checkpoint_id, "disk full")
        [aborted] = sent(driver.give(decline), CheckpointEnded)
        assert (aborted.outcome is CheckpointOutcome.INTOLERABLE) is expected
    assert sent(driver.fire("interval"), CheckpointRequested) == []


def test_success_resets_the_count_of_failures():
    driver = Driver(tolerable_failures=1)
    driver.start()
    for _ in range(3):
        driver.give(DeclineCheckpoint(driver.attempts()[0], driver.trigger(), "no"))
        driver.complete(driver.trigger())
    ended = [m.outcome for m in driver.told if isinstance(m, CheckpointEnded)]
    assert CheckpointOutcome.INTOLERABLE not in ended


def test_refused_checkpoint_is_no_failure():
    driver = Driver()
    driver.start()
    driver.fire("interval")
    [aborted] = sent(driver.give(CheckpointTriggered(1, (), {}, "the job is finishing")), CheckpointEnded)
    assert aborted.outcome is CheckpointOutcome.ABORTED


def test_failed_publication_is_a_failed_checkpoint():
    driver = Driver(tolerable_failures=1)
    driver.start()
    driver.acknowledge(driver.trigger())
    [aborted] = sent(driver.end_work(error=StorageError("no space")), CheckpointEnded)
    assert "no space" in aborted.reason


def test_retained_are_the_newest():
    driver = Driver(num_retained=2)
    driver.start()
    for _ in range(4):
        checkpoint_id = driver.trigger()
        driver.acknowledge(checkpoint_id)
        driver.end_work(f"chk-{checkpoint_id}")
        retained = driver.works[0].token.retained
        driver.end_work([])
    assert retained == (3, 4)


def test_stop_waits_for_the_publication_under_way():
    driver = Driver()
    driver.start()
    driver.acknowledge(driver.trigger())
    assert sent(driver.give(ExecutionStopped(1, 0)), CoordinatorStopped) == []
    commands = driver.end_work("chk-1")
    assert [type(c.message) for c in commands if hasattr(c, "message")] == [CheckpointEnded, CoordinatorStopped]
    assert sent(commands, CoordinatorStopped) == [CoordinatorStopped(0)]


def test_stop_gives_up_what_is_pending():
    driver = Driver()
    driver.start()
    driver.trigger()
    (stopped,) = sent(driver.give(ExecutionStopped(1, 0)), CoordinatorStopped)
    assert stopped.deployment == 0
    assert [(view.checkpoint_id, view.status, view.reason) for view in stopped.aborted] == [
        (1, "FAILED", "the job stops")
    ]
    driver.acknowledge(1)
    assert not driver.works
    driver.start()
    assert driver.trigger() == 2


def test_stop_without_start_is_answered():
    driver = Driver()
    assert sent(driver.give(ExecutionStopped(1, -1)), CoordinatorStopped) == [CoordinatorStopped(-1)]


def test_final_checkpoint_comes_at_once_but_after_those_on_the_way():
    driver = Driver(min_pause_ms=1_000)
    driver.start()
    first = driver.trigger()
    assert sent(driver.give(CheckpointWanted(1, 0, is_last=True)), CheckpointRequested) == []
    assert [r.checkpoint_id for r in sent(driver.complete(first), CheckpointRequested)] == [2]
    driver.give(CheckpointTriggered(2, driver.attempts(), {}))
    assert sent(driver.complete(2), CheckpointRequested) == []
    assert sent(driver.fire("interval"), CheckpointRequested) == []


def test_failed_final_checkpoint_is_tried_again():
    driver = Driver(tolerable_failures=5)
    driver.start()
    driver.give(CheckpointWanted(1, 0, is_last=True))
    driver.give(CheckpointTriggered(1, driver.attempts(), {}))
    driver.give(DeclineCheckpoint(driver.attempts()[0], 1, "busy"))
    assert [r.checkpoint_id for r in sent(driver.fire("final"), CheckpointRequested)] == [2]


def test_the_last_checkpoint_is_tried_less_and_less_often_while_the_store_is_full():
    driver = Driver(tolerable_failures=-1)
    driver.start()
    driver.give(CheckpointWanted(1, 0, is_last=True))
    pauses_ms = []
    for checkpoint_id in range(1, 12):
        driver.give(CheckpointTriggered(checkpoint_id, driver.attempts(), {}))
        driver.give(DeclineCheckpoint(driver.attempts()[0], checkpoint_id, "no space left on device"))
        pauses_ms.append(driver.timers["final"].delay_ms)
        driver.fire("final")
    assert pauses_ms[:4] == [100, 200, 400, 800]
    assert pauses_ms[-2:] == [12_800, 12_800]


def test_fenced_leader_says_so_and_stops_triggering():
    driver = Driver()
    driver.start()
    driver.acknowledge(driver.trigger())
    [ended] = sent(driver.end_work(Fenced("epoch 2 has taken over")), CheckpointEnded)
    assert ended.outcome is CheckpointOutcome.FENCED
    assert sent(driver.fire("interval"), CheckpointRequested) == []


def test_unlistable_store_is_a_failure_and_is_asked_again():
    driver = Driver(tolerable_failures=3)
    driver.deployment = 0
    driver.give(ExecutionStarted(1, 0))
    [ended] = sent(driver.end_work(error=StorageError("away")), CheckpointEnded)
    assert ended.outcome is CheckpointOutcome.ABORTED
    assert of_kind(driver.fire("inventory"), Offload)


def test_job_without_checkpoints_stops_at_once():
    cc = CheckpointCoordinator(COORDINATOR, JOB_MANAGER, submission())
    assert cc.handle(ExecutionStarted(1, 0), 0) == []
    assert sent(cc.handle(ExecutionStopped(1, 0), 0), CoordinatorStopped) == [CoordinatorStopped(0)]


class CoordinatorMachine(RuleBasedStateMachine):
    """Any interleaving of acknowledgements, declines, expiries, failing publications, savepoints, stops and starts."""

    @initialize(concurrent=st.integers(1, 3), pause=st.sampled_from([0, 50]), retained=st.integers(1, 2))
    def begin(self, concurrent, pause, retained):
        self.told_complete = []
        self.driver = Driver(
            max_concurrent=concurrent, min_pause_ms=pause, num_retained=retained, tolerable_failures=-1, highest_id=3
        )
        self.max_concurrent = concurrent
        # What the test knows: acknowledged attempts, requested in which deployment, and ends.
        self.acknowledged, self.requested, self.published, self.aborted = {}, {}, [], set()
        # Savepoints: their numbers, and what became of each request.
        self.savepoints, self.answers, self.num_wanted = set(), {}, 0
        self.is_stopping = False
        self.seen = 0
        self.driver.start()
        self.look()

    def look(self):
        """Take note of what the coordinator has said since the last look."""
        told = self.driver.told[self.seen :]
        self.seen = len(self.driver.told)
        for message in told:
            if isinstance(message, CheckpointRequested):
                assert message.checkpoint_id > max([3, *self.requested]), "ids only grow"
                assert not self.is_stopping
                self.requested[message.checkpoint_id] = self.driver.deployment
                assert message.base_id not in self.savepoints, "nothing builds on a savepoint"
                if message.savepoint is not None:
                    self.savepoints.add(message.checkpoint_id)
                    assert message.base_id == 0, "a savepoint builds on nothing"
                self.driver.give(CheckpointTriggered(message.checkpoint_id, self.driver.attempts(), {}))
            elif isinstance(message, CheckpointEnded) and message.request_id is not None:
                assert message.request_id not in self.answers, "every request is answered once"
                self.answers[message.request_id] = message
                if message.outcome is not CheckpointOutcome.COMPLETED:
                    self.aborted.add(message.checkpoint_id)
            elif isinstance(message, CheckpointEnded) and message.outcome is not CheckpointOutcome.COMPLETED:
                assert message.checkpoint_id not in self.published
                assert message.checkpoint_id not in self.savepoints, "their failure counts for nothing"
                self.aborted.add(message.checkpoint_id)
            elif isinstance(message, CheckpointEnded):
                assert message.checkpoint_id not in self.aborted, "an aborted checkpoint never completes"
                assert message.checkpoint_id not in self.savepoints, "nobody commits on a savepoint"
                self.told_complete.append(message.checkpoint_id)
            elif isinstance(message, CoordinatorStopped):
                self.is_stopping = False
                assert not self.publications()
        for work in self.publications():
            expected = set(self.driver.attempts(self.requested[work.token.checkpoint_id]))
            assert self.acknowledged.get(work.token.checkpoint_id) == expected, (
                "published only with all acknowledgements"
            )
        if self.seen < len(self.driver.told):
            self.look()

    def publications(self):
        return [work for work in self.driver.works if work.name == "publish_checkpoint"]

    @rule(data=st.data(), subtask=st.integers(0, 1))
    def acknowledge(self, data, subtask):
        if not self.requested:
            return
        checkpoint_id = data.draw(st.sampled_from(sorted(self.requested)))
        attempt = self.driver.attempts(self.requested[checkpoint_id])[subtask]
        self.acknowledged.setdefault(checkpoint_id, set()).add(attempt)
        self.driver.give(AcknowledgeCheckpoint(attempt, checkpoint_id, (), {}))
        self.look()

    @rule(data=st.data())
    def acknowledge_from_nowhere(self, data):
        if self.requested:
            checkpoint_id = data.draw(st.sampled_from(sorted(self.requested)))
            stranger = ExecutionAttemptId(1, 99, "v", 0)
            self.driver.give(AcknowledgeCheckpoint(stranger, checkpoint_id, (), {}))
            self.driver.give(DeclineCheckpoint(stranger, checkpoint_id, "stale"))
            self.look()

    @rule(data=st.data())
    def decline(self, data):
        if self.requested:
            checkpoint_id = data.draw(st.sampled_from(sorted(self.requested)))
            attempt = self.driver.attempts(self.requested[checkpoint_id])[0]
            self.driver.give(DeclineCheckpoint(attempt, checkpoint_id, "no"))
            self.look()

    @rule(data=st.data())
    def fire_a_timer(self, data):
        if self.driver.timers:
            self.driver.fire(data.draw(st.sampled_from(sorted(self.driver.timers))))
            self.look()

    @rule(fails=st.booleans())
    def end_work(self, fails):
        if self.driver.works:
            token = self.driver.works[0].token
            result = self.driver.inventory if isinstance(token, CheckpointsListed) else None
            if isinstance(token, CheckpointPublished):
                number = token.checkpoint_id
                result = f"chk-{number}"
                if not fails and number in self.savepoints:
                    self.aborted.add(number)  # over, one way or the other
                elif not fails:
                    assert number > max(self.published, default=0), "published ids only grow"
                    self.published.append(number)
            self.driver.end_work(result, StorageError("flaky") if fails else None)
            self.look()

    @precondition(lambda self: not self.is_stopping)
    @rule()
    def restart(self):
        self.is_stopping = True
        self.driver.give(ExecutionStopped(1, self.driver.deployment))
        self.look()
        while self.is_stopping:
            self.end_work(fails=False)
        assert self.told_complete == self.published, "what is complete is told before the stop is answered"
        assert len(self.answers) == self.num_wanted, "what is under way ends with its deployment"
        self.driver.start()
        self.look()

    @rule()
    def want_savepoint(self):
        self.num_wanted += 1
        request = f"request-{self.num_wanted}"
        self.driver.give(
            CheckpointWanted(
                1, self.driver.deployment, savepoint=SavepointTarget(request, f"memory://nowhere/{request}")
            )
        )
        self.look()

    @rule()
    def want_final(self):
        self.driver.give(CheckpointWanted(1, self.driver.deployment, is_last=True))
        self.look()

    @invariant()
    def one_publication_at_a_time(self):
        assert len(self.publications()) <= 1

    @invariant()
    def no_more_in_flight_than_allowed(self):
        ended = self.aborted | set(self.published) | self.savepoints
        running = [i for i, deployment in self.requested.items() if deployment == self.driver.deployment]
        assert len([i for i in running if i not in ended]) <= self.max_concurrent


TestAnyInterleaving = CoordinatorMachine.TestCase
TestAnyInterleaving.settings = hypothesis_settings(max_examples=examples(80), stateful_step_count=60, deadline=None)
