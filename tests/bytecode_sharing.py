"""What processes of a run compile, they compile once, and together.

In a new clone each of several processes (``pytest -n 4``) would rewrite the assertions of all test modules, compile
all modules to bytecode, and the loops of tables to machine code, at the same time as the others; that takes longer than
all else before the first test. So it is cut into pieces: a process does those whose files it is the first to lock, and
collects tests when all are done. What others have made is found where Python, pytest and numba keep it, by processes
that tests start, too. A lock ends with its process, so nobody waits for one that has died.

With ``PYTHONDONTWRITEBYTECODE``, which some containers set, nothing would be kept, and each process of Ray or Spark
would compile all that it imports. What is asked for is that no files come to lie beside modules; so they are kept in
the folder of pytest's cache. `tests/conftest.py` imports this module first, before the many of Hypothesis.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

__all__ = ["compile_together", "do_together"]

TESTS = Path(__file__).resolve().parent

MANY = 100
"""A run of so many test modules imports all of the package, and what it needs; one of fewer may need none of it."""

LOOPS = ("headrace.engine.tables.table_loops", "headrace.engine.frames.loops")
"""Modules that have numba compile something, which takes ten seconds of a core if nobody has kept it."""

LARGE = ("pandas", "ray", "sqlglot")
"""Packages of others that have most modules; to import them compiles those that are needed."""

NUM_PIECES = 24
"""How many pieces many files are cut into: a process waits for the last piece of another one."""

if sys.dont_write_bytecode:
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(TESTS.parent / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # there is none for `python -B`


def compile_together(config: pytest.Config, folder: Path) -> None:
    """Compile what this run needs, with the other processes that are given the same empty folder."""
    do_together(list(_pieces(config)), folder)


def do_together(pieces: list[Callable[[], None]], folder: Path) -> None:
    """Do the pieces that nobody else does, and wait for those that others do; all give them in the same order."""
    locks = [os.open(folder / str(number), os.O_CREAT | os.O_RDWR) for number in range(len(pieces))]
    for lock, piece in zip(locks, pieces, strict=True):
        with contextlib.suppress(BlockingIOError):  # another process is at it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(lock).st_size:
                piece()
                os.write(lock, b"done")
            fcntl.flock(lock, fcntl.LOCK_UN)
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.close(lock)


def _pieces(config: pytest.Config) -> Iterator[Callable[[], None]]:
    """What there is to do, in the same order in each process; long pieces come first."""
    modules = _modules(config)
    if len(modules) >= MANY:
        for name in (*LOOPS, *LARGE):
            yield lambda name=name: _import(name)
    if config.getoption("assertmode") == "rewrite":
        for own in _cut(modules):
            yield lambda own=own: _rewrite(own, config)
    if len(modules) >= MANY:
        package = find_spec("headrace")
        places = [TESTS, *map(Path, (package and package.submodule_search_locations) or ())]
        plain = {path for place in places for path in place.rglob("*.py")}
        for own in _cut(sorted(plain - set(modules))):
            yield lambda own=own: _compile(own)


def _modules(config: pytest.Config) -> list[Path]:
    """The test modules that the run is about, large ones first."""
    places = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    found = {path for place in places for path in (place.rglob("test_*.py") if place.is_dir() else [place])}
    return sorted((path for path in found if path.is_file()), key=lambda path: (-path.stat().st_size, path))


def _cut(paths: list[Path]) -> list[list[Path]]:
    return [piece for number in range(NUM_PIECES) if (piece := paths[number::NUM_PIECES])]


def _import(name: str) -> None:
    with contextlib.suppress(ImportError):  # tests that need it say so
        importlib.import_module(name)


def _rewrite(modules: list[Path], config: pytest.Config) -> None:
    """Rewrite the modules that nobody has rewritten yet; their errors come later."""
    state = config.stash[rewrite.assertstate_key]
    for module in modules:
        stored = rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
        if not stored.exists() and rewrite.try_makedirs(stored.parent):
            with contextlib.suppress(SyntaxError, UnicodeDecodeError):
                status, code = rewrite._rewrite_test(module, config)
                rewrite._write_pyc(state, code, status, stored)


def _compile(modules: list[Path]) -> None:
    """Compile modules whose bytecode is not there, or older."""
    for module in modules:
        compileall.compile_file(module, quiet=2)
