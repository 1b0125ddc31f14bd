"""Records of one's own: a user's function may change what it is handed, and nothing else sees it.

Flink copies a record in front of every chained operator. Here a record is copied only where somebody else may hold it:

* A batch that has several readers is *shared* (`headrace.engine.columns.records.Batch.is_shared`): siblings in a
  chain, a chain and an exchange, the receivers of a broadcast. A batch whose records an operator keeps in its state is
  shared, too. Each operator that may change its records, or keeps them, gets copies of a shared batch; all others read
  the one batch.
* What a function with keyed state gives is copied as it is given: it may be the very object that is in state.
* What a function without keyed state gives belongs to the next one. If it gives one object for several records in a
  row, a constant or a list that it yields twice, the batch is marked (`given_batch`), also for another process.
* What windows and joins keep is copied when a function is handed it.

Values that cannot change cost a look at their types. ``enable_object_reuse`` switches all copies off.

`Handed` and `Given` find what is not allowed all the same, by comparing pickles: a filter, key selector or sink that
changes its record, and a function that changes a record after it has given it away. They are for tests and local runs.

Source: Flink's ``CopyingChainingOutput``, ``TypeSerializer.copy``, ``ExecutionConfig.enableObjectReuse``.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import itertools
import operator
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.values.sharing import shown, spreads, types_of

from ..columns.records import Batch, Timestamps
from ..errors import ProgramError, TypeMismatchError, raise_from_outside

__all__ = ["ATOMS", "Given", "Handed", "copied", "copied_rows", "given_batch", "owned"]

ATOMS: set[type] = {
    *(type(None), bool, int, float, complex, str, bytes, range, type(...)),
    *(type, types.FunctionType, types.BuiltinFunctionType),
    *(decimal.Decimal, fractions.Fraction),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
}
"""Types whose values cannot be changed."""

_ARROW = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, pa.Scalar, pa.Schema, pa.DataType)
_IMMUTABLE = (enum.Enum, np.generic, *_ARROW)
"""The same, with all their subclasses; but for NumPy's records, whose fields can be set."""

_IMMUTABLE_MODULES = frozenset(("uuid", "zoneinfo", "re", "ipaddress"))
"""The same, with all types of theirs."""

_are_atoms = ATOMS.issuperset

WATCHED_RECORDS = 10_000
WATCHED_BYTES = 4_096
"""So many records of a subtask are compared, large ones counting once more for each of so many bytes; what changes
records does so from the first on.
"""


def copied(value: Any) -> Any:
    """Return a record of one's own, equal to this one; the same object if it cannot be changed.

    Raises:
        TypeMismatchError: If it cannot be copied.
    """
    if type(value) not in ATOMS and spreads(value):
        return _copied_object(value)  # going through its parts would not end
    try:
        return _copied(value)
    except RecursionError:
        return _copied_object(value, is_last_word=True)


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is tuple:
        return value if _are_atoms(map(type, value)) else tuple([_copied(part) for part in value])
    if kind is dict:
        if not _are_atoms(map(type, value)):  # what can be hashed by its identity can be changed all the same
            return {_copied(key): _copied(part) for key, part in value.items()}
        if _are_atoms(map(type, value.values())):
            return value.copy()
        return {key: _copied(part) for key, part in value.items()}
    if kind is list:
        return value.copy() if _are_atoms(map(type, value)) else [_copied(part) for part in value]
    return _copied_object(value)


def _copied_object(value: Any, *, is_last_word: bool = False) -> Any:
    kind = type(value)
    if (issubclass(kind, _IMMUTABLE) and not issubclass(kind, np.void)) or kind.__module__ in _IMMUTABLE_MODULES:
        return value
    if issubclass(kind, tuple) and hasattr(kind, "_make") and _are_atoms(map(type, value)):
        return value  # a named tuple
    try:
        return copy.deepcopy(value)
    except BaseException as error:
        raise_from_outside(error)
        if isinstance(error, RecursionError) and not is_last_word:
            raise
        message = f"a record cannot be copied: {error!r}; it is {shown(value)}"
        hint = "functions that share records get copies: give the class __deepcopy__, or enable_object_reuse()"
        raise TypeMismatchError(message, hint=hint) from error


def copied_rows(rows: list[Any]) -> list[Any]:
    """Return records of one's own; the same list if none of them can be changed."""
    kinds = types_of(rows)
    if kinds <= ATOMS:
        return rows
    return [copied(row) for row in rows]


def owned(batch: Batch) -> Batch:
    """Return a batch whose records nothing else holds."""
    return batch.with_own_rows(copied_rows)


def given_batch(rows: list[Any], timestamps: Timestamps | None) -> Batch:
    """Return a batch of what a function has given, which need not be a new object for each record.

    Only neighbours are compared: what a function gives again later is for `Given` to find.
    """
    batch = Batch.of_rows(rows, timestamps)
    if len(rows) > 1 and type(rows[0]) not in ATOMS and any(map(operator.is_, rows, itertools.islice(rows, 1, None))):
        batch.tangled()
    return batch


# ------------------------------------------------------------------------------------------------------------- watching
def _print_of(value: Any) -> bytes | None:
    """What changes when the value does; None if nothing can, or that cannot be told."""
    if type(value) in ATOMS or (type(value) is tuple and _are_atoms(map(type, value))):
        return None
    try:
        return pickle.dumps(value, 5)
    except BaseException as error:
        raise_from_outside(error)
        return None


def _weight_of(found: bytes | None) -> int:
    """What a record counts of those that are watched, by what was made of it."""
    return 1 if found is None else 1 + len(found) // WATCHED_BYTES


class Handed:
    """Sees that records are as they were when they were handed over.

    Args:
        who: Who may not change them, for the error.
        place: The error's context.
    """

    __slots__ = ("_left", "_place", "_prints", "_rows", "_who")

    def __init__(self, who: str, **place: Any) -> None:
        self._who = who
        self._place = place
        self._left = WATCHED_RECORDS
        self._rows: list[Any] = []
        self._prints: list[bytes | None] = []

    def over(self, batch: Batch) -> None:
        """Note records that are handed over now."""
        if self._left > 0 and batch.has_rows:
            self._rows, self._prints = [], []
            for row in batch.rows:
                self._rows.append(row)
                self._prints.append(_print_of(row))
                self._left -= _weight_of(self._prints[-1])
                if self._left <= 0:
                    break

    def check(self) -> None:
        """See that the records are as they were, and watch them no longer.

        Raises:
            ProgramError: If one is not.
        """
        rows, prints = self._rows, self._prints
        if not rows:
            return
        self._rows, self._prints = [], []
        for row, before in zip(rows, prints, strict=True):
            if before is not None and _print_of(row) != before:
                message = f"{self._who} changed its record, which others read: it is now {shown(row)}"
                hint = "work on a copy: copy.deepcopy(record)"
                raise ProgramError(message, hint=hint, **self._place)


class Given:
    """Calls a function, and sees that it leaves alone what it has given until that has gone on.

    Args:
        call: The function.
        is_single: Whether it gives one record, not an iterable of them.
        who: It, for the error.
    """

    __slots__ = ("_call", "_gone", "_is_single", "_last", "_left", "_noted", "_who")

    def __init__(self, call: Callable[..., Any], who: str, *, is_single: bool) -> None:
        self._call = call
        self._is_single = is_single
        self._who = who
        self._left = WATCHED_RECORDS
        self._last: Any = None
        # Of what was given since the last batch went out: by identity, the record and what it was; and of that batch.
        self._noted: dict[int, tuple[Any, bytes | None]] = {}
        self._gone: dict[int, tuple[Any, bytes | None]] = {}

    def gone(self) -> None:
        """Forget all that was given: it has gone on, and its next owner may change it."""
        self._last = None
        if self._noted:
            self._gone, self._noted = self._noted, {}
        if self._left <= 0:
            self._gone = {}

    def __call__(self, *arguments: Any) -> Any:
        given = self._call(*arguments)
        if self._left <= 0:
            return given
        if self._is_single:
            self._note(given)
            return given
        self._verify(self._last)
        return self._each(given) if hasattr(given, "__iter__") and not isinstance(given, (str, bytes, dict)) else given

    def _each(self, given: Any) -> Iterator[Any]:
        for record in given:
            self._note(record)
            yield record

    def _note(self, record: Any) -> None:
        self._verify(self._last)
        self._verify(record)
        now = _print_of(record)
        known = self._gone.get(id(record))
        if known is not None and known[0] is record and now != known[1]:
            message = f"{self._who} gave one record twice, and it was changed in between: it is now {shown(record)}"
            raise ProgramError(message, hint="what is given belongs to the next function: give a copy of what is kept")
        if now is not None:
            self._left -= _weight_of(now)
            self._noted[id(record)] = (record, now)
            self._last = record

    def _verify(self, record: Any) -> None:
        known = self._noted.get(id(record))
        if known is not None and known[0] is record and _print_of(record) != known[1]:
            message = f"{self._who} changed a record after it had given it away: it is now {shown(record)}"
            raise ProgramError(message, hint="give a copy, or make a new record: {**record}")
