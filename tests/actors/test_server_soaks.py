"""Soaks with a server, in their short form: two deaths, and every count right (``tests/actors/server_soak.py``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import campaign


@pytest.mark.parametrize("server", [campaign(name, lane=name) for name in ("kafka", "rabbitmq", "redis")])
def test_nothing_is_lost_or_doubled_through_two_deaths(server):
    command = [sys.executable, str(Path(__file__).with_name(f"{server}_soak.py")), "--faults", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Skipped: " in done.stderr:
        pytest.skip(done.stderr.rpartition("Skipped: ")[2].strip())
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
