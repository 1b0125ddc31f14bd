"""Jobs that cells of a notebook have started: running a cell again starts its job again, and this says so.

A job that runs is not replaced by itself, as its state would be lost; Spark refuses a second query of one name, which
would leave a user who means it without a way.
"""

from __future__ import annotations

import sys

from headrace.engine.errors import HeadraceError

from .client import JobClient
from .notebook_output import is_notebook

__all__ = ["note_job_of_cell"]

_newest: dict[str, JobClient] = {}
"""The newest job of each name that this kernel has started."""


def note_job_of_cell(client: JobClient, name: str) -> None:
    """Note a job that was started; if one of its name still runs in a notebook, say so, and how that one is ended.

    Nothing happens outside of notebooks.
    """
    if not is_notebook():
        return
    earlier = _newest.get(name)
    _newest[name] = client
    if earlier is not None and _runs(earlier):
        client.earlier = earlier
        now, before = client.get_job_id()[:8], earlier.get_job_id()[:8]
        sys.stderr.write(
            f"job {name!r} ({now}) runs beside one of that name ({before}) that a cell has started before; to end that "
            f"one: client.earlier.cancel(), or headrace cancel {before}\n"
        )


def _runs(client: JobClient) -> bool:
    try:
        return not client.get_job_status().is_terminal
    except HeadraceError:
        return False  # its environment was closed
