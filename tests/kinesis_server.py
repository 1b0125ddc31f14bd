"""A Kinesis for tests (kinesalite, a mock that splits and merges shards as AWS does), in a temporary directory, on a
free port of the loopback; may be killed and started again: it keeps what it has confirmed in a LevelDB.

Its program comes from ``KINESALITE_HOME``, or from npm's registry, once, into a folder for caches. Skips the test, with
the reason, where there is neither, no Node.js, or no client.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from npm_packages import package_of_npm
from server_process import ServerProcess, need_client, the_one

VERSION = "3.3.3"
REGION = "us-east-1"
CREDENTIALS = {"aws_access_key_id": "000000000000", "aws_secret_access_key": "none"}
AT_ONCE = 500

PRELOADED = """
const net = require("net"), listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...more) {
  return listen.call(this, port, "127.0.0.1", ...more.filter((one) => typeof one === "function"));
};

const { createDecipheriv } = require("crypto"), home = process.env.KINESALITE_HOME;
const validations = require(home + "/validations"), checkTypes = validations.checkTypes;
validations.checkTypes = ({ StreamARN: arn, ...asked }, types) =>
  checkTypes(arn ? { ...asked, StreamName: arn.split("/")[1] } : asked, types);

const db = require(home + "/db"), place = require.resolve(home + "/actions/getRecords"), getRecords = require(place);

function shardOf(iterator) {
  const key = createDecipheriv("aes-256-cbc", db.ITERATOR_PWD_KEY, db.ITERATOR_PWD_IV);
  const read = Buffer.concat([key.update(Buffer.from(iterator, "base64").subarray(8)), key.final()]);
  return read.toString().split("/").slice(1, 3);
}

require.cache[place].exports = (store, asked, done) => getRecords(store, asked, (error, answer) => {
  if (error || answer.NextShardIterator) return done(error, answer);
  const [name, id] = shardOf(asked.ShardIterator);
  store.getStream(name, (error, stream) => {
    if (error) return done(error);
    const parents = (one) => [one.ParentShardId, one.AdjacentParentShardId].filter(Boolean);
    const children = stream.Shards.filter((one) => parents(one).includes(id));
    answer.ChildShards = children.map((one) => (
      { ShardId: one.ShardId, ParentShards: parents(one), HashKeyRange: one.HashKeyRange }));
    done(null, answer);
  });
});
"""
"""Loaded before the program, which listens on all interfaces, knows no ARNs, and does not name the children of a shard
that has ended.
"""


def fetched_program() -> Path:
    """The folder with the program; fetched if it is not there.

    Skips the test if it cannot be had.
    """
    home = os.environ.get("KINESALITE_HOME")
    if home:
        return Path(home)
    return package_of_npm("kinesalite", VERSION, f"kinesalite-{VERSION}")


class KinesisServer(ServerProcess):
    """One server."""

    def __init__(self, package: Path, node: str, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        # Held while something is put or resharded, and while it is killed: else nobody knows whether it was done.
        self._is_busy = threading.RLock()
        preloaded = directory / "preloaded.js"
        preloaded.write_text(PRELOADED)
        self._command = [node, "--require", str(preloaded), str(package / "cli.js"), "--port", str(self.port)]
        self._command += ["--path", str(directory / "data"), "--shardLimit", "5000"]
        for name in ("create", "delete", "update"):
            self._command += [f"--{name}StreamMs", "20"]
        self._settings = {"PATH": os.environ.get("PATH", ""), "KINESALITE_HOME": str(package), "AWS_REGION": REGION}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arguments(self, **more: Any) -> dict[str, Any]:
        """What a source or a sink needs to find it."""
        return {"region": REGION, "endpoint": self.url, "options": CREDENTIALS, **more}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch(self._command, env=self._settings)
        self.wait_until(self._is_there, OSError)

    def _is_there(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    def kill(self) -> None:
        """Kill it with signal 9, while nothing is put or resharded."""
        with self._is_busy:
            super().kill()

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
        with self._is_busy:
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
        with self._is_busy:
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
            with self._is_busy:
                answer = client.put_records(StreamName=stream, Records=records[first : first + AT_ONCE])
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
        pytest.skip("there is no Node.js for kinesalite")
    package = fetched_program()
    return the_one("kinesis", request, lambda directory: KinesisServer(package, node, directory))
