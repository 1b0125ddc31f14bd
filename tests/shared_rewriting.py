"""Assertions are rewritten once, by all processes of a run together.

pytest rewrites the assertions of a module before its first import, and keeps the code beside it. In a new clone each of
several processes (``pytest -n 4``) would rewrite all modules, at the same time as the others, which takes longer than
to import them. So each one rewrites a part of them first, and then finds what the others have written.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

__all__ = ["rewrite_own_part"]


def rewrite_own_part(config: pytest.Config) -> None:
    """Rewrite the modules that are this process's to do and that nobody has rewritten yet; their errors come later."""
    own = getattr(config, "workerinput", None)
    if own is None or sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    state = config.stash[rewrite.assertstate_key]
    for module in _modules(config)[int(own["workerid"].removeprefix("gw")) :: own["workercount"]]:
        stored = rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
        if not stored.exists() and rewrite.try_makedirs(stored.parent):
            with contextlib.suppress(SyntaxError, UnicodeDecodeError):
                status, code = rewrite._rewrite_test(module, config)
                rewrite._write_pyc(state, code, status, stored)


def _modules(config: pytest.Config) -> list[Path]:
    """The modules that the run is about, large ones first, in the same order in each process."""
    places = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    found = {path for place in places for path in (place.rglob("test_*.py") if place.is_dir() else [place])}
    return sorted((path for path in found if path.is_file()), key=lambda path: (-path.stat().st_size, path))
