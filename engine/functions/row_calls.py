"""A user function that is open, and the loops that call it with one record after another.

Operators of streams and nodes of data sets work through their batches with the same loops. The engine adds no object
per record. A failure is wrapped around a whole loop, so it costs nothing as long as all goes well; it shows the record
that the function was called with, which is the one that the loop took last. What emits the results is never inside of a
loop: a failure further down is not blamed on this function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import islice
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.kinds import NO_KEY

from ..columns.records import MAX_BATCH_ROWS, MIN_TIMESTAMP, Batch, Timestamps
from .given import CONTAINERS, record_batches_of, records_of
from .isolation import Given
from .runtime_context import FunctionPlace
from .tracebacks import EventTime, note_in_hand, taken_last
from .user_function import raise_in_function

__all__ = ["EachRecord", "ProcessingContext", "RowCalls", "Runs"]

_MISSING: Any = object()

EachRecord = Callable[[Iterator[Any]], Iterable[Any]]
"""Yields the same records, each under its key as long as it is the newest one."""

Runs = Iterator[tuple[list[Any], list[int]]]
"""What a function gives for the records of a batch, in runs that are about as long as a batch may be: what it gave, and
for each record in turn how many they were after it.
"""


_Times = Sequence[int | None] | Timestamps | None


class ProcessingContext(Protocol):
    """What a function may know of the record that it is called with."""

    time: int | None
    """The record's event time."""


class RowCalls:
    """The calls of one open function.

    Args:
        call: What to call.
        name: The function's name, for errors.
        place: Where it is called.
        own: Makes what the function gives the caller's own; None if it is that as it is.
        is_single: Whether the function gives one record, not an iterable of them.
        is_watched: Whether to look for records that the function changes after it has given them.
    """

    __slots__ = ("_given", "_own", "_place", "call", "name")

    def __init__(
        self,
        call: Callable[..., Any],
        name: str,
        place: FunctionPlace,
        *,
        own: Callable[[Any], Any] | None = None,
        is_single: bool = False,
        is_watched: bool = False,
    ) -> None:
        self.name = name
        self._place = place
        self._own = own
        self._given = Given(call, f"function {name}", is_single=is_single) if is_watched else None
        self.call = self._given or call

    def fail(self, error: BaseException, **about: Any) -> NoReturn:
        """Raise what the function raised, with its place.

        Args:
            error: What it raised.
            **about: What it was called with: shown, shortened.

        Raises:
            UserFunctionError: For everything but Headrace's own errors.
        """
        raise_in_function(error, self.name, self._place, **about)

    def _fail_at_last(
        self, error: BaseException, rows: Sequence[Any], pending: Iterator[Any], times: _Times = None
    ) -> NoReturn:
        """Raise what the function raised for the record that a list's iterator gave last, with what is known of it."""
        index = taken_last(rows, pending)
        about: dict[str, Any] = {"record": rows[index] if rows else None}
        key = getattr(getattr(self._place, "keyed_state", None), "current_key", NO_KEY)
        if key is not NO_KEY:
            about["key"] = key
        time = times[index] if times is not None and index < len(times) else None
        if time is not None and time > MIN_TIMESTAMP:
            about["event_time"] = EventTime(int(time))
        self.fail(error, **about)

    def map(self, rows: list[Any], each: EachRecord = iter, times: _Times = None) -> list[Any]:
        """Return what the function gives for each record; ``times`` are their event times, for errors."""
        call, own, pending = self.call, self._own, iter(rows)
        try:
            made = [call(row) for row in each(pending)] if own is None else [own(call(row)) for row in each(pending)]
        except BaseException as error:
            self._fail_at_last(error, rows, pending, times)
        self._have_gone()
        return made

    def flat_map(self, rows: list[Any], each: EachRecord = iter, times: _Times = None) -> Runs:
        """Yield what the function gives for each record; ``times`` are their event times, for errors."""
        call, own, containers, limit, pending = self.call, self._own, CONTAINERS, MAX_BATCH_ROWS, iter(rows)
        records = iter(each(pending))
        more = True
        while more:
            made: list[Any] = []
            ends: list[int] = []
            extend, mark = made.extend, ends.append
            more = False
            try:
                for row in records:
                    given = call(row)
                    if type(given) not in containers:
                        given = records_of(given)
                    extend(given if own is None else map(own, given))
                    num_rows = len(made)
                    mark(num_rows)
                    if num_rows >= limit:
                        more = True
                        break
            except BaseException as error:
                self._fail_at_last(error, rows, pending, times)
            self._have_gone()
            yield made, ends

    def process(
        self,
        rows: list[Any],
        times: list[int | None],
        context: ProcessingContext,
        keys: Iterable[Any],
        backend: KeyedStateBackend,
    ) -> Runs:
        """Yield what the function gives for each record and what it may know of it: its event time and key.

        This is the loop of `flat_map` again: a generator that sets time and key would be one more call for each record.

        Args:
            rows: The records.
            times: Their event times.
            context: What the function is given beside the record.
            keys: The records' keys; `NO_KEY` for all of them where there are none.
            backend: Has the state of these keys.
        """
        call, own, containers, limit, pending = self.call, self._own, CONTAINERS, MAX_BATCH_ROWS, iter(rows)
        records = zip(keys, pending, times, strict=True)
        more = True
        while more:
            made: list[Any] = []
            ends: list[int] = []
            extend, mark = made.extend, ends.append
            num_rows, more = 0, False
            try:
                for key, row, time in records:
                    backend.current_key = key
                    context.time = time
                    given = call(row, context)
                    if given is not None:
                        if type(given) not in containers:
                            given = records_of(given)
                        extend(given if own is None else map(own, given))
                        num_rows = len(made)
                    mark(num_rows)
                    if num_rows >= limit:
                        more = True
                        break
            except BaseException as error:
                self._fail_at_last(error, rows, pending, times)
            finally:
                backend.current_key = NO_KEY
            self._have_gone()
            yield made, ends

    def filter(self, rows: list[Any], each: EachRecord = iter, times: _Times = None) -> npt.NDArray[np.bool_]:
        """Return for which records the function is true; ``times`` are their event times, for errors."""
        call, pending = self.call, iter(rows)
        try:
            rejected = bytes([not call(row) for row in each(pending)])
        except BaseException as error:
            self._fail_at_last(error, rows, pending, times)
        return ~np.frombuffer(rejected, np.bool_)

    def reduce(
        self, values: MutableMapping[Any, Any], keys: Iterable[Any], rows: list[Any], times: _Times = None
    ) -> list[Any]:
        """Reduce each record into the value of its key; a key's first record is its first value.

        Args:
            values: The values by key; changed in place.
            keys: The records' keys.
            rows: The records.
            times: Their event times, for errors.

        Returns:
            For each record its key's new value.
        """
        call, own, get, missing, pending = self.call, self._own, values.get, _MISSING, iter(rows)
        made: list[Any] = []
        append = made.append
        key: Any = NO_KEY
        try:
            for key, row in zip(keys, pending, strict=True):
                value = get(key, missing)
                value = row if value is missing else call(value, row)
                values[key] = value
                append(value if own is None else own(value))
        except BaseException as error:
            note_in_hand(error, key=key)
            self._fail_at_last(error, rows, pending, times)
        return made

    def map_batch(self, columns: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return what a function of batches gives for one."""
        try:
            return record_batches_of(self.call(columns))
        except BaseException as error:
            self.fail(error, rows=columns.num_rows)

    def produced(self, given: Any, **about: Any) -> Iterator[Batch]:
        """Yield what the function gave, an iterable of records or None, in batches; it may still raise on the way."""
        try:
            records = iter(records_of(given))
        except BaseException as error:
            self.fail(error, **about)
        while True:
            try:
                rows = list(islice(records, MAX_BATCH_ROWS))
            except BaseException as error:
                self.fail(error, **about)
            if not rows:
                return
            yield Batch.of_rows(rows)

    def _have_gone(self) -> None:
        if self._given is not None:
            self._given.gone()
