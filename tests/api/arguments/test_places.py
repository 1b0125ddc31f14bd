"""Where paths of a program lead, and which are refused in programs that Ray's job server runs."""

import os

import pytest

from headrace import RocksDBStateBackend, StreamExecutionEnvironment
from headrace.arguments.places import absolute_place, is_on_a_disk, lasting_place
from headrace.cli import main
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.sql import SqlSink
from headrace.dataset import ExecutionEnvironment
from headrace.engine.errors import ConfigurationError
from headrace.jobs.client import _savepoint_place


@pytest.fixture
def submitted(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def env():
    with StreamExecutionEnvironment.get_execution_environment("local") as made:
        yield made


def write_data_set(place):
    ExecutionEnvironment.get_execution_environment("local").from_collection([1]).write_as_json(place)


LASTING = {
    "checkpoints": lambda env, place: env.enable_checkpointing(10, directory=place),
    "checkpoint storage": lambda env, place: env.get_checkpoint_config().set_checkpoint_storage_dir(place),
    "savepoints": lambda env, place: env.set_default_savepoint_directory(place),
    "one savepoint": lambda env, place: _savepoint_place(place),
    "high availability": lambda env, place: env.set_high_availability(place, cluster_id="c"),
    "restore": lambda env, place: env.set_restore_path(place),
    "restore of one job": lambda env, place: env.execute(from_savepoint=place),
    "json lines": lambda env, place: FileSink.json_lines(place),
    "csv": lambda env, place: FileSink.csv(place),
    "parquet": lambda env, place: FileSink.parquet(place),
    "sqlite": lambda env, place: SqlSink.at_least_once(f"sqlite:///{place}", "t"),
    "data set": lambda env, place: write_data_set(place),
    "databases": lambda env, place: env.set_state_backend(RocksDBStateBackend(local_directory=place)),
}


@pytest.mark.parametrize("what", LASTING)
def test_a_submitted_program_names_no_relative_place_that_is_to_last(submitted, env, what):
    with pytest.raises(
        ConfigurationError, match=r"must not be a relative path in a submitted program; got '?out"
    ) as caught:
        LASTING[what](env, "out/x")
    assert f"in Ray's copy of the working directory on one machine, {os.getcwd()}" in str(caught.value)


@pytest.mark.parametrize("what", sorted(set(LASTING) - {"restore of one job"}))
def test_absolute_places_and_any_in_other_programs_are_taken(monkeypatch, tmp_path, env, what):
    monkeypatch.chdir(tmp_path)
    LASTING[what](env, "out")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    LASTING[what](env, str(tmp_path / "other"))


@pytest.mark.parametrize("variable", ["HEADRACE_SAVEPOINT_DIRECTORY", "HEADRACE_HA_DIR"])
def test_places_from_outside_are_looked_at_too(submitted, monkeypatch, variable):
    monkeypatch.setenv(variable, "out")
    monkeypatch.setenv("HEADRACE_CLUSTER_ID", "c")
    with pytest.raises(ConfigurationError, match="relative path in a submitted program"):
        StreamExecutionEnvironment.get_execution_environment("local").get_default_savepoint_directory()


def test_the_command_line_refuses_them_too(submitted, tmp_path, capsys):
    (tmp_path / "job.py").write_text("")
    assert main(["run", "--from-savepoint", "out", str(tmp_path / "job.py")]) == 1
    assert "--from-savepoint must not be a relative path" in capsys.readouterr().err


def test_what_was_sent_along_is_read_from_where_it_is(submitted, tmp_path):
    assert absolute_place("in.csv") == str(tmp_path / "in.csv")
    assert FileSource.csv("in.csv")


def test_uris_are_what_they_are(submitted):
    assert lasting_place("s3://bucket/x", "it") == "s3://bucket/x"
    assert lasting_place("file:/x", "it") == "file:///x"
    assert lasting_place("~/x", "it") == os.path.expanduser("~/x")


MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/x /shared nfs4 rw 0 0
tmpfs /shared/scratch tmpfs rw 0 0
b /data fuse.s3fs rw 0 0
"""


@pytest.mark.parametrize(
    ("place", "is_disk"),
    [
        ("/home/u/out", True), ("/shared/out", False), ("/shared/scratch/x", True), ("/sharedish", True),
        ("file:///home/x", True), ("file:///data/x", False), ("s3://bucket/home", False), ("memory://store/x", False),
    ],
)  # fmt: skip
def test_a_disk_is_told_from_what_machines_share(tmp_path, place, is_disk):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert is_on_a_disk(place, tmp_path / "mounts") is is_disk
    assert not is_on_a_disk(place, tmp_path / "none")


class SeveralMachines:
    """Stands for a cluster of several machines."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.may_span_machines = lambda: True

    def __getattr__(self, name):
        return getattr(self._cluster, name)


def on_several_machines(env):
    env._cluster = SeveralMachines(env._connect())
    return env


def test_several_machines_get_a_warning_of_paths_that_only_one_has(env, tmp_path, caplog):
    on_several_machines(env).enable_checkpointing(1_000, directory=tmp_path / "checkpoints")
    env.from_collection([1]).sink_to(FileSink.json_lines(tmp_path / "out"))
    env.execute("counting")
    warned = "\n".join(record.getMessage() for record in caplog.records)
    assert f"job 'counting': its checkpoints: {tmp_path}/checkpoints is a path of this machine's disk" in warned
    assert f"{tmp_path}/out is a path" in warned


def test_several_machines_want_a_directory_for_checkpoints(env):
    """However many jobs the environment has had."""
    on_several_machines(env).enable_checkpointing(1_000)
    for _ in range(2):
        env.from_collection([1]).print()
        with pytest.raises(ConfigurationError, match="need a directory that all machines of the cluster reach"):
            env.execute()


def test_a_temporary_directory_is_none_that_the_program_has_named(env, tmp_path):
    config = env.enable_checkpointing(1_000).get_checkpoint_config()
    assert config.get_checkpoint_storage_dir() is None
    places = []
    for _ in range(2):
        env.from_collection([1]).print()
        env.execute()
        places.append(config.get_checkpoint_storage_dir())
        assert not config.is_storage_dir_named()
    assert places[0] == places[1] is not None
    config.set_checkpoint_storage_dir(tmp_path)
    assert config.is_storage_dir_named()
    assert config.get_checkpoint_storage_dir() == str(tmp_path)


def test_one_machine_needs_nothing_of_that(env, tmp_path, caplog):
    env.enable_checkpointing(1_000)
    env.from_collection([1]).sink_to(FileSink.json_lines(tmp_path / "out"))
    env.execute()
    assert not caplog.records


@pytest.mark.parametrize(("text", "milliseconds"), [("2 min", 120_000), ("5000", 5_000)])
def test_how_long_jobs_wait_for_slots_is_said_from_outside(monkeypatch, tmp_path, text, milliseconds):
    (tmp_path / "job.py").write_text(
        "from headrace import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment('local')\n"
        "env.from_collection([1]).print()\n"
        "settings = env.get_job_graph().settings\n"
        f"assert (settings.slot_request_timeout_ms, settings.node_launch_timeout_ms) == ({milliseconds}, 7_200_000)\n"
        "inside = StreamExecutionEnvironment.get_execution_environment('local', slot_request_timeout_ms=7)\n"
        "inside.from_collection([1]).print()\n"
        "assert inside.get_job_graph().settings.slot_request_timeout_ms == 7\n"
    )
    for name in ("HEADRACE_SLOT_REQUEST_TIMEOUT", "HEADRACE_NODE_LAUNCH_TIMEOUT", "HEADRACE_PROGRESS"):
        monkeypatch.setenv(name, "")
    assert main(["run", "--slot-timeout", text, "--launch-timeout", "2 h", str(tmp_path / "job.py")]) == 0


def test_a_time_that_is_none_is_refused_by_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--slot-timeout", "soon", "job.py"])
    assert "soon" in capsys.readouterr().err
