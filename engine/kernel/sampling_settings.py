"""How tasks are looked at when somebody asks: how often, how far apart, and how long an answer is good.

Source: Flink's ``web.backpressure.*`` (of the monitor that took samples) and ``rest.flamegraph.*``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError

__all__ = ["LONGEST_SAMPLING_MS", "SamplingSettings"]

LONGEST_SAMPLING_MS = 120_000
"""Nobody is looked at for longer than that at a stretch."""

MOST_SAMPLES = 10_000
MOST_FRAMES = 200
"""A deeper tree could not be written as JSON."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tasks are looked at.

    Attributes:
        num_samples: How many samples make an answer.
        delay_ms: From one to the next.
        refresh_interval_ms: An answer that is older is made anew when somebody asks.
        cleanup_interval_ms: One that nobody has asked for in so long is forgotten.
        stack_depth: Calls that are told of each stack, the outermost first.
        is_enabled: Whether anybody may ask.
    """

    num_samples: int = 100
    delay_ms: int = 50
    refresh_interval_ms: int = 60_000
    cleanup_interval_ms: int = 600_000
    stack_depth: int = 100
    is_enabled: bool = True

    def __post_init__(self) -> None:
        bounds = {
            "num_samples": (1, MOST_SAMPLES),
            "delay_ms": (1, LONGEST_SAMPLING_MS),
            "refresh_interval_ms": (1, None),
            "cleanup_interval_ms": (1, None),
            "stack_depth": (1, MOST_FRAMES),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                range_text = f"from {low} to {high}" if high is not None else f"at least {low}"
                message = f"{name} of a sampling must be {range_text}; got {value}"
                raise ConfigurationError(message)
        if self.duration_ms > LONGEST_SAMPLING_MS:
            message = (
                f"a sampling may take {LONGEST_SAMPLING_MS} ms; {self.num_samples} samples take {self.duration_ms}"
            )
            raise ConfigurationError(message)

    @property
    def duration_ms(self) -> int:
        """How long an answer takes."""
        return self.num_samples * self.delay_ms
