"""Functions that ask outside systems, and when to ask again.

An `AsyncFunction` is called once per record and gives its results later. Its ``async_invoke`` is a coroutine, which
runs on one event loop with all others of the process, or a plain method, which runs in a thread of its own; ``open``
and ``close`` run there, too, so a client that is bound to its loop is made and used on the same one.

Whether an attempt is repeated is for an `AsyncRetryStrategy` to say: by its predicates on result and exception, and by
how often it has been tried. Strategies are asked on the operator's thread and hold no state: the delay follows from the
number of attempts alone, so records do not influence each other.

Source: PyFlink's ``AsyncFunction``, ``AsyncRetryStrategy``, ``AsyncRetryPredicate``, ``async_retry_strategies``;
Flink's ``AsyncRetryStrategies``, ``RetryPredicates``; FLIP-232.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic

from headrace.state.type_variables import IN, OUT

from ..errors import ConfigurationError
from ..kernel.config import parse_duration_ms
from .contract import Function

__all__ = [
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategies",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
    "empty_result_predicate",
    "has_exception_predicate",
]

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


class AsyncFunction(Function, ABC, Generic[IN, OUT]):
    """Turns a record into others with the help of something outside.

    A request may be made more than once: again after a failure, and whenever the strategy says so.
    """

    @abstractmethod
    async def async_invoke(self, value: IN) -> Iterable[OUT] | None:
        """Return the records that take the place of ``value``, a list as a rule. May also be a plain method: it may
        block.
        """

    def timeout(self, value: IN) -> Iterable[OUT] | None:
        """Return the records that take the place of ``value`` if there is no result in time. Fails unless it is
        overridden.
        """
        message = f"no result in time for {value!r}"
        raise TimeoutError(message)


def empty_result_predicate(result: list[Any]) -> bool:
    """Repeat what gave no record."""
    return not result


def has_exception_predicate(error: Exception) -> bool:
    """Repeat whatever failed."""
    return error is not None


class AsyncRetryPredicate(ABC):
    """What is worth another attempt."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """Return a predicate on the list of results; None if results are always good."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Return a predicate on exceptions; None if they are always final."""


class RetryPredicate(AsyncRetryPredicate):
    """Two predicates, either of which may be None."""

    def __init__(
        self, result_predicate: ResultPredicate | None, exception_predicate: ExceptionPredicate | None
    ) -> None:
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate | None:
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate | None:
        return self._exception_predicate


class AsyncRetryStrategy(ABC):
    """When an attempt is repeated."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether there may be another attempt after so many, from 1."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return how long to wait before it, milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Return what is worth another attempt."""


class NoRetryStrategy(AsyncRetryStrategy):
    """Repeat nothing: every attempt is final."""

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return 0

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy):
    """Waits the same time before each repetition.

    Args:
        max_attempts: How often an attempt is repeated, at most.
        backoff_time_millis: How long to wait: milliseconds, or a text such as ``"100 ms"``.
        result_predicate: Takes the list of results; true repeats.
        exception_predicate: Takes the exception; true repeats.

    Raises:
        ConfigurationError: If a number is not positive.
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: Any,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = has_exception_predicate,
    ) -> None:
        self._max_attempts = _positive("max_attempts", max_attempts)
        self._delay_ms = _positive(
            "the delay between attempts, in milliseconds,", parse_duration_ms(backoff_time_millis)
        )
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self._delay_ms

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    """Waits longer before each repetition.

    Args:
        max_attempts: How often an attempt is repeated, at most.
        initial_delay: How long to wait before the first repetition: milliseconds, or a text.
        max_retry_delay: How long to wait at most.
        multiplier: How many times as long as before to wait from the second one on.
        result_predicate: Takes the list of results; true repeats.
        exception_predicate: Takes the exception; true repeats.

    Raises:
        ConfigurationError: If a number is not positive.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: Any,
        max_retry_delay: Any,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = has_exception_predicate,
    ) -> None:
        self._max_attempts = _positive("max_attempts", max_attempts)
        self._initial_ms = _positive("initial_delay, in milliseconds,", parse_duration_ms(initial_delay))
        self._max_ms = _positive("max_retry_delay, in milliseconds,", parse_duration_ms(max_retry_delay))
        self._multiplier = _positive("multiplier", multiplier)
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        delay_ms = float(self._initial_ms)
        for _ in range(current_attempts - 1):
            if delay_ms >= self._max_ms and self._multiplier >= 1:
                break
            delay_ms *= self._multiplier
        return int(min(delay_ms, self._max_ms))

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


class AsyncRetryStrategies:
    """Short ways to the strategies. By default whatever raises is repeated."""

    NO_RETRY_STRATEGY: AsyncRetryStrategy = NoRetryStrategy()

    @staticmethod
    def no_retry() -> AsyncRetryStrategy:
        """Repeat nothing: every attempt is final."""
        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        delay: Any,
        *,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = has_exception_predicate,
    ) -> AsyncRetryStrategy:
        """See `FixedDelayRetryStrategy`."""
        return FixedDelayRetryStrategy(max_attempts, delay, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: Any,
        max_delay: Any,
        multiplier: float = 2.0,
        *,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = has_exception_predicate,
    ) -> AsyncRetryStrategy:
        """See `ExponentialBackoffDelayRetryStrategy`."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_delay, multiplier, result_predicate, exception_predicate
        )


def _positive(what: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        message = f"{what} must be greater than 0; got {value!r}"
        raise ConfigurationError(message)
    return value
