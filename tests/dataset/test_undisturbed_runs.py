"""Runs that a cluster is told of give what they give, and do not wait, whatever becomes of the telling.

Families: a cluster that does not answer, stores slowly, or is gone; a process without threads, or forked off; errors
that cannot say what they are. Each against the plain result of the run.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

import pytest

from headrace import ExecutionEnvironment, ListAccumulator, MapFunction
from headrace.actors import connecting
from headrace.dataset import reported_runs
from headrace.dataset.run_record import RunRecord, now_ms
from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.plan.run_watch import RunWatch
from headrace.engine.protocol.messages import JobReported

PATIENCE_S = 10


class Told:
    """A cluster, of which only the Dispatcher's answers are there."""

    name = "told"

    def __init__(self):
        # Until then nothing is answered; and until then no end is stored.
        self.may_answer, self.may_store = threading.Event(), threading.Event()
        self.may_answer.set()
        self.may_store.set()
        self.words, self.num_answers = [], 0

    def ask_dispatcher(self, request, timeout_ms):
        self.words.append(request.details.view)
        self.may_answer.wait(PATIENCE_S)
        self.num_answers += 1
        return JobReported(False, request.details.view.ended_ms is not None and self.may_store.is_set())

    def close(self):
        pass


@pytest.fixture
def told(monkeypatch):
    cluster = Told()
    monkeypatch.setattr(connecting, "connect", lambda *_, **__: cluster)
    monkeypatch.setattr(connecting, "only_cluster_on_ray", lambda _name: cluster)
    monkeypatch.setattr(reported_runs, "HEARD_S", 0.2)
    yield cluster
    cluster.may_answer.set()
    cluster.may_store.set()


@pytest.fixture
def env(told):
    with ExecutionEnvironment.get_execution_environment("local", 2, cluster_name="told") as made:
        yield made
        told.may_answer.set()
        told.may_store.set()


def test_runs_do_not_wait_for_a_cluster_that_hangs(env, told):
    told.may_answer.clear()
    assert [env.from_elements(*range(number)).count() for number in range(1, 4)] == [1, 2, 3]
    assert told.num_answers == 0, "a run waited for an answer"
    told.may_answer.set()
    env.close()
    ends = {view.job_id for view in told.words if view.state == "FINISHED"}
    assert len(ends) == 3, "its ends are told when it answers again"


def test_a_cluster_that_hangs_gathers_no_threads_and_what_is_not_told_is_said_once(env, told, caplog):
    said = "nor of others, until it has recorded the ends of 20 before"
    told.may_answer.clear()
    for number in range(reported_runs.MOST_LATE + 5):
        assert env.from_elements(1, 2).count() == 2
        assert caplog.text.count(said) == (number >= reported_runs.MOST_LATE)
    assert len(told.words) <= reported_runs.MOST_LATE
    told.may_answer.set()
    env.close()
    assert env._reports._late == []


def test_an_end_that_nobody_could_record_is_said(env, told, monkeypatch, caplog):
    monkeypatch.setattr(reported_runs, "LAST_WORD_S", 0.3)
    told.may_store.clear()
    assert env.from_elements(1, 2).count() == 2
    env.close()
    assert caplog.text.count("has not recorded the end of data set") == 1
    assert env.from_elements(1, 2).count() == 2
    told.may_store.set()
    env.close()
    assert caplog.text.count("has not recorded the end of data set") == 1


def test_an_end_is_said_once_if_the_last_answer_comes_when_nobody_waits_any_more(env, told, monkeypatch, caplog):
    monkeypatch.setattr(reported_runs, "LAST_WORD_S", 0.3)
    told.may_store.clear()
    assert env.from_elements(1, 2).count() == 2
    (late,) = env._reports._late
    told.may_answer.clear()
    while told.num_answers == len(told.words):  # until one is on its way that is not answered
        late._is_done.wait(0.01)
    env.close()
    told.may_answer.set()
    assert late._is_done.wait(PATIENCE_S)
    assert caplog.text.count("has not recorded the end of data set") == 1


def test_that_looking_for_a_cluster_fails_is_said_once_and_again_when_it_was_there(env, told, monkeypatch, caplog):
    def fails(*_, **__):
        message = "the connection is broken: token=secret"
        raise RuntimeError(message)

    def run_without():
        env._reports.lost()
        with monkeypatch.context() as broken:
            broken.setattr(connecting, "connect", fails)
            broken.setattr(connecting, "only_cluster_on_ray", fails)
            broken.setattr(reported_runs, "LOOK_FOR_CLUSTER_S", 0.0)
            broken.setattr(reported_runs, "INTERVAL_S", 0.0)
            for _ in range(3):
                env._reports._look_again_s = 0.0
                assert env.from_elements(1, 2).count() == 2

    assert env.from_elements(1, 2).count() == 2
    for number in (1, 2):
        run_without()
        assert caplog.text.count("looking for it failed") == number
        env._reports._look_again_s = 0.0
        assert env.from_elements(1, 2).count() == 2


def test_a_run_does_not_wait_for_a_store_that_is_slow_but_the_program_does(env, told, monkeypatch):
    monkeypatch.setattr(reported_runs, "HEARD_S", PATIENCE_S)
    told.may_store.clear()
    results = []
    runs = threading.Thread(target=lambda: results.extend(env.from_elements(1, 2).count() for _ in range(2)))
    runs.start()
    runs.join(PATIENCE_S / 2)
    assert results == [2, 2]
    closed = threading.Thread(target=env.close)
    closed.start()
    closed.join(0.3)
    assert closed.is_alive(), "an end may not be stored yet"
    told.may_store.set()
    closed.join(PATIENCE_S)
    assert not closed.is_alive()


def test_the_end_of_a_program_is_noted_once(env, told, monkeypatch):
    noted = []
    monkeypatch.setattr(atexit, "register", noted.append)
    for _ in range(3):
        told.may_store.clear()
        assert env.from_elements(1, 2).count() == 2
        (late,) = env._reports._late
        told.may_store.set()
        late.wait(time.monotonic() + PATIENCE_S)
        assert late.is_done
    assert len(noted) == 1


def test_a_cluster_that_was_asked_for_and_has_gone_is_no_error_of_later_runs(env, told, monkeypatch):
    def is_gone(*_, **__):
        message = "there is no Headrace cluster"
        raise ClusterUnavailableError(message)

    assert env.from_elements(1, 2).count() == 2
    env._reports.lost()
    with monkeypatch.context() as gone:
        gone.setattr(connecting, "connect", is_gone)
        gone.setattr(connecting, "only_cluster_on_ray", is_gone)
        assert env.from_elements(1, 2, 3).count() == 3
    other = ExecutionEnvironment.get_execution_environment("local", 2, cluster_name="never there")
    monkeypatch.setattr(connecting, "connect", is_gone)
    with pytest.raises(ClusterUnavailableError):
        other.from_elements(1).count()


def test_only_threads_of_the_program_open_a_connection_to_ray(env, told, monkeypatch):
    threads = []

    def connect(*_, **__):
        threads.append(threading.current_thread())
        return told

    monkeypatch.setattr(connecting, "connect", connect)
    monkeypatch.setattr(reported_runs, "INTERVAL_S", 0.0)
    before = told.ask_dispatcher

    def is_gone_once(request, timeout_ms):
        told.ask_dispatcher = before
        message = "the head has ended"
        raise ClusterUnavailableError(message)

    told.ask_dispatcher = is_gone_once
    assert env.from_elements(1, 2).count() == 2
    env.close()
    assert threads == [threading.current_thread()]
    assert told.words, "it was found again beside the program"


def test_large_accumulators_are_the_programs_own(env, told):
    class Notes(MapFunction):
        def open(self, runtime_context):
            self.all, self.few = ListAccumulator(), ListAccumulator()
            runtime_context.add_accumulator("all", self.all)
            runtime_context.add_accumulator("few", self.few)

        def map(self, value):
            self.all.add("x" * 1_000 + str(value))
            self.few.add(value)
            return value

    assert env.from_collection(range(300)).map(Notes()).count() == 300
    result = env.get_last_job_execution_result()
    assert len(result.get_accumulator_result("all")) == 300
    assert set(told.words[-1].accumulators) == {"few"}


class Speechless(Exception):
    def __str__(self):
        message = "it does not say what it is"
        raise RuntimeError(message)


def test_the_users_error_stays_what_it_is(env, told):
    with pytest.raises(Speechless), env._reports.tell(RunRecord("fails", RunWatch(now_ms))):
        raise Speechless
    assert told.words[-1].failures[0].kind == "Speechless"


def test_a_process_that_may_begin_no_threads_runs_its_data_sets(env, told, monkeypatch):
    def refuses(_thread):
        message = "can't create new thread at interpreter shutdown"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    assert env.from_elements(1, 2).count() == 2
    assert told.words == []


def test_a_process_that_was_forked_off_tells_nothing(env, told):
    assert env.from_elements(1, 2).count() == 2
    child = os.fork()
    if child == 0:
        try:
            with env._reports.tell(RunRecord("in the child", RunWatch(now_ms))) as run:
                os._exit(0 if run is None else 1)
        finally:
            os._exit(2)  # the tests are the parent's
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
