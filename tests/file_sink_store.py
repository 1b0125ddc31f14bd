"""A memory store with a file sink, and what a reader sees there."""

from __future__ import annotations

from headrace.connectors.files import FileSink, FileSource
from headrace.state.files.memory import MemoryFileSystem

MAKERS = {"jsonl": FileSink.json_lines, "csv": FileSink.csv, "parquet": FileSink.parquet}
READERS = {
    "jsonl": FileSource.json_lines,
    "csv": lambda path: FileSource.csv(path, {"i": int}),
    "parquet": FileSource.parquet,
}


class Store:
    """A fresh memory store, its sink's directory and what a reader sees there."""

    def __init__(self, reading, kind="jsonl", **options):
        MemoryFileSystem.forget("sink")
        self.fs = MemoryFileSystem.named("sink")
        self.reading = reading
        self.kind = kind
        self.sink = MAKERS[kind]("memory://sink/out", **options)

    def visible(self):
        if not any(not path.startswith("out/.") for path in self.fs.files):
            return []
        return [row["i"] for row in self.reading().rows(READERS[self.kind]("memory://sink/out"))]

    @property
    def staged(self):
        return [path for path in self.fs.files if "/.staging/" in path]


def rows(*numbers):
    return [{"i": i} for i in numbers]
