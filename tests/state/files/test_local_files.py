"""Directories of local state: what a failure leaves behind, and a default place that others may have prepared.

Families: crash (a full disk), rules one by one. What a killed process leaves is in ``test_rocksdb``.
"""

from __future__ import annotations

import errno
import os
import tempfile

import pytest

from headrace.state.errors import StorageError
from headrace.state.files import local_directories as local_files
from headrace.state.files import permissions
from headrace.state.files.local_directories import LocalDirectory, default_local_root, sweep_local_directories


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files as Linux lists them")
@pytest.mark.parametrize("call", ["mkdir", "lock"])
def test_a_directory_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch, call):
    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    before, own = open_files(), set(local_files._own_locks)
    with monkeypatch.context() as patched:
        patched.setattr(*((os, "mkdir") if call == "mkdir" else (local_files.fcntl, "flock")), full)
        for _ in range(5):
            with pytest.raises(StorageError, match="No space left"):
                LocalDirectory.make(str(tmp_path), "op-0")
    assert open_files() == before
    assert local_files._own_locks == own
    sweep_local_directories(str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return default_local_root()


def test_the_default_root_is_made_for_this_user_alone(root):
    made = LocalDirectory.make(None, "op-0")
    assert os.stat(root).st_mode & 0o777 == 0o700
    assert os.path.dirname(made.path) == root
    made.close()


@pytest.mark.parametrize("how", ["link", "group", "others", "owner"])
def test_a_default_root_that_others_prepared_is_refused_and_not_swept(root, tmp_path, monkeypatch, how):
    victim = tmp_path / "victim"
    (victim / "data").mkdir(parents=True, mode=0o700)
    (victim / "data.lock").touch()
    if how == "link":
        os.symlink(victim, root)
    else:
        os.rename(victim, root)
        if how == "owner" and os.geteuid() == 0:
            os.chown(root, 70_000, -1)
        elif how == "owner":
            me = os.geteuid()
            monkeypatch.setattr(local_files, "default_local_root", lambda: root)
            monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        else:
            monkeypatch.setattr(permissions, "_is_of_nobody_else", lambda gid: False)
            os.chmod(root, 0o770 if how == "group" else 0o707)
    with pytest.raises(StorageError, match="not safe") as refused:
        LocalDirectory.make(None, "op-0")
    assert "another directory" in refused.value.hint
    assert sweep_local_directories() == []
    assert sorted(os.listdir(root)) == ["data", "data.lock"]
    LocalDirectory.make(root, "op-0").close()  # a place that was chosen is the chooser's business
