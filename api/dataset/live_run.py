"""A data set's run in a thread of its own, and what a notebook shows of it while the kernel is free."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.engine.errors import JobCanceledError
from headrace.engine.plan.run_watch import RunWatch
from headrace.engine.protocol.states import JobStatus, StageState
from headrace.engine.protocol.views import StageView

from ..jobs.notebook_output import LiveOutput, html_rows
from ..jobs.progress import html_of_stages
from .run_record import now_ms

__all__ = ["DataSetRun", "live_output"]


class DataSetRun:
    """A data set that is computed in a thread. Made by ``live()``.

    Args:
        compute: Computes its records, and tells a watch what it does.
    """

    def __init__(self, compute: Callable[[RunWatch], pa.Table]) -> None:
        self._watch = RunWatch(now_ms)
        self._table: pa.Table | None = None
        self._error: BaseException | None = None
        self._began = time.monotonic()
        self._ended: float | None = None
        self._thread = threading.Thread(target=self._run, args=(compute,), name="headrace-dataset", daemon=True)
        self._thread.start()

    def _run(self, compute: Callable[[RunWatch], pa.Table]) -> None:
        try:
            self._table = compute(self._watch)
        except BaseException as error:
            self._error = error
        finally:
            self._ended = time.monotonic()

    @property
    def stages(self) -> tuple[StageView, ...]:
        """What it has done and does."""
        return self._watch.stages

    @property
    def state(self) -> JobStatus:
        """Whether it runs, or how it has ended."""
        if self._ended is None:
            return JobStatus.RUNNING
        if self._error is None:
            return JobStatus.FINISHED
        return JobStatus.CANCELED if isinstance(self._error, JobCanceledError) else JobStatus.FAILED

    @property
    def duration_s(self) -> float:
        """How long it took, or takes so far."""
        return (self._ended or time.monotonic()) - self._began

    def cancel(self) -> None:
        """Have it end: in process at the next batch, on Spark at once."""
        self._watch.cancel()

    def result(self) -> pa.Table:
        """Wait for the records, as ``to_arrow()`` gives them.

        Raises:
            JobCanceledError: If it was canceled. Further errors of the tree as they come.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._table is not None
        return self._table


def live_output(compute: Callable[[RunWatch], pa.Table], limit: int) -> LiveOutput:
    """Compute a data set, and show its progress and then its first records below a cell."""
    run = DataSetRun(compute)
    return LiveOutput(run, lambda: _seen(run, limit), run.cancel)


def _seen(run: DataSetRun, limit: int) -> tuple[str, bool]:
    """What is shown of a run, and whether it is over."""
    state = run.state  # before the rest: what it has done until then is shown
    stages = run.stages
    done = sum(stage.state is StageState.FINISHED for stage in stages)
    note = f"{state} | {done} of {len(stages)} stages | {run.duration_s:.1f} s"
    parts = [f"<b>{html.escape(note)}</b>", html_of_stages(stages)]
    if state is JobStatus.FAILED:
        parts.append(f"<pre>{html.escape(_told(run.result))}</pre>")
    if state is JobStatus.FINISHED:
        table = run.result()
        shown = f"the first {limit} of {table.num_rows:,}" if table.num_rows > limit else f"{table.num_rows:,}"
        parts.append(
            html_rows(table.slice(0, limit).to_pylist(), f"{shown} record{'' if table.num_rows == 1 else 's'}")
        )
    return f"<div>{''.join(parts)}</div>", state is not JobStatus.RUNNING


def _told(result: Callable[[], Any]) -> str:
    try:
        result()
    except BaseException as error:
        return str(error)
    return ""
