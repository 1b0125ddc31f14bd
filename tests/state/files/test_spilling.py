"""Spill files: what is read is what was written, a full disk is an error with a place, and nothing is left behind."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from full_disk import a_disk_that_takes, open_files

from headrace.state.errors import StorageError
from headrace.state.files.spilling import SpillFile


def test_what_is_read_is_what_was_written_in_any_order(tmp_path):
    rng = random.Random(0)
    file = SpillFile(str(tmp_path / "not" / "yet"))
    written = {}
    for _ in range(50):
        data = rng.randbytes(rng.choice((0, 1, 5_000)))
        written[file.write(data)] = data
        place = rng.choice(list(written))
        assert file.read(place) == written[place]
    assert file.num_bytes == sum(map(len, written.values()))
    file.close()
    file.close()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    file = SpillFile(str(tmp_path))
    with a_disk_that_takes(10_000):
        kept = file.write(b"x" * 9_000)
        with pytest.raises(StorageError, match="cannot be written to the local disk") as full:
            file.write(b"y" * 9_000)
        assert str(tmp_path) in str(full.value)
        assert full.value.context["spilled_bytes"] == 9_000
        assert "make room" in full.value.hint
        assert file.read(kept) == b"x" * 9_000
        file.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=str(tmp_path)):
        SpillFile(str(tmp_path / "file" / "below")).write(b"x")


def test_a_killed_process_leaves_nothing(tmp_path):
    program = (
        "import sys, time\n"
        "from headrace.state.files.spilling import SpillFile\n"
        "file = SpillFile(sys.argv[1]); file.write(b'x' * 100_000)\n"
        "print('written', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        assert any(link.startswith(str(tmp_path)) for link in open_files(process.pid))
        assert list(tmp_path.iterdir()) == [], "it has no name, so nobody needs to clean up"
        process.kill()
    assert list(tmp_path.iterdir()) == []
