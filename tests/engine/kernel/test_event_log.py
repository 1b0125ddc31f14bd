"""The operational log: what a line holds, what is masked, what is kept; and who writes it."""

import logging

import pytest
from actor_machines import Puppet

from headrace.actors.sim.system import SimSystem
from headrace.engine.kernel.event_log import EventLog, FetchStory
from headrace.engine.kernel.machine import Address
from headrace.state.identifiers import ExecutionAttemptId

ATTEMPT = ExecutionAttemptId(3, 5, "map", 1)


def test_an_event_is_one_line_of_keys_and_values():
    log = EventLog(machine="JobManager", job="j")
    log.know(epoch=3)
    log.add(1_700_000_000_123, ATTEMPT, "RUNNING -> FAILED (its slot\nis gone)")
    log.add(1_700_000_000_124, "checkpoint 7", "completed")
    log.add(1_700_000_000_125, "tm-1", 'says "no"')
    start = "time=2023-11-14T22:13:20.12{}Z machine=JobManager job=j epoch=3 {}"
    assert log.story() == [
        start.format(3, 'operator=map subtask=1 attempt=5 event="RUNNING -> FAILED (its slot is gone)"'),
        start.format(4, "checkpoint=7 event=completed"),
        start.format(5, 'about=tm-1 event="says \\"no\\""'),
    ]


def test_a_story_is_about_one_thing_or_all_that_begin_like_it():
    log = EventLog()
    for subtask in range(3):
        log.add(0, ATTEMPT._replace(subtask=subtask), "READY")
    log.add(0, "job", "executing")
    assert len(log.story("map")) == 3
    assert len(log.story(ATTEMPT)) == 1
    assert len(log.story("job")) == 1


def test_operators_go_by_their_names():
    log = EventLog()
    log.operators = {ATTEMPT.vertex: "source -> add"}
    log.add(0, ATTEMPT, "READY")
    assert log.story("source -> add[1]") == log.story(ATTEMPT)
    assert 'operator="source -> add" subtask=1' in log.story()[0]


def test_the_oldest_are_forgotten_and_all_are_counted():
    log = EventLog(capacity=2)
    for number in range(5):
        log.add(number, "x", f"e{number}")
    assert [line.rpartition("=")[2] for line in log.story("x")] == ["e3", "e4"]
    assert [line.rpartition("=")[2] for line in log.newest(1)] == ["e4"]
    assert (len(log.newest(9)), log.num_events) == (2, 5)


@pytest.mark.parametrize("secret", ["postgresql://me:p4ss@host/db", "password=p4ss", "Authorization: Bearer p4ss"])
def test_no_line_holds_a_secret(secret):
    log = EventLog()
    log.add(0, "job", f"fails: {secret} does not answer")
    assert "p4ss" not in "".join(log.story())


class Noting(Puppet):
    def __init__(self, address):
        super().__init__(address)
        self.log = EventLog(machine="Noting")

    def handle(self, event, now_ms):
        self.log.add(now_ms, "job", f"heard {type(event).__name__}")
        return super().handle(event, now_ms)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_host_logs_what_its_machines_note_and_answers_for_them(caplog, is_on):
    caplog.set_level(logging.INFO if is_on else logging.WARNING, logger="headrace.events")
    system = SimSystem()
    system.start("h", (("m", Noting),))
    system.run_for(100)
    [line] = system.ask(Address("h", "m"), FetchStory("job"), 1_000)
    assert line.endswith('machine=Noting about=job event="heard Started"')
    assert caplog.messages == ([f"host=h {line}"] if is_on else [])
    system.close()
