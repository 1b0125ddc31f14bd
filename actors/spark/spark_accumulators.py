"""The one class that must derive from PySpark's; imported when Spark runs."""

from __future__ import annotations

from typing import Any

from pyspark.accumulators import AccumulatorParam

__all__ = ["Counted"]


class Counted(AccumulatorParam[dict[Any, Any]]):
    """Dictionaries; what is added later wins."""

    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:
        return {}

    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:
        value1.update(value2)
        return value1
