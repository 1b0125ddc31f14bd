"""The commands ``headrace state``: what they print and their exit status."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from snapshot_programs import COUNT, FRESH, NUMBERS, PER_DIGIT

from headrace.cli import main
from headrace.jobs.snapshots import Snapshot


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def path(request, tmp_path_factory):
    """A snapshot of a few states."""
    folder = tmp_path_factory.mktemp("cli")
    keys = [f"key-{n}" for n in range(30)]
    counts = pa.table({"key": keys, "value": list(range(30))})
    writer = Snapshot.builder(backend=request.param, parallelism=2)
    writer.with_keyed_state("counts", COUNT, counts, operator_name="counting")
    writer.with_keyed_state("counts", FRESH, pa.table({"key": ["a"], "value": ["x"]}), now_ms=1_700_000_000_000)
    writer.with_keyed_state("lists", NUMBERS, pa.table({"key": ["a", "a"], "value": [1, 2]}))
    writer.with_keyed_state("lists", PER_DIGIT, pa.table({"key": ["a"], "map_key": ["1"], "value": [5]}))
    writer.write(str(folder / "snapshot"))
    return str(folder / "snapshot")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def lines(capsys):
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_ls_lists_operators_and_states(path, capsys):
    assert main(["state", "ls", path, "--count"]) == 0
    shown = lines(capsys)
    assert shown[0].startswith("checkpoint 1 of 'snapshot'")
    assert any(line.startswith("counts (counting): parallelism 2 of at most 128, ") for line in shown)
    [count] = [line for line in shown if line.startswith("count ")]
    assert "value (" in count
    assert "string: int64" in count
    assert count.endswith(" 30")
    assert any("ttl" in line for line in shown if line.startswith("fresh "))


def test_show_prints_rows_up_to_a_limit(path, capsys):
    assert main(["state", "show", path, "counting", "count", "--limit", "3"]) == 0
    shown = lines(capsys)
    assert shown[0] == "key value key_group subtask"
    assert shown[-1] == "3 rows and more: --limit 0 shows all"
    assert main(["state", "show", path, "counts", "count", "--key", "key-7"]) == 0
    shown = lines(capsys)
    assert shown[-1] == "1 row"
    assert any(line.startswith("key-7 7 ") for line in shown)
    assert main(["state", "show", path, "lists"]) == 0
    shown = lines(capsys)
    assert any(line.startswith("numbers: list") and line.endswith("2 rows") for line in shown)


def test_show_writes_files(path, tmp_path, capsys):
    for name in ("rows.csv", "rows.jsonl", "rows.parquet", "rows.txt"):
        assert main(["state", "show", path, "counts", "count", "-o", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.count("30 rows written to ") == 3
    with open(tmp_path / "rows.csv", newline="") as file:
        from_csv = [(row["key"], int(row["value"])) for row in csv.DictReader(file)]
    from_json = [
        (row["key"], row["value"]) for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    ]
    table = pq.read_table(tmp_path / "rows.parquet")
    assert sorted(from_csv) == sorted(from_json) == sorted((f"key-{n}", n) for n in range(30))
    assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == from_csv
    assert (tmp_path / "rows.txt").read_text().endswith("20 rows and more: --limit 0 shows all\n")
    assert main(["state", "show", path, "counts", "count", "--format", "parquet"]) == 1


def test_diff_says_what_differs(path, tmp_path, capsys):
    assert main(["state", "diff", path, path]) == 0
    with Snapshot.open(path) as old:
        old.edit().without_state("lists", "per digit").write(str(tmp_path / "other"))
    assert main(["state", "diff", path, str(tmp_path / "other")]) == 1
    shown = lines(capsys)
    assert shown[-2] == "lists, per digit: 1 only in the first"
    assert shown[-1].endswith("of 4 states differ")


def test_verify_reads_everything(path, tmp_path, capsys):
    assert main(["state", "verify", path]) == 0
    assert lines(capsys)[0].startswith("ok checkpoint 1: manifest and all ")
    with Snapshot.open(path) as old:
        old.edit().write(str(tmp_path / "copy"))
    victim = sorted(p for p in (tmp_path / "copy").rglob("*") if p.is_file() and "manifests" not in str(p))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    assert main(["state", "verify", str(tmp_path / "copy")]) == 1
    shown = lines(capsys)
    assert shown[0].startswith(f"FAIL {victim.relative_to(tmp_path / 'copy')}: does not have the content")
    Path(victim).unlink()
    assert main(["state", "verify", str(tmp_path / "copy")]) == 1
    assert "is missing" in lines(capsys)[0]


def test_what_is_not_there_is_said_in_one_line(path, tmp_path, capsys):
    assert main(["state", "show", path, "counts", "nothing"]) == 1
    assert "has no state 'nothing'" in capsys.readouterr().err
    assert main(["state", "ls", str(tmp_path)]) == 1
    assert "there is no complete checkpoint" in capsys.readouterr().err
