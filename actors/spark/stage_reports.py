"""Tells of a running Spark job stage by stage: tasks, rows and time, as Spark's own store of states has them.

Source: Spark's ``AppStatusStore``, which its web interface and its REST show.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from types import TracebackType
from typing import Any

from headrace.engine.plan.run_watch import RunWatch
from headrace.engine.protocol.states import StageState
from headrace.engine.protocol.views import StageView

from .failures import is_of_spark

__all__ = ["StagesTold"]

_LOG = logging.getLogger("headrace.spark")

INTERVAL_S = 0.5

_STATES = {
    "ACTIVE": StageState.RUNNING,
    "COMPLETE": StageState.FINISHED,
    "FAILED": StageState.FAILED,
    "PENDING": StageState.PENDING,
    "SKIPPED": StageState.SKIPPED,
}
"""By Spark's words."""

_INNER = {"mapPartitionsInternal", "WholeStageCodegen"}
"""Of Spark's own making: at the end of every job, and around whatever it compiles."""

_NUMBER = re.compile(r" \(\d+\)$")
"""Of a part of the plan."""


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
        # Stages by the last RDD that they compute. What a job before has left there is planned once more where it is
        # read, and then skipped, as it has been done under another number: that is no stage of its own.
        self._of_rdd: dict[int, int] = {}
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
                    view = self._view(number)
                    if view is not None:
                        found.append(view)
        if found:
            self._watch.tell(*found)

    def _view(self, number: int) -> StageView | None:
        """The newest attempt of a stage; None if Spark has forgotten it, or it is another one."""
        try:
            stage = self._store.lastStageAttempt(number)
            state = _STATES[stage.status().name()]
            rdds = sorted(_all(stage.rddIds()))
            graph = self._store.operationGraphForStage(number)
            name = _name(graph) or str(stage.name())
            inputs = self._inputs_of(number, graph)
        except Exception as error:
            if not is_of_spark(error):
                raise
            return None
        if state.has_ended:
            self._ended.add(number)
        if rdds and state in (StageState.PENDING, StageState.SKIPPED) and self._of_rdd.get(rdds[-1], number) != number:
            return None
        if rdds:
            self._of_rdd[rdds[-1]] = number
        begun, ended = stage.submissionTime(), stage.completionTime()
        began_ms = begun.get().getTime() if begun.isDefined() else 0
        until_ms = ended.get().getTime() if ended.isDefined() else _now_ms()
        return StageView(
            number,
            name,
            state,
            stage.numTasks(),
            stage.numCompleteTasks(),
            stage.numActiveTasks(),
            stage.numFailedTasks(),
            stage.outputRecords() or stage.shuffleWriteRecords() or None,
            max(0, until_ms - began_ms) if began_ms else 0,
            began_ms,
            inputs,
        )

    def _inputs_of(self, number: int, graph: Any) -> tuple[int, ...]:
        """The stages whose output a stage reads: those that compute the RDDs in which its edges begin."""
        edges = _all(graph.incomingEdges())
        stages = (self._of_rdd.get(edge.fromId()) for edge in edges)
        return tuple(dict.fromkeys(one for one in stages if one is not None and one != number))


def _name(graph: Any) -> str:
    """What a stage does, in Spark's words: its own name is the line of this program that has called Spark."""
    scopes = [_NUMBER.sub("", str(scope.name())) for scope in _all(graph.rootCluster().childClusters())]
    return " -> ".join(name for name, _ in itertools.groupby(name for name in scopes if name not in _INNER))


def _all(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala's."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
