"""Where files are: what people write for a location, and which files it means.

A location is a file, a directory or a glob, as a local path or a URI. It is made absolute on the client, because other
processes have other working directories. What is found is sorted by path, and names that mark a file as unfinished or
as somebody's own are left out, so that every listing of the same files is the same.

Source: Flink's ``NonSplittingRecursiveEnumerator`` and ``DefaultFileFilter``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from headrace.engine.errors import SourceError, StorageError
from headrace.state.files.filesystem import FileSystem, filesystem_for
from headrace.state.files.local import LocalFileSystem

__all__ = ["filesystem_of", "find_files"]

HIDDEN_PREFIXES = (".", "_")
HIDDEN_SUFFIXES = (".tmp", ".inprogress", ".crdownload")


_GLOB = re.compile(r"[*?\[]")


def _base_of(location: str) -> tuple[str, str]:
    """The location in which all files are that a location means, and the glob behind it; empty if there is none."""
    path, mark, query = location.partition("?") if "://" in location else (location, "", "")
    first_glob = _GLOB.search(path)
    base = path if first_glob is None else path[: path.rfind("/", 0, first_glob.start()) + 1]
    return base + mark + query, path[len(base) :]


def find_files(location: str, *, recursive: bool) -> tuple[FileSystem, list[tuple[str, int]]]:
    """Return the files that a location means now.

    Args:
        location: Absolute. In a glob ``*`` and ``?`` stay within a name, ``**/`` spans directories; ``?`` begins the
            query of a URI.
        recursive: Whether a directory means its subdirectories, too.

    Returns:
        The file system, and path and size in bytes of each file, sorted by path; none if there are none. A file that is
        named itself is given whatever its name; otherwise hidden ones (``.x``, ``_x``, also directories) and unfinished
        ones (``x.tmp``, ``x.inprogress``, ``x.crdownload``) are left out.

    Raises:
        SourceError: If the file system cannot be asked.
        ConfigurationError: If nothing knows the scheme.
    """
    base, glob = _base_of(location)
    try:
        if not glob or "://" not in location:
            fs, root = filesystem_for(location)
            if fs.exists(root):
                return fs, [(root, fs.size(root))]
        fs, root = filesystem_for(base)
        listed = fs.list_files(root)
    except StorageError as error:
        message = f"cannot list files: {error}"
        raise SourceError(message, path=location) from error
    start = len(root.rstrip("/")) + 1 if root else 0
    is_meant = _meaning(glob, recursive=recursive)
    return fs, sorted(entry for entry in listed if is_meant(entry[0][start:]))


def filesystem_of(path: str, location: str, *, recursive: bool) -> FileSystem | None:
    """Return the file system of a file that a location means, if it means it; the file need not be there.

    Args:
        path: Absolute in its file system. Nobody need have found it: a checkpoint names it.
        location: As of `find_files`.
        recursive: As of `find_files`.
    """
    if "\0" in path:
        return None
    base, glob = _base_of(location)
    if not glob or "://" not in location:
        fs, root = filesystem_for(location)
        if path == root:
            return fs
    fs, root = filesystem_for(base)
    start = f"{root.rstrip('/')}/" if root else ""
    if not path.startswith(start) or not _meaning(glob, recursive=recursive)(path[len(start) :]):
        return None
    if isinstance(fs, LocalFileSystem):  # no listing follows links to directories below the location
        directory = os.path.dirname(path)
        if os.path.realpath(directory) != os.path.realpath(root or "/") + directory[len(root.rstrip("/")) :]:
            return None
    return fs


def _meaning(glob: str, *, recursive: bool) -> Callable[[str], bool]:
    """Which paths, relative to its base, a location means."""
    matches = re.compile(_pattern_of(glob)).fullmatch if glob else None

    def is_meant(relative: str) -> bool:
        is_found = recursive or "/" not in relative if matches is None else matches(relative) is not None
        return is_found and not _is_hidden(relative)

    return is_meant


def _is_hidden(name: str) -> bool:
    return any(part.startswith(HIDDEN_PREFIXES) for part in name.split("/")) or name.endswith(HIDDEN_SUFFIXES)


def _pattern_of(glob: str) -> str:
    """A glob over paths as a regular expression."""
    pattern = ""
    position = 0
    while position < len(glob):
        if glob.startswith("**/", position):
            pattern, position = pattern + "(?:.*/)?", position + 3
        elif glob.startswith("**", position):
            pattern, position = pattern + ".*", position + 2
        elif glob[position] == "*":
            pattern, position = pattern + "[^/]*", position + 1
        elif glob[position] == "?":
            pattern, position = pattern + "[^/]", position + 1
        elif glob[position] == "[" and (end := glob.find("]", position + 2)) > 0:
            chosen = glob[position + 1 : end].replace("\\", "\\\\")
            pattern, position = f"{pattern}[{'^' + chosen[1:] if chosen[0] == '!' else chosen}]", end + 1
        else:
            pattern, position = pattern + re.escape(glob[position]), position + 1
    return pattern
