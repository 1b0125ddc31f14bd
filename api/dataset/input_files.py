"""The files that the sources of data sets read: found, named by where they are, and looked into."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Sequence

from headrace.engine.dataset.file_io import OpenFile
from headrace.engine.errors import ProgramError, SourceError, StorageError

__all__ = ["Paths", "absolute", "files_at", "first_beginning"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def absolute(path: str | os.PathLike[str]) -> str:
    """Where a path or URI points, whatever the working directory is later."""
    from headrace.connectors.locations import absolute_location

    return absolute_location(path)


def files_at(path: Paths) -> list[str]:
    """All files that paths mean, as URIs or absolute local paths, in order.

    Raises:
        SourceError: If there are none.
    """
    from headrace.connectors.locations import find_files

    several = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    found: list[str] = []
    for one in several:
        location = absolute(one)
        _fs, files = find_files(location, recursive=True)
        if not files:
            is_folder = "://" not in location and os.path.isdir(location)
            message = "there is no file in the folder" if is_folder else "there is no file"
            hint = "a job that has no records, and does not know their type, writes no csv or parquet file"
            raise SourceError(message, path=location, hint=hint)
        found += [_location_of(location, inside) for inside, _size in files]
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


_BEGINNING_BYTES = 1 << 20


def first_beginning(locations: Sequence[str]) -> tuple[bytes, str]:
    """The beginning of the first file that is not empty, without a byte order mark and empty lines, and where it is."""
    for location in locations:
        try:
            with OpenFile(location, "text") as file:
                found: bytes = file.handle.read(_BEGINNING_BYTES)
        except StorageError as error:
            message = f"a file cannot be read: {error}"
            raise SourceError(message, path=location) from error
        block = found.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
        if block and not block.isspace():
            return block, location
    return b"", locations[0]
