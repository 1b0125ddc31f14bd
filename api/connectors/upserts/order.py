"""The order of what is written to one key: a number of the record itself, which a service compares.

What a failure makes a job write again, or an attempt that was given up for dead writes late, is older than what is
there, and loses. Order of arrival cannot tell that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.values.sharing import shown

__all__ = ["OrderKey"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class OrderKey:
    """Which fields say what is newer.

    Attributes:
        column: Of whole numbers, 0 or more, or of times, which count by the unit of the service. It must grow with
            each change of a key.
        ties: A second column, of whole numbers from 0, for records of one key with the same value; None if there are
            none.
        ties_below: How many values that one has at most. The first one is multiplied by it.
    """

    column: str
    ties: str | None = None
    ties_below: int = 1_000

    def __post_init__(self) -> None:
        if not self.column or not isinstance(self.column, str) or self.column == self.ties:
            message = f"an order key is a column, and maybe another one for ties; got {self.column!r}, {self.ties!r}"
            raise ConfigurationError(message)
        if self.ties_below < 1:
            message = f"ties_below must be 1 or more; got {self.ties_below}"
            raise ConfigurationError(message)

    @classmethod
    def of(cls, order: str | OrderKey | None) -> OrderKey | None:
        """Return the order key that is meant by a column's name."""
        return cls(order) if isinstance(order, str) else order

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is made of."""
        return (self.column,) if self.ties is None else (self.column, self.ties)

    def number_of(self, row: Mapping[str, Any], unit: timedelta) -> int:
        """Return the number of a record.

        Args:
            row: The record, which has the columns.
            unit: What times are counted in.

        Raises:
            TypeMismatchError: If it has none.
        """
        number = row[self.column]
        if isinstance(number, datetime):
            time = number.replace(tzinfo=timezone.utc) if number.tzinfo is None else number
            number = (time - _EPOCH) // unit
        self._check(row, self.column, number, _MOST)
        if self.ties is None:
            return int(number)
        tie = row[self.ties]
        self._check(row, self.ties, tie, self.ties_below - 1)
        number = int(number) * self.ties_below + int(tie)
        self._check(row, self.column, number, _MOST)
        return int(number)

    @staticmethod
    def _check(row: Mapping[str, Any], column: str, number: Any, most: int) -> None:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not 0 <= number <= most:
            message = f"the order of a record must be a whole number from 0 to {most} or a time; column {column!r}"
            message += f" has {shown(row[column])}"
            raise TypeMismatchError(message, record=shown(dict(row)))
