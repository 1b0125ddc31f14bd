"""Alignment is a pure decision, so it is tested by property: under any interleaving of channels the snapshot holds
exactly what came before it.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.columns.records import CheckpointBarrier
from headrace.engine.kernel.config import CheckpointingMode
from headrace.engine.task.barriers import BarrierAligner


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, 0)


def test_one_channel_triggers_at_once() -> None:
    aligner = BarrierAligner(1, CheckpointingMode.EXACTLY_ONCE)
    assert aligner.on_barrier(0, barrier(1)).trigger == barrier(1)


def test_first_barrier_blocks_and_last_one_triggers() -> None:
    aligner = BarrierAligner(2, CheckpointingMode.EXACTLY_ONCE)
    assert aligner.on_barrier(0, barrier(1)).block == 0
    decision = aligner.on_barrier(1, barrier(1))
    assert decision.trigger == barrier(1)
    assert decision.block is None


def test_abort_unblocks_and_its_late_barriers_are_ignored() -> None:
    aligner = BarrierAligner(2, CheckpointingMode.EXACTLY_ONCE)
    aligner.on_barrier(0, barrier(1))
    assert aligner.on_abort(1).unblock
    assert aligner.on_barrier(1, barrier(1)).block is None
    assert aligner.on_barrier(0, barrier(2)).block == 0
    assert aligner.on_barrier(1, barrier(2)).trigger == barrier(2)


def test_abort_of_a_later_checkpoint_leaves_the_earlier_one() -> None:
    aligner = BarrierAligner(2, CheckpointingMode.EXACTLY_ONCE)
    aligner.on_barrier(0, barrier(1))
    assert not aligner.on_abort(2).unblock
    assert aligner.on_barrier(1, barrier(1)).trigger == barrier(1)


def test_newer_barrier_supersedes_one_that_never_came() -> None:
    aligner = BarrierAligner(2, CheckpointingMode.EXACTLY_ONCE)
    aligner.on_barrier(0, barrier(1))
    decision = aligner.on_barrier(1, barrier(2))
    assert (decision.superseded, decision.unblock, decision.block) == (1, True, 1)
    assert aligner.on_barrier(0, barrier(2)).trigger == barrier(2)


def test_at_least_once_never_blocks() -> None:
    aligner = BarrierAligner(2, CheckpointingMode.AT_LEAST_ONCE)
    assert aligner.on_barrier(0, barrier(1)).block is None
    assert aligner.on_barrier(0, barrier(2)).block is None
    assert aligner.on_barrier(1, barrier(1)).trigger == barrier(1)
    assert aligner.on_barrier(1, barrier(2)).trigger == barrier(2)


@given(data=st.data(), num_channels=st.integers(1, 4), num_checkpoints=st.integers(1, 4))
def test_snapshot_holds_exactly_the_records_before_its_barriers(
    data: st.DataObject, num_channels: int, num_checkpoints: int
) -> None:
    """Channels carry numbered records and barriers; a scheduler takes from unblocked ones at random."""
    channels = []
    for _ in range(num_channels):
        elements: list[object] = []
        for checkpoint in range(1, num_checkpoints + 1):
            elements.extend(["record"] * data.draw(st.integers(0, 3)))
            elements.append(barrier(checkpoint))
        channels.append(elements)
    expected = [
        sum(elements[: elements.index(barrier(n))].count("record") for elements in channels)
        for n in range(1, num_checkpoints + 1)
    ]
    aligner = BarrierAligner(num_channels, CheckpointingMode.EXACTLY_ONCE)
    blocked: set[int] = set()
    processed, snapshots = 0, []
    while any(channels):
        ready = [i for i, elements in enumerate(channels) if elements and i not in blocked]
        chosen = data.draw(st.sampled_from(ready))
        element = channels[chosen].pop(0)
        if element == "record":
            processed += 1
            continue
        decision = aligner.on_barrier(chosen, element)
        if decision.block is not None:
            blocked.add(decision.block)
        if decision.trigger is not None:
            snapshots.append(processed)
            blocked.clear()
    assert snapshots == expected
