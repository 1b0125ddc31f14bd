"""A Kinesis for tests (kinesis-local, a mock that splits and merges shards as AWS does), in a temporary directory, on
free ports of the loopback; may be killed and started again.

Its program comes from ``KINESIS_LOCAL_HOME``, or from npm's registry, once, into a folder for caches. Skips the test,
with the reason, where there is neither, no Node.js, or no client.

It writes what it has into a file every few milliseconds, and reads that when it starts. So it is killed only when its
file has what it has confirmed, and is a whole one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from npm_packages import package_of_npm
from server_process import ServerProcess, need_client, the_one

VERSION = "0.6.2"
REGION = "us-east-1"
CREDENTIALS = {"aws_access_key_id": "000000000000", "aws_secret_access_key": "none"}
AT_ONCE = 500
ENOUGH_WRITES = 3
"""After so many new times of its file one writing of it has begun after the first look, and ended."""

FILE_POLL_S = 0.02

LOOPBACK_ONLY = """
const net = require("net"), listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...more) {
  return listen.call(this, port, "127.0.0.1", ...more.filter((one) => typeof one === "function"));
};
"""
"""Loaded before the program, which listens on all interfaces and has no option for that."""


def fetched_program() -> Path:
    """The folder with the program; fetched if it is not there.

    Skips the test if it cannot be had.
    """
    home = os.environ.get("KINESIS_LOCAL_HOME")
    if home:
        return Path(home)
    return package_of_npm("kinesis-local", VERSION, f"kinesis-{VERSION}")


class KinesisServer(ServerProcess):
    """One server."""

    def __init__(self, package: Path, node: str, directory: Path) -> None:
        super().__init__(directory)
        self.port, tls_port = free_port(), free_port()
        self._package = package
        # Held while something is put, and while it is killed: it loses nothing that it has confirmed.
        self._is_confirming = threading.RLock()
        # How many records `put` has had confirmed, by stream.
        self._num_confirmed: Counter[str] = Counter()
        self._file = directory / "data" / "kinesis.json"
        preload = directory / "loopback.js"
        preload.write_text(LOOPBACK_ONLY)
        self._command = [node, "--require", str(preload), "main.js"]
        at_once = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
        self._settings = {
            "PATH": os.environ.get("PATH", ""),
            "KINESIS_MOCK_PLAIN_PORT": str(self.port),
            "KINESIS_MOCK_TLS_PORT": str(tls_port),
            "SHARD_LIMIT": "5000",
            "SHOULD_PERSIST_DATA": "true",
            "PERSIST_PATH": str(self._file.parent),
            "PERSIST_FILE_NAME": self._file.name,
            "PERSIST_INTERVAL": "200ms",
            "LOG_LEVEL": "WARN",
            **{f"{name}_DURATION": "20ms" for name in at_once},
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arguments(self, **more: Any) -> dict[str, Any]:
        """What a source or a sink needs to find it."""
        return {"region": REGION, "endpoint": self.url, "options": CREDENTIALS, **more}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # Its certificate lies in its package: it is looked for in the working directory.
        self.launch(self._command, cwd=self._package, env=self._settings)
        self.wait_until(self._is_there, OSError)

    def _is_there(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/healthcheck", timeout=5) as answer:
            return bool(answer.status == 200)

    def kill(self) -> None:
        """Kill it with signal 9, when all that it has confirmed is in its file."""
        with self._is_confirming:
            if self._process is not None and self._process.poll() is None:
                self._await_file()
            super().kill()

    def _await_file(self) -> None:
        """Have it stand still when its file is a whole one that was begun after now."""
        began_ns = time.time_ns()
        deadline = time.monotonic() + self.start_timeout_s
        num_written, last_ns = 0, 0
        while True:
            self.pause()
            written_ns = self._file.stat().st_mtime_ns if self._file.exists() else 0
            if written_ns > max(began_ns, last_ns):
                num_written, last_ns = num_written + 1, written_ns
            if num_written >= ENOUGH_WRITES and self._has_all():
                return
            self.resume()
            assert time.monotonic() < deadline, f"it does not write its file\n{self.tail()}"
            assert not self._has_ended(FILE_POLL_S), f"it has ended\n{self.tail()}"

    def _has_all(self) -> bool:
        """Whether its file is a whole one, with all that was put: one may be written while records come in."""
        try:
            streams = json.loads(self._file.read_bytes())["streams"]
        except ValueError:
            return False
        for arn, stream in streams.items():
            num_records = sum(map(len, stream["shards"].values()))
            if num_records < self._num_confirmed[arn.rpartition("/")[2]]:
                return False
        return True

    # ---------------------------------------------------------------------------------------------------------- streams
    def client(self) -> Any:
        """AWS's own client."""
        return _client(self.url)

    def new_stream(self, num_shards: int = 1) -> str:
        """Make a stream; gives its name."""
        name = f"stream-{uuid.uuid4().hex[:12]}"
        self.client().create_stream(StreamName=name, ShardCount=num_shards)
        self.await_active(name)
        return name

    def await_active(self, stream: str) -> None:
        """Wait until a stream has changed as it was told to."""
        client = self.client()
        self.wait_until(lambda: _status(client, stream) == "ACTIVE")

    def shards(self, stream: str) -> list[dict[str, Any]]:
        """All shards, as they are listed."""
        found: list[dict[str, Any]] = self.client().list_shards(StreamName=stream)["Shards"]
        return found

    def open_shards(self, stream: str) -> list[dict[str, Any]]:
        """Those that get records, by the hashes of these."""
        found = [one for one in self.shards(stream) if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return sorted(found, key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))

    def split(self, stream: str, place: int = 0) -> None:
        """Split one of the open shards in the middle."""
        with self._is_confirming:
            self._split(stream, place)

    def _split(self, stream: str, place: int) -> None:
        shard = self.open_shards(stream)[place]
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.client().split_shard(
            StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high + 1) // 2)
        )
        self.await_active(stream)

    def merge(self, stream: str, place: int = 0) -> None:
        """Merge one of the open shards with the next one."""
        with self._is_confirming:
            one, other = self.open_shards(stream)[place : place + 2]
            self.client().merge_shards(
                StreamName=stream, ShardToMerge=one["ShardId"], AdjacentShardToMerge=other["ShardId"]
            )
            self.await_active(stream)

    def put(self, stream: str, values: Iterable[Any], place: int | None = None, keys: Sequence[str] = ()) -> None:
        """Put records: into one of the open shards, or where their keys belong; without keys, their values'."""
        client = self.client()
        data = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        records = [
            {"Data": one, "PartitionKey": key} for one, key in zip(data, keys or map(_key_of, data), strict=True)
        ]
        if place is not None:
            low = self.open_shards(stream)[place]["HashKeyRange"]["StartingHashKey"]
            records = [{**record, "ExplicitHashKey": low} for record in records]
        for first in range(0, len(records), AT_ONCE):
            with self._is_confirming:
                answer = client.put_records(StreamName=stream, Records=records[first : first + AT_ONCE])
                self._num_confirmed[stream] += len(answer["Records"])
            assert not answer["FailedRecordCount"], answer

    def records(self, stream: str) -> list[dict[str, Any]]:
        """All records, shard by shard, each with the shard's name."""
        client, found = self.client(), []
        for shard in self.shards(stream):
            name = shard["ShardId"]
            asked = client.get_shard_iterator(StreamName=stream, ShardId=name, ShardIteratorType="TRIM_HORIZON")
            iterator = asked["ShardIterator"]
            while iterator is not None:
                answer = client.get_records(ShardIterator=iterator)
                if not answer["Records"]:
                    break
                found += [{**record, "ShardId": name} for record in answer["Records"]]
                iterator = answer.get("NextShardIterator")
        return found

    def values(self, stream: str) -> list[str]:
        """Their data."""
        return [record["Data"].decode() for record in self.records(stream)]


@functools.cache
def _client(url: str) -> Any:
    import boto3

    session = boto3.session.Session()
    return session.client("kinesis", region_name=REGION, endpoint_url=url, **CREDENTIALS)


def aggregated(users: Sequence[tuple[str, bytes]], hashes: Sequence[int | None] = ()) -> bytes:
    """A record as the Kinesis Producer Library makes it of several: of keys and data, and hashes that are told."""
    keys = sorted({key for key, _ in users})
    told = sorted({one for one in hashes if one is not None})
    message = b"".join(_field(1, key.encode()) for key in keys)
    message += b"".join(_field(2, str(one).encode()) for one in told)
    for number, (key, data) in enumerate(users):
        own = hashes[number] if hashes else None
        record = b"\x08" + _varint(keys.index(key))
        record += b"" if own is None else b"\x10" + _varint(told.index(own))
        message += _field(3, record + _field(3, data))
    return b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message, usedforsecurity=False).digest()


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes([low]) if number < 0x80 else bytes([low | 0x80]) + _varint(number >> 7)


def _status(client: Any, stream: str) -> str:
    return str(client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"])


def _key_of(data: bytes) -> str:
    return data.decode(errors="replace")[:100] or "-"


@pytest.fixture(scope="session")
def kinesis_server(request: pytest.FixtureRequest) -> KinesisServer:
    """One for all tests of a process; each has streams of its own."""
    need_client("boto3", "boto3")
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js for kinesis-local")
    package = fetched_program()
    return the_one("kinesis", request, lambda directory: KinesisServer(package, node, directory))
