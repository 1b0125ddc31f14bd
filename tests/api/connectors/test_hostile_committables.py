"""What a checkpoint says that sinks have prepared: checked before anybody makes a path, a number or rows of it."""

from __future__ import annotations

import contextlib
import sqlite3
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace import JobFailedError, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.connectors.files.committables import Committable
from headrace.connectors.files.committer import FileCommitter
from headrace.connectors.files.output import OutputDirectory
from headrace.connectors.files.writer import FileWriter
from headrace.connectors.sql import SqlSink
from headrace.engine.connectors import sink_writers
from headrace.engine.connectors.contract import CommitterContext, SinkHistory
from headrace.engine.connectors.sink_writers import _history_of
from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigurationError,
    DamagedFileError,
    SinkFencedError,
)
from headrace.formats import prepared_rows

ORIGIN, OWNER = "0123456789ab", "ba9876543210"
PART = {
    "location": "/out",
    "staged": f"00000-{OWNER}-1_0-00000.jsonl",
    "final": f"part-00000-{ORIGIN}-{OWNER}-1_0-00001-00000.jsonl",
    "size": 3,
    "rows": 1,
}


@pytest.mark.parametrize(
    "part",
    [
        {"origin": "../../../victim", "prepared": {}},
        {"origin": "victim", "prepared": {}},
        {"origin": ORIGIN, "prepared": {"../x": 1}},
        {"origin": ORIGIN, "prepared": {OWNER: "1"}},
        {"origin": ORIGIN, "prepared": {OWNER: -1}},
        {"origin": ORIGIN, "prepared": {OWNER: 1 << 20_000}},
        {"origin": 5, "prepared": {}},
        {"origin": ORIGIN, "prepared": []},
        {"prepared": {}},
    ],
)
def test_a_history_holds_names_and_numbers(part):
    """A sink's origin is part of the path of its staging directory."""
    context = SimpleNamespace(job="job", operator="sink", is_restored=True)
    assert _history_of(context, [{"origin": ORIGIN, "prepared": {OWNER: 3}}]).prepared == {OWNER: 3}
    with pytest.raises(CheckpointMismatchError):
        _history_of(context, [part])


@pytest.mark.parametrize(
    "change",
    [
        {"location": "/out\0"},
        {"location": "/out\ud800"},
        {"size": 1 << 20_000},
        {"rows": True},
        {"staged": PART["staged"].replace("00000", "\u0660" * 5)},
        {"staged": "0" * 500_000 + PART["staged"]},
        {"final": "x" * 500_000},
        {"staged": "/elsewhere/.staging/x"},
        {"staged": PART["staged"].replace(OWNER, ORIGIN)},
        {"staged": PART["staged"].replace("00000-", "00001-", 1)},
        {"staged": PART["staged"].replace("-1_0-", "-1_1-")},
        {"final": PART["final"].replace(".jsonl", ".csv")},
        {"final": f"../{PART['final']}"},
        {"final": f"a=../../b=/{PART['final']}"},
        {"final": f"day/{PART['final']}"},
        {"final": f".staging=1/{PART['final']}"},
        {"final": f"_a=1/{PART['final']}"},
        {"final": f"a=1//{PART['final']}"},
        {"final": f"/a=1/{PART['final']}"},
        {"final": f"a={'x' * 255}/{PART['final']}"},
        {"final": "a=1/" * 100_000 + PART["final"]},
    ],
)
def test_a_committable_of_a_file_sink_holds_names_and_numbers(change):
    assert Committable.of(PART).staged == PART["staged"]
    in_folders = {**PART, "final": f"day=2024-05-01/at=10%3A00/{PART['final']}"}
    assert Committable.of(in_folders).to_state() == in_folders
    with pytest.raises(CheckpointMismatchError) as caught:
        Committable.of({**PART, **change})
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "note",
    [b"[" * 100_000, b"5", b'{"a": 1}', b"[1]", b'["\\ud800"]', b"\xff", b" " * 70_000_000],
    ids=["deep", "number", "object", "numbers", "half a character", "no text", "long"],
)
def test_a_note_of_a_file_sink_that_cannot_be_read_spares_everything(tmp_path, note):
    """It lies in the output directory, which others may write to; what it spares must not be deleted for its damage."""
    output = OutputDirectory(str(tmp_path), SinkHistory(ORIGIN, OWNER))
    output.claim("job", is_alone=False)
    path = f"{output.own_staging}/savepoint-0.json"
    output.fs.write_bytes(path, b'["a"]')
    assert output.noted("savepoint-0.json") == {"a"}
    output.fs.write_bytes(path, note)
    with pytest.raises(DamagedFileError) as caught:
        output.noted("savepoint-0.json")
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "claim", [b"[" * 100_000, b'{"owner": ["%s"]}' % OWNER.encode(), b"[]", b"\xff"], ids=lambda claim: repr(claim[:10])
)
def test_a_claim_of_a_file_sink_that_is_none_is_nobodys(tmp_path, claim):
    output = OutputDirectory(str(tmp_path), SinkHistory(ORIGIN, OWNER))
    output.claim("job", is_alone=False)
    output.fs.write_bytes(f"{output.staging}/claim-00009.json", claim)
    assert output.is_claimed()
    with pytest.raises(SinkFencedError):
        OutputDirectory(str(tmp_path), SinkHistory(ORIGIN, OWNER)).claim("job", is_alone=False)


def _committer(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE numbers (n INTEGER)")
    committer = SqlSink.exactly_once(f"sqlite:///{tmp_path}/db.sqlite", "numbers", sink_id="s").create_committer()
    history = SinkHistory(ORIGIN, OWNER)
    committer.open(CommitterContext("job", "sink", "sink", 0, 1, "1.0", lambda: 1_000, lambda *_: None, history))
    return committer


def _committable(pieces, rows, **changes):
    names = {"sink_id": "s", "txn": "t", "checkpoint_id": 1, "prepared_ms": 500}
    return {**names, "rows": rows, "num_pieces": len(pieces), "data": pieces, **changes}


def test_pieces_of_a_transaction_are_in_memory_one_at_a_time(tmp_path, monkeypatch):
    """Each of many small pieces may grow to 64 MiB."""
    in_memory, most = 0, 0

    class Piece(list):
        def __init__(self, batches):
            nonlocal in_memory, most
            super().__init__(batches)
            in_memory += 1
            most = max(most, in_memory)

        def __del__(self):
            nonlocal in_memory
            in_memory -= 1

    read = prepared_rows.read_arrow_stream
    monkeypatch.setattr(
        prepared_rows, "read_arrow_stream", lambda *args, **options: (None, Piece(read(*args, **options)[1]))
    )
    pieces = [prepared_rows.to_ipc([pa.record_batch({"n": [number]})]) for number in range(20)]
    committer = _committer(tmp_path)
    with contextlib.closing(committer):
        committer.commit(_committable(pieces, 20))
    assert most <= 2
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM numbers").fetchone() == (20,)


@pytest.mark.parametrize("damage", ["damaged", "one more", "one less", "empty"])
def test_a_transaction_with_a_wrong_piece_leaves_nothing(damage, tmp_path):
    good = prepared_rows.to_ipc([pa.record_batch({"n": [1, 2]})])
    empty = pa.BufferOutputStream()
    pa.ipc.new_stream(empty, pa.schema({"n": pa.int64()})).close()
    bad = {"damaged": good[:-40], "one more": good, "one less": good, "empty": empty.getvalue().to_pybytes()}[damage]
    rows = {"damaged": 4, "one more": 3, "one less": 5, "empty": 2}[damage]
    with contextlib.closing(_committer(tmp_path)) as committer, pytest.raises(CheckpointCorruptError):
        committer.commit(_committable([good, bad], rows))
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM numbers").fetchone() == (0,)
        assert connection.execute("SELECT COUNT(*) FROM headrace_commits").fetchone() == (0,)


def test_a_transaction_of_another_sink_is_not_committed(tmp_path):
    """Its marker would make that sink believe that its own rows are in its table."""
    piece = prepared_rows.to_ipc([pa.record_batch({"n": [1]})])
    with contextlib.closing(_committer(tmp_path)) as committer:
        committer.commit(_committable([piece], 1, txn=f"{ORIGIN}/{OWNER}/{'0' * 32}-0", sink_id="renamed since"))
        with pytest.raises(CheckpointMismatchError, match="another sink"):
            committer.commit(_committable([piece], 1, txn=f"{OWNER}/{OWNER}/{'0' * 32}-0", sink_id="other"))
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM headrace_commits").fetchone() == (1,)


@pytest.mark.parametrize("name", ["sink_id", "txn"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=ascii)
def test_names_of_a_transaction_are_texts_that_databases_take(name, text, tmp_path):
    with contextlib.closing(_committer(tmp_path)) as committer, pytest.raises(CheckpointMismatchError):
        committer.commit(_committable([], 0, **{name: text}))


# --------------------------------------------------------------------------------- seals and claims of the directory
def _of_a_job_in_its_directory(tmp_path):
    output = OutputDirectory(str(tmp_path), SinkHistory(ORIGIN, OWNER))
    output.claim("job", is_alone=True)
    return output


@pytest.mark.parametrize("number", ["99999999999", "9" * 18, "0" * 9 + "1", "9" * 60, "\u0660" * 9, "\u00b2" * 5])
@pytest.mark.parametrize("content", [f'{{"origin": "{ORIGIN}", "replaced": []}}', "{"], ids=["own", "damaged"])
def test_numbers_in_the_names_of_seals_cost_nothing(tmp_path, number, content):
    """Somebody who can write to the directory can say that there were a hundred thousand million seals."""
    output = _of_a_job_in_its_directory(tmp_path)
    seal = tmp_path / ".staging" / "first" / f"{number}.json"
    seal.parent.mkdir(exist_ok=True)
    seal.write_text(content)
    with contextlib.suppress(SinkFencedError):
        output.require_alone()
    with contextlib.suppress(ConfigurationError):
        output._seals.take()
    output.mark_done(0, 1)


def test_a_thousand_damaged_seals_are_seals(tmp_path):
    output = _of_a_job_in_its_directory(tmp_path)
    folder = tmp_path / ".staging" / "first"
    folder.mkdir(exist_ok=True)
    for number in range(1, 2_000):
        (folder / f"{number:05d}.json").write_text("{")
    with pytest.raises(SinkFencedError):
        output.require_alone()
    assert output._seals.take()


@pytest.mark.parametrize("name", ["claim-{}.json", "{}/00000-ba9876543210-1_0-00000.jsonl"])
@pytest.mark.parametrize("number", ["9" * 18, "9" * 60, "\u00b2" * 5])
def test_numbers_in_the_names_of_claims_are_those_that_sinks_give(tmp_path, name, number):
    output = OutputDirectory(str(tmp_path), SinkHistory(ORIGIN, OWNER))
    output.fs.write_bytes(f"{output.staging}/{name.format(number)}", b"{}")
    if number == "9" * 18:
        with pytest.raises(ConfigurationError, match="somebody else has made"):
            output.claim("job", is_alone=False)
        return
    output.claim("job", is_alone=False)
    output.adopt()
    assert output.own_staging.endswith("/00001")
    output.remove_if_empty()


# -------------------------------------------------------------------------------------- another's output, end to end
def _started(tmp_path, name, count, **options):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    env.enable_checkpointing(20, directory=tmp_path / "checkpoints")
    source = GeneratorSource(lambda n: {"n": n}, count=count, records_per_second=2_000)
    sink = FileSink.json_lines(tmp_path / "out", mode="append")
    env.from_source(source, None, "numbers").uid("numbers").sink_to(sink).uid("out")
    return env.execute_async(name, **options)


@pytest.mark.parametrize("way", ["its own staged file", "all names of the other", "the other's history"])
def test_a_crafted_checkpoint_replaces_no_output_of_another_sink(tmp_path, monkeypatch, way):
    """Two jobs append to a directory; the checkpoint of one says that it has prepared a file of the other's."""
    _started(tmp_path, "victim", 50).result()
    public = min((tmp_path / "out").glob("part-*"))
    before = public.read_bytes()
    subtask, origin, owner, attempt = public.name.split("-")[1:5]
    if way == "its own staged file":
        owner = OWNER
    staged = f"{subtask}-{owner}-{attempt}-00000.jsonl"
    crafted = {"location": str(tmp_path / "out"), "staged": staged, "final": public.name, "size": 3, "rows": 1}
    origins = []

    def of_the_other(context, restored):
        return SinkHistory(origin, "0" * 12, {owner: 1 << 40}, False)

    with monkeypatch.context() as crafting:
        crafting.setattr(FileWriter, "prepare", lambda writer, _: [crafted])
        crafting.setattr(
            FileCommitter, "commit", lambda committer, _: origins.append(committer._context.history.origin)
        )
        if way == "the other's history":
            crafting.setattr(sink_writers, "_history_of", of_the_other)
        job = _started(tmp_path, "attacker", 6_000)
        for view in job.views():
            if view.checkpoints_completed > 2:
                break
        path = job.stop()
    assert path is not None
    place = tmp_path / "out" / ".staging" / origins[-1] / "00001"
    place.mkdir(parents=True, exist_ok=True)
    (place / staged).write_text("{}\n")
    with pytest.raises(JobFailedError, match="prepared output"):
        _started(tmp_path, "again", 6_000, from_checkpoint=path).result()
    assert public.read_bytes() == before
