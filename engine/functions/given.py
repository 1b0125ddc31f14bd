"""What functions give back: any number of records in whatever form, or batches of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import GeneratorType
from typing import Any

import pyarrow as pa

from ..errors import TypeMismatchError

__all__ = ["CONTAINERS", "are_records", "record_batches_of", "records_of"]

CONTAINERS = frozenset((list, tuple, set, frozenset, deque, range, GeneratorType, map, filter, zip))
"""Types that are iterated as they are; `records_of` must look at what a function gives of any other type."""


def are_records(given: Any) -> bool:
    """Return whether it is an iterable of records: no text or dict of any class, whose letters or keys are
    never meant.
    """
    if isinstance(given, (str, bytes, Mapping)):
        return False
    if hasattr(given, "__iter__"):
        return True
    try:
        iter(given)  # by `__getitem__`, which is not called yet
    except TypeError:
        return False
    return True


def records_of(produced: Any) -> Iterable[Any]:
    """Return what a function gave back as an iterable of records; None is none.

    Raises:
        TypeMismatchError: If `are_records` says that it is none.
    """
    if produced is None:
        return ()
    if type(produced) not in CONTAINERS and not are_records(produced):
        message = f"the function must yield records or return an iterable of them; got {type(produced).__name__}"
        raise TypeMismatchError(message, hint="Return a list, also for one record.")
    records: Iterable[Any] = produced
    return records


def record_batches_of(produced: Any) -> list[pa.RecordBatch]:
    """Return what a function of batches gave back, as record batches that are not empty.

    Raises:
        TypeMismatchError: If it is nothing of the kind.
    """
    if produced is None:
        return []
    if isinstance(produced, pa.RecordBatch):
        return [produced] if produced.num_rows else []
    if isinstance(produced, pa.Table):
        return [part for part in produced.combine_chunks().to_batches() if part.num_rows]
    if isinstance(produced, Mapping):
        return record_batches_of(pa.Table.from_pydict(dict(produced)))
    if isinstance(produced, Iterable) and not isinstance(produced, (str, bytes)):
        return [part for several in produced for part in record_batches_of(several)]
    message = (
        f"a function of batches must give record batches, tables or dicts of columns; got {type(produced).__name__}"
    )
    raise TypeMismatchError(message)
