"""The REST server's life in a head, beside Dispatcher and ResourceManager.

It is a machine only in that it lives in a host and is asked where it listens. The server is started and runs in
threads, at once, or when it is asked for first, or some time later (`RestSettings.start_delay_ms`); what it is made of
is not loaded before. It asks the cluster as any other client does, so a head that does not lead answers as well as one
that does. A server that cannot be started ends nothing: the cluster runs without it, and says why when it is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import ClusterUnavailableError, HeadraceError, InternalError
from headrace.engine.kernel.event_log import EventLog
from headrace.engine.kernel.machine import (
    Address,
    Asked,
    Command,
    Offload,
    OffloadCompleted,
    Reply,
    Started,
    StartTimer,
)
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.messages import RequestFailed
from headrace.state.files.rest_addresses import write_address

if TYPE_CHECKING:
    from .resources.programs import ProgramPlace
    from .resources.questions import AsksCluster
    from .security import Tokens
    from .server import RestServer

__all__ = ["FetchRestAddress", "RestAddress", "RestHost", "RestPlan", "StopRest"]


@dataclass(frozen=True, slots=True)
class FetchRestAddress:
    """Ask a head where it serves REST. Answer: `RestAddress`, once it does, or `RequestFailed`."""


@dataclass(frozen=True, slots=True)
class StopRest:
    """Have a head serve REST no more. Answer: True, once it does not."""


@dataclass(frozen=True, slots=True)
class RestAddress:
    """Where a head serves REST.

    Attributes:
        url: Without a slash at its end.
        tokens: What it asks for.
        file: Where both are written, on the head's machine.
    """

    url: str
    tokens: Tokens
    file: str


@dataclass(frozen=True, slots=True)
class RestPlan:
    """What all heads of a cluster need to serve REST.

    Attributes:
        settings: How.
        tokens: The same for all of them.
        connect: Makes a client of the cluster, in the head's process.
        cluster: The cluster's name.
        programs: Where programs are kept, and how they are run; None if they cannot be.
    """

    settings: RestSettings
    tokens: Tokens = field(repr=False)
    connect: Callable[[], AsksCluster]
    cluster: str
    programs: ProgramPlace | None = None


@dataclass(frozen=True, slots=True)
class _StartDue:
    """Timer: nobody has asked where the server is, and it is started all the same."""


@dataclass(frozen=True, slots=True)
class _ServerStarted:
    """Token of the offloaded start."""


@dataclass(frozen=True, slots=True)
class _ServerStopped:
    """Token of the offloaded end."""

    ask_id: str


class RestHost:
    """The machine.

    Args:
        address: Its own address.
        plan: What it needs.
    """

    def __init__(self, address: Address, plan: RestPlan) -> None:
        self.address = address
        self.log = EventLog(machine="Rest")
        self._plan = plan
        self._server: RestServer | None = None
        # Whether it is being started, or has been.
        self._has_begun = False
        # Where it serves, or why it does not; None while it is being started. And who has asked meanwhile.
        self._outcome: RestAddress | RequestFailed | None = None
        self._ask_ids: list[str] = []
        self._is_closed = False

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one event; see `headrace.engine.kernel.machine.Machine`."""
        if isinstance(event, Started):
            delay_ms = self._plan.settings.start_delay_ms
            return [StartTimer("start REST", delay_ms, _StartDue())] if delay_ms else self._begin()
        if isinstance(event, _StartDue):
            return self._begin()
        if isinstance(event, OffloadCompleted):
            if isinstance(event.token, _ServerStopped):
                return [Reply(event.token.ask_id, value=True)]
            return self._started(event, now_ms)
        if isinstance(event, Asked):
            return self._asked(event)
        return []

    def close(self) -> None:
        """Serve no more."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        if isinstance(self._outcome, RestAddress):
            with contextlib.suppress(OSError):
                Path(self._outcome.file).unlink()

    def _begin(self) -> list[Command]:
        """Have the server started, once."""
        if self._has_begun or self._is_closed:
            return []
        self._has_begun = True
        return [Offload("start_rest", _ServerStarted(), self._start, "blocking")]

    def _start(self) -> RestAddress:
        """Start the server; in a thread."""
        from .server import RestServer

        plan = self._plan
        server = self._server = RestServer(plan.connect(), plan.settings, plan.tokens, plan.programs)
        url = server.start()
        try:
            file = write_address(plan.cluster, self.address.host, url, plan.tokens.write, plan.tokens.read)
        except (HeadraceError, OSError):
            server.close()  # nobody could find out how to ask it
            raise
        if self._is_closed:
            server.close()
            file.unlink(missing_ok=True)
        return RestAddress(url, plan.tokens, str(file))

    def _started(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.error is None:
            self._outcome = event.result
            self.log.add(now_ms, "rest", f"serves {event.result.url}")
        else:
            text = str(event.error) if isinstance(event.error, HeadraceError) else repr(event.error)
            error = event.error if isinstance(event.error, HeadraceError) else InternalError(text)
            self._outcome = RequestFailed(error)
            self.log.add(now_ms, "rest", f"is not served: {text}")
        ask_ids, self._ask_ids = self._ask_ids, []
        return [Reply(ask_id, self._outcome) for ask_id in ask_ids]

    def _asked(self, event: Asked) -> list[Command]:
        if isinstance(event.request, StopRest):
            return [Offload("stop_rest", _ServerStopped(event.ask_id), self.close, "blocking")]
        if not isinstance(event.request, FetchRestAddress):
            message = f"a REST server's host does not answer {type(event.request).__name__}"
            return [Reply(event.ask_id, RequestFailed(InternalError(message)))]
        if self._outcome is None and self._is_closed and not self._has_begun:
            message = "REST is not served any more"
            return [Reply(event.ask_id, RequestFailed(ClusterUnavailableError(message)))]
        if self._outcome is None:
            self._ask_ids.append(event.ask_id)
            return self._begin()
        return [Reply(event.ask_id, self._outcome)]
