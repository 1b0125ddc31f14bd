"""What is asked when Ctrl-C strikes while a job is waited for, on a real terminal, of a job that is none.

Risks: a Ctrl-C that is lost or does nothing, a job that stands still or is canceled while it is asked, an answer that
was typed before the question, a terminal or a signal that is not given back.
"""

from __future__ import annotations

import os
import pty
import signal
import threading

import pytest
from dashboard_kit import until

from headrace.engine.errors import SavepointError
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView
from headrace.jobs import attendance as attendance_module
from headrace.jobs.attendance import Attendance, is_at_terminal
from headrace.jobs.progress import TerminalProgress
from headrace.state.identifiers import JobId

pytestmark = pytest.mark.timeout(60)

CTRL_C = signal.SIGINT
END_OF_SCREEN = "\0"


class Job:
    """Runs until it is stopped; keys are pressed by what it says of how often it was looked at."""

    def __init__(self, keys, state="RUNNING"):
        self.state = state
        self.num_looks = 0
        self.error = None
        self.may_stop = threading.Event()
        self.may_stop.set()
        self._keys = keys

    def view(self):
        return JobView(JobId("j" * 32), "orders", JobStatus(self.state), self.num_looks, 0, None)

    def views(self):
        while True:
            self.num_looks += 1
            self._keys(self)
            view = self.view()
            yield view
            if view.state == "FINISHED":
                return

    def look(self):
        return [], self.view()

    def stop_with_savepoint(self):
        self.may_stop.wait()
        if self.error is not None:
            raise self.error
        self.state = "FINISHED"

    def stop(self):
        self.stop_with_savepoint()


@pytest.fixture
def waited(monkeypatch):
    """Waits for a job on a terminal; gives how that ended, the job's last state, and what the screen has shown."""
    ours, theirs = pty.openpty()
    keyboard, screen = os.fdopen(theirs, "r"), os.fdopen(os.dup(theirs), "w")
    monkeypatch.setattr(attendance_module, "is_at_terminal", lambda: True)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait(keys, *, with_savepoint=True, **options):
        job = Job(lambda job: keys(job, lambda text: os.write(ours, text.encode())), **options)
        monkeypatch.setattr("sys.stdin", keyboard)
        monkeypatch.setattr("sys.stderr", screen)
        try:
            view = Attendance(TerminalProgress(), job.look, with_savepoint=with_savepoint).wait(job)
            return job, view.state, shown()
        except KeyboardInterrupt:
            return job, "interrupted", shown()
        finally:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def shown():
        screen.write(END_OF_SCREEN)
        screen.flush()
        text = ""
        while not text.endswith(END_OF_SCREEN):  # the kernel hands over what was written piece by piece
            text += os.read(ours, 65_536).decode()
        return text.removesuffix(END_OF_SCREEN)

    yield wait
    signal.signal(signal.SIGINT, former)
    keyboard.close()
    screen.close()
    os.close(ours)


def at(looks):
    """Keys by the number of the look at which they are pressed: a text, or Ctrl-C as often as is said."""

    def press(job, write):
        for key in looks.get(job.num_looks, ()):
            if key is CTRL_C:
                signal.raise_signal(key)
            else:
                write(key)

    return press


def test_what_is_stopped_ends_in_order_and_the_job_is_looked_at_while_it_is_asked(waited):
    job, state, screen = waited(at({2: [CTRL_C], 20: ["s\n"]}))
    assert (state, job.state) == ("FINISHED", "FINISHED")
    assert "Ctrl-C: s stops the job with a savepoint, c (or Ctrl-C) cancels it, Enter goes on: " in screen
    assert "the job is stopped with a savepoint; Ctrl-C cancels it" in screen


def test_a_job_without_a_place_for_savepoints_is_stopped_with_a_checkpoint(waited):
    _, state, screen = waited(at({2: [CTRL_C], 5: ["S\n"]}), with_savepoint=False)
    assert state == "FINISHED"
    assert "Ctrl-C: s stops the job with a last checkpoint, c (or Ctrl-C) cancels it" in screen


def test_enter_goes_on_and_it_is_asked_again(waited):
    job, state, screen = waited(at({1: ["c\n"], 2: [CTRL_C], 9: ["\n"], 30: [CTRL_C], 40: ["what?\n"], 50: ["s\n"]}))
    assert state == "FINISHED", "what was typed before the question is no answer"
    assert screen.count("Enter goes on: ") == 3, "once more as 'what?' means nothing"
    assert job.num_looks > 50


@pytest.mark.parametrize(
    "looks",
    [
        {2: [CTRL_C, CTRL_C]},
        {2: [CTRL_C], 9: [CTRL_C]},
        {2: [CTRL_C], 9: ["c\n"]},
        {2: [CTRL_C], 9: ["\n"], 20: [CTRL_C] * 2},
    ],
    ids=["twice at once", "twice", "c", "twice, having gone on"],
)  # fmt: skip
def test_it_strikes_when_it_is_to_be_canceled(waited, looks):
    job, how, _ = waited(at(looks))
    assert (how, job.state) == ("interrupted", "RUNNING")


def test_while_it_is_stopped_it_strikes_at_once(waited):
    def keys(job, write):
        if job.num_looks == 2:
            job.may_stop.clear()
            signal.raise_signal(CTRL_C)
        elif job.num_looks == 9:
            write("s\n")
        elif job.num_looks == 2_000:  # it waits for the savepoint
            signal.raise_signal(CTRL_C)

    job, how, screen = waited(keys)
    job.may_stop.set()
    assert how == "interrupted"
    assert "the job is stopped with a savepoint" in screen
    until(lambda: not [one for one in threading.enumerate() if one.name == "headrace-order"], "it asks on")


def test_a_stop_that_comes_to_nothing_is_told_in_a_line_and_the_job_goes_on(waited):
    def keys(job, write):
        if job.num_looks in (2, 200):
            job.error = SavepointError("nothing can be written there\nand more") if job.num_looks == 2 else None
            signal.raise_signal(CTRL_C)
        elif job.num_looks in (9, 210):
            write("s\n")

    _, state, screen = waited(keys)
    assert "the job was not stopped: nothing can be written there\r\n" in screen
    assert "and more" not in screen
    assert state == "FINISHED"


@pytest.mark.parametrize("state", ["CREATED"])
def test_a_job_that_does_not_run_yet_is_canceled_at_once(waited, state):
    _, how, screen = waited(at({2: [CTRL_C]}), state=state)
    assert (how, screen) == ("interrupted", "")


def test_a_job_that_ends_while_it_is_asked_needs_no_answer(waited):
    def keys(job, write):
        if job.num_looks == 2:
            signal.raise_signal(CTRL_C)
        elif job.num_looks == 9:
            job.state = "FINISHED"

    _, state, screen = waited(keys)
    assert state == "FINISHED"
    assert screen.endswith("\r\n")


def test_a_program_with_a_handler_of_its_own_keeps_it(monkeypatch):
    struck = []
    former = signal.signal(signal.SIGINT, lambda *_: struck.append(1))
    try:

        def keys(job):
            if job.num_looks == 3:
                signal.raise_signal(CTRL_C)
                job.state = "FINISHED"

        job = Job(keys)
        assert Attendance(TerminalProgress(), job.look, with_savepoint=True).wait(job).state == "FINISHED"
        assert struck == [1]
    finally:
        signal.signal(signal.SIGINT, former)


def test_nobody_is_asked_where_there_is_no_terminal(monkeypatch):
    read, write = os.pipe()
    with os.fdopen(read) as keyboard, os.fdopen(write, "w") as screen:
        monkeypatch.setattr("sys.stdin", keyboard)
        monkeypatch.setattr("sys.stderr", screen)
        assert not is_at_terminal()
    monkeypatch.setattr("sys.stdin", None)
    assert not is_at_terminal()
