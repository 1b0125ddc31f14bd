"""Snapshots that earlier versions wrote, in ``tests/state/golden``: this version goes on from them, or says why not.

Families: golden (each restored at another parallelism; every state and timer of keys compared exactly, and what the
program's functions then say), refusals (another backend, a newer version). ``write_golden.py`` beside the snapshots
writes new ones; those of released versions are never replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from snapshot_programs import NUM_KEYS, environment, program, questions, records, snapshot_of

from headrace import CheckpointMismatchError, JobFailedError
from headrace.jobs.snapshots import Snapshot
from headrace.state.checkpoints.storage import CheckpointStorage

GOLDEN = Path(__file__).resolve().parent / "golden"
ANSWERS = json.loads((GOLDEN / "answers.json").read_text())
ARCHIVES = sorted(GOLDEN.glob("*.tar.xz"))
RESCALED = {1: 2, 2: 4, 4: 1, 3: 5}
NUM_RECORDS = 60
UNCHANGED = ("every kind", "sums", "triggered")
"""Operators whose state the questions do not touch."""


def unpacked(archive, folder):
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        assert all(re.fullmatch(r"[A-Za-z0-9_./-]+", name) and ".." not in name for name in names)
        for member in packed.getmembers():
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packed.extractfile(member).read())
    return folder


def backend_and_parallelism(archive):
    _, backend, parallelism = archive.name.removesuffix(".tar.xz").rsplit("-", 2)
    return backend, int(parallelism)


def in_order(answers):
    return json.loads(json.dumps(sorted(answers, key=lambda answer: answer["key"]), default=str))


def test_the_golden_snapshots_are_there_and_small():
    kinds = {archive.name.split("-")[0] for archive in ARCHIVES}
    assert {(kind, *backend_and_parallelism(archive)) for archive in ARCHIVES for kind in kinds} >= {
        ("checkpoint", backend, parallelism) for backend in ("heap", "rocksdb") for parallelism in RESCALED
    }
    assert sum(file.stat().st_size for file in GOLDEN.iterdir() if file.is_file()) < 300_000
    assert len(ANSWERS) == NUM_KEYS


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name.split(".")[0])
def test_a_golden_snapshot_is_restored_at_another_parallelism(archive, tmp_path):
    backend, parallelism = backend_and_parallelism(archive)
    golden = unpacked(archive, tmp_path / "golden")
    with environment(tmp_path, backend, RESCALED[parallelism]) as env:
        env.set_restore_path(str(golden))
        before = [*records(NUM_RECORDS), *questions()]
        taken, answers = snapshot_of(env, [*before, *questions()], NUM_KEYS, len(before))
    assert in_order(answers) == ANSWERS
    with Snapshot.open(str(golden)) as old, Snapshot.open(taken) as new:
        assert old.verify() == []
        assert old.operator("every kind").parallelism == parallelism
        assert new.operator("every kind").parallelism == RESCALED[parallelism]
        compared = {
            (row["operator"], row["state"]): row
            for row in old.diff(new).to_pylist()
            if row["operator"] in UNCHANGED and row["state"] != "watermark"
        }
        for place, row in compared.items():
            assert (row["only_here"], row["only_there"], row["different"]) == (0, 0, 0), place
        same = {place: row["same"] for place, row in compared.items()}
        assert same["every kind", "event-time-timers"] == same["every kind", "numbers"] == NUM_RECORDS
        assert same["every kind", "processing-time-timers"] == same["sums", "window-contents"] == NUM_KEYS
        assert same["triggered", "window-event-timers"] == same["triggered", "trigger.count"] == NUM_KEYS
        for uid, state in (("remembering", "seen"), ("ruled", "rules")):
            before, after = (sorted(map(repr, s.read(uid, state)["value"].to_pylist())) for s in (old, new))
            assert before == after


@pytest.mark.parametrize("archive", ARCHIVES[:1] + ARCHIVES[-1:], ids=lambda archive: archive.name.split(".")[0])
def test_another_backend_is_refused_by_name(archive, tmp_path):
    backend, _ = backend_and_parallelism(archive)
    other = {"heap": "rocksdb", "rocksdb": "heap"}[backend]
    golden = unpacked(archive, tmp_path / "golden")
    with environment(tmp_path, other, 2) as env:
        env.set_restore_path(str(golden))
        with pytest.raises((JobFailedError, CheckpointMismatchError), match=f"is of the backend '{backend}'"):
            list(program(env, questions()).execute_and_collect("other"))


# --------------------------------------------------------------------------------------------------- of a newer version
def resealed(folder, change):
    """Change the manifest of a snapshot and give it the hash that fits."""
    [path] = (folder / "manifests").iterdir()
    manifest = json.loads(path.read_text())["manifest"]
    change(manifest)
    body = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"manifest":{body},"sha256":"{digest}"}}\n')


def files_of(manifest):
    return [f for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]]


def newer_manifest(manifest, _folder):
    manifest["format_version"] = 3


def newer_state_file(manifest, folder):
    """One state file says that a newer version wrote it; size and hash fit."""
    file = next(f for f in files_of(manifest) if f["kind"] == "keyed" and f["state"] == "count")
    path = folder / file["path"]
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    facts = json.loads(table.schema.metadata[b"headrace.state"])
    facts["format_version"] = 2
    table = table.replace_schema_metadata({b"headrace.state": json.dumps(facts).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    path.write_bytes(data)
    file["size"], file["sha256"] = len(data), hashlib.sha256(data).hexdigest()


def newer_database(manifest, _folder):
    for file in files_of(manifest):
        if file["kind"] == "rocksdb" and file["metadata"]["name"] == "frame":
            file["metadata"]["format_version"] = 2


@pytest.mark.parametrize(
    ("backend", "change", "what"),
    [
        ("heap", newer_manifest, "manifest has format version 3; this Headrace reads versions 1 to 2"),
        ("heap", newer_state_file, "state file has format version 2; this Headrace reads up to 1"),
        ("rocksdb", newer_database, "state database has format version 2; this Headrace reads up to 1"),
    ],
)
def test_a_newer_version_is_refused_by_name(tmp_path, backend, change, what):
    golden = unpacked(GOLDEN / f"checkpoint-{backend}-2.tar.xz", tmp_path / "golden")
    resealed(golden, lambda manifest: change(manifest, golden))
    with environment(tmp_path, backend, 2) as env:
        env.set_restore_path(str(golden))
        with pytest.raises((JobFailedError, CheckpointMismatchError), match=what):
            list(program(env, [*records(1)]).execute_and_collect("newer"))
    with pytest.raises(CheckpointMismatchError, match=what), Snapshot.open(str(golden)) as opened:
        opened.read("every kind", "count")


def test_what_write_golden_packs_is_what_a_restore_needs(tmp_path):
    """An archive holds the manifest and what it names, nothing else: the folder is complete in itself."""
    golden = unpacked(ARCHIVES[0], tmp_path / "golden")
    _, manifest = CheckpointStorage.from_manifest(str(golden))
    there = {str(path.relative_to(golden)) for path in golden.rglob("*") if path.is_file()}
    assert there == {file.path for file in manifest.files()} | {f"manifests/chk-{manifest.checkpoint_id}.json"}
    assert "write_golden" not in sys.modules
