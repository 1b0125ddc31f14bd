"""The way of somebody new, with a browser and Ray: every step is one command or three clicks (`first_steps.py`)."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from dashboard_kit import CHROMIUM
from first_steps import take

pytest.importorskip("playwright", reason="drives the browser")
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]


def test_a_slow_job_is_found_saved_and_rescaled(tmp_path):
    steps = take(Path(sysconfig.get_path("scripts")), tmp_path)
    expected = ["run the job", "open the dashboard", "find the slow operator", "take a savepoint", "rescale"]
    assert [what for what, _, _ in steps.taken] == expected
