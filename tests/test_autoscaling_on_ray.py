"""Jobs on a Ray whose autoscaler has to launch the first node, and one more while a job runs.

Ray knows one cluster per process, so the scenario runs in a process of its own, see ``actors/autoscaling.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.campaign, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(450)]

PROGRAM = Path(__file__).resolve().parent / "actors" / "autoscaling.py"


@pytest.fixture(scope="module")
def seen():
    pytest.importorskip("yaml")
    command = [sys.executable, str(PROGRAM)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-4_000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_job_brings_up_the_nodes_it_needs_and_gives_them_back(seen):
    assert seen["is_exact"]
    assert seen["num_workers"] == 2


def test_the_cluster_grows_and_shrinks_under_a_job_that_runs_on(seen):
    assert seen["workers_of_rescaled"] == [1, 2, 1]
    assert seen["ran_on"]
    assert seen["is_rescaled_exact"], "each number once, however often it was dealt out anew"


def test_it_says_what_it_waits_for(seen):
    launching = [
        text for text in seen["waiting"] if text.startswith("the cluster launches 2 nodes (2 of type 'worker')")
    ]
    assert launching
    assert f"waits for slots: {launching[0]}" in seen["history"]


def test_what_the_cluster_may_never_have_is_refused_with_what_it_may(seen):
    assert "5 slots needed, 4 can ever be had; it has, or may launch, 2 x 2 cores (worker)" in seen["refused"]
