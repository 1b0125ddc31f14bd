"""Which checkpoints of a job were complete: written down beside the manifests, so that one that is gone is missed.

::

    <job's folder>/completed/<id>       made once the manifest is there, and before any task hears of it

A manifest says what a checkpoint holds; a note, that there was one. A checkpoint without a note has never been told to
anybody, so nothing has been committed with it. One with a note and without a manifest has been lost: its output may be
public, and a job that goes on from an older one, or from nothing, repeats it.

Notes only ever grow. The old ones are deleted with the checkpoints that are not needed any more; the newest one never,
while the job lives.

Source: the pointers of Flink's ``CompletedCheckpointStore``, which are kept apart from what they point to.
"""

from __future__ import annotations

import re

from ..files.filesystem import FileSystem, join_confined

__all__ = ["Completions"]

_NAME = re.compile(r"[0-9]{12,18}")


class Completions:
    """The notes of one job. All calls block; every one may raise StorageError.

    Args:
        fs: The file system.
        root: Path of the job's folder in it.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def note(self, checkpoint_id: int) -> None:
        """Write down, durably, that a checkpoint is complete; again is harmless."""
        self._fs.write_bytes(self._path(checkpoint_id), b"%d\n" % checkpoint_id)

    def noted(self) -> list[int]:
        """Return the checkpoints that were complete, as far as that is still known, oldest first."""
        names = (path.rpartition("/")[2] for path, _ in self._fs.list_files(join_confined(self._root, "completed")))
        return sorted(int(name) for name in names if _NAME.fullmatch(name))

    def forget_before(self, checkpoint_id: int) -> None:
        """Delete the notes of older checkpoints; there must be one of this or of a newer one."""
        for noted in self.noted():
            if noted < checkpoint_id:
                self._fs.delete(self._path(noted))

    def forget(self) -> None:
        """Delete all of them: the job has ended."""
        self._fs.delete_directory(join_confined(self._root, "completed"))

    def _path(self, checkpoint_id: int) -> str:
        return join_confined(self._root, f"completed/{checkpoint_id:012d}")
