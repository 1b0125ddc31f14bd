"""How a job is rescaled by itself. Flink's ``job.autoscaler.*``, with its words in snake_case.

Source: FLIP-271 and ``AutoScalerOptions`` of Flink's Kubernetes operator.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.state.values.durations import parse_duration_ms

from ..errors import ConfigurationError, HeadraceError

__all__ = ["AutoscalerSettings"]

PREFIX = "job.autoscaler."


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """When and how far a job is rescaled by itself.

    Attributes:
        utilization_target: Share of its time that a slot is to be busy once a job has been rescaled.
        utilization_max: Above this share the parallelism is raised.
        utilization_min: Below this share it is lowered.
        metrics_window_ms: What is measured is the mean over so long.
        stabilization_interval_ms: After a (re)start nothing is measured for so long.
        scale_up_grace_period_ms: So long after it was raised a parallelism is not lowered.
        scale_down_interval_ms: A lower parallelism must have been enough for so long without a break; the highest one
            that was enough meanwhile is taken.
        scale_up_max_factor: At most by this many times what it is the parallelism is raised at once.
        scale_down_max_factor: At most this share of it is taken away at once.
        vertex_min_parallelism: Lower bound of every vertex.
        vertex_max_parallelism: Upper bound of every vertex, beside its number of key groups.
        vertex_exclude_ids: Vertices that keep their parallelism: uids of any of their operators.
        catch_up_duration_ms: A backlog is to be worked off within so long; 0 does not plan for one.
        restart_time_ms: How long a rescale is taken to stop the job; what comes in then is backlog, too.
        lag_threshold_ms: ``observed-true-processing-rate.lag-threshold``: with a backlog of so long, or output that
            waits, a job is taken to run as fast as it can, whatever share of its time its slots are busy.
        control_loop_interval_ms: ``autoscaler.standalone.control-loop.interval``: how often it is looked at.
        scaling_enabled: Whether a job is rescaled; else what would have been done is only written down.
    """

    utilization_target: float = 0.7
    utilization_max: float = 0.9
    utilization_min: float = 0.4
    metrics_window_ms: int = 900_000
    stabilization_interval_ms: int = 300_000
    scale_up_grace_period_ms: int = 3_600_000
    scale_down_interval_ms: int = 3_600_000
    scale_up_max_factor: float = 100_000.0
    scale_down_max_factor: float = 0.6
    vertex_min_parallelism: int = 1
    vertex_max_parallelism: int = 200
    vertex_exclude_ids: tuple[str, ...] = ()
    catch_up_duration_ms: int = 1_800_000
    restart_time_ms: int = 10_000
    lag_threshold_ms: int = 30_000
    control_loop_interval_ms: int = 10_000
    scaling_enabled: bool = True

    def __post_init__(self) -> None:
        low, target, high = self.utilization_min, self.utilization_target, self.utilization_max
        if not 0 <= low < target < high <= 1:
            message = (
                "utilization min, target and max must be between 0 and 1 and grow in this order; "
                f"got {low:g}, {target:g}, {high:g}"
            )
            raise ConfigurationError(message)
        for one in fields(self):
            value, least = getattr(self, one.name), 1 if one.name in _POSITIVE else 0
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and not least <= value < math.inf:
                message = f"{one.name} must be at least {least}, and finite; got {value}"
                raise ConfigurationError(message)
        if self.scale_down_max_factor > 1:
            message = f"scale_down_max_factor is a share, at most 1; got {self.scale_down_max_factor:g}"
            raise ConfigurationError(message)
        if self.vertex_min_parallelism > self.vertex_max_parallelism:
            message = (
                f"vertex_min_parallelism must not be above vertex_max_parallelism; "
                f"got {self.vertex_min_parallelism} and {self.vertex_max_parallelism}"
            )
            raise ConfigurationError(message)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> AutoscalerSettings | None:
        """Read Flink's keys, ``job.autoscaler.*``; None if they do not say ``job.autoscaler.enabled: true``.

        Raises:
            ConfigurationError: If a value is illegal, or of a key that is not known.
        """
        given = dict(configuration)
        is_enabled = _truth(f"{PREFIX}enabled", given.pop(f"{PREFIX}enabled", False))
        options: dict[str, Any] = {}
        for key, value in given.items():
            name = _KEYS.get(key)
            if name is None:
                near = difflib.get_close_matches(key, _KEYS, 1)
                message = f"no option of the autoscaler is called {key!r}"
                raise ConfigurationError(message, hint=f"There is {near[0]!r}." if near else None)
            options[name] = _read(key, name, value)
        settings = cls(**options)  # refuses what is illegal, also while it is off
        return settings if is_enabled else None


_POSITIVE = frozenset(
    {"metrics_window_ms", "control_loop_interval_ms", "vertex_min_parallelism", "vertex_max_parallelism"}
)

_KEYS = {
    f"{PREFIX}utilization.target": "utilization_target",
    f"{PREFIX}utilization.max": "utilization_max",
    f"{PREFIX}utilization.min": "utilization_min",
    f"{PREFIX}metrics.window": "metrics_window_ms",
    f"{PREFIX}stabilization.interval": "stabilization_interval_ms",
    f"{PREFIX}scale-up.grace-period": "scale_up_grace_period_ms",
    f"{PREFIX}scale-down.interval": "scale_down_interval_ms",
    f"{PREFIX}scale-up.max-factor": "scale_up_max_factor",
    f"{PREFIX}scale-down.max-factor": "scale_down_max_factor",
    f"{PREFIX}vertex.min-parallelism": "vertex_min_parallelism",
    f"{PREFIX}vertex.max-parallelism": "vertex_max_parallelism",
    f"{PREFIX}vertex.exclude.ids": "vertex_exclude_ids",
    f"{PREFIX}catch-up.duration": "catch_up_duration_ms",
    f"{PREFIX}restart.time": "restart_time_ms",
    f"{PREFIX}observed-true-processing-rate.lag-threshold": "lag_threshold_ms",
    f"{PREFIX}scaling.enabled": "scaling_enabled",
    "autoscaler.standalone.control-loop.interval": "control_loop_interval_ms",
}
"""Flink's keys, and what they are here."""


def _read(key: str, name: str, value: Any) -> Any:
    try:
        if name.endswith("_ms"):
            return parse_duration_ms(int(value) if isinstance(value, str) and value.isdecimal() else value)
        if name == "vertex_exclude_ids":
            parts = value.split(";") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())
        if name == "scaling_enabled":
            return _truth(key, value)
        return int(value) if name.endswith("_parallelism") else float(value)
    except HeadraceError as error:
        message = f"{key}: {error.message}"
        raise ConfigurationError(message) from error
    except (TypeError, ValueError) as error:
        message = f"{key} must be a number; got {value!r}"
        raise ConfigurationError(message) from error


def _truth(key: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    message = f"{key} must be true or false; got {value!r}"
    raise ConfigurationError(message)
