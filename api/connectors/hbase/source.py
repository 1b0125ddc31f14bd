"""A table of HBase as a source that ends: each row once, region by region, in the order of row keys.

A position is the row key of the last row that was given; reading goes on behind it, whatever has become of regions,
servers or the row itself. There is no view of one moment: a row that is written while the table is read may be seen as
it was or as it is.

Source: Flink's ``HBaseRowDataInputFormat``; HBase's ``TableInputFormat``.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from .cell_values import TableFields
from .gateway import HbaseClient
from .region_reader import RegionReader, RegionScan

__all__ = ["HbaseSource"]


class HbaseSource(Source[dict[str, Any]]):
    """Reads the rows of a table, each once. The records have no event times.

    Args:
        client: Of a Thrift server, or its host.
        table: The table.
        schema: One column that is no row, which is the row key and may be left out, and a row for each column family.
        null_text: What a null text was written as.
        page_size: Rows of one answer.
        patience: How long the server may be away before the job fails: milliseconds or text.

    Guarantees: exactly once, for rows that are there all the time.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = True

    def __init__(
        self,
        client: HbaseClient | str,
        table: str,
        *,
        schema: pa.Schema | Mapping[str, Any],
        null_text: str = "null",
        page_size: int = 1_000,
        patience: int | str = "1 min",
    ) -> None:
        if page_size < 1:
            message = f"a page has 1 row or more; got {page_size}"
            raise ConfigurationError(message)
        given = schema_of(schema)
        assert given is not None
        self._client = HbaseClient(client) if isinstance(client, str) else client
        fields = TableFields(given, null_text, needs_key=False)
        self._scan = RegionScan(table, fields, page_size, patience_s_of(patience))

    def __repr__(self) -> str:
        return f"HbaseSource({self._scan.table})"

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the records."""
        return self._scan.fields.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds the regions."""
        return _Regions(self._client, self._scan)

    def create_reader(self) -> SourceReader:
        """Make a reader of some regions."""
        return RegionReader(self._client, self._scan)


class _Regions:
    discovery_interval_ms: int | None = None

    def __init__(self, client: HbaseClient, scan: RegionScan) -> None:
        self._client = client
        self._scan = scan

    def discover(self) -> Discovery:
        """The regions, as they are now: a later one that is cut or merged has its rows in the same order."""
        return Discovery(patiently(self._splits, self._scan.patience_s), is_final=True)

    def _splits(self) -> list[Split]:
        try:
            gateway = self._client.connect()
            try:
                gateway.check_table(self._scan.table, self._scan.fields.families)
                regions = gateway.regions(self._scan.table)
            finally:
                gateway.close()
        except AnswerError as error:
            message = f"table {self._scan.table!r} cannot be looked at: {error}"
            raise (AwayError if error.is_away else SourceError)(message) from error
        # Between two looks a region may be cut or merged; so only where regions begin counts.
        starts = sorted({b"", *(start for start, _ in regions)})
        ranges = zip(starts, [*starts[1:], b""], strict=True)
        name = self._scan.table
        return [Split(f"{name}/{start.hex()}", {"start": start.hex(), "stop": stop.hex()}) for start, stop in ranges]
