"""The operator that has requests to outside systems under way for many records at once.

It asks its context to have a function run outside for each record, and emits the results as they come: in the order of
the records, or in any order between two watermarks, which nothing overtakes. At most ``capacity`` records are in its
queue (asked for, or answered and waiting for others); what came in the same batch beyond that waits in a backlog, and
as long as there is one the operator is *blocked*: the task takes no further batch, so pressure goes back to the
sources. Barriers pass all the same, with the watermarks before them, as what is in the queue and in the backlog
belongs to the snapshot: the records themselves, in order, which are asked for again after a restore. So a request may
be made more than once, and its results count once.

A subtask that is restored at the same parallelism goes on with its own records; at another one whole subtasks' records
are dealt out. Watermarks in the queue are no state: sources give theirs again, behind the records.

Timeouts cover all attempts at a record. They and the pauses between attempts go by the injected clock, and nothing is
emitted but in `process_batch` and `on_processing_time`: completions are noted when they are told, and many of them go
out as one batch.

At the end of input the operator has something pending until all is emitted and the function is closed, so what goes
wrong on closing fails the job; a task that is canceled or fails cancels what is under way and closes the function
without waiting.

Source: Flink's ``AsyncWaitOperator``, ``OrderedStreamElementQueue``, ``UnorderedStreamElementQueue``; FLIP-12,
FLIP-232.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NoReturn, Protocol

from headrace.state.values.sharing import shown

from ..columns.records import MAX_BATCH_ROWS, Batch, LatencyMarker, StreamStatus, Watermark
from ..errors import ProgramError, UserFunctionError
from ..functions.async_functions import AsyncFunction, AsyncRetryStrategy, NoRetryStrategy
from ..functions.given import records_of
from ..functions.isolation import copied, given_batch
from ..functions.life import refuse_life
from ..functions.operator import Operator, OperatorContext, place_of
from ..functions.side_outputs import timed_batch
from ..functions.user_function import UserFunction
from .outside_calls import OutsideCalls
from .row_operators import times_of

__all__ = ["AsyncRequest", "AsyncWaitOperator"]

DUE_NOW = -(2**63)
"""A processing time that has always come."""

Asked = tuple[Any, "int | None", Any]
"""What a request is made for, its event time, and what the function is to be called with."""

Control = Callable[[], None]
"""Emits a watermark, a change of idleness or a marker when its turn has come."""


class AsyncRequest:
    """One record in the queue."""

    __slots__ = ("argument", "attempts", "deadline_ms", "number", "results", "segment", "time", "value")

    def __init__(self, value: Any, time: int | None, argument: Any) -> None:
        self.value = value
        # Its event time, None for none.
        self.time = time
        # What the function is called with.
        self.argument = argument
        self.attempts = 0
        # Of the work that is under way for it; None while there is none.
        self.number: int | None = None
        # When it has timed out (epoch ms); None from then on, or if it never does.
        self.deadline_ms: int | None = None
        # The records that take its place; None until they are known.
        self.results: list[Any] | None = None
        # The part of an unordered queue that it is in.
        self.segment: Any = None


class _Queue(Protocol):
    """Requests and controls in the order they came, given back in the order they may go out."""

    num_requests: int

    def add(self, request: AsyncRequest) -> None: ...

    def add_control(self, control: Control) -> None: ...

    def completed(self, request: AsyncRequest) -> None:
        """The results of a request are known."""
        ...

    @property
    def has_ready(self) -> bool:
        """Whether something may go out."""
        ...

    def pop(self) -> AsyncRequest | Control:
        """Return what goes out next; called only if something may."""
        ...

    def requests(self) -> Iterator[AsyncRequest]:
        """Return all requests, in the order they came."""
        ...


class _OrderedQueue:
    """First in, first out."""

    __slots__ = ("_items", "num_requests")

    def __init__(self) -> None:
        self.num_requests = 0
        self._items: deque[AsyncRequest | Control] = deque()

    def add(self, request: AsyncRequest) -> None:
        self.num_requests += 1
        self._items.append(request)

    def add_control(self, control: Control) -> None:
        self._items.append(control)

    def completed(self, request: AsyncRequest) -> None:
        """It waits for its turn."""

    @property
    def has_ready(self) -> bool:
        if not self._items:
            return False
        first = self._items[0]
        return type(first) is not AsyncRequest or first.results is not None

    def pop(self) -> AsyncRequest | Control:
        item = self._items.popleft()
        self.num_requests -= type(item) is AsyncRequest
        return item

    def requests(self) -> Iterator[AsyncRequest]:
        return (item for item in self._items if type(item) is AsyncRequest)


class _Segment:
    """The requests between two controls."""

    __slots__ = ("control", "done", "members")

    def __init__(self) -> None:
        # All that have not gone out, in the order they came; the values mean nothing.
        self.members: dict[AsyncRequest, None] = {}
        # Those whose results are known, in that order.
        self.done: deque[AsyncRequest] = deque()
        # What follows behind all of them; None for the last segment.
        self.control: Control | None = None


class _UnorderedQueue:
    """Requests of the first segment go out as they complete; those of the others wait for theirs to be the first."""

    __slots__ = ("_segments", "num_requests")

    def __init__(self) -> None:
        self.num_requests = 0
        self._segments: deque[_Segment] = deque([_Segment()])

    def add(self, request: AsyncRequest) -> None:
        self.num_requests += 1
        request.segment = self._segments[-1]
        request.segment.members[request] = None

    def add_control(self, control: Control) -> None:
        self._segments[-1].control = control
        self._segments.append(_Segment())

    def completed(self, request: AsyncRequest) -> None:
        request.segment.done.append(request)

    @property
    def has_ready(self) -> bool:
        first = self._segments[0]
        return bool(first.done) or (not first.members and first.control is not None)

    def pop(self) -> AsyncRequest | Control:
        first = self._segments[0]
        if first.done:
            request = first.done.popleft()
            del first.members[request]
            self.num_requests -= 1
            return request
        self._segments.popleft()
        assert first.control is not None
        return first.control

    def requests(self) -> Iterator[AsyncRequest]:
        return (request for segment in self._segments for request in segment.members)


class AsyncWaitOperator(Operator):
    """Calls a function outside for every record and emits what it gives, with the record's event time.

    Args:
        function: An AsyncFunction, or a callable of a record; a coroutine function runs on the host's event loop, any
            other in a thread.
        ordered: Whether results keep the order of their records.
        capacity: Most records that are under way at once, at least 1.
        timeout_ms: How long all attempts at a record may take; 0 for ever.
        retry: When attempts are repeated.
        is_single: Whether a callable gives the one record that takes the place of its argument, not a list.
        methods: What a function object's method may be called.

    Raises:
        ProgramError: If the function is neither.
    """

    offloads = True

    def __init__(
        self,
        function: Any,
        *,
        ordered: bool,
        capacity: int,
        timeout_ms: int,
        retry: AsyncRetryStrategy | None = None,
        is_single: bool = False,
        methods: tuple[str, ...] = ("async_invoke",),
    ) -> None:
        self.function = UserFunction(function, *methods)
        self._outside = OutsideCalls(self.function)
        self._kind = self._outside.kind
        self._is_single = is_single and self.function.method is None
        self._ordered = ordered
        self._capacity = capacity
        self._timeout_ms = timeout_ms
        self._retry = retry or NoRetryStrategy()
        refuse_life(self._retry, "a retry strategy")
        # Whether the function has been asked to open; whether it has done so; whether it has been asked to close, and
        # has done so.
        self._is_opening = self._is_open = self._is_closing = self._is_closed = False

    # ------------------------------------------------------------------------------------------------- life of the task
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._call = self.function.bind()
        predicate = self._retry.get_retry_predicate()
        self._repeats_result = predicate.result_predicate()
        self._repeats_exception = predicate.exception_predicate()
        self._queue: _Queue = _OrderedQueue() if self._ordered else _UnorderedQueue()
        # What waits until there is room in the queue, and controls in between.
        self._backlog: deque[Asked | Control] = deque()
        # (deadline, request) as they were begun, hence by time; and (time, number, request) of attempts to come.
        self._deadlines: deque[tuple[int, AsyncRequest]] = deque()
        self._repetitions: list[tuple[int, int, AsyncRequest]] = []
        self._num_repetitions = 0
        self._has_input_ended = False
        context.metrics.gauge("num_requests_in_flight", lambda: self._queue.num_requests)
        self._state = context.operator_state.union_list_state("requests-in-flight")
        self._backlog.extend(
            self._restored([(value, time) for place, time, value in self._state.get() if self._is_mine(*place)])
        )
        self._is_opening = True
        runtime_context = self.function.attach(context)
        if not self._outside.begin_if_there(context, "open", self._opened, runtime_context):
            self._opened(None, None)

    def _is_mine(self, subtask: int, parallelism: int) -> bool:
        """Whether this subtask goes on with what another, or itself, had in flight."""
        now = self.context.parallelism
        return self.context.subtask == (subtask if parallelism == now else subtask % now)

    def _opened(self, _result: Any, error: BaseException | None) -> None:
        if error is not None:
            self._raise(error, "open")
        self._is_open = True
        self._fill()
        self._close_if_done()  # the input may have ended meanwhile

    def end_input(self, input_index: int) -> None:
        self._has_input_ended = True
        self._close_if_done()

    @property
    def is_blocked(self) -> bool:
        return bool(self._backlog)

    @property
    def has_pending(self) -> bool:
        return not self._is_closed

    def holds_records(self) -> bool:
        return bool(self._backlog) or self._queue.num_requests > 0

    def _close_if_done(self) -> None:
        """Close the function once all input is processed."""
        is_done = self._has_input_ended and self._is_open and not self._backlog and not self._queue.num_requests
        if is_done and not self._queue.has_ready and not self._is_closing:
            self._is_closing = True
            if not self._outside.begin_if_there(self.context, "close", self._closed):
                self._is_closed = True

    def _closed(self, _result: Any, error: BaseException | None) -> None:
        if error is not None:
            self._raise(error, "close")
        self._is_closed = True

    def close(self) -> None:
        """Give up what is under way and close the function, without waiting for it."""
        if not self._is_opening or self._is_closing:
            return
        self._is_closing = True
        for request in self._queue.requests():
            self._cancel_call(request)
        self._outside.begin_if_there(self.context, "close", None)

    # --------------------------------------------------------------------------------------------------------- elements
    def process_batch(self, batch: Batch, input_index: int) -> None:
        self._backlog.extend(self._asked_of(batch))
        self._go_on()

    def _asked_of(self, batch: Batch) -> Iterable[Asked]:
        """What requests are to be made for a batch."""
        return zip(batch.rows, times_of(batch), self._arguments(batch), strict=True)

    def _restored(self, records: list[tuple[Any, int | None]]) -> Iterable[Asked]:
        """The same for what a snapshot holds: what `_stored` has given, and the event times."""
        arguments = self._arguments(Batch.of_rows([value for value, _ in records]))
        return ((*record, argument) for record, argument in zip(records, arguments, strict=True))

    def _stored(self, value: Any) -> Any:
        """What a snapshot holds of a request."""
        return value

    def process_watermark(self, watermark: Watermark) -> None:
        self._in_turn(functools.partial(self.context.output.emit_watermark, watermark))

    def process_status(self, status: StreamStatus) -> None:
        self._in_turn(functools.partial(self.context.output.emit_status, status))

    def process_marker(self, marker: LatencyMarker) -> None:
        self._in_turn(functools.partial(self.context.output.emit_marker, marker))

    def _arguments(self, batch: Batch) -> list[Any]:
        """What the function is called with for each record."""
        return batch.rows

    def _in_turn(self, control: Control) -> None:
        if self._backlog:
            self._backlog.append(control)
        else:
            self._queue.add_control(control)
            self._go_on()

    def _fill(self) -> None:
        """Begin requests until the queue is full."""
        backlog, queue, capacity = self._backlog, self._queue, self._capacity
        while backlog and self._is_open:
            item = backlog[0]
            if type(item) is not tuple:
                queue.add_control(item)  # type: ignore[arg-type]
            elif queue.num_requests < capacity:
                request = AsyncRequest(*item)
                queue.add(request)
                self._begin(request)
            else:
                return
            backlog.popleft()

    def _go_on(self) -> None:
        """Emit what may go out and begin what there is room for, in turn, until neither is possible."""
        queue = self._queue
        done: list[AsyncRequest] = []
        num_results = 0
        self._fill()
        while queue.has_ready:
            item = queue.pop()
            if isinstance(item, AsyncRequest):
                done.append(item)
                num_results += len(item.results or ())
                if self._backlog:
                    self._fill()
            if done and (not isinstance(item, AsyncRequest) or num_results >= MAX_BATCH_ROWS):
                self._give(done)
                done, num_results = [], 0
            if not isinstance(item, AsyncRequest):
                item()
        if done:
            self._give(done)
        self._close_if_done()

    def _give(self, requests: Sequence[AsyncRequest]) -> None:
        """Emit the results of requests."""
        rows: list[Any] = []
        times: list[int | None] = []
        for request in requests:
            results = request.results or ()
            rows.extend(results)
            times.extend([request.time] * len(results))
        if rows:
            self.context.output.emit(self._batch_of(rows, times))

    def _batch_of(self, rows: list[Any], times: list[int | None]) -> Batch:
        batch = timed_batch(rows, times)
        return given_batch(batch.rows, batch.timestamps)

    # --------------------------------------------------------------------------------------------------------- requests
    def _begin(self, request: AsyncRequest) -> None:
        """Begin the request of a record that has come into the queue."""
        if self._timeout_ms:
            request.deadline_ms = self.context.now_ms() + self._timeout_ms
            self._deadlines.append((request.deadline_ms, request))
        self._invoke(request)

    def _invoke(self, request: AsyncRequest) -> None:
        request.attempts += 1
        work = functools.partial(self._call, self._argument_of(request))
        if self._kind == "blocking":
            work = functools.partial(_answer, work)
        request.number = self.context.offload(work, functools.partial(self._ended, request), self._kind)

    def _argument_of(self, request: AsyncRequest) -> Any:
        """What the function is called with; the same after a failure, whatever the function does to it."""
        return request.argument if self.context.reuses_objects else copied(request.argument)

    def _ended(self, request: AsyncRequest, result: Any, error: BaseException | None) -> None:
        """Take the result of an attempt that has ended, or plan another one."""
        request.number = None
        try:
            if error is None:
                found = self._found(request, result)
                if self._repeats_result is None or not self._repeats_result(found) or not self._repeats(request):
                    self._complete(request, found)
                return
            is_repeated = (
                isinstance(error, Exception)
                and self._repeats_exception is not None
                and self._repeats_exception(error)
                and self._repeats(request)
            )
        except BaseException as failure:
            self._raise(failure, None, request)
        if not is_repeated:
            self._raise(error, None, request)

    def _found(self, request: AsyncRequest, result: Any) -> list[Any]:
        """What the function gave, as a list."""
        if inspect.isawaitable(result):
            message = f"{self.function.name} gave an awaitable but is no coroutine function"
            raise ProgramError(message, hint="write it as async def")
        return [result] if self._is_single else list(records_of(result))

    def _results(self, request: AsyncRequest, found: list[Any]) -> list[Any]:
        """The records that take the place of the request's, made of what the function found."""
        return found

    def _complete(self, request: AsyncRequest, found: list[Any]) -> None:
        request.results = self._results(request, found)
        request.deadline_ms = None
        self._queue.completed(request)

    def _repeats(self, request: AsyncRequest) -> bool:
        """Plan another attempt, if there may be one."""
        if not self._retry.can_retry(request.attempts):
            return False
        at = self.context.now_ms() + self._retry.get_backoff_time_millis(request.attempts)
        self._num_repetitions += 1
        heappush(self._repetitions, (at, self._num_repetitions, request))
        self.context.metrics.count("num_retries")
        return True

    def _time_out(self, request: AsyncRequest) -> None:
        """No result in time: the function may say what to do instead."""
        self.context.metrics.count("num_timeouts")
        request.deadline_ms = None
        self._cancel_call(request)
        function = self.function.function
        handler = getattr(function, "timeout", None) if self.function.method else None
        if handler is None or getattr(type(function), "timeout", None) is AsyncFunction.timeout:
            message = f"no result within {self._timeout_ms} ms, after {request.attempts} attempts"
            raise UserFunctionError(message, **self._place_of(request))
        work = self._outside.work_of(handler, request.value)
        request.number = self.context.offload(work, functools.partial(self._timed_out, request), self._kind)

    def _timed_out(self, request: AsyncRequest, result: Any, error: BaseException | None) -> None:
        request.number = None
        if error is not None:
            self._raise(error, "timeout", request)
        try:
            self._complete(request, list(records_of(result)))
        except BaseException as failure:
            self._raise(failure, "timeout", request)

    def _cancel_call(self, request: AsyncRequest) -> None:
        """Cancel the call that is under way for a request, if there is one."""
        if request.number is not None:
            self.context.cancel_offload(request.number)
            request.number = None

    def _raise(self, error: BaseException, method: str | None, request: AsyncRequest | None = None) -> NoReturn:
        """Raise a failure again, with its place."""
        self._outside.fail(self.context, error, method, None if request is None else request.value)

    def _place_of(self, request: AsyncRequest) -> dict[str, Any]:
        context = self.context
        place = place_of(context.name, context.subtask, context.parallelism)
        return {**place, "function": self.function.name, "record": shown(request.value)}

    # ------------------------------------------------------------------------------------------------------------- time
    def next_processing_time(self) -> int | None:
        if self._queue.has_ready:
            return DUE_NOW
        deadlines, repetitions = self._deadlines, self._repetitions
        while deadlines and deadlines[0][1].deadline_ms is None:
            deadlines.popleft()
        if not deadlines:
            return repetitions[0][0] if repetitions else None
        return min(deadlines[0][0], repetitions[0][0]) if repetitions else deadlines[0][0]

    def on_processing_time(self, now_ms: int) -> None:
        deadlines, repetitions = self._deadlines, self._repetitions
        while deadlines and (deadlines[0][1].deadline_ms is None or deadlines[0][0] <= now_ms):
            _, request = deadlines.popleft()
            if request.deadline_ms is not None:
                self._time_out(request)
        while repetitions and repetitions[0][0] <= now_ms:
            _, _, request = heappop(repetitions)
            if request.deadline_ms is not None or not self._timeout_ms:  # else it has timed out meanwhile
                self._invoke(request)
        self._go_on()

    # -------------------------------------------------------------------------------------------------------- snapshots
    def prepare_snapshot(self, checkpoint_id: int) -> None:
        """Emit what is known: the less is in the snapshot, the less is asked for again."""
        if self._queue.has_ready:
            self._go_on()

    def snapshot_state(self, checkpoint_id: int) -> None:
        place = (self.context.subtask, self.context.parallelism)
        in_flight = [(place, request.time, self._stored(request.value)) for request in self._queue.requests()]
        waiting = [(place, item[1], self._stored(item[0])) for item in self._backlog if type(item) is tuple]
        self._state.update(in_flight + waiting)


def _answer(work: Callable[[], Any]) -> Any:
    """Call a function that is no coroutine function; a coroutine that it gives nevertheless is not left unawaited."""
    result = work()
    if inspect.iscoroutine(result):
        result.close()
    return result
