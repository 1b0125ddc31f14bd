"""Directories whose content is run are their user's alone, or what lies there is signed.

Families: exhaustive (owners and modes), end to end (jobs that would restore from where others write).
"""

from __future__ import annotations

import grp
import os
import pwd
import secrets
from dataclasses import replace

import pytest
from control_harness import settings, submission

from headrace import ConfigurationError, HighAvailabilitySettings, JobFailedError, StreamExecutionEnvironment
from headrace.cli.doctor import job_folder
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.checkpoint.io import make_folder, prepare_job
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.files.local import LocalFileSystem
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.files.permissions import require_private, why_others_can_write

STICKY = 0o1000


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"k {secrets.token_hex(32)}\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def place(tmp_path):
    """A directory in a directory."""
    found = tmp_path / "above" / "own"
    found.mkdir(parents=True, mode=0o700)
    found.parent.chmod(0o755)
    return found


@pytest.mark.parametrize("sticky", [0, STICKY])
@pytest.mark.parametrize("bits", range(8))
@pytest.mark.parametrize("is_above", [True, False])
def test_what_everybody_can_write_to_is_told(place, bits, sticky, is_above):
    (place.parent if is_above else place).chmod(0o750 | bits | sticky)
    is_open = bool(bits & 0o2) and not (is_above and sticky)
    reason = why_others_can_write(str(place))
    assert (reason is not None) == is_open
    if is_open:
        assert "can be written by everybody" in reason


class Group:
    """A group, as this machine knows it."""

    def __init__(self, monkeypatch, gid, name, members=(), primary_of=("me",), user="me"):
        def known(number):
            if name is None:
                raise KeyError(number)
            return grp.struct_group((name, "x", number, list(members)))

        me = pwd.struct_passwd((user, "x", os.geteuid(), gid, "", "/", "/bin/sh"))
        everybody = [pwd.struct_passwd((one, "x", 70_000, gid, "", "/", "/bin/sh")) for one in primary_of]
        monkeypatch.setattr(grp, "getgrgid", known)
        monkeypatch.setattr(pwd, "getpwuid", lambda _: me)
        monkeypatch.setattr(pwd, "getpwall", lambda: everybody)
        monkeypatch.setattr(os, "getgroups", lambda: [gid])


@pytest.mark.parametrize(
    ("group", "is_own"),
    [
        ({"name": "me"}, True),
        ({"name": "me", "members": ["me"]}, True),
        ({"name": None}, True),
        ({"name": "me", "members": ["me", "other"]}, False),
        ({"name": "me", "primary_of": ["me", "other"]}, False),
        ({"name": "users"}, False),
        ({"name": "domain users", "primary_of": []}, False),
    ],
)
@pytest.mark.parametrize("is_above", [True, False])
def test_a_group_counts_if_somebody_else_can_be_in_it(place, monkeypatch, group, is_own, is_above):
    """With umask 002 everything can be written by the user's own group, in which is nobody else."""
    Group(monkeypatch, 4_711, **group)
    changed = place.parent if is_above else place
    os_stat, os_lstat = os.stat, os.lstat

    def of_the_group(found):
        return os.stat_result((0o040775, *tuple(found)[1:5], 4_711, *tuple(found)[6:]))

    monkeypatch.setattr(os, "stat", lambda p, **_: of_the_group(os_stat(p)) if str(p) == str(changed) else os_stat(p))
    monkeypatch.setattr(
        os, "lstat", lambda p, **_: of_the_group(os_lstat(p)) if str(p) == str(changed) else os_lstat(p)
    )
    reason = why_others_can_write(str(place))
    assert (reason is None) == is_own
    if not is_own:
        assert "can be written by group" in reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_a_directory_of_somebody_else_is_told_and_one_above_is_trusted(place):
    os.chown(place.parent, 70_000, 0)
    assert why_others_can_write(str(place)) is None
    os.chown(place, 70_000, 0)
    assert "belongs to user 70000" in why_others_can_write(str(place))


def test_links_are_followed_before_anything_is_looked_at(place, tmp_path):
    (tmp_path / "link").symlink_to(place)
    assert why_others_can_write(str(tmp_path / "link")) is None
    place.chmod(0o777)
    assert "own can be written" in why_others_can_write(str(tmp_path / "link"))


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("bits", [0, STICKY])
def test_a_link_that_others_can_replace_is_told(place, tmp_path, bits, is_relative):
    """Also one that is reached by a link, and one in the middle of a path."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777 | bits)
    (shared / "link").symlink_to("../above" if is_relative else place.parent)
    (tmp_path / "first").symlink_to("shared/link" if is_relative else shared / "link")
    for path in (shared / "link" / "own", tmp_path / "first" / "own", tmp_path / "first" / "own" / "new"):
        reason = why_others_can_write(str(path))
        assert (reason is None) == bool(bits)
        assert bits or f"in {shared}, which can be written by everybody" in reason


def test_links_without_an_end_are_told(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert why_others_can_write(str(tmp_path / "one")) is not None
    assert "cannot be looked at" in why_others_can_write(str(tmp_path / "one" / "inside"))


def test_what_is_in_it_and_cannot_be_looked_at_is_told(place):
    with pytest.raises(ConfigurationError, match="cannot be looked at: File name too long"):
        require_private(LocalFileSystem(), str(place), "it", [str(place / ("x" * 300))])


def test_a_file_on_the_way_is_left_to_what_is_made_there(place):
    (place / "file").write_text("")
    assert why_others_can_write(str(place / "file" / "manifests")) is None
    place.chmod(0o777)
    assert f"in {place}, which can be written by everybody" in why_others_can_write(str(place / "file" / "manifests"))


def test_what_is_not_there_yet_is_its_makers(place):
    assert why_others_can_write(str(place / "a" / "b")) is None
    place.chmod(0o777)
    assert "in its place" in why_others_can_write(str(place / "a" / "b"))


def test_stores_without_modes_are_not_asked():
    require_private(MemoryFileSystem(), "x", "it")
    with pytest.raises(ConfigurationError, match="chmod"):
        require_private(LocalFileSystem(), "/proc/self/mem", "it")


# ----------------------------------------------------------------------------------------------------------- end to end
def started(directory, count=60, **settings):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    env.enable_checkpointing(10, directory=directory)
    if "key_file" in settings:
        env.get_checkpoint_config().set_key_file(settings.pop("key_file"))
    source = GeneratorSource(lambda n: n, count=count, records_per_second=2_000)
    env.from_source(source, None, "numbers").uid("numbers").map(lambda n: n + 1).uid("map").print().uid("out")
    return env.execute_async("job", **settings)


def test_a_job_takes_no_checkpoints_where_others_write(place, key_file):
    place.chmod(0o777)
    with pytest.raises(JobFailedError, match=r"can be written by everybody \(mode 777\)") as caught:
        started(place).result()
    assert "chmod go-w" in str(caught.value)
    started(place, key_file=key_file).result()
    place.chmod(0o777 | STICKY)  # the job's own folder in it is its alone
    started(place).result()


def test_a_job_starts_from_no_snapshot_where_others_write(place, tmp_path, key_file):
    def stopped(**settings):
        job = started(place, 100_000, **settings)
        for view in job.views():
            if view.checkpoints_completed:
                break
        return job.stop(), os.path.join(place, view.job_id)

    path, folder = stopped()
    os.chmod(folder, 0o777)
    with pytest.raises(JobFailedError, match="can be written by everybody"):
        started(tmp_path / "other", from_checkpoint=path).result()
    os.chmod(folder, 0o700)
    os.chmod(os.path.join(folder, "manifests"), 0o777)
    with pytest.raises(JobFailedError, match="manifests can be written by everybody"):
        started(tmp_path / "other", from_checkpoint=path).result()
    path, folder = stopped(key_file=key_file)
    os.chmod(folder, 0o777)
    job = started(tmp_path / "other", 100_000, from_checkpoint=path, key_file=key_file)
    assert job.stop() is not None


@pytest.mark.parametrize("inside", ["", "jobs", "leader", "jobs/a"])
def test_a_leader_reads_no_jobs_where_others_write(place, inside, key_file):
    store, signing = JobStore.open(str(place)), JobStore.open(str(place), key_file)
    signing.put_submission("a", 1, {}, b"program")
    (place / "leader").mkdir(mode=0o700, exist_ok=True)
    assert [job.job_id for job in store.read_all()] == ["a"]
    (place / inside).chmod(0o777)
    with pytest.raises(ConfigurationError, match="can be written by everybody"):
        store.read_all()
    assert [job.job_id for job in signing.read_all()] == ["a"]


def test_a_cluster_does_not_start_on_a_directory_that_others_write_to(place):
    (place / "c").mkdir()
    (place / "c").chmod(0o777)
    ha = HighAvailabilitySettings(str(place), "c")
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1, high_availability=ha)
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match=r"directory of high availability .* can be written by everybody"):
        env.execute("job")


@pytest.mark.parametrize("at", ["submission", "preparation"])
def test_a_job_folder_that_its_server_gives_away_is_refused_when_it_is_made(place, at, key_file, monkeypatch):
    """As NFS does with the files of a squashed user: before, only a failover would have noticed."""
    create = LocalFileSystem.create_exclusive

    def squashed(fs, path, data):
        create(fs, path, data)
        os.chmod(place / "job-1", 0o777)  # as a stand-in for chown, which root alone may do

    monkeypatch.setattr(LocalFileSystem, "create_exclusive", squashed)
    make = make_folder if at == "submission" else prepare_job
    with pytest.raises(ConfigurationError, match=r"folder of checkpoints .* can be written by everybody"):
        make(job_in(place), 1)
    make(job_in(place, key_file), 1)


def job_in(place, key_file=None):
    job = submission(job_settings=settings(checkpoints=True, directory=str(place)))
    return replace(job, job_id="job-1", settings=replace(job.settings, checkpoint_key_file=key_file))


def test_the_doctor_tells_of_it(place):
    assert job_folder(None, None, None).is_fine
    assert job_folder(str(place), "c", None).is_fine
    place.chmod(0o777)
    check = job_folder(str(place), "c", None)
    assert not check.is_fine
    assert "can be written by everybody" in check.found
    assert "chmod go-w" in check.advice
    assert job_folder(str(place), "c", "keys").is_fine
    assert job_folder("memory://x/y", "c", None).is_fine
