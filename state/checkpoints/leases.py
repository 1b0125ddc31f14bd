"""Who leads a cluster: a lease with a growing epoch, over files.

A *lease store* answers five questions: who leads (`observe`), may I (`acquire`), still me (`renew`), not me any more
(`release`), and has anybody come after that epoch (`is_current`). It knows no clock and starts nothing; when to ask
is decided by ``headrace.engine.cluster.leadership``. All calls block.

`FileLease` needs nothing but a directory that all candidates reach::

    <root>/epochs/<epoch>      made exclusively by the one who takes it: who that is
           renewals/<epoch>    written again and again by its holder

No two machines' clocks are ever compared: a lease counts as silent when an observer has seen the same renewal for
its whole length on its own monotonic clock. Why at most one leads:

* An epoch is made exclusively, so it has one holder, and a later leader has a larger one.
* The holder of epoch e *renews* by writing and then looking whether e is still the newest. Only if it is does the
  renewal count, for less than the lease's length from the moment *before* the write.
* A process that takes e + 1 has seen renewal n for the whole length, and looks at the renewal once more *after* making
  e + 1. If that is still n, every later renewal looks after e + 1 was made, and does not count; and n has run out. If
  it is not n, the new holder waits for the whole length before it acts (`Acquisition.wait_ms`).

With a key of the cluster the record of who holds a lease is signed, as its successor ends the process that it names:
for this cluster and this epoch, so that no other record can be put in its place. Of one that is not, nobody knows who
holds it. Epochs and renewals are not: who can write them can delete them as well.

This asks of the file system that `create_exclusive` is atomic and that a file that was written is seen by those that
look next: local disks, NFS, HDFS, object stores with conditional writes. Others are refused at start
(`require_exclusive`); use ZooKeeper for the lease there (``headrace.actors.zookeeper_lease``), which passes the same
tests.

Source: Gray and Cheriton 1989 (leases); Kleppmann's fencing tokens; Flink's ``LeaderElectionDriver`` and its
ZooKeeper and Kubernetes forms.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..errors import AlreadyExistsError, CheckpointMismatchError, NotFoundError, StorageError
from ..files.filesystem import FileSystem, filesystem_for, join_confined, join_uri
from ..reading.signing import SigningKeys
from ..reading.stored_json import MAX_RECORD_BYTES, parse_json
from .manifest_schema import is_count, is_text, require

__all__ = ["TERM_BITS", "Acquisition", "FileLease", "LeaderRecord", "LeaseState", "LeaseStore", "Term", "end_of_term"]

TERM_BITS = 20
"""A cluster's leader of epoch e gives its JobManagers epochs from ``e << TERM_BITS`` on: larger than any that an
earlier leader ever gave, and never as many as that."""

_NUM_OLD_EPOCHS = 16
"""Past epochs whose files are kept."""

_EPOCH = re.compile(r"[0-9]{12,18}")
_PURPOSE = "leader"
"""What signatures of records are made for."""
_MAX_LEASE_MS = 1 << 40


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def end_of_term(job_epoch: int) -> int:
    """Return the first epoch of JobManagers that only a later leader of the cluster can have given."""
    return ((job_epoch >> TERM_BITS) + 1) << TERM_BITS


class Term(NamedTuple):
    """The time for which somebody leads.

    Attributes:
        cluster: The cluster's id.
        epoch: Of the lease.
    """

    cluster: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who holds a lease: what clients find it by, and successors end it by.

    Attributes:
        host: Name of its host.
        lease_ms: How long its lease lasts.
        details: More about it, for the one that must end it: node, process id.
    """

    host: str
    lease_ms: int
    details: dict[str, str] = field(default_factory=dict)

    def to_json(self, term: Term, key_file: str | None = None) -> bytes:
        """As it is stored, signed with the key file if there is one.

        Args:
            term: Of which cluster it is the leader, and under which epoch.
            key_file: Of the keys.

        Raises:
            ConfigurationError: If the key file is no good.
        """
        document: dict[str, Any] = {"host": self.host, "lease_ms": self.lease_ms, "details": self.details}
        if key_file is not None:
            document["signature"] = SigningKeys.read(key_file).sign(_PURPOSE, _canonical(document), term)
        return _canonical(document)

    @classmethod
    def from_json(cls, data: bytes, path: str, term: Term, key_file: str | None = None) -> LeaderRecord:
        """Read it.

        Args:
            data: As it is stored.
            path: For errors.
            term: Whose record it must be.
            key_file: Of the keys.

        Raises:
            StorageError: If it is something else, or not signed with the key file for this term, if there is one.
            ConfigurationError: If the key file is no good.
        """
        try:
            document = parse_json(data)
            require(type(document) is dict, "record", document)
            signature = document.pop("signature", None)
            if key_file is not None:
                keys = SigningKeys.read(key_file)
                keys.verify(_PURPOSE, _canonical(document), signature, "the record of a leader", path, term)
            host, lease_ms, details = document["host"], document["lease_ms"], document["details"]
            require(is_text(host), "host", host)
            require(is_count(lease_ms, _MAX_LEASE_MS), "lease_ms", lease_ms)
            require(type(details) is dict and all(is_text(value) for value in details.values()), "details", details)
            return cls(host, lease_ms, details)
        except (ValueError, KeyError) as error:
            message = f"the record of a leader cannot be decoded: {error!r}"
            raise StorageError(message, path=path) from error
        except CheckpointMismatchError as error:
            raise StorageError(error.message, hint=error.hint, path=path) from error


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What an observer sees.

    Attributes:
        epoch: The newest epoch ever taken; 0 if none was.
        leader: Who took it; None if none did, or if that can no longer be known.
        stamp: Another one with every renewal.
        is_free: It has no holder: never taken, given back, or its holder is known to be gone.
        is_closed: Given back for good: the cluster was shut down.
        silence_counts: Whether a stamp that stays the same means that the holder is gone.
    """

    epoch: int
    leader: LeaderRecord | None
    stamp: str
    is_free: bool
    is_closed: bool = False
    silence_counts: bool = True


@dataclass(frozen=True, slots=True)
class Acquisition:
    """A lease that was taken.

    Attributes:
        epoch: Under which; larger than all before.
        lease_ms: How long it lasts from a renewal on.
        wait_ms: How long to wait before acting: the one before may believe for so long that it leads.
    """

    epoch: int
    lease_ms: int
    wait_ms: int = 0


class LeaseStore(Protocol):
    """Where a lease is kept.

    Contract (*asserted* for both stores by ``tests/actors/test_leases.py``):
        * Epochs grow with every acquisition; none is given twice.
        * Of several that acquire upon the same observation at most one gets it.
        * Once an epoch was taken, `renew` of every earlier one gives False, and `is_current` too.
        * Every call may raise StorageError; whether it did anything is not known then.
    """

    def observe(self) -> LeaseState:
        """Look."""
        ...

    def acquire(self, record: LeaderRecord, seen: LeaseState) -> Acquisition | None:
        """Take the lease, if no other has since ``seen``; None if one has."""
        ...

    def renew(self, epoch: int, number: int) -> bool:
        """Say that the holder of ``epoch`` lives, for the ``number``-th time; False if it holds the lease no more."""
        ...

    def release(self, epoch: int, *, close: bool) -> None:
        """Give the lease back; with ``close`` for good. Does nothing for one that was lost."""
        ...

    def is_current(self, epoch: int) -> bool:
        """Return whether no other has taken the lease after ``epoch``: whether what was written before this call came
        in time to be seen by every later leader.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class FileLease:
    """A lease in files.

    Args:
        fs: The file system. root: Path of the lease's directory in it; what it lies in has the cluster's id for a name.
        key_file: Of the keys that records are signed with (`headrace.state.reading.signing`); with it others are not
        believed.
    """

    def __init__(self, fs: FileSystem, root: str, key_file: str | None = None) -> None:
        self._key_file = key_file
        self.fs = fs
        self.root = root.rstrip("/")

    @classmethod
    def open(cls, cluster_uri: str, key_file: str | None = None) -> FileLease:
        """Return the lease of a cluster, below the cluster's directory; nothing is made before the first write."""
        fs, root = filesystem_for(join_uri(cluster_uri, "leader"), is_private=True)
        return cls(fs, root, key_file)

    def require_exclusive(self) -> None:
        """Make sure that of several candidates one wins.

        Raises:
            ConfigurationError: If the file system cannot promise it.
        """
        self.fs.require_exclusive_create(join_confined(self.root, "epochs"))

    def observe(self) -> LeaseState:
        epoch = self._newest()
        if epoch == 0:
            return LeaseState(0, None, "", is_free=True)
        path = self._path("epochs", epoch)
        written, leader = self.fs.read_bytes(path, MAX_RECORD_BYTES), None
        # Where files have no hard links, the record is written after the file was made: the one that took the epoch may
        # be still at it, or have died before the end. The epoch is taken all the same; silence frees it.
        with contextlib.suppress(StorageError):
            leader = LeaderRecord.from_json(written, path, self._term(epoch), self._key_file)
        stamp, end = self._renewal(epoch)
        return LeaseState(epoch, leader, stamp, is_free=bool(end), is_closed=end == "closed")

    def acquire(self, record: LeaderRecord, seen: LeaseState) -> Acquisition | None:
        epoch = seen.epoch + 1
        try:
            self.fs.create_exclusive(self._path("epochs", epoch), record.to_json(self._term(epoch), self._key_file))
        except AlreadyExistsError:
            return None
        wait_ms = 0
        if seen.epoch and not seen.is_free and self._renewal(seen.epoch)[0] != seen.stamp:
            wait_ms = record.lease_ms if seen.leader is None else seen.leader.lease_ms
        self._forget_old(epoch)
        return Acquisition(epoch, record.lease_ms, wait_ms)

    def renew(self, epoch: int, number: int) -> bool:
        self.fs.write_bytes(self._path("renewals", epoch), json.dumps({"number": number, "end": ""}).encode())
        return self.is_current(epoch)  # after the write: that is what makes it count

    def release(self, epoch: int, *, close: bool) -> None:
        end = "closed" if close else "released"
        self.fs.write_bytes(self._path("renewals", epoch), json.dumps({"number": -1, "end": end}).encode())

    def is_current(self, epoch: int) -> bool:
        return self._newest() == epoch

    def close(self) -> None:
        """Do nothing: files need no connection."""

    def _newest(self) -> int:
        names = (path.rpartition("/")[2] for path, _ in self.fs.list_files(join_confined(self.root, "epochs")))
        return max((int(name) for name in names if _EPOCH.fullmatch(name)), default=0)

    def _renewal(self, epoch: int) -> tuple[str, str]:
        """The stamp of the newest renewal, and how the lease was given back, if it was.

        Raises:
            StorageError: Also if it cannot be decoded. Renewals are replaced as a whole, so no crash leaves half of
                one; and a cluster that was shut down must not come back because it cannot be read that it was.
        """
        path = self._path("renewals", epoch)
        try:
            data = self.fs.read_bytes(path, MAX_RECORD_BYTES)
        except NotFoundError:
            return "", ""
        try:
            document = parse_json(data)
            require(type(document) is dict and document.get("end") in ("", "released", "closed"), "renewal", document)
            return data.decode(), document["end"]
        except ValueError as error:
            message = f"the renewal of a lease cannot be decoded: {error!r}"
            raise StorageError(message, path=path) from error

    def _forget_old(self, epoch: int) -> None:
        """Delete files of long past epochs. The newest ones stay, so that epochs only grow."""
        with contextlib.suppress(StorageError):  # it is only tidiness; the lease has been taken
            for kind in ("epochs", "renewals"):
                for path, _ in self.fs.list_files(join_confined(self.root, kind)):
                    name = path.rpartition("/")[2]
                    if _EPOCH.fullmatch(name) and int(name) < epoch - _NUM_OLD_EPOCHS:
                        self.fs.delete(path)

    def _term(self, epoch: int) -> Term:
        return Term(self.root.rpartition("/")[0].rpartition("/")[2], epoch)

    def _path(self, kind: str, epoch: int) -> str:
        return join_confined(self.root, f"{kind}/{epoch:012d}")

    def __repr__(self) -> str:
        return f"FileLease({self.root})"
