"""The table that changes have come to so far, to be looked at while they come.

Rows keep their places: an update stands where the row stood that it replaces.

Source: Flink's ``MaterializedCollectStreamResult``.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.columns.records import Batch, RowKind

from ..jobs.notebook_output import LiveOutput
from ..jobs.progress import summary_line
from .connectors.changelog import batch_of_block

if TYPE_CHECKING:
    from ..stream.collected_rows import CollectedRows
    from .result import TableResult

__all__ = ["LiveRows", "html_table", "live_table", "shown_value"]

_COMES = (RowKind.INSERT.short, RowKind.UPDATE_AFTER.short)

MOST_SORTED = 10_000
"""More rows than that stay in the order in which they came: sorting them again and again would hold up the query."""


class LiveRows:
    """Takes changes, and holds the rows that there are.

    Args:
        result: Whose rows they are: it knows their types and order.
        most_rows: How many are held at most; the oldest ones go first, and are counted.
    """

    def __init__(self, result: TableResult, most_rows: int = 1_000_000) -> None:
        self._result = result
        self._most = most_rows
        # Rows by place; places only grow, so the first one is the oldest, unless an update took the place of another.
        self._rows: dict[int, tuple[Any, ...]] = {}
        # The places of equal rows, by how they look; lists and dictionaries have no hash.
        self._places: dict[str, list[int]] = {}
        self._next = 0
        # The place of the row that the last change took back: what comes next may be its update.
        self._freed: int | None = None
        self.num_changes = 0
        self.num_forgotten = 0

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, batch: Batch) -> None:
        """Take a batch of changes."""
        kinds = [0] * batch.num_rows if batch.row_kinds is None else batch.row_kinds.tolist()
        for kind, row in zip(kinds, zip(*(one.to_pylist() for one in batch.columns.columns), strict=True), strict=True):
            self.num_changes += 1
            if RowKind(kind).short in _COMES:
                self._add(row, self._freed)
                self._freed = None
            else:
                self._freed = self._remove(row)

    def _add(self, row: tuple[Any, ...], place: int | None) -> None:
        if place is None:
            place = self._next
            self._next += 1
        self._rows[place] = row
        self._places.setdefault(repr(row), []).append(place)
        if len(self._rows) > self._most:
            self._remove(next(iter(self._rows.values())))
            self.num_forgotten += 1

    def _remove(self, row: tuple[Any, ...]) -> int | None:
        places = self._places.get(repr(row))
        if not places:
            return None  # it was forgotten
        place = places.pop(0)
        if not places:
            del self._places[repr(row)]
        del self._rows[place]
        return place

    def first(self, most: int | None = None) -> list[tuple[Any, ...]]:
        """Return rows, in the order of the query if it has one and there are not too many, else as they came.

        Args:
            most: How many at most; None for all.
        """
        return list(islice(self._in_order(), most))

    def note(self, most: int, state: str = "") -> str:
        """Return what is said of the rows where at most so many are shown."""
        parts = [f"{len(self):,} row{'' if len(self) == 1 else 's'}"]
        if len(self) > most:
            parts.append(f"the first {most} are shown")
        if self.num_forgotten:
            parts.append(f"{self.num_forgotten:,} older ones left out")
        parts += [state] if state else []
        return "; ".join(parts)

    def _in_order(self) -> Iterator[tuple[Any, ...]]:
        rows = [self._rows[place] for place in sorted(self._rows)]
        if not self._result.has_order or len(rows) > MOST_SORTED:
            return iter(rows)
        schema = self._result.schema
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        table = self._result.in_order(pa.Table.from_arrays(arrays, schema=schema))
        return zip(*(column.to_pylist() for column in table.columns), strict=True)


def live_table(result: TableResult, blocks: CollectedRows, limit: int) -> LiveOutput:
    """Show the table that the changes of a running query come to below a cell, until its job has ended.

    Args:
        result: Of the query.
        blocks: Its changes, as they come.
        limit: How many rows are shown.
    """
    rows = LiveRows(result)

    def look() -> tuple[str, bool]:
        for block in blocks.arrived():
            rows.take(batch_of_block(block, result.schema))
        view = blocks.client.view()
        has_ended = view.state.is_terminal
        failure = f"; {view.failures[-1].text}" if has_ended and view.failures else ""
        note = rows.note(limit, f"{rows.num_changes:,} changes; {summary_line(view)}{failure}")
        return html_table(result.schema, rows.first(limit), note), has_ended and blocks.is_over

    return LiveOutput(blocks.client, look, blocks.close)


def html_table(schema: pa.Schema, rows: Sequence[Sequence[Any]], note: str) -> str:
    """Return rows as an HTML table with a note below it; all texts are escaped."""
    heads = "".join(f"<th>{html.escape(field.name)}</th>" for field in schema)
    lines = []
    for row in rows:
        cells = (shown_value(value, field.type) for value, field in zip(row, schema, strict=True))
        lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>{table}<p>{html.escape(note)}</p></div>"


def shown_value(value: Any, kind: pa.DataType) -> str:
    """Return a value as Flink's shell shows it."""
    if value is None:
        return "<NULL>"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if pa.types.is_timestamp(kind):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        fraction = f"{getattr(value, 'microsecond', 0) * 1_000 + getattr(value, 'nanosecond', 0):09}"[:digits]
        return f"{value:%Y-%m-%d %H:%M:%S}{'.' if digits else ''}{fraction}"
    if isinstance(value, bytes):
        return f"x'{value.hex().upper()}'"
    if isinstance(value, dict):
        return f"({', '.join(shown_value(value[field.name], field.type) for field in kind)})"
    if isinstance(value, list):
        inner = kind.item_type if pa.types.is_map(kind) else kind.value_type
        if pa.types.is_map(kind):
            pairs = (f"{shown_value(key, kind.key_type)}={shown_value(one, inner)}" for key, one in value)
            return f"{{{', '.join(pairs)}}}"
        return f"[{', '.join(shown_value(one, inner) for one in value)}]"
    return str(value)
