"""What belongs together when tests run in several processes (``pytest -n 2``), and what all of them rely on."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# Machines that run tests are too uneven for deadlines per example; properties reset their `BackendKit` themselves.
settings.register_profile(
    "headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("headrace")


def pytest_configure() -> None:
    """A suite that runs in the background of a shell inherits an ignored SIGINT, which tests send to themselves."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts a Ray runs in one process, one after another: two Rays on a machine find each other.

    Other tests go wherever there is time, but for those that share the server.
    """
    for item in items:
        if item.get_closest_marker("ray") or item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif "postgresql" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("postgresql"))
