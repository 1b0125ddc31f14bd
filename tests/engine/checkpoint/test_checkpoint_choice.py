"""Which checkpoint a job goes on from: property (the newest one that was complete, or an error), corruption, unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.checkpoint.restore_choice import Choice, JobPast, check_folder, choose_checkpoint
from headrace.engine.errors import CheckpointCorruptError, CheckpointLostError, SupersededError
from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem


def folder(*published, noted=(), damaged=()):
    """A job's folder with some manifests, notes and damage."""
    storage = CheckpointStorage(MemoryFileSystem(), "job")
    storage.claim_epoch()
    for checkpoint_id in published:
        storage.publish(Manifest("job", "job", checkpoint_id, 1, 0, ()), 1)
        if checkpoint_id in damaged:
            storage.fs.files[f"job/manifests/chk-{checkpoint_id}.json"] += b"x"
    for checkpoint_id in noted:
        storage.completions.note(checkpoint_id)
    return storage


def chosen(storage, **past):
    choice = choose_checkpoint(storage, JobPast(**past))
    return (None if choice.manifest is None else choice.manifest.checkpoint_id), len(choice.passed_over)


def test_the_newest_one_is_taken():
    assert chosen(folder(1, 2, 3, noted=(2, 3)), newest=3) == (3, 0)
    assert chosen(folder(1, 2, 3)) == (3, 0)
    assert choose_checkpoint(folder(), JobPast()) == Choice(None)


def test_one_that_was_complete_and_is_gone_fails_with_that_sentence():
    for storage, past in ((folder(), {"newest": 13}), (folder(noted=(12, 13)), {})):
        with pytest.raises(CheckpointLostError, match="checkpoint 13 was complete, and the store has none"):
            chosen(storage, may_pass_over=True, **past)


@pytest.mark.parametrize("past", [{"newest": 13}, {}])
def test_an_older_one_takes_its_place_only_where_that_is_allowed(past):
    storage = folder(11, 12, noted=() if past else (13,))
    with pytest.raises(CheckpointLostError, match=r"13 was complete, .* the newest one there is checkpoint 12"):
        chosen(storage, **past)
    assert chosen(storage, may_pass_over=True, **past) == (12, 1)


def test_an_id_is_not_used_again_when_its_checkpoint_is_lost():
    """Else the new ones would stay below the lost one, which would be missed, and passed over, at each restart."""
    storage = folder(11, noted=(13,))
    assert chosen(storage, may_pass_over=True) == (11, 1)
    following = storage.highest_checkpoint_id() + 1
    storage.publish(Manifest("job", "job", following, 1, 0, ()), 1)
    storage.completions.note(following)
    assert chosen(storage) == (following, 0)


def test_a_damaged_newest_one_is_named_with_its_file():
    storage = folder(12, 13, noted=(13,), damaged=(13,))
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint 13 is damaged(.|\n)*chk-13.json"):
        chosen(storage)
    assert chosen(storage, may_pass_over=True) == (12, 1)
    with pytest.raises(CheckpointCorruptError, match="checkpoint 12 is damaged: its file is short"):
        chosen(folder(11, 12), damaged={12: "its file is short"})


def test_nothing_sound_is_never_nothing():
    with pytest.raises(CheckpointCorruptError, match="none of the job's checkpoints can be restored"):
        chosen(folder(1, 2, damaged=(1, 2)), may_pass_over=True)
    with pytest.raises(CheckpointLostError, match=r"checkpoint 3 was complete, .* checkpoint 2 is damaged"):
        chosen(folder(2, damaged=(2,)), newest=3, may_pass_over=True)


def test_a_torn_one_that_was_never_told_to_anybody_counts_for_nothing():
    assert chosen(folder(12, 13, noted=(12,), damaged=(13,))) == (12, 0)
    with pytest.raises(CheckpointCorruptError):  # of a folder without notes nobody knows that
        chosen(folder(12, 13, damaged=(13,)))


def test_one_that_this_leader_gave_up_is_neither_taken_nor_missed():
    assert chosen(folder(12, 13, noted=(12, 13)), newest=12, given_up=frozenset({13})) == (12, 0)
    assert chosen(folder(12, noted=(12, 13)), newest=12, given_up=frozenset({13})) == (12, 0)


def test_one_that_a_listing_does_not_show_is_found_by_its_name():
    storage = folder(12, 13, noted=(13,))
    listed = storage.fs.list_files
    storage.fs.list_files = lambda prefix: [entry for entry in listed(prefix) if "chk-13" not in entry[0]]
    assert chosen(storage) == (13, 0)


def test_a_folder_that_is_gone_is_told_from_a_new_one():
    storage = CheckpointStorage(MemoryFileSystem(), "job")
    check_folder(storage, JobPast(), 0)
    for past in (JobPast(newest=4), JobPast(has_run=True)):
        with pytest.raises(CheckpointLostError, match="gone"):
            check_folder(storage, past, 0)
    storage.claim_epoch(7)
    check_folder(storage, JobPast(newest=4, has_run=True), 7)
    for epoch in (8, 9):  # a leader whose own epoch is gone leaves; its successor looks afresh
        with pytest.raises(SupersededError, match="gone"):
            check_folder(storage, JobPast(), epoch)
    storage.publish(Manifest("job", "job", 4, 7, 0, ()), 7)
    storage.fs.delete_directory("job/epochs")
    check_folder(storage, JobPast(newest=4, has_run=True), 0)  # only old files were swept


@given(
    published=st.sets(st.integers(1, 6)),
    told=st.integers(0, 6),
    remembered=st.integers(0, 6),
    broken=st.sets(st.integers(1, 6)),
    may_pass_over=st.booleans(),
)
def test_what_was_told_is_restored_or_missed(published, told, remembered, broken, may_pass_over):
    """Against a model that knows what was told: nothing older is ever taken in silence."""
    storage = folder(*sorted(published), noted=(told,) if told else (), damaged=broken)
    newest = max(told, remembered)
    sound = [checkpoint_id for checkpoint_id in published if checkpoint_id not in broken]
    is_current = [checkpoint_id for checkpoint_id in sound if checkpoint_id >= newest]
    if newest == 0:  # nobody knows: all that is there counts
        is_current = [checkpoint_id for checkpoint_id in sound if checkpoint_id == max(published)]
    if is_current or not (published or newest):
        assert chosen(storage, newest=remembered) == (max(is_current, default=None), 0)
    elif sound and may_pass_over:
        assert chosen(storage, newest=remembered, may_pass_over=True) == (max(sound), 1)
    else:
        with pytest.raises((CheckpointLostError, CheckpointCorruptError)):
            chosen(storage, newest=remembered, may_pass_over=may_pass_over)


def test_notes_go_with_what_nobody_needs_any_more():
    storage = folder(noted=(1, 2, 3, 12))
    storage.completions.forget_before(3)
    assert storage.completions.noted() == [3, 12]
    storage.completions.forget()
    assert storage.completions.noted() == []
