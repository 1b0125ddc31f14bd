"""How the SQL shell shows results: as a table that changes while one looks, as changes line by line, at the end, or as
lines of JSON.

Source: Flink's ``TableauStyle``, ``CliTableauResultView``, ``CliTableResultView``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from headrace.engine.errors import HeadraceError, codes_of
from headrace.engine.protocol.views import JobView
from headrace.state.values.json_text import json_text

from ...jobs.progress import JobStart, Progress
from ...table.live_table import LiveRows, shown_value
from ...table.result import TableResult
from ...table.settings import Settings

__all__ = ["JsonLines", "Views"]

_REFRESH_S = 0.2

_WIDTHS = ((pa.types.is_boolean, 7), (pa.types.is_int8, 4), (pa.types.is_int16, 6), (pa.types.is_int32, 11),
           (pa.types.is_int64, 20), (pa.types.is_float32, 15), (pa.types.is_float64, 25), (pa.types.is_date, 10),
           (pa.types.is_time, 12))  # fmt: skip
"""How wide a column is before its values are known; Flink's."""


class Views:
    """Shows results.

    Args:
        out: Where to.
        settings: What SET has said of it.
        is_live: Whether a table may be drawn again and again: ``out`` is a terminal.
    """

    def __init__(self, out: TextIO, settings: Settings, *, is_live: bool) -> None:
        self._out = out
        self._settings = settings
        self._is_live = is_live

    def show(self, result: TableResult, *, is_batch: bool) -> None:
        """Show a result, to its end; Ctrl-C cancels the query, and leaves what is shown by then."""
        begun = time.monotonic()
        mode = self._settings.value("sql-client.execution.result-mode", "table" if self._is_live else "tableau")
        if not result.is_query:
            return self._statement(result)
        if mode == "changelog" or (mode == "tableau" and not is_batch):
            told = self._changelog(result)
        elif mode == "table" and self._is_live and not is_batch:
            told = self._live(result)
        else:
            told = self._table(result)
        cost = time.monotonic() - begun
        is_told = self._settings.value("sql-client.display.print-time-cost", default=True)
        return self._say(f"{told} ({cost:.2f} seconds)" if is_told else told)

    def _statement(self, result: TableResult) -> None:
        table = result.to_arrow()
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        if table.column_names == ["result"]:
            if rows == [("OK",)]:
                return self._say("[INFO] Execute statement succeeded.")
            return self._say("\n".join(str(row[0]) for row in rows))
        self._draw(table.schema, rows, most=None)
        return self._say(_counted(len(rows), "row", "in set"))

    def _table(self, result: TableResult) -> str:
        rows = LiveRows(result, self._most_rows())
        for batch in result.changes():
            rows.take(batch)
        self._draw(result.schema, rows.first())
        return _counted(len(rows), "row", "in set") + _forgotten(rows)

    def _changelog(self, result: TableResult) -> str:
        """Changes as they come, in columns whose widths follow from their types."""
        heads = ["op", *result.schema.names]
        widths = [2, *(max(self._width(field.type), cell_len(field.name)) for field in result.schema)]
        kinds = [pa.string(), *(field.type for field in result.schema)]
        line = _rule(widths)
        self._say(f"{line}\n{_row(heads, widths, kinds)}\n{line}")
        count = 0
        try:
            for change in result.collect():
                cells = [change[0], *map(shown_value, change[1:], kinds[1:])]
                self._say(_row(cells, widths, kinds))
                count += 1
        finally:
            self._say(line)
        return f"Received a total of {_counted(count, 'row')}"

    def _live(self, result: TableResult) -> str:
        from rich.live import Live

        console = Console(file=self._out)
        rows, drawn = LiveRows(result, self._most_rows()), 0.0
        try:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                live.update(self._picture(result, rows, console), refresh=True)
                for batch in result.changes():
                    rows.take(batch)
                    if time.monotonic() - drawn >= _REFRESH_S:
                        live.update(self._picture(result, rows, console), refresh=True)
                        drawn = time.monotonic()
        finally:
            # Also of what was stopped: what there was by then.
            self._draw(result.schema, rows.first())
        return _counted(len(rows), "row", "in set") + _forgotten(rows)

    def _picture(self, result: TableResult, rows: LiveRows, console: Console) -> Any:
        from rich.text import Text

        room = max(console.height - 6, 3)
        shown = rows.first(room)
        lines = _drawn(result.schema, shown, self._max_width())
        more = f"; the first {room} are shown" if len(rows) > room else ""
        told = f"{_counted(len(rows), 'row')} of {_counted(rows.num_changes, 'change')}{more}. Ctrl-C stops the query."
        return Text("\n".join([*lines, told]), no_wrap=True, overflow="ellipsis")

    def _draw(self, schema: pa.Schema, rows: Sequence[Sequence[Any]], most: int | None = -1) -> None:
        width = self._max_width() if most == -1 else most
        self._say("\n".join(_drawn(schema, rows, width)))

    def _width(self, kind: pa.DataType) -> int:
        if pa.types.is_timestamp(kind):
            return {"s": 19, "ms": 23, "us": 26, "ns": 29}[kind.unit]
        if pa.types.is_decimal(kind):
            return int(kind.precision) + 2
        return next((width for is_kind, width in _WIDTHS if is_kind(kind)), self._max_width())

    def _max_width(self) -> int:
        return int(self._settings.value("sql-client.display.max-column-width", 30))

    def _most_rows(self) -> int:
        return int(self._settings.value("sql-client.execution.max-table-result.rows", 1_000_000))

    def _say(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


def _drawn(schema: pa.Schema, rows: Sequence[Sequence[Any]], max_width: int | None) -> list[str]:
    """A table whose columns are as wide as what is in them, up to a width."""
    kinds = [field.type for field in schema]
    cells = [[shown_value(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows]
    widths = [
        max([cell_len(name), *(min(cell_len(row[i]), max_width or 1 << 30) for row in cells)])
        for i, name in enumerate(schema.names)
    ]
    line = _rule(widths)
    if not rows:
        return [line, _row(schema.names, widths, kinds), line]
    return [line, _row(schema.names, widths, kinds), line, *(_row(row, widths, kinds) for row in cells), line]


def _rule(widths: Iterable[int]) -> str:
    return f"+{'+'.join('-' * (width + 2) for width in widths)}+"


def _row(cells: Sequence[str], widths: Sequence[int], kinds: Sequence[pa.DataType]) -> str:
    """A line: numbers to the right, all else to the left; what is too long is cut."""
    parts = []
    for cell, width, kind in zip(cells, widths, kinds, strict=True):
        text = cell.replace("\n", " ")
        if cell_len(text) > width:
            text = f"{set_cell_size(text, max(width - 3, 1))}..."[: max(width, 1)]
        room = " " * (width - cell_len(text))
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        parts.append(f" {room}{text} " if is_number else f" {text}{room} ")
    return f"|{'|'.join(parts)}|"


def _counted(count: int, what: str, behind: str = "") -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}{' ' if behind else ''}{behind}"


def _forgotten(rows: LiveRows) -> str:
    if not rows.num_forgotten:
        return ""
    return f", {rows.num_forgotten:,} older ones left out (sql-client.execution.max-table-result.rows)"


# ---------------------------------------------------------------------------------------------------------------- json


class JsonLines(Progress):
    """Shows results, and jobs over streams that write tables, as lines of JSON, for scripts.

    Each line is an object that has ``statement``, the number of the statement in the file, from 1, and one of these:

    * ``row``: a row, by the names of its columns; of a query with ``op``, the kind of the change (``+I``, ``-U``,
      ``+U``, ``-D``).
    * ``result``: what a statement without rows says, such as ``OK``.
    * ``job``: one that was started, with ``id``, ``name`` and ``delivery`` (what each sink guarantees), and again with
      ``id`` and ``state`` when it has ended.
    * ``error``: what ended the file: ``code``, ``message``, ``hint``, ``context``, and where: ``file``, ``line``,
      ``column``.

    Args:
        out: Where to.
        settings: What SET has said of it.
    """

    def __init__(self, out: TextIO, settings: Settings) -> None:
        self._out = out
        self._settings = settings
        # The statement that runs, from 1.
        self._number = 0
        # Whether more than an error of the file is written.
        self._is_shown = True
        # Jobs whose end was told.
        self._ended: set[str] = set()

    def file_begins(self, *, is_shown: bool) -> None:
        """Begin a file; of one that is not shown, as that of ``--init``, only an error is written."""
        self._number, self._is_shown = 0, is_shown

    def statement_begins(self) -> None:
        """Go on to the next statement."""
        self._number += 1

    def show(self, result: TableResult, *, is_batch: bool) -> None:
        """Write the rows of a result: its changes as they come, or, in result mode ``table``, what they come to."""
        names = result.schema.names
        if not self._is_shown:
            return
        if not result.is_query:
            rows = result.to_arrow().to_pylist()
            for row in rows:
                self._say(**({"result": row["result"]} if names == ["result"] else {"row": row}))
        elif is_batch or self._settings.value("sql-client.execution.result-mode", "tableau") == "table":
            for row in result.to_arrow().to_pylist():
                self._say(op="+I", row=row)
        else:
            for op, *values in result.collect():
                self._say(op=op, row=dict(zip(names, values, strict=True)))

    def failed(self, error: HeadraceError, file: str, line: int, column: int) -> None:
        """Write the error that ends the file.

        Args:
            error: The error.
            file: The name of the file.
            line: Where in it, from 1.
            column: Likewise.
        """
        told = {"code": codes_of(error), "message": error.message, "hint": error.hint, **_context_of(error)}
        self._say(error={**told, "file": file, "line": line, "column": column})

    def begins(self, job: JobStart) -> None:
        """Write which job a statement has started."""
        if self._is_shown:
            self._say(job={"id": job.job_id, "name": job.name, "delivery": list(job.delivery)})

    def update(self, view: JobView) -> None:
        """Write how a job has ended."""
        if self._is_shown and view.state.is_terminal and view.job_id not in self._ended:
            self._ended.add(view.job_id)
            self._say(job={"id": view.job_id, "state": view.state})

    def _say(self, **what: Any) -> None:
        self._out.write(f"{json_text({'statement': self._number, **what})}\n")
        self._out.flush()


def _context_of(error: HeadraceError) -> dict[str, Any]:
    return {"context": error.context} if error.context else {}
