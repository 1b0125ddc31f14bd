"""The window operator: puts records in windows, fires windows when it is time, forgets them when they cannot be needed.

There are two ways to do that, with equal answers. For built-in windows without a trigger or evictor of their own whole
batches and whole windows are handled at once (`headrace.engine.windows.placement`); everything else goes record by
record (`headrace.engine.windows.general`). Which one it is follows from the arguments alone.

Event time, as in Flink: a window fires when the watermark reaches its last millisecond, and its results carry that
time. It is kept for the allowed lateness; a record that comes then makes its key's window fire again at once. A record
all of whose windows are gone is late: it goes to the side output if there is one, else it is dropped and counted in
``num_late_records_dropped``. A session may still take in a record whose own window is gone, if it touches. At the end
of a bounded input the watermark closes every event-time window; processing-time windows that are open then, and count
windows that are not full, give nothing.

The operator's watermark is part of its snapshot: what was late stays late after a restore, and a window that has fired
does not fire again.

Results of count windows carry the time of the record that filled the window; Flink gives them the end of time, which no
later window could use.

Source: Flink's ``WindowOperator``, ``WindowOperatorBuilder``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.state.keyed.kinds import NO_KEY

from ..columns.records import MAX_TIMESTAMP, MAX_WATERMARK, MIN_TIMESTAMP, Batch, Watermark
from ..errors import ConfigurationError, ProgramError
from ..functions.contract import AggregateFunction
from ..functions.keys import KeySelector
from ..functions.life import refuse_life
from ..functions.operator import Operator, OperatorContext
from ..functions.side_outputs import OutputTag
from ..functions.tracebacks import note_event_time
from ..functions.user_function import UserFunction, keys_of, raise_in_function
from ..operators.event_time import OperatorWatermark
from .assigners import CountWindows, MergingWindowAssigner, SlidingWindows, WindowAssigner
from .contents import (
    AggregatedContents,
    CombinedContents,
    ElementContents,
    ReducedContents,
    WindowContents,
    WindowResults,
)
from .evictors import CountEvictor, Evictor
from .general import GeneralWindows
from .placement import Placement, has_fast_path, make_placement
from .triggers import Trigger

__all__ = ["WindowOperator", "checked_aggregate", "checked_trigger"]


class WindowOperator(Operator):
    """Windows over a keyed stream.

    Exactly one of these says what a window holds: ``reduce``, ``aggregate``, or ``process`` alone (the records). With
    ``reduce`` or ``aggregate`` a ``process`` is given the one result as its only element.

    Args:
        key_selector: Finds keys.
        assigner: Finds windows.
        trigger: Says when windows fire; None for the assigner's default.
        evictor: Takes records out of windows; then windows keep all their records.
        reduce: ReduceFunction or callable of two records; without ``process`` the reduced record is the result.
        aggregate: AggregateFunction; without ``process`` its result is the result.
        process: ProcessWindowFunction, WindowFunction or callable of (key, context, elements).
        result_row: Makes the result record of (key, window, result), for use without ``process``. Picklable.
        allowed_lateness_ms: How long after its end an event-time window is kept.
        late_tag: Side output for late records.
        is_combined: Whether it is given pairs of key and content, by `headrace.engine.windows.combining`.

    Raises:
        ProgramError: If the functions do not fit together, or trigger or aggregate cannot merge where windows do.
        ConfigurationError: If ``allowed_lateness_ms`` is negative.
    """

    keyed = True
    fires_by_clock = True

    def __init__(
        self,
        key_selector: KeySelector,
        assigner: WindowAssigner,
        *,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        reduce: Any = None,
        aggregate: Any = None,
        process: Any = None,
        result_row: Callable[[Any, Any, Any], Any] | None = None,
        allowed_lateness_ms: int = 0,
        late_tag: OutputTag | str | None = None,
        is_combined: bool = False,
    ) -> None:
        if (reduce is not None and aggregate is not None) or (reduce is None and aggregate is None and process is None):
            message = "a window needs a reduce function, an aggregate function or a process function"
            raise ProgramError(message)
        if result_row is not None and process is not None:
            message = "a window function makes its own records; result_row has no place beside it"
            raise ProgramError(message)
        if allowed_lateness_ms < 0:
            message = f"allowed lateness must not be negative; got {allowed_lateness_ms} ms"
            raise ConfigurationError(message)
        self._key_selector = key_selector
        self._assigner = assigner
        self._evictor = evictor
        # None where windows are handled by the fast path.
        self._trigger: Trigger | None = None
        if trigger is not None or evictor is not None or not has_fast_path(assigner):
            self._trigger = checked_trigger(trigger, assigner)
            if evictor is None and isinstance(assigner, CountWindows) and assigner.size != assigner.slide:
                self._evictor = CountEvictor(assigner.size)
        for other, what in ((assigner, "a window assigner"), (trigger, "a trigger"), (evictor, "an evictor")):
            refuse_life(other, what, "state of a window is kept by its trigger's get_partitioned_state")
        merges = isinstance(assigner, MergingWindowAssigner)
        self._reduce = None if reduce is None else UserFunction(reduce, "reduce")
        self._aggregate = None
        if aggregate is not None:
            self._aggregate = checked_aggregate(aggregate, needs_merge=merges and evictor is None)
        self._process = None if process is None else UserFunction(process, "process", "apply")
        self._result_row = result_row
        self._is_combined = is_combined
        self._merges = merges
        self._lateness_ms = allowed_lateness_ms if assigner.is_event_time() else 0
        self._late_tag = late_tag.tag_id if isinstance(late_tag, OutputTag) else late_tag
        self._functions = [function for function in (self._reduce, self._aggregate, self._process) if function]
        parts = [function.name for function in self._functions]
        if self._trigger is not None:
            others = (assigner, self._trigger, self._evictor)
            parts += [type(other).__name__ for other in others if other is not None]
        self._name = " with ".join(parts)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        for function in self._functions:
            function.open(context, keyed=True)
        self._watermark = watermark = OperatorWatermark.of(context)
        contents: WindowContents
        if self._reduce is not None:
            contents = ReducedContents(self._reduce)
        elif self._aggregate is not None:
            contents = AggregatedContents(self._aggregate.function)
        else:
            contents = ElementContents()
        if self._is_combined:
            assert isinstance(self._assigner, SlidingWindows)  # tumbling ones are
            contents = CombinedContents(contents, overlap=self._assigner.slide_ms < self._assigner.size_ms)
        self._results = results = WindowResults(
            contents, self._process, self._result_row, context, lambda: watermark.current_ms, self._merges
        )
        self._windows: Placement
        if self._trigger is None:
            self._windows = make_placement(self._assigner, contents, results, context.keyed_state, self._lateness_ms)
        else:
            self._windows = GeneralWindows(
                self._assigner,
                self._trigger,
                self._evictor,
                contents,
                results,
                context,
                watermark,
                self._lateness_ms,
            )

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return (self._key_selector,)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        context, times = self.context, batch.timestamps
        watermark_ms = MIN_TIMESTAMP
        if self._assigner.is_event_time():
            watermark_ms = self._watermark.current_ms
            if times is None or int(times.min()) == MIN_TIMESTAMP:
                message = "an event-time window got a record without event time"
                raise ProgramError(
                    message, hint="Call assign_timestamps_and_watermarks, or use processing-time windows."
                )
        elif self._windows.goes_by_clock:
            times = np.full(batch.num_rows, context.now_ms(), dtype=np.int64)
        keys = keys_of(self._key_selector, batch, context)
        try:
            late = self._windows.add(keys, batch.rows, times, watermark_ms)
        except BaseException as error:
            note_event_time(error, batch.rows, batch.timestamps)
            raise_in_function(error, self._name, context)
        finally:
            self._leave_key()
        self._results.emit(context.output)
        if late:
            self._on_late_records(batch, late)

    def _on_late_records(self, batch: Batch, late: list[int]) -> None:
        """Count the late records of a batch as dropped, or send them to the side output for late data."""
        rows = batch.rows
        number = CombinedContents.num_records(rows[i] for i in late) if self._is_combined else len(late)
        self.context.reject_late(number, lambda: batch.take(np.array(late, dtype=np.intp)), self._late_tag)

    def process_watermark(self, watermark: Watermark) -> None:
        if self._watermark.advance(watermark.timestamp_ms):
            self._fire(self._windows.fire_event_time, watermark.timestamp_ms)
            if self.context.is_batch and watermark == MAX_WATERMARK:
                self._windows.end_clock()
                self._fire(self._windows.fire_clock, MAX_TIMESTAMP)
            self.context.output.emit_watermark(watermark)

    def next_event_time(self) -> int | None:
        return self._windows.next_event_time()

    def next_processing_time(self) -> int | None:
        return self._windows.next_clock_time()

    def on_processing_time(self, now_ms: int) -> None:
        self._fire(self._windows.fire_clock, now_ms)

    def _fire(self, fire_some: Callable[[int], bool], time_ms: int) -> None:
        """Fire what is due, with results emitted in between so that batches keep a bounded size."""
        results, output = self._results, self.context.output
        more = True
        while more:
            try:
                more = fire_some(time_ms)
            except BaseException as error:
                raise_in_function(error, self._name, self.context)
            finally:
                self._leave_key()
            if results.is_full or not more:
                results.emit(output)

    def _leave_key(self) -> None:
        """Outside of calls no handle of a function may reach any state."""
        state = self.context.keyed_state
        state.current_key = NO_KEY
        state.current_namespace = None

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._watermark.snapshot()

    def close(self) -> None:
        for function in self._functions:
            function.close(self.context)


def checked_trigger(trigger: Any, assigner: WindowAssigner, environment: Any = None) -> Trigger:
    """Return the trigger that windows of an assigner have.

    Args:
        trigger: What the program has chosen; None for the assigner's default.
        assigner: The assigner.
        environment: What the assigner's ``get_default_trigger`` is asked with, if it wants an argument.

    Raises:
        ProgramError: If it is no trigger, or windows merge and the trigger cannot.
    """
    if trigger is None:
        default = assigner.get_default_trigger
        trigger = default(environment) if inspect.signature(default).parameters else default()  # Flink 2 gives none
    if not isinstance(trigger, Trigger):
        message = f"a trigger must be a Trigger object; got {trigger!r}"
        raise ProgramError(message)
    if isinstance(assigner, MergingWindowAssigner) and not trigger.can_merge():
        message = f"windows of {assigner!r} merge, and trigger {trigger!r} cannot be merged"
        raise ProgramError(
            message, hint="Give the trigger can_merge() and on_merge(), or use windows that do not merge."
        )
    return trigger


def checked_aggregate(aggregate: Any, *, needs_merge: bool) -> UserFunction:
    """Return an aggregate function as operators take it.

    Raises:
        ProgramError: If it lacks a method that is needed.
    """
    function = UserFunction(aggregate, "add")
    missing = [name for name in ("create_accumulator", "add", "get_result") if not hasattr(aggregate, name)]
    if needs_merge and getattr(type(aggregate), "merge", None) in (None, AggregateFunction.merge):
        missing.append("merge")
    if missing:
        message = f"aggregate function {function.name} lacks {', '.join(missing)}"
        raise ProgramError(
            message,
            hint="Sessions, and records that are combined before the shuffle, merge accumulators."
            if "merge" in missing
            else None,
        )
    return function
