"""Where checkpoints live: the layout of a job's folder, fencing by epochs, retention.

::

    <directory>/<job_id>/epochs/<epoch>                      made exclusively by each leader; fences all before it
                         chk-<id>/<operator>/<file>.arrow    immutable: `headrace.state.checkpoints.data_files`
                         shared/<operator>/<id>-<file>       large immutable files that several checkpoints may name
                         manifests/chk-<id>.json             made exclusively and last: then the checkpoint exists
                         completed/<id>                      notes that it did: `headrace.state.checkpoints.completions`
                         claimed                             names a snapshot elsewhere that this job is to delete

The one invariant: *a manifest is there only if everything it names is durable, and a checkpoint is complete only if
its manifest is there.* So deletion goes the other way round, and data files without a manifest are garbage unless
their checkpoint is under way.

Fencing. `publish` looks for a higher epoch before and after it makes the manifest, and reports failure if there is one.
A deposed leader that was overtaken between the two may leave a manifest behind, but is told so and never notifies its
tasks; the new leader, which claims first and lists afterwards, either sees that manifest and continues from it, or
continues from an older one and publishes under a higher epoch. Once the job has ended and its folder is gone, a leader
that finds not even its own epoch is deposed, too. Checkpoints are therefore ordered by (epoch, id), never by id alone.
Epochs are never reused: the file of the highest one stays while the job lives, and a process that makes one and then
finds a higher one has not got it, since it may have been another's, deleted meanwhile. So the files below are garbage,
and a job that fails over for years leaves no trail of them. While the job lives a few of them are kept, for a process
in the middle of a listing when new ones come and old ones go: it must never find none.

Shared files. A file in ``shared/`` is stored under the id of the checkpoint it was first made for, by one execution
attempt, and may be named again by that attempt's later checkpoints, and by those of attempts restored from one that
names it. Checkpoint m may only name again what its *base* names: the newest checkpoint that was complete when m was
triggered. The coordinator chose it, and it travels in m's barrier; a task that does not know the files of exactly
that checkpoint stores all of its files. `collect_garbage` runs after checkpoint n is complete, under the epoch of its
leader, and is told every checkpoint that is retained and every base of one under way, and keeps their manifests. A
shared file goes if none of these manifests names it and it was made for a checkpoint before the newest retained one.
This is enough, whatever happens:

* *Under way*, m > n: what it makes itself bears an id above n; what it names again is named by its base, which is kept.
  m < n has been given up when n completed, and will never be published; its files bear ids below n.
* *Several in flight* with the same base store the same new files twice, under different names.
* *Lost or late notifications* play no part: no task concludes from one that a file is there.
* *Aborted checkpoints* are no base; their files bear an id that is soon below the newest complete one.
* *Late uploads of a dead attempt* bear the id of a checkpoint that was given up when the attempt died, and its own
  epoch and attempt, so they replace no other's file; they go as soon as a later checkpoint is complete.
* *A restart* restores a complete checkpoint that is retained; what it names is kept while it is retained or a base.
  If it is not the newest complete one (that was damaged) it is no base, and the first checkpoint stores everything.
* *A deposed leader* that still deletes has an old view: its newest checkpoint is one the new leader has found complete,
  or older. It deletes nothing above that, and nothing that one names; see also `highest_epoch`.
* *A manifest that cannot be read* may name anything: then no shared file is deleted at all.

Files of another job's folder (a restore from there) are never named again, so every folder is complete in itself. A
savepoint is such a folder with one manifest of kind ``savepoint``; see `headrace.state.checkpoints.savepoints`.

Paths in manifests are relative and confined to the job's folder; a folder may be moved as a whole.

Source: Flink's ``FsCheckpointStorageAccess``, ``CompletedCheckpointStore``; Kafka's and ZooKeeper's fencing by epochs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection

from ..errors import (
    AlreadyExistsError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointLostError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigurationError,
    DamagedFileError,
    NotFoundError,
    StorageError,
    SupersededError,
)
from ..files.filesystem import FileSystem, absolute_uri, filesystem_for, join_confined, join_uri
from ..files.permissions import require_private
from ..reading.signing import SigningKeys
from ..reading.stored_json import parse_json
from .completions import Completions
from .data_files import DataFiles
from .manifest import CHECKPOINT, MAX_MANIFEST_BYTES, Manifest

__all__ = ["NUM_EPOCHS_KEPT", "CheckpointStorage"]

NUM_EPOCHS_KEPT = 3
"""How many epochs of a job that lives are kept."""

_MANIFEST_NAME = re.compile(r"chk-([1-9][0-9]{0,17})\.json")
_CHECKPOINT_DIRECTORY = re.compile(r"chk-([1-9][0-9]{0,17})")
_EPOCH_NAME = re.compile(r"[0-9]{12,18}")
_SHARED_NAME = re.compile(r"([1-9][0-9]{0,17})-.+")
_CLAIM = "claimed"
"""The file that names a snapshot of another folder that this job owns."""


class CheckpointStorage:
    """One job's folder of checkpoints. All calls block; every one may raise StorageError.

    Args:
        fs: The file system. root: Path of the job's folder in it. uri: The same as a URI, for `at` on another host; by
        default ``root``. key_file: Of the keys that manifests are signed with (`headrace.state.reading.signing`); with
        it others are not taken.
    """

    def __init__(self, fs: FileSystem, root: str, uri: str | None = None, key_file: str | None = None) -> None:
        self.key_file = key_file
        self.fs = fs
        self.root = root.rstrip("/")
        self.uri = self.root if uri is None else uri
        self.completions = Completions(fs, self.root)
        self.data_files = DataFiles(fs, self.root, self.uri)
        # Whose checkpoints they must be; None in a folder that is only named, which may have been moved.
        self._job_id: str | None = None

    @classmethod
    def open(cls, directory_uri: str, job_id: str, key_file: str | None = None) -> CheckpointStorage:
        """Return the folder of a job in the directory of all jobs; nothing is made before the first write.

        Raises:
            ConfigurationError: If the URI names no file system, or the job id is no name for a folder.
        """
        if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", job_id) is None:
            message = f"a job id must consist of letters, digits, '-', '_' and '.'; got {job_id!r}"
            raise ConfigurationError(message)
        storage = cls.at(join_uri(directory_uri, job_id), key_file)
        storage._job_id = job_id
        return storage

    @classmethod
    def at(cls, root_uri: str, key_file: str | None = None) -> CheckpointStorage:
        """Return the folder at a URI, as found in ``TaskRestore.root``."""
        fs, root = filesystem_for(root_uri, is_private=True)
        return cls(fs, root, root_uri.rstrip("/") if "://" in root_uri else root, key_file)

    @classmethod
    def from_manifest(
        cls, path: str | os.PathLike[str], key_file: str | None = None
    ) -> tuple[CheckpointStorage, Manifest]:
        """Open a checkpoint by its place, which may be in another job's folder. Called for ``restore_from``.

        Args:
            path: Path or URI of a manifest (``.../manifests/chk-7.json``), of its data (``.../chk-7``) or of a job's
                folder, whose newest complete checkpoint is meant.
            key_file: As of the class.

        Returns:
            The folder it is in and the manifest; every file has been seen to be there in its size.

        Raises:
            CheckpointNotFoundError: If there is no checkpoint.
            CheckpointLostError: If a folder is named, and its newest checkpoint is gone.
            CheckpointCorruptError: If the manifest or the size of a file is wrong, or a file is missing.
            CheckpointMismatchError: If a newer version wrote it, or it is not signed as it must be.
        """
        storage, manifest = cls.locate(path, key_file)
        for file in manifest.files():
            storage.data_files.check_size(file, manifest.checkpoint_id)
        return storage, manifest

    @classmethod
    def locate(cls, path: str | os.PathLike[str], key_file: str | None = None) -> tuple[CheckpointStorage, Manifest]:
        """As `from_manifest`, but without a look at the data files: they may be incomplete.

        Raises:
            CheckpointNotFoundError, CheckpointLostError, CheckpointCorruptError, CheckpointMismatchError: See there.
        """
        path = absolute_uri(path)
        place, mark, query = path.partition("?") if "://" in path else (path, "", "")
        parent, _, name = place.rstrip("/").rpartition("/")
        if _MANIFEST_NAME.fullmatch(name) and parent.rpartition("/")[2] == "manifests":
            storage = cls.around(path, key_file)
            return storage, storage.load(f"manifests/{name}")
        if match := _CHECKPOINT_DIRECTORY.fullmatch(name):
            storage = cls.at(f"{parent}{mark}{query}", key_file)
            return storage, storage.load(int(match.group(1)))
        storage = cls.at(path, key_file)
        complete = storage.list_complete()
        if not complete:
            message = "there is no complete checkpoint where one was named"
            hint = "name a manifest (.../manifests/chk-<id>.json), a checkpoint (.../chk-<id>) or a job's folder"
            raise CheckpointNotFoundError(message, hint=hint, path=path)
        lost = max(storage.completions.noted(), default=0)
        if lost > max(complete):
            message = f"checkpoint {lost} was complete, and the folder does not have it"
            hint = f"name the checkpoint that is meant, such as {storage.manifest_uri(complete[-1])}"
            raise CheckpointLostError(message, hint=hint, path=path)
        return storage, storage.load(complete[-1])

    @classmethod
    def around(cls, manifest_uri: str, key_file: str | None = None) -> CheckpointStorage:
        """Return the folder that a manifest is in, or was."""
        place, mark, query = manifest_uri.partition("?") if "://" in manifest_uri else (manifest_uri, "", "")
        return cls.at(f"{place.rstrip('/').rpartition('/manifests/')[0]}{mark}{query}", key_file)

    def manifest_uri(self, checkpoint_id: int) -> str:
        """Return the place of a checkpoint's manifest, good for ``restore_from``; it need not be there."""
        return join_uri(self.uri, f"manifests/chk-{checkpoint_id}.json")

    def require_trusted(self) -> None:
        """Make sure that nobody else can have put a checkpoint here; called before a job goes on from one.

        What is signed may lie where others write: with keys there is nothing to be asked.

        Raises:
            ConfigurationError: If others can write to the folder, on a local disk.
        """
        if self.key_file is None:
            require_private(self.fs, self.root, "a folder of checkpoints or savepoints", [self._path("manifests")])

    # --------------------------------------------------------------------------------------------------------- epochs
    def claim_epoch(self, at_least: int = 1, below: int | None = None) -> int:
        """Become the leader: take an epoch higher than every one before. Called once by each JobManager, first of all.

        Args:
            at_least: The lowest epoch that will do.
            below: Epochs from here on are for JobManagers of a later leader of the cluster.

        Returns:
            The epoch. No two calls ever get the same one; `publish` under any lower one is refused from here on.

        Raises:
            SupersededError: If a JobManager of a later leader of the cluster has the job, or another one has claimed a
                higher epoch in these very moments.
        """
        epoch = max(self.highest_epoch() + 1, at_least)
        while True:
            if below is not None and epoch >= below:
                message = f"epoch {epoch - 1} has been taken under a later leader of the cluster than epoch {at_least}"
                raise SupersededError(message, path=self.uri)
            try:
                self.fs.create_exclusive(self._path(f"epochs/{epoch:012d}"), b"%d\n" % epoch)
            except AlreadyExistsError:
                epoch += 1
                continue
            if (highest := self.highest_epoch()) > epoch:
                message = f"epoch {highest} has been taken while epoch {epoch} was being claimed"
                raise SupersededError(message, path=self.uri)
            return epoch

    def highest_epoch(self) -> int:
        """Return the highest epoch claimed so far; 0 if none was.

        Others may make higher ones and delete this one meanwhile: what is listed is the folder of one moment.
        """
        return max(self._epochs(), default=0)

    def _epochs(self) -> dict[int, str]:
        """The epochs that are there, lowest first, with their paths."""
        paths = [path for path, _ in self.fs.list_files(self._path("epochs"))]  # sorted
        return {int(name): path for path in paths if _EPOCH_NAME.fullmatch(name := path.rpartition("/")[2])}

    def _check_epoch(self, epoch: int, checkpoint_id: int) -> None:
        highest = self.highest_epoch()
        if highest > epoch:
            message = f"checkpoint {checkpoint_id} of epoch {epoch} cannot be published: epoch {highest} has taken over"
            raise CheckpointError(message, path=self.uri)

    # ----------------------------------------------------------------------------------------------------- data files
    def verify(self, manifest: Manifest) -> None:
        """Read and check every file of a checkpoint.

        Raises:
            CheckpointCorruptError: As `DataFiles.read_part`.
        """
        for file in manifest.files():
            self.data_files.check(file)

    # ------------------------------------------------------------------------------------------------------ manifests
    def publish(self, manifest: Manifest, epoch: int) -> str:
        """Make a checkpoint complete. Called by the coordinator once all its files are durable.

        Args:
            manifest: What it consists of; its epoch is ``epoch``.
            epoch: The publishing leader's.

        Returns:
            The manifest's URI, good for ``restore_from``.

        Raises:
            CheckpointError: If a higher epoch was claimed, or a checkpoint of the same or a higher id is complete.
                *Delete nothing then*: the new leader may restore from this very checkpoint.
            StorageError: If the store failed; the checkpoint may be complete nevertheless.

        Guarantees: publishing the same manifest again succeeds.
        """
        checkpoint_id = manifest.checkpoint_id
        if manifest.epoch != epoch:
            message = f"checkpoint {checkpoint_id} is of epoch {manifest.epoch}; epoch {epoch} cannot publish it"
            raise CheckpointError(message, path=self.uri)
        keys = self._keys()
        data = manifest.to_json(keys)
        Manifest.from_json(
            data, f"checkpoint {checkpoint_id}", keys
        )  # what could not be read again must not be published
        relative = f"manifests/chk-{checkpoint_id}.json"
        self._check_epoch(epoch, checkpoint_id)
        newest = max(self._published(), default=0)
        if newest > checkpoint_id:
            message = f"checkpoint {checkpoint_id} cannot be published: checkpoint {newest} is complete"
            raise CheckpointError(message, path=self.uri)
        try:
            self.fs.create_exclusive(self._path(relative), data)
        except StorageError as error:
            # Whatever the answer, what counts is what is there now: an answer may get lost after the deed.
            if self._bytes_if_there(relative) != data:
                if not isinstance(error, AlreadyExistsError):
                    raise
                message = f"checkpoint {checkpoint_id} was published before, with other content"
                raise CheckpointError(message, path=self.uri) from error
        self._check_epoch(epoch, checkpoint_id)
        return join_uri(self.uri, relative)

    def _keys(self) -> SigningKeys | None:
        return None if self.key_file is None else SigningKeys.read(self.key_file)

    def _bytes_if_there(self, relative: str) -> bytes | None:
        try:
            return self.fs.read_bytes(self._path(relative), MAX_MANIFEST_BYTES)
        except NotFoundError:
            return None

    def load(self, path_or_id: str | int) -> Manifest:
        """Read and check the manifest of a complete checkpoint; files are checked when read, or by `verify`.

        Args:
            path_or_id: The checkpoint's id, or the manifest's path as `publish` gave it or relative to the folder.

        Raises:
            CheckpointNotFoundError: If there is none.
            CheckpointCorruptError: If hash, structure or id is wrong.
            CheckpointMismatchError: If a newer version wrote it, or it is not signed as it must be.
        """
        if isinstance(path_or_id, int):
            relative = f"manifests/chk-{path_or_id}.json"
        else:
            place, base = path_or_id.partition("?")[0], self.uri.partition("?")[0]
            relative = place.removeprefix(f"{base}/").removeprefix(f"{self.root}/")
        path = self._path(relative)
        try:
            data = self.fs.read_bytes(path, MAX_MANIFEST_BYTES)
        except NotFoundError as error:
            message = "there is no complete checkpoint where one was named"
            raise CheckpointNotFoundError(message, path=path) from error
        except DamagedFileError as error:
            message = f"a checkpoint's manifest is damaged: {error.message}"
            raise CheckpointCorruptError(message, path=path) from error
        manifest = Manifest.from_json(data, path, self._keys())
        if relative.rpartition("/")[2] != f"chk-{manifest.checkpoint_id}.json":
            message = f"a manifest is that of checkpoint {manifest.checkpoint_id}, its name says otherwise"
            raise CheckpointCorruptError(message, path=path)
        if self._job_id is not None and (manifest.job_id, manifest.kind) != (self._job_id, CHECKPOINT):
            what = f"a {manifest.kind} of job {manifest.job_id!r}"
            message = f"checkpoint {manifest.checkpoint_id} of this job is {what}: somebody has put it there"
            raise CheckpointCorruptError(message, path=path)
        return manifest

    def list_complete(self) -> list[int]:
        """Return the ids of all complete checkpoints, oldest first; the last one is the one to restore.

        One whose manifest cannot be read counts as of the epoch of the one before it, so that `load` reports it to
        the one that needs it.
        """
        ordered: list[tuple[int, int]] = []
        epoch = 0
        for checkpoint_id in sorted(self._published()):
            try:
                epoch = self.load(checkpoint_id).epoch
            except CheckpointNotFoundError:
                continue  # discarded meanwhile
            except (CheckpointCorruptError, CheckpointMismatchError):
                pass  # keeps its place
            ordered.append((epoch, checkpoint_id))
        return [checkpoint_id for _, checkpoint_id in sorted(ordered)]

    def highest_checkpoint_id(self) -> int:
        """Return the highest id of any file, manifest or note here, complete or not; 0 if none.

        New checkpoints start above it. One that was complete and is gone counts, too: public output bears its id.
        """
        shared = (checkpoint_id for _, checkpoint_id in self._shared())
        return max({*self._published(), *self._with_data(), *shared, *self.completions.noted()}, default=0)

    def _published(self) -> list[int]:
        names = (path.rpartition("/")[2] for path, _ in self.fs.list_files(self._path("manifests")))
        return [int(match.group(1)) for match in map(_MANIFEST_NAME.fullmatch, names) if match]

    def _with_data(self) -> set[int]:
        """The ids of checkpoints with at least one data file."""
        start = len(self.root) + 1 if self.root else 0
        tops = {path[start:].partition("/")[0] for path, _ in self.fs.list_files(self.root)}
        return {int(match.group(1)) for match in map(_CHECKPOINT_DIRECTORY.fullmatch, tops) if match}

    def _shared(self) -> list[tuple[str, int]]:
        """All shared files: path relative to the folder, and the checkpoint it was made for."""
        start = len(self.root) + 1 if self.root else 0
        found = []
        for path, _ in self.fs.list_files(self._path("shared")):
            match = _SHARED_NAME.fullmatch(path.rpartition("/")[2])
            if match is not None:
                found.append((path[start:], int(match.group(1))))
        return found

    # ------------------------------------------------------------------------------------------------------ retention
    def discard(self, checkpoint_id: int) -> None:
        """Delete a checkpoint, complete or not: manifest first, then files. Nothing happens if it is not there."""
        self.fs.delete(self._path(f"manifests/chk-{checkpoint_id}.json"))
        self.fs.delete_directory(self._path(f"chk-{checkpoint_id}"))

    def collect_garbage(self, keep_ids: Collection[int], live_ids: Collection[int] = ()) -> list[int]:
        """Delete what is neither kept nor under way. Called after a checkpoint has been completed.

        Only checkpoints below the highest kept one are touched: a process with an old view can delete nothing of a
        later leader's.

        Args:
            keep_ids: Complete checkpoints that stay, also the bases of those under way.
            live_ids: Checkpoints under way.

        Returns:
            The ids that were deleted.
        """
        newest = max(keep_ids, default=0)
        spared = {*keep_ids, *live_ids}
        doomed = sorted(i for i in {*self._published(), *self._with_data()} if i < newest and i not in spared)
        for checkpoint_id in doomed:
            self.discard(checkpoint_id)
        self._collect_shared(keep_ids, newest, spared)
        return doomed

    def _collect_shared(self, keep_ids: Collection[int], newest: int, spared: set[int]) -> None:
        """Delete shared files that no kept checkpoint names; the module's docstring says why that is safe."""
        under_way = spared - set(keep_ids)
        old = [path for path, made_for in self._shared() if made_for < newest and made_for not in under_way]
        if not old:
            return
        named: set[str] = set()
        for checkpoint_id in keep_ids:
            try:
                named.update(file.path for file in self.load(checkpoint_id).files())
            except (CheckpointNotFoundError, CheckpointCorruptError, CheckpointMismatchError):
                return  # it may name anything
        for path in old:
            if path not in named:
                self.fs.delete(self._path(path))

    def remove(self) -> None:
        """Delete the whole folder, manifests first. Called when a job has ended and keeps no checkpoint.

        Epochs go from the lowest to the highest: a leader that was replaced finds a higher one, or not even its own.
        """
        self.fs.delete_directory(self._path("manifests"))
        for path, _ in self.fs.list_files(self._path("epochs")):  # sorted
            self.fs.delete(path)
        self.fs.delete_directory(self.root)

    def keep_only(self, checkpoint_id: int) -> None:
        """Delete all but one complete checkpoint. Called when a job has ended, so nothing is under way.

        Raises:
            CheckpointNotFoundError, CheckpointCorruptError: If that one is not there or cannot be read. Nothing is
                deleted then.
        """
        named = {file.path for file in self.load(checkpoint_id).files()}
        for other in sorted({*self._published(), *self._with_data()} - {checkpoint_id}):
            self.discard(other)
        for path, _ in self._shared():
            if path not in named:
                self.fs.delete(self._path(path))
        self.completions.forget()
        self.forget_old_epochs()

    def forget_old_epochs(self, num_kept: int = 1) -> None:
        """Delete all epochs but the highest, which keeps the others' leaders out. Any leader may, at any time.

        Args:
            num_kept: How many stay: one of a job that has ended, `NUM_EPOCHS_KEPT` of one that lives.
        """
        for path in list(self._epochs().values())[:-num_kept]:
            self.fs.delete(path)

    # --------------------------------------------------------------------------------------------- claimed snapshots
    def note_claim(self, manifest_uri: str) -> None:
        """Write down that this job owns a snapshot outside its folder, to be deleted by `forget_claim`'s caller.

        Called before the first task restores from it. The note, not the settings, says what may be deleted: a folder
        named in the settings may hold other checkpoints by then.
        """
        keys, note = self._keys(), manifest_uri.encode()
        if keys is not None:
            note += b"\n" + json.dumps(keys.sign(_CLAIM, note, self._place), sort_keys=True).encode()
        self.fs.write_bytes(self._path(_CLAIM), note)

    def claimed(self) -> str | None:
        """Return the manifest of the snapshot that this job owns and has not deleted yet; None if there is none.

        Raises:
            CheckpointCorruptError: If the note of it is damaged.
            CheckpointMismatchError: If it is not signed as it must be: it says what is deleted.
        """
        data, keys, path = self._bytes_if_there(_CLAIM), self._keys(), self._path(_CLAIM)
        if data is None:
            return None
        note, _, signed = data.partition(b"\n")
        try:
            uri, signature = note.decode(), parse_json(signed) if signed else None
        except ValueError as error:
            message = f"the note of the snapshot that a job has claimed is damaged: {error}"
            raise CheckpointCorruptError(message, path=path) from error
        if keys is not None:
            keys.verify(_CLAIM, note, signature, "the note of a claimed snapshot", path, self._place)
        return uri

    def forget_claim(self) -> None:
        """Forget what was claimed: it is gone."""
        self.fs.delete(self._path(_CLAIM))

    @property
    def _place(self) -> tuple[str]:
        """Where notes of this folder hold: in the one of this job."""
        return (self.root.rpartition("/")[2],)

    def _path(self, relative: str) -> str:
        return join_confined(self.root, relative)

    def __repr__(self) -> str:
        return f"CheckpointStorage({self.uri})"
