"""Folders ``name=value``: columns of records that are in the names of folders and not in files, as Hive has them.

Names and values are percent-encoded, as in URIs; ``__HIVE_DEFAULT_PARTITION__`` is null. Several columns are folders
one in the other, in the order of the columns.

Source: Hive's partitions; Flink's ``PartitionPathUtils``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from headrace.engine.columns.grouping import Groups
from headrace.engine.errors import ProgramError, SourceError, TypeMismatchError

__all__ = ["FOLDERS", "by_folder", "by_values", "named_folders", "of_folders", "require_folder_columns"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_CHARACTER = r"[A-Za-z0-9_.~%-]"
_FOLDER = rf"(?![_.]){_CHARACTER}+={_CHARACTER}*"
FOLDERS = re.compile(rf"{_FOLDER}(?:/{_FOLDER})*")
"""The folders that `by_folder` names, and no way out of the one that they are in."""

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_MAX_NAME = 255


def require_folder_columns(names: Sequence[str], schema: pa.Schema) -> None:
    """Make sure that columns can be folders.

    Raises:
        ProgramError: If one is named twice, or none is left for the files.
        TypeMismatchError: If one is not there, or is of a type that no folder has.
    """
    missing = [name for name in names if name not in schema.names]
    if missing:
        message = f"partition_by: there is no field {missing[0]!r}; there are {schema.names}"
        raise TypeMismatchError(message)
    if len(set(names)) < len(names) or len(names) == len(schema):
        message = f"partition_by names a field twice, or leaves none for the files: {list(names)}"
        raise ProgramError(message)
    for name in names:
        if not _is_plain(schema.field(name).type) or name.startswith(("_", ".")):
            message = f"partition_by: field {name!r} of type {schema.field(name).type} cannot be a folder"
            hint = "folders are of integers, texts and dates, and those that begin with _ or . are hidden"
            raise TypeMismatchError(message, hint=hint)


def _is_plain(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_integer(kind) or is_.is_string(kind) or is_.is_date32(kind) or is_.is_null(kind))


def by_folder(names: Sequence[str], columns: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each folder, in their order, without the columns that its name says.

    Raises:
        TypeMismatchError: If a value is longer than a name of a folder can be.
    """
    keyed = pa.RecordBatch.from_arrays([columns.column(name) for name in names], names=list(names))
    kept = columns.select([name for name in columns.schema.names if name not in names])
    for key, rows in by_values(keyed, kept):
        values = [column[0].as_py() for column in key.columns]
        yield "/".join(_folder_of(name, value) for name, value in zip(names, values, strict=True)), rows


def by_values(keys: pa.RecordBatch, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield the rows of each combination of values, in their order, and the values: one row of ``keys``."""
    texts = [pa.nulls(keys.num_rows, pa.string()) if pa.types.is_null(one.type) else one for one in keys.columns]
    groups = Groups.of(texts)
    by_group = np.argsort(groups.codes, kind="stable")
    ends = np.cumsum(np.bincount(groups.codes, minlength=groups.num_codes)[groups.occupied])
    start = 0
    for end in ends.tolist():
        own = pa.array(by_group[start:end])
        yield keys.take(own[:1]), rows.take(own)
        start = end


def _folder_of(name: str, value: Any) -> str:
    text = _NULL if value is None else _escaped(str(value))
    if value == _NULL:
        text = f"%5F{text[1:]}"  # a text that looks like null
    folder = f"{_escaped(name)}={text}"
    if len(folder) > _MAX_NAME:
        message = f"a value of {name!r} makes a folder's name of {len(folder)} characters; {_MAX_NAME} are the most"
        raise TypeMismatchError(message, value=str(value)[:50])
    return folder


def _escaped(text: str) -> str:
    """The text as a name of a folder: percent-encoded, as in URIs."""
    return "".join(chr(byte) if chr(byte) in _SAFE else f"%{byte:02X}" for byte in text.encode())


def named_folders(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns that the folders of a file say, and their values, from the outermost to the innermost."""
    pairs = [folder.partition("=") for folder in path.split("/")[:-1]]
    return tuple(
        (unquote(name), None if value == _NULL else unquote(value)) for name, mark, value in pairs if name and mark
    )


def of_folders(path: str, schema: pa.Schema) -> list[pa.Scalar]:
    """Return the values of some columns for all records of a file.

    Args:
        path: Where it is.
        schema: The columns, with their types.

    Raises:
        SourceError: If it is in no folder of such a column, or a value is of another type.
    """
    known = dict(named_folders(path))
    values = []
    for field in schema:
        if field.name not in known:
            message = f"the file is in no folder {field.name}=..., which says the value of that column"
            raise SourceError(message, path=path)
        try:
            values.append(pa.scalar(known[field.name], pa.string()).cast(field.type))
        except pa.ArrowException as error:
            message = f"the folder of {field.name!r} has a value that is no {field.type}: {error}"
            raise SourceError(message, path=path) from error
    return values
