"""What operators over changes share: how they read batches of changes, and how they emit them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import ProgramError, TypeMismatchError, UserFunctionError, nearest

from ..columns.records import Batch, RowKind, RowKinds
from ..functions.operator import OperatorContext

__all__ = [
    "adds",
    "check_names",
    "columns_of",
    "parts_of",
    "places_of_changes",
    "plain_schema",
    "refuse_unknown_row",
    "require_one_subtask",
    "signs_of",
]

_Integers = npt.NDArray[np.int64]


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a schema as operators work with them: without dictionaries and metadata."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def check_names(what: str, names: Sequence[str], schema: pa.Schema) -> None:
    """See that columns are there.

    Raises:
        ProgramError: If one is not.
    """
    for name in names:
        if name not in schema.names:
            message = f"{what}: column {name!r} is not in the records; their columns are {schema.names}"
            raise ProgramError(message, hint=nearest(name, schema.names))


def columns_of(batch: Batch, declared: pa.Schema, plain: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch.

    Args:
        batch: The records.
        declared: Their type, as the program has it.
        plain: `plain_schema` of it, which the result is of.

    Raises:
        TypeMismatchError: If a column is not there, or its values do not fit.
    """
    columns = batch.columns_as(declared)
    if columns.schema.equals(plain):
        return columns
    missing = [name for name in plain.names if name not in columns.schema.names]
    if missing:
        message = f"column {missing[0]!r} is not in the records; their columns are {columns.schema.names}"
        raise TypeMismatchError(message)
    try:
        arrays = [columns.column(field.name).cast(field.type) for field in plain]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"records do not fit the declared columns: {error}"
        raise TypeMismatchError(message) from error
    return pa.RecordBatch.from_arrays(arrays, schema=plain)


def adds(kinds: RowKinds) -> npt.NDArray[np.bool_]:
    """Return which changes add a row; the others take one back."""
    added: npt.NDArray[np.bool_] = (kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER)
    return added


def signs_of(batch: Batch, *, takes_back: bool) -> _Integers | None:
    """1 for each change that adds a row, -1 for each that takes one back; None if all add one.

    Raises:
        TypeMismatchError: If one takes a row back, and that was not to be.
    """
    if batch.row_kinds is None:
        return None
    is_added = adds(batch.row_kinds)
    if is_added.all():
        return None
    if not takes_back:
        what = RowKind(int(batch.row_kinds[np.argmin(is_added)])).short
        message = f"the input was said to be insert-only; it has a change that takes a row back ({what})"
        raise TypeMismatchError(message, hint="takes_back=True")
    return np.where(is_added, np.int64(1), np.int64(-1))


def refuse_unknown_row(columns: Sequence[pa.Array], names: Sequence[str], row: int) -> None:
    """Fail: a row that is taken back was never there.

    Raises:
        UserFunctionError: Always.
    """
    values = {name: column[row].as_py() for name, column in zip(names, columns, strict=True)}
    message = f"a change takes back what is not there: {values!r:.400}"
    raise UserFunctionError(message, hint="a changelog must add a row before it takes it back")


def require_one_subtask(context: OperatorContext) -> None:
    """See that an operator without keys has all rows.

    Raises:
        ProgramError: If it has several subtasks.
    """
    if context.parallelism != 1:
        message = f"an operator without keys works in one subtask; its parallelism is {context.parallelism}"
        raise ProgramError(message, hint="force_non_parallel()")


def parts_of(
    parts: Iterable[_Integers | None], columns: pa.RecordBatch, signs: _Integers | None, kinds: RowKinds | None = None
) -> Iterator[tuple[pa.RecordBatch, _Integers | None, RowKinds | None]]:
    """Parts of a batch, with their signs and kinds.

    Args:
        parts: The numbers of their rows; None for all.
        columns: The batch.
        signs: Of its rows; None if all add one.
        kinds: Of its rows; None if all are inserted.
    """
    for rows in parts:
        if rows is None:
            yield columns, signs, kinds
            continue
        of_part = None if signs is None or (signs[rows] > 0).all() else signs[rows]
        yield columns.take(pa.array(rows)), of_part, None if kinds is None else kinds[rows]


def places_of_changes(
    had_row: npt.NDArray[np.bool_], has_row: npt.NDArray[np.bool_], differs: npt.NDArray[np.bool_]
) -> tuple[_Integers, RowKinds]:
    """Return what becomes of the rows of keys, key by key: what goes before what comes.

    Args:
        had_row: Which keys had a row.
        has_row: Which have one now.
        differs: Of those that had one and have one, whether it is to be told that the new one replaces the old.

    Returns:
        Places in the rows that there were, one for each key, with those that there are behind them; and their kinds.
    """
    num = len(had_row)
    places = np.stack([np.arange(num), np.arange(num, 2 * num)], axis=1)
    chosen: _Integers = places[np.stack([had_row & (differs | ~has_row), has_row & (differs | ~had_row)], axis=1)]
    old = np.where(has_row, RowKind.UPDATE_BEFORE, RowKind.DELETE)
    new = np.where(had_row, RowKind.UPDATE_AFTER, RowKind.INSERT)
    return chosen, np.concatenate([old, new]).astype(np.int8)[chosen]
