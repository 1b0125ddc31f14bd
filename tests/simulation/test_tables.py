"""Families: crash (random faults against a reference, into a table with one commit per checkpoint), mutation.

Beside the reference, every version of the table must be whole; see `simulation.tables`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.batches import as_batch
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.savepoints import run_savepoint_seed
from simulation.simulator import run_seed
from simulation.tables import GLOBAL, slow_table, to_table

from headrace.engine.connectors import global_commits, sinks
from headrace.engine.connectors.sink_protocols import GlobalCommittable
from headrace.engine.graph import stream_graph as streamgraph

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 8))
def test_every_version_is_one_checkpoint(block: int) -> None:
    for seed in seeds(block, 8):
        run_seed(seed, shapes=GLOBAL)


@pytest.mark.campaign
def test_a_seed_replays_exactly() -> None:
    for seed in (3, 17):
        assert run_seed(seed, shapes=GLOBAL).digest == run_seed(seed, shapes=GLOBAL).digest


def test_writers_may_be_rescaled() -> None:
    assert sum(run_rescale_seed(seed, shapes=GLOBAL).done for seed in range(15)) > 5


@pytest.mark.parametrize("block", blocks(1, 2))
def test_savepoints_hold_what_is_not_committed(block: int) -> None:
    ends = [run_savepoint_seed(seed, shapes=GLOBAL) for seed in range(15 * block, 15 * block + 15)]
    assert {"taken", "stopped"} <= set(ends)


def test_a_batch_is_one_version() -> None:
    for seed in range(6):
        run_seed(seed, shapes=(to_table, slow_table), mutate=as_batch)


# --------------------------------------------------------------------------------------------------------- planted bugs
@contextmanager
def barriers_overtake_committables() -> Iterator[None]:
    """The way from writers to the committer is like any other."""
    with mock.patch.object(streamgraph, "_with_alignment", lambda edges, _nodes: edges):
        yield


@contextmanager
def committables_wait_for_the_next_barrier() -> Iterator[None]:
    """What is prepared at a barrier is emitted at the next one, and is no state meanwhile."""
    operator = global_commits.EmittingWriterOperator
    emit = operator._emit_prepared

    def emit_late(self: Any, checkpoint_id: int) -> None:
        prepared = self._prepare(checkpoint_id)
        late, self._late = getattr(self, "_late", []), prepared
        with mock.patch.object(self, "_prepare", return_value=late):
            emit(self, checkpoint_id)

    def finish(self: Any) -> None:
        emit_late(self, self._last_prepared or 1)
        original_finish(self)

    original_finish = operator.finish
    with mock.patch.object(operator, "_emit_prepared", emit_late), mock.patch.object(operator, "finish", finish):
        yield


@contextmanager
def gathered_committables_are_no_state() -> Iterator[None]:
    """What is gathered at a barrier is put into the queue behind the snapshot."""
    operator = global_commits.GlobalCommitterOperator
    original = operator.snapshot_state

    def snapshot_state(self: Any, checkpoint_id: int) -> None:
        gathered, self._gathered = self._gathered, []
        original(self, checkpoint_id)
        self._gathered = gathered
        self._prepare_for(checkpoint_id)

    with mock.patch.object(operator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def version_is_named_after_the_attempt_that_commits() -> Iterator[None]:
    """A commit that is made again after a restart has another name."""
    original = global_commits._restored

    def restored(element: Any) -> Any:
        checkpoint_id, whole = original(element)
        return checkpoint_id, GlobalCommittable(whole.owner, f"{whole.attempt}1", checkpoint_id, whole.committables)

    with mock.patch.object(global_commits, "_restored", restored):
        yield


@contextmanager
def version_is_made_at_the_barrier() -> Iterator[None]:
    """What is gathered is committed before its checkpoint is complete."""
    operator = global_commits.GlobalCommitterOperator
    original = operator.snapshot_state

    def snapshot_state(self: Any, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        sinks.CommitterOperator.notify_checkpoint_complete(self, checkpoint_id)

    with mock.patch.object(operator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def the_rest_is_not_emitted() -> Iterator[None]:
    """What was written behind the last barrier before the end of input stays with the writer."""

    def finish(self: Any) -> None:
        self._has_finished = True

    with mock.patch.object(global_commits.EmittingWriterOperator, "finish", finish):
        yield


PLANTED = (
    barriers_overtake_committables,
    committables_wait_for_the_next_barrier,
    gathered_committables_are_no_state,
    version_is_named_after_the_attempt_that_commits,
    version_is_made_at_the_barrier,
    the_rest_is_not_emitted,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(plant: Any) -> None:
    with plant():
        caught, _ = caught_by(f"table: {plant.__name__}", lambda seed: run_seed(seed, shapes=GLOBAL), 300)
    assert caught is not None, "the simulator did not notice"
    run_seed(caught, shapes=GLOBAL)  # without the bug the seed passes
