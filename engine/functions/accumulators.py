"""Accumulators: what user functions count over all subtasks, for the result of the job.

A function adds to its subtask's own accumulators; nothing is shared. Tasks report them with their metrics, the
JobManager merges what it can, and the client reads the total by name, live or at the job's end. As in Flink they are
in no checkpoint: they count what the current attempts have done, so after a restart records that are processed again
are not counted twice, and those before the restored checkpoint are not counted at all.

The built-in kinds of plain numbers travel as such. Everything else (lists of user objects, a user's own kind) travels
pickled and is only opened by the client, as a JobManager need not have the user's modules.

Source: Flink's ``Accumulator`` and its subclasses, ``RuntimeContext.addAccumulator``, ``AccumulatorHelper``.
"""

from __future__ import annotations

import base64
import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.state.checkpoints.manifest_schema import require
from headrace.state.reading.program_pickles import dump_program, load_program

from ..errors import ProgramError, TypeMismatchError, raise_from_outside

__all__ = [
    "Accumulator",
    "AccumulatorPart",
    "Accumulators",
    "AverageAccumulator",
    "DoubleCounter",
    "Histogram",
    "IntCounter",
    "ListAccumulator",
    "LongCounter",
    "accumulated",
    "accumulated_value",
    "merged_parts",
    "part_as_facts",
    "part_from_facts",
]


class Accumulator(ABC):
    """Takes values and merges with others of its kind; subclass it for a kind of your own (picklable)."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Take a value."""

    @abstractmethod
    def get_local_value(self) -> Any:
        """Return what this one has come to."""

    @abstractmethod
    def reset_local(self) -> None:
        """Start again."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Take in what another one of this kind has come to; that one is not used any more."""


class _Sum(Accumulator):
    """Adds numbers up.

    Args:
        value: Where to start.
    """

    kinds: tuple[type, ...] = (int,)

    def __init__(self, value: Any = 0) -> None:
        self._value = value

    def add(self, value: Any) -> None:
        """Add a number."""
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, self.kinds)):
            names = " or ".join(kind.__name__ for kind in self.kinds)
            message = f"{type(self).__name__} adds {names}; got {value!r}"
            raise TypeMismatchError(message)
        self._value += value

    def get_local_value(self) -> Any:
        """Return the sum."""
        return self._value

    def reset_local(self) -> None:
        """Start again from zero."""
        self._value = type(self._value)(0)

    def merge(self, other: Any) -> None:
        """Add the other's sum."""
        self._value += other.get_local_value()


class IntCounter(_Sum):
    """A sum of ints."""


class LongCounter(_Sum):
    """A sum of ints; Python's have no bound, so it differs from `IntCounter` in name only."""


class DoubleCounter(_Sum):
    """A sum of floats."""

    kinds = (int, float)

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(float(value))


class AverageAccumulator(Accumulator):
    """The mean of numbers; 0.0 of none."""

    def __init__(self, count: int = 0, total: float = 0.0) -> None:
        self._count = count
        self._total = total

    def add(self, value: float) -> None:
        """Take a number."""
        self._count += 1
        self._total += value

    def get_local_value(self) -> float:
        """Return the mean."""
        return self._total / self._count if self._count else 0.0

    def reset_local(self) -> None:
        """Start again."""
        self._count, self._total = 0, 0.0

    def merge(self, other: AverageAccumulator) -> None:
        """Take in the other's numbers."""
        self._count += other._count
        self._total += other._total

    def __reduce__(self) -> tuple[type, tuple[int, float]]:
        return AverageAccumulator, (self._count, self._total)


class Histogram(Accumulator):
    """How often each value came."""

    def __init__(self, counts: Mapping[Any, int] | None = None) -> None:
        self._counts: dict[Any, int] = dict(counts or {})

    def add(self, value: Any) -> None:
        """Count a value; ints, as a rule."""
        self._counts[value] = self._counts.get(value, 0) + 1

    def get_local_value(self) -> dict[Any, int]:
        """Return counts by value, least value first where values have an order."""
        try:
            return dict(sorted(self._counts.items()))
        except TypeError:
            return dict(self._counts)

    def reset_local(self) -> None:
        """Start again."""
        self._counts = {}

    def merge(self, other: Histogram) -> None:
        """Add the other's counts."""
        for value, count in other._counts.items():
            self._counts[value] = self._counts.get(value, 0) + count


class ListAccumulator(Accumulator):
    """All values, in the order each subtask added them."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._values = list(values)

    def add(self, value: Any) -> None:
        """Append a value."""
        self._values.append(value)

    def get_local_value(self) -> list[Any]:
        """Return the values."""
        return list(self._values)

    def reset_local(self) -> None:
        """Start again."""
        self._values = []

    def merge(self, other: ListAccumulator) -> None:
        """Append the other's values."""
        self._values.extend(other._values)


MERGED_EARLY: dict[str, type[Accumulator]] = {
    kind.__name__: kind for kind in (IntCounter, LongCounter, DoubleCounter, AverageAccumulator)
}
"""Kinds that are plain numbers and are merged by the JobManager."""


class AccumulatorPart(NamedTuple):
    """An accumulator on its way to the client.

    Attributes:
        operator: The name of the operator it is of; of the first one, where parts were merged.
        kind: Name of its class; of one of another module with that module.
        content: The accumulator itself if it is in `MERGED_EARLY`, else its pickle.
    """

    operator: str
    kind: str
    content: Accumulator | bytes


class Accumulators:
    """The accumulators of one operator subtask, by name."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, Accumulator] = {}

    def add(self, name: str, accumulator: Any) -> None:
        """Register one.

        Raises:
            ProgramError: If the name is taken, or it is no accumulator.
        """
        if not isinstance(name, str) or not name:
            message = f"the name of an accumulator must be a text that is not empty; got {name!r}"
            raise ProgramError(message)
        if not isinstance(accumulator, Accumulator):
            message = f"accumulator {name!r} must be an Accumulator such as IntCounter(); got {accumulator!r}"
            raise ProgramError(message)
        if name in self._by_name:
            message = f"accumulator {name!r} has been added already, as {type(self._by_name[name]).__name__}"
            raise ProgramError(message, hint="get_accumulator gives the one that is there")
        self._by_name[name] = accumulator

    def get(self, name: str) -> Accumulator:
        """Return the one of that name.

        Raises:
            ProgramError: If there is none.
        """
        found = self._by_name.get(name)
        if found is None:
            message = f"there is no accumulator {name!r}; there are {sorted(self._by_name)}"
            raise ProgramError(message, hint="call add_accumulator in open")
        return found

    def get_or_add(self, name: str, kind: type[Accumulator]) -> Any:
        """Return the one of that name, made if there is none.

        Raises:
            ProgramError: If there is one of another kind.
        """
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = kind()
        elif type(found) is not kind:
            message = f"accumulator {name!r} is a {type(found).__name__}, no {kind.__name__}"
            raise ProgramError(message)
        return found

    def report(self, operator: str) -> dict[str, AccumulatorPart]:
        """Return all of them as they are now, to be sent.

        Raises:
            TypeMismatchError: If one cannot be pickled.
        """
        return {name: _part_of(operator, name, accumulator) for name, accumulator in self._by_name.items()}

    def __len__(self) -> int:
        return len(self._by_name)


def _part_of(operator: str, name: str, accumulator: Accumulator) -> AccumulatorPart:
    own = type(accumulator)
    kind = own.__name__ if own.__module__ == __name__ else f"{own.__module__}.{own.__qualname__}"
    try:
        pickled = dump_program(accumulator)
    except BaseException as error:
        raise_from_outside(error)
        message = f"accumulator {name!r} holds what cannot be pickled: {error!r}"
        raise TypeMismatchError(message, operator=operator) from error
    # Unpickled at once: what is sent by reference within a process must not go on counting.
    return AccumulatorPart(operator, kind, load_program(pickled) if kind in MERGED_EARLY else pickled)


def part_as_facts(part: AccumulatorPart) -> list[Any]:
    """Return a part as JSON values: plain numbers as such, everything else as its pickle, which only a client opens."""
    content = part.content
    plain = None if isinstance(content, bytes) else _as_number(content)
    if plain is None:
        pickled = content if isinstance(content, bytes) else dump_program(content)
        plain = base64.b64encode(pickled).decode()
    return [part.operator, part.kind, plain]


def part_from_facts(facts: Any) -> AccumulatorPart:
    """Return the part that `part_as_facts` gave; opens no pickle.

    Raises:
        ValueError: If it is none.
    """
    require(type(facts) is list and len(facts) == 3, "part of an accumulator", facts)
    operator, kind, plain = facts
    require(type(operator) is str and type(kind) is str, "part of an accumulator", facts[:2])
    if type(plain) is str:
        return AccumulatorPart(operator, kind, base64.b64decode(plain, validate=True))
    own = MERGED_EARLY.get(kind)
    require(own is not None, "kind of an accumulator", kind)
    assert own is not None
    if issubclass(own, AverageAccumulator):
        require(type(plain) is list and len(plain) == 2 and type(plain[0]) is int, f"{kind}", plain)
        require(type(plain[1]) in (int, float), f"{kind}", plain)
        return AccumulatorPart(operator, kind, AverageAccumulator(*plain))
    require(type(plain) is (float if own is DoubleCounter else int), f"{kind}", plain)
    return AccumulatorPart(operator, kind, own(plain))  # type: ignore[call-arg]


def _as_number(accumulator: Accumulator) -> Any:
    """What one of `MERGED_EARLY` counts, if that is a JSON value; else None."""
    if type(accumulator) is AverageAccumulator:
        _, (count, total) = accumulator.__reduce__()
        return [count, total] if type(count) is int and _is_plain(total) else None
    value = accumulator.get_local_value()
    return value if isinstance(accumulator, _Sum) and _is_plain(value) else None


def _is_plain(number: Any) -> bool:
    return (type(number) is int and number.bit_length() < 3_000) or (type(number) is float and math.isfinite(number))


def merged_parts(reports: Iterable[Mapping[str, AccumulatorPart]]) -> dict[str, tuple[AccumulatorPart, ...]]:
    """Return what all subtasks report, by name: parts of plain numbers in one, others side by side. Opens no pickle."""
    by_name: dict[str, list[AccumulatorPart]] = {}
    for report in reports:
        for name, part in report.items():
            parts = by_name.setdefault(name, [])
            own = MERGED_EARLY.get(part.kind)
            at = next((i for i, known in enumerate(parts) if own is not None and known.kind == part.kind), None)
            if own is None or at is None:
                parts.append(part)
            else:
                total = own()
                for content in (parts[at].content, part.content):
                    total.merge(content)
                parts[at] = parts[at]._replace(content=total)
    return {name: tuple(parts) for name, parts in by_name.items()}


def accumulated(name: str, parts: Iterable[AccumulatorPart]) -> Accumulator | None:
    """Return the accumulator that all parts of one name come to; None of no parts. Called by the client.

    Raises:
        ProgramError: If the parts are of several kinds.
    """
    total: Accumulator | None = None
    first: AccumulatorPart | None = None
    for part in parts:
        content = part.content
        one: Accumulator = load_program(content if isinstance(content, bytes) else pickle.dumps(content))
        if first is None or total is None:
            first, total = part, one
            continue
        if part.kind != first.kind:
            message = (
                f"accumulator {name!r} is a {first.kind} in operator {first.operator!r}"
                f" and a {part.kind} in operator {part.operator!r}"
            )
            raise ProgramError(message, hint="give them different names")
        total.merge(one)
    return total


def accumulated_value(name: str, parts: Iterable[AccumulatorPart]) -> Any:
    """Return the value that all parts of one name come to; None of no parts. Raises as `accumulated`."""
    total = accumulated(name, parts)
    return None if total is None else total.get_local_value()
