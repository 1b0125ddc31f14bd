"""Formats whose messages are read one by one, each into a row, by a library that gives Python's values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import TypeMismatchError

from .messages import BadMessage, Decoded, MessageFormat

__all__ = ["RowMessages"]


class RowMessages(MessageFormat[dict[str, Any]]):
    """Messages that are rows of declared columns."""

    schema: pa.Schema

    @abstractmethod
    def _row(self, message: bytes) -> dict[str, Any] | str:
        """Return a message's fields, or why it has none.

        Raises:
            ExternalError: If a registry does not answer.
        """

    @abstractmethod
    def _cast(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        """Make columns of rows.

        Raises:
            TypeMismatchError, pa.ArrowInvalid: If a value does not fit its column.
        """

    def decode(self, messages: Sequence[bytes]) -> Decoded:
        """Make records of messages.

        Raises:
            ExternalError: If the registry does not answer.
        """
        rows: list[dict[str, Any]] = []
        good: list[int] = []
        bad: list[BadMessage] = []
        for place, message in enumerate(messages):
            row = self._row(message)
            if isinstance(row, str):
                bad.append(BadMessage(place, message, row))
            else:
                rows.append(row)
                good.append(place)
        columns, misfits = self._columns(rows)
        if misfits:
            bad += [BadMessage(good[row], messages[good[row]], cause) for row, cause in misfits.items()]
            bad.sort(key=lambda one: one.index)
            good = [place for row, place in enumerate(good) if row not in misfits]
        return Decoded(Batch.of_columns(columns), np.array(good, np.intp), bad)

    def _columns(self, rows: list[dict[str, Any]]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Rows as columns, without those that do not fit, and why these do not."""
        try:
            return self._cast(rows), {}
        except (TypeMismatchError, pa.ArrowInvalid):
            misfits: dict[int, str] = {}
        for number, row in enumerate(rows):
            try:
                self._cast([row])
            except (TypeMismatchError, pa.ArrowInvalid) as error:
                misfits[number] = str(error)
        return self._cast([row for number, row in enumerate(rows) if number not in misfits]), misfits
