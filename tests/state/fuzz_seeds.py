"""What `fuzz_readers.py` feeds: for each reader what is really stored, crafted attacks, and how they are mutated.

A target *makes* an input from a random generator and *reads* it as Headrace would. Seeds are the snapshots of
``tests/state/golden``, values of all plain types, and pickles that would run code: `was_unpickled` tells if one has.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import copy
import datetime
import decimal
import fractions
import functools
import hashlib
import json
import pickle
import struct
import sys
import tarfile
import uuid
from pathlib import Path

import fuzz_jobs
import fuzz_sinks
import msgpack
import numpy as np
import pyarrow as pa

from headrace.engine.checkpoint.pending_reports import read_pending_reports, stored_reports
from headrace.engine.columns.records import Batch
from headrace.engine.task import channel_state
from headrace.jobs.snapshots import Snapshot
from headrace.state.backends.heap.backend import HeapKeyedStateBackend, HeapOperatorStateBackend
from headrace.state.backends.rocksdb import row_encoding as rocksdb_encoding
from headrace.state.checkpoints import manifest as manifests
from headrace.state.checkpoints.leases import FileLease, LeaderRecord, Term
from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.snapshot import FileKind, RestoredPart
from headrace.state.checkpoints.state_files import write_state_file
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointCorruptError, TypeMismatchError
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import OperatorId
from headrace.state.keys.key_groups import KeyGroupRange
from headrace.state.open.reader import number_of
from headrace.state.open.stored_states import states_of
from headrace.state.open.values import Opaque, open_pickle
from headrace.state.reading import stored_pickles
from headrace.state.reading.arrow_reading import read_arrow_file, read_arrow_stream
from headrace.state.values import encoding as value_encoding
from headrace.state.values import packed as packed_values
from headrace.state.values.encoding import encode_values

GOLDEN = Path(__file__).resolve().parent / "golden"


# ------------------------------------------------------------------------------------------------------------- canaries
class Canary:
    """A pickle of it runs code."""

    def __reduce__(self):
        return exec, ("import sys; sys.headrace_canary = True",)


def was_unpickled() -> bool:
    """Whether a pickle has been built since the last call."""
    return bool(sys.__dict__.pop("headrace_canary", False))


def _closed(data: bytes):
    """In place of building a pickle: in a slot that is allowed, here it would end every campaign."""
    return open_pickle(data)


def close_pickles() -> None:
    """Have those who may build pickles leave them closed, so that everything around them is fuzzed."""
    for module in (value_encoding, stored_pickles, packed_values, rocksdb_encoding, channel_state):
        if hasattr(module, "unpickle_value"):
            module.unpickle_value = _closed
    for function in (rocksdb_encoding.decode_value, rocksdb_encoding.original_key, packed_values.decode_packed):
        function.__defaults__ = (_closed,)


# ------------------------------------------------------------------------------------------------------------ mutations
NUMBERS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1]


def mutated(data: bytes, rng, others=()) -> bytes:
    """Some bytes changed."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not found:
            break
        kind, at = rng.random(), rng.randrange(len(found))
        if kind < 0.35:
            found[at] ^= 1 << rng.randrange(8)
        elif kind < 0.55:
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind < 0.72:
            size = rng.choice((2, 4, 8))
            number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
            found[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
        elif kind < 0.8:
            del found[at : at + rng.randrange(1, 64)]
        elif kind < 0.86:
            found[at:at] = rng.randbytes(rng.randrange(1, 32))
        elif kind < 0.92:
            start, size = rng.randrange(len(found)), rng.randrange(1, 64)
            found[at:at] = found[start : start + size] * rng.choice((1, 1, 2, 16))
        elif kind < 0.96 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            found[at:] = other[start:]
        else:
            del found[at:]
    return bytes(found)


ODD = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, -0.0, "", "..", "../../../etc/passwd", "/etc/passwd"),
    *("a\0b", "x" * 5000, "\ud800", [], {}, [[]], {"a": {}}, "pickle", "packed", ["tuple", ["pickle"]]),
    *(["list", "packed"], ["map", "int64", "int64"], ["tuple", []], ["dict", ["a"], ["int64"]], "keyed", "rocksdb"),
    *({"record": [["a", "int64"]], "of": "dict", "class": None}, {"opaque": "x"}, {"list": {"list": None}}),
]


def mutated_json(value, rng, share=0.04):
    """A JSON value with fields changed, left out, doubled, exchanged."""
    if rng.random() < share:
        return copy.deepcopy(rng.choice(ODD))
    if isinstance(value, dict):
        return {
            (name if rng.random() > share / 4 else str(rng.choice(ODD))): mutated_json(item, rng, share)
            for name, item in value.items()
            if rng.random() > share / 4
        }
    if isinstance(value, list):
        items = [mutated_json(item, rng, share) for item in value]
        if items and rng.random() < share:
            items.insert(rng.randrange(len(items)), copy.deepcopy(rng.choice(items)))
        return items
    if type(value) is int and rng.random() < share:
        return value + rng.choice((-1, 1, 2**31, 2**62))
    return value


def hostile_text(rng, text: str) -> bytes:
    """JSON that other readers might take."""
    kind = rng.randrange(6)
    if kind == 0:
        return b"[" * rng.choice((99, 101, 1_000, 100_000))
    if kind == 1:
        return text.replace("1", "9" * rng.choice((10, 2_000, 100_000)), 1).encode("utf-8", "replace")
    if kind == 2:
        return text.replace("1", rng.choice(("NaN", "Infinity", "1e999", "-1e999")), 1).encode("utf-8", "replace")
    if kind == 3:
        return text.replace("{", '{"kind":1,', 2).encode("utf-8", "replace")
    if kind == 4:
        return text.encode("utf-16", "surrogatepass")
    return b"\xef\xbb\xbf" + text.encode("utf-8", "replace")


# ---------------------------------------------------------------------------------------------------------------- seeds
@functools.cache
def golden() -> dict[str, dict[str, bytes]]:
    """The files of every golden snapshot, by archive."""
    found: dict[str, dict[str, bytes]] = {}
    for archive in sorted(GOLDEN.glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            members = [member for member in packed.getmembers() if member.isfile()]
            found[archive.name] = {member.name: packed.extractfile(member).read() for member in members}
    return found


def golden_files(part: str) -> list[bytes]:
    """The golden files whose path holds a text, each once."""
    return sorted({data for files in golden().values() for path, data in files.items() if part in path})


PLAIN = [
    *(None, True, 1, -(2**40), 10**30, -(10**30), 1.5, "a", "é" * 50, b"x", b"\0" * 40, (), (1, "a"), [1, [2, [3]]]),
    *({"a": 1}, {"a": [1, (2, 3)], 5: None}, {1, 2}, frozenset("ab"), complex(1, 2), bytearray(b"xy")),
    *(decimal.Decimal("1.50"), decimal.Decimal("-1E+30"), fractions.Fraction(1, 3), uuid.UUID(int=5)),
    *(np.int64(5), np.float32(1.5), np.bool_(True), np.datetime64("2020-01-01", "us"), np.timedelta64(5, "s")),
    *(datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)),  # noqa: DTZ001
    *(datetime.time(1, 2, 3), datetime.date(2020, 1, 1), datetime.timedelta(days=-3, microseconds=4)),
    *(collections.OrderedDict(a=1), [(1, "a", 0.5)] * 20, {i: str(i) for i in range(50)}, "\ud800"),
]


class _Type:
    """A type of numpy with a state of its own: what has corrupted memory."""

    def __init__(self, base, state):
        self.base, self.state = base, state

    def __reduce__(self):
        return np.dtype, (self.base, False, True), self.state


class _Made:
    """Pickles as a call of anything."""

    def __init__(self, call, *arguments):
        self.made = call, arguments

    def __reduce__(self):
        return self.made


def _scalar(kind, data):
    from numpy._core.multiarray import scalar

    return _Made(scalar, kind, data)


def _laughs(width: int, depth: int):
    found = ["lol"] * width
    for _ in range(depth):
        found = [found] * width
    return found


def _crafted() -> list[bytes]:
    objects = _Type("O8", (3, "|", None, None, None, -1, -1, 63))
    fields = _Type("V8", (3, "|", None, ("a",), {"a": (objects, 0)}, 8, 1, 0))
    far = _Type("V8", (3, "|", None, ("a",), {"a": (np.dtype("S2048"), 64)}, 8, 1, 0))
    # A set of a tuple whose hash takes 2**60 steps.
    nested = b"\x80\x04\x8f(K\x01\x85\x94"
    for number in range(60):
        nested += b"h" + bytes([number]) + b"\x86\x94"
    alike = [k * (2**61 - 1) for k in range(1, 3_000)]
    values = [
        *(Canary(), [Canary()], {"a": Canary()}, _Made(eval, "1 + 1"), fields, far, _Made(bytearray, 60 << 30)),
        *(_scalar(fields, struct.pack("<Q", 0x4141414141414141)), _scalar(far, b"12345678"), _laughs(10, 9)),
        *(_Made(fractions.Fraction, "1e300000000"), _Made(decimal.Decimal, "1e300000000"), alike, set(alike)),
        *(Opaque(pickle.dumps(Canary(), 4)), Opaque(pickle.dumps([1, 2], 4)), _scalar(np.dtype("i8"), b"12345678")),
    ]
    crafted = [pickle.dumps(value, 4) for value in values]
    number = pickle.dumps(np.int64(5), 4)
    return [
        *crafted,
        number.replace(b"i8", b"m8"),
        b"\x80\x04Nr\xff\xff\xff\x7f.",
        b"\x80\x04" + b"]" * 5_000 + b".",
        nested + b"\x90.",
    ]


@functools.cache
def pickles() -> tuple[bytes, ...]:
    """Pickles of plain values, and crafted ones."""
    return (*(pickle.dumps(value, protocol) for value in PLAIN for protocol in (4, 5)), *_crafted())


def _stream(batch, compression=None, writer=pa.ipc.new_stream) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with writer(sink, batch.schema, options=options) as opened:
        opened.write_batch(batch)
    return sink.getvalue().to_pybytes()


@functools.cache
def batches() -> tuple[pa.RecordBatch, ...]:
    """Batches of all types that columns have, and of some that are refused."""
    words = pa.array(["a", "bb", None] * 5)
    plain = {
        "s": words,
        "b": pa.array([b"x", None, b""] * 5, pa.large_binary()),
        "l": pa.array([[1, 2], [], None] * 5, pa.list_(pa.int64())),
        "i": pa.array(range(15)),
        "f": pa.array([1.5, None, float("nan")] * 5),
        "t": pa.array([1, 2, None] * 5, pa.timestamp("us", "UTC")),
        "d": pa.array(["x", "yy", None] * 5).dictionary_encode(),
        "c": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")] * 5),
        "m": pa.array([[("k", 1)], [], None] * 5, pa.map_(pa.string(), pa.int64())),
        "r": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}] * 5),
        "n": pa.nulls(15),
        "k": pa.array([[1, 2], None, [3, 4]] * 5, pa.list_(pa.int32(), 2)),
        "q": pa.array([True, None, False] * 5),
    }
    odd = {
        "v": pa.array(["a" * 20, "bb", None] * 5, pa.string_view()),
        "e": pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([1])).slice(0, 15),
    }
    return (
        pa.record_batch(plain),
        pa.record_batch(plain).slice(0, 0),
        *(pa.record_batch({n: a}) for n, a in odd.items()),
    )


def _bomb() -> bytes:
    column = pa.array([b"\0" * (64 << 20)], pa.large_binary())
    return _stream(pa.record_batch({"v": column}), "zstd")


# -------------------------------------------------------------------------------------------------------------- targets
class Target:
    """A reader of bytes."""

    seeds: list[bytes] = []

    def made(self, rng):
        return mutated(rng.choice(self.seeds), rng, self.seeds)

    def read(self, data) -> None:
        raise NotImplementedError


class ManifestTarget(Target):
    def __init__(self) -> None:
        self.seeds = golden_files("manifests/")
        self.documents = [json.loads(data)["manifest"] for data in self.seeds]
        for document in self.documents:  # a few operators of each, for speed
            document["operators"] = document["operators"][:2]
        self.seeds += [manifests._envelope(manifests._canonical(document)) for document in self.documents]

    def made(self, rng):
        if rng.random() < 0.3:
            return super().made(rng)
        if rng.random() < 0.05:
            return hostile_text(rng, rng.choice(self.seeds).decode())
        body = manifests._canonical(mutated_json(rng.choice(self.documents), rng, rng.choice((0.001, 0.01, 0.1))))
        return manifests._envelope(body, rng.choice((None, None, {"key": "k", "hmac_sha256": "0"}, [], 5)))

    def read(self, data) -> None:
        found = Manifest.from_json(data, "fuzz")
        for operator in found.operators:
            states_of(operator)
        if "(collected rows)" in found.enumerators:
            read_pending_reports(found.enumerators["(collected rows)"])


class LeaseTarget(Target):
    def __init__(self) -> None:
        record = LeaderRecord("host-1", 6_000, {"node": "n1", "pid": "17"})
        self.seeds = [record.to_json(Term("c", 1)), b'{"end": "", "number": 5}', b'{"end": "closed", "number": -1}']
        self.fs = MemoryFileSystem()

    def made(self, rng):
        if rng.random() < 0.3:
            text = mutated_json(json.loads(rng.choice(self.seeds)), rng, 0.2)
            data = json.dumps(text).encode()
            return hostile_text(rng, data.decode()) if rng.random() < 0.2 else data
        return super().made(rng)

    def read(self, data) -> None:
        self.fs.files = {"c/epochs/000000000007": data, "c/renewals/000000000007": self.seeds[1]}
        FileLease(self.fs, "c").observe()
        self.fs.files = {"c/epochs/000000000007": self.seeds[0], "c/renewals/000000000007": data}
        FileLease(self.fs, "c").observe()


class JobStoreTarget(fuzz_jobs.StoredJobs):
    def __init__(self) -> None:
        super().__init__(mutated, mutated_json, pickle.dumps(Canary(), 4))


class HeapTarget(Target):
    """State files, restored by the backends that wrote them; facts and columns are changed, too."""

    def __init__(self) -> None:
        close_pickles()
        self.files: list[tuple[str, str, bytes]] = []
        for data in golden_files(".arrow"):
            facts = self._facts(data)
            if facts is not None and len(data) < 1 << 16:
                self.files.append((facts["state"], facts["kind"], data))
        for values in ([1, None], PLAIN[:8], PLAIN, [(1, "a")], [{"a": 1}, {"b": (1,)}], [[1], []], [Canary()]):
            array, encoding = encode_values(values)
            facts = {"format_version": 1, "state": "own", "kind": "list", "value_encoding": encoding}
            self.files.append(("own", "list", write_state_file(pa.table({"value": array}), facts)))
        self.seeds = [data for _, _, data in self.files]

    @staticmethod
    def _facts(data):
        found = pa.ipc.open_file(data).read_all().schema.metadata or {}
        return json.loads(found[b"headrace.state"]) if b"headrace.state" in found else None

    def made(self, rng):
        state, kind, data = rng.choice(self.files)
        if rng.random() < 0.3:
            table = pa.ipc.open_file(data).read_all()
            facts = mutated_json(self._facts(data), rng, 0.08)
            if isinstance(facts, dict):
                if rng.random() < 0.3:
                    names = list(table.column_names)
                    rng.shuffle(names)
                    table = table.rename_columns(names)
                return state, kind, write_state_file(table, facts)
        return state, kind, mutated(data, rng, self.seeds)

    def read(self, data) -> None:
        state, kind, content = data
        part = RestoredPart(state, kind, {}, content, 0)
        if kind in ("keyed", "columnar"):
            backend = HeapKeyedStateBackend(OperatorId("op"), KeyGroupRange(0, 15), 16)
            backend.restore([part])
        else:
            HeapOperatorStateBackend(OperatorId("op")).restore([part], 0, 1)


class ChannelTarget(Target):
    def __init__(self) -> None:
        close_pickles()
        logged = [channel_state.Logged.of(Batch.of_rows(rows), 0) for rows in ([1, 2], [(1, "a"), None], [Canary()])]
        logged += [channel_state.Logged(1, None, batch, np.arange(batch.num_rows), 15) for batch in batches()[:1]]
        logged.append(channel_state.Logged(0, pickle.dumps([1, 2], 4), None, np.arange(2), 2))
        changes = Batch.of_rows([1, (2, "b")], np.arange(2)).with_row_kinds(np.array([1, 3], np.int8))
        self.entries = [*logged, channel_state.Logged.of(changes, 2)]
        self.seeds = [channel_state._write(some) for some in (logged, logged[:1], logged[-1:], self.entries[-2:])]
        self.seeds += golden_files(".channel")

    def made(self, rng):
        if rng.random() < 0.5:
            return super().made(rng)
        entry = rng.choice(self.entries)
        inner = entry.rows if entry.columns is None else channel_state._stream(entry.columns)
        changed = entry._replace(rows=mutated(inner, rng, [inner]), columns=None)
        data = channel_state._write([changed])
        if entry.columns is not None:
            table = pa.ipc.open_file(data).read_all()
            flags = pa.array([True], pa.bool_())
            table = table.set_column(1, channel_state._SCHEMA.field(1), flags)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            data = sink.getvalue().to_pybytes()
        return data

    def read(self, data) -> None:
        for _, batch in channel_state._read(RestoredPart("in", FileKind.CHANNEL, {}, data, 0)):
            assert len(batch.rows) == batch.num_rows
            assert batch.row_kinds is None or set(batch.row_kinds.tolist()) <= {0, 1, 2, 3}


class RowTarget(Target):
    """Rows of a state database."""

    def __init__(self) -> None:
        close_pickles()
        self.seeds = [rocksdb_encoding.encode_value(value) for value in PLAIN]
        self.seeds += [rocksdb_encoding.encode_value(value, value, keeps_key=True) for value in PLAIN]
        self.seeds += [b"\x02" + data for data in pickles()]
        self.seeds += [b"\x12" + len(data).to_bytes(4, "big") + data + data for data in pickles()[-20:]]

    def read(self, data) -> None:
        repr(rocksdb_encoding.decode_value(data, open_pickle))[:100]
        rocksdb_encoding.original_key(data, open_pickle)
        rocksdb_encoding.split_row(data)


class PackedTarget(Target):
    """Packed values: MessagePack with extensions in extensions."""

    def __init__(self) -> None:
        self.seeds = [packed_values.encode_packed(value) for value in PLAIN]
        deep = msgpack.packb([])
        for _ in range(300):
            deep = msgpack.packb([msgpack.ExtType(1, deep)])
        alike = msgpack.packb({k * (2**61 - 1): k for k in range(1, 8)})
        self.seeds += [
            b"\0" + deep,
            b"\0" + alike,
            b"\0" + b"\x91" * 2_000,
            b"\0\xdd\xff\xff\xff\xff",
            b"\0\xc9\xff\xff\xff\xff\x02",
        ]

    def read(self, data) -> None:
        value = packed_values.decode_packed(data, open_pickle)
        with contextlib.suppress(RecursionError):  # it may be deeper than a repr goes
            repr(value)


class KeyTarget(Target):
    def __init__(self) -> None:
        kinds = (int, float, str, bytes, tuple, datetime.datetime, datetime.date, uuid.UUID, fractions.Fraction)
        keys = [value for value in PLAIN if type(value) in kinds and value != "\ud800"]
        self.seeds = [
            rocksdb_encoding.encode_key(key) for key in [*keys, ((1, ("a", b"x")), 10**40), decimal.Decimal("0.1")]
        ]
        self.seeds += [rocksdb_encoding.encode_namespace(window) for window in (None, (0, 5), (-(2**62), 2**62))]
        self.seeds += [b"\x05" * 100_000, b"\x14\x7f\xff\xff\xffx", b"\x221e300000000\0"]

    def made(self, rng):
        data = super().made(rng)
        return data, rng.choice((0, 0, 0, 1, 4))

    def read(self, data) -> None:
        content, start = data
        readers = (rocksdb_encoding.decode_key, rocksdb_encoding.skip_key, rocksdb_encoding.split_namespace)
        for read in readers:
            with contextlib.suppress(CheckpointCorruptError):
                read(content, start)
        if content:
            number_of(content)


class PickleTarget(Target):
    def __init__(self) -> None:
        self.seeds = list(pickles())

    def read(self, data) -> None:
        value = open_pickle(data)
        repr(value)[:100]
        if not isinstance(value, Opaque):
            packed_values.encode_packed(value)
            with contextlib.suppress(TypeMismatchError):
                rocksdb_encoding.encode_key(value)


def weight_of(batch):
    """Its bytes as channels and steps count them, for which Arrow follows offsets."""
    assert batch.slice(0, 3).nbytes <= batch.nbytes
    return batch.nbytes


class ArrowTarget(Target):
    """Arrow files and streams, as they are validated for all readers of them."""

    def __init__(self) -> None:
        streams = [_stream(batch) for batch in batches()]
        files = [_stream(batch, None, pa.ipc.new_file) for batch in batches()]
        compressed = [_stream(batch, kind) for batch in batches() for kind in ("zstd", "lz4")]
        self.seeds = [*streams, *streams, *files, *files, *compressed, *golden_files(".arrow")[:20], _bomb()]

    def read(self, data) -> None:
        if data[:6] == b"ARROW1":
            found = read_arrow_file(data, "a file").to_batches()
        else:
            found = read_arrow_stream(data, "a stream", allow_compression=True)[1]
        for batch in found:
            weight_of(batch)
            for column in batch.columns:
                try:
                    column.to_pylist()
                except (ValueError, ArithmeticError, pa.ArrowException):  # a number or time that Python has no type for
                    continue


class StagedTarget(Target):
    """Rows that the SQL sink has staged: compressed streams."""

    def __init__(self) -> None:
        self.seeds = [_stream(batch, "zstd") for batch in batches()[:2]] + [_bomb()]

    def read(self, data) -> None:
        for batch in read_arrow_stream(data, "staged rows", allow_compression=True)[1]:
            weight_of(batch)


class ReportsTarget(Target):
    def __init__(self) -> None:
        reports = [(OperatorId("op"), 0, (f"id-{n}", [value, Canary()])) for n, value in enumerate(PLAIN)]
        self.documents = [stored_reports(reports[:3]), stored_reports(reports[10:14])]
        self.old = base64.b64encode(pickle.dumps(tuple(reports[:2]), 4)).decode()

    def made(self, rng):
        if rng.random() < 0.2:
            return base64.b64encode(mutated(base64.b64decode(self.old), rng)).decode()
        document = mutated_json(rng.choice(self.documents), rng, 0.1)
        if isinstance(document, list) and rng.random() < 0.5:
            for entry in document:
                if isinstance(entry, list) and len(entry) == 4:
                    values = packed_values.encode_packed(rng.choice(PLAIN))
                    entry[3] = base64.b64encode(mutated(values, rng)).decode()
        return document

    def read(self, data) -> None:
        for _, _, (_, rows) in read_pending_reports(data):
            repr(rows)[:100]


class SnapshotTarget(Target):
    """Whole checkpoints: a file or the manifest changed, hashes made good again, and everything read."""

    backend = "heap"

    def __init__(self) -> None:
        self.snapshots = []
        for name, files in golden().items():
            if f"-{self.backend}-" in name and sum(map(len, files.values())) < 1 << 20:
                (path,) = sorted(path for path in files if "manifests/" in path)[-1:]
                root = path.partition("manifests/")[0]
                inner = {p.removeprefix(root): data for p, data in files.items() if p.startswith(root)}
                self.snapshots.append((path.removeprefix(root), inner))
        self.snapshots = self.snapshots[:2]

    def made(self, rng):
        manifest, files = rng.choice(self.snapshots)
        document = json.loads(files[manifest])["manifest"]
        changed = {}
        places = [file for state in document["operators"] for one in state["subtasks"] for file in one["files"]]
        if rng.random() < 0.8:
            file = rng.choice(places)
            data = mutated(files[file["path"]], rng)
            changed[file["path"]] = data
            for other in places:
                if other["path"] == file["path"]:
                    other["size"], other["sha256"] = len(data), hashlib.sha256(data).hexdigest()
        else:
            document = mutated_json(document, rng, 0.002)
        changed[manifest] = manifests._envelope(manifests._canonical(document))
        return manifest, {**files, **changed}

    def read(self, data) -> None:
        manifest, files = data
        fs = MemoryFileSystem()
        fs.files = {f"j/{path}": content for path, content in files.items()}
        storage = CheckpointStorage(fs, "j", "memory://fuzz/j")
        found = storage.load(manifest)
        with Snapshot(storage, found, "/dev/shm/headrace-fuzz" if Path("/dev/shm").is_dir() else None) as snapshot:
            for operator in snapshot.operators():
                for state in snapshot.states(operator.uid, look=True):
                    for batch in snapshot.read_batches(operator.uid, state.name):
                        assert batch.num_rows >= 0


class DatabaseTarget(SnapshotTarget):
    """Checkpoints of RocksDB: frames and sorted files are changed and imported."""

    backend = "rocksdb"


class FileCommittableTarget(fuzz_sinks.FileCommittables):
    def __init__(self) -> None:
        super().__init__(mutated_json)


class SqlCommittableTarget(fuzz_sinks.SqlCommittables):
    def __init__(self) -> None:
        super().__init__(mutated, mutated_json)


READERS = {
    "manifest": ManifestTarget,
    "lease": LeaseTarget,
    "jobstore": JobStoreTarget,
    "heap": HeapTarget,
    "channel": ChannelTarget,
    "row": RowTarget,
    "packed": PackedTarget,
    "key": KeyTarget,
    "pickle": PickleTarget,
    "arrow": ArrowTarget,
    "staged": StagedTarget,
    "reports": ReportsTarget,
    "files": FileCommittableTarget,
    "sql": SqlCommittableTarget,
    "snapshot": SnapshotTarget,
    "database": DatabaseTarget,
}
"""Every reader of stored state."""

_SHARES = {"snapshot": 50, "database": 100}
"""Readers whose parts have readers of their own, and that take milliseconds: an input for so many of the others."""


def share(reader: str, num_inputs: int) -> int:
    """How many inputs a reader gets when the others get ``num_inputs``."""
    return max(1, num_inputs // _SHARES.get(reader, 1))
