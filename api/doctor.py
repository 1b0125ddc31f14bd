"""What Headrace needs on a machine, checked one by one: ``headrace doctor``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["Check", "checks"]

MIN_FREE_BYTES = 2 << 30
"""Ray's session directory, spilled objects and checkpoints need room; below 2 GiB Ray itself begins to refuse work."""

MIN_SHARED_MEMORY_BYTES = 256 << 20
"""Ray's object store lives in shared memory; containers often come with 64 MiB."""


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        name: What.
        is_fine: Whether it will do.
        found: What was found.
        advice: What to do about it, if anything.
    """

    name: str
    is_fine: bool
    found: str
    advice: str = ""


def checks() -> Iterator[Check]:
    """Every check, in order, each made when it is asked for; the last ones start processes."""
    yield _python()
    for package, at_least in (("ray", (2, 55)), ("pyarrow", (19, 0)), ("numpy", (1, 26)), ("cloudpickle", (3, 0))):
        yield _package(package, at_least)
    yield _processors()
    yield _memory()
    yield _disk(Path(tempfile.gettempdir()), "disk for Ray and checkpoints")
    yield _shared_memory()
    yield _guarded("a job in this process", _local_job)
    yield _guarded("a job on Ray", _ray_job)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    is_fine = (3, 10) <= sys.version_info[:2] <= (3, 12)
    return Check("Python", is_fine, version, "" if is_fine else "use Python 3.10, 3.11 or 3.12")


def _package(name: str, at_least: tuple[int, int]) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install {name}")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    is_fine = numbers >= at_least
    return Check(name, is_fine, version, "" if is_fine else f"needs {at_least[0]}.{at_least[1]} or newer")


def _processors() -> Check:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check("processors", True, str(count), "" if count > 1 else "one core will do, but everything shares it")


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    is_fine = total >= 2 << 30
    return Check(
        "memory", is_fine, f"{total / 2**30:.1f} GiB", "" if is_fine else "at least 2 GiB: each slot is a process"
    )


def _disk(path: Path, name: str) -> Check:
    free = shutil.disk_usage(path).free
    is_fine = free >= MIN_FREE_BYTES
    return Check(name, is_fine, f"{free / 2**30:.1f} GiB free in {path}", "" if is_fine else "make room, or set TMPDIR")


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Check("shared memory", True, "none; Ray uses files instead")
    free = shutil.disk_usage(path).free
    is_fine = free >= MIN_SHARED_MEMORY_BYTES
    advice = "" if is_fine else "in a container, start it with --shm-size=1g"
    return Check("shared memory", is_fine, f"{free / 2**20:.0f} MiB free", advice)


def _guarded(name: str, check: Callable[[str], Check]) -> Check:
    """A check that starts things: whatever goes wrong in it is what it has found."""
    try:
        return check(name)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}", "the message above is what a program would see")


def _local_job(name: str) -> Check:
    return _count_job(name, "local")


def _ray_job(name: str) -> Check:
    return _count_job(name, "ray")


def _count_job(name: str, actor_system: str) -> Check:
    import time

    from headrace.environment import StreamExecutionEnvironment

    started = time.monotonic()
    env = StreamExecutionEnvironment.get_execution_environment(actor_system=actor_system)
    env.set_parallelism(2)
    try:
        numbers = env.from_collection(list(range(100)))
        with numbers.map(lambda n: n + 1).rebalance().map(lambda n: n * 2).execute_and_collect() as results:
            total = sum(results)
    finally:
        env.close()
    is_fine = total == 2 * sum(range(1, 101))
    return Check(
        name, is_fine, f"right result after {time.monotonic() - started:.1f} s" if is_fine else f"wrong: {total}"
    )
