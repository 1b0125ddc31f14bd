"""What is said before loops over keys are compiled: once per installation that takes some seconds, without a word else.

numba keeps what it has compiled beside the module or, where that folder cannot be written, in the user's cache folder
(`headrace.engine.tables.compiling`). Whether it is there is seen by its files, without loading numba: slots do that,
and not the program. So this knows of slots on this machine alone.

Source: numba's ``_CacheImpl`` and its locators.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from headrace.engine.graph.job_graph import JobGraph

__all__ = ["are_compiled", "loops_to_compile"]

_LOOPS = "headrace.engine.tables.table_loops"


def loops_to_compile(job_graph: JobGraph) -> str | None:
    """Return the line that tells of it; None if no operator of a job has such loops, or they are compiled.

    Of folders that cannot be looked into nothing is told: a job runs without that.
    """
    operators = (one.operator for vertex in job_graph.vertices.values() for one in vertex.chain)
    if not any(one.has_compiled_loops for one in operators):
        return None
    source = _source()
    try:
        if are_compiled(source):
            return None
        place = next((one for one in _folders(source) if _can_be_written(one)), None)
    except OSError:
        return None
    kept = "in memory, as no folder for a cache can be written (NUMBA_CACHE_DIR names one)" if place is None else place
    return f"compiling loops for the first use, which takes some seconds; they are kept {'in ' * bool(place)}{kept}"


def _source() -> Path:
    spec = find_spec(_LOOPS)
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
