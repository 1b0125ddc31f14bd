"""Requests to outside systems: ``AsyncDataStream`` by PyFlink's names, and what `DataStream.map_async` and
`DataStream.lookup` stand for.

Source: PyFlink's ``AsyncDataStream``; FLIP-12, FLIP-221, FLIP-232.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.functions.async_functions import AsyncRetryStrategy
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.lookups.enrichment import LookupCache, LookupOperator, RowJoin
from headrace.engine.operators.async_operator import AsyncWaitOperator

from ..arguments.checks import described, key_selector_of, require_instance, whole
from ..arguments.data_types import infer_output_type
from ..arguments.function_shapes import AsksOutside
from .data_stream import DataStream

__all__ = ["AsyncDataStream", "lookup_on", "map_async_on"]

_Record = TypeVar("_Record")
_New = TypeVar("_New")

_Asking: TypeAlias = (
    Callable[[_Record], Awaitable[Iterable[_New] | None] | Iterable[_New] | None] | AsksOutside[_Record, _New]
)
"""A function of a record that gives a list of records, maybe later."""


class AsyncDataStream:
    """Runs a function that asks an outside system on a stream, with many requests under way at once.

    ``async_function`` is an AsyncFunction, or a callable of a record that gives a list of records; a coroutine
    function runs on one event loop, any other in threads. ``timeout`` covers all attempts at a record: milliseconds or
    a text such as ``"30 s"``, 0 for ever; without a result in time the function's ``timeout`` is asked, or the job
    fails. ``capacity`` bounds the records under way in each subtask; beyond it the stream waits.
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream[_Record],
        async_function: _Asking[_Record, _New],
        timeout: Any,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream[_New]:
        """Emit results as they come; none overtakes a watermark."""
        return _applied(data_stream, async_function, timeout, None, capacity, output_type, ordered=False)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream[_Record],
        async_function: _Asking[_Record, _New],
        timeout: Any,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream[_New]:
        """As `unordered_wait`; what fails, or gives too little, is tried again as the strategy says."""
        return _applied(
            data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, ordered=False
        )

    @staticmethod
    def ordered_wait(
        data_stream: DataStream[_Record],
        async_function: _Asking[_Record, _New],
        timeout: Any,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream[_New]:
        """Emit results in the order of the records."""
        return _applied(data_stream, async_function, timeout, None, capacity, output_type, ordered=True)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream[_Record],
        async_function: _Asking[_Record, _New],
        timeout: Any,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream[_New]:
        """As `ordered_wait`; what fails, or gives too little, is tried again as the strategy says."""
        return _applied(data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, ordered=True)


def _applied(
    stream: DataStream[Any],
    function: Any,
    timeout: Any,
    retry: AsyncRetryStrategy | None,
    capacity: int,
    output_type: Any,
    *,
    ordered: bool,
) -> DataStream[Any]:
    require_instance("the first argument must be a stream", DataStream, stream)
    operator = AsyncWaitOperator(function, ordered=ordered, **_limits(capacity, timeout, retry))
    name = "ordered_wait" if ordered else "unordered_wait"
    hinted = infer_output_type(function, "async_invoke", many=True)
    return stream.transform(name, operator, output_type, described(name, function), hinted)


def map_async_on(
    stream: DataStream[Any],
    function: Any,
    capacity: int,
    timeout: Any,
    retry: AsyncRetryStrategy | None,
    output_type: Any,
    *,
    ordered: bool,
) -> DataStream[Any]:
    """See `DataStream.map_async`."""
    limits = _limits(capacity, timeout, retry)
    operator = AsyncWaitOperator(function, ordered=ordered, is_single=True, **limits)
    is_object = operator.function.method is not None
    hinted = infer_output_type(function, "async_invoke", many=is_object)
    return stream.transform("map_async", operator, output_type, described("map_async", function), hinted)


def lookup_on(
    stream: DataStream[Any],
    function: Any,
    key: Any,
    how: str,
    cache: LookupCache | None,
    fields: Sequence[str] | None,
    join: Callable[[Any, Any | None], Any] | None,
    capacity: int,
    timeout: Any,
    retry: AsyncRetryStrategy | None,
    output_type: Any,
    *,
    ordered: bool,
) -> DataStream[Any]:
    """See `DataStream.lookup`."""
    if how not in ("left", "inner"):
        message = f"a lookup is 'left' or 'inner'; got {how!r}"
        raise ProgramError(message)
    if join is not None and fields is not None:
        message = "a lookup takes either fields or join"
        raise ProgramError(message)
    if isinstance(fields, str):
        message = f"fields must be a list of names; got {fields!r}"
        raise ProgramError(message)
    if cache is not None:
        require_instance("cache must be a LookupCache", LookupCache, cache)
    operator = LookupOperator(
        function,
        key_selector_of("lookup", key if isinstance(key, (list, tuple)) else (key,)),
        is_left=how == "left",
        join=RowJoin(fields) if join is None else join,
        cache=cache,
        ordered=ordered,
        **_limits(capacity, timeout, retry),
    )
    return stream.transform("lookup", operator, output_type, described(f"{how} lookup", function), None)


def _limits(capacity: int, timeout: Any, retry: AsyncRetryStrategy | None) -> dict[str, Any]:
    whole("capacity", capacity, 1, None)
    timeout_ms = parse_duration_ms(timeout)
    if timeout_ms < 0:
        message = f"timeout must be at least 0 ms; got {timeout!r}"
        raise ConfigurationError(message)
    if retry is not None:
        require_instance("a retry strategy must be an AsyncRetryStrategy", AsyncRetryStrategy, retry)
    return {"capacity": capacity, "timeout_ms": timeout_ms, "retry": retry}
