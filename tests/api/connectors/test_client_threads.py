"""Threads of clients: how long a server may be away or confirm nothing, and what it asks for.

Risks and families: a job that fails though the server is away for a moment only; a server that is asked too soon.
"""

from __future__ import annotations

import threading

import pytest

from headrace.connectors.messages.client_thread import STEADY_S, AwayError, ClientThread, patiently
from headrace.connectors.messages.confirming import ConfirmedSender
from headrace.engine.errors import SinkError


class Client(ClientThread):
    """Says nothing for a while, is cut off, and goes on."""

    def __init__(self, patience_s):
        super().__init__("a client", 10, patience_s)
        self.num_connected = 0

    def connect(self):
        self.num_connected += 1

    def work(self):
        if self.num_connected == 1:
            threading.Event().wait(0.3)  # longer than the server may be away: it is there, and has nothing to say
            message = "cut off"
            raise AwayError(message)
        self.give("something")
        self.end()

    def disconnect(self):
        return


def test_patience_is_about_the_time_in_which_nothing_works():
    client = Client(patience_s=0.2)
    client.start()
    client._thread.join(10)
    assert client.take() == "something"
    impatient = Client(patience_s=0)
    impatient.start()
    impatient._thread.join(10)
    with pytest.raises(AwayError, match="cut off"):
        impatient.take()


class Cut(ClientThread):
    """Has connections that are taken and ended, up to the hundredth; time goes by while it works or pauses.

    Args:
        lasting_s: How long each lasts, in two pieces of work.
        says: Whether something comes over each.
    """

    def __init__(self, lasting_s, says):
        super().__init__("a client", 1_000, 60.0)
        self._lasting_s, self._says = lasting_s, says
        self._now_s = 0.0
        self._num_works = 0
        self.num_connected = 0

    def now_s(self):
        return self._now_s

    def pause(self, seconds):
        self._now_s += seconds

    def connect(self):
        self.num_connected += 1
        self._num_works = 0

    def work(self):
        self._num_works += 1
        self._now_s += self._lasting_s / 2
        if self._num_works == 3:
            message = "cut off"
            raise AwayError(message)
        if self._says:
            self.give("something")
        if self.num_connected == 100:
            self.end()

    def disconnect(self):
        return


@pytest.mark.parametrize(
    ("lasting_s", "says", "num_connected"), [(1.0, False, 14), (1.0, True, 100), (STEADY_S, False, 100)]
)
def test_a_server_that_takes_connections_and_ends_them_at_once_is_away(lasting_s, says, num_connected):
    client = Cut(lasting_s, says)
    client.start()
    client._thread.join(10)
    while client.has_more:
        client.take()
    assert client.num_connected == num_connected
    if num_connected == 100:
        assert client.take() is None
    else:
        with pytest.raises(AwayError, match="cut off"):
            client.take()


@pytest.mark.parametrize(("wait_s", "num_asked"), [(0.0, 3), (0.01, 3), (100.0, 1)])
def test_who_asks_patiently_waits_as_long_as_the_server_says(wait_s, num_asked):
    asked = []

    def ask():
        asked.append(1)
        if len(asked) == 3:
            return "an answer"
        error = AwayError("busy")
        error.wait_s = wait_s
        raise error

    if num_asked == 3:
        assert patiently(ask, 50.0) == "an answer"
    else:
        with pytest.raises(AwayError, match="busy"):
            patiently(ask, 50.0)
    assert len(asked) == num_asked


class Sender(ConfirmedSender):
    """Confirms what it is given one by one, slowly, up to a last one."""

    def __init__(self, last):
        super().__init__("a server", timeout_s=2)
        self._last = last
        self._is_over = threading.Event()
        self.ready()

    def hand_over(self, messages):
        for number in messages:
            self.sent(number)
        threading.Thread(target=self._confirm, args=(messages,), daemon=True).start()

    def _confirm(self, messages):
        for number in messages:
            if number <= self._last and not self._is_over.wait(0.3):
                self.confirmed(number)

    def close(self):
        self._is_over.set()


def test_a_server_that_is_slow_may_take_long_and_one_that_is_silent_may_not():
    slow = Sender(last=8)
    slow.send(range(1, 9))
    slow.flush()
    assert slow.num_unconfirmed == 0
    silent = Sender(last=1)
    silent.send(range(1, 9))
    with pytest.raises(SinkError, match="a server has confirmed none of 7 messages for 2 s"):
        silent.flush()
    silent.close()
