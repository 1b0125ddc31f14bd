"""The backends that the contract's tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_kit import MAKERS, BackendKit


@pytest.fixture(params=sorted(MAKERS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendKit]:
    """Every backend in turn."""
    made = BackendKit(request.param, tmp_path)
    yield made
    made.close()
