"""The page for newcomers, `docs/guide/kafka-first.md`: its programs, in Python and in SQL, give what it shows.

In campaigns the page runs as it stands: its commands in one shell, its programs as files; the job is killed, and goes
on. Kafka's own commands make the topics, write the orders and read the totals; only the broker is another one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sysconfig

import pytest
from campaigns import campaign
from kafka_server import kafka_server  # noqa: F401 - a fixture
from test_documentation import GUIDE, blocks_of, lines, namespace  # noqa: F401 - a fixture

from headrace.table import TableEnvironment

PAGE = GUIDE / "kafka-first.md"
PROGRAMS = {"python": "totals.py", "sql": "totals.sql"}

PATIENCE_S = 300


def script_of(blocks, language):
    """The commands of the page for this program, and what they show, line by line."""
    others = {name for kind, name in PROGRAMS.items() if kind != language}
    commands, shown = [], []
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.language != "bash" or any(name in block.text for name in others):
            continue
        commands.append(block.text)
        if following is not None and following.language == "text":
            shown.extend(lines(following.text))
    return "".join(commands), shown


@pytest.fixture
def topics(kafka_server):  # noqa: F811
    """Those of the page, which are gone afterwards, with the notes of what was written."""
    yield ("orders", "totals")
    for topic in ("orders", "totals", "headrace-commits"):
        kafka_server.delete_topic(topic)


def started(language, program, names):
    """The job of a program of the page, which runs on."""
    if language == "python":
        exec(program.replace("env.execute(", "client = env.execute_async("), names)
        return names["client"]
    tables = TableEnvironment.create(actor_system="local")
    results = tables.execute_script("SET 'table.dml-sync' = 'false';" + program)
    names["env"] = tables.stream_environment
    return results[-1].get_job_client()


@pytest.mark.parametrize("language", sorted(PROGRAMS))
def test_the_programs_give_what_is_shown(language, kafka_server, topics, namespace):  # noqa: F811
    text = PAGE.read_text(encoding="utf-8").replace("localhost:9092", kafka_server.address)
    blocks = blocks_of(text)
    for topic, num_partitions in zip(topics, (2, 1), strict=True):
        kafka_server.create_topic(num_partitions, topic)
    orders = next(block.text for block in blocks if block.language == "bash")
    kafka_server.produce("orders", re.findall(r"^\{.*\}$", orders, re.MULTILINE), partition=0)
    (program,) = (block.text for block in blocks if block.language == language)
    shown = next(lines(block.text) for block in blocks if block.language == "text")
    client = started(language, program, namespace)
    found = []
    while len(found) < len(shown):
        assert client.view().state not in ("FAILED", "FINISHED"), client.view().failures
        found = [message.value().decode() for message in kafka_server.committed("totals")]
    client.cancel()
    assert found == shown


@pytest.mark.timeout(400)
@pytest.mark.parametrize("language", [campaign(language) for language in sorted(PROGRAMS)])
def test_a_newcomers_pipeline_is_killed_and_goes_on(language, kafka_server, topics, tmp_path):  # noqa: F811
    text = PAGE.read_text(encoding="utf-8").replace("localhost:9092", kafka_server.address)
    blocks = blocks_of(text)
    (program,) = (block.text for block in blocks if block.language == language)
    assert len(program.splitlines()) <= 10
    (tmp_path / PROGRAMS[language]).write_text(program, encoding="utf-8")
    commands, shown = script_of(blocks, language)
    path = [kafka_server.write_commands(tmp_path / "bin"), sysconfig.get_path("scripts"), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, path))}
    output, log = tmp_path / "output", tmp_path / "log"
    with output.open("w") as shell_output, log.open("w") as shell_log:
        shell = subprocess.Popen(
            ["bash", "-ec", commands], cwd=tmp_path, env=environment, stdout=shell_output, stderr=shell_log,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = shell.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert status == 0, log.read_text()
    assert [line for line in output.read_text().splitlines() if line.startswith("{")] == shown
    assert [message.value().decode() for message in kafka_server.committed("totals")] == shown[3:]
