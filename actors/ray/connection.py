"""Getting hold of Ray: find a cluster, join it, or start one on this machine; and keep it quiet.

Decides where Ray is: the cluster this process is already connected to, else the address given, else ``RAY_ADDRESS``
(set inside a Ray job), else what ``ray start`` announced on this machine, else a Ray of our own. A cluster that does
not answer is said so by name within seconds. ``ray://`` is refused: through that proxy every frame costs two more
hops, and the driver could not own its hosts.

Ray prints a line to the driver for every worker that dies, unasked and not through ``logging``. For us a death is an
event that supervision handles and reports, so the thread that prints is not started. Nor are, in a Ray of our own, the
processes that serve no one there.

A Ray of our own listens on the loopback alone. Those who reach one of Ray's ports and have its token can run code as
this user, and it is not for other machines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import worker as ray_worker
from ray._private.node import Node
from ray._private.services import get_node_ip_address
from ray._private.utils import read_ray_address

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError
from headrace.state.reading.read_limits import number_in

from .java import offer_java

__all__ = ["is_private", "open_ray"]

CONNECT_TIMEOUT_S = 5.0
"""How long a cluster may take to accept a connection."""

ADDRESS_VARIABLE = "RAY_ADDRESS"

NEEDLESS = ("start_api_server", "start_monitor", "start_log_monitor")
"""Starters of dashboard, autoscaler and log monitor. A Ray of our own has no use for them, and each takes a second of
a core just when the first hosts want it; `ray.init` would even wait for the dashboard, wanted or not.
"""


def open_ray(address: str | None, num_cpus: int, *, may_start: bool = True) -> bool:
    """Connect this process to Ray.

    Args:
        address: ``host:port`` of a cluster; ``"auto"`` for a running one, never a new one; ``"local"`` for a new one;
            None as the module says.
        num_cpus: Cores that a Ray of our own pretends to have, if that is more than the machine has.
        may_start: Whether a Ray of our own may be started.

    Returns:
        Whether a connection was made (else the program had one already); `ray.shutdown` is then up to the caller.

    Raises:
        ClusterUnavailableError: If there is no cluster at the address, or none at all and none may be started.
        ConfigurationError: If the address goes through the Ray client.
    """
    target = address if address not in (None, "auto") else os.environ.get(ADDRESS_VARIABLE) or None
    if target is not None and "://" in target:
        message = f"address {target!r} goes through the Ray client, which cannot own a cluster's hosts"
        raise ConfigurationError(
            message, hint="submit the program with 'ray job submit', or use host:port from within the cluster"
        )
    if ray.is_initialized():
        _check_same_cluster(address)
        return False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change in how it hides GPUs
    if target is None:
        announced = read_ray_address()
        if announced and _is_listening(announced):
            with _as_near_as(announced):
                _init(announced, address=None)  # without an address Ray also looks for this cluster's token
            return True
        if address == "auto" or not may_start:
            message = "no running Ray cluster was found on this machine"
            raise ClusterUnavailableError(message, hint="start one with 'ray start --head', or name one by its address")
    if target is None or target == "local":
        offer_java()  # a raylet looks for one only now
        cpus = max(num_cpus, os.cpu_count() or 1)
        _make_private_token()
        with _lean(), _on_loopback():
            _init("this machine", address="local", num_cpus=cpus, include_dashboard=False)
        return True
    if not _is_listening(target):
        message = f"no Ray cluster answers at {target!r}"
        raise ClusterUnavailableError(
            message, hint="is it 'ray start --head' on that host and its port, 6379 by default?"
        )
    with _as_near_as(target):
        _init(target, address=target)
    return True


def _check_same_cluster(address: str | None) -> None:
    """Refuse another cluster than the one this process is connected to: Ray knows only one at a time."""
    if address in (None, "auto", "local"):
        return
    connected = ray.get_runtime_context().gcs_address
    if address != connected:
        message = f"this process is connected to Ray at {connected!r} already; got address {address!r}"
        raise ConfigurationError(message, hint="close that environment first, or run the program in its own process")


def is_private() -> bool:
    """Return whether the connected Ray was started by this process, and goes with it."""
    node = ray_worker._global_node
    return node is not None and node.is_head()


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    number = number_in(port)
    if not host or number is None or number > 65_535:
        message = f"a Ray address is host:port, 'auto' or 'local'; got {address!r}"
        raise ConfigurationError(message)
    try:
        socket.create_connection((host.strip("[]"), number), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _init(what: str, **options: Any) -> None:
    try:
        with _quietly():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        message = f"could not connect to Ray at {what}: {error}"
        hint = None
        if "AuthenticationError" in str(cause):
            message = f"the Ray cluster at {what} wants a token that this process does not show"
            hint = "set RAY_AUTH_MODE=token; the token is in ~/.ray/auth_token of the cluster's machines"
        raise ClusterUnavailableError(message, hint=hint) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Do not let `ray.init` start the thread that prints deaths of workers to the terminal."""
    if not hasattr(ray_worker, "listen_error_messages"):
        yield
        return
    printing = ray_worker.listen_error_messages
    ray_worker.listen_error_messages = _print_nothing
    try:
        yield
    finally:
        ray_worker.listen_error_messages = printing


def _print_nothing(*_: Any) -> None:
    """Stands in for the thread's body."""


@contextlib.contextmanager
def _lean() -> Iterator[None]:
    """Let `ray.init` start only what hosts need."""
    starters = {name: getattr(Node, name) for name in NEEDLESS if hasattr(Node, name)}
    for name in starters:
        setattr(Node, name, _start_nothing)
    try:
        yield
    finally:
        for name, starter in starters.items():
            setattr(Node, name, starter)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let `ray.init` take 127.0.0.1 for this machine's address; all servers of a node listen where that is.

    ``_node_ip_address`` does not do it, as Ray replaces a loopback address by another one. Where clusters of several
    machines are not supported, on macOS and Windows, it does by itself what is wanted here.
    """
    may_be_several = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if may_be_several is not None:
        ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if may_be_several is not None:
            ray_constants.ENABLE_RAY_CLUSTER = may_be_several


def _as_near_as(address: str) -> contextlib.AbstractContextManager[None]:
    """How to join a cluster: on the loopback if it listens nowhere else, as one that `_on_loopback` started.

    Ray would replace a loopback address by this machine's other one, and wait there for a cluster that is not there.
    """
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("localhost", "127.0.0.1", "::1") or _is_listening(f"{get_node_ip_address()}:{port}"):
        return contextlib.nullcontext()
    return _on_loopback()


def _make_private_token() -> None:
    """Make the token that Ray would make for this user's clusters, but as a file that others cannot read."""
    is_ours = not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if not is_ours or not hasattr(ray_worker, "enable_token_auth_by_default"):
        return
    path = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # there is one, or Ray will say what is wrong
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))


def _start_nothing(*_: Any, **__: Any) -> None:
    """Stands in for a starter."""
