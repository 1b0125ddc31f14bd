"""The jobs of a cluster, on durable storage: what was submitted, who has taken it over, how it ended.

::

    <root>/jobs/<job id>/submission          made exclusively: the job, before its submission is acknowledged
                         adopted/<epoch>     the leader of that epoch has found the job open and runs it
                         ended/<epoch>       the job's last word, recorded by the leader of that epoch

A leader that loses its lease may still write, at any later time. So nothing counts by being there alone:

* *Submission.* The leader writes it, then sees that its epoch is the newest, and only then acknowledges. A later
  leader takes its epoch first and reads afterwards; so it finds every job that was ever acknowledged.
* *End.* In the same way: written, epoch checked, and only then told to anybody. A later leader that did not find it
  writes its ``adopted`` mark before it starts the job again. **A job has ended if the end of some epoch stands that
  no later epoch has adopted it after.** An end that was checked in time is seen by every later leader, so no mark is
  ever set above it; one that came too late lies below the mark of the leader that runs the job, and does not count.

* *Clean-up.* The submission of a job that has ended stays until what the job has left elsewhere is deleted: a leader
  that finds both does that again. It need not ask whether it may: an end that stands does so for ever.

An entry is a line of JSON about it, its *facts* as another line, and the user's *program*, which nobody opens here and
no Dispatcher either. Who can write to this directory can have programs run, so on a local disk it is
made readable and writable for its owner alone, and with a key of the cluster it is signed, and nothing else is taken:
signed for this cluster and this name, so that no entry can be put in the place of another, here or elsewhere.
Every entry carries its SHA-256; one that is damaged, or larger than any that is written, is named, and hides no other.

Source: Flink's ``ExecutionPlanStore`` and ``JobResultStore`` (FLIP-194).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import (
    AlreadyExistsError,
    CheckpointMismatchError,
    ConfigurationError,
    DamagedFileError,
    NotFoundError,
    StorageError,
    TypeMismatchError,
)
from ..files.filesystem import FileSystem, filesystem_for, join_confined
from ..files.permissions import require_private
from ..reading.signing import SigningKeys
from ..reading.stored_json import parse_json
from .manifest_schema import is_count, require

__all__ = ["MAX_FACTS_BYTES", "MAX_PROGRAM_BYTES", "JobStore", "StoredJob", "StoredSubmission"]

MAX_PROGRAM_BYTES = 1 << 30
"""Of a stored program; what a program works on belongs into files, which its sources read."""

MAX_FACTS_BYTES = 64 << 20
"""Of the facts of an entry: the last view of a job of ten thousand subtasks has a tenth of that."""

_MAX_HEADER_BYTES = 4_096
_MAX_ENTRY_BYTES = MAX_PROGRAM_BYTES + MAX_FACTS_BYTES + _MAX_HEADER_BYTES

_JOB_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_EPOCH = re.compile(r"[0-9]{12,18}")
_FORMAT = 2
_PURPOSE = "job store"
"""What signatures of entries are made for."""


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """What was submitted.

    Attributes:
        facts: What may be known of it, as it was given: JSON values.
        program: The program, closed.
    """

    facts: dict[str, Any]
    program: bytes


@dataclass(frozen=True, slots=True)
class StoredJob:
    """What is known of one job.

    Attributes:
        job_id: The job.
        submission: What was submitted; None once the job has ended and has been cleaned up after.
        end: Its last word, as it was given: JSON values; None while it has not ended.
        problem: What is wrong with its entry, if anything is.
    """

    job_id: str
    submission: StoredSubmission | None
    end: dict[str, Any] | None
    problem: str | None = None


class JobStore:
    """The jobs of one cluster. All calls block; every one may raise StorageError.

    Args:
        fs: The file system. root: Path of the cluster's directory in it, whose name is the cluster's id.
        key_file: Of the keys that entries are signed with (`headrace.state.reading.signing`); others are damaged then.
    """

    def __init__(self, fs: FileSystem, root: str, key_file: str | None = None) -> None:
        self._key_file = key_file
        self.fs = fs
        self.root = root.rstrip("/")

    @classmethod
    def open(cls, cluster_uri: str, key_file: str | None = None) -> JobStore:
        """Return the jobs of a cluster, below the cluster's directory."""
        fs, root = filesystem_for(cluster_uri, is_private=True)
        return cls(fs, root, key_file)

    def put_submission(self, job_id: str, epoch: int, facts: dict[str, Any], program: bytes) -> None:
        """Store what was submitted. The same again is the same job, of the leader that took it last.

        Args:
            job_id: The job.
            epoch: Of the leader that takes it.
            facts: JSON values, for readers of the store.
            program: For the process that runs it.

        Raises:
            AlreadyExistsError: If another submission has that id.
            TypeMismatchError: If it is too large, or the facts are no JSON values.
        """
        path = self._path(job_id, "submission")
        data = self._written("submission", job_id, epoch, facts, program)
        try:
            self.fs.create_exclusive(path, data)
        except AlreadyExistsError:
            if self._entry(path, self.fs.size(path), "submission", job_id) != StoredSubmission(facts, program):
                raise
            self.adopt(job_id, epoch)  # so that a refusal by an earlier leader, still on its way, does not end it

    def adopt(self, job_id: str, epoch: int) -> None:
        """Note, before the job is started again, that the leader of ``epoch`` has found it open."""
        self.fs.write_bytes(self._path(job_id, f"adopted/{epoch:012d}"), b"%d\n" % epoch)

    def put_end(self, job_id: str, epoch: int, facts: dict[str, Any]) -> None:
        """Store a job's last word; written again by the same leader it is replaced.

        Raises:
            TypeMismatchError: If it is too large, or none of JSON values.
        """
        self.fs.write_bytes(self._path(job_id, _end_name(epoch)), self._written("end", job_id, epoch, facts, b""))

    def drop_submission(self, job_id: str) -> None:
        """Forget what was submitted: the job has ended for good and has left nothing, or was never acknowledged."""
        self.fs.delete(self._path(job_id, "submission"))

    def remove(self, job_id: str) -> None:
        """Forget a job that has ended, its end last."""
        self.drop_submission(job_id)
        self.fs.delete_directory(self._path(job_id, "adopted"))
        self.fs.delete_directory(self._path(job_id, "ended"))

    def require_trusted(self, job_ids: Iterable[str] = ()) -> None:
        """Make sure that nobody else can have put a job here, or a leader; called before anything is read.

        What is signed may lie where others write: with keys there is nothing to be asked.

        Raises:
            ConfigurationError: If others can write to the cluster's directory, on a local disk.
        """
        if self._key_file is None:
            inner = ("jobs", "leader", "leader/epochs", *(f"jobs/{job_id}" for job_id in job_ids))
            what = "the directory of high availability"
            require_private(self.fs, self.root, what, [join_confined(self.root, name) for name in inner])

    def read_all(self) -> list[StoredJob]:
        """Return every job, in no particular order; called by a new leader, after it has taken its epoch.

        Raises:
            ConfigurationError: As of `require_trusted`.
        """
        entries: dict[str, dict[str, tuple[str, int]]] = {}
        prefix = f"{self.root}/jobs/"
        for path, size in self.fs.list_files(prefix.rstrip("/")):
            job_id, _, name = path.removeprefix(prefix).partition("/")
            if name and _JOB_ID.fullmatch(job_id):
                entries.setdefault(job_id, {})[name] = path, size
        self.require_trusted(entries)
        found = (self._read(job_id, names) for job_id, names in entries.items())
        return [job for job in found if job is not None]

    def _read(self, job_id: str, names: dict[str, tuple[str, int]]) -> StoredJob | None:
        """What the entries of a job say; ``names`` are its files, with their paths and sizes."""
        adopted = max(_epochs(names, "adopted/"), default=0)
        ended = max(_epochs(names, "ended/"), default=-1)
        has_ended = ended >= adopted
        file = names.get(_end_name(ended) if has_ended else "submission")
        if file is None:
            return None  # half made or half removed: no submission that was ever acknowledged
        try:
            if not has_ended:
                return StoredJob(job_id, self._entry(*file, "submission", job_id), None)
            end = self._entry(*file, "end", job_id, ended).facts
        except NotFoundError:
            return None  # removed meanwhile
        except StorageError as error:
            if _is_outage(error):
                raise
            return StoredJob(job_id, None, None, f"{error.message}: {file[0]}")
        return StoredJob(job_id, self._left_submission(job_id, names), end)

    def _left_submission(self, job_id: str, names: dict[str, tuple[str, int]]) -> StoredSubmission | None:
        """The submission of a job that has ended, if it is still there and sound; without it the end stands as well."""
        file = names.get("submission")
        try:
            return None if file is None else self._entry(*file, "submission", job_id)
        except NotFoundError:
            return None  # removed meanwhile
        except StorageError as error:
            if _is_outage(error):
                raise
            return None

    def _path(self, job_id: str, name: str) -> str:
        if _JOB_ID.fullmatch(job_id) is None:
            message = f"a job id must consist of letters, digits, '-', '_' and '.'; got {job_id!r}"
            raise ConfigurationError(message)
        return join_confined(self.root, f"jobs/{job_id}/{name}")

    def _keys(self) -> SigningKeys | None:
        return None if self._key_file is None else SigningKeys.read(self._key_file)

    # --------------------------------------------------------------------------------------------------------- entries
    def _written(self, kind: str, job_id: str, epoch: int, facts: dict[str, Any], program: bytes) -> bytes:
        """An entry: its header and its facts, each a line, and the program."""
        try:
            body = _canonical(facts)
        except (TypeError, ValueError, RecursionError) as error:
            message = f"what is stored of a job must be JSON values: {error}"
            raise TypeMismatchError(message, job=job_id) from error
        for what, size, limit in (("facts", len(body), MAX_FACTS_BYTES), ("program", len(program), MAX_PROGRAM_BYTES)):
            if size > limit:
                message = f"the {what} of a job of {size:,} bytes cannot be stored; {limit:,} are allowed"
                hint = "let the program's sources read what it works on, instead of making it part of the program"
                raise TypeMismatchError(message, hint=hint, job=job_id)
        header: dict[str, Any] = {
            "format": _FORMAT,
            "kind": kind,
            "job": job_id,
            "epoch": epoch,
            "facts_size": len(body),
            "program_size": len(program),
            "sha256": _sha256(body, program),
        }
        keys = self._keys()
        if keys is not None:
            place = self._place(job_id, "submission" if kind == "submission" else _end_name(epoch))
            header["signature"] = keys.sign(_PURPOSE, _canonical(header), place)
        return b"\n".join((_canonical(header), body, program))

    def _entry(self, path: str, size: int, kind: str, job_id: str, epoch: int | None = None) -> StoredSubmission:
        """Read an entry and check it. Its facts are looked at, and its program is handed out, only if all of it is as
        it was written, and signed if it must be.

        Args:
            path: Of the file.
            size: Of the file, as it is known before it is read.
            kind: What it must be.
            job_id: The job it must be of.
            epoch: The epoch that it must be of, if that is known.

        Raises:
            StorageError: If it is damaged, of another job, of another format or not signed as it must be: as of
                `_is_outage`, no outage.
        """
        if size > _MAX_ENTRY_BYTES:
            message = f"an entry of the job store has {size:,} bytes; {_MAX_ENTRY_BYTES:,} are allowed"
            raise StorageError(message, job=job_id)
        data = self.fs.read_bytes(path, _MAX_ENTRY_BYTES)
        end = data.find(b"\n", 0, _MAX_HEADER_BYTES)
        try:
            require(end >= 0, "header", data[:80])
            header: Any = parse_json(data[:end], max_bytes=_MAX_HEADER_BYTES)
            require(type(header) is dict, "header", header)
            self._check_origin(header, (job_id, path), "submission" if epoch is None else _end_name(epoch))
            facts_end = self._checked(header, data, end + 1, (kind, job_id, epoch))
            facts = parse_json(data[end + 1 : facts_end], max_bytes=MAX_FACTS_BYTES)
            require(type(facts) is dict, "facts", facts)
        except (ValueError, TypeError, KeyError) as error:
            message = f"an entry of the job store cannot be decoded: {error!r:.400}"
            raise StorageError(message, job=job_id) from error
        return StoredSubmission(facts, data[facts_end + 1 :])

    def _place(self, job_id: str, name: str) -> tuple[str, str, str]:
        """Where an entry's signature holds."""
        return self.root.rpartition("/")[2], job_id, name

    def _check_origin(self, header: dict[str, Any], where: tuple[str, str], name: str) -> None:
        """See that a header is of this format, and signed with a key if there are any; takes the signature out."""
        job_id, path = where
        version, signature = header["format"], header.pop("signature", None)
        if version != _FORMAT:
            message = f"an entry of the job store has format {version!r:.40}; this Headrace reads format {_FORMAT}"
            hint = "run the job to its end with the version that has stored it, or submit it again"
            raise StorageError(message, hint=hint, job=job_id)
        keys = self._keys()
        if keys is None:
            return
        try:
            place = self._place(job_id, name)
            keys.verify(_PURPOSE, _canonical(header), signature, "an entry of the job store", path, place)
        except CheckpointMismatchError as error:
            raise StorageError(error.message, hint=error.hint, job=job_id) from error

    @staticmethod
    def _checked(header: dict[str, Any], data: bytes, start: int, wanted: tuple[str, str, int | None]) -> int:
        """See that the content is what the header says, and the header what was looked for; gives the facts' end."""
        facts_size, program_size = header["facts_size"], header["program_size"]
        require(is_count(facts_size) and is_count(program_size), "sizes", (facts_size, program_size))
        end = start + facts_size
        found = (header["kind"], header["job"], None if wanted[2] is None else header["epoch"])
        is_whole = len(data) == end + 1 + program_size and data[end : end + 1] == b"\n"
        body, program = memoryview(data)[start:end], memoryview(data)[end + 1 :]
        if found != wanted or not is_whole or header["sha256"] != _sha256(body, program):
            message = "an entry of the job store does not have the content it was written with"
            raise StorageError(message, job=wanted[1])
        return int(end)

    def __repr__(self) -> str:
        return f"JobStore({self.root})"


def _is_outage(error: StorageError) -> bool:
    """Whether the storage failed, and not the entry."""
    return "operation" in error.context and not isinstance(error, DamagedFileError)


def _end_name(epoch: int) -> str:
    return f"ended/{epoch:012d}"


def _epochs(names: dict[str, tuple[str, int]], prefix: str) -> list[int]:
    found = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return [int(name) for name in found if _EPOCH.fullmatch(name) and name == f"{int(name):012d}"]


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sha256(body: bytes | memoryview, program: bytes | memoryview) -> str:
    digest = hashlib.sha256(body)
    digest.update(program)
    return digest.hexdigest()
