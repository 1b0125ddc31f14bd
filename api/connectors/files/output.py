"""The directory of a file sink: who owns it, what is staged in it, and what is public.

::

    <path>/part-<subtask>-<origin>-<owner>-<attempt>-<checkpoint>-<number>.<format>       public
    <path>/<column>=<value>/part-...                                                      public, of a sink with folders
    <path>/.staging/<origin>/claim-<number>.json                                          who may publish
    <path>/.staging/<origin>/<number>/<subtask>-<owner>-<attempt>-<count>.<format>        staged by that owner
    <path>/.staging/<origin>/<number>/savepoint-<subtask>-<owner>-<attempt>.json          what a savepoint holds
    <path>/.staging/first/<number>.json                                                   whose directory this is

An *origin* is one sink over all jobs that go on from each other's checkpoints, an *owner* the sink of one job.
Invariant: a file is made public only by renaming it out of the staging directory of the newest claim.

A takeover makes the next claim, moves everything that is staged under older ones into its own directory, and only then
looks at what is public. So a process of the owner before, however long it slept, either published before that look, or
finds its file gone: what it staged before the takeover has been moved, and whatever it stages later it never publishes,
as it asks for the newest claim in between. A claim is made exclusively, so of jobs that race one is the older; and an
owner that finds a newer claim than its own never takes the directory back.

Claims order the jobs of one origin. Origins are ordered by seals (`headrace.connectors.files.seals`): one that is to
be alone in its directory (all but those that append) seals it before it makes anything public. So of several that
begin in an empty directory at the same moment one can make the first seal, and all others fail before anything of
theirs is public. One that overwrites makes the next seal first of all, and only then takes away what is there: whatever
it finds is of origins that have been replaced.

Names come out of checkpoints, and so are not believed: see `headrace.connectors.files.committables`. Directories that
are links are refused.

Source: Kafka's transactional ids; Delta Lake's put-if-absent log.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re

from headrace.engine.columns.write_mode import OUTPUT_EXISTS_HINT, WriteMode
from headrace.engine.connectors.contract import CommitterContext, SinkHistory, WriterContext
from headrace.engine.errors import (
    AlreadyExistsError,
    CheckpointMismatchError,
    ConfigurationError,
    DamagedFileError,
    NewerOutputError,
    NotFoundError,
    SinkFencedError,
)
from headrace.state.checkpoints.manifest_schema import is_text, require
from headrace.state.files.filesystem import filesystem_for, join_confined, place_of, store_of
from headrace.state.files.hdfs import HdfsFileSystem
from headrace.state.files.local import LocalFileSystem, make_directories
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.files.objects import MAX_RENAMED_BYTES, ObjectFileSystem
from headrace.state.reading.read_limits import number_in
from headrace.state.reading.stored_json import parse_json

from ...formats.folders import FOLDERS
from .committables import STAGED_NAME, Committable, PublicFile, Staged, public_match
from .parts import FileSinkSettings, failing
from .seals import Seal, Seals, noted_in, number_after, numbered

__all__ = ["STAGING", "OutputDirectory"]

STAGING = ".staging"
NOTE = "savepoint-"
_CLAIM = re.compile(r"claim-([0-9]{5,18})\.json")
_DONE = "done-"
_MAX_NOTE_BYTES = 64 << 20
"""Of a note: the names of some hundred thousand parts."""


class OutputDirectory:
    """A file sink's directory, as one job's sink sees it.

    Args:
        location: Where it is.
        history: Of the sink.
        is_private: Whether what is made on a local disk is for its owner alone.
        has_folders: Whether what readers see is in folders ``name=value``, too.
    """

    def __init__(
        self, location: str, history: SinkHistory, *, is_private: bool = False, has_folders: bool = False
    ) -> None:
        self.location = location
        self.fs, self.root = filesystem_for(location, is_private=is_private)
        self._is_private = is_private
        self._has_folders = has_folders
        self._history = history
        self.staging = f"{self.root}/{STAGING}/{history.origin}"
        # This owner's claim, once it is made or found.
        self._number: int | None = None
        # Who may publish, of several origins; and whether this one has made or found its seal.
        self._seals = Seals(self.fs, f"{self.root}/{STAGING}", history.origin)
        self._is_sealed = False
        self._is_alone = True

    @classmethod
    def of(cls, settings: FileSinkSettings, history: SinkHistory) -> OutputDirectory:
        """Make that of a sink."""
        return cls(settings.location, history, is_private=settings.is_private, has_folders=bool(settings.partition_by))

    # ------------------------------------------------------------------------------------------------------------ names
    @property
    def own_staging(self) -> str:
        """Where this owner stages; it must have the claim."""
        assert self._number is not None, "the directory has not been claimed"
        return f"{self.staging}/{self._number:05d}"

    def staged_path(self, name: str) -> str:
        """Return where a staged file is, by its name in a committable."""
        return join_confined(self.root, name) if name.startswith(STAGING) else join_confined(self.own_staging, name)

    def public_path(self, name: str) -> str:
        """Return where a public file is."""
        return join_confined(self.root, name)

    def is_place_of(self, location: str) -> bool:
        """Return whether a location means this directory."""
        return location == self.location or place_of(location) == place_of(self.location)

    def require_own(self, committable: Committable) -> None:
        """Make sure that a part is this origin's: what others make public bears their name.

        Raises:
            CheckpointMismatchError: If it is not.
        """
        match = public_match(committable.final)
        if match is not None and match["origin"] != self._history.origin:
            message = "the checkpoint holds prepared output of another sink"
            raise CheckpointMismatchError(message, final=committable.final, origin=self._history.origin)

    def is_public(self, committable: Committable) -> bool:
        """Return whether a staged part has its public name already.

        A file that is public is never replaced: no two parts have one name, so what has it is this part, or was put
        there by somebody else. Only where a rename is a copy can it also be the beginning of one.

        Raises:
            CheckpointMismatchError: If another file has its name.
        """
        final = self.public_path(committable.final)
        if not self.fs.exists(final):
            return False
        size = self.fs.size(final)
        if size > committable.size or (size < committable.size and self._renames_at_once):
            message = f"another file has the name that prepared output was to have: {size} bytes, not its own"
            hint = "look where it comes from; prepared output does not replace what is public"
            raise CheckpointMismatchError(message, hint=hint, path=final, prepared_bytes=committable.size)
        return size == committable.size

    @property
    def _renames_at_once(self) -> bool:
        """Whether what has the new name is whole: object stores copy at once."""
        return isinstance(self.fs, (HdfsFileSystem, LocalFileSystem, MemoryFileSystem, ObjectFileSystem))

    def is_public_elsewhere(self, committable: Committable) -> bool:
        """Return whether a part that was prepared for another directory is public there.

        Only looked up in the store that this directory is in: a checkpoint must not name others.
        """
        if store_of(committable.location) != store_of(self.location):
            return False
        fs, root = filesystem_for(committable.location)
        path = join_confined(root, committable.final)
        return fs.exists(path) and fs.size(path) == committable.size

    def require_room(self, part_bytes: int) -> None:
        """Make sure that parts can be renamed: what cannot be committed must not be staged.

        Raises:
            ConfigurationError: If the store takes no objects of that size.
        """
        if isinstance(self.fs, ObjectFileSystem) and part_bytes > MAX_RENAMED_BYTES // 2:
            message = f"parts in an object store have at most {MAX_RENAMED_BYTES // 2:,} bytes; got {part_bytes:,}"
            raise ConfigurationError(message, hint="lower max_part_bytes", path=self.location)

    def make(self) -> None:
        """Make the directory, and refuse links in it that lead elsewhere."""
        if not isinstance(self.fs, LocalFileSystem):
            return
        try:
            if self._is_private:
                make_directories(self.root, 0o700)
            os.makedirs(self.root, exist_ok=True)
        except OSError as error:
            message = f"cannot use the output directory: {error.strerror or error}"
            if error.errno in _STRUCTURE:
                raise ConfigurationError(message, path=self.root) from error
            raise
        real = os.path.realpath(self.root)
        for path in (f"{self.root}/{STAGING}", self.staging):
            if os.path.realpath(path) != real + path[len(self.root) :]:
                message = "the sink's staging directory is a link, which it never follows"
                raise ConfigurationError(message, hint="remove the link", path=path)
            if os.path.lexists(path) and not os.path.isdir(path):
                message = "a file is where the sink's staging directory must be"
                raise ConfigurationError(message, hint="remove it", path=path)

    def require_folder(self, final: str) -> None:
        """Make sure that the folders of a public file are, or can be made, below the directory.

        Raises:
            ConfigurationError: If a link or a file is in the place of one.
        """
        if not isinstance(self.fs, LocalFileSystem):
            return
        parts = final.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            path = f"{self.root}/{'/'.join(parts[:count])}"
            if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
                message = "a link or a file is where a folder of the sink's output must be"
                raise ConfigurationError(message, hint="remove it", path=path)

    # ------------------------------------------------------------------------------------------------------- ownership
    def _claims(self) -> list[int]:
        return numbered(self.fs, self.staging, _CLAIM)

    def _claim_path(self, number: int) -> str:
        return f"{self.staging}/claim-{number:05d}.json"

    def _owner_of(self, number: int) -> str | None:
        claim = noted_in(self.fs, self._claim_path(number))
        return None if claim is None else str(claim.get("owner", ""))

    def is_claimed(self) -> bool:
        """Return whether this owner has a claim, the newest or not."""
        return any(self._owner_of(number) == self._history.owner for number in self._claims())

    def claim(self, job: str, *, is_alone: bool) -> None:
        """Become the owner, or find out that one is it; the one before may publish no more.

        Args:
            job: The job's id, for people.
            is_alone: Whether no other origin may write to the directory.

        Raises:
            SinkFencedError: If an owner that came later has the directory, or another origin.
        """
        own = self._history.owner
        self._is_alone = is_alone
        seal, origin = self._seals.newest(), self._history.origin
        if is_alone and seal.origin not in (None, origin):
            raise self._not_alone(seal)
        self._claim(own, job)
        # One that began at the same time may have made its output public since this one looked, and even have left.
        seal = self._seals.newest()
        if is_alone and seal.origin != origin and self.visible() and not self.public_files():
            raise self._not_alone(seal)

    def _claim(self, own: str, job: str) -> None:
        while True:
            claims = self._claims()
            owners = {number: self._owner_of(number) for number in claims}
            if own in owners.values():
                mine = max(number for number, owner in owners.items() if owner == own)
                if mine != claims[-1]:
                    raise self._fenced()
                self._number = mine
                return
            number = number_after(
                max([0, *claims, *(number for number, _ in self._staged_under_claims())]), self.staging
            )
            try:
                content = {"owner": own, "job": job}
                self.fs.create_exclusive(self._claim_path(number), json.dumps(content).encode())
            except AlreadyExistsError:
                continue  # somebody else was faster, or an answer got lost
            self._number = number
            return

    def require_owner(self) -> None:
        """Make sure that no other job has taken over.

        Raises:
            SinkFencedError: If somebody has, even if it has ended since.
        """
        number = self._number
        if number is None:
            claims = self._claims()
            number = claims[-1] if claims else 0
        if self._owner_of(number) != self._history.owner or self.fs.exists(self._claim_path(number + 1)):
            raise self._fenced()
        self._number = number

    def require_alone(self) -> None:
        """Make sure, before something is made public, that the directory is this origin's, if it wants to be alone.

        Raises:
            SinkFencedError: If another origin has it.
        """
        if not self._is_alone:
            return
        if not self._is_sealed:
            self._seal()
            self._is_sealed = True
        else:
            self._require_seal()

    def _require_seal(self) -> None:
        seal = self._seals.newest()
        if seal.origin != self._history.origin:
            raise self._not_alone(seal)

    def _seal(self) -> None:
        """Have the newest seal; one that overwrites has it already."""
        seal = self._seals.newest()
        if seal.origin is None:
            self._seals.make_next(seal)
        self._require_seal()

    def _not_alone(self, seal: Seal) -> SinkFencedError:
        message = "another sink has begun in the output directory, and has it"
        hint = (
            "give each job a directory of its own, or let all have mode='append'; if the other job is gone,"
            " mode='overwrite' takes the directory over"
        )
        return SinkFencedError(message, hint=hint, path=self.root, seal=seal.number)

    def _fenced(self) -> SinkFencedError:
        if not self._claims():
            message = (
                "the sink's claim of the output directory is gone: somebody has deleted it, or the directory; or it has"
                " been taken over by a job that has ended since"
            )
            hint = "what was public is gone with the directory; start anew from a checkpoint whose output is there"
            return SinkFencedError(message, hint=hint, path=self.root)
        message = "the output directory has been taken over by another job that goes on from the same checkpoints"
        hint = "of two jobs that restore one checkpoint, let one write to a directory of its own"
        return SinkFencedError(message, hint=hint, path=self.root)

    def adopt(self) -> None:
        """Move what is staged under older claims into this owner's staging directory."""
        for number, path in self._staged_under_claims():
            if number == self._number:
                continue
            try:
                self.fs.rename(path, f"{self.own_staging}/{path.rpartition('/')[2]}")
            except NotFoundError:
                continue  # another subtask did, or it was made public before the takeover

    def _staged_under_claims(self) -> list[tuple[int, str]]:
        """All that is staged for this origin: the claim that it is under, and its path."""
        found = []
        for path, _ in self.fs.list_files(self.staging):
            directory, _, name = path[len(self.staging) + 1 :].partition("/")
            number = number_in(directory)
            if number is not None and name and "/" not in name:
                found.append((number, path))
        return found

    def mark_done(self, subtask: int, parallelism: int) -> None:
        """Note that a subtask has committed all that it ever will; the last one takes the claims away.

        Their names stay in the public files; an owner that finds its claim gone publishes no more. A newer claim than
        this owner's stays: somebody has taken over in these moments.
        """
        assert self._number is not None, "the directory has not been claimed"
        if parallelism > 1:
            self.fs.write_bytes(f"{self.staging}/{_DONE}{subtask:05d}", b"")
        names = {path[len(self.staging) + 1 :] for path, _ in self.fs.list_files(self.staging)}
        done = {f"{_DONE}{number:05d}" for number in range(parallelism)}
        if parallelism > 1 and not done <= names:
            return
        for name in sorted(names):
            claim = _CLAIM.fullmatch(name)
            if name.startswith(_DONE) or (claim is not None and int(claim[1]) <= self._number):
                self.fs.delete(f"{self.staging}/{name}")
        self._seals.end(is_alone=not self._others_have_claims())

    def _others_have_claims(self) -> bool:
        """Whether another origin has begun here, which may yet ask for the seal."""
        files = [path for path, _ in self.fs.list_files(f"{self.root}/{STAGING}")]
        claims = [path for path in files if _CLAIM.fullmatch(path.rpartition("/")[2])]
        return any(not path.startswith(f"{self.staging}/") for path in claims)

    def forget_done(self, subtask: int) -> None:
        """Note that a subtask goes on, although an attempt before was done."""
        self.fs.delete(f"{self.staging}/{_DONE}{subtask:05d}")

    # --------------------------------------------------------------------------------------------------- what is there
    def staged_files(self) -> list[tuple[str, Staged]]:
        """Return what this owner's staging directory holds: names, and what they say."""
        found = []
        for path, _ in self.fs.list_files(self.own_staging):
            name = path.rpartition("/")[2]
            if match := STAGED_NAME.fullmatch(name):
                found.append((name, Staged(int(match["subtask"]), match["owner"], match["attempt"])))
        return found

    def notes(self) -> list[str]:
        """Return names of the notes of what savepoints hold."""
        names = [path.rpartition("/")[2] for path, _ in self.fs.list_files(self.own_staging)]
        return [name for name in names if name.startswith(NOTE)]

    def noted(self, note: str) -> set[str]:
        """Return the staged names that a note spares; none if its writer has just removed it.

        Raises:
            DamagedFileError: If it does not say: what it spares must not be deleted.
        """
        path = f"{self.own_staging}/{note}"
        try:
            names = parse_json(self.fs.read_bytes(path, _MAX_NOTE_BYTES), max_bytes=_MAX_NOTE_BYTES)
            require(type(names) is list and all(map(is_text, names)), "names", names)
        except NotFoundError:
            return set()
        except ValueError as error:
            message = f"the note of what a savepoint holds cannot be decoded: {error}"
            raise DamagedFileError(message, path=path) from error
        return set(names)

    def visible(self) -> list[str]:
        """Return names of all files that readers see: those directly in the directory, and those in folders, if it has
        some.

        Of folders only those that are called ``name=value`` count.
        """
        return [name for name in self._in_folders() if self._has_folders or "/" not in name]

    def _in_folders(self) -> list[str]:
        start = len(self.root) + 1 if self.root else 0
        names = [path[start:].rpartition("/") for path, _ in self.fs.list_files(self.root)]
        return [
            f"{folders}{slash}{name}"
            for folders, slash, name in names
            if not name.startswith((".", "_")) and (not slash or FOLDERS.fullmatch(folders))
        ]

    def require_fresh(self, mode: WriteMode) -> None:
        """Do with what is in the directory as the mode says. Called by a first run.

        Raises:
            ConfigurationError: If there is output, and the program does not say what to do with it, or it may be what
                the restored checkpoint counts on.
        """
        if mode == "append" or self.is_claimed() or self.public_files():
            return  # or it is no first run
        there = self.visible()
        if there and self._history.is_unknown:
            raise self._of_unknown_origin(there)
        if mode == "overwrite":
            self._overwrite()
        elif there:
            message = f"the output directory has output already: {len(there)} files, {there[0]!r} among them"
            hint = f"{OUTPUT_EXISTS_HINT}; a job that is restored goes on by itself"
            raise ConfigurationError(message, hint=hint, path=self.root)

    def _overwrite(self) -> None:
        """Have the directory, and take away what others have there.

        Every subtask does so, before it claims the directory: one that finds its claim need not look again.

        Raises:
            SinkFencedError: If another origin has it, which came later.
        """
        if not self._seals.take():
            raise self._not_alone(self._seals.newest())
        # What is staged goes first: what is made public in between is seen then. Without its claim, the owner before
        # publishes no more.
        keeps = (f"{self.staging}/", f"{self._seals.directory}/")
        staged = [path for path, _ in self.fs.list_files(f"{self.root}/{STAGING}") if not path.startswith(keeps)]
        self._delete_of_others(staged)
        own = {file.name for file in self.public_files()}
        self._delete_of_others([self.public_path(name) for name in self.visible() if name not in own])

    def _delete_of_others(self, paths: list[str]) -> None:
        """Delete what a look has found, none of which is of an origin with a later seal."""
        self._require_seal()
        for path in paths:
            self.fs.delete(path)

    def _of_unknown_origin(self, there: list[str]) -> ConfigurationError:
        message = (
            f"the output directory has {len(there)} files, {there[0]!r} among them, and the checkpoint does not say"
            " whether they are this sink's"
        )
        hint = (
            "if it was taken by an earlier version of Headrace, mode='append' keeps them and goes on; if the sink is"
            " new in the program, empty the directory or name another one"
        )
        return ConfigurationError(message, hint=hint, path=self.root)

    def public_files(self) -> list[PublicFile]:
        """Return the public files of this sink's origin."""
        found = []
        for name in self._in_folders():  # it may have had folders in an earlier run
            match = public_match(name)
            if match is not None and match["origin"] == self._history.origin:
                subtask, checkpoint_id = int(match["subtask"]), int(match["checkpoint"])
                found.append(PublicFile(name, subtask, match["origin"], match["owner"], checkpoint_id))
        return found

    def newer_than_restored(self) -> list[PublicFile]:
        """Return public files of this sink that the restored checkpoint does not account for."""
        accounts_for = self._history.accounts_for
        return [file for file in self.public_files() if not accounts_for(file.owner, file.checkpoint_id)]

    def newer_output(self, files: list[PublicFile]) -> NewerOutputError:
        """Return the error that says what is public."""
        ids = sorted({file.checkpoint_id for file in files})
        known = self._history.prepared
        point = f"checkpoint {max(known.values())}" if known else "nothing"
        since = f"checkpoints {ids[0]} to {ids[-1]}" if len(ids) > 1 else f"checkpoint {ids[0]}"
        if ids[-1] == 0:
            since = "a run without checkpoints"
        message = (
            f"the job goes on from {point}, and the directory has output that was made public behind it:"
            f" {len(files)} files of {since}, {files[0].name} among them; going on would write their records again"
        )
        hint = (
            "restore the newest checkpoint; or say on_newer_output='delete' to take those files away,"
            " or 'keep' to have records twice"
        )
        return NewerOutputError(message, hint=hint, path=self.root)

    def delete(self, paths: list[str], context: WriterContext | CommitterContext) -> None:
        """Delete staged files.

        Raises:
            SinkError: If one cannot be deleted.
        """
        for path in paths:
            with failing("cannot delete a staged file", path=path, **context.place):
                self.fs.delete(path)

    def remove_if_empty(self) -> None:
        """Remove directories for staging that hold nothing."""
        if isinstance(self.fs, LocalFileSystem):
            numbers: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                numbers = [name for name in os.listdir(self.staging) if number_in(name) is not None]
            own = (*(f"{self.staging}/{name}" for name in numbers), self.staging)
            for directory in (*own, self._seals.directory, f"{self.root}/{STAGING}"):
                try:
                    os.rmdir(directory)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                        raise


_STRUCTURE = (errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
"""Errors that do not pass by themselves: names are in the way."""
