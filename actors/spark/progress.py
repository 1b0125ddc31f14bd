"""One live line about a running Spark job: what it does, how many stages, how many of their tasks are done.

Shown on a terminal and in notebooks, and nowhere else; rewritten in place, gone when the job ends.

Source: ``SparkContext.statusTracker``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

__all__ = ["ProgressLine", "wants_progress"]

INTERVAL_S = 0.2


def wants_progress() -> bool:
    """Return whether a live line would be seen: the stream of errors is a terminal, or a notebook's; HEADRACE_PROGRESS
    may say ``none``.
    """
    if os.environ.get("HEADRACE_PROGRESS") in ("none", "off", "0"):
        return False
    return _in_notebook() or sys.stderr.isatty()


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    current = shell.get_ipython()
    return current is not None and type(current).__name__ == "ZMQInteractiveShell"


class ProgressLine:
    """Shows the line while its block runs.

    Args:
        context: The SparkContext.
        group: The job group to look at.
        stream: Where to; None for standard error, if somebody looks at it.
    """

    def __init__(self, context: Any, group: str, stream: Any = None) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._stream = stream if stream is not None else sys.stderr if wants_progress() else None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._width = 0
        # What is being done, such as "superstep 3".
        self.doing = "running"
        self._started = time.monotonic()

    def __enter__(self) -> ProgressLine:
        if self._stream is not None:
            self._thread = threading.Thread(target=self._show, name="headrace-spark-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._write("")

    def _show(self) -> None:
        while not self._done.wait(INTERVAL_S):
            try:
                text = self.text()
            except Exception:
                return  # Spark has gone: the thread that waits for the job says so
            self._write(text)

    def text(self) -> str:
        """Return the line as it is now."""
        jobs = self._tracker.getJobIdsForGroup(self._group)
        active = set(self._tracker.getActiveJobsIds())
        stages = done = total = running = 0
        for number in jobs:
            if number not in active:
                continue
            info = self._tracker.getJobInfo(number)
            for stage_id in () if info is None else info.stageIds:
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    stages += 1
                    done += stage.numCompletedTasks
                    total += stage.numTasks
                    running += stage.numActiveTasks
        seconds = time.monotonic() - self._started
        if not total:
            return f"spark: {self.doing}, {len(jobs)} jobs, {seconds:.0f} s"
        plural = "s" if stages != 1 else ""
        return f"spark: {self.doing}, {stages} stage{plural}, tasks {done}/{total} ({running} running), {seconds:.0f} s"

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        self._stream.write("\r" + text[:118].ljust(self._width) + ("\r" if not text else ""))
        self._stream.flush()
        self._width = min(len(text), 118)
