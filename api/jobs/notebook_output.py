"""An output of a notebook that follows something, while the kernel is free for other cells.

A thread looks a few times a second, and replaces one HTML output where what it sees has changed. It ends with what it
follows, and what was last seen stays. Widgets are not needed, so it works in every front end.
"""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.errors import HeadraceError, ProgramError

__all__ = ["LiveOutput", "html_rows", "is_notebook", "require_notebook"]

REFRESH_S = 0.25
STOPPED_REFRESH_S = 0.05
STOP_TIMEOUT_S = 60.0
MOST_CHARACTERS = 200
"""Of one value."""

_BORDERS = "style='text-align:left'"


class LiveOutput:
    """What ``live()`` gives. Made in a notebook only.

    Args:
        client: The `JobClient` of the job that is followed; of a data set its `DataSetRun`.
        look: Returns what is to be seen now, as HTML, and whether nothing else will come.
        stop: Ends what is followed.

    Raises:
        ProgramError: If this is no notebook.
    """

    def __init__(self, client: Any, look: Callable[[], tuple[str, bool]], stop: Callable[[], Any]) -> None:
        self.client = client
        self._look = look
        self._stop = stop
        self._output = _opened_output()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="headrace-live", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether more may come."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Cancel the job, unless it has ended; what was last seen stays."""
        self._stop()
        self._is_stopped.set()
        self._thread.join(STOP_TIMEOUT_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended, and everything of it is shown; False if that takes longer than the timeout."""
        self._thread.join(timeout_s)
        return not self.is_running

    def __repr__(self) -> str:
        return f"LiveOutput({'running' if self.is_running else 'ended'})"

    def _ipython_display_(self) -> None:
        """Nothing: the output is there already."""

    def _follow(self) -> None:
        shown = ""
        while True:
            try:
                seen, is_over = self._look()
            except HeadraceError as error:
                seen, is_over = f"{shown}<pre>{html.escape(str(error))}</pre>", True
            if seen != shown:
                self._output(seen)
                shown = seen
            if is_over:
                return
            if self._is_stopped.wait(REFRESH_S):
                time.sleep(STOPPED_REFRESH_S)  # its end is near, and is shown


def is_notebook() -> bool:
    """Return whether there are cells with outputs."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def require_notebook() -> None:
    """See that there are cells with outputs, before anything is run for one.

    Raises:
        ProgramError: If there are none.
    """
    if not is_notebook():
        message = "live() shows what comes below a cell of a notebook, and this is none"
        raise ProgramError(message, hint="use execute_and_collect(), or execute_async() and the client's views()")


def _opened_output() -> Callable[[str], None]:
    """Put an empty output below the cell that runs; the function that comes back replaces it."""
    require_notebook()
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda content: handle.update(HTML(content))


def html_rows(rows: Sequence[Any], note: str) -> str:
    """Return records as an HTML table with a note above it: fields of dicts as columns, and anything as text."""
    names = list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
    heads = "".join(f"<th {_BORDERS}>{html.escape(str(name))}</th>" for name in names)
    lines = []
    for row in rows:
        values = [row.get(name, "") for name in names] if isinstance(row, dict) else [row]
        lines.append("".join(f"<td {_BORDERS}>{html.escape(_cut(value))}</td>" for value in values))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<thead><tr>{heads}</tr></thead>" if names else ""
    return f"<div><b>{html.escape(note)}</b><table>{head}<tbody>{body}</tbody></table></div>"


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value) if isinstance(value, tuple | list) else str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
