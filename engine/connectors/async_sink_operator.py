"""The operator of a sink for a service with asynchronous requests.

Records become entries as they come, and wait in a buffer; requests are begun as they may be, and run outside
(`headrace.engine.operators.outside_calls`). Their ends are told on the task's thread: what was turned away goes back to
the front of the buffer, and the next requests are begun. Nothing here waits. While the buffer is full the operator is
*blocked*: the task takes no further batch; a barrier passes that waits behind none, or overtakes them.

A snapshot holds all entries that are not known to be accepted, those under way first, so they are sent again after a
restore, at least once. A subtask that is restored at the same parallelism goes on with its own entries; at another one
whole subtasks' entries are dealt out. In an ordered sink those must reach the service before anything newer does, which
may be another subtask's; so the task is not ready before they have.

Time is that of the injected clock: one alarm is set at a time, for whatever is due first. It rings also while the task
is not running yet.

Source: Flink's ``AsyncSinkWriter``, ``BufferedRequestState``; FLIP-171, FLIP-242, FLIP-451.
"""

from __future__ import annotations

import functools
import numbers
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from headrace.state.open.names import BUFFERED_REQUESTS
from headrace.state.values.sharing import shown

from ..columns.records import Batch
from ..errors import ProgramError, SinkError, TypeMismatchError, UserFunctionError
from ..functions.checkpointed import refuse_halves
from ..functions.given import are_records
from ..functions.operator import Operator, OperatorContext, place_of
from ..functions.tracebacks import taken_last
from ..functions.user_function import UserFunction, raise_in_function
from ..operators.outside_calls import OutsideCalls
from .async_sinks import AsyncSink, AsyncSinkWriter

__all__ = ["AsyncSinkOperator"]

FIRST_PAUSE_MS = 10
"""After entries were turned away no request is begun for so long; twice that after each further time."""

MAX_PAUSE_MS = 1_000

WARN_AFTER = 10
"""After so many requests in a row of which nothing was accepted the job's history says so."""

MIN_STUCK_REQUESTS = 8
"""So many blocking requests at least may have timed out without returning before the subtask fails; else as many as
may be under way. Twice as many may time out one after the other without getting a thread at all.
"""

METHOD = "submit_request_entries"


class _Entry:
    """One entry in the buffer or under way."""

    __slots__ = ("nbytes", "since_ms", "value")

    def __init__(self, value: Any, nbytes: int, since_ms: int) -> None:
        self.value = value
        self.nbytes = nbytes
        # Since when it has been waiting for others.
        self.since_ms = since_ms


class _Request:
    """A request under way."""

    __slots__ = ("deadline_ms", "entries", "has_begun", "holds_thread", "number")

    def __init__(self, entries: list[_Entry], deadline_ms: int) -> None:
        self.entries = entries
        self.deadline_ms = deadline_ms
        # Of the work.
        self.number = 0
        # Whether a blocking call has begun, and whether it has not returned since; set where it runs.
        self.has_begun = self.holds_thread = False

    def blocking(self, call: Callable[[list[Any]], Any]) -> Any:
        """Make a call that blocks."""
        self.has_begun = self.holds_thread = True
        try:
            return call([entry.value for entry in self.entries])
        finally:
            self.holds_thread = False


class AsyncSinkOperator(Operator):
    """Sends records to a service in batches.

    Args:
        sink: Says how, and within which bounds.

    Raises:
        ProgramError: If its writer is none.
    """

    offloads = True

    def __init__(self, sink: AsyncSink) -> None:
        self.sink = sink
        _writer_of(sink)
        convert = sink.element_converter
        self._converter = None if convert is None else UserFunction(convert, "apply")
        # None before `open` has come to it: nothing is to be closed then.
        self._writer: UserFunction | None = None
        # Whether the writer has been opened; whether it has been asked to close, and has done so.
        self._is_open = self._is_closing = self._is_closed = False

    # ------------------------------------------------------------------------------------------------- life of the task
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # What waits, oldest first, and its bytes; requests under way, in the order they were begun.
        self._buffer: deque[_Entry] = deque()
        self._buffered_bytes = 0
        self._requests: dict[_Request, None] = {}
        # Blocking ones that were given up and may still hold their threads; and how many in a row never had one.
        self._given_up: list[_Request] = []
        self._num_never_begun = 0
        self._rates = self.sink.create_rate_limiting_strategy()
        self._has_input_ended = False
        # No request is begun before this time; requests in a row with entries turned away, and without one accepted.
        self._resume_ms = 0
        self._num_pauses = 0
        self._num_in_vain = 0
        # The alarm that is set: (time, number).
        self._alarm: tuple[int, int] | None = None
        context.metrics.gauge("num_requests_in_flight", lambda: len(self._requests))
        context.metrics.gauge("num_entries_buffered", lambda: len(self._buffer))
        writer = _writer_of(self.sink)
        self._size_of = writer.get_size_in_bytes
        self._writer = UserFunction(writer, METHOD)
        self._outside = OutsideCalls(self._writer)
        self._call = self._writer.bind()
        if self._converter is not None:
            self._converter.open(context)
        self._state = context.operator_state.union_list_state(BUFFERED_REQUESTS)
        restored = self._state.get()
        self._add([value for place, value in restored if self._is_mine(*place)])
        # Restored entries that must be accepted before the job starts.
        self._is_catching_up = self.sink.ordered and bool(self._buffer)
        runtime_context = self._writer.attach(context)
        if not self._outside.begin_if_there(context, "open", self._opened, runtime_context):
            self._opened(None, None)

    def _is_mine(self, subtask: int, parallelism: int) -> bool:
        """Whether this subtask goes on with what another, or itself, had not sent."""
        now = self.context.parallelism
        return self.context.subtask == (subtask if parallelism == now else subtask % now)

    def _opened(self, _result: Any, error: BaseException | None) -> None:
        if error is not None:
            self._outside.fail(self.context, error, "open")
        self._is_open = True
        self._go_on()

    @property
    def is_settled(self) -> bool:
        return self._is_open and not self._is_catching_up

    @property
    def is_blocked(self) -> bool:
        return len(self._buffer) >= self.sink.max_buffered_requests

    @property
    def has_pending(self) -> bool:
        return not self._is_closed

    def holds_records(self) -> bool:
        return False  # it emits none

    def end_input(self, input_index: int) -> None:
        self._has_input_ended = True
        self._go_on()

    def _closed(self, _result: Any, error: BaseException | None) -> None:
        if error is not None:
            self._outside.fail(self.context, error, "close")
        self._is_closed = True

    def close(self) -> None:
        """Give up what is under way and close the writer, without waiting for it."""
        try:
            if self._converter is not None:
                self._converter.close(self.context)
        finally:
            if self._writer is not None and not self._is_closing:
                self._is_closing = True
                numbers = [request.number for request in self._requests]
                for number in numbers if self._alarm is None else [*numbers, self._alarm[1]]:
                    self.context.cancel_offload(number)
                self._outside.begin_if_there(self.context, "close", None)

    # --------------------------------------------------------------------------------------------------------- entries
    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Make entries of records and begin requests."""
        rows = batch.rows
        if self._converter is not None:
            convert = self._converter.bind()
            pending = iter(rows)
            try:
                rows = [convert(row) for row in pending]
            except BaseException as error:
                raise_in_function(error, self._converter.name, self.context, record=rows[taken_last(rows, pending)])
        self._add(rows)
        self._go_on()

    def _add(self, values: Iterable[Any]) -> None:
        """Put entries at the end of the buffer."""
        now_ms, most = self.context.now_ms(), self.sink.max_record_size_in_bytes
        for value in values:
            nbytes: Any = None  # it is the user's, and may be anything
            try:
                nbytes = self._size_of(value)
            except BaseException as error:
                self._outside.fail(self.context, error, "get_size_in_bytes", value)
            if isinstance(nbytes, bool) or not isinstance(nbytes, numbers.Integral) or nbytes < 0:
                message = f"get_size_in_bytes must give a number of bytes, 0 or more; got {nbytes!r:.40}"
                raise TypeMismatchError(message, **self._place, record=shown(value))
            nbytes = int(nbytes)
            if nbytes > most:
                message = f"an entry has {nbytes} bytes, and max_record_size_in_bytes is {most}"
                raise SinkError(message, **self._place, record=shown(value))
            self._buffer.append(_Entry(value, nbytes, now_ms))
            self._buffered_bytes += nbytes

    # --------------------------------------------------------------------------------------------------------- requests
    def _go_on(self) -> None:
        """Begin the requests that may be begun, and see when something else is due."""
        now_ms = self.context.now_ms()
        while self._may_begin(now_ms):
            self._begin(now_ms)
        if not self._buffer and not self._requests:
            self._is_catching_up = False
            if self._has_input_ended and self._is_open and not self._is_closing:
                self._is_closing = True
                if not self._outside.begin_if_there(self.context, "close", self._closed):
                    self._is_closed = True
        self._set_alarm()

    def _may_begin(self, now_ms: int) -> bool:
        if not self._buffer or not self._is_open or now_ms < self._resume_ms:
            return False
        if len(self._requests) >= self.sink.max_in_flight_requests:
            return False
        return self._is_worth_it(now_ms) and not self._rates.should_block(min(self._limit, len(self._buffer)))

    def _is_worth_it(self, now_ms: int) -> bool:
        """Whether what waits is enough for a request, or has waited for long enough, or waits for nothing."""
        if len(self._buffer) >= self._limit or self._buffered_bytes >= self.sink.max_batch_size_in_bytes:
            return True
        return self._has_input_ended or self._is_catching_up or now_ms >= self._due_ms

    @property
    def _limit(self) -> int:
        """Most entries of the next request."""
        return min(self.sink.max_batch_size, self._rates.get_max_batch_size())

    @property
    def _due_ms(self) -> int:
        """When the oldest entry has waited for long enough."""
        return self._buffer[0].since_ms + self.sink.max_time_in_buffer_ms

    def _begin(self, now_ms: int) -> None:
        buffer, limit, most = self._buffer, self._limit, self.sink.max_batch_size_in_bytes
        entries: list[_Entry] = []
        nbytes = 0
        while buffer and len(entries) < limit and (not entries or nbytes + buffer[0].nbytes <= most):
            entries.append(buffer.popleft())
            nbytes += entries[-1].nbytes
        self._buffered_bytes -= nbytes
        request = _Request(entries, now_ms + self.sink.request_timeout_ms)
        self._requests[request] = None
        self._rates.register_in_flight_request(len(entries))
        if self._outside.kind == "blocking":
            work = functools.partial(request.blocking, self._call)
        else:
            work = functools.partial(self._call, [entry.value for entry in entries])
        request.number = self.context.offload(work, functools.partial(self._ended, request), self._outside.kind)

    def _ended(self, request: _Request, result: Any, error: BaseException | None) -> None:
        """Take the answer of the service."""
        self._num_never_begun = 0
        if error is not None:
            self._outside.fail(self.context, error, METHOD)
        try:
            failed = self._turned_away(request, result)
        except Exception as failure:
            self._outside.fail(self.context, failure, METHOD)
        self._request_ended(request, failed)
        self._go_on()

    def _request_ended(self, request: _Request, failed: list[_Entry]) -> None:
        """Put back what must be sent again."""
        del self._requests[request]
        num_sent, metrics = len(request.entries) - len(failed), self.context.metrics
        self._rates.register_completed_request(len(request.entries), len(failed))
        metrics.count("num_entries_sent", num_sent)
        self._num_in_vain = 0 if num_sent else self._num_in_vain + 1
        if not failed:
            self._num_pauses = 0
            return
        metrics.count("num_entries_retried", len(failed))
        self._buffer.extendleft(reversed(failed))
        self._buffered_bytes += sum(entry.nbytes for entry in failed)
        now_ms = self.context.now_ms()
        if now_ms >= self._resume_ms:  # requests that end during a pause make it no longer
            self._resume_ms = now_ms + min(FIRST_PAUSE_MS << min(self._num_pauses, 20), MAX_PAUSE_MS)
            self._num_pauses += 1
        if self._num_in_vain == WARN_AFTER:
            self.context.warn(f"the service has accepted nothing of {WARN_AFTER} requests in a row; it is asked again")

    def _turned_away(self, request: _Request, result: Any) -> list[_Entry]:
        """The entries that a call has given back, in their order.

        Raises:
            TypeMismatchError: If it gave something else.
        """
        if result is None:
            return []
        if not are_records(result):
            message = f"{METHOD} must give the entries that are to be sent again; got {type(result).__name__}"
            raise TypeMismatchError(message, hint="give a list, or nothing if all were accepted")
        given = list(result)
        wanted = Counter(id(value) for value in given)
        failed: list[_Entry] = []
        for position, entry in enumerate(request.entries):
            if wanted[id(entry.value)]:
                wanted[id(entry.value)] -= 1
                if self.sink.ordered:
                    failed = request.entries[position:]
                    wanted.subtract(id(entry.value) for entry in failed[1:])
                    break
                failed.append(entry)
        if any(count > 0 for count in wanted.values()):
            message = f"{METHOD} gave an entry that was not in its request"
            raise TypeMismatchError(message, hint="give the very objects that are to be sent again, and no copies")
        return failed

    # ------------------------------------------------------------------------------------------------------------- time
    def _set_alarm(self) -> None:
        """Have an alarm set for what is due first; one that is set already and rings sooner will do."""
        now_ms = self.context.now_ms()
        times = [request.deadline_ms for request in self._requests]
        if self._buffer and self._is_open:
            if self._resume_ms > now_ms:
                times.append(self._resume_ms)
            elif not self._is_worth_it(now_ms):
                times.append(self._due_ms)
            elif not self._requests:  # held back by a strategy that goes by something else than what is under way
                times.append(now_ms + FIRST_PAUSE_MS)
        if not times:
            return
        first_ms = min(times)
        if self._alarm is not None:
            if self._alarm[0] <= first_ms:
                return
            self.context.cancel_offload(self._alarm[1])
        self._alarm = (first_ms, self.context.call_later(max(first_ms - now_ms, 0), self._rung))

    def _rung(self) -> None:
        """Do what is due."""
        self._alarm = None
        now_ms = self.context.now_ms()
        for request in [request for request in self._requests if request.deadline_ms <= now_ms]:
            self.context.metrics.count("num_timeouts")
            self.context.cancel_offload(request.number)
            if self.sink.fail_on_timeout:
                message = f"no answer within {self.sink.request_timeout_ms} ms to a request of"
                message += f" {len(request.entries)} entries"
                raise UserFunctionError(message, **self._place, function=type(self.sink).__name__)
            self._request_ended(request, request.entries)
            self._count_stuck_call(request)
        self._go_on()

    def _count_stuck_call(self, request: _Request) -> None:
        """A request has timed out; a call that blocks keeps its thread until it returns, which may be never.

        The threads are those of the process: other subtasks, sinks and attempts may have them all.

        Raises:
            UserFunctionError: If there are as many such threads as the subtask may have, or none is left for it.
        """
        if self._outside.kind != "blocking":
            return
        self._given_up = [one for one in (*self._given_up, request) if one.holds_thread]
        self._num_never_begun = 0 if request.has_begun else self._num_never_begun + 1
        limit = max(self.sink.max_in_flight_requests, MIN_STUCK_REQUESTS)
        if len(self._given_up) >= limit:
            message = f"{limit} requests have timed out whose calls have not returned: each keeps a thread"
        elif len(self._given_up) + self._num_never_begun >= 2 * limit:
            message = (
                f"{self._num_never_begun} requests in a row have timed out before a thread of the process was free"
            )
            message += f", and {len(self._given_up)} more have not returned"
        else:
            return
        hint = "give the client of the service a timeout below request_timeout_ms, or use a coroutine function"
        raise UserFunctionError(message, hint=hint, **self._place, function=f"{type(self.sink).__name__}.{METHOD}")

    # -------------------------------------------------------------------------------------------------------- snapshots
    def snapshot_state(self, checkpoint_id: int) -> None:
        """Keep all that is not known to be accepted, oldest first."""
        place = (self.context.subtask, self.context.parallelism)
        under_way = [(place, entry.value) for request in self._requests for entry in request.entries]
        self._state.update(under_way + [(place, entry.value) for entry in self._buffer])

    @property
    def _place(self) -> dict[str, Any]:
        context = self.context
        return place_of(context.name, context.subtask, context.parallelism)


def _writer_of(sink: AsyncSink) -> AsyncSinkWriter:
    writer: Any = sink.create_writer()
    if isinstance(writer, AsyncSinkWriter):
        refuse_halves(writer, sink=type(sink).__name__)
        return writer
    message = f"create_writer of an AsyncSink must give an AsyncSinkWriter; got {writer!r}"
    raise ProgramError(message, sink=type(sink).__name__)
