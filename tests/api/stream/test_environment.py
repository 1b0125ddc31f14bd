"""The environment without a cluster: settings, their checks, and what of them reaches the job. Example tests."""

import json
import os
import tempfile
import threading

import pytest

from headrace import (
    CheckpointingMode,
    ConfigurationError,
    ExternalizedCheckpointRetention,
    HeadraceError,
    ProgramError,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from headrace.actors.hosts.host_system import HostGoneError
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.stream.collected_rows import CollectedRows

OUTSIDE = ("HEADRACE_ACTOR_SYSTEM", "HEADRACE_ADDRESS", "HEADRACE_PARALLELISM", "HEADRACE_RESTORE_FROM")


@pytest.fixture(autouse=True)
def _nothing_said_outside(monkeypatch):
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def env():
    return StreamExecutionEnvironment.get_execution_environment("local")


def settings_of(env):
    env.from_elements(1, 2).map(lambda n: n)
    return env.get_job_graph().settings


# ----------------------------------------------------------------------------------------------------------- making one


def test_ray_is_the_default_and_the_outside_may_say_otherwise(monkeypatch):
    make = StreamExecutionEnvironment.get_execution_environment
    assert "'ray'" in repr(make())
    monkeypatch.setenv("HEADRACE_ACTOR_SYSTEM", "sim")
    assert "'sim'" in repr(make())
    assert "'local'" in repr(make("local"))


def test_an_unknown_actor_system_is_refused():
    with pytest.raises(ConfigurationError, match="actor_system must be one of ray, local, sim; got 'yarn'"):
        StreamExecutionEnvironment.get_execution_environment("yarn")


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"no option is called 'slots'; there are .*slots_per_task_manager"):
        StreamExecutionEnvironment.get_execution_environment("local", slots=3)


def test_options_reach_the_job():
    env = StreamExecutionEnvironment.get_execution_environment(
        "local", max_batch_rows=100, slot_request_timeout_ms=5, parallelism=3, seed=7, max_slots=2
    )
    assert env.get_parallelism() == 3
    settings = settings_of(env)
    assert (settings.max_batch_rows, settings.slot_request_timeout_ms) == (100, 5)
    with pytest.raises(ConfigurationError, match="max_batch_rows must be a whole number, 0 or more; got 'many'"):
        StreamExecutionEnvironment.get_execution_environment("local", max_batch_rows="many")


# ------------------------------------------------------------------------------------------------------------- settings


def test_the_program_wins_over_the_outside_and_the_outside_over_the_cores(env, monkeypatch):
    assert 1 <= env.get_parallelism() <= os.cpu_count()
    monkeypatch.setenv("HEADRACE_PARALLELISM", "7")
    assert env.get_parallelism() == 7
    env.set_parallelism(2)
    assert env.get_parallelism() == 2


def test_a_parallelism_from_outside_must_be_a_number(env, monkeypatch):
    monkeypatch.setenv("HEADRACE_PARALLELISM", "two")
    with pytest.raises(ConfigurationError, match="HEADRACE_PARALLELISM must be a whole number, 1 or more; got 'two'"):
        env.get_parallelism()


@pytest.mark.parametrize("wrong", [0, -1, "2", 2.0, True, None])
def test_a_wrong_parallelism_is_refused_where_it_is_written(env, wrong):
    with pytest.raises(ConfigurationError, match="parallelism must be"):
        env.set_parallelism(wrong)
    with pytest.raises(ConfigurationError, match="max_parallelism must be between 1 and 32768"):
        env.set_max_parallelism(wrong)


def test_a_parallelism_above_the_max_parallelism_is_refused(env):
    env.set_max_parallelism(128)
    with pytest.raises(ConfigurationError, match=r"parallelism must be between 1 and max_parallelism \(128\); got 200"):
        env.set_parallelism(200)


def test_operators_take_the_parallelism_that_holds_when_they_are_added(env):
    env.set_parallelism(2)
    first = env.from_elements(1).map(lambda n: n).name("first")
    env.set_parallelism(3)
    first.map(lambda n: n).name("second")
    nodes = env.get_stream_graph().nodes.values()
    assert {n.name: n.parallelism for n in nodes} == {"Source: collection": 1, "first": 2, "second": 3}


def test_checkpoints_are_off_until_they_are_enabled(env):
    assert not env.get_checkpoint_config().is_checkpointing_enabled()
    settings = settings_of(env)
    assert settings.checkpoints is None
    assert settings.restart_strategy().max_attempts == 0


def test_checkpoint_settings_reach_the_job(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env.enable_checkpointing(500, directory="ckpt")
    config = env.get_checkpoint_config()
    config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE).set_checkpoint_timeout("1 min")
    config.set_min_pause_between_checkpoints(50).set_max_concurrent_checkpoints(2).set_max_retained_checkpoints(3)
    config.set_tolerable_checkpoint_failure_number(-1)
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    checkpoints = settings_of(env).checkpoints
    assert checkpoints.directory == str(tmp_path / "ckpt")
    assert (checkpoints.interval_ms, checkpoints.mode) == (500, CheckpointingMode.AT_LEAST_ONCE)
    assert (checkpoints.timeout_ms, checkpoints.min_pause_ms, checkpoints.max_concurrent) == (60_000, 50, 2)
    assert (checkpoints.num_retained, checkpoints.tolerable_failures) == (3, -1)
    assert checkpoints.retain_on_cancellation
    assert config.get_checkpoint_interval() == 500


@pytest.mark.parametrize("uri", ["s3://bucket/ckpt", "file:///tmp/ckpt", "memory://x/y"])
def test_a_uri_is_taken_as_it_is(env, uri):
    env.enable_checkpointing("1 s", directory=uri)
    assert settings_of(env).checkpoints.directory == uri


def test_planning_makes_no_directory(env, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env.enable_checkpointing(500)
    settings_of(env)
    env.explain()
    assert list(tmp_path.iterdir()) == []


def test_wrong_checkpoint_settings_are_refused_where_they_are_written(env):
    with pytest.raises(ConfigurationError, match="checkpoint interval must be at least 1 ms; got 0"):
        env.enable_checkpointing(0)
    with pytest.raises(ConfigurationError, match="a duration must be milliseconds"):
        env.enable_checkpointing("often")
    with pytest.raises(ConfigurationError, match="max_concurrent must be at least 1; got 0"):
        env.get_checkpoint_config().set_max_concurrent_checkpoints(0)


@pytest.mark.parametrize(
    "name",
    ["heartbeat_interval_ms", "heartbeat_timeout_ms", "metrics_interval_ms", "channel_credits", "max_batch_rows"],
)
def test_options_with_which_no_job_could_run_are_refused_where_they_are_written(name):
    with pytest.raises(ConfigurationError, match=f"{name} must be at least 1; got 0"):
        StreamExecutionEnvironment.get_execution_environment("sim", **{name: 0})


def test_restart_strategies(env):
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, "10 s"))
    strategy = settings_of(env).restart_strategy()
    assert (strategy.max_attempts, strategy.delay_ms) == (3, 10_000)
    assert RestartStrategies.no_restart().max_attempts == 0
    with pytest.raises(ConfigurationError, match="restart_attempts must be at least -1; got -2"):
        RestartStrategies.fixed_delay_restart(-2, 0)


def test_a_restore_path_comes_from_the_program_or_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_RESTORE_FROM", "/some/checkpoint")
    env = StreamExecutionEnvironment.get_execution_environment("local")
    assert settings_of(env).restore_from == "/some/checkpoint"
    env.set_restore_path("other")
    assert settings_of(env).restore_from == str(tmp_path / "other")


def test_batch_mode_takes_no_checkpoints_and_no_unbounded_source(env):
    env.enable_checkpointing(500, directory="x")
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    assert settings_of(env).checkpoints is None
    env.from_source(GeneratorSource(lambda n: n), None, "endless").print()
    with pytest.raises(ProgramError, match="runtime mode BATCH needs bounded sources; 'Source: endless' is unbounded"):
        env.get_job_graph()
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    assert env.get_job_graph().settings.checkpoints is not None


def test_chaining_can_be_switched_off(env):
    env.set_parallelism(1)
    env.from_elements(1).map(lambda n: n)
    assert len(env.get_job_graph().vertices) == 1
    env.disable_operator_chaining()
    assert not env.is_chaining_enabled()
    assert len(env.get_job_graph().vertices) == 2


# ------------------------------------------------------------------------------------------------------------- programs


def test_a_program_without_operators_is_refused(env):
    with pytest.raises(ProgramError, match="the program has no operator to run"):
        env.execute("nothing")


def test_sources_and_strategies_are_checked_where_they_are_written(env):
    with pytest.raises(ProgramError, match=r"source must be a Source; got 'events\.parquet'"):
        env.from_source("events.parquet", None, "events")
    with pytest.raises(ProgramError, match="watermark_strategy must be a WatermarkStrategy; got '4 s'"):
        env.from_source(GeneratorSource(lambda n: n), "4 s", "events")


def test_a_collection_is_one_subtask_that_cannot_be_split(env):
    env.set_parallelism(4)
    source = env.from_collection([1, 2, 3])
    with pytest.raises(ConfigurationError, match="parallelism must be 1, this operator cannot be split; got 2"):
        source.set_parallelism(2)
    source.print()
    assert [n.parallelism for n in env.get_stream_graph().nodes.values()] == [1, 4]


def test_plans_as_text_and_as_json(env):
    env.set_parallelism(2)
    env.from_elements(("a", 1)).key_by(0).sum(1).print()
    text = env.explain("word count")
    assert text.startswith("job 'word count': 2 tasks, 3 subtasks, 2 slots needed")
    assert "HASH of KeySelector(0)" in text
    nodes = json.loads(env.get_execution_plan())["nodes"]
    assert [n["type"] for n in nodes] == ["Source: collection", "sum", "Sink: print"]


@pytest.mark.parametrize("refusal", ["a class that cannot be pickled", "too few slots"])
def test_a_submission_that_is_refused_leaves_no_temporary_directory(refusal, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1, max_slots=1) as env:
        env.enable_checkpointing(10)
        numbers = env.from_collection([1])
        lock = threading.Lock()
        if refusal == "too few slots":
            numbers.map(str).set_parallelism(3).print()
        else:
            numbers.map(lambda value: (value, lock)).print()
        with pytest.raises(HeadraceError):
            env.execute("refused")
        assert not list(tmp_path.glob("headrace-checkpoints-*"))
        env.from_collection([1]).print()
        env.execute("taken")
        assert list(tmp_path.glob("headrace-checkpoints-*"))


def test_records_that_are_read_behind_the_end_of_their_environment_are_told_of():
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    rows = env.from_source(ScriptedSource([1, Pause()], is_bounded=False), None, "endless").execute_and_collect()
    assert next(rows) == 1
    env.close()
    with pytest.raises(ProgramError, match="closed before all records had come"):
        next(rows)
    with pytest.raises(ProgramError, match="closed before all records had come"):
        next(rows)
    with pytest.raises(HostGoneError, match="was closed"):
        rows.client.view()
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        whole = env.from_sequence(1, 3).execute_and_collect()
        first = next(whole)
        while not whole.is_over:
            whole.arrived()
    assert first == 1
    assert list(whole) == [], "what has ended has ended"


def test_a_misspelt_uid_that_the_autoscaler_is_to_leave_alone_is_warned_of(tmp_path, caplog):
    options = {"job.autoscaler.enabled": True, "job.autoscaler.vertex.exclude.ids": "numbrs;kept"}
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        env.enable_checkpointing(1_000, directory=str(tmp_path)).set_autoscaler(options)
        env.from_sequence(1, 3).uid("numbers").map(lambda n: n).uid("kept").print()
        with caplog.at_level("WARNING", "headrace.autoscaler"):
            env.execute("misspelt")
    [warning] = [record.getMessage() for record in caplog.records if record.name == "headrace.autoscaler"]
    assert "'numbrs'" in warning
    assert "did you mean 'numbers'?" in warning


def test_the_end_of_an_environment_is_told_whoever_notices_it_first():
    """The thread that fetches records finds that nobody answers before the environment has said why."""

    class Client:
        asked = threading.Event()

        def result(self):
            self.asked.wait()
            message = "the local system was closed"
            raise HostGoneError(message)

    rows = CollectedRows()
    before = set(threading.enumerate())
    rows.follow(Client())
    (fetches,) = set(threading.enumerate()) - before
    rows.environment_closes()
    Client.asked.set()
    fetches.join()
    rows.environment_closed()
    with pytest.raises(ProgramError, match="closed before all records had come"):
        next(rows)
