"""Loss of a node, and avoidance of a bad one, on Ray with several nodes on this machine.

Ray knows one cluster per process, so the scenarios run in a process of their own, see ``actors/node_loss.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.campaign, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).resolve().parent / "actors" / "node_loss.py"


@pytest.fixture(scope="module")
def seen():
    """What was seen, by scenario."""
    command = [sys.executable, str(PROGRAM), "bad", "raylet"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {one["scenario"]: one for one in found}


def test_task_managers_are_spread_and_what_leads_is_beside_the_program(seen):
    for one in seen.values():
        assert one["num_nodes_used"] == 2
        assert one["is_beside"], "a slot is not on its TaskManager's node"
        assert one["is_control_safe"]


def test_a_node_is_lost_and_the_result_is_exact(seen):
    lost = seen["raylet"]
    assert lost["is_exact"]
    assert lost["leaked"] == 2, "TaskManager and slot were to live on, and to change nothing"
    assert lost["restarts"] >= 1
    assert any(f"(on node {lost['victim']})" in text for text in lost["history"])
    assert lost["left"] == []


def test_a_node_whose_processes_keep_dying_is_avoided(seen):
    bad = seen["bad"]
    assert bad["is_exact"]
    assert f"node {bad['victim']} is blocked for 600 s: 2 processes on it have died" in bad["history"]
    assert not any("no longer blocked" in text for text in bad["history"])
    assert bad["left"] == []
