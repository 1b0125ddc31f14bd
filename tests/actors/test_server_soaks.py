"""Soaks with a server, in their short form: two deaths, and every count right (``tests/actors/server_soak.py``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import campaign

SOAKS = {
    "cassandra": ["cassandra_soak.py"],
    "cassandra, numbers of the sink": ["cassandra_soak.py", "--order", "sink"],
    "hbase": ["hbase_soak.py"],
    "hbase, numbers of the sink": ["hbase_soak.py", "--order", "sink"],
    "http": ["http_soak.py"],
    "hudi": ["hudi_soak.py"],
    "kafka": ["kafka_soak.py", "--seconds-per-fault", "30"],
    "kafka, open transactions": ["kafka_soak.py", "--seconds-per-fault", "30", "--staging", "transaction"],
    "kinesis": ["kinesis_soak.py"],
    "mariadb": ["mariadb_soak.py"],
    "mariadb, staged in a table": ["mariadb_soak.py", "--staging", "table"],
    "mongodb": ["mongodb_soak.py"],
    "mongodb, numbers of the sink": ["mongodb_soak.py", "--order", "sink"],
    "mqtt": ["mqtt_soak.py"],
    "nifi": ["nifi_soak.py"],
    "opensearch": ["opensearch_soak.py"],
    "postgresql": ["postgres_soak.py"],
    "pulsar": ["pulsar_soak.py"],
    "rabbitmq": ["rabbitmq_soak.py"],
    "rabbitmq, into a queue": ["rabbitmq_soak.py", "--into", "queue"],
    "redis": ["redis_soak.py"],
    "websocket": ["websocket_soak.py"],
}


def lane_of(name):
    """The server of a soak; those of HTTP, NiFi and WebSocket are in each run."""
    return None if name in ("http", "nifi", "websocket") else name.partition(",")[0]


@pytest.mark.parametrize("name", [campaign(name, lane=lane_of(name)) for name in SOAKS])
def test_nothing_is_lost_or_doubled_through_two_deaths(name):
    script, *options = SOAKS[name]
    command = [sys.executable, str(Path(__file__).with_name(script)), "--faults", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Skipped: " in done.stderr:
        pytest.skip(done.stderr.rpartition("Skipped: ")[2].strip())
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
