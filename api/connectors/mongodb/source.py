"""A collection of MongoDB as a source that ends: each document once, range of ``_id`` by range of ``_id``.

An ``_id`` never changes, and documents are read in its order. So a position is that of the last document that was
given: reading goes on behind it, whatever has become of documents before, of servers, or of the document itself. What
is read is not the collection of one moment: a document that is written meanwhile may be seen or not.

Source: Flink's ``MongoSource``, ``MongoSampleSplitter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import (
    Discovery,
    EnumeratorContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from headrace.engine.errors import ConfigurationError, SourceError

from ...formats.schemas import schema_of
from ..messages.arguments import patience_s_of
from ..messages.client_thread import AnswerError, AwayError, patiently
from .bson_values import check_names
from .client import Connection, MongodbClient
from .ids import encoded
from .reader import CollectionReader, Scan

__all__ = ["MongodbSource", "split_name"]

SAMPLES = 50
"""Documents that are looked at for each range, to cut ranges of about one size; of fewer all are."""


class MongodbSource(Source[dict[str, Any]]):
    """Reads the documents of a collection, each once. The records have no event times.

    Args:
        client: Of the cluster, or its URI.
        collection: The collection behind its database, as ``shop.orders``.
        schema: The fields that are read, with their types; a field that a document lacks is null.
        query: Which documents, as ``find`` takes it; None for all.
        splits: Into how many ranges the collection is cut, about.
        page_size: Documents of one answer.
        patience: How long no host may answer before the job fails: milliseconds or text.

    Guarantees: exactly once, for documents that are there all the time. What has a greater ``_id`` than any when the
        job begins is not read.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = True

    def __init__(
        self,
        client: MongodbClient | str,
        collection: str,
        *,
        schema: pa.Schema | Mapping[str, Any],
        query: Mapping[str, Any] | None = None,
        splits: int = 16,
        page_size: int = 2_048,
        patience: int | str = "1 min",
    ) -> None:
        if splits < 1 or page_size < 1:
            message = f"there is 1 split or more, and a page has 1 document or more; got {splits}, {page_size}"
            raise ConfigurationError(message)
        fields = schema_of(schema)
        assert fields is not None
        check_names(fields.names)
        self._client = MongodbClient(client) if isinstance(client, str) else client
        wanted = None if query is None else dict(query)
        self._scan = Scan(*split_name(collection), fields, wanted, page_size, patience_s_of(patience))
        self._splits = splits

    def __repr__(self) -> str:
        return f"MongodbSource({self._scan.name})"

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the records."""
        return self._scan.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what cuts the collection."""
        return _Ranges(self._client, self._scan, self._splits)

    def create_reader(self) -> SourceReader:
        """Make a reader of some ranges."""
        return CollectionReader(self._client, self._scan)


def split_name(collection: str) -> tuple[str, str]:
    """Return database and collection.

    Raises:
        ConfigurationError: If one is missing.
    """
    database, dot, name = collection.partition(".")
    if not dot or not database or not name:
        message = f"a collection is named with its database, as shop.orders; got {collection!r}"
        raise ConfigurationError(message)
    return database, name


class _Ranges:
    discovery_interval_ms: int | None = None

    def __init__(self, client: MongodbClient, scan: Scan, splits: int) -> None:
        self._client = client
        self._scan = scan
        self._splits = splits

    def discover(self) -> Discovery:
        """All ranges, the last one up to the greatest ``_id``."""
        return Discovery(patiently(self._ranges, self._scan.patience_s), is_final=True)

    def _ranges(self) -> list[Split]:
        try:
            connection = self._client.connect(max(1.0, min(30.0, self._scan.patience_s)))
            try:
                ends = connection.ask(lambda: self._ends(connection))
            finally:
                connection.close()
        except AnswerError as error:
            message = f"collection {self._scan.name!r} cannot be looked at: {error}"
            raise (AwayError if error.is_away else SourceError)(message) from error
        places = list(dict.fromkeys(map(encoded, ends)))
        return [
            Split(f"{self._scan.name}/{number}", {"start": start, "end": end})
            for number, (start, end) in enumerate(pairwise([None, *places]))
        ]

    def _ends(self, connection: Connection) -> list[Any]:
        """The last ``_id`` of each range, in their order; none if there are no documents."""
        scan = self._scan
        collection = connection.collection(scan.database, scan.collection)
        wanted = scan.query or {}
        last = list(collection.find(wanted, {"_id": 1}, sort=[("_id", -1)], limit=1))
        if last and collection.find_one({"_id": float("nan")}, {"_id": 1}) is not None:
            message = f"a document of collection {scan.name!r} has NaN as its _id, which nothing is behind"
            raise SourceError(message)
        if not last or self._splits == 1:
            return [one["_id"] for one in last]
        ids: dict[str, Any] = {"$project": {"_id": 1}}
        # MongoDB looks at a few of all documents, and sorts those of a query by chance: not as a whole.
        chosen = [{"$match": wanted}, ids] if wanted else []
        pipeline = [*chosen, {"$sample": {"size": SAMPLES * self._splits}}, ids, {"$sort": {"_id": 1}}]
        seen = [one["_id"] for one in collection.aggregate(pipeline)]
        step = max(1, -(-len(seen) // self._splits))
        return [*seen[step - 1 : -1 : step], last[0]["_id"]]
