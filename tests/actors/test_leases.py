"""The contract of lease stores, over files (on a disk, in memory, in a real S3 and HDFS) and over a real ZooKeeper.

Families: contract (both stores pass the same tests), and property (races of many threads: one winner each).
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from azure_server import azure_container, azure_server  # noqa: F401 - fixtures
from free_ports import free_port
from gcs_server import gcs_bucket, gcs_server  # noqa: F401 - fixtures
from hdfs_server import hdfs_directory, hdfs_server  # noqa: F401 - fixtures
from s3_server import s3_bucket, s3_server  # noqa: F401 - fixtures
from zookeeper_server import zookeeper  # noqa: F401 - a fixture

from headrace.actors import head
from headrace.actors.head import open_lease
from headrace.engine.errors import ConfigurationError, StorageError
from headrace.engine.kernel.config import HighAvailabilitySettings
from headrace.state.checkpoints.leases import FileLease, LeaderRecord, end_of_term
from headrace.state.files.memory import MemoryFileSystem

LEASE_MS = 3_000
_numbers = count()


class Stores:
    """Lease stores of one cluster, one for each candidate."""

    def __init__(self, settings):
        self.settings = settings
        self.opened = []

    def open(self):
        store = open_lease(self.settings, self.settings.key_file)
        self.opened.append(store)
        return store

    def is_files(self):
        return self.settings.lease_store == "files"


@pytest.fixture(
    params=[
        "disk",
        "memory",
        *(pytest.param(lane, marks=pytest.mark.lane(lane)) for lane in ("s3", "azure", "gcs", "hdfs", "zookeeper")),
    ]
)
def stores(request, tmp_path):
    directory = str(tmp_path) if request.param != "memory" else f"memory://leases-{next(_numbers)}"
    lease_store = "files"
    if request.param == "hdfs":
        directory = request.getfixturevalue("hdfs_directory")
    if request.param == "s3":
        directory = f"{request.getfixturevalue('s3_bucket')}/ha"
    if request.param == "azure":
        directory = f"{request.getfixturevalue('azure_container')}/ha"
    if request.param == "gcs":
        directory = f"{request.getfixturevalue('gcs_bucket')}/ha"
    if request.param == "zookeeper":
        lease_store = f"zookeeper://{request.getfixturevalue('zookeeper')}/tests/{next(_numbers)}"
    key_file = tmp_path / "keys"
    key_file.write_text("k " + "5a" * 32)
    key_file.chmod(0o600)
    made = Stores(HighAvailabilitySettings(directory, "c", lease_store, lease_ms=LEASE_MS, key_file=str(key_file)))
    yield made
    for store in made.opened:
        store.close()


def record(host):
    return LeaderRecord(host, LEASE_MS, {"pid": "7"})


def acquire(store, host="a"):
    return store.acquire(record(host), store.observe())


def test_a_lease_that_was_never_taken_is_free(stores):
    state = stores.open().observe()
    assert (state.epoch, state.leader, state.is_free, state.is_closed) == (0, None, True, False)


def test_who_takes_it_is_seen_by_others(stores):
    acquired = acquire(stores.open())
    assert (acquired.epoch, acquired.lease_ms, acquired.wait_ms) == (1, LEASE_MS, 0)
    state = stores.open().observe()
    assert (state.epoch, state.leader, state.is_free) == (1, record("a"), False)


def test_every_renewal_shows(stores):
    holder, observer = stores.open(), stores.open()
    acquire(holder)
    stamps = [observer.observe().stamp]
    for number in range(3):
        assert holder.renew(1, number)
        stamps.append(observer.observe().stamp)
    assert len(set(stamps)) == 4


def test_of_several_with_the_same_observation_one_gets_it(stores):
    candidates = [stores.open() for _ in range(6)]
    for round_number in range(3):
        seen = [store.observe() for store in candidates]
        start = threading.Barrier(len(candidates))

        def compete(index, seen=seen, start=start):
            start.wait()
            return candidates[index].acquire(record(f"h{index}"), seen[index])

        with ThreadPoolExecutor(len(candidates)) as threads:
            acquired = list(threads.map(compete, range(len(candidates))))
        [winner] = [index for index, result in enumerate(acquired) if result is not None]
        assert acquired[winner].epoch == round_number + 1
        candidates[winner].release(round_number + 1, close=False)


def test_what_was_given_back_is_free_at_once_and_epochs_grow(stores):
    first, second = stores.open(), stores.open()
    acquire(first)
    first.release(1, close=False)
    state = second.observe()
    assert (state.epoch, state.is_free, state.is_closed) == (1, True, False)
    assert second.acquire(record("b"), state).epoch == 2
    assert first.renew(1, 9) is False
    assert not first.is_current(1)
    assert second.renew(2, 1)
    assert second.is_current(2)


def test_what_was_closed_says_so_until_it_is_taken_again(stores):
    first, second = stores.open(), stores.open()
    acquire(first)
    first.release(1, close=True)
    state = second.observe()
    assert (state.epoch, state.is_free, state.is_closed) == (1, True, True)
    assert second.acquire(record("b"), state).epoch == 2
    assert not first.observe().is_closed


def test_giving_back_what_was_lost_does_nothing(stores):
    first, second = stores.open(), stores.open()
    acquire(first)
    first.release(1, close=False)
    acquire(second, "b")
    first.release(1, close=True)
    state = stores.open().observe()
    assert (state.epoch, state.is_free, state.is_closed) == (2, False, False)
    assert second.renew(2, 1)


def test_an_old_observation_gets_nothing(stores):
    first, second = stores.open(), stores.open()
    seen = second.observe()
    acquire(first)
    assert second.acquire(record("b"), seen) is None
    assert first.renew(1, 1)


def test_each_cluster_has_a_lease_of_its_own(stores):
    acquire(stores.open())
    other = HighAvailabilitySettings(stores.settings.directory, "d", stores.settings.lease_store, lease_ms=LEASE_MS)
    store = open_lease(other)
    try:
        assert store.observe().is_free
    finally:
        store.close()


def test_a_record_that_the_cluster_has_not_signed_names_nobody(stores):
    """Its successor ends the process that a record names: it must not be anybody's word."""
    stranger = open_lease(stores.settings)
    try:
        acquire(stranger, "stranger")
        assert stranger.observe().leader.host == "stranger"
        found = stores.open().observe()
        assert (found.epoch, found.leader, found.is_free) == (1, None, False)
        stranger.release(1, close=False)
        acquire(stores.open(), "own")
        assert stores.open().observe().leader.host == "own"
        assert stranger.observe().leader.host == "own"  # looking for a leader needs no key
    finally:
        stranger.close()


@pytest.mark.parametrize(
    "details",
    [
        {"node": "n", "pid": "nobody", "started": "5"},
        {"node": "n", "pid": "-1", "started": "5"},
        {"node": "n", "pid": "0", "started": "5"},
        {"node": "n", "pid": "9" * 30, "started": "5"},
        {"node": "n", "pid": "{own}", "started": ""},
        {"node": "n", "started": "5"},
        {"node": "n", "pid": "{own}"},
        {"pid": "{own}", "started": "{started}"},
    ],
)
def test_a_record_of_no_process_ends_none(details, monkeypatch):
    """Also not this one, nor all of a group."""
    own = {"own": str(os.getpid()), "started": head._started(os.getpid())}
    told = LeaderRecord("h", LEASE_MS, {name: text.format(**own) for name, text in details.items()})
    monkeypatch.setattr(head, "_own_process", lambda: {"node": "n", "pid": "1", "started": "1"})
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a process was ended"))
    assert head._end_host("c", None, told) == ""
    assert not head._is_gone(told)


# ---------------------------------------------------------------------------------------------------------------- files
def test_the_successor_of_a_leader_that_renews_meanwhile_waits():
    store = FileLease(MemoryFileSystem(), "lease")
    acquire(store)
    seen = store.observe()
    store.renew(1, 1)  # behind the observer's last look
    acquired = store.acquire(record("b"), seen)
    assert (acquired.epoch, acquired.wait_ms) == (2, LEASE_MS)
    assert store.renew(1, 2) is False


def test_old_epochs_are_forgotten_but_never_given_again():
    fs = MemoryFileSystem()
    store = FileLease(fs, "lease")
    for epoch in range(1, 60):
        assert acquire(store).epoch == epoch
        store.renew(epoch, 1)
        store.release(epoch, close=False)
    assert len(fs.files) < 40
    assert acquire(store).epoch == 60


@pytest.mark.parametrize("written", [b"", b"\x00", b'{"host": "a", "lease'])
def test_an_epoch_whose_record_was_not_written_is_that_of_an_unknown_leader(written):
    """Without hard links a candidate may die between making the file and writing it: nobody may take it for free."""
    fs = MemoryFileSystem()
    store = FileLease(fs, "lease")
    acquire(store)
    fs.files["lease/epochs/000000000001"] = written
    seen = store.observe()
    assert (seen.epoch, seen.leader, seen.is_free) == (1, None, False)
    store.renew(1, 1)  # it lives, and is only slow
    acquired = store.acquire(record("b"), seen)
    assert (acquired.epoch, acquired.wait_ms) == (2, LEASE_MS)
    assert store.observe().leader == record("b")
    assert store.renew(1, 2) is False


def test_a_damaged_renewal_is_an_error_of_the_store():
    """It may have said that the cluster was shut down."""
    fs = MemoryFileSystem()
    store = FileLease(fs, "lease")
    acquire(store)
    store.renew(1, 1)
    fs.files["lease/renewals/000000000001"] = b"\x00"
    with pytest.raises(StorageError, match="renewal of a lease"):
        store.observe()


def test_terms_do_not_overlap():
    first = (1 << 20) + 1
    assert end_of_term(first) == 2 << 20
    assert end_of_term(end_of_term(first)) == 3 << 20
    assert end_of_term(5) == 1 << 20


# ------------------------------------------------------------------------------------------------------------ zookeeper
def test_a_session_that_is_lost_is_a_lease_that_is_free(zookeeper):  # noqa: F811
    stores = Stores(HighAvailabilitySettings("/nowhere", "c", f"zookeeper://{zookeeper}/lost", lease_ms=400))
    first, second = stores.open(), stores.open()
    acquired = acquire(first)
    assert acquired.lease_ms == 400
    from kazoo.client import KazooClient

    # As the servers end a session that was silent for too long: knowing its id is enough to close it.
    double = KazooClient(hosts=zookeeper, client_id=first._client.client_id)
    double.start(timeout=10)
    double.stop()
    double.close()
    deadline = time.monotonic() + 20
    while not second.observe().is_free and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    taken = acquire(second, "b")
    assert (taken.epoch, taken.wait_ms) == (2, 0)
    first.close()
    assert first.renew(1, 1) is False  # in a new session
    assert not first.is_current(1)
    assert second.is_current(2)
    first.close()
    second.close()


def test_what_the_servers_refuse_for_another_reason_is_an_error_and_no_lost_race(zookeeper):  # noqa: F811
    """A candidate that has lost a race looks again at once: here it would for ever, and nobody would know why."""
    from kazoo.client import KazooClient
    from kazoo.security import make_acl

    path = f"refused/{next(_numbers)}"
    admin = KazooClient(hosts=zookeeper)
    admin.start()
    try:
        settings = HighAvailabilitySettings("/nowhere", "c", f"zookeeper://{zookeeper}/{path}", lease_ms=LEASE_MS)
        lease = Stores(settings).open()
        seen = lease.observe()
        admin.set_acls(f"/{path}/c", [make_acl("world", "anyone", read=True)])
        with pytest.raises(StorageError, match="NoAuthError"):
            lease.acquire(record("a"), seen)
        lease.close()
    finally:
        admin.stop()
        admin.close()


def test_the_lease_is_as_long_as_the_servers_allow(zookeeper):  # noqa: F811
    stores = Stores(HighAvailabilitySettings("/nowhere", "c", f"zookeeper://{zookeeper}/long", lease_ms=60_000))
    store = stores.open()
    assert acquire(store).lease_ms == 4_000
    store.close()


def test_a_server_that_is_not_there_is_an_error_of_the_store():
    pytest.importorskip("kazoo")
    settings = HighAvailabilitySettings("/nowhere", "c", f"zookeeper://127.0.0.1:{free_port()}/x", lease_ms=500)
    store = open_lease(settings)
    with pytest.raises(StorageError, match="ZooKeeper"):
        store.observe()
    store.close()


def test_a_missing_client_is_named_with_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(ConfigurationError, match=r"headrace\[zookeeper\]"):
        open_lease(HighAvailabilitySettings("/nowhere", "c", "zookeeper://h:1/p"))
