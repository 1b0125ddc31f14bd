"""Deaths of soaks: processes of Ray and a server, killed with signal 9 at a random moment, or right at a commit.

At a random moment a process rarely dies between a checkpoint and its commit. So a soak may leave a wish in a folder:
who is to die, and on which side of a commit. The next committer of a sink that is `aimed` takes it, and kills them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
from kill_soak import kind_of, living_hosts

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

ITSELF = 0
"""In a wish: the process of the committer, which is a slot."""

SIDES = ("before", "behind")
"""Between a checkpoint and its commit, and behind the commit, before anybody hears of it."""

PATIENCE_S = 15.0
"""So long a wish waits for a commit."""


class Server(Protocol):
    """What dies and comes back."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    @property
    def pid(self) -> int: ...


def aimed(sink: Any, directory: Path) -> Any:
    """The same sink, whose committers do what is wished for in a directory."""
    folder = str(_folder(directory))

    class AimedSink(type(sink)):
        def create_committer(self) -> Any:
            committer = super().create_committer()

            class AimedCommitter(type(committer)):
                def commit(self, committable: Any) -> None:
                    _carry_out(folder, "before")
                    super().commit(committable)
                    _carry_out(folder, "behind")

            committer.__class__ = AimedCommitter
            return committer

    made = copy.copy(sink)
    made.__class__ = AimedSink
    return made


def _folder(directory: Path) -> Path:
    folder = directory / "wishes"
    folder.mkdir(exist_ok=True)
    return folder


def _carry_out(folder: str, side: str) -> None:
    """Kill whom a wish names, if there is one; only one committer gets it."""
    taken = f"{folder}/{uuid.uuid4().hex}"
    try:
        os.rename(f"{folder}/{side}", taken)
    except FileNotFoundError:
        return
    _kill(*sorted(json.loads(Path(taken).read_text()), reverse=True))  # itself last


def _kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(os.getpid() if pid == ITSELF else pid, signal.SIGKILL)


def _wish(folder: Path, side: str, pids: list[int]) -> bool:
    """Have processes killed at the next commit; False if none came for a while."""
    wish, draft = folder / side, folder / uuid.uuid4().hex
    draft.write_text(json.dumps(pids))
    draft.rename(wish)
    deadline = time.monotonic() + PATIENCE_S
    while wish.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        wish.rename(draft)
    except FileNotFoundError:
        return True
    return False


class Deaths:
    """What dies in one soak.

    Args:
        rng: Chooses.
        server: Dies, too; None if there is none.
        directory: In which the job's sink is `aimed`; None if it is not: nothing dies at a commit then.
        head: Gives the process id of the head that leads; it may find none.
        server_at_commits: Whether the server dies at commits, too, or at random moments only.
    """

    def __init__(
        self,
        rng: random.Random,
        server: Server | None = None,
        directory: Path | None = None,
        head: Callable[[], int | None] = lambda: None,
        *,
        server_at_commits: bool = True,
    ) -> None:
        self._rng, self._server, self._head = rng, server, head
        self._folder = None if directory is None else _folder(directory)
        self._server_at_commits = server_at_commits
        self.struck: Counter[str] = Counter()

    @property
    def number(self) -> int:
        """How many there were."""
        return self.struck.total()

    def figures(self) -> dict[str, int]:
        """How many there were, and of which kinds."""
        return {"faults": self.number, **{f"killed: {kind}": self.struck[kind] for kind in sorted(self.struck)}}

    def strike(self, kind: str) -> None:
        """Kill a process of a kind, or of two ("server and slot"), or nothing if there is none now."""
        kinds = kind.split(" and ")
        may_wait = self._folder is not None and (self._server_at_commits or "server" not in kinds)
        side = self._rng.choice((None, *SIDES)) if may_wait else None
        pids = {one: self._pid_of(one, at_commit=side is not None) for one in kinds}
        if None in pids.values():
            return
        if side is not None and not _wish(self._folder, side, list(pids.values())):
            return
        if side is None:
            if "server" in kinds:
                self._server.kill()
                del pids["server"]
            _kill(*pids.values())
        if "server" in kinds:
            time.sleep(self._rng.uniform(0.3, 4))
            self._server.kill()
            self._server.start()
        self.struck[kind if side is None else f"{kind}, {side} a commit"] += 1

    def _pid_of(self, kind: str, *, at_commit: bool) -> int | None:
        """Whom to kill; None if there is none of a kind now."""
        if kind == "server":
            return self._server.pid
        if kind == "head":
            return self._head()
        if kind == "slot" and at_commit:
            return ITSELF
        hosts = living_hosts()
        candidates = sorted(host for host in hosts if kind_of(host) == kind)
        return hosts[self._rng.choice(candidates)] if candidates else None
