"""Reads pages of a server, each from a cursor on, which the page before has named.

Invariant: a split's position is the cursor of the page that comes next, and how many of its records were given. A page
without a successor is asked for again, and what has come to its end is given.

Source: RFC 8288, "Web Linking" (``rel="next"``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.state.checkpoints.manifest_schema import is_count, is_text

from ..messages.client_thread import AwayError, ClientThread
from ..messages.decoding import MessageDecoder, Metadata
from ..messages.fetching import FetchingReader
from .client import Answer, Endpoint, HttpAwayError, HttpClient, HttpRefusedError, with_parameter
from .json_places import Pointer

__all__ = ["PAGE_METADATA", "PageReader", "Paging", "Record", "away_of", "refused_of"]

PAGES_AHEAD = 2
"""So many pages may wait to be taken."""

PAUSE_S = 0.05
LINK = "link"
NO_CONTENT = 204
_LINKS = re.compile(r"<([^<>]*)>((?:\s*;\s*[\w!#$%&'*+.^`|~-]+\s*(?:=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s;,\"]+))?)*)")
_REL = re.compile(r"(?i);\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))")


@dataclass(frozen=True)
class Paging:
    """How pages are read.

    Attributes:
        lines: Whether a page is a record a line; else it is a JSON text.
        records: Where in that the records are.
        cursor: Where in that the cursor of the next page is; None: in the header that `header` names.
        header: ``link`` for the address with ``rel="next"``; another one is the cursor itself.
        parameter: Of the query, by which the server is told a cursor; None: the cursor is an address.
        bounded: Whether a page without a successor is the end.
        interval_s: How long to wait before the last page is asked for again.
        patience_s: How long the server may be away.
    """

    lines: bool
    records: Pointer
    cursor: Pointer | None
    header: str | None
    parameter: str | None
    bounded: bool
    interval_s: float
    patience_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """A record, as the server has sent it."""

    url: str
    cursor: str | None
    number: int
    body: bytes

    @property
    def place(self) -> str:
        """Where it is."""
        page = "the first page" if self.cursor is None else f"the page at cursor {self.cursor!r}"
        return f"record {self.number} of {page}"


PAGE_METADATA: Metadata = {
    "url": (pa.string(), lambda record: record.url),
    "cursor": (pa.string(), lambda record: record.cursor),
}


@dataclass(frozen=True, slots=True)
class _Page:
    """What of a page had not been given yet."""

    split_id: str
    first: int
    records: list[bytes]
    # Of the next page; None if there is none yet.
    following: str | None

    @property
    def num_messages(self) -> int:
        return len(self.records)


class _Reading:
    """A split, and how far it was fetched, or given."""

    def __init__(self, split: Split, bounded: bool) -> None:
        self._split = split
        self._bounded = bounded
        self.split_id = split.split_id
        self.url: str = split.payload["url"]
        self.cursor: str | None = None
        self.num_given = 0
        self.is_at_end = False
        # When to ask next, by the monotonic clock.
        self.due_s = 0.0
        position = split.position
        if position is not None:
            is_right = isinstance(position, dict) and position.keys() == {"cursor", "given"}
            is_right = is_right and is_count(position["given"])
            if not is_right or not (position["cursor"] is None or is_text(position["cursor"])):
                message = "the checkpoint's position is not one of pages, which is a cursor and a number"
                raise CheckpointMismatchError(message, split=split.split_id)
            self.cursor, self.num_given = position["cursor"], position["given"]

    def move(self, page: _Page) -> None:
        """Go behind a page, as far as it goes."""
        if page.following is not None:
            self.cursor, self.num_given = page.following, 0
        else:
            self.num_given = page.first + len(page.records)
            self.is_at_end = self._bounded

    def as_split(self) -> Split:
        is_new = self.cursor is None and not self.num_given
        position = None if is_new else {"cursor": self.cursor, "given": self.num_given}
        return Split(self.split_id, self._split.payload, position)


class _Fetcher(ClientThread):
    """Asks for pages of several splits in turn."""

    def __init__(self, endpoint: Endpoint, paging: Paging, name: str, readings: Sequence[_Reading]) -> None:
        super().__init__(name, PAGES_AHEAD, paging.patience_s)
        self._endpoint = endpoint
        self._paging = paging
        self._readings = list(readings)
        self._clients: dict[str, HttpClient] = {}

    def connect(self) -> None:
        return  # with the first request, and again with each that needs it

    def disconnect(self) -> None:
        for client in self._clients.values():
            client.close()

    def stop(self, timeout_s: float) -> None:
        self._stop.set()  # before it notices, and connects again
        for client in list(self._clients.values()):
            client.interrupt()
        super().stop(timeout_s)

    def work(self) -> None:
        if not self._readings:
            self.end()
            return
        reading = min(self._readings, key=lambda one: one.due_s)
        if reading.due_s > time.monotonic():
            self.pause(PAUSE_S)
            return
        page = self._fetch(reading)
        reading.move(page)
        has_waited_for = page.following is None or not page.records
        reading.due_s = time.monotonic() + (self._paging.interval_s if has_waited_for else 0)
        if reading.is_at_end:
            self._readings.remove(reading)
        self.give(page)

    def _fetch(self, reading: _Reading) -> _Page:
        where: dict[str, Any] = {"split": reading.split_id, "position": _told(reading.cursor)}
        try:
            if reading.split_id not in self._clients:
                self._clients[reading.split_id] = HttpClient(replace_url(self._endpoint, reading.url))
            client = self._clients[reading.split_id]
            url = self._address(client, reading)
            answer = client.get(url, Accept="application/x-ndjson" if self._paging.lines else "application/json")
            text = answer.text()
            if self._paging.lines:
                answer.require_end()
            try:
                records, following = self._parse(client, answer, text)
            except ValueError as error:
                message = f"a page is not what it is said to be: {error}"
                if not answer.says_its_end or not text.strip():  # it may have been cut short
                    raise AwayError(message, **where) from error
                raise SourceError(message, **where) from error
        except HttpAwayError as error:
            raise away_of(error, where) from error
        except HttpRefusedError as error:
            raise refused_of(error, where) from error
        if len(records) < reading.num_given:
            message = (
                f"a page has {len(records)} records, and had {reading.num_given}: its cursor cannot be gone on from"
            )
            hint = "the server must keep what it has given behind a cursor, and add to the end of the last page alone"
            raise SourceError(message, hint=hint, **where)
        is_next = following is not None and following != reading.cursor
        return _Page(reading.split_id, reading.num_given, records[reading.num_given :], following if is_next else None)

    def _address(self, client: HttpClient, reading: _Reading) -> str:
        if reading.cursor is None:
            return reading.url
        if self._paging.parameter is not None:
            return with_parameter(reading.url, self._paging.parameter, reading.cursor)
        client.require_origin(reading.cursor, "its next page leads")
        return reading.cursor

    def _parse(self, client: HttpClient, answer: Answer, text: str) -> tuple[list[bytes], str | None]:
        """The records of a page, and the cursor of the next one.

        Raises:
            ValueError: If it is no such page.
        """
        paging = self._paging
        # An empty text is no JSON: whoever has nothing to say says so by its status.
        has_nothing = answer.status == NO_CONTENT
        if paging.lines:
            records = [line.encode() for line in text.split("\n") if line.strip()]
        else:
            elements = [] if has_nothing else paging.records.elements(text)
            if elements is None:
                message = f"there is no array at {str(paging.records)!r}"
                raise ValueError(message)
            records = [element.encode() for element in elements]
        following: str | None
        if paging.cursor is not None:
            following = None if has_nothing else self._cursor_in(text, paging.cursor)
        elif paging.header == LINK:
            following = next_of(answer.header("link") or "")
        else:
            following = answer.header(paging.header or "") or None
        if following is not None and paging.parameter is None:
            following = urljoin(answer.url, following)
            client.require_origin(following, "its next page leads")
        return records, following

    @staticmethod
    def _cursor_in(text: str, place: Pointer) -> str | None:
        """The cursor in a page; None if it says that there is none, and does not say something else instead."""
        found = place.cursor(text)
        if found is None and (value := place.value(text)) not in (None, False, ""):
            message = f"what is at {str(place)!r} is no cursor: {value!r:.80}"
            raise ValueError(message)
        return found


def _told(cursor: str | None) -> str:
    return "the first page" if cursor is None else f"cursor {cursor!r}"


def replace_url(endpoint: Endpoint, url: str) -> Endpoint:
    """Return an endpoint like another one, at another place."""
    return Endpoint(url, endpoint.headers, endpoint.tls, endpoint.timeout_s, endpoint.max_bytes)


def next_of(links: str) -> str | None:
    """Return the address of ``rel="next"`` in a header ``Link``; None if there is none."""
    for target, parameters in _LINKS.findall(links):
        rel = _REL.search(parameters)
        if rel is not None and "next" in (rel[1] or rel[2] or "").lower().split():
            return str(target)
    return None


def away_of(error: HttpAwayError, where: dict[str, Any]) -> AwayError:
    """Return the same, for a thread that asks again."""
    found = AwayError(error.message, **error.context, **where)
    found.wait_s = error.wait_s
    return found


def refused_of(error: HttpRefusedError, where: dict[str, Any]) -> SourceError:
    """Return the same, for the job."""
    return SourceError(error.message, hint=error.hint, **error.context, **where)


class PageReader(FetchingReader[_Reading, _Page, _Fetcher]):
    """Reads the pages of one subtask.

    Args:
        endpoint: Who asks, and how; a split says where.
        paging: How.
        decoder: Makes records of messages.
    """

    def __init__(self, endpoint: Endpoint, paging: Paging, decoder: MessageDecoder[Record]) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._paging = paging
        self._decoder = decoder

    def reading_of(self, split: Split) -> _Reading:
        return _Reading(split, self._paging.bounded)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"http {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._endpoint, self._paging, name, readings)

    def read(self, reading: _Reading, fetched: _Page) -> Batch:
        records = [
            Record(reading.url, reading.cursor, fetched.first + number, body)
            for number, body in enumerate(fetched.records)
        ]
        batch = self._decoder.decode(self._context, reading.split_id, records)
        reading.move(fetched)
        return batch
