"""Ctrl-C while Spark is waited for is an event: nothing is raised in the middle of a call."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from headrace.actors.spark.executor import interrupts_as_event


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
def test_a_signal_inside_is_an_event_and_one_behind_it_an_interrupt():
    with interrupts_as_event() as pressed:
        assert not pressed.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert pressed.wait(10)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(10)


@pytest.mark.usefixtures("default_handler")
def test_an_error_inside_leaves_the_program_its_interrupts():
    with pytest.raises(ValueError, match="boom"), interrupts_as_event():
        int("boom")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("default_handler")
def test_what_the_program_handles_itself_stays_its_own():
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("own"))
    with interrupts_as_event() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        while not seen:
            pressed.wait(0.01)
    assert seen == ["own"]
    assert not pressed.is_set()


def test_another_thread_changes_nothing():
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def look():
        with interrupts_as_event():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [before]
