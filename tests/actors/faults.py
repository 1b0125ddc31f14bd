"""Faults that a running job meets, struck at moments that have nothing to do with what it is doing.

Each fault is a function of the `Scene` and gives a line for the log. A fault that goes on for a while, such as a frozen
process or a rescale that is under way, goes on beside the next ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kill_soak import kind_of, living_hosts

from headrace.engine.errors import HeadraceError

KINDS = ("slot", "slot", "TaskManager", "JobManager")
FREEZE_S = (5.0, 40.0)
MAX_PARALLELISM = 3


@dataclass(eq=False)
class Damage:
    """A file of a checkpoint that was changed or deleted, and what it held."""

    path: Path
    content: bytes

    def mend(self) -> None:
        """Put the file back, if its folder is still there."""
        with contextlib.suppress(FileNotFoundError):
            self.path.write_bytes(self.content)


@dataclass(eq=False)
class Scene:
    """A running job and what is being done to it.

    Attributes:
        client: The job's client.
        checkpoints: Folder of the job's own checkpoints.
        savepoints: Folder in which savepoints are taken.
        rng: Source of all chance.
    """

    client: Any
    checkpoints: Path
    savepoints: Path
    rng: random.Random
    damages: list[Damage] = field(default_factory=list)
    """What was damaged and is not mended yet."""
    frozen: list[threading.Timer] = field(default_factory=list)
    """Wakes the processes that sleep."""
    operation: threading.Thread | None = None
    """A savepoint, stop or rescale that is under way; one at a time."""
    outcomes: list[str] = field(default_factory=list)
    """How operations ended."""

    def mend_all(self) -> None:
        while self.damages:
            self.damages.pop().mend()

    def wake_all(self) -> None:
        for timer in self.frozen:
            timer.cancel()
            timer.function(*timer.args)
        self.frozen.clear()

    def start(self, name: str, operation: Callable[[], Any]) -> str:
        """Do something that takes its time beside everything else."""
        if self.operation is not None and self.operation.is_alive():
            return f"{name}: another one is under way"

        def run() -> None:
            try:
                self.outcomes.append(f"{name}: {operation() or 'done'}")
            except (HeadraceError, TimeoutError) as error:  # refused or given up: the job goes on, or has ended
                self.outcomes.append(f"{name}: {type(error).__name__}")

        self.operation = threading.Thread(target=run, daemon=True)
        self.operation.start()
        return name


def kill(scene: Scene) -> str:
    """Signal 9 to a random process of the cluster."""
    host, pid = _victim(scene)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"kill {host}"


def freeze(scene: Scene) -> str:
    """Stop a random process, which goes on after some seconds, when it may have been replaced."""
    host, pid = _victim(scene)
    seconds = scene.rng.uniform(*FREEZE_S)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(seconds, _wake, (pid,))
            timer.daemon = True
            timer.start()
            scene.frozen.append(timer)
    return f"freeze {host} for {seconds:.0f} s"


def take_savepoint(scene: Scene) -> str:
    """Take a savepoint; it must be complete, or fail without harm."""
    return scene.start("savepoint", lambda: scene.client.trigger_savepoint(scene.savepoints, timeout=60))


def stop_with_savepoint(scene: Scene) -> str:
    """Stop the job with a savepoint, from which it is started again."""
    return scene.start("stop", lambda: scene.client.stop_with_savepoint(scene.savepoints, timeout=90))


def rescale(scene: Scene) -> str:
    """Let the job run on at another parallelism."""
    parallelism = scene.rng.randint(1, MAX_PARALLELISM)
    return scene.start(f"rescale to {parallelism}", lambda: scene.client.rescale(parallelism, timeout=90))


def damage(scene: Scene) -> str:
    """Flip a bit of, cut off, empty or delete a random file of the job's checkpoints, then kill a process."""
    path = _random_file(scene)
    if path is None:
        return "damage: no file"
    try:
        content = path.read_bytes()
        how = scene.rng.choice(("flip", "cut", "empty", "delete"))
        _spoil(path, content, how, scene.rng)
    except FileNotFoundError:
        return "damage: the file went away"
    scene.damages.append(Damage(path, content))
    return f"{how} {path.relative_to(scene.checkpoints)}; {kill(scene)}"


def delete_manifests(scene: Scene) -> str:
    """Delete the manifests of all complete checkpoints, then kill a process."""
    for path in sorted(scene.checkpoints.glob("*/manifests/*.json")):
        with contextlib.suppress(FileNotFoundError):
            content = path.read_bytes()
            path.unlink()
            scene.damages.append(Damage(path, content))
    return f"delete all manifests; {kill(scene)}"


FAULTS: dict[Callable[[Scene], str], float] = {
    kill: 8,
    freeze: 3,
    take_savepoint: 2,
    stop_with_savepoint: 1,
    rescale: 2,
    damage: 3,
    delete_manifests: 1,
}
"""Every fault with its weight."""


BATCH_FAULTS: dict[Callable[[Scene], str], float] = {kill: 4, freeze: 1}
"""What can be done to a batch: it takes no savepoint, is not rescaled, and has one checkpoint, its last."""


def _victim(scene: Scene) -> tuple[str, int | None]:
    hosts = living_hosts()
    kind = scene.rng.choice(KINDS)
    candidates = sorted(host for host in hosts if kind_of(host) == kind)
    if not candidates:
        return f"a {kind}, but there is none", None
    host = scene.rng.choice(candidates)
    return f"{kind} {host}", hosts[host]


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _random_file(scene: Scene) -> Path | None:
    """One that is written to its end: what is damaged before that gets another name, under which nobody mends it.

    Nor an epoch: a lost one is the fencing's matter, not a checkpoint's.
    """
    files = sorted(
        path
        for path in scene.checkpoints.rglob("*")
        if path.is_file() and path.suffix != ".tmp" and "epochs" not in path.parts
    )
    return scene.rng.choice(files) if files else None


def _spoil(path: Path, content: bytes, how: str, rng: random.Random) -> None:
    if how == "delete":
        path.unlink()
        return
    spoilt = bytearray(content)
    if how == "flip" and spoilt:
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del spoilt[rng.randrange(len(spoilt) + 1) :]
    else:
        spoilt.clear()
    path.write_bytes(bytes(spoilt))
