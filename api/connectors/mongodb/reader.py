"""Reads ranges of ``_id`` of a collection, one after the other, in a thread, page by page, each from a position on.

Each page is a question of its own for what is behind the last document, so nothing is lost with a cursor or a server.

Invariant: a range's position is the ``_id`` of the last document that was given; documents come in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError

from ...formats.client_values import columns_of
from ..messages.client_thread import AnswerError, AwayError, ClientThread
from ..messages.fetching import FetchingReader
from .bson_values import fields_of, reader_of
from .client import Connection, MongodbClient
from .ids import Position, decoded, encoded, range_filter

__all__ = ["CollectionReader", "Scan"]

MAX_WAITING = 2
"""Pages that may wait for the task."""


@dataclass(frozen=True)
class Scan:
    """What is read.

    Attributes:
        database: Of the collection.
        collection: Its name.
        schema: The fields.
        query: Which documents; None for all.
        page_size: Documents of an answer.
        patience_s: How long no host may answer.
    """

    database: str
    collection: str
    schema: pa.Schema
    query: Mapping[str, Any] | None
    page_size: int
    patience_s: float

    @property
    def name(self) -> str:
        """The collection's, with its database."""
        return f"{self.database}.{self.collection}"

    def among(self, ids: Mapping[str, Any]) -> dict[str, Any]:
        """Return the filter of these documents that are among those of a range."""
        return dict(ids) if self.query is None else {"$and": [ids, self.query]}

    @property
    def projection(self) -> dict[str, int]:
        """What of them is asked for; the ``_id`` always is."""
        return {"_id": 1, **dict.fromkeys(self.schema.names, 1)}


@dataclass(slots=True)
class _Reading:
    """A range, and how far it was fetched or given."""

    split_id: str
    start: Position | None
    end: Position
    position: Position | None
    is_at_end: bool = False

    @classmethod
    def of(cls, split: Split) -> _Reading:
        """Raises: CheckpointMismatchError: If it is none of a collection of MongoDB."""
        payload, position = split.payload, split.position
        is_right = payload.keys() == {"start", "end"} and _is_position(payload["end"])
        is_right = is_right and (payload["start"] is None or _is_position(payload["start"]))
        if not is_right or not (position is None or _is_position(position)):
            message = "the checkpoint's position is not one of a collection of MongoDB"
            raise CheckpointMismatchError(message, split=split.split_id)
        return cls(split.split_id, payload["start"], payload["end"], position)

    def as_split(self) -> Split:
        return Split(self.split_id, {"start": self.start, "end": self.end}, self.position)

    @property
    def where(self) -> dict[str, Any]:
        """The place that was reached, for errors."""
        return {"split": self.split_id, "position": f"behind {self.position or self.start}"}


def _is_position(text: Any) -> bool:
    try:
        return isinstance(text, str) and len(bytes.fromhex(text)) > 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _Page:
    """Documents of a range; the last one is where it has come to."""

    split_id: str
    documents: list[Mapping[str, Any]]
    is_last: bool

    @property
    def num_messages(self) -> int:
        return len(self.documents)


class _Fetcher(ClientThread):
    """Fetches the documents of ranges, one range after the other."""

    def __init__(self, client: MongodbClient, name: str, scan: Scan, readings: Sequence[_Reading]) -> None:
        super().__init__(name, MAX_WAITING, scan.patience_s)
        self._client = client
        self._scan = scan
        self._readings = list(readings)
        self._connection: Connection | None = None

    def connect(self) -> None:
        try:
            self._connection = self._client.connect(max(1.0, min(30.0, self._scan.patience_s)))
        except AnswerError as error:
            raise self._failed(error) from error

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def work(self) -> None:
        if not self._readings:
            self.end()
            return
        assert self._connection is not None
        connection, reading = self._connection, self._readings[0]
        try:
            documents = connection.ask(lambda: self._page_of(connection, reading))
        except AnswerError as error:
            raise self._failed(error) from error
        is_last = len(documents) < self._scan.page_size
        if documents:
            reading.position = encoded(documents[-1]["_id"])
        if is_last:
            self._readings.pop(0)
        self.give(_Page(reading.split_id, documents, is_last))

    def _page_of(self, connection: Connection, reading: _Reading) -> list[Mapping[str, Any]]:
        scan = self._scan
        collection = connection.collection(scan.database, scan.collection)
        start = reading.position or reading.start
        try:
            first = None if start is None else decoded(start, collection.codec_options)
            last = decoded(reading.end, collection.codec_options)
        except ValueError as error:
            message = f"the checkpoint's position is not one of a collection of MongoDB: {error}"
            raise CheckpointMismatchError(message, split=reading.split_id) from error
        ids = range_filter(first, last, has_start=start is not None)
        size = scan.page_size
        found = collection.find(scan.among(ids), scan.projection, sort=[("_id", 1)], limit=size, batch_size=size)
        return list(found)

    def _failed(self, error: AnswerError) -> SourceError:
        message = f"collection {self._scan.name!r} cannot be read: {error}"
        where = self._readings[0].where if self._readings else {}
        return (AwayError if error.is_away else SourceError)(message, **where)


class CollectionReader(FetchingReader[_Reading, _Page, _Fetcher]):
    """Reads the ranges of one subtask.

    Args:
        client: Of the cluster.
        scan: What is read.
    """

    def __init__(self, client: MongodbClient, scan: Scan) -> None:
        super().__init__()
        self._client = client
        self._scan = scan

    def open(self, context: ReaderContext) -> None:
        self._client.check_driver()
        self._converters = [reader_of(field.name, field.type) for field in self._scan.schema]
        super().open(context)

    def reading_of(self, split: Split) -> _Reading:
        return _Reading.of(split)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"mongodb {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._client, name, self._scan, readings)

    def read(self, reading: _Reading, fetched: _Page) -> Batch:
        reading.is_at_end = fetched.is_last
        if not fetched.documents:
            return Batch.of_rows([])
        schema = self._scan.schema
        fields = fields_of(fetched.documents, schema.names)
        records = columns_of(fields, schema, self._converters, **reading.where, collection=self._scan.name)
        reading.position = encoded(fetched.documents[-1]["_id"])
        return Batch.of_columns(records)
