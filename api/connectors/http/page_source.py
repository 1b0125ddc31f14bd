"""Pages of HTTP as a source: exactly once, if the server gives the same records behind the same cursor.

A split is an address, its position the cursor of the page that is read next and how many of its records were given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from headrace.engine.connectors.contract import SourceReader
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, patience_s_of
from ..messages.decoding import MessageDecoder, OnError
from ..messages.tls import Tls
from .addresses import AddressSource, duration_s
from .json_places import Pointer
from .page_reader import LINK, PAGE_METADATA, PageReader, Paging, Record

__all__ = ["HttpPageSource"]


class HttpPageSource(AddressSource[OUT]):
    """Asks for pages by GET, one after the other; with ``metadata`` also where records are from.

    Args:
        urls: Where the first page is; several are several splits. What says who asks belongs into ``headers``.
        value: How records are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        cursor: Where a page says what the next one is: a JSON pointer (``/meta/next``), ``link`` for the address in the
            header ``Link`` with ``rel="next"``, or ``header:NAME``. What is missing, null or empty, or as before says
            that there is no next page yet.
        parameter: The parameter of the query by which the server is told a cursor. None: the cursor is the next page's
            address, of the same server.
        body: Whether a page is a text in JSON, or a record a line (``lines``).
        records: Where in a page of JSON the array of records is: a JSON pointer; ``""`` if it is the page.
        bounded: Whether the source ends at a page without a next one. Otherwise the last page is asked for again, and
            what has come to its end is given.
        interval: How often to ask again when there is nothing new: milliseconds or text.
        headers: Sent along, as ``{"Authorization": "Bearer ..."}``, to these servers alone, and shown nowhere.
        metadata: Columns that are added to those of the value: ``url``, ``cursor``. A mapping gives them other names.
        on_error: What becomes of a record that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long the server may be away before the job fails, or ask to be left alone: milliseconds or text.
        timeout: How long an answer may take, or the next piece of it.
        max_bytes: How large a page may be.
        tls: Whom to trust, for ``https://``.

    Guarantees: exactly once, if the server, asked for a cursor again, gives the same records, and others only behind
        them. A page that has become shorter is an error.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        cursor: str,
        parameter: str | None = None,
        body: Literal["json", "lines"] = "json",
        records: str = "",
        bounded: bool = False,
        interval: int | str = "10 s",
        headers: Mapping[str, str] | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        patience: int | str = "5 min",
        timeout: int | str = "60 s",
        max_bytes: int = 64 << 20,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(urls, ("http", "https"), headers, tls, timeout, max_bytes)
        self.is_bounded = bounded
        if body not in ("json", "lines") or (body == "lines" and (records or cursor.startswith("/"))):
            message = f"body is json, or lines without JSON pointers; got {body!r}"
            raise ConfigurationError(message)
        is_header = cursor.startswith("header:") and len(cursor) > len("header:")
        if cursor != LINK and not is_header and not cursor.startswith("/"):
            message = f"cursor is a JSON pointer, as /next, or link, or header:NAME; got {cursor!r}"
            raise ConfigurationError(message)
        if cursor == LINK and parameter is not None:
            message = f"the header Link has addresses, which are no parameter; got {parameter!r}"
            raise ConfigurationError(message)
        self._paging = Paging(
            lines=body == "lines",
            records=Pointer(records),
            cursor=Pointer(cursor) if cursor.startswith("/") else None,
            header=cursor.removeprefix("header:"),
            parameter=parameter,
            bounded=bounded,
            interval_s=duration_s("interval", interval),
            patience_s=patience_s_of(patience),
        )
        self._decoder = MessageDecoder[Record](
            value,
            lambda record: record.body,
            lambda record: record.place,
            PAGE_METADATA,
            columns_of(metadata),
            on_error,
        )

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_reader(self) -> SourceReader:
        """Make a reader of some of the addresses."""
        return PageReader(self._endpoint, self._paging, self._decoder)
