"""Folds of one field of records: the same verbs for each key of a stream, and for each window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

__all__ = ["FieldFolds"]

_Stream = TypeVar("_Stream")


class FieldFolds(ABC, Generic[_Stream]):
    """What has records that belong together: those of a key so far, or those of a window.

    A field is said by its name, or by its position in tuples.
    """

    @abstractmethod
    def _fold(self, kind: str, field: str | int) -> _Stream:
        """Fold a field; ``kind`` is the name of the method here."""

    def sum(self, field: str | int = 0) -> _Stream:
        """Add up a field; other fields stay those of the first record of the key or window."""
        return self._fold("sum", field)

    def min(self, field: str | int = 0) -> _Stream:
        """Return the least value of a field; other fields stay those of the first record of the key or window."""
        return self._fold("min", field)

    def max(self, field: str | int = 0) -> _Stream:
        """Return the greatest value of a field; other fields stay those of the first record of the key or window."""
        return self._fold("max", field)

    def min_by(self, field: str | int = 0) -> _Stream:
        """Return the record of the key or window with the least value of a field; of equal ones the first."""
        return self._fold("min_by", field)

    def max_by(self, field: str | int = 0) -> _Stream:
        """Return the record of the key or window with the greatest value of a field; of equal ones the first."""
        return self._fold("max_by", field)
