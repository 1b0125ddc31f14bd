"""The folders that a job writes: what is refused before it runs, and how its parts become the result.

Invariant: until all parts of all sinks are written, nothing that was there before is touched. `prepare_output` only
looks; a part is written into ``_temporary`` of its folder; `commit_output` gives the parts their names, each in place
of an old file of that name, and then deletes the other old ones. A job that fails leaves the old result as it was; one
that is killed while it commits may leave files of both, but never neither.

A folder from which the plan reads is refused, as its files would be read again where a part is computed anew, and so
are two sinks of which one folder holds the other, as each would delete or replace what the other one wrote. A place is
compared by its text, with links of the local disk resolved; no file system is asked.

Source: Hadoop's ``FileOutputCommitter``; Spark's ``DDLUtils.verifyNotReadPath``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.engine.columns.write_mode import OUTPUT_EXISTS_HINT
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.plan.plan import FileSource, Node, WriteFiles, walk
from headrace.state.files.filesystem import filesystem_for, join_uri, place_of

from .writing import SUFFIXES, TEMPORARY, of_one_schema, write_empty, write_part

__all__ = ["FilesOfSink", "require_apart"]


class FilesOfSink:
    """The writer of the sinks of files; see `headrace.engine.plan.source_sink_nodes.FileWriter`."""

    def prepare(self, sink: WriteFiles, roots: Sequence[Node]) -> None:
        prepare_output(sink, roots)

    def write(self, sink: WriteFiles, partition: int, attempt: str, batches: Iterable[pa.RecordBatch]) -> list[str]:
        return write_part(sink, partition, attempt, batches)

    def commit(self, sink: WriteFiles, parts: Iterable[str]) -> list[str]:
        return commit_output(sink, parts)

    def abort(self, sink: WriteFiles) -> None:
        fs, root = filesystem_for(sink.path)
        fs.delete_directory(f"{root}/{TEMPORARY}")


def require_apart(sink: Node, others: Iterable[Node]) -> None:
    """Refuse a sink that writes into the folder of another one of the job, or above or below it.

    Raises:
        ProgramError: If it does.
    """
    if not isinstance(sink, WriteFiles):
        return
    own = place_of(sink.path)
    for other in others:
        if isinstance(other, WriteFiles) and (_holds(own, place_of(other.path)) or _holds(place_of(other.path), own)):
            message = f"two writes of one job cannot share a folder: {sink.path!r} and {other.path!r}"
            raise ProgramError(message, hint="give each a folder of its own; a union is written as one")


def prepare_output(sink: WriteFiles, roots: Sequence[Node]) -> None:
    """Look whether the folder of a sink can be written; called once, before anything is read. Changes nothing.

    Args:
        sink: The sink.
        roots: All sinks of the plan.

    Raises:
        ConfigurationError: If there are files in a folder that may not be overwritten, if there is a file in its place,
            or if the plan reads files in it.
    """
    own = place_of(sink.path)
    for path in (path for node in walk(*roots) if isinstance(node, FileSource) for path in node.paths):
        if _holds(own, place_of(path)):
            message = f"cannot write to {sink.path!r}: {path!r} is also being read by this job"
            raise ConfigurationError(message, hint="write to another folder")
    fs, root = filesystem_for(sink.path)
    if fs.exists(root):
        message = f"cannot write to {sink.path!r}: it is a file"
        raise ConfigurationError(message, hint="name a folder: each partition is written to a file in it")
    if sink.mode == "error" and fs.list_files(root):
        message = f"the folder {sink.path!r} is not empty"
        raise ConfigurationError(message, hint=OUTPUT_EXISTS_HINT)


def commit_output(sink: WriteFiles, parts: Iterable[str]) -> list[str]:
    """Give all parts their names and delete what they replace; called once, when all parts of all sinks are written.

    If no partition has a record, one file without records is written, so that the result can be read, as far as the
    format can tell the type of none: for text and JSON always, for CSV and Parquet where records have a type.

    Args:
        sink: The sink.
        parts: What `write_part` gave for all partitions, in order.

    Returns:
        The files, in order of the partitions.

    Raises:
        TypeMismatchError: If the parts of records without a type have columns that no one schema fits.
    """
    fs, root = filesystem_for(sink.path)
    written = list(parts)
    if not written:
        empty = write_empty(sink)
        written = [] if empty is None else [empty]
    written = of_one_schema(sink, written)
    start = len(root.rstrip("/")) + 1 if root else 0
    old = [path[start:] for path, _size in fs.list_files(root)] if sink.mode == "overwrite" else []
    names = []
    for part in written:
        folder, _, file = part.removeprefix(f"{TEMPORARY}/").rpartition("/")
        number = file.split("-")[1]
        run = f"{sink.run}-" if sink.mode == "append" else ""
        name = f"{folder}{'/' if folder else ''}part-{run}{number}{SUFFIXES[sink.format]}"
        fs.rename(f"{root}/{part}", f"{root}/{name}")
        names.append(name)
    kept = {TEMPORARY, *(name.partition("/")[0] for name in names)}
    for name in sorted({path.partition("/")[0] for path in old} - kept):
        if name in old:
            fs.delete(f"{root}/{name}")
        else:
            fs.delete_directory(f"{root}/{name}")
    for path in old:
        top, _, below = path.partition("/")
        if below and top in kept and top != TEMPORARY and path not in names:
            fs.delete(f"{root}/{path}")
    fs.delete_directory(f"{root}/{TEMPORARY}")
    return [join_uri(sink.path, name) for name in names]


def _holds(folder: tuple[str, ...], place: tuple[str, ...]) -> bool:
    return place[: len(folder)] == folder
