"""Who leads a cluster: the lease of ``headrace.state.checkpoints.leases``, kept in ZooKeeper.

::

    <path>/<cluster id>/epoch     persistent: who took the lease last; its version is the epoch
                       /leader    ephemeral: there while the session of the leader lives
                       /closed    persistent: the epoch under which the cluster was shut down

Taking the lease is one transaction: make ``leader``, and write ``epoch`` if it still has the version that was seen.
Renewing is a write to ``leader`` under the same condition, so it succeeds only through a living session, at a quorum;
the server keeps a session for its timeout from then on, and the leader leads for less. The session's loss is the
leadership's loss: ``leader`` is gone then, or somebody else's. Looking whether an epoch is current reads behind a
``sync``, or a server that lags behind could hide a successor.

The client is ``kazoo`` (extra ``zookeeper``), imported when it is first needed.

Source: ZooKeeper's recipe for leader election; Flink's ``ZooKeeperLeaderElectionDriver``; Curator's ``LeaderLatch``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace.engine.errors import ConfigurationError, StorageError
from headrace.state.checkpoints.leases import Acquisition, LeaderRecord, LeaseState, Term
from headrace.state.extras import needs

__all__ = ["ZooKeeperLease"]

MAX_CALL_S = 10.0
"""A call that takes longer has failed; shorter leases wait for half their length."""


class ZooKeeperLease:
    """A lease in ZooKeeper. Connects when it is first used; may be used from several threads.

    Args:
        servers: ``host:port``, separated by commas.
        path: Of the cluster.
        lease_ms: Timeout of the session to ask for; the servers may give a shorter one.
        key_file: Of the keys that records are signed with, as of `FileLease`.
    """

    def __init__(self, servers: str, path: str, lease_ms: int, key_file: str | None = None) -> None:
        self._key_file = key_file
        self._servers = servers
        self._path = "/" + path.strip("/")
        self._lease_ms = lease_ms
        self._timeout_s = min(MAX_CALL_S, lease_ms / 2_000)
        # The connection, and what the servers have made of the timeout; made under the lock.
        self._client: Any = None
        self._negotiated_ms = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, uri: str, cluster_id: str, lease_ms: int, key_file: str | None = None) -> ZooKeeperLease:
        """Return the lease of a cluster.

        Args:
            uri: ``zookeeper://host:port,host:port/path``.
            cluster_id: Appended to the path.
            lease_ms: Its length.
            key_file: As of the class.

        Raises:
            ConfigurationError: If the URI is none of that kind, or kazoo is not installed.
        """
        servers, _, path = uri.removeprefix("zookeeper://").partition("/")
        if not uri.startswith("zookeeper://") or not servers:
            message = f"a lease store in ZooKeeper is zookeeper://host:port,host:port/path; got {uri!r}"
            raise ConfigurationError(message)
        _kazoo()
        return cls(servers, f"{path}/{cluster_id}", lease_ms, key_file)

    def observe(self) -> LeaseState:
        with self._connected() as client:
            last, epoch = self._epoch(client)
            found = self._get(client, "leader")
            closed = self._get(client, "closed")
            is_closed = found is None and closed is not None and closed[0] == b"%d" % epoch
            if found is None:
                return LeaseState(epoch, last, "", is_free=True, is_closed=is_closed, silence_counts=False)
            leader = self._record(found[0], "leader", epoch)
            stamp = f"{found[1].czxid}-{found[1].version}"
            return LeaseState(epoch, leader, stamp, is_free=False, silence_counts=False)

    def acquire(self, record: LeaderRecord, seen: LeaseState) -> Acquisition | None:
        with self._connected() as client:
            found = self._get(client, "leader")
            transaction = client.transaction()
            if found is not None and found[1].ephemeralOwner == client.client_id[0]:
                transaction.delete(self._node("leader"), found[1].version)  # of a claim whose answer got lost
            written = record.to_json(self._term(seen.epoch + 1), self._key_file)
            transaction.create(self._node("leader"), written, ephemeral=True)
            transaction.set_data(self._node("epoch"), written, seen.epoch)
            results = self._done(transaction.commit_async())
            refusals = [result for result in results if isinstance(result, Exception)]
            for refusal in refusals:
                if not isinstance(refusal, _lost_race()):
                    raise refusal
            if refusals:
                return None
            return Acquisition(seen.epoch + 1, self._negotiated_ms)

    def renew(self, epoch: int, number: int) -> bool:
        with self._connected() as client:
            found = self._get(client, "leader")
            if found is None or found[1].ephemeralOwner != client.client_id[0]:
                return False
            transaction = client.transaction()
            transaction.check(self._node("epoch"), epoch)
            transaction.set_data(self._node("leader"), found[0], found[1].version)
            results = self._done(transaction.commit_async())
            return not any(isinstance(result, Exception) for result in results)

    def release(self, epoch: int, *, close: bool) -> None:
        with self._connected() as client:
            found = self._get(client, "leader")
            if found is None or found[1].ephemeralOwner != client.client_id[0]:
                return
            if close and self._get(client, "closed") is None:
                self._make(client, "closed")
            transaction = client.transaction()
            transaction.check(self._node("epoch"), epoch)
            if close:
                transaction.set_data(self._node("closed"), b"%d" % epoch)
            transaction.delete(self._node("leader"), found[1].version)
            self._done(transaction.commit_async())

    def is_current(self, epoch: int) -> bool:
        with self._connected() as client:
            self._done(client.sync_async(self._node("epoch")))
            return self._epoch(client)[1] == epoch

    def close(self) -> None:
        """End the session; what it holds is given up."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    # ----------------------------------------------------------------------------------------------------------- inside
    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """The client, connected; what goes wrong with it comes out as StorageError."""
        kazoo = _kazoo()
        try:
            with self._lock:
                if self._client is None:
                    self._client = self._connect(kazoo)
                client = self._client
            yield client
        except (kazoo.exceptions.KazooException, _timeout_error()) as error:
            message = f"ZooKeeper did not do what it was asked: {error!r}"
            raise StorageError(message, operation="lease", path=self._path) from error

    def _connect(self, kazoo: Any) -> Any:
        client = kazoo.client.KazooClient(hosts=self._servers, timeout=self._lease_ms / 1_000)
        handshake: Callable[..., tuple[float, float]] = client._connection._connect

        def connect(*arguments: Any) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = handshake(*arguments)
            self._negotiated_ms = int(read_timeout_ms * 3 / 2)  # kazoo tells no one else; it waits for two thirds
            return read_timeout_ms, connect_timeout_ms

        client._connection._connect = connect
        try:
            client.start(timeout=self._timeout_s)
        except BaseException:
            client.stop()
            client.close()
            raise
        return client

    def _epoch(self, client: Any) -> tuple[LeaderRecord | None, int]:
        """Who took the lease last, and the epoch."""
        found = self._get(client, "epoch")
        if found is None:
            self._make(client, "epoch")
            found = self._get(client, "epoch")
            assert found is not None
        data, stat = found
        return (self._record(data, "epoch", stat.version) if stat.version else None), stat.version

    def _record(self, data: bytes, name: str, epoch: int) -> LeaderRecord | None:
        """Who has the lease; None if it does not say so, or is not signed as it must be."""
        with contextlib.suppress(StorageError):
            return LeaderRecord.from_json(data, self._node(name), self._term(epoch), self._key_file)
        return None

    def _term(self, epoch: int) -> Term:
        return Term(self._path.rpartition("/")[2], epoch)

    def _get(self, client: Any, name: str) -> tuple[bytes, Any] | None:
        try:
            found: tuple[bytes, Any] = self._done(client.get_async(self._node(name)))
        except _kazoo().exceptions.NoNodeError:
            return None
        return found

    def _make(self, client: Any, name: str) -> None:
        with contextlib.suppress(_kazoo().exceptions.NodeExistsError):
            self._done(client.create_async(self._node(name), b"", makepath=True))

    def _done(self, pending: Any) -> Any:
        return pending.get(timeout=self._timeout_s)

    def _node(self, name: str) -> str:
        return f"{self._path}/{name}"

    def __repr__(self) -> str:
        return f"ZooKeeperLease({self._servers}{self._path})"


def _kazoo() -> Any:
    with needs("a lease store in ZooKeeper needs kazoo, which is not installed", "zookeeper"):
        import kazoo
        import kazoo.client
        import kazoo.exceptions
    return kazoo


def _lost_race() -> tuple[type[Exception], ...]:
    """What the servers answer to a claim that came too late, and to the rest of its transaction."""
    errors = _kazoo().exceptions
    return (
        errors.NodeExistsError,
        errors.BadVersionError,
        errors.NoNodeError,
        errors.RolledBackError,
        errors.RuntimeInconsistency,
    )


def _timeout_error() -> type[Exception]:
    """What kazoo raises for an answer that does not come in time."""
    from kazoo.handlers.threading import KazooTimeoutError

    timeout: type[Exception] = KazooTimeoutError
    return timeout
