"""What anybody may have put where checkpoints lie: it is refused, with its place, at a bounded cost.

Families: crafted pickles, bombs of Arrow and of JSON, keys that claim, damage of the file system's own, private files,
signatures, and a short campaign of `fuzz_readers.py`.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.util
import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from campaigns import campaign

from headrace import ConfigurationError, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.engine.checkpoint.io import RestorePoint
from headrace.engine.checkpoint.pending_reports import read_pending_reports, stored_reports
from headrace.engine.checkpoint.restore_choice import JobPast, choose_checkpoint
from headrace.engine.columns.records import Batch
from headrace.engine.task import channel_state
from headrace.jobs.snapshots import Snapshot
from headrace.state.backends.rocksdb import row_encoding as rocksdb_encoding
from headrace.state.checkpoints.data_files import DataFiles
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.leases import FileLease, LeaderRecord, LeaseState
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import FileKind, OperatorSnapshot, RestoredPart, StateFile
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointCorruptError, CheckpointMismatchError, DamagedFileError, StorageError
from headrace.state.files.filesystem import filesystem_for
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import OperatorId
from headrace.state.open.names import PENDING_REPORTS, STOPPED_WITH_SAVEPOINT, STOPPING
from headrace.state.open.values import Opaque, open_pickle
from headrace.state.reading import plain_pickle
from headrace.state.reading.arrow_reading import read_arrow_file, read_arrow_stream
from headrace.state.reading.signing import SigningKeys
from headrace.state.reading.stored_json import parse_json
from headrace.state.values import encoding as value_encoding
from headrace.state.values import packed as packed_values


def _module(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_module("fuzz_jobs")
_module("fuzz_sinks")
fuzz_seeds = _module("fuzz_seeds")
fuzz_readers = _module("fuzz_readers")

BALANCE = ValueStateDescriptor("balance", int)


# ------------------------------------------------------------------------------------------------------------- pickles
@pytest.mark.parametrize("number", range(len(fuzz_seeds._crafted())))
def test_a_crafted_pickle_stays_closed_or_is_plain(number):
    data = fuzz_seeds._crafted()[number]
    value = open_pickle(data)
    assert not fuzz_seeds.was_unpickled()
    if not isinstance(value, Opaque):
        packed_values.encode_packed(value)
        assert len(repr(value)) < 200_000


# Numbered: a set of strings has another text in each process, and pytest-xdist wants the same ids in all of them.
@pytest.mark.parametrize("number", range(len(fuzz_seeds.PLAIN)))
def test_a_plain_pickle_is_opened(number):
    value = fuzz_seeds.PLAIN[number]
    for protocol in (4, 5):
        again = open_pickle(pickle.dumps(value, protocol))
        assert type(again) is type(value)
        assert again == value or repr(again) == repr(value)  # sets have no order, NaN equals nothing


def test_parts_that_are_shared_are_weighed_wherever_they_stand():
    shared = ["x" * 50] * 50
    assert open_pickle(pickle.dumps([shared] * 20, 4)) == [shared] * 20
    data = pickle.dumps([shared] * 20_000, 4)
    with pytest.raises(plain_pickle.NotPlainError, match="weighs more"):
        plain_pickle.read_plain_pickle(data, Opaque)


# --------------------------------------------------------------------------------------------------------------- Arrow
def _stream(batch, compression=None, writer=pa.ipc.new_stream):
    return fuzz_seeds._stream(batch, compression, writer)


def test_a_compressed_bomb_is_refused_before_it_grows():
    bomb = fuzz_seeds._bomb()
    assert len(bomb) < 10_000
    before = pa.total_allocated_bytes()
    for read in (
        lambda: read_arrow_stream(bomb * 1, "rows", allow_compression=True),
        lambda: read_arrow_stream(_stream(fuzz_seeds.batches()[0], "zstd"), "a run"),
    ):
        with pytest.raises(CheckpointCorruptError):
            read()
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_the_limit_is_a_setting(monkeypatch):
    column = pa.array([b"\0" * (1 << 20)], pa.large_binary())
    data = _stream(pa.record_batch({"v": column}), "zstd")
    assert read_arrow_stream(data, "rows", allow_compression=True)[1][0].num_rows == 1
    monkeypatch.setenv("HEADRACE_MAX_EXPANDED_BYTES", "100000")
    with pytest.raises(CheckpointCorruptError, match="would grow to"):
        read_arrow_stream(data, "rows", allow_compression=True)
    monkeypatch.setenv("HEADRACE_MAX_EXPANDED_BYTES", "a lot")
    with pytest.raises(ConfigurationError):
        read_arrow_stream(data, "rows", allow_compression=True)


def test_a_file_is_what_it_holds_and_not_what_its_footer_says():
    """A footer may name one batch a million times; the batches are those that lie in the file."""
    batch = fuzz_seeds.batches()[0]
    table = read_arrow_file(_stream(batch, None, pa.ipc.new_file), "a file")
    assert str(table.to_batches()[0].to_pylist()) == str(batch.to_pylist())


@pytest.mark.parametrize("kind", [pa.string_view(), pa.run_end_encoded(pa.int32(), pa.int64())], ids=str)
def test_types_whose_values_are_not_in_their_buffers_are_refused(kind):
    batch = next(batch for batch in fuzz_seeds.batches() if batch.schema.types[0] == kind)
    with pytest.raises(CheckpointCorruptError, match="not bounded"):
        read_arrow_stream(_stream(batch), "a run")


def test_a_dictionary_that_grows_when_it_is_decoded_is_refused():
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 10_000_000]))
    with pytest.raises(CheckpointCorruptError, match="would grow to"):
        read_arrow_stream(_stream(pa.record_batch({"w": words})), "a run", allow_compression=True)


@pytest.mark.parametrize("first", [None, 1, 2**31 - 1], ids=str)
@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.string()), pa.string()], ids=str)
@pytest.mark.parametrize("is_nested", [False, True], ids=["column", "nested"])
def test_offsets_without_values_lead_nowhere(kind, first, is_nested):
    """They are valid for Arrow, which follows them to count bytes: the process would end."""
    width = 8 if kind == pa.large_list(pa.string()) else 4
    offsets = None if first is None else pa.py_buffer(first.to_bytes(width, "little", signed=True))
    if kind == pa.string():
        empty = pa.Array.from_buffers(kind, 0, [None, offsets, pa.py_buffer(b"")])
    else:
        empty = pa.Array.from_buffers(kind, 0, [None, offsets], children=[pa.array([], pa.string())])
    column = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), empty) if is_nested else empty
    (read,) = read_arrow_stream(_stream(pa.record_batch({"c": column})), "rows")[1]
    assert read.column(0).to_pylist() == [[]] * is_nested
    assert fuzz_seeds.weight_of(read) <= 8 * is_nested


# -------------------------------------------------------------------------------------------------- keys, values, JSON
@pytest.mark.parametrize(
    "data",
    [
        *(b"\x14\x7f\xff\xff\xffx", b"\x16\x40\x00\x00\x00x", b"\x05" * 100_000, b"\x46short", b"\x15\0"),
        *(b"\x40\x03a\x00", b"\x42\x15" + b"\xff" * 8, b"\x03abc"),
    ],
    ids=lambda data: data[:8].hex(),
)
def test_a_key_that_claims_more_than_there_is_is_corrupt(data):
    with pytest.raises(CheckpointCorruptError, match="undecodable key at byte 0"):
        rocksdb_encoding.decode_key(data)


def test_nesting_that_would_end_the_process_is_corrupt():
    deep = b"\x90"
    for _ in range(200):
        deep = b"\x91\xc8" + len(deep).to_bytes(2, "big") + b"\x01" + deep
    with pytest.raises(CheckpointCorruptError, match="nested more than"):
        packed_values.decode_packed(b"\0" + deep)


def test_what_is_nested_deep_is_written_so_that_it_can_be_read():
    value = ()
    for _ in range(300):
        value = (value,)
    assert packed_values.decode_packed(packed_values.encode_packed(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 100_000, '{"a": ' + "9" * 100_000 + "}", "{", ""),
        *("[" * 101 + "]" * 101,),
    ],
    ids=lambda text: text[:12],
)
def test_json_that_others_would_take_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text.encode())


def test_a_manifest_with_impossible_facts_is_corrupt(tmp_path):
    document = json.loads(Path(_snapshot(tmp_path)).read_bytes())["manifest"]
    from headrace.state.checkpoints import manifest as manifests

    def refused(change):
        changed = json.loads(json.dumps(document))
        change(changed["operators"][0], changed["operators"][0]["subtasks"][0]["files"][0])
        with pytest.raises(CheckpointCorruptError, match="chk-1"):
            Manifest.from_json(manifests._envelope(manifests._canonical(changed)), "chk-1")

    refused(lambda operator, _file: operator.update(max_parallelism=10**18))
    refused(lambda _operator, file: file["metadata"].update(value_schema={"list": 5}))
    refused(lambda _operator, file: file["metadata"].update(windowed="yes"))
    refused(lambda _operator, file: file.update(path="../../etc/passwd"))
    refused(lambda _operator, file: file.update(size=True))


# -------------------------------------------------------------------------------------------------------------- damage
def _snapshot(folder):
    table = pa.table({"key": ["a", "b"], "value": [1, 2]})
    return Snapshot.builder().with_keyed_state("op", BALANCE, table).write(str(folder / "snap"))


def test_a_directory_in_place_of_a_file_is_corrupt(tmp_path):
    manifest = Path(_snapshot(tmp_path))
    (data,) = (tmp_path / "snap").glob("chk-*/*/*")
    content = data.read_bytes()
    data.unlink()
    data.mkdir()
    with pytest.raises(CheckpointCorruptError, match="its manifest says"):
        Snapshot.open(manifest)
    storage, found = CheckpointStorage.locate(manifest)
    for read in (lambda: storage.data_files.read_part(found.files()[0]), lambda: storage.verify(found)):
        with pytest.raises(CheckpointCorruptError, match="is damaged"):
            read()
    data.rmdir()
    data.write_bytes(content)
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises(CheckpointCorruptError, match="manifest is damaged"):
        Snapshot.open(manifest)


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EISDIR])
def test_blocks_that_cannot_be_read_are_corrupt(number, tmp_path, monkeypatch):
    manifest = _snapshot(tmp_path)
    with Snapshot.open(manifest) as snapshot:
        (file,) = [file for file in snapshot._manifest.files() if file.state == "balance"]

        def failing(_source, *_rest):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("headrace.state.files.local.at_most", failing)
        with pytest.raises(CheckpointCorruptError, match=file.path):
            snapshot._storage.data_files.read_part(file)


def test_what_may_pass_is_no_damage(tmp_path, monkeypatch):
    manifest = _snapshot(tmp_path)
    with Snapshot.open(manifest) as snapshot:
        (file,) = [file for file in snapshot._manifest.files() if file.state == "balance"]

        def failing(_source, *_rest):
            raise OSError(errno.ETIMEDOUT, "timed out")

        monkeypatch.setattr("headrace.state.files.local.at_most", failing)
        with pytest.raises(Exception, match="timed out") as caught:
            snapshot._storage.data_files.read_part(file)
        assert not isinstance(caught.value, (CheckpointCorruptError, DamagedFileError))


def test_a_file_that_has_grown_is_not_read_to_its_end(tmp_path):
    manifest = Path(_snapshot(tmp_path))
    (data,) = (tmp_path / "snap").glob("chk-*/*/*")
    with open(data, "r+b") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    with pytest.raises(CheckpointCorruptError):
        Snapshot.open(manifest)
    fs, path = filesystem_for(str(data))
    with pytest.raises(DamagedFileError, match="more than the 100 bytes"):
        fs.read_bytes(path, 100)


@pytest.mark.parametrize("data", [b'{"host": "h", "lease_ms": 1e300, "details": {}}', b"[]", b"\xff", b"[" * 10_000])
def test_a_damaged_lease_has_no_known_leader(data):
    fs = MemoryFileSystem()
    fs.files["c/epochs/000000000003"] = data
    assert FileLease(fs, "c").observe() == LeaseState(3, None, "", is_free=False)


# ------------------------------------------------------------------------------------------------------------- private
def test_what_is_made_for_checkpoints_jobs_and_leases_is_its_owners_alone(tmp_path):
    old = os.umask(0)
    try:
        _snapshot(tmp_path)
        CheckpointStorage.open(str(tmp_path / "checkpoints"), "job").claim_epoch()
        JobStore.open(str(tmp_path / "ha")).put_submission("job", 1, {}, b"program")
        FileLease.open(str(tmp_path / "lease")).acquire(LeaderRecord("h", 1_000), LeaseState(0, None, "", is_free=True))
        with CheckpointStorage.at(str(tmp_path / "direct")).fs.open_output(f"{tmp_path}/direct/shared/x") as output:
            output.write(b"x")
    finally:
        os.umask(old)
    made = sorted(tmp_path.rglob("*"))
    assert len(made) > 12
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_file_that_is_written_is_never_one_that_a_link_names(tmp_path):
    """Anybody who may put names into a shared staging directory would have the job's user overwrite files elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for is_private in (True, False):
        fs, root = filesystem_for(str(tmp_path / f"out-{is_private}"), is_private=is_private)
        fs.write_bytes(f"{root}/x", b"")
        for name in ("streamed", "whole", "exclusive"):
            os.symlink(victim, f"{root}/{name}")
        with pytest.raises(StorageError):
            fs.open_output(f"{root}/streamed")
        fs.write_bytes(f"{root}/whole", b"mine")
        with pytest.raises(StorageError):
            fs.create_exclusive(f"{root}/exclusive", b"mine")
    assert victim.read_text() == "precious"


# ---------------------------------------------------------------------------------------------------------- signatures
def _key_file(folder, *ids, name="keys", mode=0o600):
    path = folder / name
    path.write_text("".join(f"{key} {key.encode().hex():0<64}\n" for key in ids))
    path.chmod(mode)
    return str(path)


def test_only_what_is_signed_is_opened(tmp_path, monkeypatch):
    keys = _key_file(tmp_path, "new", "old")
    unsigned = _snapshot(tmp_path / "plain")
    with pytest.raises(CheckpointMismatchError, match="is not signed"):
        Snapshot.open(unsigned, key_file=keys)
    monkeypatch.setenv("HEADRACE_CHECKPOINT_KEY_FILE", keys)
    signed = _snapshot(tmp_path / "signed")
    monkeypatch.delenv("HEADRACE_CHECKPOINT_KEY_FILE")
    Snapshot.open(signed).close()  # without keys it is read all the same
    Snapshot.open(signed, key_file=keys).close()
    with pytest.raises(CheckpointMismatchError, match="a key that is not known: 'new'"):
        Snapshot.open(signed, key_file=_key_file(tmp_path, "old", name="other"))
    Snapshot.open(signed, key_file=_key_file(tmp_path, "newest", "new", name="rotated")).close()


def test_a_manifest_that_was_changed_and_sealed_again_is_refused(tmp_path, monkeypatch):
    from headrace.state.checkpoints import manifest as manifests

    keys = _key_file(tmp_path, "k")
    monkeypatch.setenv("HEADRACE_CHECKPOINT_KEY_FILE", keys)
    path = Path(_snapshot(tmp_path))
    document = json.loads(path.read_bytes())
    document["manifest"]["job_name"] = "another"
    body = manifests._canonical(document["manifest"])
    for signature in (document["signature"], {"key": "k"}, {"key": "k", "hmac_sha256": 5}, [], "x"):
        path.write_bytes(manifests._envelope(body, signature))
        with pytest.raises(CheckpointMismatchError, match=r"has been changed|not known"):
            Snapshot.open(path)


def test_a_restore_refuses_what_is_not_signed_before_it_opens_anything(tmp_path, monkeypatch):
    unsigned = _snapshot(tmp_path)
    opened = []
    monkeypatch.setattr(DataFiles, "read_part", lambda _self, file: opened.append(file))
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    env.get_checkpoint_config().set_key_file(_key_file(tmp_path, "k"))
    env.set_restore_path(unsigned)
    env.from_elements(1).map(lambda value: value).uid("op").print()
    with pytest.raises(Exception, match="is not signed"):
        env.execute("restored")
    assert opened == []


def test_a_job_signs_its_checkpoints_and_goes_on_from_them(tmp_path):
    keys = _key_file(tmp_path, "k")
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
    env.get_checkpoint_config().set_key_file(keys)
    from headrace.connectors.scripted import Pause, ScriptedSource

    def program(env):
        source = ScriptedSource([1, 2, Pause()], is_bounded=False)
        return env.from_source(source, None, "numbers").uid("numbers").map(lambda value: value)

    results = program(env).execute_and_collect("signed")
    assert [next(results), next(results)] == [1, 2]
    path = results.stop()
    assert json.loads(Path(path).read_bytes())["signature"]["key"] == "k"
    env.set_restore_path(path)
    again = program(env).execute_and_collect("signed again")
    again.stop()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_file_that_others_can_read_is_no_good(mode, tmp_path):
    with pytest.raises(ConfigurationError, match="its user's alone"):
        SigningKeys.read(_key_file(tmp_path, "k", mode=mode))


@pytest.mark.parametrize("text", ["", "k 12\n", "k " + "0" * 64 + "\nk " + "1" * 64, "k " + "g" * 64, "\xff"])
def test_an_error_of_a_key_file_does_not_show_it(text, tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(text.encode("latin1"))
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        SigningKeys.read(str(path))
    assert "0" * 20 not in f"{caught.value!r}{caught.value}"


def test_a_key_file_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        SigningKeys.read(str(tmp_path / "keys"))


# ------------------------------------------------------------------------------------------------------------ campaign
@pytest.mark.parametrize("num_inputs", [10, campaign(500)])
def test_readers_survive_a_short_campaign(num_inputs):
    """In a process of its own: its children are forks, and RocksDB's threads, if it was used before, are not there."""
    readers = sorted(fuzz_seeds.READERS)
    chosen = [argument for reader in readers for argument in ("--reader", reader)]
    command = [sys.executable, fuzz_readers.__file__, *chosen, "--inputs", str(num_inputs), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.replace("  ", " ").splitlines() if " inputs" in line]
    assert len(lines) == len(readers)
    for reader, line in zip(readers, lines, strict=True):
        assert f"{fuzz_seeds.share(reader, num_inputs):,} inputs" in line


def test_the_campaign_sees_what_it_looks_for(monkeypatch):
    """Death, memory, foreign exceptions and built pickles: each is counted when a reader falls for it."""

    class Fallible(fuzz_seeds.Target):
        def made(self, rng):
            return rng.randrange(4)

        def read(self, data):
            if data == 0:
                os.write(2, b"what it dies of\n")
                os.abort()
            if data == 1:
                pickle.loads(pickle.dumps(fuzz_seeds.Canary(), 4))
            if data == 2:
                raise KeyError(data)
            bytearray(8 << 30)

    monkeypatch.setitem(fuzz_readers._READERS, "fallible", Fallible)
    tally = fuzz_readers.fuzz("fallible", 12, 1)
    assert tally.crashes
    assert "what it dies of" in str(tally)
    assert tally.unpickled
    assert {site.partition(":")[0] for site in tally.unexpected} == {"KeyError", "MemoryError"}


def test_an_array_of_values_that_is_no_such_array_is_corrupt():
    for encoding in (
        "int64",
        "nothing",
        ["tuple", ["int64"]],
        ["list", "int64"],
        ["map"],
        {},
        [["tuple"]],
        None,
        "null0",
    ):
        with pytest.raises(CheckpointCorruptError):
            value_encoding.decode_values(pa.array(["a"]), encoding)


# ---------------------------------------------------------------------------------------------- what stays closed until
def test_a_job_that_was_stored_without_the_key_is_not_run(tmp_path):
    root, keys = str(tmp_path / "ha"), _key_file(tmp_path, "k")
    JobStore.open(root).put_submission("stranger", 1, {}, pickle.dumps(fuzz_seeds.Canary(), 4))
    JobStore.open(root, keys).put_submission("own", 1, {}, b"program")
    found = {job.job_id: job for job in JobStore.open(root, keys).read_all()}
    assert found["own"].submission.program == b"program"
    assert found["stranger"].submission is None
    assert "not signed" in found["stranger"].problem


def test_rows_collected_for_a_client_stay_closed_in_the_job_manager():
    rows = [(OperatorId("op"), 1, ("id-1", [(1, "a"), None])), (OperatorId("op"), 0, ("id-2", [fuzz_seeds.Canary()]))]
    stored = json.loads(json.dumps(stored_reports(rows)))
    first, second = read_pending_reports(stored)
    assert first == rows[0]
    assert isinstance(second[2][1], Opaque)
    assert not fuzz_seeds.was_unpickled()
    assert read_pending_reports(stored_reports((first, second))) == (first, second)
    pickle.loads(pickle.dumps(second))
    assert fuzz_seeds.was_unpickled(), "what reaches the client is built there"


def test_rows_collected_by_version_1_are_read_if_they_are_plain():
    plain = (("op", 1, ("id-1", [(1, "a")])),)
    assert read_pending_reports(base64.b64encode(pickle.dumps(plain)).decode()) == plain
    with pytest.raises(CheckpointMismatchError, match="earlier version"):
        read_pending_reports(base64.b64encode(pickle.dumps((("op", 1, ("id", fuzz_seeds.Canary())),))).decode())
    assert not fuzz_seeds.was_unpickled()


def test_rows_in_flight_are_typed_and_those_of_version_1_are_read():
    rows = [(1, "a"), {"b": 2}, None, 10**30]
    logged = channel_state.Logged.of(Batch.of_rows(rows), 3)
    assert b"\x80\x04" not in logged.rows
    old = logged._replace(rows=pickle.dumps(rows, 4))
    data = channel_state._write([logged, old])
    found = channel_state._read(RestoredPart("in", FileKind.CHANNEL, {}, data, 0))
    assert [(consumer, batch.rows) for consumer, batch in found] == [(3, rows), (3, rows)]


@pytest.mark.parametrize("form", ["packed", "of an earlier version"])
def test_a_folder_of_checkpoints_opens_nothing_in_the_job_manager(form):
    """All that it reads of a checkpoint before slots do, with pickles wherever a place for one is."""
    MemoryFileSystem.forget("canaries")
    storage = CheckpointStorage.open("memory://canaries/checkpoints", "job")
    storage.claim_epoch()
    pickled = pickle.dumps(fuzz_seeds.Canary(), 4)
    file = "chk-1/op/0.arrow"
    storage.fs.write_bytes(f"{storage.root}/{file}", pickled)
    part = StateFile(file, len(pickled), hashlib.sha256(pickled).hexdigest(), "s", FileKind.LIST, {}, None)
    operator = OperatorState("op", "op", 1, 128, (OperatorSnapshot("op", 0, (part,)),))
    text = base64.b64encode(pickled).decode()
    rows = [(OperatorId("op"), 0, ("id", [fuzz_seeds.Canary()]))]
    reports = stored_reports(rows) if form == "packed" else text
    parts = {PENDING_REPORTS: reports, STOPPING: text, STOPPED_WITH_SAVEPOINT: [text, text], "op": {"state": text}}
    storage.publish(Manifest("job", "job", 1, 1, 1, (operator,), parts), 1)
    point = RestorePoint(choose_checkpoint(storage, JobPast()).manifest, storage.uri, False)
    assert point.enumerators == {"op": {"state": text}}
    assert (point.stopping, point.stopped_with) == (text, (text, text))
    if form == "packed":
        assert isinstance(point.reports[0][2][1], Opaque)
    else:
        with pytest.raises(CheckpointMismatchError, match="earlier version"):
            _ = point.reports
    storage.verify(point.manifest)
    assert not fuzz_seeds.was_unpickled()
