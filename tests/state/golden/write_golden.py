"""Writes the golden snapshots: run it with the version whose snapshots are to stay readable, and commit what it writes.

    python tests/state/golden/write_golden.py

Each is a folder with one complete checkpoint of the program in ``tests/snapshot_programs.py``, packed into
``<kind>-<backend>-<parallelism>.tar.xz``; ``answers.json`` says what the program's functions held. A further kind of
snapshot is a line in `KINDS`.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from snapshot_programs import NUM_KEYS, environment, questions, records, snapshot_of  # noqa: E402

NUM_RECORDS = 60
PARALLELISMS = (1, 2, 3, 4)
BACKENDS = ("heap", "rocksdb")


def aligned_checkpoint(folder, backend, parallelism):
    """The last checkpoint of a job that was stopped; gives its manifest's path and the program's answers."""
    with environment(folder, backend, parallelism) as env:
        return snapshot_of(env, [*records(NUM_RECORDS), *questions()], NUM_KEYS)


KINDS = {"checkpoint": aligned_checkpoint}
"""Kind of snapshot -> how one is taken."""


def in_order(answers):
    """Answers as JSON values, ordered by key: what two runs are compared by."""
    return json.loads(json.dumps(sorted(answers, key=lambda answer: answer["key"]), default=str))


def pack(manifest, target):
    """Pack the manifest and the files that it names, and nothing else, into an archive that is the same every time."""
    root = Path(manifest).parent.parent
    named = json.loads(Path(manifest).read_text())["manifest"]["operators"]
    files = [file["path"] for operator in named for snapshot in operator["subtasks"] for file in snapshot["files"]]
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in sorted({*files, str(Path(manifest).relative_to(root))}):
            data = (root / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def main():
    expected = None
    for kind, take in KINDS.items():
        for backend in BACKENDS:
            for parallelism in PARALLELISMS:
                folder = Path(tempfile.mkdtemp())
                manifest, answers = take(folder, backend, parallelism)
                answers = in_order(answers)
                assert expected in (None, answers)
                expected = answers
                target = HERE / f"{kind}-{backend}-{parallelism}.tar.xz"
                pack(manifest, target)
                print(f"{target.name}: {target.stat().st_size:,} bytes")
                shutil.rmtree(folder)
    (HERE / "answers.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
