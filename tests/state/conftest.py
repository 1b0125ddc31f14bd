"""Settings of the property tests, and the backends that the contract's tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_kit import MAKERS, BackendKit
from hypothesis import HealthCheck, settings

# Machines that run tests are too uneven for deadlines per example; properties reset their `BackendKit` themselves.
settings.register_profile(
    "headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("headrace")


@pytest.fixture(params=sorted(MAKERS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendKit]:
    """Every backend in turn."""
    made = BackendKit(request.param, tmp_path)
    yield made
    made.close()
