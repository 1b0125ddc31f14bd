"""Places that programs name: what they mean on the machines of a cluster.

A path is written down where the program is, and used by processes with other working directories; so it is made
absolute at once (`absolute_place`). In a program that Ray's job server runs, a relative path means nothing good: its
working directory is a copy in a cache of Ray, on whichever machine, and is deleted some day. To read a file that was
sent along from there is right. What is to outlive the program (`lasting_place`: checkpoints, savepoints, output) would
get lost, so there it is refused.

On a cluster of several machines a path of one machine's own disk is a trap, too: what one slot writes there, another
one does not find. Whether a path is shared only its administrator knows for sure; so there is a warning where the
system says that it is a disk (`check_shared_places`).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.engine.errors import ConfigurationError
from headrace.state.files.filesystem import absolute_uri

if TYPE_CHECKING:
    from headrace.engine.graph.job_graph import JobGraph

__all__ = ["absolute_place", "check_shared_places", "is_on_a_disk", "is_submitted", "lasting_place"]

_log = logging.getLogger(__name__)

_DISKS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""File systems that belong to one machine, as Linux names them."""

_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray's job server for the programs that it starts."""


def is_submitted() -> bool:
    """Give whether this program was started by Ray's job server: ``ray job submit``, its REST interface, or KubeRay."""
    return _SUBMITTED in os.environ


def absolute_place(path: str | os.PathLike[str]) -> str:
    """Return a path or URI as every process sees it; see `headrace.state.files.filesystem.absolute_uri`."""
    return absolute_uri(path)


def lasting_place(path: str | os.PathLike[str], what: str) -> str:
    """As `absolute_place`, for what is to be found again when the program has ended.

    Args:
        path: A path or URI.
        what: For the error: "the directory of checkpoints".

    Raises:
        ConfigurationError: If the path is relative and the program was submitted; or as of `absolute_uri`.
    """
    text, place = os.fspath(path), absolute_uri(path)
    if is_submitted() and "://" not in place and not os.path.isabs(os.path.expanduser(text)):
        message = f"{what} must not be a relative path in a submitted program; got {text!r}"
        hint = (
            f"it would be in Ray's copy of the working directory on one machine, {os.getcwd()}; "
            "name an absolute path or a URI that all machines of the cluster reach"
        )
        raise ConfigurationError(message, hint=hint)
    return place


def check_shared_places(job_graph: JobGraph, *, is_directory_named: bool, keeps_streams: bool = False) -> None:
    """Look at what a job of a cluster of several machines writes, before it is submitted.

    Args:
        job_graph: The job.
        is_directory_named: Whether the program says where its checkpoints go.
        keeps_streams: Whether it writes cached streams down, which is beside the checkpoints.

    Raises:
        ConfigurationError: If they would go into a temporary directory of this machine.
    """
    settings = job_graph.settings
    if keeps_streams and not is_directory_named:
        message = "cached streams need a directory that all machines of the cluster reach; the program names none"
        raise ConfigurationError(message, hint="enable_checkpointing(..., directory=...), e.g. s3://bucket/checkpoints")
    if settings.checkpoints is not None and not is_directory_named:
        what = "checkpoints need"
        if settings.is_batch:
            what = "the last checkpoint of a batch, which commits its output, needs"
        message = f"{what} a directory that all machines of the cluster reach; the program names none"
        raise ConfigurationError(message, hint="enable_checkpointing(..., directory=...), e.g. s3://bucket/checkpoints")
    places = {"its savepoints": settings.savepoint_directory}
    if settings.checkpoints is not None:
        places["its checkpoints"] = settings.checkpoints.directory
    for vertex in job_graph.vertices.values():
        for link in vertex.chain:
            sink = getattr(link.operator, "sink", None)
            places[f"the output of {link.name!r}"] = getattr(sink, "location", None)
    for what, place in places.items():
        if place is not None and is_on_a_disk(place):
            _log.warning(
                "job %r: %s: %s is a path of this machine's disk, and the cluster has, or may have, several machines, "
                "each with a disk of its own: what one writes others do not find; name a place that all of them share",
                job_graph.name,
                what,
                place,
            )


def is_on_a_disk(place: str, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether a place is on a disk of this machine alone; False where that cannot be seen.

    Args:
        place: An absolute path or a URI.
        mounts: What is mounted where.
    """
    scheme, separator, rest = place.partition("://")
    if separator and scheme != "file":
        return False
    path = os.path.realpath(rest if separator else place)
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return False
    found = [(fields[1], fields[2]) for fields in lines if len(fields) > 2 and _is_below(path, fields[1])]
    return bool(found) and max(found, key=lambda one: len(one[0]))[1] in _DISKS


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
