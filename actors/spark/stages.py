"""Tells of a running Spark job stage by stage: tasks, rows and time, as Spark's own store of states has them.

Source: Spark's ``AppStatusStore``, which its web interface and its REST show.
"""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Any

from headrace.engine.plan.run_watch import RunWatch, StageView

from .failures import is_of_spark

__all__ = ["StagesTold"]

_LOG = logging.getLogger("headrace.spark")

INTERVAL_S = 0.5

_STATES = {"ACTIVE": "RUNNING", "COMPLETE": "FINISHED"}
"""Spark's words and ours, where they differ."""


class StagesTold:
    """Tells a watch of the stages of a job group while its block runs, and once more at its end.

    Args:
        context: The SparkContext.
        group: The job group.
        watch: Whom to tell.
    """

    def __init__(self, context: Any, group: str, watch: RunWatch) -> None:
        self._tracker = context.statusTracker()
        self._store = context._jsc.sc().statusStore()
        self._group = group
        self._watch = watch
        self._done = threading.Event()
        # Stages whose end was told: they are not asked for again.
        self._ended: set[int] = set()
        self._thread = threading.Thread(target=self._follow, name="headrace-spark-stages", daemon=True)

    def __enter__(self) -> StagesTold:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(5.0)

    def _follow(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._done.wait(INTERVAL_S)
            try:
                self._look()
            except Exception as error:  # mostly Spark has gone, as the thread that waits for the job says
                _LOG.warning("stages of Spark are told no more: %s", error)
                return

    def _look(self) -> None:
        found: list[StageView] = []
        for job in sorted(self._tracker.getJobIdsForGroup(self._group)):
            info = self._tracker.getJobInfo(job)
            for number in sorted(info.stageIds) if info is not None else ():
                if number not in self._ended:
                    view = _view(self._store, number)
                    if view is not None:
                        found.append(view)
                        if view.state not in ("RUNNING", "PENDING"):
                            self._ended.add(number)
        if found:
            self._watch.tell(*found)


def _view(store: Any, number: int) -> StageView | None:
    """The newest attempt of a stage; None if Spark has forgotten it."""
    try:
        stage = store.lastStageAttempt(number)
    except Exception as error:
        if not is_of_spark(error):
            raise
        return None
    state = stage.status().name()
    rows = stage.outputRecords() or stage.shuffleWriteRecords()
    begun, ended = stage.submissionTime(), stage.completionTime()
    until_ms = ended.get().getTime() if ended.isDefined() else _now_ms()
    return StageView(
        number,
        str(stage.name()),
        _STATES.get(state, state),
        stage.numTasks(),
        stage.numCompleteTasks(),
        stage.numActiveTasks(),
        stage.numFailedTasks(),
        rows or None,
        max(0, until_ms - begun.get().getTime()) if begun.isDefined() else 0,
    )


def _now_ms() -> int:

    return time.time_ns() // 1_000_000
