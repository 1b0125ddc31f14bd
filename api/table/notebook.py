"""SQL in notebooks: ``%load_ext headrace.table``, then ``%sql`` and ``%%sql``.

A query over bounded data is shown as a table. One over a stream is a table that changes while rows come, until the
stream ends or the cell is interrupted, which cancels the query. ``rows <<`` before a statement keeps its result under a
name instead, to be asked for in Python.

The program is the `TableEnvironment` that the notebook calls ``t``, or one that is made with the first statement, and
then called so.

Source: JupySQL's ``%%sql``; Zeppelin's Flink interpreter (live tables).
"""

from __future__ import annotations

import re
import time
from typing import Any

from headrace.engine.errors import ProgramError

from ..jobs.progress import NotebookProgress
from ..sql.parsing.parser import pieces_of
from .environment import TableEnvironment
from .live_table import LiveRows, html_table
from .result import TableResult

__all__ = ["load", "run_cell"]

MOST_ROWS = 50
_REFRESH_S = 0.25
_NAME = "t"
_KEPT = re.compile(r"\s*([A-Za-z_]\w*)\s*<<")


def load(shell: Any) -> None:
    """Register the magics; called by ``%load_ext headrace.table``.

    Args:
        shell: IPython's.
    """
    shell.register_magic_function(lambda line, cell=None: run_cell(shell, line, cell), "line_cell", "sql")


def run_cell(shell: Any, line: str, cell: str | None) -> None:
    """Run the statements of a cell, or of a line, and show their results.

    Args:
        shell: IPython's, whose variables are looked up and set.
        line: What stands behind the magic.
        cell: What stands below it; None for ``%sql``.
    """
    env = shell.user_ns.get(_NAME)
    if not isinstance(env, TableEnvironment):
        if env is not None:
            message = f"{_NAME!r} is no TableEnvironment; it is {type(env).__name__}"
            raise ProgramError(message, hint=f"{_NAME} = TableEnvironment.create()")
        env = shell.user_ns[_NAME] = TableEnvironment.create()
    text = line if cell is None else f"{line}\n{cell}" if line.strip() else cell
    kept = _KEPT.match(text)
    if kept is not None:
        text = f"{' ' * kept.end()}{text[kept.end() :]}"
    pieces = pieces_of(text)
    for i, piece in enumerate(pieces):
        if env.mode == "batch":  # jobs over streams are shown in a notebook as they are
            with env.data_set_environment.telling(NotebookProgress()):
                [result] = env.execute_script(piece)
        else:
            [result] = env.execute_script(piece)
        if kept is not None and i == len(pieces) - 1:
            shell.user_ns[kept[1]] = result
        elif result.is_query and env.mode == "streaming":
            streams = env.stream_environment
            with streams.changed_apart():
                streams.set_progress_listener(lambda view: None)  # what one looks at is the table
                _show(result, is_live=True)
        else:
            _show(result, is_live=False)


def _show(result: TableResult, *, is_live: bool) -> None:
    from IPython.display import HTML, display

    rows = LiveRows(result)
    if not result.is_query and result.to_arrow().to_pydict() == {"result": ["OK"]}:
        return
    shown = display(HTML(_told(result, rows, "running")), display_id=True) if is_live else None
    drawn = time.monotonic()
    end = "done" if is_live else ""
    try:
        for batch in result.changes():
            rows.take(batch)
            if shown is not None and time.monotonic() - drawn >= _REFRESH_S:
                shown.update(HTML(_told(result, rows, "running; interrupting the cell stops it")))
                drawn = time.monotonic()
    except KeyboardInterrupt:
        end = "stopped"
    content = HTML(_told(result, rows, end))
    if shown is None:
        display(content)
    else:
        shown.update(content)


def _told(result: TableResult, rows: LiveRows, state: str) -> str:
    return html_table(result.schema, rows.first(MOST_ROWS), rows.note(MOST_ROWS, state))
