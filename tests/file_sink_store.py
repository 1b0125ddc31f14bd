"""A memory store with a file sink, and what a reader sees there.

With ``partition_by="f"`` the sink has folders, of the rows' numbers modulo 3. Sinks of `OF_PAIRS` have that field, too.
"""

from __future__ import annotations

from headrace.connectors.files import FileSink, FileSource
from headrace.state.files.memory import MemoryFileSystem

MAKERS = {
    "jsonl": FileSink.json_lines,
    "csv": FileSink.csv,
    "parquet": FileSink.parquet,
    "orc": FileSink.orc,
    "avro": FileSink.avro,
}
OF_PAIRS = {"seq": FileSink.sequence_file}
READERS = {
    "jsonl": FileSource.json_lines,
    "csv": lambda path: FileSource.csv(path, {"i": int}),
    "parquet": FileSource.parquet,
    "orc": FileSource.orc,
    "avro": FileSource.avro,
    "seq": FileSource.sequence_file,
}
IN_FOLDERS = {"recursive": True, "folders": {"f": int}}
READERS_OF_FOLDERS = {
    "jsonl": lambda path: FileSource.json_lines(path, {"i": int}, **IN_FOLDERS),
    "csv": lambda path: FileSource.csv(path, {"i": int}, **IN_FOLDERS),
    "parquet": lambda path: FileSource.parquet(path, **IN_FOLDERS),
    "orc": lambda path: FileSource.orc(path, **IN_FOLDERS),
    "avro": lambda path: FileSource.avro(path, **IN_FOLDERS),
}


class Store:
    """A fresh memory store, its sink's directory and what a reader sees there."""

    def __init__(self, reading, kind="jsonl", **options):
        MemoryFileSystem.forget("sink")
        self.fs = MemoryFileSystem.named("sink")
        self.reading = reading
        self.readers = READERS_OF_FOLDERS if options.get("partition_by") else READERS
        self.kind = kind
        self.sink = (MAKERS | OF_PAIRS)[kind]("memory://sink/out", **options)

    def visible(self):
        if not any(not path.startswith("out/.") for path in self.fs.files):
            return []
        found = self.reading().rows(self.readers[self.kind]("memory://sink/out"))
        if self.kind in OF_PAIRS:
            found = [{"i": i, "f": f} for i, f in found]
        assert found == self.rows(*(row["i"] for row in found))
        return [row["i"] for row in found]

    def rows(self, *numbers):
        is_single = self.readers is READERS and self.kind not in OF_PAIRS
        return rows(*numbers) if is_single else [row | {"f": row["i"] % 3} for row in rows(*numbers)]

    @property
    def staged(self):
        return [path for path in self.fs.files if "/.staging/" in path]


def rows(*numbers):
    return [{"i": i} for i in numbers]
