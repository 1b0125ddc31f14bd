"""Reads slices of an index one after the other, in a thread, page by page, in the order of sequence numbers.

Invariant: a slice's position is the sequence number of the last document that was given, and how many were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.state.checkpoints.manifest_schema import is_text

from ..messages.client_thread import AnswerError, AwayError, ClientThread
from ..messages.decoding import MessageDecoder, Metadata
from .client import Answer, SearchClient, Service, document_text, quoted

__all__ = ["METADATA", "Document", "IndexReader", "Scan", "search_body"]

MAX_WAITING = 2
"""Pages that may wait for the task."""

POLL_MS = 5
"""How soon to look again when nothing was there."""

GONE = ("search_context_missing", "index_not_found", "no_shard_available", "node_not_connected")
"""What a service says of a point in time that it does not have any more."""


@dataclass(frozen=True)
class Document:
    """A document of an index."""

    index: str
    id: str
    version: int | None
    seq_no: int
    source: bytes


METADATA: Metadata = {
    "id": (pa.string(), lambda document: document.id),
    "index": (pa.string(), lambda document: document.index),
    "version": (pa.int64(), lambda document: document.version),
    "seq-no": (pa.int64(), lambda document: document.seq_no),
}


@dataclass(frozen=True)
class Scan:
    """What is read.

    Attributes:
        index: As the program names it.
        query: Which documents; None for all.
        fields: Which of their fields; None for all.
        page_size: Documents of an answer.
        keep_alive: For a point in time, as the service takes it.
        patience_s: How long the service may be away.
    """

    index: str
    query: dict[str, Any] | None
    fields: tuple[str, ...] | None
    page_size: int
    keep_alive: str
    patience_s: float


def search_body(scan: Scan, payload: Mapping[str, Any], after: int | None, *, is_last: bool = False) -> dict[str, Any]:
    """Return a search for the next documents of a slice, or for the last one, and how many there are.

    Args:
        scan: What is read.
        payload: Of the split.
        after: The number behind which to search; None for the first page.
        is_last: Whether the last document is wanted.
    """
    filters: list[dict[str, Any]] = [] if scan.query is None else [scan.query]
    if payload["end"] is not None:
        filters.append({"range": {"_seq_no": {"lte": payload["end"]}}})
    body: dict[str, Any] = {
        "size": 1 if is_last else scan.page_size,
        "pit": {"id": payload["point"], "keep_alive": scan.keep_alive},
        "query": {"bool": {"filter": filters}},
        "sort": [{"_seq_no": "desc" if is_last else "asc"}],
        "track_total_hits": is_last,
    }
    if payload["slices"] > 1:  # by a field, so that the cut is the same in another point in time
        body["slice"] = {"field": "_seq_no", "id": payload["slice"], "max": payload["slices"]}
    if is_last:
        body["_source"] = False
        return body
    body |= {"version": True, "seq_no_primary_term": True}
    if scan.fields is not None:
        body["_source"] = list(scan.fields)
    if after is not None:  # its other parts go by the point in time
        filters.append({"range": {"_seq_no": {"gt": after}}})
    return body


@dataclass(frozen=True, slots=True)
class _Reading:
    """A slice, and how far it was fetched or given."""

    split: Split
    after: int | None
    count: int

    def behind(self, documents: list[Document]) -> _Reading:
        return replace(self, after=documents[-1].seq_no, count=self.count + len(documents)) if documents else self


class _Fetcher(ClientThread):
    """Fetches the documents of one slice."""

    def __init__(self, client: SearchClient, name: str, scan: Scan, reading: _Reading) -> None:
        super().__init__(name, MAX_WAITING, scan.patience_s)
        self._client = client
        self._scan = scan
        self._reading = reading
        self._payload = dict(reading.split.payload)
        self._service: Service | None = None
        # Whether the point in time is one of this thread's making, which nobody else asks.
        self._has_own_point = False

    def connect(self) -> None:
        self._service = self._client.connect()

    def disconnect(self) -> None:
        service, self._service = self._service, None
        if service is None:
            return
        if self._has_own_point and self.is_stopping:
            service.close_point_in_time(self._payload["point"])
        service.close()

    def work(self) -> None:
        reading = self._reading
        documents = [] if reading.after == self._payload["end"] else self._next()
        if documents is None:  # in another point in time
            return
        if not documents:
            self._check_count()
        self._reading = reading.behind(documents)
        self.give(documents)
        if not documents:
            self.end()

    def _next(self) -> list[Document] | None:
        """The next documents; None if they are to be asked for again."""
        body = search_body(self._scan, self._payload, self._reading.after)
        try:
            assert self._service is not None
            answer = self._service.search(body)
        except AnswerError as error:
            if not any(word in str(error) for word in GONE):
                raise self._failed(error) from error
            self._reopen()
            return None
        self._payload["point"] = answer.get("pit_id", self._payload["point"])
        return [_document(hit) for hit in answer["hits"]["hits"]]

    def _ask(self, method: str, path: str, body: Any = None, **parameters: str) -> Answer:
        assert self._service is not None
        return self._service.ask(method, path, body, parameters)

    def _reopen(self) -> None:
        """Open another point in time of the index, in which what was not changed is found in the same place."""
        assert self._service is not None
        index = self._payload["index"]
        try:
            settings = self._ask("GET", f"/{quoted(index)}/_settings", flat_settings="true")
            if settings[index]["settings"]["index.uuid"] != self._payload["uuid"]:
                message = f"index {index!r} was deleted and made anew while it was read"
                raise SourceError(message, **self._place)
            self._payload["point"] = self._service.open_point_in_time(index, self._scan.keep_alive)
            self._has_own_point = True
        except AnswerError as error:
            raise self._failed(error) from error

    def _check_count(self) -> None:
        reading, total = self._reading, self._payload["total"]
        if reading.count == total:
            return
        message = (
            f"{total - reading.count} of {total} documents were changed or deleted while their point in time was lost:"
            " they are not there any more as they were"
        )
        raise SourceError(message, hint="start anew; a longer keep_alive keeps a point in time", **self._place)

    @property
    def _place(self) -> dict[str, Any]:
        return {"split": self._reading.split.split_id, "position": f"behind number {self._reading.after}"}

    def _failed(self, error: AnswerError) -> SourceError:
        message = f"index {self._payload['index']!r} cannot be read: {error}"
        return (AwayError if error.is_away else SourceError)(message, **self._place)


def _document(hit: Mapping[str, Any]) -> Document:
    if "_source" not in hit:
        message = f"index {hit['_index']!r} does not keep its documents (its mapping has _source disabled)"
        raise SourceError(message)
    source = document_text(hit["_source"]).encode()
    return Document(hit["_index"], hit["_id"], hit.get("_version"), hit["sort"][0], source)


class IndexReader(SourceReader):
    """Reads the slices of one subtask.

    Args:
        client: Of the cluster.
        scan: What is read.
        decoder: Makes records of documents.
    """

    def __init__(self, client: SearchClient, scan: Scan, decoder: MessageDecoder[Document]) -> None:
        self._client = client
        self._scan = scan
        self._decoder = decoder
        # Slices that are to be read; the first one is being read.
        self._readings: deque[_Reading] = deque()
        # Of the first slice; None before it is begun.
        self._fetcher: _Fetcher | None = None
        # What was fetched of it and not given yet.
        self._documents: list[Document] = []

    def open(self, context: ReaderContext) -> None:
        self._context = context
        self._client.connect().close()  # said at once if it is not installed

    def add_splits(self, splits: list[Split]) -> None:
        self._readings.extend(map(_reading_of, splits))

    def poll(self, max_records: int) -> Any:
        if not self._readings:
            return ALL_SPLITS_FINISHED
        reading = self._readings[0]
        split_id = reading.split.split_id
        if not self._documents:
            found = self._fetched(reading)
            if found is NOTHING_NOW:
                return NOTHING_NOW
            if found is None:
                self._let_go()
                self._readings.popleft()
                return SplitFinished(split_id)
            self._documents = found
        given, self._documents = self._documents[:max_records], self._documents[max_records:]
        batch = self._decoder.decode(self._context, split_id, given)
        self._readings[0] = reading.behind(given)
        return Polled(split_id, batch) if len(batch) else NOTHING_NOW

    def _fetched(self, reading: _Reading) -> Any:
        """Documents; None behind the last one."""
        if self._fetcher is None:
            name = f"opensearch {self._context.operator_name} {self._context.subtask + 1}"
            self._fetcher = _Fetcher(self._client, name, self._scan, reading)
            self._fetcher.start()
        found = self._fetcher.take()
        return NOTHING_NOW if found is None else found or None

    def next_poll_ms(self) -> int | None:
        return self._context.now_ms() + POLL_MS

    def snapshot(self) -> list[Split]:
        return [replace(one.split, position={"after": one.after, "count": one.count}) for one in self._readings]

    def _let_go(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.stop(1.0)

    def close(self) -> None:
        self._let_go()


_PAYLOAD = {"index": str, "uuid": str, "point": str, "slice": int, "slices": int, "end": int, "total": int}


def _reading_of(split: Split) -> _Reading:
    """How far a split is.

    Raises:
        CheckpointMismatchError: If it is none of an index.
    """
    payload, position = split.payload, split.position or {"after": None, "count": 0}
    is_right = payload.keys() == _PAYLOAD.keys() and all(type(payload[name]) is _PAYLOAD[name] for name in _PAYLOAD)
    is_right = is_right and all(is_text(payload[name]) for name in ("index", "uuid", "point"))
    is_right = is_right and isinstance(position, dict) and position.keys() == {"after", "count"}
    if not is_right or type(position["count"]) is not int or type(position["after"]) not in (int, type(None)):
        message = "the checkpoint's position is not one of an index of OpenSearch"
        raise CheckpointMismatchError(message, split=split.split_id)
    return _Reading(split, position["after"], position["count"])
