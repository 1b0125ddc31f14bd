"""What a host sees of its slot from beside: whether tasks have credit, and on which calls they spend their time.

A look is two reads from another thread, of what the slot says of itself and, for stacks, of the interpreter's frames.
Nothing is counted or kept for it while nobody looks. Looks are spaced by the clock, also while a step takes long: were
they taken between steps, one that fills its output would always be found behind it.

What a stack tells: the calls of the thread that runs the slot, from the task's step on, each chained operator under
its own name. Of a task that is not in a step it says what it waits for. Calls that operators have made in other
threads or processes are not seen.

Source: Flink's ``BackPressureStatsTrackerImpl`` and ``ThreadInfoSampleService``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from headrace.engine.errors import ClusterUnavailableError, InternalError
from headrace.engine.kernel.sampling_settings import LONGEST_SAMPLING_MS
from headrace.engine.protocol.messages import RequestFailed
from headrace.engine.protocol.observation_messages import (
    FindHotKeys,
    HotKeys,
    ListLogs,
    ObservedTask,
    ReadLog,
    RecordSample,
    SampleRecords,
    SampleTasks,
    ShowRejectedRecords,
    StackCount,
    TaskSamples,
)
from headrace.engine.task.chain import ChainLink
from headrace.engine.task.task import Task
from headrace.state.identifiers import ExecutionAttemptId

from .hot_keys import KeySelectorOf, hot_keys
from .log_files import HostLogs, host_logs
from .record_samples import RejectedOf, TapChannels, rejected_records, sample_records

__all__ = ["HostObserver", "LoopThread"]

MOST_SAMPLINGS = 4
"""At the same time, of one host."""

ON_CPU_SHARE = 0.1
"""A thread that has used so much of the time since the last look is on the processor."""

WAITS_FOR_CREDIT = "(waits for credit)"
WAITS_FOR_INPUT = "(waits for input or time)"
WAITS_FOR_SLOT = "(waits for other tasks of its slot)"

_STEP = Task.step.__code__
_LINK_CALLS = (ChainLink._feed.__code__, ChainLink.call.__code__)
"""Where an operator is entered; ``self`` there is its link."""


class LoopThread(NamedTuple):
    """A thread that runs tasks, as it has made itself known.

    Attributes:
        identifier: As the interpreter knows it.
        clock: Of its processor time; None where the system does not tell.
    """

    identifier: int
    clock: int | None

    @classmethod
    def this(cls) -> LoopThread:
        """Return the thread that calls.

        Only for itself may a thread ask for its clock: for one that has ended the C library crashes.
        The clock itself may be read whenever.
        """
        identifier = threading.get_ident()
        has_clock = hasattr(time, "pthread_getcpuclockid")
        return cls(identifier, time.pthread_getcpuclockid(identifier) if has_clock else None)


class HostObserver:
    """Looks at one host. May be asked from any thread.

    Args:
        observe: What the host's tasks say of themselves now.
        thread: The thread that runs them now; None if there is none.
        host: Its name: only logs of this one and its slots are shown; empty for all.
        logs: Where logs are kept; None for nowhere.
        tap_channels: Has it told of what arrives at its tasks; see `headrace.actors.hosts.record_samples`.
        key_selector: By what tasks find keys; see `headrace.actors.hosts.hot_keys`.
        rejected: What operators keep of what they reject; see `headrace.actors.hosts.record_samples`.
    """

    def __init__(
        self,
        observe: Callable[[], list[ObservedTask]],
        thread: Callable[[], LoopThread | None],
        host: str = "",
        logs: Callable[[], HostLogs | None] = host_logs,
        tap_channels: TapChannels = lambda _vertex, _edge_id, _tap: [],
        key_selector: KeySelectorOf = lambda _vertex, _edge_id: None,
        rejected: RejectedOf = lambda _vertex: [],
    ) -> None:
        self._rejected = rejected
        self._tap_channels = tap_channels
        self._key_selector = key_selector
        self._host = host
        self._logs = logs
        self._observe = observe
        self._thread = thread
        self._room = threading.BoundedSemaphore(MOST_SAMPLINGS)
        # A channel has one tap: who looks at records waits for the one before.
        self._taps = threading.Lock()

    def answer(self, request: Any) -> Any:
        """Answer a question, when that is done; blocks."""
        logs = self._logs()
        if isinstance(request, ListLogs):
            return [] if logs is None else logs.files(self._host)
        if isinstance(request, ReadLog):
            return None if logs is None else logs.read(request.name, request.offset, request.max_bytes, self._host)
        if isinstance(request, SampleRecords):
            return self._with_room(lambda: self._sample_records(request))
        if isinstance(request, FindHotKeys):
            return self._with_room(lambda: self._hot_keys(request))
        if isinstance(request, ShowRejectedRecords):
            return self._with_room(lambda: rejected_records(self._rejected, request))
        if not isinstance(request, SampleTasks):
            message = f"a host's observer does not answer {type(request).__name__}"
            return RequestFailed(InternalError(message))
        if request.num_samples * request.delay_ms > LONGEST_SAMPLING_MS:
            message = f"a sampling may take {LONGEST_SAMPLING_MS} ms"
            return RequestFailed(InternalError(message))
        return self._with_room(lambda: self._sample(request))

    def _sample_records(self, request: SampleRecords) -> list[RecordSample]:
        with self._taps:
            return sample_records(self._tap_channels, request)

    def _hot_keys(self, request: FindHotKeys) -> list[HotKeys]:
        with self._taps:
            return hot_keys(self._tap_channels, self._key_selector, request)

    def _with_room(self, look: Callable[[], Any]) -> Any:
        if not self._room.acquire(blocking=False):
            message = f"the slot is looked at by {MOST_SAMPLINGS} others already"
            return RequestFailed(ClusterUnavailableError(message))
        try:
            return look()
        finally:
            self._room.release()

    def _sample(self, request: SampleTasks) -> list[TaskSamples]:
        found: dict[ExecutionAttemptId, _Counts] = {}
        clock = _ProcessorClock(self._thread)
        for _ in _spaced(request.num_samples, request.delay_ms):
            tasks = self._observe()
            frame, is_on_cpu = None, False
            if request.stack_depth:
                frame, is_on_cpu = clock.look()
                after = {task.attempt for task in self._observe() if task.is_stepping}
                if after != {task.attempt for task in tasks if task.is_stepping}:
                    frame = None  # it went on to another task between the looks: whose calls these are is not known
            is_in_use = any(task.is_stepping for task in tasks)
            for task in tasks:
                if task.attempt.vertex != request.vertex:
                    continue
                counts = found.setdefault(task.attempt, _Counts())
                counts.num_samples += 1
                counts.num_backpressured += task.is_backpressured
                if not request.stack_depth:
                    continue
                if not task.is_stepping:
                    counts.note((_wait_of(task, is_in_use=is_in_use),), is_on_cpu=False)
                elif frame is not None:
                    counts.note(_calls(frame, request.stack_depth), is_on_cpu=is_on_cpu)
            del frame  # what it holds must not live until the next look
        return [counts.result(attempt) for attempt, counts in found.items()]


class _Counts:
    """What was seen of one attempt so far."""

    def __init__(self) -> None:
        self.num_samples = self.num_backpressured = 0
        self._stacks: dict[tuple[str, ...], list[int]] = {}

    def note(self, frames: tuple[str, ...], *, is_on_cpu: bool) -> None:
        self._stacks.setdefault(frames, [0, 0])[0 if is_on_cpu else 1] += 1

    def result(self, attempt: ExecutionAttemptId) -> TaskSamples:
        stacks = tuple(StackCount(frames, on, off) for frames, (on, off) in self._stacks.items())
        return TaskSamples(attempt, self.num_samples, self.num_backpressured, stacks)


class _ProcessorClock:
    """The frames of a thread, and whether it has used the processor since the last look."""

    def __init__(self, thread: Callable[[], LoopThread | None]) -> None:
        self._thread = thread
        # Time and processor time at the last look, nanoseconds, and of which thread.
        self._last: tuple[LoopThread | None, int, int] = (None, 0, 0)

    def look(self) -> tuple[FrameType | None, bool]:
        thread = self._thread()
        if thread is None:
            return None, False
        now_ns, used_ns = time.monotonic_ns(), _used_ns(thread)
        last_thread, last_ns, last_used_ns = self._last
        self._last = (thread, now_ns, used_ns)
        is_on_cpu = last_thread != thread or used_ns - last_used_ns >= ON_CPU_SHARE * (now_ns - last_ns)
        return sys._current_frames().get(thread.identifier), is_on_cpu


def _used_ns(thread: LoopThread) -> int:
    """Processor time of a thread; where the system does not tell, all of the time."""
    if thread.clock is None:
        return time.monotonic_ns()
    try:
        return time.clock_gettime_ns(thread.clock)
    except OSError:
        return 0  # it has ended


def _spaced(number: int, delay_ms: int) -> Iterator[int]:
    """Count, at even distances; what comes too late is made up for by no haste."""
    due = time.monotonic()
    for index in range(number):
        due = max(due + delay_ms / 1_000, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        yield index


def _wait_of(task: ObservedTask, *, is_in_use: bool) -> str:
    if task.is_backpressured:
        return WAITS_FOR_CREDIT
    return WAITS_FOR_SLOT if is_in_use else WAITS_FOR_INPUT


def _calls(frame: FrameType | None, depth: int) -> tuple[str, ...]:
    """The calls of a step, the outermost first."""
    names: list[str] = []
    while frame is not None and frame.f_code is not _STEP:
        names.append(_name_of(frame))
        frame = frame.f_back
    return tuple(reversed(names))[:depth]


def _name_of(frame: FrameType) -> str:
    code = frame.f_code
    if code in _LINK_CALLS:
        link = frame.f_locals.get("self")
        if isinstance(link, ChainLink):
            return f"operator {link.name}"
    name = getattr(code, "co_qualname", code.co_name)
    return f"{frame.f_globals.get('__name__', '?')}.{name}:{frame.f_lineno}"
