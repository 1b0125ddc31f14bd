"""What a sink for a service with asynchronous requests is made of: entries, batches of them, and their bounds.

Records become *request entries*, which are gathered and handed to the service in batches, several requests at a time.
A connector says what an entry is and how a batch is sent; buffering, retries, rates, checkpoints and backpressure are
those of `headrace.engine.connectors.async_sink_operator`.

Entries are sent at least once: those that are not known to be accepted belong to every checkpoint, and are sent again
after a failure. Who needs them once sends something that the service can tell again, such as a key.

Source: Flink's ``AsyncSinkBase``, ``AsyncSinkWriter``, ``ElementConverter``; FLIP-171, FLIP-242, FLIP-451.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic

from headrace.state.type_variables import IN

from ..columns.sizes import rows_nbytes
from ..errors import ConfigurationError, ProgramError
from ..functions.contract import Function
from ..functions.life import refuse_life
from ..kernel.config import parse_duration_ms
from .rate_limiting import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    RateLimitingStrategy,
)

__all__ = ["AsyncSink", "AsyncSinkWriter"]


class AsyncSinkWriter(Function, ABC):
    """Sends batches of entries; one per subtask.

    ``open`` and ``close`` run where requests do: on the event loop if `submit_request_entries` is a coroutine function,
    else in threads. The task does not start before ``open`` has returned.
    """

    @abstractmethod
    async def submit_request_entries(self, request_entries: list[Any]) -> Iterable[Any] | None:
        """Send a batch; returns when the service has answered. May also be a plain method: it may block.

        Several calls may be under way at once, unless the sink is ordered or allows one request only. A call that
        blocks has a thread until it returns, also after its request has timed out: give the service's client a timeout
        of its own. If as many calls of a subtask as may be under way, and eight at least, have timed out and not
        returned, the task fails.

        Args:
            request_entries: The entries, oldest first; they must not be changed.

        Returns:
            Those of them that the service has turned away for now, which are sent again, ahead of all others and after
            a pause; nothing or None if it has accepted all. Turning away is also what slows the sink down.

        Raises:
            Exception: Whatever it raises fails the task, and the job restarts or fails. What is worth another request
                is to be returned, not raised.
        """

    def get_size_in_bytes(self, request_entry: Any) -> int:
        """Return how large an entry is for the bounds in bytes: by default, texts and bytes exactly, all else about.

        Anything but a whole number, 0 or more, fails the task.
        """
        if isinstance(request_entry, (bytes, bytearray)):
            return len(request_entry)
        if isinstance(request_entry, str):
            return len(request_entry.encode(errors="surrogatepass"))
        return rows_nbytes([request_entry])


class AsyncSink(ABC, Generic[IN]):
    """Writes to a service that takes batches of entries in asynchronous requests. To be derived from.

    Bounds are per subtask. What is buffered is in every checkpoint.

    Args:
        element_converter: Makes a record's entry; None if records are entries. May have ``open`` and ``close``.
        max_batch_size: Most entries of a request. A request is made when there are so many, or so many bytes, or the
            oldest has waited for long enough, or the input has ended.
        max_in_flight_requests: Most requests that are under way at once.
        max_buffered_requests: With so many entries waiting no more records are taken, so that pressure goes back to the
            sources; more than ``max_batch_size``. A batch of records that has been taken is buffered as a whole.
        max_batch_size_in_bytes: Most bytes of a request, at least ``max_record_size_in_bytes``.
        max_record_size_in_bytes: A larger entry fails the task.
        max_time_in_buffer_ms: How long an entry waits for others: milliseconds, or a text such as ``"1 s"``.
        request_timeout_ms: How long a request may take: as above. It is given up then and its entries are sent again;
            it may still arrive.
        fail_on_timeout: Whether a request that takes longer fails the task instead.
        ordered: Whether entries of a subtask reach the service in their order. There is one request at a time then,
            and from the first entry that was turned away all those behind it in its batch are sent again, so that what
            comes last is what was written last. Restored entries are sent before the job starts.
        rate_limiting_strategy: How much may be under way; by default additive increase, multiplicative decrease.

    Raises:
        ConfigurationError: If a bound is not positive, or two do not fit.
        ProgramError: If the converter cannot be called.
    """

    def __init__(
        self,
        *,
        element_converter: Callable[[IN], Any] | None = None,
        max_batch_size: int = 500,
        max_in_flight_requests: int = 50,
        max_buffered_requests: int = 10_000,
        max_batch_size_in_bytes: int = 5 << 20,
        max_record_size_in_bytes: int = 1 << 20,
        max_time_in_buffer_ms: Any = 5_000,
        request_timeout_ms: Any = 180_000,
        fail_on_timeout: bool = False,
        ordered: bool = False,
        rate_limiting_strategy: Any = None,
    ) -> None:
        self.element_converter = element_converter
        self.max_batch_size = _bound("max_batch_size", max_batch_size)
        self.max_in_flight_requests = 1 if ordered else _bound("max_in_flight_requests", max_in_flight_requests)
        self.max_buffered_requests = _bound("max_buffered_requests", max_buffered_requests)
        self.max_batch_size_in_bytes = _bound("max_batch_size_in_bytes", max_batch_size_in_bytes)
        self.max_record_size_in_bytes = _bound("max_record_size_in_bytes", max_record_size_in_bytes)
        self.max_time_in_buffer_ms = _bound("max_time_in_buffer_ms", parse_duration_ms(max_time_in_buffer_ms))
        self.request_timeout_ms = _bound("request_timeout_ms", parse_duration_ms(request_timeout_ms))
        self.fail_on_timeout = fail_on_timeout
        self.ordered = ordered
        if rate_limiting_strategy is not None and not isinstance(rate_limiting_strategy, RateLimitingStrategy):
            message = f"rate_limiting_strategy must be a RateLimitingStrategy; got {rate_limiting_strategy!r}"
            raise ProgramError(message)
        refuse_life(rate_limiting_strategy, "a rate limiting strategy")
        self._rate_limiting_strategy: RateLimitingStrategy | None = rate_limiting_strategy
        if self.max_buffered_requests <= self.max_batch_size:
            message = f"max_buffered_requests ({max_buffered_requests}) must be greater than max_batch_size"
            message += f" ({max_batch_size})"
            raise ConfigurationError(message)
        if self.max_batch_size_in_bytes < self.max_record_size_in_bytes:
            message = f"max_batch_size_in_bytes ({max_batch_size_in_bytes}) must be at least max_record_size_in_bytes"
            message += f" ({max_record_size_in_bytes})"
            raise ConfigurationError(message)

    @abstractmethod
    def create_writer(self) -> AsyncSinkWriter:
        """Make a writer; called per subtask in its slot, and once where the program is written.

        Touches nothing outside: that is for the writer's ``open``.
        """

    def create_rate_limiting_strategy(self) -> RateLimitingStrategy:
        """A subtask's own."""
        if self._rate_limiting_strategy is not None:
            return copy.deepcopy(self._rate_limiting_strategy)
        scaling = AIMDScalingStrategy(self.max_batch_size * self.max_in_flight_requests)
        return CongestionControlRateLimitingStrategy(self.max_batch_size, scaling)


def _bound(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{name} must be a whole number, 1 or more; got {value!r}"
        raise ConfigurationError(message)
    return value
