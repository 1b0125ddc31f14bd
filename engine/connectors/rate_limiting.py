"""How much an asynchronous sink may have under way at once, as what it writes to takes it.

A strategy counts entries. As long as requests succeed it allows more, little by little; when entries are turned away it
allows less at once: additive increase, multiplicative decrease, by which many clients share a service fairly without
knowing of each other. Strategies are asked on the task's thread; each subtask has its own.

Source: Flink's ``RateLimitingStrategy``, ``CongestionControlRateLimitingStrategy``, ``AIMDScalingStrategy``; FLIP-242.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..errors import ConfigurationError

__all__ = ["AIMDScalingStrategy", "CongestionControlRateLimitingStrategy", "RateLimitingStrategy"]


class RateLimitingStrategy(ABC):
    """Says whether another request may be begun, and how large it may be."""

    @abstractmethod
    def register_in_flight_request(self, batch_size: int) -> None:
        """Note that a request of so many entries has been begun."""

    @abstractmethod
    def register_completed_request(self, batch_size: int, num_failed: int) -> None:
        """Note that a request of so many entries has ended, and how many of them are to be sent again."""

    @abstractmethod
    def should_block(self, batch_size: int) -> bool:
        """Return whether a request of so many entries must wait."""

    @abstractmethod
    def get_max_batch_size(self) -> int:
        """Return how many entries a request may have at most, at least 1."""


class AIMDScalingStrategy:
    """Adds a little behind a success, takes a part away behind a failure.

    Args:
        rate_threshold: The most that is ever allowed.
        increase_rate: What is added.
        decrease_factor: What is left of it, between 0 and 1.

    Raises:
        ConfigurationError: If a number is out of range.
    """

    def __init__(self, rate_threshold: int, *, increase_rate: int = 10, decrease_factor: float = 0.5) -> None:
        if min(rate_threshold, increase_rate) < 1:
            message = f"rate_threshold and increase_rate must be 1 or more; got {rate_threshold} and {increase_rate}"
            raise ConfigurationError(message)
        if not 0 < decrease_factor < 1:
            message = f"decrease_factor must be between 0 and 1; got {decrease_factor}"
            raise ConfigurationError(message)
        self._rate_threshold = rate_threshold
        self._increase_rate = increase_rate
        self._decrease_factor = decrease_factor

    def scale_up(self, current_rate: int) -> int:
        """Return what is allowed behind a success."""
        return min(current_rate + self._increase_rate, self._rate_threshold)

    def scale_down(self, current_rate: int) -> int:
        """Return what is allowed behind a failure, at least 1."""
        return max(1, int(current_rate * self._decrease_factor))


class CongestionControlRateLimitingStrategy(RateLimitingStrategy):
    """Bounds the entries under way by what a scaling strategy allows.

    Args:
        initial_max_in_flight_messages: How many may be under way at first.
        scaling_strategy: What happens to that behind each request.

    Raises:
        ConfigurationError: If a number is below 1.
    """

    def __init__(self, initial_max_in_flight_messages: int, scaling_strategy: AIMDScalingStrategy) -> None:
        if initial_max_in_flight_messages < 1:
            message = f"initial_max_in_flight_messages must be 1 or more; got {initial_max_in_flight_messages}"
            raise ConfigurationError(message)
        self._scaling = scaling_strategy
        self._allowed = initial_max_in_flight_messages
        self._in_flight = 0

    def register_in_flight_request(self, batch_size: int) -> None:
        self._in_flight += batch_size

    def register_completed_request(self, batch_size: int, num_failed: int) -> None:
        self._in_flight -= batch_size
        scale = self._scaling.scale_down if num_failed else self._scaling.scale_up
        self._allowed = scale(self._allowed)

    def should_block(self, batch_size: int) -> bool:
        return self._in_flight + batch_size > self._allowed

    def get_max_batch_size(self) -> int:
        return self._allowed
