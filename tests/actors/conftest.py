"""Actor systems for tests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import actor_machines
import cloudpickle
import pytest

from headrace.actors.local.system import LocalSystem
from headrace.actors.sim.system import SimSystem

cloudpickle.register_pickle_by_value(actor_machines)  # hosts that are processes do not find the tests' modules
_numbers = count()


@pytest.fixture
def ray_system(ray_session: None) -> Iterator[Any]:
    from headrace.actors.ray.system import RaySystem

    system = RaySystem(f"test{next(_numbers)}", reserve=False)
    yield system
    system.close()
    assert system.hosts == []


@pytest.fixture(params=["sim", "local", pytest.param("ray", marks=pytest.mark.ray)])
def system(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each actor system in turn."""
    if request.param == "ray":
        yield request.getfixturevalue("ray_system")
        return
    system: Any = SimSystem(seed=7) if request.param == "sim" else LocalSystem()
    yield system
    system.close()
