"""The clients of one job as its JobManager sees them: who waits for news or for the end, and whether anybody is there.

A long poll is answered when the view's version has passed the one the client has seen; versions grow over all leaders
of a job. Once the job has ended nothing is told until the Dispatcher has recorded the end: what a client has been
told is never taken back, even if the JobManager dies in that very moment.

Source: Flink's ``JobStatus`` long polls in ``RestClusterClient``; ``execution.attached`` and
``client.heartbeat.timeout``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...kernel.machine import CancelTimer, Command, Reply, StartTimer
from ...protocol.messages import WaitForJob
from ...protocol.views import JobView

__all__ = ["ClientLost", "JobClients", "LingerOver", "PollTimedOut"]

VERSION_SHIFT = 32
"""Versions of one leader: 2**32 changes."""

ATTACHED_TIMEOUT_MS = 30_000
"""An attached client asks every few seconds; silence of this long, at least, means that it is gone."""

LINGER_MS = 5_000
"""After its job's end a JobManager stays for another question for this long if everything has been told."""

LINGER_BOUND_MS = 30_000
"""And for this long since the last question if an attached client has not heard of the end, or has reports to fetch."""


@dataclass(frozen=True, slots=True)
class PollTimedOut:
    """Timer: a long poll is answered although nothing has changed."""

    ask_id: str


@dataclass(frozen=True, slots=True)
class ClientLost:
    """Timer: an attached job's client has stopped asking."""


@dataclass(frozen=True, slots=True)
class LingerOver:
    """Timer: no client has asked since the job ended, or they have had time enough."""


class JobClients:
    """Waiting clients, and the version they wait on.

    Args:
        epoch: The leader's epoch.
        is_attached: Whether the job ends with its client.
        heartbeat_timeout_ms: Of the job's settings.
    """

    def __init__(self, epoch: int, heartbeat_timeout_ms: int, *, is_attached: bool) -> None:
        self.version = (epoch << VERSION_SHIFT) + 1
        self._is_attached = is_attached
        self._silence_ms = max(ATTACHED_TIMEOUT_MS, 3 * heartbeat_timeout_ms)
        # Version that each waiting poll has seen, by ask.
        self._polls: dict[str, int] = {}
        # Asks to be answered with True when the job has ended.
        self._cancels: list[str] = []
        # The job has ended; and the Dispatcher knows.
        self._has_ended = False
        self._is_archived = False
        # Some client has heard of it.
        self._has_told_end = False

    def changed(self) -> None:
        """Note that the view is another one."""
        self.version += 1

    def started(self) -> list[Command]:
        """Expect an attached client to ask, as the JobManager begins."""
        return self._expect_client(0)

    def asked(self, patience_ms: int = 0) -> list[Command]:
        """Take a sign of life of a client, who will not give another one for ``patience_ms``."""
        return self._expect_client(patience_ms)

    def _expect_client(self, patience_ms: int) -> list[Command]:
        if not self._is_attached or self._has_ended:
            return []
        return [StartTimer("client", self._silence_ms + patience_ms, ClientLost())]

    def poll(self, ask_id: str, request: WaitForJob) -> list[Command]:
        """Take a long poll; `flush` answers it, at once or later."""
        self._polls[ask_id] = request.seen_version
        timer = StartTimer(_poll_key(ask_id), request.timeout_ms, PollTimedOut(ask_id))
        return [timer, *self.asked(request.timeout_ms)]

    def poll_timed_out(self, timer: PollTimedOut) -> None:
        """Let the next `flush` answer a poll whatever the version; held back like all others at the job's end."""
        if timer.ask_id in self._polls:
            self._polls[timer.ask_id] = -1

    def cancel_requested(self, ask_id: str) -> None:
        """Note who wants to hear that the job has ended."""
        self._cancels.append(ask_id)

    def ended(self) -> list[Command]:
        """Hold the news of the job's end back until `archived`."""
        self._has_ended = True
        return [CancelTimer("client")]

    def archived(self) -> None:
        """Tell the end, as the Dispatcher has recorded it."""
        self._is_archived = True

    def linger(self, *, has_reports: bool) -> list[Command]:
        """Return how long to stay after the end, seen from now; called whenever a client asks.

        Args:
            has_reports: Whether there is something left to fetch.
        """
        if not self._is_archived:
            return []
        is_expected = self._is_attached and (has_reports or not self._has_told_end)
        return [StartTimer("linger", LINGER_BOUND_MS if is_expected else LINGER_MS, LingerOver())]

    def flush(self, view: Callable[[], JobView]) -> list[Command]:
        """Answer all clients that there is news for.

        Args:
            view: Makes the present view; called only if somebody is answered.
        """
        if self._has_ended and not self._is_archived:
            return []
        commands: list[Command] = []
        if self._is_archived:
            commands += [Reply(ask_id, value=True) for ask_id in self._cancels]
            self._cancels.clear()
        due = [ask_id for ask_id, seen in self._polls.items() if seen < self.version]
        if due:
            current = view()
            self._has_told_end = self._is_archived
            for ask_id in due:
                del self._polls[ask_id]
                commands += [CancelTimer(_poll_key(ask_id)), Reply(ask_id, current)]
        return commands


def _poll_key(ask_id: str) -> str:
    return f"poll-{ask_id}"
