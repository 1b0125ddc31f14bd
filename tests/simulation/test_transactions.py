"""Families: crash (random faults against a reference, into a store with transactions of its own), mutation.

The planted bugs of sinks are here; those that all programs show are in ``checkpoint_mutants.py``.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.planted import caught_by
from simulation.simulator import run_seed
from simulation.transactions import TRANSACTIONS, Ledger, LedgerWriter, expiring

from headrace.engine.connectors import commits, sinks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 15))
def test_committed_output_equals_the_reference(block: int) -> None:
    for seed in seeds(block, 10):
        run_seed(seed, shapes=TRANSACTIONS)


@pytest.mark.campaign
def test_a_seed_replays_exactly() -> None:
    for seed in (3, 17):
        assert run_seed(seed, shapes=TRANSACTIONS).digest == run_seed(seed, shapes=TRANSACTIONS).digest


@pytest.mark.parametrize("block", blocks(1, 3))
def test_an_expired_transaction_fails_the_job_and_is_never_passed_over(block: int) -> None:
    """With a store that waits for less than an outage may last, a run ends well or says what may be lost."""
    ends: Counter[str] = Counter()
    for seed in range(40 * block, 40 * block + 40):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                run_seed(seed, shapes=(expiring(150),))
                ends["well"] += 1
            except AssertionError as error:
                text = str(error)
                is_told = "the job ended FAILED" in text and "possible loss" in text
                ends["told" if is_told else text] += 1
    assert set(ends) == {"well", "told"}
    assert ends["well"] > 6, ends
    assert ends["told"] > 0, ends


# --------------------------------------------------------------------------------------------------------- planted bugs
@contextmanager
def commit_before_publish() -> Iterator[None]:
    """Output is committed at the barrier."""
    original = sinks.SinkOperator.snapshot_state

    def snapshot_state(self: sinks.SinkOperator, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        self.notify_checkpoint_complete(checkpoint_id)

    with mock.patch.object(sinks.SinkOperator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def transaction_id_is_used_again() -> Iterator[None]:
    """The attempt is no part of a transaction's name."""

    def name(self: LedgerWriter, checkpoint_id: int, number: int) -> str:
        return f"part-{self._context.subtask:05d}-0-{checkpoint_id:05d}-{number:05d}"

    def append(self: Ledger, name: str, owner: str, rows: list[Any]) -> None:
        if name not in self.transactions or self.transactions[name].state != "committed":
            original(self, name, owner, rows)

    def prepare(self: Ledger, name: str, now_ms: int) -> None:
        if self.transactions[name].state == "open":
            self.transactions[name].state = "prepared"

    original = Ledger.append
    with (
        mock.patch.object(LedgerWriter, "name", name),
        mock.patch.object(Ledger, "append", append),
        mock.patch.object(Ledger, "prepare", prepare),
    ):
        yield


@contextmanager
def nothing_is_committed_on_restore() -> Iterator[None]:
    """What the checkpoint holds as prepared is forgotten."""
    original = commits.CommitQueue.open

    def open_queue(self: commits.CommitQueue) -> None:
        self._pending.clear()
        self._num_due = 0
        original(self)

    with mock.patch.object(commits.CommitQueue, "open", open_queue):
        yield


@contextmanager
def abort_after_commit() -> Iterator[None]:
    """Dropping leftovers takes back what was committed meanwhile."""

    def abort(self: Ledger, name: str) -> None:
        from headrace.state.files.filesystem import filesystem_for

        if self.transactions[name].state == "committed":
            fs, root = filesystem_for(self.path)
            fs.delete(f"{root}/{name}.jsonl")
        self.transactions[name].state = "aborted"

    with mock.patch.object(Ledger, "abort", abort):
        yield


@contextmanager
def leftovers_are_dropped_at_the_start() -> Iterator[None]:
    """What earlier attempts prepared is aborted before the restored checkpoint's share of it is committed."""
    original = commits._Round._run

    def run(self: commits._Round) -> None:
        if self._context is not None:
            self._committer.open(self._context)
            self._committer.abort_leftovers()
            self._context, self.is_open = None, True
        original(self)

    with mock.patch.object(commits._Round, "_run", run):
        yield


@contextmanager
def task_is_ready_before_its_commits() -> Iterator[None]:
    """Tasks start while commits of the restored checkpoint are under way; others drop what is left by then."""
    with mock.patch.object(sinks.SinkOperator, "is_settled", True):
        yield


@contextmanager
def failed_commit_counts_as_done() -> Iterator[None]:
    """After k of n commits one fails, and the rest is taken for committed."""
    original = commits._Round.__call__

    def call(self: commits._Round) -> None:
        original(self)
        if self.error is not None:
            self.num_committed, self.error = len(self._due), None

    with mock.patch.object(commits._Round, "__call__", call):
        yield


@contextmanager
def answer_that_got_lost_counts_as_none() -> Iterator[None]:
    """A commit that failed is made under a new name, as if it could not have been made."""

    original = Ledger.commit

    def commit(self: Ledger, name: str, now_ms: int) -> None:
        transaction = self.transactions.get(name)
        if transaction is not None and transaction.state == "committed":
            self.show(f"{name}0", transaction)
        original(self, name, now_ms)

    with mock.patch.object(Ledger, "commit", commit):
        yield


@contextmanager
def committed_output_leaves_the_state_when_it_is_due() -> Iterator[None]:
    """What is being committed is no part of the next snapshot, although nobody knows whether it was."""
    pending = property(lambda self: self._pending[self._num_due :])
    with mock.patch.object(commits.CommitQueue, "pending", pending):
        yield


PLANTED = (
    commit_before_publish,
    transaction_id_is_used_again,
    nothing_is_committed_on_restore,
    abort_after_commit,
    leftovers_are_dropped_at_the_start,
    task_is_ready_before_its_commits,
    failed_commit_counts_as_done,
    answer_that_got_lost_counts_as_none,
    committed_output_leaves_the_state_when_it_is_due,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bug_is_caught(plant: Any) -> None:
    with plant():
        caught, _ = caught_by(f"sink: {plant.__name__}", lambda seed: run_seed(seed, shapes=TRANSACTIONS), 1_000)
    assert caught is not None, "the simulator did not notice"
    run_seed(caught, shapes=TRANSACTIONS)  # without the bug the seed passes
