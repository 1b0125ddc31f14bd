"""What ties a split of a file, and a position in it, to the file and to the source that read it.

A checkpoint is restored by programs that have changed, beside files that have changed, and is no proof of what it says:
before a reader goes on it makes sure that

* the split's file is one that the source was told to read: no checkpoint opens other files;
* the file is still the one that was cut into splits: a file of Parquet or ORC as it was, any other at least as long;
* a position means what it meant: the file begins with the same bytes, and records are told apart in the same way.

What it cannot see: a text file that was replaced by one as long or longer, with the same first bytes, and one that was
replaced before anything of it was read.

Source: Flink's ``FileSourceSplit``, which carries file size and modification time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError
from headrace.state.files.filesystem import FileSystem, store_of

from .locations import filesystem_of

if TYPE_CHECKING:
    from .settings import FileSettings

__all__ = ["HEAD_BYTES", "head_of", "manner_of", "require_same_file", "require_same_manner", "source_of"]

HEAD_BYTES = 1_024


def source_of(split: Split, settings: FileSettings) -> FileSystem:
    """Return the file system of a split's file.

    Raises:
        CheckpointMismatchError: If none of the source's locations means the file, or it was cut for another format.
    """
    path, location = str(split.payload["path"]), str(split.payload["location"])
    written = split.payload.get("format", settings.format)
    if written != settings.format:
        message = f"the split was begun by a source of {written} files, and this one reads {settings.format}"
        raise CheckpointMismatchError(message, path=path, split=split.split_id)
    for own in settings.locations:
        if store_of(own) != store_of(location):
            continue
        fs = filesystem_of(path, own, recursive=settings.recursive)
        if fs is not None:
            return fs
    message = "the checkpoint names a file that is none of those that the source reads"
    hint = "a source goes on with the files that it had begun: give it paths that mean them, too"
    raise CheckpointMismatchError(message, hint=hint, path=path, split=split.split_id)


def require_same_file(split: Split, fs: FileSystem) -> None:
    """Make sure that the file of a split can be the one that was cut.

    Raises:
        CheckpointMismatchError: If it is shorter, or as a file of Parquet or ORC of another length.
    """
    known = split.payload.get("size")
    if known is None:
        return
    path = split.payload["path"]
    size = fs.size(path)
    if size < known or (size != known and not {"row_groups", "stripes"}.isdisjoint(split.payload)):
        message = f"the file has been changed since it was found: it had {known} bytes and has {size}"
        raise CheckpointMismatchError(message, path=path, split=split.split_id)


def head_of(split: Split, fs: FileSystem) -> str | None:
    """Return a digest of the first bytes of a text file, as far as they were there when it was cut; None if unknown."""
    known = split.payload.get("size")
    if known is None:
        return None
    with fs.open_input(split.payload["path"]) as file:
        return hashlib.blake2b(file.read(min(known, HEAD_BYTES)), digest_size=8).hexdigest()


def manner_of(settings: FileSettings) -> dict[str, Any]:
    """Return what of a source's settings a position in a text file relies on: how records are told apart, and which
    count.
    """
    manner: dict[str, Any] = {"splittable": settings.is_splittable}
    if settings.format == "csv":
        manner |= {"delimiter": settings.delimiter, "header": settings.has_header}
    if settings.format == "text":
        manner["encoding"] = settings.encoding
    if settings.on_error != "fail":  # rejected records are not counted
        manner |= {"schema": str(settings.schema), "null_values": list(settings.null_values or ())}
    return manner


def require_same_manner(split: Split, position: dict[str, Any], manner: dict[str, Any], head: str | None) -> None:
    """Make sure that a position means what it meant.

    Raises:
        CheckpointMismatchError: If the source's settings have changed, or the file is another one.
    """
    place = {"path": split.payload["path"], "split": split.split_id}
    if position.get("head", head) != head:
        message = "the file has been replaced since a part of it was read"
        raise CheckpointMismatchError(message, **place)
    was = position.get("manner", manner)
    changed = sorted(name for name in {*was, *manner} if was.get(name) != manner.get(name))
    if changed:
        name = changed[0]
        message = f"a file is half read with {name}={was.get(name)!r}, and the source has {name}={manner.get(name)!r}"
        hint = "change it when the file has been read"
        raise CheckpointMismatchError(message, hint=hint, **place)
