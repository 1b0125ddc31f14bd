"""Outputs of a notebook, without one."""

from __future__ import annotations

import types
from typing import Any

import IPython
import pytest

from headrace.jobs import notebook_output


@pytest.fixture
def outputs(monkeypatch: Any) -> list[str]:
    """What live outputs have shown, oldest first."""
    shown: list[str] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace(kernel=True))
    monkeypatch.setattr(notebook_output, "_opened_output", lambda: shown.append)
    return shown
