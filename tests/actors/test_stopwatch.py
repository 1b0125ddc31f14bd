"""The stopwatch of hosts, by what Linux counts: how long a step takes is no matter of what else a machine does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.actors.hosts.host_system import ProcessClocks

SPINS = "print(flush=True)\nwhile True: pass"
SPINS_FOR_50_MS = "import time\nend = time.perf_counter() + 0.05\nwhile time.perf_counter() < end: pass"


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="only Linux says how long threads wait")
def test_it_stands_still_while_others_have_the_processor() -> None:
    clocks, processors = ProcessClocks(), os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline()
            for pid in (0, other.pid):
                os.sched_setaffinity(pid, {min(processors)})
            began_us, began_s, used_us = clocks.stopwatch_us(""), time.perf_counter(), clocks.processor_us("")
            while clocks.processor_us("") - used_us < 50_000:
                pass
            took_us, took_s = clocks.stopwatch_us("") - began_us, time.perf_counter() - began_s
        finally:
            os.sched_setaffinity(0, processors)
            other.kill()
    assert 45_000 < took_us < 0.9e6 * took_s


def test_it_goes_on_while_its_thread_waits_for_something() -> None:
    clocks = ProcessClocks()
    began_us = clocks.stopwatch_us("")
    subprocess.run([sys.executable, "-c", SPINS_FOR_50_MS], check=True)
    assert clocks.stopwatch_us("") - began_us > 50_000
