"""Tests of keyed operators run on every state backend: those of the modules named here, each test once per backend."""

from __future__ import annotations

from collections.abc import Iterator

import operator_harness
import pytest

ON_ALL_BACKENDS = (
    "test_connected",
    "test_process",
    "test_session_runs",
    "test_sessions",
    "test_slices",
    "test_tables",
    "test_timers",
    "test_window_operator",
)


@pytest.fixture(scope="module", autouse=True)
def state_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend that harnesses run on."""
    name = getattr(request, "param", "heap")
    operator_harness.STATE_BACKENDS.append(name)
    yield name
    operator_harness.STATE_BACKENDS.pop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_ALL_BACKENDS:
        metafunc.parametrize("state_backend", ["heap", "rocksdb"], indirect=True, scope="module")
