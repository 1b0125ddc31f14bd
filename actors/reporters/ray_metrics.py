"""Metrics as Ray's own, so that the Prometheus endpoint of a Ray node shows jobs beside its actors.

Ray keeps a value for each set of labels until its process ends; what has gone is set to NaN once, which Prometheus
takes for an end. It writes names in lower case, and knows fewer characters than ours have: the label ``metric`` is the
name itself, so that ``a.b`` and ``a_b``, or ``aB`` and ``ab``, stay two.

Source: ``ray.util.metrics``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from headrace.engine.errors import ConfigurationError

from ..rest.resources.metrics import Sample

__all__ = ["RayMetrics"]

PREFIX = "headrace"

_ODD = re.compile(r"[^A-Za-z0-9_]")


class RayMetrics:
    """Sets Ray's metrics.

    Raises:
        ConfigurationError: If this process is not one of Ray's.
    """

    def __init__(self) -> None:
        import ray

        if not ray.is_initialized():
            message = "metrics.reporter.ray.interval needs a cluster on Ray"
            raise ConfigurationError(message)
        # A gauge for each name, with the names of its labels; and the values that were set last, by gauge and labels.
        self._gauges: dict[str, Any] = {}
        self._set: dict[tuple[str, tuple[tuple[str, str], ...]], None] = {}

    def export(self, samples: Iterable[Sample]) -> None:
        """Set all of it anew."""
        before, self._set = self._set, {}
        for sample in samples:
            for metric, value in sample.metrics.items():
                labels = {**sample.labels, "metric": metric}
                name = _ODD.sub("_", f"{PREFIX}_{sample.scope}_{metric}").lower()
                self._gauge(name, sample).set(float(value), tags=labels)
                self._set[name, tuple(labels.items())] = None
        for name, labels_of in before:
            if (name, labels_of) not in self._set:
                self._gauges[name].set(float("nan"), tags=dict(labels_of))

    def _gauge(self, name: str, sample: Sample) -> Any:
        if name not in self._gauges:
            from ray.util.metrics import Gauge

            self._gauges[name] = Gauge(name, description=f"of {sample.scope}", tag_keys=(*sample.labels, "metric"))
        return self._gauges[name]

    def close(self) -> None:
        """End what was set."""
        self.export(())
