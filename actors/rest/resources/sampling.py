"""What is found out by looking at subtasks for a while, when somebody asks: backpressure, and flame graphs.

Who asks is answered at once, with what is there; where that is nothing, or too old, looking begins, and who asks again
a little later is told. All who ask of one vertex share the answer.

Source: Flink's ``JobVertexBackPressureHandler``, ``BackPressureStatsTrackerImpl``, ``JobVertexFlameGraphHandler``,
``JobVertexThreadInfoTracker``, ``VertexFlameGraph``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.kernel.sampling_settings import SamplingSettings
from headrace.engine.protocol.details import SubtaskView, VertexDetails
from headrace.engine.protocol.observation_messages import OBSERVER_ACTOR, SampleTasks, StackCount, TaskSamples
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.views import VertexView

from .jobs import now_ms
from .questions import AsksCluster
from .routes import RestError, RestRequest
from .tasks import level_of
from .vertices import find_subtask, find_vertex

__all__ = ["FLAME_GRAPH_TYPES", "Samplings", "flame_graph"]

MOST_HOSTS = 64
"""Slots that are looked at at the same time; others wait."""

FLAME_GRAPH_TYPES = ("FULL", "ON_CPU", "OFF_CPU")

TERMINATED, DISABLED, WAITING = -1, -2, -3
"""Flink's end times of graphs that are none."""

_ALIVE = (TaskState.RUNNING, TaskState.ENDED)


@dataclass(frozen=True, slots=True)
class VertexSamples:
    """What looking at a vertex has come to.

    Attributes:
        ended_ms: When that ended, epoch milliseconds.
        by_subtask: What was seen, by subtask; those whose slot did not answer are missing.
    """

    ended_ms: int
    by_subtask: Mapping[int, TaskSamples]


@dataclass(slots=True)
class _Entry:
    """What is known of a vertex, and whether somebody looks."""

    # Which attempts it is about.
    attempts: tuple[tuple[int, int], ...]
    asked_s: float
    samples: VertexSamples | None = None
    sampled_s: float = 0.0
    is_under_way: bool = False


class VertexSampler:
    """Looks at vertices, and remembers what was seen.

    Args:
        settings: How.
        with_stacks: Whether stacks are of interest.
    """

    def __init__(self, settings: SamplingSettings, *, with_stacks: bool) -> None:
        self.settings = settings
        self._stack_depth = settings.stack_depth if with_stacks else 0
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._lock = threading.Lock()
        name = "flames" if with_stacks else "backpressure"
        self._threads = ThreadPoolExecutor(MOST_HOSTS, thread_name_prefix=f"headrace-{name}")
        self._is_closed = False

    def close(self) -> None:
        """Look no more; what is under way is not waited for."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def samples(self, request: RestRequest, more: VertexDetails) -> tuple[VertexSamples | None, bool]:
        """Return what was seen of a vertex last, and whether that is fresh; where it is not, looking begins."""
        subtasks = [one for one in more.subtasks if one.state in _ALIVE]
        attempts = tuple((one.subtask, one.attempt) for one in subtasks)
        key, now_s = (request.path["jobid"], request.path["vertexid"]), time.monotonic()
        with self._lock:
            self._forget(now_s)
            entry = self._entries.get(key)
            if entry is None or entry.attempts != attempts:
                entry = self._entries[key] = _Entry(attempts, now_s)
            entry.asked_s = now_s
            good_s = self.settings.refresh_interval_ms / 1_000
            is_fresh = entry.samples is not None and now_s - entry.sampled_s < good_s
            begins = not is_fresh and not entry.is_under_way and bool(subtasks) and not self._is_closed
            entry.is_under_way = entry.is_under_way or begins
            found = entry.samples
        if begins:
            self._begin(request.cluster.cluster, more, subtasks, entry, request.cluster.timeout_ms)
        return found, is_fresh

    def _begin(
        self, cluster: AsksCluster, more: VertexDetails, subtasks: list[SubtaskView], entry: _Entry, timeout_ms: int
    ) -> None:
        """Ask all slots; the last one to answer makes the result."""
        settings = self.settings
        question = SampleTasks(more.vertex_id, settings.num_samples, settings.delay_ms, self._stack_depth)
        hosts = dict.fromkeys(one.host for one in subtasks)
        seen: list[TaskSamples] = []
        left = len(hosts)

        def ended(future: Future[list[TaskSamples]]) -> None:
            nonlocal left
            with self._lock:
                if not future.cancelled() and future.exception() is None:
                    seen.extend(future.result())
                left -= 1
                if left:
                    return
                wanted = dict(entry.attempts)
                known = {
                    one.attempt.subtask: one for one in seen if wanted.get(one.attempt.subtask) == one.attempt.attempt
                }
                entry.samples = VertexSamples(now_ms(), known)
                entry.sampled_s = time.monotonic()
                entry.is_under_way = False

        for host in hosts:
            address = Address(host, OBSERVER_ACTOR)
            future = self._threads.submit(_ask, cluster, address, question, settings.duration_ms + timeout_ms)
            future.add_done_callback(ended)

    def _forget(self, now_s: float) -> None:
        until_s = now_s - self.settings.cleanup_interval_ms / 1_000
        for key in [key for key, one in self._entries.items() if one.asked_s < until_s and not one.is_under_way]:
            del self._entries[key]


def _ask(cluster: AsksCluster, address: Address, question: SampleTasks, timeout_ms: int) -> list[TaskSamples]:
    try:
        seen: list[TaskSamples] = cluster.ask_machine(address, question, timeout_ms)
    except ClusterUnavailableError:
        return []  # it has just ended, or others look at it
    return seen


def _vertex(request: RestRequest) -> tuple[bool, VertexView, VertexDetails]:
    """Whether the job has ended, and one of its vertices."""
    vertex_id = request.path["vertexid"]
    details = request.cluster.details(request.path["jobid"], vertex_id)
    view, more = find_vertex(details, vertex_id)
    return details.view.state.is_terminal, view, more


class Backpressure:
    """Answers whether subtasks wait for credit.

    Args:
        settings: How they are looked at.
    """

    def __init__(self, settings: SamplingSettings) -> None:
        self._sampler = VertexSampler(settings, with_stacks=False)

    def close(self) -> None:
        """Look no more."""
        self._sampler.close()

    def __call__(self, request: RestRequest) -> Any:
        """How often each subtask was found without credit; and how much of its time it is busy, idle and held up.

        The first is of samples, the others are measured all the time, and told of the last report interval.
        """
        _, _, more = _vertex(request)
        samples, is_fresh = self._sampler.samples(request, more)
        seen = {} if samples is None else samples.by_subtask
        subtasks = [_backpressure_of(one, seen.get(one.subtask)) for one in more.subtasks]
        worst = max((one["ratio"] for one in subtasks), default=0.0)
        return {
            "status": "ok" if is_fresh else "deprecated",
            "backpressureLevel": level_of(worst),
            "end-timestamp": now_ms() if samples is None else samples.ended_ms,
            "id": more.vertex_id,
            "subtasks": subtasks,
        }


def _backpressure_of(one: SubtaskView, samples: TaskSamples | None) -> dict[str, Any]:
    ratio = one.backpressured if samples is None else samples.ratio
    return {
        "subtask": one.subtask,
        "attempt-number": one.attempt,
        "backpressureLevel": level_of(ratio),
        "ratio": ratio,
        "num-samples": 0 if samples is None else samples.num_samples,
        "idleRatio": one.idle,
        "busyRatio": one.busy,
        "backpressuredRatio": one.backpressured,
    }


class FlameGraphs:
    """Answers what subtasks spend their time on.

    Args:
        settings: How they are looked at.
    """

    def __init__(self, settings: SamplingSettings) -> None:
        self._sampler = VertexSampler(settings, with_stacks=True)

    def close(self) -> None:
        """Look no more."""
        self._sampler.close()

    def __call__(self, request: RestRequest) -> Any:
        """The calls that the subtasks of a vertex, or one of them, were found in."""
        if not self._sampler.settings.is_enabled:
            return {"endTimestamp": DISABLED, "data": None}
        has_ended, _, more = _vertex(request)
        if has_ended:
            return {"endTimestamp": TERMINATED, "data": None}
        wanted = request.query.get("subtaskindex")
        if wanted is not None:
            find_subtask(more, str(wanted))
        samples, _ = self._sampler.samples(request, more)
        if samples is None:
            return {"endTimestamp": WAITING, "data": None}
        if wanted is not None and wanted not in samples.by_subtask:
            raise RestError(409, f"the slot of subtask {wanted} has not answered")
        chosen = samples.by_subtask.values() if wanted is None else [samples.by_subtask[wanted]]
        stacks = [stack for one in chosen for stack in one.stacks]
        return {
            "endTimestamp": samples.ended_ms,
            "data": flame_graph(stacks, _COUNTS[request.query.get("type", FLAME_GRAPH_TYPES[0])]),
        }


class Samplings:
    """All that a server finds out by looking.

    Args:
        settings: The server's.
    """

    def __init__(self, settings: RestSettings) -> None:
        self.backpressure = Backpressure(settings.backpressure)
        self.flame_graphs = FlameGraphs(settings.flame_graph)

    def close(self) -> None:
        """Look no more."""
        self.backpressure.close()
        self.flame_graphs.close()


_COUNTS: dict[str, Callable[[StackCount], int]] = {
    "FULL": lambda stack: stack.num_on_cpu + stack.num_off_cpu,
    "ON_CPU": lambda stack: stack.num_on_cpu,
    "OFF_CPU": lambda stack: stack.num_off_cpu,
}


def flame_graph(stacks: Iterable[StackCount], count: Callable[[StackCount], int]) -> dict[str, Any]:
    """Make one tree of stacks: each call with how often it was found, and the calls within it.

    Args:
        stacks: What was seen.
        count: How often each stack counts.
    """
    root = _Node()
    for stack in stacks:
        number = count(stack)
        if number:
            node = root
            node.value += number
            for name in stack.frames:
                node = node.children.setdefault(name, _Node())
                node.value += number
    return root.as_json("root")


class _Node:
    """A call in a flame graph."""

    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.value = 0
        self.children: dict[str, _Node] = {}

    def as_json(self, name: str) -> dict[str, Any]:
        largest_first = sorted(self.children.items(), key=lambda item: (-item[1].value, item[0]))
        return {
            "name": name,
            "value": self.value,
            "children": [child.as_json(inner) for inner, child in largest_first],
        }
