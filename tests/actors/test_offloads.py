"""Where offloaded work runs: kinds apart from each other, one event loop, cancellation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from queue import Queue

import pytest

from headrace.actors.hosts.offloads import NUM_IO_THREADS, CallThreads, OffloadPools
from headrace.engine.kernel.machine import CancelOffload, Offload


@pytest.fixture
def pools():
    ends = Queue()
    pools = OffloadPools(lambda host, actor, completed: ends.put((host, actor, completed)))
    pools.ends = ends
    yield pools
    pools.close()


def end(pools):
    return pools.ends.get(timeout=10)


async def loop_of_now():
    return asyncio.get_running_loop()


def test_all_coroutines_run_on_one_loop(pools):
    for token in range(3):
        pools.run("h", "a", Offload("w", token, loop_of_now, "coroutine"))
    completed = [end(pools)[2] for _ in range(3)]
    assert len({id(one.result) for one in completed}) == 1
    assert [one.token for one in completed] == [0, 1, 2]


def test_a_thousand_coroutines_wait_for_each_other_at_once(pools):
    arrived, all_there = [], asyncio.Event()

    async def meet():
        arrived.append(None)
        if len(arrived) == 1_000:
            all_there.set()
        await all_there.wait()

    for token in range(1_000):
        pools.run("h", "a", Offload("w", token, meet, "coroutine"))
    assert {end(pools)[2].token for _ in range(1_000)} == set(range(1_000))


def test_blocking_calls_do_not_hold_up_the_engines_own_work(pools):
    go = threading.Event()
    num_calls = 4 * NUM_IO_THREADS
    for token in range(num_calls):
        pools.run("h", "a", Offload("w", token, lambda: go.wait(10), "blocking"))
    pools.run("h", "a", Offload("io", "snapshot", lambda: "done"))
    assert end(pools)[2].result == "done"
    go.set()
    assert all(end(pools)[2].result is True for _ in range(num_calls))


@pytest.mark.parametrize("kind", ["io", "blocking", "coroutine"])
def test_a_failure_is_an_end(pools, kind):
    async def fail_later():
        message = "no"
        raise OSError(message)

    def fail():
        message = "no"
        raise OSError(message)

    pools.run("h", "a", Offload("w", 1, fail_later if kind == "coroutine" else fail, kind))
    host, actor, completed = end(pools)
    assert (host, actor, completed.name, completed.token) == ("h", "a", "w", 1)
    assert isinstance(completed.error, OSError)


def test_a_cancelled_coroutine_stops_where_it_waits(pools):
    begun = threading.Event()

    async def wait():
        begun.set()
        await asyncio.sleep(60)

    pools.run("h", "a", Offload("w", 1, wait, "coroutine"))
    assert begun.wait(10)
    pools.cancel("h", "a", CancelOffload("w", 2))
    pools.cancel("h", "a", CancelOffload("w", 1))
    assert isinstance(end(pools)[2].error, asyncio.CancelledError)


def test_what_a_host_leaves_behind_is_cancelled_and_others_go_on(pools):
    pools.run("gone", "a", Offload("w", 1, lambda: asyncio.sleep(60), "coroutine"))
    pools.run("here", "a", Offload("w", 1, lambda: asyncio.sleep(0.02), "coroutine"))
    pools.forget("gone")  # before the first step of either, or later
    assert isinstance(end(pools)[2].error, asyncio.CancelledError)
    host, _, completed = end(pools)
    assert (host, completed.error) == ("here", None)


def test_closing_ends_the_loop_and_lets_coroutines_clean_up():
    ends, cleaned = Queue(), threading.Event()
    pools = OffloadPools(lambda *told: ends.put(told))
    begun = threading.Event()

    async def wait():
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    pools.run("h", "a", Offload("w", 1, wait, "coroutine"))
    assert begun.wait(10)
    pools.close()
    assert cleaned.wait(10)


def test_nothing_writes_to_a_store_after_the_end():
    pools, begun, written = OffloadPools(lambda *told: None), threading.Event(), []

    def write():
        begun.set()
        threading.Event().wait(0.1)
        written.append(True)

    pools.run("h", "a", Offload("write", 0, write))
    assert begun.wait(10)
    pools.close()
    assert written


# ------------------------------------------------------------------------------------------------ threads for calls
def test_calls_beyond_the_limit_wait_their_turn():
    threads, running, most, go = CallThreads(3), 0, 0, threading.Event()
    lock = threading.Lock()

    def call():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(10)
        with lock:
            running -= 1

    handles = [threads.submit(call) for _ in range(10)]
    go.set()
    for handle in handles:
        handle.result(timeout=10)
    assert 1 <= most <= 3
    threads.close()


def test_a_call_that_has_not_begun_can_be_taken_back():
    threads, go, done = CallThreads(1), threading.Event(), []
    first = threads.submit(lambda: done.append(go.wait(10)))
    second = threads.submit(lambda: done.append("second"))
    third = threads.submit(lambda: done.append("third"))
    assert second.cancel()
    go.set()
    first.result(timeout=10)
    third.result(timeout=10)
    assert done == [True, "third"]
    threads.close()
    assert threads.submit(lambda: None).cancelled()


def test_a_call_that_never_returns_does_not_keep_the_process():
    program = (
        "import threading, sys\n"
        "from headrace.actors.hosts.offloads import OffloadPools\n"
        "from headrace.engine.kernel.machine import Offload\n"
        "began = threading.Event()\n"
        "def stuck(): began.set(); threading.Event().wait()\n"
        "pools = OffloadPools(lambda *end: None)\n"
        "pools.run('h', 'a', Offload('w', 0, stuck, 'blocking'))\n"
        "began.wait(); pools.close(); print('end')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "end\n"
