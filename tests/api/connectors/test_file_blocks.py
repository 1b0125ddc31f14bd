"""Families: regression (what is read does not depend on where blocks of a file begin)."""

from __future__ import annotations

from unittest import mock

import pytest

from headrace.connectors.files import FileSource
from headrace.formats import blocks
from headrace.state.files.memory import MemoryFileSystem


def store(name, data):
    fs = MemoryFileSystem.named("blocks")
    fs.files.clear()
    fs.files[name] = data
    return f"memory://blocks/{name}"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda path: FileSource.csv(path, {"a": str, "b": int}, has_header=False), b"\xef\xbb\xbfx%d,%d\n"),
        (lambda path: FileSource.csv(path, has_header=False, splittable=True), b"\xef\xbb\xbf%d,%d\n"),
        (lambda path: FileSource.text(path), b"\xef\xbb\xbfx%d %d\n"),
        (lambda path: FileSource.json_lines(path, {"a": int}), b'\xef\xbb\xbf{"a": %d, "b": %d}\n'),
        (lambda path: FileSource.json_lines(path, on_error="skip"), b'\xef\xbb\xbf{"a": %d, "b": %d}\n'),
    ],
    ids=["csv", "csv of inferred types", "text", "json lines as columns", "json lines"],
)
def test_byte_order_marks_within_a_file_mean_the_same_wherever_blocks_begin(reading, make, line, mark):
    # The file's own mark is skipped: the first line begins with one behind it only if there is another.
    source = make(store("a", mark + b"".join(line % (i, i) for i in range(6))))
    found = []
    for block in (20, 40, 1 << 20):
        with mock.patch.object(blocks, "BLOCK_BYTES", block):
            found.append(reading().rows(source))
    assert found[0] == found[1] == found[2]
    if b"{" not in line:
        texts = [row if isinstance(row, str) else next(iter(row.values())) for row in found[0]]
        assert [text.startswith("\ufeff") for text in texts] == [bool(mark)] + [True] * 5
