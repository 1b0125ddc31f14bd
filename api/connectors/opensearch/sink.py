"""An index of OpenSearch or Elasticsearch as a sink: a document for each key.

With an order key each document has its number as its version (``version_type=external_gte``), and the service refuses
what is older: whatever is written again, or late, changes nothing. A service remembers the version of a document that
was deleted for a minute only (``index.gc_deletes``); with ``deletion_marker`` a document stays that says so.

Source: Flink's ``Elasticsearch7SinkBuilder``, ``OpensearchSinkBuilder``; OpenSearch's "Bulk".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.engine.errors import ConfigurationError, SinkError
from headrace.state.values.json_text import json_text

from ..messages.client_thread import AnswerError
from ..upserts import Entry, KeyedRecords, OrderKey, Refused, SinkAwayError, UpsertOptions, UpsertSink, UpsertSinkWriter
from .client import AWAY_STATUS, SearchClient, Service

__all__ = ["OpenSearchSink"]

OVERHEAD_BYTES = 120
"""What stands before a document in a request, about."""

CONFLICT = 409

MOST_ID_BYTES = 512
"""Of an id in UTF-8. A service refuses all of a request that has a longer one."""


class OpenSearchSink(UpsertSink):
    """Writes records as documents.

    Args:
        client: Of the cluster, or its URL.
        index: The index, or an alias that is written to. One that is not there is made by the service, if that is set
            up so.
        key: The columns that a document's id is made of, by `delimiter`. Without one the service gives ids, and what is
            written again after a failure is there twice.
        order: The column, or the `OrderKey`, that says which record of a key is newer. Without one, a key has older
            values for a while after a failure, and for good if an attempt that was given up writes late.
        delete_column: A boolean field that is not written: where it is true, the document is deleted.
        deletion_marker: A field for documents that are deleted and stay, with nothing but key and order beside: true
            there, and not in other documents. Needs an order. None: they go.
        delimiter: What stands between the parts of an id.
        options: How records are brought there.

    Guarantees: at least once; with a key and an order each key has its newest record, whatever fails.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        client: SearchClient | str,
        index: str,
        *,
        key: str | Sequence[str] = (),
        order: str | OrderKey | None = None,
        delete_column: str | None = None,
        deletion_marker: str | None = None,
        delimiter: str = "_",
        options: UpsertOptions = UpsertOptions(),
    ) -> None:
        if not index or any(sign in index for sign in "*,<>{}/ "):
            message = f"a sink writes into one index; got {index!r}"
            raise ConfigurationError(message)
        self._client = SearchClient(client) if isinstance(client, str) else client
        self._index = index
        documents = _Documents(key, delete_column, order, deletion_marker, delimiter)
        super().__init__(f"index {index!r}", documents, options)

    def create_writer(self) -> UpsertSinkWriter:
        """Make the writer of one subtask."""
        return _Writer(self.place, self._client, self._index, self.options)


class _Documents(KeyedRecords):
    """Records as ids and JSON."""

    def __init__(
        self,
        key: str | Sequence[str],
        delete_column: str | None,
        order: str | OrderKey | None,
        marker: str | None,
        delimiter: str,
    ) -> None:
        super().__init__(key, delete_column, order)
        self._marker = marker
        self._delimiter = delimiter
        if not delimiter:
            message = "something must stand between the parts of an id"
            raise ConfigurationError(message)
        if marker is not None and (self.order is None or delete_column is None):
            message = "documents that are deleted and stay need an order and a delete_column"
            raise ConfigurationError(message)

    def key_of(self, values: tuple[Any, ...]) -> str:
        self.check_no_nulls(values)
        if len(values) == 1:
            return _text_of(values[0])
        # What stands between parts must not be in them, or two records would have one id.
        sign = self._delimiter
        return sign.join(_text_of(value).replace("\\", "\\\\").replace(sign, f"\\{sign}") for value in values)

    def value_of(self, row: dict[str, Any]) -> bytes:
        return json_text(row).encode()

    def deletion_of(self, row: dict[str, Any], number: int | None) -> bytes | None:
        if self._marker is None or self.order is None:
            return None
        kept = {name: row[name] for name in (*self.key, *self.order.columns)}
        return json_text({**kept, self._marker: True}).encode()


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value).strip('"')


class _Writer(UpsertSinkWriter):
    """Sends entries with `_bulk`."""

    def __init__(self, place: str, client: SearchClient, index: str, options: UpsertOptions) -> None:
        super().__init__(place, options)
        self._client = client
        self._index = index
        self._service: Service | None = None

    def connect(self) -> None:
        self._service = self._client.connect(self._options.request_timeout_s)

    def get_size_in_bytes(self, request_entry: Entry) -> int:
        key, _, document = request_entry
        return OVERHEAD_BYTES + len(key or "") + len(document or b"")

    def apply(self, entries: list[Entry]) -> Iterable[Refused]:
        too_long = [entry for entry in entries if len((entry[0] or "").encode()) > MOST_ID_BYTES]
        refused = [Refused(entry, f"its id has more than {MOST_ID_BYTES} bytes") for entry in too_long]
        if too_long:
            entries = [entry for entry in entries if entry not in too_long]
        return [*refused, *self._applied(entries)] if entries else refused

    def _applied(self, entries: list[Entry]) -> list[Refused]:
        assert self._service is not None
        lines: list[bytes] = []
        for entry in entries:
            lines += _lines_of(entry)
        try:
            answer = self._service.ask("POST", f"/{self._index}/_bulk", b"\n".join([*lines, b""]), _ONLY_ERRORS)
        except AnswerError as error:
            message = f"{self._place} takes nothing: {error}"
            raise (SinkAwayError if error.is_away else SinkError)(message) from error
        items = answer.get("items")
        if not isinstance(items, list) or len(items) != len(entries):
            message = f"{self._place} has not answered for each of {len(entries)} documents"
            raise SinkError(message)
        return self._refused(entries, [next(iter(item.values())) for item in items])

    def _refused(self, entries: Sequence[Entry], items: Sequence[Mapping[str, Any]]) -> list[Refused]:
        refused: list[Refused] = []
        num_older = 0
        for entry, item in zip(entries, items, strict=True):
            error, status = item.get("error"), item.get("status")
            if error is None:  # a document that was to be deleted, and is not there, is 404 without an error
                continue
            if status == CONFLICT and entry[1] is not None:
                num_older += 1
            else:
                refused.append(Refused(entry, _cause(error), status in AWAY_STATUS))
        if num_older:
            self.count_older(num_older)
        return refused

    def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()


_ONLY_ERRORS = {"filter_path": "errors,items.*.error.type,items.*.error.reason,items.*.error.caused_by,items.*.status"}
"""What is asked to be in an answer."""


def _lines_of(entry: Entry) -> list[bytes]:
    """An action, and its document."""
    key, number, document = entry
    if key is None:
        return [b'{"create":{}}', document]
    about: dict[str, Any] = {"_id": key}
    if number is not None:
        about |= {"version": number, "version_type": "external_gte"}
    if document is None:
        return [json_text({"delete": about}).encode()]
    return [json_text({"index": about}).encode(), document]


def _cause(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    cause = error.get("caused_by")
    behind = f" ({cause['reason']})" if isinstance(cause, dict) and cause.get("reason") else ""
    return f"{error.get('type')}: {error.get('reason')}{behind}"
