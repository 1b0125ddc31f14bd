"""The directory of a file sink: who owns it, what is staged in it, and what is public.

::

    <path>/part-<subtask>-<origin>-<owner>-<attempt>-<checkpoint>-<number>.<format>       public
    <path>/.staging/<origin>/claim-<number>.json                                          who may publish
    <path>/.staging/<origin>/<number>/<subtask>-<owner>-<attempt>-<count>.<format>        staged by that owner
    <path>/.staging/<origin>/<number>/savepoint-<subtask>-<owner>-<attempt>.json          what a savepoint holds
    <path>/.staging/first-<number>.json                                                   whose directory this is

An *origin* is one sink over all jobs that go on from each other's checkpoints, an *owner* the sink of one job.
Invariant: a file is made public only by renaming it out of the staging directory of the newest claim.

A takeover makes the next claim, moves everything that is staged under older ones into its own directory, and only then
looks at what is public. So a process of the owner before, however long it slept, either published before that look, or
finds its file gone: what it staged before the takeover has been moved, and whatever it stages later it never publishes,
as it asks for the newest claim in between. A claim is made exclusively, so of jobs that race one is the older; and an
owner that finds a newer claim than its own never takes the directory back.

Claims order the jobs of one origin. Origins are ordered by *seals*: one that is to be alone in its directory (all but
those that append) seals it before it makes anything public. A seal is made exclusively, and a claim says which one was
the newest when the sink began; so of several that begin in an empty directory at the same moment one can make the next
seal, and all others fail before anything of theirs is public.

Names come out of checkpoints, and so are not believed: see `Committable`. Directories that are links are refused.

Source: Kafka's transactional ids; Delta Lake's put-if-absent log.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from headrace.engine.columns.write_mode import OUTPUT_EXISTS_HINT, WriteMode
from headrace.engine.connectors.contract import SinkHistory
from headrace.engine.errors import (
    AlreadyExistsError,
    CheckpointMismatchError,
    ConfigurationError,
    DamagedFileError,
    NewerOutputError,
    NotFoundError,
    SinkFencedError,
)
from headrace.state.checkpoints.manifest_schema import is_count, is_text, require
from headrace.state.files.filesystem import filesystem_for, join_confined, place_of, store_of
from headrace.state.files.local import LocalFileSystem, make_directories
from headrace.state.values.stored_json import MAX_RECORD_BYTES, parse_json

__all__ = ["STAGING", "Committable", "OutputDirectory", "PublicFile", "Staged"]

STAGING = ".staging"
NOTE = "savepoint-"
_CLAIM = re.compile(r"claim-([0-9]{5,})\.json")
_SEAL = re.compile(r"first-([0-9]{5,})\.json")
_DONE = "done-"
_ORIGIN = re.compile("[0-9a-f]{12}")
_MAX_NAME = 255
_MAX_NOTE_BYTES = 64 << 20
"""Of a note: the names of some hundred thousand parts."""
_FORMATS = "(?:parquet|csv|jsonl)"
_STAGED = re.compile(rf"([0-9]{{5,}})-([0-9a-f]{{12}})-([0-9]+_[0-9]+)-[0-9]{{5,}}\.{_FORMATS}")
_PUBLIC = re.compile(
    rf"part-([0-9]{{5,}})-([0-9a-f]{{12}})-([0-9a-f]{{12}})-[0-9]+_[0-9]+-([0-9]{{5,}})-[0-9]{{5,}}\.{_FORMATS}"
)
_OLD_STAGED = re.compile(
    rf"(.*)/(\.staging/[0-9a-f]{{12}}/[0-9]{{5,}}-[0-9a-f]{{12}}-[0-9]{{5,}}\.{_FORMATS})", re.DOTALL
)
_OLD_PUBLIC = re.compile(rf"(.*)/(part-[0-9]{{5,}}-[0-9a-f]{{12}}-[0-9]{{5,}}-[0-9]{{5,}}\.{_FORMATS})", re.DOTALL)


@dataclass(frozen=True)
class Committable:
    """A closed part: names within the directory, and how large it is.

    Attributes:
        location: The directory, as the sink that prepared it was told.
        staged: Its name in the staging directory; of version 1 with the directories in front.
        final: Its public name.
        size: Bytes.
        rows: Records.
    """

    location: str
    staged: str
    final: str
    size: int
    rows: int

    def to_state(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return asdict(self)

    @classmethod
    def of(cls, state: Any) -> Committable:
        """Read what a checkpoint holds.

        Raises:
            CheckpointMismatchError: If it is not what a file sink prepares, or names anything but a staged file and a
                public one directly in its directory.
        """
        try:
            location, staged, final = state["location"], state["staged"], state["final"]
            size, rows = state["size"], state["rows"]
        except (KeyError, TypeError) as error:
            message = f"the checkpoint holds prepared output that is not a file sink's: {error!r}"
            raise CheckpointMismatchError(message) from error
        texts, numbers = (location, staged, final), (size, rows)
        if not all(is_text(text) and "\0" not in text for text in texts) or not all(map(is_count, numbers)):
            message = "the checkpoint holds prepared output that is not a file sink's"
            raise CheckpointMismatchError(message)
        if max(len(staged.rpartition("/")[2]), len(final.rpartition("/")[2])) > _MAX_NAME:
            message = "the checkpoint holds prepared output whose name no file has"
            raise CheckpointMismatchError(message, staged=staged[:_MAX_NAME], final=final[:_MAX_NAME])
        if _STAGED.fullmatch(staged) and _PUBLIC.fullmatch(final):
            return cls(location, staged, final, size, rows)
        old_staged, old_final = _OLD_STAGED.fullmatch(staged), _OLD_PUBLIC.fullmatch(final)  # version 1: paths
        if old_staged is not None and old_final is not None and old_staged[1] == old_final[1]:
            return cls(location, old_staged[2], old_final[2], size, rows)
        message = "the checkpoint holds prepared output outside of the sink's directory"
        shown = {"staged": staged, "final": final, "directory": location}
        raise CheckpointMismatchError(message, **{name: text[:_MAX_NAME] for name, text in shown.items()})


class PublicFile(NamedTuple):
    """What the name of a public file of a file sink says."""

    name: str
    subtask: int
    origin: str
    owner: str
    checkpoint_id: int


class Staged(NamedTuple):
    """What the name of a staged file says."""

    subtask: int
    owner: str
    attempt: str


class OutputDirectory:
    """A file sink's directory, as one job's sink sees it.

    Args:
        location: Where it is.
        history: Of the sink.
        is_private: Whether what is made on a local disk is for its owner alone.
    """

    def __init__(self, location: str, history: SinkHistory, *, is_private: bool = False) -> None:
        self.location = location
        self.fs, self.root = filesystem_for(location, is_private=is_private)
        self._is_private = is_private
        self._history = history
        self.staging = f"{self.root}/{STAGING}/{history.origin}"
        # This owner's claim, once it is made or found.
        self._number: int | None = None
        # The seal by which this origin has the directory; None until it is made or found.
        self._sealed: int | None = None
        self._is_alone = True

    # ------------------------------------------------------------------------------------------------------------ names
    @property
    def own_staging(self) -> str:
        """Where this owner stages; it must have the claim."""
        assert self._number is not None, "the directory has not been claimed"
        return f"{self.staging}/{self._number:05d}"

    def staged_path(self, name: str) -> str:
        """Where a staged file is, by its name in a committable."""
        return join_confined(self.root, name) if name.startswith(STAGING) else join_confined(self.own_staging, name)

    def public_path(self, name: str) -> str:
        """Where a public file is."""
        return join_confined(self.root, name)

    def is_place_of(self, location: str) -> bool:
        """Whether a location means this directory."""
        return location == self.location or place_of(location) == place_of(self.location)

    def is_public_elsewhere(self, committable: Committable) -> bool:
        """Whether a part that was prepared for another directory is public there.

        Only looked up in the store that this directory is in: a checkpoint must not name others.
        """
        if store_of(committable.location) != store_of(self.location):
            return False
        fs, root = filesystem_for(committable.location)
        path = join_confined(root, committable.final)
        return fs.exists(path) and fs.size(path) == committable.size

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

    # ------------------------------------------------------------------------------------------------------- ownership
    def _claims(self) -> list[int]:
        start = len(self.staging) + 1
        found = (_CLAIM.fullmatch(path[start:]) for path, _ in self.fs.list_files(self.staging))
        return sorted(int(match[1]) for match in found if match is not None)

    def _claim_path(self, number: int) -> str:
        return f"{self.staging}/claim-{number:05d}.json"

    def _noted_in(self, path: str) -> dict[str, Any] | None:
        try:
            content = parse_json(self.fs.read_bytes(path, MAX_RECORD_BYTES))
        except NotFoundError:
            return None
        except ValueError:
            return {}  # half written where there are no hard links; it will never be anybody's
        return content if isinstance(content, dict) else {}

    def _owner_of(self, number: int) -> str | None:
        claim = self._noted_in(self._claim_path(number))
        return None if claim is None else str(claim.get("owner", ""))

    def is_claimed(self) -> bool:
        """Whether this owner has a claim, the newest or not."""
        return any(self._owner_of(number) == self._history.owner for number in self._claims())

    def claim(self, job: str, *, is_alone: bool) -> None:
        """Become the owner, or find out that one is it; whoever was it before may publish no more.

        Args:
            job: The job's id, for people.
            is_alone: Whether no other origin may write to the directory.

        Raises:
            SinkFencedError: If an owner that came later has the directory, or another origin.
        """
        own = self._history.owner
        self._is_alone = is_alone
        newest, sealer = self._newest_seal()
        if is_alone and sealer not in (None, self._history.origin) and self.public_files():
            raise self._not_alone(newest)
        self._claim(own, job, newest)
        # One that began at the same time may have made its output public since this one looked, and even have left.
        newest, sealer = self._newest_seal()
        if is_alone and sealer != self._history.origin and self.visible() and not self.public_files():
            raise self._not_alone(newest)

    def _claim(self, own: str, job: str, num_seals: int) -> None:
        while True:
            claims = self._claims()
            owners = {number: self._owner_of(number) for number in claims}
            if own in owners.values():
                mine = max(number for number, owner in owners.items() if owner == own)
                if mine != claims[-1]:
                    raise self._fenced()
                self._number = mine
                return
            directories = [int(path[len(self.staging) + 1 :].partition("/")[0]) for path in self._staged_elsewhere("")]
            number = max([0, *claims, *directories]) + 1
            try:
                content = {"owner": own, "job": job, "seals": num_seals}
                self.fs.create_exclusive(self._claim_path(number), json.dumps(content).encode())
            except AlreadyExistsError:
                continue  # somebody else was faster, or an answer got lost
            self._number = number
            return

    def require_owner(self) -> None:
        """Make sure that nobody has taken over.

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

    def _seal_path(self, number: int) -> str:
        return f"{self.root}/{STAGING}/first-{number:05d}.json"

    def _newest_seal(self) -> tuple[int, str | None]:
        """Number and origin of the newest seal; 0 and None if there is none."""
        start = len(f"{self.root}/{STAGING}/")
        matches = (_SEAL.fullmatch(path[start:]) for path, _ in self.fs.list_files(f"{self.root}/{STAGING}"))
        number = max((int(match[1]) for match in matches if match is not None), default=0)
        seal = self._noted_in(self._seal_path(number)) if number else None
        return (0, None) if seal is None else (number, str(seal.get("origin", "")))

    def require_alone(self) -> None:
        """Before something is made public: make sure that the directory is this origin's, if it wants to be alone.

        Raises:
            SinkFencedError: If another origin has it.
        """
        if not self._is_alone:
            return
        if self._sealed is None:
            self._sealed = self._seal()
        elif self.fs.exists(self._seal_path(self._sealed + 1)):
            raise self._not_alone(self._sealed + 1)

    def _seal(self) -> int:
        """Have the newest seal; gives its number."""
        assert self._number is not None, "the directory has not been claimed"
        origin = self._history.origin
        newest, sealer = self._newest_seal()
        claim = self._noted_in(self._claim_path(self._number)) or {}
        before = claim.get("seals", 0)
        if sealer != origin:
            if newest != before:
                raise self._not_alone(newest)
            with contextlib.suppress(AlreadyExistsError):  # another subtask's, or another origin's
                self.fs.create_exclusive(self._seal_path(before + 1), json.dumps({"origin": origin}).encode())
            newest, sealer = self._newest_seal()
            if sealer != origin:
                raise self._not_alone(newest)
        if before and newest > before:  # an origin with nothing public had the directory: ended, asleep or about to
            self._take_staged_away(before)
            if self.visible() and not self.public_files():
                self.fs.delete(self._seal_path(newest))
                raise self._not_alone(before)
        return newest

    def _take_staged_away(self, number: int) -> None:
        """What an origin with an older seal had staged it never publishes, also if it sleeps in front of doing so."""
        seal = self._noted_in(self._seal_path(number)) if number else None
        origin = "" if seal is None else str(seal.get("origin", ""))
        if _ORIGIN.fullmatch(origin) is None:
            return
        staging = f"{self.root}/{STAGING}/{origin}"
        for path, _ in self.fs.list_files(staging):
            name = path.rpartition("/")[2]
            if _STAGED.fullmatch(name):
                with contextlib.suppress(NotFoundError):  # another subtask did
                    self.fs.rename(path, f"{staging}/replaced/{name}")

    def _not_alone(self, number: int) -> SinkFencedError:
        message = "another sink, which began here too, has the output directory"
        hint = "give each job a directory of its own, or let all have mode='append'"
        return SinkFencedError(message, hint=hint, path=self.root, seal=number)

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
        for path in self._staged_elsewhere(self.own_staging):
            try:
                self.fs.rename(path, f"{self.own_staging}/{path.rpartition('/')[2]}")
            except NotFoundError:
                continue  # another subtask did, or it was made public before the takeover

    def _staged_elsewhere(self, own: str) -> list[str]:
        paths = [path for path, _ in self.fs.list_files(self.staging)]
        parts = [(path, path[len(self.staging) + 1 :].split("/")) for path in paths]
        found = [path for path, names in parts if len(names) == 2 and names[0].isdigit()]
        return [path for path in found if path.rpartition("/")[0] != own]

    def mark_done(self, subtask: int, parallelism: int) -> None:
        """A subtask has committed all that it ever will: the last one takes the claims away.

        Their names stay in the public files; whoever finds its claim gone publishes no more. A newer claim than this
        owner's stays: somebody has taken over in these moments.
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
        newest, sealer = self._newest_seal()
        if sealer == self._history.origin and not self._others_have_claims():
            for number in range(1, newest + 1):
                self.fs.delete(self._seal_path(number))

    def _others_have_claims(self) -> bool:
        """Whether another origin has begun here, which may yet ask for the seal."""
        files = [path for path, _ in self.fs.list_files(f"{self.root}/{STAGING}")]
        claims = [path for path in files if _CLAIM.fullmatch(path.rpartition("/")[2])]
        return any(not path.startswith(f"{self.staging}/") for path in claims)

    def forget_done(self, subtask: int) -> None:
        """A subtask goes on, although an attempt before was done."""
        self.fs.delete(f"{self.staging}/{_DONE}{subtask:05d}")

    # --------------------------------------------------------------------------------------------------- what is there
    def staged_files(self) -> list[tuple[str, Staged]]:
        """What this owner's staging directory holds: names, and what they say."""
        found = []
        for path, _ in self.fs.list_files(self.own_staging):
            name = path.rpartition("/")[2]
            if match := _STAGED.fullmatch(name):
                found.append((name, Staged(int(match[1]), match[2], match[3])))
        return found

    def notes(self) -> list[str]:
        """Names of the notes of what savepoints hold."""
        names = [path.rpartition("/")[2] for path, _ in self.fs.list_files(self.own_staging)]
        return [name for name in names if name.startswith(NOTE)]

    def noted(self, note: str) -> set[str]:
        """The staged names that a note spares; none if its writer has just removed it.

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
        """Names of all files directly in the directory that readers see."""
        start = len(self.root) + 1 if self.root else 0
        names = [path[start:] for path, _ in self.fs.list_files(self.root)]
        return [name for name in names if "/" not in name and not name.startswith((".", "_"))]

    def require_fresh(self, mode: WriteMode) -> None:
        """A first run comes to the directory: do with what is there as the mode says.

        Raises:
            ConfigurationError: If there is output, and nobody has said what shall become of it, or it may be what the
                restored checkpoint counts on.
        """
        if mode == "append" or self.is_claimed() or self.public_files():
            return  # or it is no first run
        there = self.visible()
        if there and self._history.is_unknown:
            raise self._of_unknown_origin(there)
        if mode == "overwrite":
            for name in there:
                self.fs.delete(self.public_path(name))
            start = len(f"{self.root}/{STAGING}/")
            for path, _ in self.fs.list_files(f"{self.root}/{STAGING}"):
                if not path.startswith(f"{self.staging}/") and not _SEAL.fullmatch(path[start:]):
                    self.fs.delete(path)  # with its claim, whoever wrote here before publishes no more
        elif there:
            message = f"the output directory has output already: {len(there)} files, {there[0]!r} among them"
            hint = f"{OUTPUT_EXISTS_HINT}; a job that is restored goes on by itself"
            raise ConfigurationError(message, hint=hint, path=self.root)

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
        """The public files of this sink's origin."""
        found = []
        for name in self.visible():
            match = _PUBLIC.fullmatch(name)
            if match is not None and match[2] == self._history.origin:
                found.append(PublicFile(name, int(match[1]), match[2], match[3], int(match[4])))
        return found

    def newer_than_restored(self) -> list[PublicFile]:
        """Public files of this sink that the restored checkpoint does not account for."""
        accounts_for = self._history.accounts_for
        return [file for file in self.public_files() if not accounts_for(file.owner, file.checkpoint_id)]

    def newer_output(self, files: list[PublicFile]) -> NewerOutputError:
        """The error that says what is public."""
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

    def remove_if_empty(self) -> None:
        """Remove directories for staging that hold nothing."""
        if isinstance(self.fs, LocalFileSystem):
            numbers: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                numbers = [name for name in os.listdir(self.staging) if name.isdigit()]
            for directory in (*(f"{self.staging}/{name}" for name in numbers), self.staging, f"{self.root}/{STAGING}"):
                try:
                    os.rmdir(directory)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                        raise


_STRUCTURE = (errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
"""Errors that do not pass by themselves: names are in the way."""
