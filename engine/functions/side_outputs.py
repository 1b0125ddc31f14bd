"""Side outputs: the tags that name them, and the records on their way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias

import numpy as np

from headrace.state.type_variables import Declared, T

from ..columns.records import MIN_TIMESTAMP, Batch, Timestamps, times_or_none
from ..errors import ProgramError, TypeMismatchError
from .given import records_of
from .isolation import ATOMS
from .operator import Output

__all__ = ["OutputTag", "SideOutputs", "Tagged", "timed_batch"]


class OutputTag(Generic[T]):
    """Names a side output. Two tags of one name are the same output.

    What its records are may be said to type checkers, by a Python type: ``OutputTag("late", int)``.

    Args:
        tag_id: The name; not empty.
        type_info: The type of the records, kept for PyFlink programs; nothing depends on it.
    """

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: type[T] | Declared = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            message = f"the name of a side output must be a text that is not empty; got {tag_id!r}"
            raise ProgramError(message)
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"


ATOMS.add(OutputTag)

Tagged: TypeAlias = tuple[OutputTag, Any]
"""A record for a side output, as functions give it back."""


class SideOutputs:
    """Side output records of one call of an operator, kept until the main output has been emitted."""

    __slots__ = ("_own", "_records")

    def __init__(self, own: Callable[[Any], Any] | None = None) -> None:
        # Makes records one's own as they are given; None for leaving them as they are.
        self._own = own
        # Tag -> records with their event times (None for none), in order.
        self._records: dict[str, list[tuple[Any, int | None]]] = {}

    def add(self, tag: Any, value: Any, timestamp: int | None) -> None:
        """Take one record.

        Raises:
            TypeMismatchError: If ``tag`` is neither a tag nor a name.
        """
        name = tag.tag_id if isinstance(tag, OutputTag) else tag
        if not isinstance(name, str):
            message = f"a side output is named by an OutputTag; got {tag!r}"
            raise TypeMismatchError(message)
        if self._own is not None:
            value = self._own(value)
        self._records.setdefault(name, []).append((value, timestamp))

    def __bool__(self) -> bool:
        return bool(self._records)

    def take(self, produced: Any, rows: list[Any], timestamp: int | None) -> None:
        """Sort what a function gave back: ``(tag, record)`` comes here, every other record is appended to ``rows``.

        Raises:
            TypeMismatchError: As `records_of`.
        """
        for record in records_of(produced):
            if type(record) is tuple and len(record) == 2 and type(record[0]) is OutputTag:
                self.add(record[0], record[1], timestamp)
            else:
                rows.append(record if self._own is None else self._own(record))

    def take_tagged(self, rows: list[Any], timestamps: Timestamps | None) -> tuple[list[Any], Timestamps | None]:
        """As `take`, for many records at once.

        Returns:
            The records for the main output and their event times; ``rows`` itself if no record is tagged.
        """
        tagged = [i for i, row in enumerate(rows) if type(row) is tuple and len(row) == 2 and type(row[0]) is OutputTag]
        if not tagged:
            return rows, timestamps
        times = times_or_none(timestamps, len(rows))
        for i in tagged:
            tag, value = rows[i]
            self.add(tag, value, times[i])
        is_main = np.ones(len(rows), dtype=np.bool_)
        is_main[tagged] = False
        main = [rows[i] for i in np.flatnonzero(is_main).tolist()]
        return main, None if timestamps is None else timestamps[is_main]

    def emit(self, output: Output) -> None:
        """Emit all records, one batch per tag."""
        if not self._records:
            return
        records, self._records = self._records, {}
        for tag, pairs in records.items():
            output.emit_side(tag, timed_batch([value for value, _ in pairs], [time for _, time in pairs]).tangled())


def timed_batch(rows: list[Any], times: list[int | None]) -> Batch:
    """Return a batch of rows and their event times, if one of them has one."""
    if None in times:
        if all(time is None for time in times):
            return Batch.of_rows(rows)
        times = [MIN_TIMESTAMP if time is None else time for time in times]
    return Batch.of_rows(rows, np.array(times, dtype=np.int64))
