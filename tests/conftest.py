"""What belongs together when tests run in several processes (``pytest -n 2``)."""

from __future__ import annotations

import pytest


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
