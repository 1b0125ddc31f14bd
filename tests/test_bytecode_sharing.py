"""What processes of a run compile together: each piece is done once, and nobody goes on before all are done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from bytecode_sharing import TESTS, do_together

SAYS = """
import json, os, sys
import bytecode_sharing
print(json.dumps([sys.dont_write_bytecode, sys.pycache_prefix, [*map(os.environ.get, sys.argv[1:])]]))
"""


def test_each_piece_is_done_by_one_and_all_wait_for_it(tmp_path):
    done, workers = [], 4
    begin = Barrier(workers)

    def work(_):
        begin.wait()
        do_together([lambda number=number: done.append(number) for number in range(50)], tmp_path)
        return sorted(done)

    with ThreadPoolExecutor(workers) as pool:  # locks are of open files, so threads have them as processes do
        assert list(pool.map(work, range(workers))) == [[*range(50)]] * workers


def test_two_are_at_work_at_once(tmp_path):
    meeting = Barrier(2, timeout=30)
    with ThreadPoolExecutor(2) as pool:
        for working in [pool.submit(do_together, [meeting.wait, meeting.wait], tmp_path) for _ in range(2)]:
            working.result()


def test_a_piece_whose_process_has_died_holds_up_nobody(tmp_path):
    dying = "from pathlib import Path; from bytecode_sharing import do_together; import os, sys\n"
    dying += "do_together([lambda: os.kill(os.getpid(), 9)], Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    ended = subprocess.run([sys.executable, "-c", dying, tmp_path], env=environment, check=False)
    assert ended.returncode == -9
    done = []
    do_together([lambda: done.append(1)], tmp_path)
    assert done == [1]


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_bytecode_is_kept_but_not_beside_modules_if_somebody_asks_for_that(is_asked_for):
    names = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in names} | {"PYTHONPATH": str(TESTS)}
    if is_asked_for:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", SAYS, *names]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    cache = str(Path(TESTS).parent / ".pytest_cache" / "bytecode") if is_asked_for else None
    assert json.loads(said) == [False, cache, [None, cache]]
