"""All documents of indices at one point in time, as a source that ends.

Splits are slices of a shard. A slice is read in the order of its documents' sequence numbers, which only grow: a
position is the last one. So reading can go on when the point in time is gone, which lives in the memory of a server:
in a new one, up to the last number of the old one. A document that was changed in between has a greater number by then
and is not found any more; as it is known how many documents a slice had, that is noticed, and is an error.

Source: OpenSearch's "Point in Time"; Elasticsearch's "Paginate search results".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
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
from headrace.state.type_variables import OUT
from headrace.state.values.durations import parse_duration_ms

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, patience_s_of
from ..messages.client_thread import AnswerError, AwayError, patiently
from ..messages.decoding import MessageDecoder, OnError
from .client import SearchClient, Service, quoted
from .reader import METADATA, Document, IndexReader, Scan, search_body

__all__ = ["OpenSearchSource"]


class OpenSearchSource(Source[OUT]):
    """Reads documents, each once, as they are when the job begins. The records have no event times.

    Args:
        client: Of the cluster, or its URL.
        index: An index, an alias or a data stream, or several with commas between, also with ``*``.
        value: How documents are decoded, as `JsonMessages`.
        query: Which documents, in the query language of the service; None for all.
        slices: Into how many parts each shard is cut.
        metadata: Columns that are added to those of the value: ``id``, ``index``, ``version``, ``seq-no``. A mapping
            gives them other names.
        on_error: What becomes of a document that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        page_size: Documents of one answer.
        keep_alive: How long the point in time lives without being asked: milliseconds or text.
        patience: How long the service may be away before the job fails, as above.

    Guarantees: exactly once; a document that is changed or deleted while the point in time is lost is an error.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = True

    def __init__(
        self,
        client: SearchClient | str,
        index: str,
        *,
        value: MessageFormat[OUT],
        query: Mapping[str, Any] | None = None,
        slices: int = 1,
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        page_size: int = 1_000,
        keep_alive: int | str = "5 min",
        patience: int | str = "1 min",
    ) -> None:
        if not index or slices < 1 or not 1 <= page_size <= 10_000:
            message = "an index must be named, there is 1 slice or more, and a page has 1 to 10,000 documents"
            message += f"; got {index!r}, {slices}, {page_size}"
            raise ConfigurationError(message)
        self._client = SearchClient(client) if isinstance(client, str) else client
        self._slices = slices
        keep_alive_ms = parse_duration_ms(keep_alive)
        self._decoder = MessageDecoder[Document](
            value,
            lambda document: document.source,
            lambda document: f"document {document.id!r}",
            METADATA,
            columns_of(metadata),
            on_error,
        )
        wanted = _fields_of(value.schema)
        self._scan = Scan(
            index, None if query is None else dict(query), wanted, page_size, f"{keep_alive_ms}ms",
            patience_s_of(patience),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"OpenSearchSource({self._scan.index})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds the shards, and fixes the point in time."""
        return _Slices(self._client, self._scan, self._slices)

    def create_reader(self) -> SourceReader:
        """Make a reader of some slices."""
        return IndexReader(self._client, self._scan, self._decoder)


def _is_meant(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _fields_of(schema: pa.Schema | None) -> tuple[str, ...] | None:
    """The fields that are asked for; None for whole documents.

    A service that leaves fields out makes doubles of numbers, so decimals come with all that stands beside them.
    """
    if schema is None or any("decimal" in str(field.type) for field in schema):
        return None
    return tuple(schema.names)


class _Slices:
    discovery_interval_ms: int | None = None

    def __init__(self, client: SearchClient, scan: Scan, slices: int) -> None:
        self._client = client
        self._scan = scan
        self._slices = slices

    def discover(self) -> Discovery:
        """The slices of all shards, with their last documents."""
        return Discovery(patiently(self._splits, self._scan.patience_s), is_final=True)

    def _splits(self) -> list[Split]:
        """Look at the indices once; what is opened for nothing is closed."""
        splits: list[Split] = []
        points: list[str] = []
        service = self._client.connect()
        try:
            self._check_aliases(service)
            found = service.ask("GET", f"/{quoted(self._scan.index)}/_settings", parameters={"flat_settings": "true"})
            for index in sorted(found):
                points.append(service.open_point_in_time(index, self._scan.keep_alive))
                fresh = self._of(service, index, found[index]["settings"], points[-1])
                splits += fresh
                if not fresh:
                    service.close_point_in_time(points.pop())
        except AnswerError as error:
            for point in points:
                service.close_point_in_time(point)
            message = f"indices {self._scan.index!r} cannot be looked at: {error}"
            raise (AwayError if error.is_away else SourceError)(message) from error
        finally:
            service.close()
        return splits

    def _check_aliases(self, service: Service) -> None:
        """See that no alias hides documents, as indices are read by their own names.

        Raises:
            SourceError: If one does.
        """
        patterns = self._scan.index.split(",")
        for index, told in service.ask("GET", "/_alias").items():
            if _is_meant(index, patterns):
                continue  # all of it is asked for by its own name
            for alias, about in told.get("aliases", {}).items():
                if _is_meant(alias, patterns) and about.keys() & {"filter", "search_routing"}:
                    message = f"alias {alias!r} of {index!r} has a filter or a routing, which would be passed over"
                    raise SourceError(message, hint="name the index, and what the filter says as the query")

    def _of(self, service: Service, index: str, settings: Mapping[str, str], point: str) -> list[Split]:
        # One that never had a document may know no field, which Elasticsearch does not sort by and does not slice by.
        asked = {"size": 0, "pit": {"id": point, "keep_alive": self._scan.keep_alive}, "track_total_hits": 1}
        if not service.search(asked)["hits"]["total"]["value"]:
            return []
        num_slices = int(settings["index.number_of_shards"]) * self._slices
        splits: list[Split] = []
        for number in range(num_slices):
            payload = {
                "index": index, "uuid": settings["index.uuid"], "point": point,
                "slice": number, "slices": num_slices, "end": None, "total": 0,
            }  # fmt: skip
            body = search_body(self._scan, payload, None, is_last=True)
            answer = service.search(body)
            hits = answer["hits"]
            if hits["hits"]:
                payload |= {"end": hits["hits"][0]["sort"][0], "total": hits["total"]["value"]}
                splits.append(Split(f"{index}/{number}", payload))
        return splits
