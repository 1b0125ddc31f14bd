"""The files that the sources of data sets read: found, named by where they are, and looked into.

Folders called ``name=value`` below the place that the program names are columns of all files in them, as Hive and Spark
write partitioned data. A column is int64 if every value is a whole number in its plain form, a date if every value is
one by ISO 8601, else text; ``__HIVE_DEFAULT_PARTITION__`` is null. A column that the files have themselves is theirs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.engine.errors import ProgramError, SourceError
from headrace.state.files.filesystem import filesystem_for

from ...arguments.places import absolute_place
from ...formats.blocks import RecordFile
from ...formats.contract import BYTE_ORDER_MARK
from ...formats.csv_lexing import csv_fields, first_csv_record
from ...formats.folders import named_folders
from .reading import Reading

__all__ = [
    "FolderColumns",
    "InputFile",
    "Paths",
    "csv_headers",
    "files_at",
    "first_beginning",
    "folder_columns",
]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class InputFile(str):
    """Where a file is, as a URI or absolute local path; ``folders`` are the named values of the folders it is in."""

    __slots__ = ("folders",)
    folders: tuple[tuple[str, str | None], ...]


def files_at(path: Paths) -> list[InputFile]:
    """Return all files that paths mean, in order.

    Raises:
        SourceError: If there are none.
    """
    from ...connectors.files.locations import find_files

    several = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    found: list[InputFile] = []
    for one in several:
        location = absolute_place(one)
        _fs, files = find_files(location, recursive=True)
        if not files:
            is_folder = "://" not in location and os.path.isdir(location)
            message = "there is no file in the folder" if is_folder else "there is no file"
            hint = "a job that has no records, and does not know their type, writes no csv or parquet file"
            raise SourceError(message, path=location, hint=hint)
        for inside, _size in files:
            file = InputFile(_location_of(location, inside))
            file.folders = _named_folders(_fixed_part(location), file)
            found.append(file)
    if not found:
        message = "a source of files needs a path"
        raise ProgramError(message)
    return found


def _location_of(location: str, inside: str) -> str:
    """The location of a file that `find_files` found at another location."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return inside
    if scheme == "memory":
        return f"memory://{rest.partition('/')[0]}/{inside.lstrip('/')}"
    query = re.search(r"\?.*$", rest)
    return f"{scheme}://{inside}{query.group() if query else ''}"


def _fixed_part(location: str) -> str:
    """The folder that a location begins with, up to its first pattern."""
    path = location.partition("?")[0] if "://" in location else location
    pattern = re.search(r"[*?\[]", path)
    return path if pattern is None else path[: path.rfind("/", 0, pattern.start()) + 1]


def _named_folders(base: str, location: str) -> tuple[tuple[str, str | None], ...]:
    prefix = base.rstrip("/") + "/"
    if not location.startswith(prefix):
        return ()
    return named_folders(location[len(prefix) :])


class FolderColumns(NamedTuple):
    """Columns that are in the names of folders.

    Attributes:
        schema: Their types.
        values: Their values for each file, in the order of the files.
    """

    schema: pa.Schema
    values: tuple[tuple[Any, ...], ...]


def folder_columns(
    files: Sequence[InputFile], own: Sequence[str], declared: Mapping[str, pa.DataType] | None = None
) -> FolderColumns:
    """Return the columns that the folders of files give.

    Args:
        files: The files.
        own: The columns that the files have themselves.
        declared: Types that the program has named, by column.

    Raises:
        SourceError: If files are in folders of different names, or a value is not of the type that is declared.
    """
    first = files[0]
    names = [name for name, _value in first.folders]
    for file in files:
        others = [name for name, _value in file.folders]
        if others != names or len(set(names)) < len(names):
            message = f"the file is in folders of {others}, and {first!s} in folders of {names}"
            raise SourceError(message, path=str(file), hint="read them apart, or name the folders alike")
    fields, columns = [], []
    for place, name in enumerate(names):
        if name in own:
            continue
        texts = [file.folders[place][1] for file in files]
        kind = (declared or {}).get(name) or _type_of(texts)
        try:
            columns.append(pa.array(texts, pa.string()).cast(kind).to_pylist())
        except pa.ArrowException as error:
            message = f"folders of {name!r} have values that are no {kind}: {error}"
            raise SourceError(message, path=str(first)) from error
        fields.append(pa.field(name, kind))
    return FolderColumns(pa.schema(fields), tuple(zip(*columns, strict=True)) if columns else ())


def _type_of(texts: Sequence[str | None]) -> pa.DataType:
    known = [text for text in texts if text is not None]
    if known and all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text) for text in known):
        return pa.int64()
    return pa.date32() if known and all(map(_is_date, known)) else pa.string()


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_BEGINNING_BYTES = 1 << 20


def first_beginning(locations: Sequence[str]) -> tuple[bytes, str]:
    """Return the beginning of the first file that is not empty, without a byte order mark and empty lines, and where it
    is.
    """
    for location in locations:
        fs, inside = filesystem_for(location)
        with Reading(location), closing(RecordFile(fs, inside)) as file:
            file.open_at(0)
            found = file.beginning(_BEGINNING_BYTES)
        block = found.removeprefix(BYTE_ORDER_MARK).lstrip(b"\r\n")
        if block and not block.isspace():
            return block, location
    return b"", locations[0]


def csv_headers(locations: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the fields of the first line of each CSV file; none of an empty one.

    Raises:
        SourceError: If a file cannot be read.
    """
    headers = []
    for location in locations:
        block, _where = first_beginning([location])
        with Reading(str(location)):
            end = first_csv_record(block, delimiter) or len(block)
            headers.append(csv_fields(block[:end], delimiter))
    return headers
