"""What is said before loops are compiled: once per installation that takes some seconds, without a word else.

numba keeps what it has compiled beside the module or, where that folder cannot be written, in the user's cache folder
(`headrace.engine.tables.compiling`). Whether it is there is seen by its files, without loading numba: slots do that,
and not the program, unless it runs data sets itself. So this knows of slots on this machine alone.

Source: numba's ``_CacheImpl`` and its locators.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from headrace.engine.functions.operator import FRAME_LOOPS
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.plan.plan import Node, OverGroups, walk

__all__ = ["are_compiled", "compiling_line", "loops_of_job", "loops_of_plan"]


def loops_of_job(job_graph: JobGraph) -> list[str]:
    """Return the modules of loops by which the operators of a job go."""
    operators = (one.operator for vertex in job_graph.vertices.values() for one in vertex.chain)
    return sorted({module for one in operators for module in one.compiled_loops})


def loops_of_plan(roots: tuple[Node, ...]) -> list[str]:
    """Return the modules of loops by which a plan of data sets is run: OVER alone has some."""
    return list(FRAME_LOOPS) if any(isinstance(node, OverGroups) for node in walk(*roots)) else []


def compiling_line(modules: Iterable[str]) -> str | None:
    """Return the line that tells of it; None if the loops of all modules are compiled.

    Of folders that cannot be looked into nothing is told: a job runs without that.
    """
    try:
        source = next((one for one in map(_source, modules) if not are_compiled(one)), None)
        if source is None:
            return None
        place = next((one for one in _folders(source) if _can_be_written(one)), None)
    except OSError:
        return None
    kept = "in memory, as no folder for a cache can be written (NUMBA_CACHE_DIR names one)" if place is None else place
    return f"compiling loops for the first use, which takes some seconds; they are kept {'in ' * bool(place)}{kept}"


def _source(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _folders(source: Path) -> Iterator[Path]:
    """Where numba looks, in its order."""
    own = os.environ.get("NUMBA_CACHE_DIR")
    if own:
        yield Path(own)
    yield source.parent / "__pycache__"
    own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(own):  # a user without a home, as containers have them, has no such folder
        yield Path(own) / "numba"


def _can_be_written(folder: Path) -> bool:
    """Whether it can, or can be made."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def are_compiled(source: Path) -> bool:
    """Whether numba finds what it has compiled of a module as it is now, for this Python."""
    version = metadata.version("numba").encode()
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
    changed_ns = source.stat().st_mtime_ns
    return any(
        index.stat().st_mtime_ns >= changed_ns and version in index.read_bytes()[:64]
        for folder in _folders(source)
        for index in folder.rglob(f"{source.stem}.*.{tag}.nbi")
    )
