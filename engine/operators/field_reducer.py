"""``sum``, ``min``, ``max``, ``min_by`` and ``max_by`` of one field of records, on a keyed stream or in windows.

As in Flink the first three change one field of the key's first record, the other two keep a whole record, the earliest
among equals. NaN counts only where there is nothing else.

`FieldReducer.reduce` takes any two records. Records of a batch are mostly of one kind, dicts or tuples, with plain
numbers or texts in the field: these are folded together, in their order and with the same arithmetic, by
`FieldReducer.fold` and `FieldReducer.fold_each`. Floating-point numbers are added one by one, as their sum depends on
the order; that is also why this is not done on columns, where a batch is added up before it is added to what is there.

Source: Flink's ``SumAggregator``, ``ComparableAggregator``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from operator import gt, itemgetter, lt
from typing import Any

import numpy as np

from headrace.state.values.sharing import types_of

from ..errors import ProgramError
from ..functions.aggregates.built_in import plus
from ..functions.contract import ReduceFunction

__all__ = ["FieldReducer"]

_PLAIN = (int, float, str, bytes, Decimal, Fraction, datetime.date, datetime.time, datetime.timedelta, np.generic)

_MISSING: Any = object()
_FAILURES = (KeyError, IndexError, OverflowError)
"""What makes a batch go record by record, where it fails again, and is told."""
_NUMBERS, _TEXTS = frozenset((int, float)), frozenset((str,))

_MODES = ("sum", "min", "max", "min_by", "max_by")


class FieldReducer(ReduceFunction):
    """``sum``, ``min``, ``max``, ``min_by`` or ``max_by`` of one field.

    Args:
        mode: One of these.
        field: Name of a dict record's or data object's field, or position in a tuple; None if the record is the value
            itself, as is a plain value's position 0.

    Raises:
        ProgramError: If the mode is another.
    """

    def __init__(self, mode: str, field: str | int | None = None) -> None:
        if mode not in _MODES:
            message = f"a field is reduced by one of {', '.join(_MODES)}; got {mode!r}"
            raise ProgramError(message)
        self.mode = mode
        self.field = field

    def reduce(self, value1: Any, value2: Any) -> Any:
        field, mode = self.field, self.mode
        if field is None or (field == 0 and isinstance(value1, _PLAIN)):
            field, old, new = None, value1, value2
        elif type(value1) is dict or not isinstance(field, str):
            old, new = value1[field], value2[field]
        else:
            old, new = getattr(value1, field), getattr(value2, field)
        if mode == "sum":
            return _replaced(value1, field, plus(old, new))
        # A value that differs from itself is NaN: it loses against any other, as in the aggregates min and max.
        is_nan = old != old and new == new
        if not (is_nan or (new < old if mode in ("min", "min_by") else new > old)):
            return value1
        return value2 if mode in ("min_by", "max_by") else _replaced(value1, field, new)

    def fold(self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> bool:
        """Reduce each record into the content of its key, if all are plain.

        Args:
            contents: The reduced records by key; changed in place.
            keys: The records' keys.
            rows: The records.

        Returns:
            Whether that was done; if not, nothing was.
        """
        plain = self._plain(rows)
        if plain is None:
            return False
        kind, types, values = plain
        field, get, adds, wins, keeps_record = self.field, contents.get, self.mode == "sum", *self._comparison
        records: dict[Any, Any] = {}
        folded: dict[Any, Any] = {}
        try:
            for key, value, row in zip(keys, values, rows, strict=True):
                known = folded.get(key, _MISSING)
                if known is _MISSING:
                    record = get(key, _MISSING)
                    if record is _MISSING:
                        records[key], folded[key] = row, value
                        continue
                    if type(record) is not kind or type(known := record[field]) not in types:
                        return False
                    records[key] = record
                if adds:
                    folded[key] = known + value
                elif wins(value, known) or (known != known and value == value):
                    folded[key] = value
                    if keeps_record:
                        records[key] = row
                else:
                    folded[key] = known
        except _FAILURES:
            return False
        if not keeps_record:
            for key, record in records.items():
                value = folded[key]
                records[key] = record if record[field] is value else _replaced(record, field, value)
        contents.update(records)
        return True

    def fold_each(
        self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]
    ) -> list[Any] | None:
        """As `fold`; gives for each record its key's new content, or None if nothing was done."""
        plain = self._plain(rows)
        if plain is None:
            return None
        kind, types, values = plain
        field, get, adds, wins, keeps_record = self.field, contents.get, self.mode == "sum", *self._comparison
        records: dict[Any, Any] = {}
        made: list[Any] = []
        try:
            for key, value, row in zip(keys, values, rows, strict=True):
                record = records.get(key, _MISSING)
                if record is _MISSING:
                    record = get(key, _MISSING)
                    if record is not _MISSING and (type(record) is not kind or type(record[field]) not in types):
                        return None
                if record is _MISSING:
                    record = row
                elif adds:
                    record = _replaced(record, field, record[field] + value)
                else:
                    known = record[field]
                    if wins(value, known) or (known != known and value == value):
                        record = row if keeps_record else _replaced(record, field, value)
                records[key] = record
                made.append(record)
        except _FAILURES:
            return None
        contents.update(records)
        return made

    @property
    def _comparison(self) -> tuple[Callable[[Any, Any], bool], bool]:
        """Whether a value replaces another, and whether its record comes with it."""
        return lt if self.mode in ("min", "min_by") else gt, self.mode in ("min_by", "max_by")

    def _plain(self, rows: Sequence[Any]) -> tuple[Any, frozenset[type], list[Any]] | None:
        """What the records are, of what types the field is, and its values; None if they are not plain."""
        field, kinds = self.field, types_of(rows)
        if kinds != {dict if isinstance(field, str) else tuple} or field is None:
            return None
        try:
            values = list(map(itemgetter(field), rows))
        except _FAILURES:
            return None
        found = types_of(values)
        types = _NUMBERS if found <= _NUMBERS else _TEXTS if found == _TEXTS and self.mode != "sum" else None
        return None if types is None else (kinds.pop(), types, values)


def _replaced(record: Any, field: str | int | None, value: Any) -> Any:
    """A copy of the record with one field changed: a record may be shared, it is never changed in place."""
    if field is None:
        return value
    kind: Any = type(record)
    if kind is dict:
        return {**record, field: value}
    if isinstance(field, str):
        return record._replace(**{field: value}) if hasattr(kind, "_replace") else replace(record, **{field: value})
    fields = [*record]
    fields[field] = value
    return kind._make(fields) if hasattr(kind, "_make") else kind(fields)
