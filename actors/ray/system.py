"""The client's side of hosts that are Ray actors: start the first one, ask any, and leave nothing behind.

The process that made the system owns its first host, and hosts own those that they start; so Ray takes everything
down when this process dies, however it dies. A detached first host has no parent: it is found again by name, from
any process connected to the same Ray.

What runs inside the actors is `headrace.actors.ray.host`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import ray
from ray._private.services import get_webui_url_from_internal_kv
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from headrace.engine.cluster.standbys import is_head
from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.kernel.machine import Address, SpawnHost
from headrace.state.reading.program_pickles import dump_program, load_program

from ..hosts.host import MachineFactory
from ..hosts.host_system import AskTimedOutError, HostGoneError
from .host import NAMESPACE, Launcher, actor_name

__all__ = ["RaySystem", "clusters_on_ray", "page_of_actor"]

START_TIMEOUT_S = 60.0
"""How long Ray may take to accept an actor; control store and scheduler answer in milliseconds when they are well.
"""

CLOSE_TIMEOUT_S = 10.0
"""How long killed hosts may take to disappear before they are killed one by one."""

LOOK_AGAIN_S = 0.02

REPLY_MARGIN_S = 5.0
"""How much longer than the host itself the client waits for the host's word that there was no answer."""


class RaySystem:
    """Hosts of one cluster, as seen from a client's process. Needs a connection to Ray.

    Args:
        cluster: The cluster's name; part of its actors' names.
        reserve: Whether TaskManagers reserve their cores in Ray.
    """

    name = "ray"

    def __init__(self, cluster: str, *, reserve: bool) -> None:
        self._cluster = cluster
        self._handles: dict[str, Any] = {}
        # Why the first host could not be started, or has ended.
        self._ended: dict[str, str] = {}
        self._news = threading.Condition()
        self._launcher = Launcher(cluster, reserve=reserve, on_started=self._on_started, on_ended=self._on_ended)
        self._is_closed = False
        # Questions on the way, of any thread.
        self._num_questions = 0

    @property
    def hosts(self) -> list[str]:
        """The hosts that Ray knows by name, in no particular order."""
        prefix = actor_name(self._cluster, "")
        return [name.removeprefix(prefix) for name in _names() if name.startswith(prefix)]

    def fresh_id(self) -> str:
        """Return an id for a job."""
        return uuid.uuid4().hex

    def start(
        self,
        host: str,
        actors: tuple[tuple[str, MachineFactory], ...],
        *,
        detached: bool = False,
        spread: bool = False,
    ) -> None:
        """Start a host that has no parent but this process, or none at all.

        Args:
            host: Its name.
            actors: What it runs.
            detached: Whether it outlives this process.
            spread: Whether it should be on another machine than its like.

        Raises:
            ClusterUnavailableError: If Ray does not start it.
        """
        # What ends with this process anyway is best on its node: no other one's loss concerns it.
        is_beside = not detached and not spread
        resources = {"detached": float(detached), "spread": float(spread), "colocate": float(is_beside)}
        self._launcher.spawn(SpawnHost(host, actors, resources))
        with self._news:
            self._news.wait_for(lambda: host in self._handles or host in self._ended, START_TIMEOUT_S)
        if host not in self._handles:
            reason = self._ended.get(host, f"Ray did not answer within {START_TIMEOUT_S:g} s")
            message = f"host {host!r} could not be started: {reason}"
            raise ClusterUnavailableError(message)

    def ask(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask a machine and wait for its answer.

        Raises:
            HostGoneError: If the host is not there, or ends before it answers, or this system was closed.
            AskTimedOutError: If no answer comes within ``timeout_ms``.
        """
        with self._question():
            return self._ask(address, request, timeout_ms)

    @contextlib.contextmanager
    def _question(self) -> Iterator[None]:
        """Count a question, so that `close` can wait for its end.

        A thread that talks to Ray when that has been shut down would end this process, or start another Ray.
        """
        with self._news:
            if self._is_closed:
                message = "the connection to the cluster was closed"
                raise HostGoneError(message)
            self._num_questions += 1
        try:
            yield
        finally:
            with self._news:
                self._num_questions -= 1
                self._news.notify_all()

    def _ask(self, address: Address, request: Any, timeout_ms: int) -> Any:
        question = dump_program(request)
        deadline = time.monotonic() + timeout_ms / 1_000
        left_s = timeout_ms / 1_000
        while left_s > 0:
            reference = self._find(address.host).ask.remote(address.actor, question, left_s)
            try:
                answer: bytes | None = ray.get(reference, timeout=left_s + REPLY_MARGIN_S)
            except GetTimeoutError:
                break
            except ActorUnavailableError:
                # The call or its answer got lost; the host lives. Whether it has heard the question is unknown, and
                # every question may be put twice.
                time.sleep(LOOK_AGAIN_S)
                left_s = deadline - time.monotonic()
                continue
            except RayActorError as error:
                self._handles.pop(address.host, None)
                message = "the host has ended"
                raise HostGoneError(message, host=address.host, reason=self._ended.get(address.host, "")) from error
            if answer is None:
                break
            return load_program(answer)
        message = f"no answer within {timeout_ms} ms"
        raise AskTimedOutError(message, asked=str(address), request=type(request).__name__)

    def wait(self, duration_ms: int) -> None:
        """Let time pass."""
        time.sleep(duration_ms / 1_000)

    def elapsed_ms(self) -> int:
        """Return monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def run_in_background(self) -> None:
        """Do nothing: hosts run by themselves here."""

    def close(self, *, wait: bool = True) -> None:
        """Kill every host of the cluster. May be repeated.

        Args:
            wait: Whether to return only when they are gone; needless where Ray itself is shut down next.
        """
        with self._news:
            if self._is_closed:
                return
            self._is_closed = True
        self._launcher.close(also_detached=True)
        with self._news:  # killed hosts fail what they were asked
            self._news.wait_for(lambda: not self._num_questions, CLOSE_TIMEOUT_S)
        if not wait:
            return
        for host in filter(is_head, self.hosts):  # they have no parent; all others are their children
            _kill(self._cluster, host)
        kill_at = time.monotonic() + CLOSE_TIMEOUT_S / 2
        deadline = kill_at + CLOSE_TIMEOUT_S / 2
        while (left := self.hosts) and time.monotonic() < deadline:
            if time.monotonic() >= kill_at:
                for host in left:
                    _kill(self._cluster, host)
            time.sleep(LOOK_AGAIN_S)

    def _find(self, host: str) -> Any:
        handle = self._handles.get(host)
        if handle is None:
            try:
                handle = ray.get_actor(actor_name(self._cluster, host), namespace=NAMESPACE)
            except ValueError as error:
                message = "the host is gone"
                raise HostGoneError(message, host=host) from error
            self._handles[host] = handle
        return handle

    def _on_started(self, host: str, handle: Any) -> None:
        with self._news:
            self._handles[host] = handle
            self._news.notify_all()

    def _on_ended(self, host: str, reason: str, _node: str) -> None:
        with self._news:
            self._ended[host] = reason
            self._news.notify_all()


def page_of_actor(cluster: str, host: str) -> str | None:
    """Return the address of a host's page on Ray's dashboard; None if there is no dashboard, or the host has ended."""
    address = get_webui_url_from_internal_kv()
    actor = _actor_id(cluster, host) if address else None
    if actor is None:
        return None
    url = address if "://" in address else f"http://{address}"
    return f"{url.rstrip('/')}/#/actors/{actor}"


@functools.lru_cache(1_000)
def _known_actor_id(cluster: str, host: str) -> str:
    """What Ray calls a host, whose name is never given again."""
    return str(ray.get_actor(actor_name(cluster, host), namespace=NAMESPACE)._actor_id.hex())


def _actor_id(cluster: str, host: str) -> str | None:
    try:
        return _known_actor_id(cluster, host)
    except ValueError:
        return None


def clusters_on_ray() -> list[str]:
    """Return names of all Headrace clusters on the connected Ray."""
    parts = [name.split(":", 2) for name in _names()]
    return sorted({part[1] for part in parts if len(part) == 3 and part[0] == "headrace" and is_head(part[2])})


def _names() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["namespace"] == NAMESPACE]


def _kill(cluster: str, host: str) -> None:
    try:
        ray.kill(ray.get_actor(actor_name(cluster, host), namespace=NAMESPACE), no_restart=True)
    except (ValueError, RayActorError):
        return  # gone by itself
