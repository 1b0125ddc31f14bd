"""A table of Cassandra as a source that ends: each row once, range of tokens by range of tokens.

A row's place is its token, its partition key and its clustering columns, and rows come in that order. So a position is
the key of the last row that was given: reading goes on behind it, whatever has become of rows before, of servers, or of
the row itself. Cassandra has no view of one moment: a row that is written while the table is read may be seen or not.

Source: Flink's ``CassandraSource``, ``SplitsGenerator``.
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
from .client import CassandraClient, split_name
from .reader import LEAST_TOKEN, MOST_TOKEN, Scan, TableReader

__all__ = ["CassandraSource"]


class CassandraSource(Source[dict[str, Any]]):
    """Reads the rows of a table, each once. The records have no event times.

    Args:
        client: Of the cluster, or a host of it.
        table: The table behind its keyspace, as ``shop.orders``.
        schema: The columns that are read, with their types.
        splits: Into how many ranges of tokens the table is cut at least; the ranges of hosts are cut further.
        page_size: Rows of one answer.
        patience: How long no host may answer before the job fails: milliseconds or text.

    Guarantees: exactly once, for rows that are there all the time.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = True

    def __init__(
        self,
        client: CassandraClient | str,
        table: str,
        *,
        schema: pa.Schema | Mapping[str, Any],
        splits: int = 16,
        page_size: int = 1_000,
        patience: int | str = "1 min",
    ) -> None:
        if splits < 1 or page_size < 1:
            message = f"there is 1 split or more, and a page has 1 row or more; got {splits}, {page_size}"
            raise ConfigurationError(message)
        fields = schema_of(schema)
        assert fields is not None
        self._client = CassandraClient(client) if isinstance(client, str) else client
        self._scan = Scan(*split_name(table), fields, page_size, patience_s_of(patience))
        self._splits = splits

    def __repr__(self) -> str:
        return f"CassandraSource({self._scan.keyspace}.{self._scan.table})"

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the records."""
        return self._scan.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what cuts the table."""
        return _Ranges(self._client, self._scan, self._splits)

    def create_reader(self) -> SourceReader:
        """Make a reader of some ranges."""
        return TableReader(self._client, self._scan)


class _Ranges:
    discovery_interval_ms: int | None = None

    def __init__(self, client: CassandraClient, scan: Scan, splits: int) -> None:
        self._client = client
        self._scan = scan
        self._splits = splits

    def discover(self) -> Discovery:
        """All ranges, none of which has rows of several owners."""
        return Discovery(patiently(self._ranges, self._scan.patience_s), is_final=True)

    def _ranges(self) -> list[Split]:
        try:
            connection = self._client.connect()
        except AnswerError as error:
            message = f"table {self._scan.name!r} cannot be looked at: {error}"
            raise (AwayError if error.is_away else SourceError)(message) from error
        try:
            self._scan.converters(connection.shape(self._scan.keyspace, self._scan.table))
            ring = connection.ring
        finally:
            connection.close()
        step = (MOST_TOKEN - LEAST_TOKEN) // self._splits
        cuts = {LEAST_TOKEN + number * step for number in range(1, self._splits)} | set(ring)
        ends = sorted(cuts - {LEAST_TOKEN, MOST_TOKEN})
        ranges = zip([LEAST_TOKEN, *ends], [*ends, MOST_TOKEN], strict=True)
        return [Split(f"{self._scan.name}/{start}", {"start": start, "end": end}) for start, end in ranges]
