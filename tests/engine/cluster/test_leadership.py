"""The election as one candidate sees it, under a clock of the test's own; and its settings.

Families: contract (each phase and what leads out of it), oracle (two candidates over one lease, all orders of small
schedules: never two leaders); the simulator has the rest.
"""

from __future__ import annotations

import random

import pytest
from control_harness import complete

from headrace.engine.cluster.leadership import (
    LeaderElection,
)
from headrace.engine.errors import (
    ConfigurationError,
    StorageError,
)
from headrace.engine.kernel.config import HighAvailabilitySettings
from headrace.engine.kernel.event_log import EventLog
from headrace.engine.kernel.machine import (
    Offload,
    StartTimer,
)
from headrace.state.checkpoints.leases import FileLease, LeaderRecord
from headrace.state.files.memory import MemoryFileSystem

LEASE_MS = 600


class Candidate:
    """A candidate whose offloaded work is done, and whose timers fire, when the test says so."""

    def __init__(self, fs, host, born_after=0, skew=0, lease_ms=LEASE_MS):
        self.now = 0
        self.skew = skew
        self.works, self.timers = [], {}
        self.election = LeaderElection(
            FileLease(fs, "lease"), LeaderRecord(host, lease_ms), born_after, lambda: self.now + self.skew, EventLog()
        )
        self.carry_out(self.election.start())

    def carry_out(self, commands):
        for command in commands or ():
            if isinstance(command, Offload):
                self.works.append(command)
            elif isinstance(command, StartTimer):
                self.timers[command.key] = (self.now + command.delay_ms, command.message)

    def do(self):
        """Do the oldest work, and hear of its end at once."""
        done = complete(self.works.pop(0))
        self.carry_out(self.election.handle(done, self.now))

    def fire(self):
        for key, (due, message) in list(self.timers.items()):
            if due <= self.now:
                del self.timers[key]
                self.carry_out(self.election.handle(message, self.now))

    def run(self, until, step=10):
        """Let time pass with everything done at once."""
        run_all(until, self, step=step)


def run_all(until, *candidates, step=10):
    """Let time pass for several, with everything done at once."""
    for now in range(min(candidate.now for candidate in candidates), until + step, step):
        for candidate in candidates:
            if candidate.now <= now:
                candidate.now = now
                candidate.fire()
                while candidate.works:
                    candidate.do()


@pytest.fixture
def fs():
    return MemoryFileSystem()


def test_an_epoch_that_nobody_knows_who_took_is_freed_by_silence(fs):
    """Its maker died before the record was written, or is about to write it."""
    fs.write_bytes("lease/epochs/000000000001", b"")
    one = Candidate(fs, "one")
    one.run(LEASE_MS - 10)
    assert not one.election.leads
    assert fs.list_files("lease/epochs") == [("lease/epochs/000000000001", 0)]
    one.run(2 * LEASE_MS)
    assert one.election.leads
    assert one.election.epoch == 2
    assert one.election.predecessor is None


def test_a_free_lease_is_taken_at_once_and_kept(fs):
    one = Candidate(fs, "one")
    one.run(50)
    assert one.election.leads
    assert one.election.epoch == 1
    one.run(10_000)
    assert one.election.leads


def test_a_standby_waits_for_the_whole_lease_on_its_own_clock(fs):
    one, two = Candidate(fs, "one"), Candidate(fs, "two", skew=7_000_000)
    run_all(5_000, one, two)
    assert not two.election.leads
    assert two.election.seen.leader.host == "one"
    two.run(5_000 + LEASE_MS - 100)
    assert not two.election.leads
    two.run(5_000 + LEASE_MS + 250)
    assert two.election.leads
    assert two.election.epoch == 2
    assert two.election.predecessor.host == "one"
    one.now = two.now
    assert not one.election.leads


def test_a_leader_that_cannot_renew_stops_before_its_lease_can_be_taken(fs):
    one = Candidate(fs, "one")
    one.run(1_000)

    def fault(operation, _path):
        message = "no route to host"
        raise StorageError(message, operation=operation)

    fs.fault = fault
    one.run(1_000 + LEASE_MS * 2 // 3 + 120)
    assert one.election.is_over
    assert "could not be renewed in time" in one.election.reason


def test_a_leader_that_wakes_up_late_leads_no_more_whatever_comes_first(fs):
    one = Candidate(fs, "one")
    one.run(1_000)
    one.now += 5_000
    assert not one.election.leads
    assert one.election.handle("anything", one.now) is None
    assert one.election.is_over


def test_work_that_took_long_counts_from_its_beginning(fs):
    one = Candidate(fs, "one")
    one.run(1_000)
    while not one.works:
        one.now += 10
        one.fire()
    asked_at = one.now
    one.now += 250  # the renewal is on its way meanwhile
    assert one.election.leads
    one.do()
    one.now = asked_at + LEASE_MS * 2 // 3 - 1
    assert one.election.leads
    one.now += 1
    assert not one.election.leads


def test_a_look_that_was_heard_of_late_is_no_silence(fs):
    one, two = Candidate(fs, "one"), Candidate(fs, "two")
    run_all(500, one, two)
    while not two.works:
        two.now += 10
        two.fire()
    done = complete(two.works.pop())  # what it sees is as it was, or new; and it is stopped before it hears of that
    two.now = 5_000
    two.carry_out(two.election.handle(done, two.now))
    assert not two.works
    assert not two.election.leads


def test_a_closed_cluster_takes_its_standbys_along_but_not_a_later_start(fs):
    one, standby = Candidate(fs, "one"), Candidate(fs, "standby")
    run_all(100, one, standby)
    one.carry_out(one.election.give_back())
    run_all(400, one, standby)
    assert standby.election.is_over
    assert "shut down" in standby.election.reason
    later = Candidate(fs, "later", born_after=1)
    later.run(100)
    assert later.election.leads
    assert later.election.epoch == 2


def test_the_lease_is_not_renewed_behind_its_return(fs):
    one = Candidate(fs, "one")
    one.run(1_000)
    while not one.works:
        one.now += 10
        one.fire()
    assert one.election.give_back() == []  # a renewal is on its way
    one.do()
    [release] = one.works
    assert release.name == "release_lease"
    one.run(1_300)
    assert FileLease(fs, "lease").observe().is_closed


def test_the_longer_of_two_leases_counts(fs):
    one = Candidate(fs, "one")
    one.run(1_000)
    two = Candidate(fs, "two", lease_ms=100)
    two.run(500)
    assert not two.election.leads


@pytest.mark.parametrize("seed", range(60))
def test_two_never_lead_at_once_in_any_order(fs, seed):
    """Works and timers of three candidates in random order, at random times; each is stopped now and then."""
    rng = random.Random(seed)
    candidates = [Candidate(fs, str(index), skew=rng.randrange(10**6)) for index in range(3)]
    stopped = [0, 0, 0]
    epochs = []
    pending = [[], [], []]
    for now in range(0, 15_000, 20):
        for index, candidate in enumerate(candidates):
            candidate.now = now
            if stopped[index] > now:
                continue
            if rng.random() < 0.02:
                stopped[index] = now + rng.choice((100, 500, 1_500))
            candidate.fire()
            if candidate.works and rng.random() < 0.6:
                pending[index].append(complete(candidate.works.pop(0)))
            if pending[index] and rng.random() < 0.6:
                candidate.carry_out(candidate.election.handle(pending[index].pop(0), now))
            if candidate.election.is_over:
                candidates[index] = Candidate(fs, f"{index}-{now}", skew=rng.randrange(10**6))
                candidates[index].now = now
                pending[index] = []
        leading = [candidate.election.epoch for candidate in candidates if candidate.election.leads]
        assert len(leading) <= 1, f"at {now}: {leading}"
        epochs += leading
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > 1


def silence_up_to_now(election, state):
    """Planted: a look counts as of when it is heard of."""
    election._asked_at = election._monotonic_ms()
    return may_claim(election, state)


may_claim = LeaderElection._may_claim


def test_an_old_look_that_counts_is_caught(fs, monkeypatch):
    monkeypatch.setattr(LeaderElection, "_may_claim", silence_up_to_now)
    with pytest.raises(AssertionError):
        test_a_look_that_was_heard_of_late_is_no_silence(fs)


# ------------------------------------------------------------------------------------------------------------- settings
def test_flinks_keys_are_understood():
    configuration = {
        "high-availability.type": "zookeeper",
        "high-availability.storageDir": "hdfs:///ha",
        "high-availability.cluster-id": "/one",
        "high-availability.zookeeper.quorum": "a:2181,b:2181",
        "high-availability.zookeeper.path.root": "/headrace",
        "high-availability.zookeeper.client.session-timeout": "20 s",
        "state.backend": "heap",
    }
    expected = HighAvailabilitySettings("hdfs:///ha", "one", "zookeeper://a:2181,b:2181/headrace", lease_ms=20_000)
    assert HighAvailabilitySettings.from_configuration(configuration) == expected
    assert expected.cluster_uri == "hdfs:///ha/one"
    assert HighAvailabilitySettings.from_configuration({}) is None
    assert HighAvailabilitySettings.from_configuration({"high-availability.type": "NONE"}) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"storageDir": "/d"}, "cluster id"),
        ({"cluster-id": "c"}, "directory"),
        ({"type": "etcd", "storageDir": "/d"}, "'etcd'"),
        ({"type": "zookeeper", "storageDir": "/d", "cluster-id": "c"}, "quorum"),
        ({"storageDir": "/d", "cluster-id": "c", "jobmanager": "x"}, "high-availability.jobmanager"),
        ({"storageDir": "/d", "cluster-id": "c", "standbys": "many"}, "'many'"),
        ({"storageDir": "/d", "cluster-id": "c", "standbys": "-1"}, "num_standbys"),
    ],
)
def test_wrong_keys_are_refused_by_name(given, text):
    with pytest.raises(ConfigurationError, match=text):
        HighAvailabilitySettings.from_configuration({f"high-availability.{key}": value for key, value in given.items()})
