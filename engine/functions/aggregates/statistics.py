"""Aggregates of statistics and collections: variance, percentiles, lists and sets of values.

They have the two forms of all aggregates (`headrace.engine.functions.aggregates.contract`). Variance is kept as count,
mean and sum of squared deviations, which partial results of any order are merged by without loss of digits; of fewer
values than it needs (two for a sample, one for a population) it is null. A percentile is exact and interpolates between
the two nearest values, NaN being the greatest; it keeps all values. Lists and sets leave out nulls; of nothing they are
empty. The order of a list is that in which values came, which is not promised; that of a set means nothing.

Source: Welford 1962, Chan et al. 1979; SQL's ``PERCENTILE_CONT``; Spark's ``collect_list``.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import ProgramError

from ...columns.expressions import Expression
from .built_in import as_summand
from .contract import Aggregate, Part

__all__ = [
    "Collected",
    "collect_list",
    "collect_set",
    "median",
    "percentile",
    "stddev",
    "stddev_pop",
    "variance",
    "variance_pop",
]

_Moments = tuple[int, float, float]


class _Variance(Aggregate):
    parts = (Part("moments", "moments", "merged_moments"),)

    def __init__(self, argument: Expression | str | None, name: str, *, is_sample: bool, is_root: bool) -> None:
        super().__init__(argument)
        self.name = name
        self._is_sample = is_sample
        self._is_root = is_root

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        return [as_summand(self, self.argument.evaluate(batch)).cast(pa.float64(), safe=False)]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        number, squares = (parts[0].field(name).to_numpy(zero_copy_only=False) for name in ("number", "squares"))
        least = 2 if self._is_sample else 1
        with np.errstate(all="ignore"):
            values = squares / np.maximum(number - (least - 1), 1)
        return pa.array(np.sqrt(values) if self._is_root else values, mask=number < least)

    def create(self) -> _Moments:
        return (0, 0.0, 0.0)

    def add(self, accumulator: _Moments, value: Any) -> _Moments:
        return accumulator if value is None else self.merge(accumulator, (1, float(value), 0.0))

    def merge(self, accumulator: _Moments, other: _Moments) -> _Moments:
        if not accumulator[0] or not other[0]:
            return accumulator if accumulator[0] else other
        (n1, mean1, squares1), (n2, mean2, squares2) = accumulator, other
        number, apart = n1 + n2, mean2 - mean1
        return number, mean1 + apart * n2 / number, squares1 + squares2 + apart * apart * n1 * n2 / number

    def result(self, accumulator: _Moments) -> float | None:
        number, _mean, squares = accumulator
        least = 2 if self._is_sample else 1
        if number < least:
            return None
        value = squares / (number - (least - 1))
        return math.sqrt(value) if self._is_root and value == value else value


class Collected(Aggregate):
    """What is computed of all values.

    Row form: tuples, each at least twice as long as the next, so adding costs little and changes nothing.
    """

    parts: tuple[Part, ...] = (Part("values", "collect", "concatenate"),)

    def create(self) -> tuple[tuple[Any, ...], ...]:
        return ()

    def add(self, accumulator: tuple[tuple[Any, ...], ...], value: Any) -> tuple[tuple[Any, ...], ...]:
        return accumulator if value is None else _with_values(accumulator, (value,))

    def merge(
        self, accumulator: tuple[tuple[Any, ...], ...], other: tuple[tuple[Any, ...], ...]
    ) -> tuple[tuple[Any, ...], ...]:
        values = tuple(value for level in (*accumulator, *other) for value in level)
        return (values,) if values else ()

    def result(self, accumulator: tuple[tuple[Any, ...], ...]) -> Any:
        return [value for level in accumulator for value in level]


def _with_values(levels: tuple[tuple[Any, ...], ...], values: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    kept = len(levels)
    while kept and len(levels[kept - 1]) < 2 * len(values):
        kept -= 1
        values = (*levels[kept], *values)
    return (*levels[:kept], values)


class _CollectList(Collected):
    name = "collect_list"


class _CollectSet(Collected):
    name = "collect_set"
    parts = (Part("values", "distinct", "union"),)

    def result(self, accumulator: tuple[tuple[Any, ...], ...]) -> list[Any]:
        found: dict[Any, Any] = {}
        for value in super().result(accumulator):
            found.setdefault("NaN" if value != value else (value,), value)
        return list(found.values())


class _Percentile(Collected):
    name = "percentile"

    def __init__(self, argument: Expression | str | None, share: float) -> None:
        super().__init__(argument)
        self._share = share

    def __repr__(self) -> str:
        return f"percentile({self.argument!r}, {self._share})"

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        return [as_summand(self, self.argument.evaluate(batch)).cast(pa.float64(), safe=False)]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        offsets = parts[0].offsets.to_numpy()
        values = parts[0].values.to_numpy(zero_copy_only=False)
        results = [self._of(values[start:stop]) for start, stop in pairwise(offsets)]
        return pa.array(results, pa.float64())

    def result(self, accumulator: tuple[tuple[Any, ...], ...]) -> float | None:
        return self._of(np.array([float(value) for value in super().result(accumulator)]))

    def _of(self, values: np.ndarray) -> float | None:
        if not len(values):
            return None
        place = self._share * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        ordered = np.sort(values)  # NaN last
        below, above, rest = float(ordered[low]), float(ordered[high]), place - low
        return below if not rest or below == above else below + (above - below) * rest


def stddev(argument: Expression | str) -> Aggregate:
    """Return the standard deviation of a sample, as double; null of fewer than two values."""
    return _Variance(argument, "stddev", is_sample=True, is_root=True)


def stddev_pop(argument: Expression | str) -> Aggregate:
    """Return the standard deviation of a whole population, as double."""
    return _Variance(argument, "stddev_pop", is_sample=False, is_root=True)


def variance(argument: Expression | str) -> Aggregate:
    """Return the variance of a sample, as double; null of fewer than two values."""
    return _Variance(argument, "variance", is_sample=True, is_root=False)


def variance_pop(argument: Expression | str) -> Aggregate:
    """Return the variance of a whole population, as double."""
    return _Variance(argument, "variance_pop", is_sample=False, is_root=False)


def percentile(argument: Expression | str, share: float) -> Aggregate:
    """Give the value below which a share (0 to 1) of the values lie, as double: exact, interpolated. Keeps all values.

    Raises:
        ProgramError: If the share is not between 0 and 1.
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        message = f"a percentile is of a share between 0 and 1; got {share!r}"
        raise ProgramError(message)
    return _Percentile(argument, float(share))


def median(argument: Expression | str) -> Aggregate:
    """Return the value in the middle: half of the values lie below it."""
    return percentile(argument, 0.5)


def collect_list(argument: Expression | str) -> Aggregate:
    """Return all values but nulls, as a list; empty of nothing. Their order is not promised."""
    return _CollectList(argument)


def collect_set(argument: Expression | str) -> Aggregate:
    """Return the different values but null, as a list whose order means nothing; empty of nothing."""
    return _CollectSet(argument)
