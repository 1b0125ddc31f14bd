"""External programs as spouts and bolts: what they are told, how they die, and what is left of them.

Risks and families: programs that break the rules in each way (errors by name, within a time), orphans (killed keepers
and killed owners), messages acknowledged too early or never, output to the log.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from failing_functions import FailsAtFirst, some
from storm_kit import PROGRAMS, acked, bolt, failed, lines_spout, number_of, rows_in, spout, wait_until

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.engine.errors import JobFailedError, SavepointError
from headrace.storm import Fields, ShellBolt, TopologyBuilder

pytestmark = pytest.mark.lane("storm")


def run_bolt(component, records=("a b",), conf=None, name="words"):
    """What a program makes of some lines."""
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_restart_strategy(RestartStrategies.no_restart())
        builder.set_spout("lines", env.from_collection(list(records)), outputs=["line"])
        builder.set_bolt(name, component).shuffle_grouping("lines")
        return list(builder.create_topology(env, conf).stream(name).execute_and_collect())


# ------------------------------------------------------------------------------------------------------- what goes well
def test_a_program_splits_lines_of_a_stream():
    lines = [f"a{n} b{n}" for n in range(300)]
    rows = run_bolt(bolt("split.py"), lines)
    assert Counter(row["word"] for row in rows) == Counter(word for line in lines for word in line.split())


def test_a_program_is_told_its_place():
    told = "import sys; from by_hand import *; given = begin(); t = command(); emit([[given, t, sys.argv]]);"
    told += "say(command='metrics', name='n', params=3); say(command='ack', id=t['id'])\nwhile True: command()"
    component = ShellBolt(
        sys.executable, "-c", told, "x", outputs=["told"], resources=PROGRAMS, env={"PYTHONPATH": "."}
    )
    [row] = run_bolt(component, conf={"some.key": [1, None]})
    given, got, words = row["told"]
    assert words == ["-c", "x"]
    assert given["conf"] == {"topology.name": "topology", "some.key": [1, None]}
    assert given["context"] == {
        "task->component": {"1": "lines", "2": "words"},
        "taskid": 2,
        "componentid": "words",
        "stream->target->grouping": {"default": {}},
        "streams": ["default"],
        "stream->outputfields": {"default": ["told"]},
        "source->stream->grouping": {"lines": {"default": {"type": "SHUFFLE"}}},
        "source->stream->fields": {"lines": {"default": ["line"]}},
    }
    assert (got["comp"], got["stream"], got["task"], got["tuple"]) == ("lines", "default", 1, ["a b"])


# ------------------------------------------------------------------------------------------------------ what goes wrong
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("dies", r'ended by signal 9; it said last: {"command": "log", "msg": "my last words"}'),
        ("ends", 'ended with status 3; it said last: {"pid": '),
        ("prints", "what is not JSON.*said last: hello"),
        ("acks what it was not given", "given no tuple with the id '77'"),
        ("emits too many values", "1 fields; 2 values were given"),
        ("says nonsense", "no command 'dance'"),
        ("never says its id", r"ended with status 1; it said last: nothing[^$]*no such luck"),
        ("hangs", "said nothing for 0.3 s"),
    ],
)
def test_a_program_that_breaks_the_rules_fails_its_subtask_by_name(way, reason, caplog):
    conf = {"topology.subprocess.timeout.secs": 0.3} if way == "hangs" else None
    caplog.set_level(logging.INFO, "headrace.storm")
    with pytest.raises(JobFailedError) as told:
        run_bolt(bolt("misbehaves.py", way), conf=conf)
    text = str(told.value)
    assert re.search(reason, text), text
    assert "component 'words', task 2" in text
    assert "operator 'words', subtask 1/1" in text
    if way == "dies":
        assert "about to die" in text
        said = [record.getMessage() for record in caplog.records]
        assert "component 'words', task 2: about to die" in said
        assert "component 'words', task 2: my last words" in said


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(JobFailedError, match=r"cannot be started[^$]*no-such-program"):
        run_bolt(ShellBolt("no-such-program", outputs=["word"]))


def test_what_json_does_not_have_is_refused():
    with pytest.raises(JobFailedError, match="JSON does not have what a tuple holds"):
        run_bolt(bolt("split.py"), [{"line": b"bytes"}])


def test_a_spout_that_dies_fails_its_subtask_by_name():
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_restart_strategy(RestartStrategies.no_restart())
        builder.set_spout("lines", spout("misbehaves.py", "dies"))
        topology = builder.create_topology(env)
        with pytest.raises(JobFailedError, match=r"component 'lines', task 1 has failed: it was ended by signal 9"):
            list(topology.stream("lines").execute_and_collect())


def test_a_spout_that_hangs_fails_its_subtask_by_name():
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_restart_strategy(RestartStrategies.no_restart())
        builder.set_spout("lines", spout("misbehaves.py", "hangs"))
        topology = builder.create_topology(env, {"topology.subprocess.timeout.secs": 0.3})
        with pytest.raises(JobFailedError, match=r"'lines', task 1 has failed: it has said nothing for 0.3 s"):
            list(topology.stream("lines").execute_and_collect())


# -------------------------------------------------------------------------------------------------------------- orphans
OWNER = """
import sys, threading
from headrace.storm.shell_program import ShellProgram
program = ShellProgram(sys.argv[1:], "a test", {}, None, 60)
program.start({}, {})
print("started", flush=True)
threading.Event().wait()
"""


def is_gone(pid):
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
@pytest.mark.parametrize("killed", ["owner", "keeper"])
def test_programs_die_with_their_owner_and_with_their_keeper(tmp_path, killed):
    command = [sys.executable, str(PROGRAMS / "misbehaves.py"), "stays", str(tmp_path)]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *command], stdout=subprocess.PIPE)
    try:
        assert owner.stdout.readline() == b"started\n"
        wait_until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
        program, child = map(int, (tmp_path / "pids").read_text().split())
        assert not is_gone(program)
        keeper = int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(owner.pid if killed == "owner" else keeper, signal.SIGKILL)
        wait_until(lambda: is_gone(program))
        if killed == "owner":  # its keeper kills the whole group
            wait_until(lambda: is_gone(keeper) and is_gone(child))
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


# ------------------------------------------------------------------------------------------------------------- delivery
def words_in(folder):
    return {row["word"] for row in rows_in(folder)}


def stopped(client, folder):
    """Stop a job in order, though it may be failing."""
    while True:
        try:
            return client.stop_with_savepoint(str(folder))
        except SavepointError:  # then it goes on
            assert client.view().state != "FAILED", client.view().failures


def test_lines_are_acknowledged_behind_the_checkpoint_that_holds_them(tmp_path):
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_checkpointing("10 min", directory=str(tmp_path / "checkpoints"))
        builder.set_spout("lines", lines_spout(tmp_path, [f"a{n} b{n}" for n in range(8)])).set_max_spout_pending(3)
        builder.set_bolt("words", bolt("split.py")).shuffle_grouping("lines")
        builder.create_topology(env).stream("words").sink_to(FileSink.json_lines(str(tmp_path / "out")))
        client = env.execute_async("acknowledged")
        wait_until(lambda: any("waits for the next checkpoint" in told for _, told in client.view().history), client)
        assert any("'words' is an external program" in told for _, told in client.view().history)
        for expected in (3, 6):
            assert acked(tmp_path).total() == expected - 3
            client.trigger_checkpoint()
            wait_until(lambda expected=expected: acked(tmp_path).total() >= expected, client)
        wait_until(lambda: client.view().state == "RUNNING", client)
        client.cancel()
    # Those that no checkpoint holds have failed, as far as they were emitted.
    assert set(failed(tmp_path)) == {6, 7}
    assert acked(tmp_path) == Counter(range(6))


def test_without_ackers_lines_are_acknowledged_at_once(tmp_path):
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_checkpointing("10 min", directory=str(tmp_path / "checkpoints"))
        builder.set_spout("lines", lines_spout(tmp_path, [f"a{n}" for n in range(8)]))
        builder.create_topology(env, {"topology.acker.executors": 0}).stream("lines").print()
        client = env.execute_async("not acknowledged")
        wait_until(lambda: acked(tmp_path).total() == 8, client)
        client.cancel()


def test_lines_come_at_least_once_through_failures_and_savepoints(tmp_path):
    lines = [f"a{n} b{n}" for n in range(600)]
    expected = {word for line in lines for word in line.split()}
    path = None
    for least in (200, len(lines)):
        builder = TopologyBuilder()
        with StreamExecutionEnvironment.get_execution_environment("local") as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 10))
            builder.set_spout("lines", lines_spout(tmp_path, lines), 2)
            builder.set_bolt("words", bolt("split.py"), 2).shuffle_grouping("lines")
            builder.set_bolt("again", bolt("split.py"), 2).fields_grouping("words", Fields("word"))
            words = builder.create_topology(env).stream("again")
            failing = FailsAtFirst(tmp_path, some(4, of=600), lambda row: number_of(row["word"]))
            words.map(failing).uid("map").sink_to(FileSink.json_lines(str(tmp_path / "out"))).uid("out")
            client = env.execute_async("at least once", from_savepoint=path)
            wait_until(lambda least=least: len(acked(tmp_path)) >= least, client)
            if least == len(lines):  # what is acknowledged is in a checkpoint, and may still be on its way
                wait_until(lambda: words_in(tmp_path / "out") == expected, client)
            path = stopped(client, tmp_path / "savepoints")
    assert len(list(tmp_path.glob("failed-*"))) == 4
    assert words_in(tmp_path / "out") == expected


def test_what_waits_for_the_operator_is_not_late(monkeypatch, tmp_path):
    """A program that is not listened to for a while, as what follows is slow, is neither silent nor late."""
    monkeypatch.setattr("headrace.storm.bolt_tasks.MOST_EVENTS", 5)
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_restart_strategy(RestartStrategies.no_restart())
        builder.set_spout("lines", env.from_collection([f"a{n} b{n}" for n in range(40)]), outputs=["line"])
        builder.set_bolt("words", bolt("split.py")).shuffle_grouping("lines")
        conf = {"topology.message.timeout.secs": 0.4, "topology.subprocess.timeout.secs": 0.4}
        topology = builder.create_topology(env, conf, max_retries=0)
        # The event is one that nobody ever sets.
        words = topology.stream("words").map(lambda row: threading.Event().wait(0.03) or row["word"])
        rows = list(words.execute_and_collect())
    assert sorted(rows) == sorted(f"{letter}{n}" for letter in "ab" for n in range(40))
