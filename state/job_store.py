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
  that finds both does that again. Nobody needs to be asked whether it may: an end that stands does so for ever.

Payloads are opaque here. They are pickles of the user's program: whoever can write to this directory can run code in
the cluster, so on a local disk it is made readable and writable for its owner alone, and with a key of the cluster it
is signed, and nothing else is run. Every entry carries its SHA-256; one that is damaged is named, and hides no other.

Source: Flink's ``ExecutionPlanStore`` and ``JobResultStore`` (FLIP-194).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from headrace.state.errors import (
    AlreadyExistsError,
    CheckpointMismatchError,
    ConfigurationError,
    NotFoundError,
    StorageError,
)
from headrace.state.filesystem import FileSystem, filesystem_for, join_confined
from headrace.state.manifest_schema import require
from headrace.state.signing import SigningKeys
from headrace.state.stored_json import MAX_RECORD_BYTES, parse_json

__all__ = ["JobStore", "StoredJob"]

_JOB_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_EPOCH = re.compile(r"[0-9]{12,}")
_FORMAT = 1
_PURPOSE = "job store"
"""What signatures of entries are made for."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """What is known of one job.

    Attributes:
        job_id: The job.
        submission: What was submitted, as it was given; None once the job has ended and has been cleaned up after.
        end: Its last word, as it was given; None while it has not ended.
        problem: What is wrong with its entry, if anything is.
    """

    job_id: str
    submission: bytes | None
    end: bytes | None
    problem: str | None = None


class JobStore:
    """The jobs of one cluster. All calls block; every one may raise StorageError.

    Args:
        fs: The file system.
        root: Path of the cluster's directory in it.
        key_file: Of the keys that entries are signed with (`headrace.state.signing`); with it others are damaged.
    """

    def __init__(self, fs: FileSystem, root: str, key_file: str | None = None) -> None:
        self._key_file = key_file
        self.fs = fs
        self.root = root.rstrip("/")

    @classmethod
    def open(cls, cluster_uri: str, key_file: str | None = None) -> JobStore:
        """The jobs of a cluster, below the cluster's directory."""
        fs, root = filesystem_for(cluster_uri, is_private=True)
        return cls(fs, root, key_file)

    def put_submission(self, job_id: str, epoch: int, payload: bytes) -> None:
        """Store what was submitted. The same again is the same job, of the leader that took it last.

        Raises:
            AlreadyExistsError: If another submission has that id.
        """
        path = self._path(job_id, "submission")
        data = self._envelope("submission", job_id, epoch, payload)
        try:
            self.fs.create_exclusive(path, data)
        except AlreadyExistsError:
            if self._payload(self.fs.read_bytes(path), "submission", job_id) != payload:
                raise
            self.adopt(job_id, epoch)  # so that a refusal by an earlier leader, still on its way, does not end it

    def adopt(self, job_id: str, epoch: int) -> None:
        """Note, before the job is started again, that the leader of ``epoch`` has found it open."""
        self.fs.write_bytes(self._path(job_id, f"adopted/{epoch:012d}"), b"%d\n" % epoch)

    def put_end(self, job_id: str, epoch: int, payload: bytes) -> None:
        """Store a job's last word; written again by the same leader it is replaced."""
        self.fs.write_bytes(self._path(job_id, f"ended/{epoch:012d}"), self._envelope("end", job_id, epoch, payload))

    def drop_submission(self, job_id: str) -> None:
        """Forget what was submitted: the job has ended for good and has left nothing, or was never acknowledged."""
        self.fs.delete(self._path(job_id, "submission"))

    def remove(self, job_id: str) -> None:
        """Forget a job that has ended, its end last."""
        self.drop_submission(job_id)
        self.fs.delete_directory(self._path(job_id, "adopted"))
        self.fs.delete_directory(self._path(job_id, "ended"))

    def read_all(self) -> list[StoredJob]:
        """Every job, in no particular order; called by a new leader, after it has taken its epoch."""
        entries: dict[str, dict[str, str]] = {}
        prefix = f"{self.root}/jobs/"
        for path, _ in self.fs.list_files(prefix.rstrip("/")):
            job_id, _, name = path.removeprefix(prefix).partition("/")
            if name and _JOB_ID.fullmatch(job_id):
                entries.setdefault(job_id, {})[name] = path
        found = (self._read(job_id, names) for job_id, names in entries.items())
        return [job for job in found if job is not None]

    def _read(self, job_id: str, names: dict[str, str]) -> StoredJob | None:
        adopted = max(_epochs(names, "adopted/"), default=0)
        ended = max(_epochs(names, "ended/"), default=-1)
        kind = "end" if ended >= adopted else "submission"
        path = names.get(f"ended/{ended:012d}" if kind == "end" else "submission")
        if path is None:
            return None  # half made or half removed: no submission that was ever acknowledged
        try:
            payload = self._payload(self.fs.read_bytes(path), kind, job_id)
        except NotFoundError:
            return None  # removed meanwhile
        except StorageError as error:
            if "operation" in error.context:  # the storage failed, not the entry
                raise
            return StoredJob(job_id, None, None, f"{error.message}: {path}")
        if kind == "submission":
            return StoredJob(job_id, payload, None)
        return StoredJob(job_id, self._left_submission(job_id, names), payload)

    def _left_submission(self, job_id: str, names: dict[str, str]) -> bytes | None:
        """The submission of a job that has ended, if it is still there and sound; without it the end stands as well."""
        path = names.get("submission")
        try:
            return None if path is None else self._payload(self.fs.read_bytes(path), "submission", job_id)
        except NotFoundError:
            return None  # removed meanwhile
        except StorageError as error:
            if "operation" in error.context:  # the storage failed, not the entry
                raise
            return None

    def _path(self, job_id: str, name: str) -> str:
        if _JOB_ID.fullmatch(job_id) is None:
            message = f"a job id must consist of letters, digits, '-', '_' and '.'; got {job_id!r}"
            raise ConfigurationError(message)
        return join_confined(self.root, f"jobs/{job_id}/{name}")

    def _keys(self) -> SigningKeys | None:
        return None if self._key_file is None else SigningKeys.read(self._key_file)

    def _envelope(self, kind: str, job_id: str, epoch: int, payload: bytes) -> bytes:
        """One line of JSON about the payload, then the payload."""
        header: dict[str, Any] = {
            "format": _FORMAT,
            "kind": kind,
            "job": job_id,
            "epoch": epoch,
            "size": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        keys = self._keys()
        if keys is not None:
            header["signature"] = keys.sign(_PURPOSE, _canonical(header))
        return _canonical(header) + b"\n" + payload

    def _payload(self, data: bytes, kind: str, job_id: str, path: str = "") -> bytes:
        """Take an entry apart and check it.

        Raises:
            StorageError: If it is damaged, of another job, of a newer format or not signed as it must be; without
                ``operation`` in its context.
        """
        head, _, payload = data.partition(b"\n")
        try:
            header: Any = parse_json(head, max_bytes=MAX_RECORD_BYTES)
            require(type(header) is dict, "header", header)
            signature = header.pop("signature", None)
            found = (header["kind"], header["job"], header["size"], header["sha256"])
            version = header["format"]
        except (ValueError, TypeError, KeyError) as error:
            message = f"an entry of the job store cannot be decoded: {error!r:.400}"
            raise StorageError(message, job=job_id) from error
        keys = self._keys()
        if keys is not None:
            try:
                keys.verify(_PURPOSE, _canonical(header), signature, "an entry of the job store", path)
            except CheckpointMismatchError as error:
                raise StorageError(error.message, hint=error.hint, job=job_id) from error
        if version != _FORMAT:
            message = f"an entry of the job store has format {version!r}; this Headrace reads format {_FORMAT}"
            raise StorageError(message, job=job_id)
        if found != (kind, job_id, len(payload), hashlib.sha256(payload).hexdigest()):
            message = "an entry of the job store does not have the content it was written with"
            raise StorageError(message, job=job_id)
        return payload

    def __repr__(self) -> str:
        return f"JobStore({self.root})"


def _epochs(names: dict[str, str], prefix: str) -> list[int]:
    found = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return [int(name) for name in found if _EPOCH.fullmatch(name)]


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True).encode()
