"""What a checkpoint says that sinks have prepared: checked before anybody makes a path, a number or rows of it."""

from __future__ import annotations

import contextlib
import sqlite3
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace.connectors.files.output import Committable, OutputDirectory
from headrace.connectors.sql import SqlSink
from headrace.connectors.sql import writing as sql_writing
from headrace.engine.connectors.contract import CommitterContext, SinkHistory
from headrace.engine.connectors.sink_writers import _history_of
from headrace.engine.errors import CheckpointCorruptError, CheckpointMismatchError, DamagedFileError, SinkFencedError

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
    ],
)
def test_a_committable_of_a_file_sink_holds_names_and_numbers(change):
    assert Committable.of(PART).staged == PART["staged"]
    with pytest.raises(CheckpointMismatchError) as caught:
        Committable.of({**PART, **change})
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "note", [b"[" * 100_000, b"5", b'{"a": 1}', b"[1]", b'["\\ud800"]', b"\xff", b" " * 70_000_000]
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

    read = sql_writing.read_arrow_stream
    monkeypatch.setattr(
        sql_writing, "read_arrow_stream", lambda *args, **options: (None, Piece(read(*args, **options)[1]))
    )
    pieces = [sql_writing._to_ipc([pa.record_batch({"n": [number]})]) for number in range(20)]
    committer = _committer(tmp_path)
    with contextlib.closing(committer):
        committer.commit(_committable(pieces, 20))
    assert most <= 2
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM numbers").fetchone() == (20,)


@pytest.mark.parametrize("damage", ["damaged", "one more", "one less", "empty"])
def test_a_transaction_with_a_wrong_piece_leaves_nothing(damage, tmp_path):
    good = sql_writing._to_ipc([pa.record_batch({"n": [1, 2]})])
    empty = pa.BufferOutputStream()
    pa.ipc.new_stream(empty, pa.schema({"n": pa.int64()})).close()
    bad = {"damaged": good[:-40], "one more": good, "one less": good, "empty": empty.getvalue().to_pybytes()}[damage]
    rows = {"damaged": 4, "one more": 3, "one less": 5, "empty": 2}[damage]
    with contextlib.closing(_committer(tmp_path)) as committer, pytest.raises(CheckpointCorruptError):
        committer.commit(_committable([good, bad], rows))
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM numbers").fetchone() == (0,)
        assert connection.execute("SELECT COUNT(*) FROM headrace_commits").fetchone() == (0,)


@pytest.mark.parametrize("name", ["sink_id", "txn"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=ascii)
def test_names_of_a_transaction_are_texts_that_databases_take(name, text, tmp_path):
    with contextlib.closing(_committer(tmp_path)) as committer, pytest.raises(CheckpointMismatchError):
        committer.commit(_committable([], 0, **{name: text}))
