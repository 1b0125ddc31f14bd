"""Two jobs that write one topic, the second from a savepoint of the first, against a real broker.

Risks and families: records that both write, lost ones (programs in every order of what the two do; oracle: a reader of
committed records). A savepoint that a job is not told of stands for one that is taken while it goes on.
"""

from __future__ import annotations

import pytest
from kafka_server import kafka_server  # noqa: F401 - a fixture

from headrace.connectors.kafka import KafkaSink, TextMessages
from headrace.connectors.kafka.client import Client
from headrace.connectors.kafka.ledger import Note, Numbers, newer_output
from headrace.connectors.kafka.open_transactions import TransactionCommitter
from headrace.engine.connectors.contract import SinkHistory
from headrace.engine.errors import InternalError, NewerOutputError
from headrace.testing.sinks.harness import SinkTestHarness

STAGINGS = pytest.mark.parametrize("staging", ["checkpoint", "transaction"])


class Jobs:
    """A job that has committed 1 and has a savepoint with 2 in it, and others that start from it."""

    def __init__(self, server, staging):
        self._server, self._staging = server, staging
        self.topic = server.create_topic()
        self.first = SinkTestHarness(self._sink(), job="first")
        self.first.start()
        self.first.write(["1"])
        self.first.checkpoint(1)
        self.first.write(["2"])
        self.first.checkpoint(2, notifies=False)

    def _sink(self, **options):
        return KafkaSink.exactly_once(
            self._server.address, self.topic, value=TextMessages(), transactional_id_prefix=self.topic,
            commits_topic="commits", staging=self._staging, **options,
        )  # fmt: skip

    def from_savepoint(self, name, **options):
        job = SinkTestHarness(self._sink(**options), job=name)
        job.take_snapshot_of(self.first, 2)
        job.start(checkpoint_id=2)
        return job

    def end_what_is_open(self):
        """As the broker does in time: until then readers of committed records wait behind it."""
        coordinator = Client(self._server.address, {}).coordinator()
        for transactional_id in coordinator.open_ids(self.topic):
            coordinator.abort(transactional_id, 60_000)
        coordinator.close()

    def committed(self):
        return [int(message.value()) for message in self._server.committed(self.topic)]


@pytest.mark.sampled(8)
@STAGINGS
def test_a_savepoint_of_a_job_that_has_ended_since_is_gone_on_from(staging, kafka_server):  # noqa: F811
    """What the savepoint holds is committed once; a second job from it, whose like has written nothing, may start."""
    jobs = Jobs(kafka_server, staging)
    jobs.first.close()
    jobs.from_savepoint("fails at once").close()
    second = jobs.from_savepoint("second")
    second.write(["3"])
    second.checkpoint(3)
    second.finish()
    assert jobs.committed() == [1, 2, 3]


@pytest.mark.sampled(8)
@STAGINGS
def test_a_savepoint_behind_which_its_job_has_written_is_refused(staging, kafka_server):  # noqa: F811
    jobs = Jobs(kafka_server, staging)
    jobs.first.write(["3"])
    jobs.first.checkpoint(3)
    jobs.first.close()
    with pytest.raises(NewerOutputError, match=r"from checkpoint 2, .* up to checkpoint 3 of the job before"):
        jobs.from_savepoint("second")
    assert jobs.committed() == [1, 2, 3]
    allowed = jobs.from_savepoint("allowed", on_newer_output="keep")
    allowed.write(["3"])
    allowed.checkpoint(3)
    allowed.finish()
    assert jobs.committed() == [1, 2, 3, 3]


@pytest.mark.sampled(8)
@STAGINGS
def test_a_second_job_writes_nothing_beside_one_that_goes_on(staging, kafka_server):  # noqa: F811
    """It is refused at its first commit. The first may have been shut out for a moment, and goes on."""
    jobs = Jobs(kafka_server, staging)
    second = jobs.from_savepoint("second")
    assert jobs.committed() == [1, 2]
    jobs.first.start(checkpoint_id=2)  # as after a failure: it goes on from its own newest checkpoint
    jobs.first.write(["3"])
    jobs.first.checkpoint(3)
    second.write(["3"])
    with pytest.raises(NewerOutputError, match="up to checkpoint 3 of the job before"):
        second.checkpoint(3)
    second.close()
    jobs.end_what_is_open()
    jobs.first.write(["4"])
    jobs.first.checkpoint(4)
    jobs.first.finish()
    assert jobs.committed() == [1, 2, 3, 4]


@pytest.mark.sampled(8)
@STAGINGS
def test_a_job_does_not_write_again_what_another_has_committed_of_it(staging, kafka_server):  # noqa: F811
    """It fails, and goes back behind the savepoint: 2 is committed, by the other job."""
    jobs = Jobs(kafka_server, staging)
    jobs.from_savepoint("second").close()
    with pytest.raises(NewerOutputError, match=r"from checkpoint 1, .* up to checkpoint 2"):
        jobs.first.start(checkpoint_id=1)
    assert jobs.committed() == [1, 2]


def test_a_commit_that_was_not_noted_is_known_to_the_broker(kafka_server, monkeypatch):  # noqa: F811
    """The first job dies between the commit behind the savepoint and its note."""
    jobs = Jobs(kafka_server, "transaction")
    jobs.first.write(["3"])
    write = TransactionCommitter._write

    def write_or_die(committer, series, note):
        if note.checkpoint == 3:
            message = "killed"
            raise InternalError(message)
        write(committer, series, note)

    with monkeypatch.context() as patched, pytest.raises(InternalError, match="killed"):
        patched.setattr(TransactionCommitter, "_write", write_or_die)
        jobs.first.checkpoint(3)
    jobs.first.close()
    assert jobs.committed() == [1, 2, 3]
    with pytest.raises(NewerOutputError, match=r"from checkpoint 2, .* up to checkpoint 3 of the job before"):
        jobs.from_savepoint("second")
    allowed = jobs.from_savepoint("allowed", on_newer_output="keep")
    allowed.write(["3"])
    allowed.checkpoint(3)
    allowed.finish()
    assert jobs.committed() == [1, 2, 3, 3]


def test_what_is_newer_depends_on_whose_it_is():
    own, before, stranger = "a" * 12, "b" * 12, "c" * 12
    goes_on = SinkHistory(before, own, {own: 7, before: 3}, True)
    begins = SinkHistory(before, own, {before: 3}, True)

    def newer(history, owner, checkpoint, *, by=None, origin=before):
        return newer_output({f"p-{owner}-1.0-0": Note(Numbers(), checkpoint, origin, by or owner)}, "p", history)

    assert newer(begins, before, 3) == {}
    assert newer(begins, before, 4) == {before: 4}
    assert newer(begins, stranger, 1) == {stranger: 1}, "it went on from the same point before"
    assert newer(begins, stranger, 1, origin=stranger) == {}, "a sink of another beginning"
    assert newer(goes_on, stranger, 1) == {}, "it came later, and was told"
    assert newer(goes_on, own, 9) == {}, "other subtasks of this attempt are ahead"
    assert newer(goes_on, own, 9, by=stranger) == {own: 9}
    assert newer(goes_on, before, 4) == {before: 4}
    assert newer_output({f"p-{before}-1.0-0": Note(Numbers([[0, 4]]))}, "p", begins) == {}, "a note that does not say"
