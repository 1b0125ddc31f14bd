"""What happens to a job that has failed: the restart strategies a program can ask for.

Source: PyFlink's ``RestartStrategies``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.config import (
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    RestartStrategy,
)

from ..arguments.checks import duration_ms, whole_number

__all__ = ["RestartStrategies"]


class RestartStrategies:
    """Makes restart strategies, by PyFlink's names."""

    @staticmethod
    def fixed_delay_restart(restart_attempts: int, delay_between_attempts: Any) -> RestartStrategy:
        """Restart a failed job some times.

        Args:
            restart_attempts: How often in all; -1 for without end.
            delay_between_attempts: Pause before each; milliseconds, or a text such as "10 s".
        """
        if restart_attempts < -1:
            message = f"restart_attempts must be at least -1; got {restart_attempts}"
            raise ConfigurationError(message)
        return RestartStrategy.fixed_delay(
            restart_attempts, duration_ms("delay_between_attempts", delay_between_attempts, 0)
        )

    @staticmethod
    def no_restart() -> RestartStrategy:
        """Fail with the first failure."""
        return RestartStrategy.none()

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: Any, delay_interval: Any
    ) -> FailureRateRestartStrategy:
        """Restart a failed job as long as failures do not come too often.

        Args:
            failure_rate: So many failures within any ``failure_interval`` are answered by a restart; one more is final.
            failure_interval: Milliseconds, or a text such as "5 min".
            delay_interval: Pause before each restart; milliseconds or a text.

        Raises:
            ConfigurationError: If a value is out of range.
        """
        return FailureRateRestartStrategy(
            whole_number("failure_rate", failure_rate),
            duration_ms("failure_interval", failure_interval, 1),
            duration_ms("delay_interval", delay_interval, 0),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: Any,
        max_backoff: Any,
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold: Any = "1 h",
        jitter_factor: float = 0.1,
        *,
        seed: int = 0,
    ) -> ExponentialDelayRestartStrategy:
        """Restart a failed job without end, after pauses that grow while it goes on failing.

        Args:
            initial_backoff: The first pause; milliseconds, or a text such as "1 s".
            max_backoff: The longest.
            backoff_multiplier: By what each is longer than the one before; at least 1.
            reset_backoff_threshold: After running for so long without a failure the pauses begin anew.
            jitter_factor: Each pause is made up to this share longer or shorter; 0 to 1.
            seed: What the jitter follows from; different for jobs that should not come back at the same time.

        Raises:
            ConfigurationError: If a value is out of range.
        """
        return ExponentialDelayRestartStrategy(
            duration_ms("initial_backoff", initial_backoff, 1),
            duration_ms("max_backoff", max_backoff, 1),
            float(backoff_multiplier),
            duration_ms("reset_backoff_threshold", reset_backoff_threshold, 1),
            float(jitter_factor),
            whole_number("seed", seed),
        )
