"""Jobs whose newest checkpoint is gone or damaged when they restart, judged by their files and tables.

Families: corruption, crash (a failure right behind the damage), errors as the user sees them.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from unittest import mock

import pytest
from lost_checkpoint_kit import expected, flip, newest_manifest, number_of, run

from headrace import DamagedCheckpointPolicy
from headrace.connectors.sql.writing import SqlCommitter
from headrace.engine.errors import InternalError

FALL_BACK = DamagedCheckpointPolicy.FALL_BACK_AT_LEAST_ONCE


def assert_nothing_came_twice(end):
    for rows in (end.files, end.table):
        assert not rows - expected()


@pytest.mark.parametrize("num_retained", [1, 3])
def test_a_job_whose_checkpoint_is_gone_fails_instead_of_starting_over(tmp_path, num_retained):
    end = run(tmp_path, lambda root: newest_manifest(root).unlink(), num_retained=num_retained)
    store_has = "has none" if num_retained == 1 else "does not have it; the newest one there is checkpoint"
    assert f"was complete, and the store {store_has}" in end.failure
    assert 'is public, in "Sink: into files", "Sink: into table"' in end.failure
    assert sum("looks again" in text for text in end.history) == 4
    assert_nothing_came_twice(end)


def test_a_job_whose_whole_folder_is_gone_fails(tmp_path):
    end = run(tmp_path, shutil.rmtree, policy=FALL_BACK)
    assert "was complete, and the store has none: the job's folder is gone" in end.failure
    assert_nothing_came_twice(end)


def test_a_damaged_manifest_fails_the_job_and_names_what_is_public(tmp_path):
    end = run(tmp_path, lambda root: flip(newest_manifest(root)))
    assert "is damaged" in end.failure
    assert 'is public, in "Sink: into files", "Sink: into table", and would be written again' in end.failure
    assert "FALL_BACK_AT_LEAST_ONCE" in end.failure
    assert_nothing_came_twice(end)


def strike_data(root):
    number = newest_manifest(root).stem
    for path in sorted((root / number).rglob("*.arrow")):
        flip(path)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_damaged_file_fails_the_job_and_is_named_with_its_operator(tmp_path, parallelism):
    end = run(tmp_path, strike_data, parallelism=parallelism)
    assert "is damaged: a file of a checkpoint does not have the content it was written with: chk-" in end.failure
    assert "operator '" in end.failure
    assert_nothing_came_twice(end)


@pytest.mark.parametrize("strike", [strike_data, lambda root: newest_manifest(root).unlink()])
def test_falling_back_is_a_choice_that_loses_nothing_and_is_said(tmp_path, strike):
    end = run(tmp_path, strike, policy=FALL_BACK)
    assert end.failure is None
    assert any(text.startswith("falls back to checkpoint") and "output comes twice" in text for text in end.history)
    for rows in (end.files, end.table):
        assert set(rows) == set(expected())


def test_a_table_that_shows_rows_of_the_lost_checkpoint_refuses_to_show_them_twice(tmp_path):
    public = []

    def strike(root):
        manifest = newest_manifest(root)
        with contextlib.closing(sqlite3.connect(tmp_path / "table.db")) as connection:
            markers = "SELECT SUM(num_rows) FROM headrace_commits WHERE checkpoint_id = ?"
            public.extend(connection.execute(markers, (number_of(manifest),)).fetchone())
        flip(manifest)

    end = run(tmp_path, strike, into_files=False)
    assert not end.table - expected()
    if public == [None]:  # it failed before that was committed, or while it was
        assert end.failure is None or "rows of it are public" in end.failure
    else:
        assert f"a newer one is lost; {public[0]} rows of it are public" in end.failure


def test_a_table_that_proves_that_nothing_of_it_is_public_lets_the_job_go_on(tmp_path):
    """The newest checkpoint was complete, and its commits failed; its markers say so."""
    commit = SqlCommitter.commit
    lost = []

    def commit_or_fail(committer, committable):
        if not (tmp_path / "failed").exists() and committable["checkpoint_id"] > 3:
            lost.append(committable["checkpoint_id"])
            (tmp_path / "failed").touch()
            message = "the process is about to die"
            raise InternalError(message)
        commit(committer, committable)

    with mock.patch.object(SqlCommitter, "commit", commit_or_fail):
        end = run(tmp_path, strike_data, into_files=False, fails=False)
    assert end.failure is None
    assert lost
    assert any(text.startswith("falls back") and "proof" in text for text in end.history), end.history
    assert end.table == expected()


def test_a_job_without_sinks_that_commit_goes_on(tmp_path):
    end = run(tmp_path, strike_data, into_files=False, into_table=False)
    assert end.failure is None
    assert any(text.startswith("falls back") for text in end.history)
