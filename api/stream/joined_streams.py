"""Joins of two streams: by window, by nearness in event time, and with the version valid at a time.

Each kind is a chain of small steps that ends where the function is given; only then there is an operator.

Source: Flink's ``JoinedStreams``, ``CoGroupedStreams``, ``KeyedStream.IntervalJoin``; the temporal join of DataStreams
is Headrace's own form of SQL's ``FOR SYSTEM_TIME AS OF``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, overload

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.functions.cofunctions import FlatJoinFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag, Tagged
from headrace.engine.joins.interval import IntervalJoinOperator
from headrace.engine.joins.temporal import TemporalJoinOperator
from headrace.engine.joins.window import CoGroupWindowFunction, JoinWindowFunction, WindowCoGroupOperator
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.windows.assigners import WindowAssigner
from headrace.state.type_variables import T1, T2

from ..arguments.checks import described, key_selector_of, require_instance, tag_id_of
from ..arguments.data_types import TypeInformation, infer_output_type
from ..arguments.function_shapes import CoGroupOf, JoinOf, KeyOf, ProcessesPairs
from .data_stream import DataStream
from .keyed_stream import KeyedStream

__all__ = [
    "CoGroupedStreams",
    "EqualTo",
    "IntervalJoin",
    "IntervalJoined",
    "JoinedStreams",
    "TemporalJoin",
    "Where",
    "WindowedCoGroup",
    "WindowedJoin",
]

_Windowed = TypeVar("_Windowed", bound="_WindowedPair[Any, Any]")
_New = TypeVar("_New")


# ----------------------------------------------------------------------------------------------------- joins in windows


class _WindowedPair(Generic[T1, T2]):
    """Two keyed streams and their common windows."""

    def __init__(self, first: KeyedStream[T1], second: KeyedStream[T2], assigner: WindowAssigner) -> None:
        self._first = first
        self._second = second
        self._assigner = assigner
        # What is set of trigger, evictor and lateness; the operator knows the defaults.
        self._options: dict[str, Any] = {}

    def trigger(self: _Windowed, trigger: Any) -> _Windowed:
        """Fire windows when the trigger says so, instead of at their end; it sees pairs of (0 or 1, record)."""
        self._options["trigger"] = trigger
        return self

    def evictor(self: _Windowed, evictor: Any) -> _Windowed:
        """Take records out of a window before or after it fires; the evictor sees pairs of (0 or 1, record)."""
        self._options["evictor"] = evictor
        return self

    def allowed_lateness(self: _Windowed, lateness: Any) -> _Windowed:
        """Take records up to this long behind the end of their window, which then fires again, with all its records.

        Args:
            lateness: Milliseconds, or a text such as "5 s".
        """
        lateness_ms = parse_duration_ms(lateness)
        if lateness_ms < 0:
            message = f"allowed lateness must be at least 0 ms; got {lateness!r}"
            raise ConfigurationError(message)
        self._options["allowed_lateness_ms"] = lateness_ms
        return self

    def _transform(
        self, name: str, func: Any, window_function: Any, output_type: Any, hinted: TypeInformation | None
    ) -> DataStream[Any]:
        first, second = self._first, self._second
        operator = WindowCoGroupOperator(
            first.key_selector, second.key_selector, self._assigner, window_function, **self._options
        )
        description = f"{described(name, func)} in {self._assigner!r}"
        return first.transform(name, operator, output_type, description, hinted, others=(second,))


class WindowedJoin(_WindowedPair[T1, T2]):
    """A window join, to be given a function."""

    @overload
    def apply(self, function: FlatJoinFunction[T1, T2, _New], output_type: Any = None) -> DataStream[_New]: ...

    @overload
    def apply(self, function: JoinOf[T1, T2, _New], output_type: Any = None) -> DataStream[_New]: ...

    def apply(self, function: Any, output_type: Any = None) -> DataStream[Any]:
        """Call a function for each pair of records of a key and window.

        Args:
            function: A JoinFunction or callable of both records that gives one record, or a FlatJoinFunction that gives
                any number.
            output_type: The results' type: checked, and columns are made of them.
        """
        hinted = infer_output_type(function, "join", many=isinstance(function, FlatJoinFunction))
        return self._transform("join", function, JoinWindowFunction(function), output_type, hinted)


class WindowedCoGroup(_WindowedPair[T1, T2]):
    """A co-group, to be given a function."""

    def apply(self, function: CoGroupOf[T1, T2, _New], output_type: Any = None) -> DataStream[_New]:
        """Call a function with all records of a key and window.

        Args:
            function: A CoGroupFunction, or callable of two lists of records that yields or returns an iterable.
            output_type: The results' type: checked, and columns are made of them.
        """
        hinted = infer_output_type(function, "co_group", many=True)
        return self._transform("co_group", function, CoGroupWindowFunction(function), output_type, hinted)


_Pair = TypeVar("_Pair", bound=_WindowedPair[Any, Any])


class EqualTo(Generic[_Pair]):
    """Both streams with their keys, to be given windows."""

    def __init__(self, first: KeyedStream[Any], second: KeyedStream[Any], kind: type[_Pair]) -> None:
        self._first = first
        self._second = second
        self._kind = kind

    def window(self, assigner: WindowAssigner) -> _Pair:
        """Pair records of one window."""
        require_instance("window takes an assigner such as TumblingEventTimeWindows", WindowAssigner, assigner)
        return self._kind(self._first, self._second, assigner)


class Where(Generic[_Pair, T2]):
    """Both streams and the first one's key."""

    def __init__(self, first: DataStream, keys: KeySelector, second: DataStream[T2], kind: type[_Pair]) -> None:
        self._first = first
        self._keys = keys
        self._second = second
        self._kind = kind

    def equal_to(self, *key: KeyOf[T2]) -> EqualTo[_Pair]:
        """Give the second stream's key, as in ``key_by``; its values must be of the first key's type."""
        second = KeyedStream(self._second, key_selector_of("equal_to", key))
        return EqualTo(KeyedStream(self._first, self._keys), second, self._kind)


class JoinedStreams(Generic[T1, T2]):
    """Two streams to be joined by key and window. Made by ``join``."""

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def where(self, *key: KeyOf[T1]) -> Where[WindowedJoin[T1, T2], T2]:
        """Give the first stream's key, as in ``key_by``."""
        return Where(self._first, key_selector_of("where", key), self._second, WindowedJoin)


class CoGroupedStreams(Generic[T1, T2]):
    """Two streams to be grouped by key and window. Made by ``co_group``."""

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def where(self, *key: KeyOf[T1]) -> Where[WindowedCoGroup[T1, T2], T2]:
        """Give the first stream's key, as in ``key_by``."""
        return Where(self._first, key_selector_of("where", key), self._second, WindowedCoGroup)


# -------------------------------------------------------------------------------------------------- joins in event time


class IntervalJoin(Generic[T1, T2]):
    """Two keyed streams to be joined by nearness in event time. Made by ``interval_join``."""

    def __init__(self, left: KeyedStream[T1], right: KeyedStream[T2]) -> None:
        self._left = left
        self._right = right

    def between(self, lower_bound: Any, upper_bound: Any) -> IntervalJoined[T1, T2]:
        """Pair a left record at time ``t`` with right records from ``t + lower_bound`` to ``t + upper_bound``.

        Args:
            lower_bound: Milliseconds, or a text such as "-5 s"; may be negative.
            upper_bound: Likewise; both bounds are inclusive.

        Raises:
            ProgramError: If the lower bound is above the upper bound.
        """
        lower_ms, upper_ms = parse_duration_ms(lower_bound), parse_duration_ms(upper_bound)
        if lower_ms > upper_ms:
            message = (
                f"an interval's lower bound must not be above its upper bound; got {lower_bound!r}, {upper_bound!r}"
            )
            raise ProgramError(message)
        return IntervalJoined(self._left, self._right, lower_ms, upper_ms)


class IntervalJoined(Generic[T1, T2]):
    """An interval join with its bounds, to be given a function."""

    def __init__(self, left: KeyedStream[T1], right: KeyedStream[T2], lower_ms: int, upper_ms: int) -> None:
        self._left = left
        self._right = right
        self._bounds_ms = (lower_ms, upper_ms)
        self._is_lower_exclusive = False
        self._is_upper_exclusive = False
        # Where late records of each side go; None drops and counts them.
        self._left_late_tag: str | None = None
        self._right_late_tag: str | None = None

    def lower_bound_exclusive(self) -> IntervalJoined[T1, T2]:
        """Leave out right records exactly at the lower bound."""
        self._is_lower_exclusive = True
        return self

    def upper_bound_exclusive(self) -> IntervalJoined[T1, T2]:
        """Leave out right records exactly at the upper bound."""
        self._is_upper_exclusive = True
        return self

    def side_output_left_late_data(self, output_tag: OutputTag[T1] | str) -> IntervalJoined[T1, T2]:
        """Send left records behind the watermark to a side output instead of dropping them."""
        self._left_late_tag = tag_id_of(output_tag)
        return self

    def side_output_right_late_data(self, output_tag: OutputTag[T2] | str) -> IntervalJoined[T1, T2]:
        """Send right records behind the watermark to a side output instead of dropping them."""
        self._right_late_tag = tag_id_of(output_tag)
        return self

    def process(
        self,
        process_join_function: Callable[[T1, T2, Any], Iterable[_New | Tagged] | None] | ProcessesPairs[T1, T2, _New],
        output_type: Any = None,
    ) -> DataStream[_New]:
        """Call a function for each pair; what it gives has the later of the pair's event times.

        Args:
            process_join_function: A ProcessJoinFunction, or callable of left record, right record and context that
                yields or returns an iterable.
            output_type: The results' type: checked, and columns are made of them.

        Raises:
            ProgramError: If the bounds, being exclusive, leave nothing.
        """
        lower_ms, upper_ms = self._bounds_ms
        operator = IntervalJoinOperator(
            self._left.key_selector,
            self._right.key_selector,
            lower_ms + self._is_lower_exclusive,
            upper_ms - self._is_upper_exclusive,
            process_join_function,
            left_late_tag=self._left_late_tag,
            right_late_tag=self._right_late_tag,
        )
        hinted = infer_output_type(process_join_function, "process_element", many=True)
        brackets = ("(" if self._is_lower_exclusive else "[", ")" if self._is_upper_exclusive else "]")
        description = f"{described('interval join', process_join_function)}"
        description += f" in {brackets[0]}{lower_ms} ms, {upper_ms} ms{brackets[1]}"
        return self._left.transform("interval join", operator, output_type, description, hinted, others=(self._right,))


class TemporalJoin(Generic[T1, T2]):
    """A stream and the versions it is to be joined with (or None). Made by ``temporal_join``."""

    def __init__(self, left: KeyedStream[T1], versions: KeyedStream[Any], how: str) -> None:
        if how not in ("inner", "left"):
            message = f"a temporal join is 'inner' or 'left'; got {how!r}"
            raise ProgramError(message)
        self._left = left
        self._versions = versions
        self._how = how
        # Where late left records go; None drops and counts them.
        self._late_tag: str | None = None

    def side_output_late_data(self, output_tag: OutputTag[T1] | str) -> TemporalJoin[T1, T2]:
        """Send records whose event time the watermark had passed when they came to a side output, not dropping them.

        What was valid at their time may have been forgotten. Late versions are not lost: they are valid for what is
        still to come, unless a later one already is.
        """
        self._late_tag = tag_id_of(output_tag)
        return self

    @overload
    def apply(self, function: FlatJoinFunction[T1, T2, _New], output_type: Any = None) -> DataStream[_New]: ...

    @overload
    def apply(self, function: JoinOf[T1, T2, _New], output_type: Any = None) -> DataStream[_New]: ...

    def apply(self, function: Any, output_type: Any = None) -> DataStream[Any]:
        """Call a function with each record and its version.

        Args:
            function: A JoinFunction or callable of record and version (None if there is none and the join is ``left``)
                that gives one record, or a FlatJoinFunction that gives any number.
            output_type: The results' type: checked, and columns are made of them.
        """
        operator = TemporalJoinOperator(
            self._left.key_selector,
            self._versions.key_selector,
            function,
            is_outer=self._how == "left",
            late_tag=self._late_tag,
        )
        hinted = infer_output_type(function, "join", many=isinstance(function, FlatJoinFunction))
        description = f"{described(f'{self._how} temporal join', function)}"
        return self._left.transform(
            "temporal join", operator, output_type, description, hinted, others=(self._versions,)
        )
