"""A table as a source: what its format does not decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import EnumeratorContext, Source, SourceReader, SplitEnumerator

from .options import columns_of
from .reading import LakeEnumerator, LakeReader, OnChange, ReadableTable, read_all

__all__ = ["LakeSource"]


class LakeSource(Source[dict[str, Any]]):
    """Reads a table: one version, or each new one as it comes.

    Args:
        table: What can be read of it.
        columns: Which to read: names, or a schema (or a mapping from names to types); None for all.
        follow_ms: How often new versions are looked for; None reads one version and ends.
        on_change: What a version that takes rows away means to who follows.
    """

    def __init__(
        self,
        table: ReadableTable,
        columns: Sequence[str] | pa.Schema | Mapping[str, Any] | None,
        follow_ms: int | None,
        on_change: OnChange,
    ) -> None:
        self._table = table
        self._columns, self._schema = columns_of(columns)
        self._follow_ms = follow_ms
        self._on_change: OnChange = on_change
        self.is_bounded = follow_ms is None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The table's."""
        return self._table.name

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records, if they were declared."""
        return self._schema

    def read(self) -> pa.Table:
        """Return all rows of the version, here and now."""
        return read_all(self._table, self._columns, self._schema)

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Make what finds files."""
        return LakeEnumerator(self._table, self._follow_ms, self._on_change)

    def create_reader(self) -> SourceReader:
        """Make what reads them."""
        return LakeReader(self._table, self._columns, self._schema)
