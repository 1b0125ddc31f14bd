"""The page for newcomers, `docs/guide/kafka-first.md`, as it stands: its commands in one shell, its programs as files,
in Python and in SQL; the job is killed, and goes on.

Kafka's own commands make the topics, write the orders and read the totals; only the broker is another one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sysconfig

import pytest
from kafka_server import kafka_server  # noqa: F401 - a fixture
from test_documentation import GUIDE, blocks_of, lines

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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("language", sorted(PROGRAMS))
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
