"""Sends entries by key, and decides about what a service refuses: later, never, or it has something newer."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.engine.connectors.async_sinks import AsyncSinkWriter
from headrace.engine.errors import SinkError
from headrace.state.credentials import masked
from headrace.state.values.sharing import shown

from .keyed import Entry, newest_of
from .options import UpsertOptions

__all__ = ["Refused", "SinkAwayError", "UpsertSinkWriter"]


class SinkAwayError(SinkError):
    """A service does not answer, or has too much to do: it may take the same in a moment."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that a service did not take.

    Attributes:
        entry: Which.
        cause: What the service says.
        is_for_now: Whether it may take it later.
    """

    entry: Entry
    cause: str
    is_for_now: bool = False


class UpsertSinkWriter(AsyncSinkWriter):
    """Sends entries in requests that block. Subclasses say how.

    Args:
        place: What is written to, for errors.
        options: How.
    """

    def __init__(self, place: str, options: UpsertOptions) -> None:
        self._place = place
        self._options = options
        # Since when the service has taken nothing; None if it has.
        self._away_since: float | None = None
        self._metrics: Any = None

    @abstractmethod
    def connect(self) -> None:
        """Get ready; may be called again. A service that is away is waited for: see `apply`.

        Raises:
            ConfigurationError: If what is needed is not installed.
            SinkError: If what is to be written to does not do.
        """

    @abstractmethod
    def apply(self, entries: list[Entry]) -> Iterable[Refused]:
        """Write entries, of which no two have one key; gives those that were refused.

        What the service has something newer of counts as written: see `count_older`.

        Raises:
            SinkAwayError: If it does not answer. All are sent again.
            SinkError: If it never will take them.
        """

    def count_older(self, number: int) -> None:
        """Count entries that were written and are older than what is there."""
        self._metrics.count("num_records_older", number)

    def open(self, context: Any) -> None:
        """Get ready."""
        self._metrics = context.get_metrics_group()
        self.connect()

    def submit_request_entries(self, request_entries: list[Entry]) -> list[Entry]:  # type: ignore[override]
        """Send the newest entry of each key.

        Raises:
            SinkError: If one is refused for good, or the service has taken nothing for too long.
        """
        entries = newest_of(request_entries)
        try:
            refused = list(self.apply(entries))
        except SinkAwayError as error:
            self._wait(error.message)
            return request_entries
        for_good = [one for one in refused if not one.is_for_now]
        if for_good:
            self._skip_or_raise(for_good)
        later = [one for one in refused if one.is_for_now]
        if later and len(later) == len(entries):
            self._wait(f"{self._place} takes nothing now: {later[0].cause}")
        else:
            self._away_since = None
        return [one.entry for one in later]

    def _wait(self, cause: str) -> None:
        """Nothing was taken: go on for a while.

        Raises:
            SinkError: If that has been so for too long.
        """
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= self._options.patience_s:
            message = f"{masked(cause)}; nothing was taken for {now - self._away_since:.0f} s"
            raise SinkError(message, hint="patience says how long that may be")

    def _skip_or_raise(self, refused: list[Refused]) -> None:
        if self._options.on_error == "skip":
            self._metrics.count("num_records_skipped", len(refused))
            return
        first = refused[0]
        what = "a record" if first.entry[0] is None else f"the record with key {shown(first.entry[0])}"
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        message = f"{self._place} refuses {what}{more}: {masked(first.cause)}"
        raise SinkError(message, hint="on_error='skip' goes on without such records")
